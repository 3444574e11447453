"""Queries on a table's index: its ends, the rows in a range, the edges that cut it evenly, and which keys are there.

Nothing here reads whole rows: ends are index lookups, counts of large ranges come from EXPLAIN's dives, edges
are keyset steps with OFFSET or, for integer keys, bisections by dives. So sparse ids make no empty slices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

import pyarrow as pa

from floodmark.model.position import Key, Position, Value
from floodmark.model.table import Column, Table
from floodmark.model.times import TEMPORAL
from floodmark.model.types import fields, key_expression
from floodmark.source import sql
from floodmark.source.session import Row, Session, version

# Dives yield proportions, and this is close enough.
TOLERANCE = 0.15
DIVES = 64  # enough to halve the widest range of ids down to one
# Ranges of up to this many rows are compared row by row.
LISTED = 20_000
_TEXTS = {"char", "varchar", "enum", "set", "tinytext", "text"}
# Hashes that tell two texts apart: one strong enough to keep, one for a quick check at a fraction of the
# cost. Sums of the first are stored in the log: after a change here, every overlap is read once more.
_STRONG = "CAST(CONV(LEFT(SHA2({}, 256), 15), 16, 10) AS UNSIGNED)"
_QUICK = "CRC32({})"
# Keys per question for their weights.
WEIGHED = 500


def every_row(table: Table) -> Table:
    """The same table for queries about all its rows, whether or not they match `where`."""
    return replace(table, recipe=replace(table.recipe, where=None))


def last(session: Session, table: Table, below: Value | None) -> Position | None:
    """The highest position with a cursor below the given value, or overall without one."""
    assert table.cursor is not None
    cursor, index = table.column(table.cursor), table.source.cursor_index
    name = sql.quote(cursor.name)
    conditions = [f"{name} < {sql.literal(cursor, below)}"] if below is not None else [f"{name} IS NOT NULL"]
    columns, order = sql.position_columns(table, table.order), sql.ordering(table, table.order, "DESC")
    while True:
        among = conditions
        if index in table.source.needs_sort:
            top = session.rows(sql.query(table, name, conditions, index, order=f"{name} DESC", most=1))
            if not top:
                return None
            among = [_is(cursor, top[0][0])]
        rows = session.rows(sql.query(table, columns, among, index, order=order, most=1))
        if rows or among is conditions:  # otherwise the row went away between the two queries
            return sql.position_of(table, table.order, rows[0]) if rows else None


def _is(column: Column, cell: bytes | None, sign: str = "=") -> str:
    return f"{sql.quote(column.name)} {sign} {sql.literal(column, sql.value_of(column, cell or b''))}"


def nth(
    session: Session,
    table: Table,
    by: Sequence[str],
    after: Position | None,
    upto: Position | None,
    n: int,
    also: Sequence[str] = (),
) -> Position | None:
    """The position of the n-th row after `after`, or None if there are fewer; `also`: further conditions."""
    index = _index(table, by)
    conditions = [*sql.between(table, by, after, upto), *also]
    if not conditions:
        conditions = [f"{sql.quote(by[0])} IS NOT NULL"]
    if tuple(by) == table.order and index in table.source.needs_sort:
        return _nth_of_ties(session, table, conditions, n)
    columns, order = sql.position_columns(table, by), sql.ordering(table, by)
    rows = session.rows(sql.query(table, columns, conditions, index, order=order, most=1, skip=n - 1))
    return sql.position_of(table, by, rows[0]) if rows else None


def _index(table: Table, by: Sequence[str]) -> str | None:
    return table.source.key_index if tuple(by) == table.key else table.source.cursor_index


def _nth_of_ties(session: Session, table: Table, conditions: Sequence[str], n: int) -> Position | None:
    """The same for an index that doesn't yield the order: only rows that share a cursor are sorted."""
    cursor, index = table.column(table.order[0]), table.source.cursor_index
    name, order = sql.quote(cursor.name), sql.ordering(table, table.order)
    while True:
        found = session.rows(sql.query(table, name, conditions, index, order=name, most=1, skip=n - 1))
        if not found:
            return None
        before = count(session, table, [*conditions, _is(cursor, found[0][0], "<")], index)
        tied = [*conditions, _is(cursor, found[0][0])]
        columns, skip = sql.position_columns(table, table.order), max(0, n - 1 - before)
        rows = session.rows(sql.query(table, columns, tied, index, order=order, most=1, skip=skip))
        if rows:  # otherwise rows went away between the queries
            return sql.position_of(table, table.order, rows[0])


def walk(
    session: Session,
    table: Table,
    by: Sequence[str],
    after: Position | None,
    upto: Position | None,
    step: int,
) -> tuple[Position, ...]:
    """Edges every `step` rows along an index, exact; the last slice ends at `upto`."""
    index, order = _index(table, by), sql.ordering(table, by)
    if index not in table.source.needs_sort and (index is not None or tuple(by) != table.order):
        edges: list[Position] = []
        edge = nth(session, table, by, after, upto, step)
        while edge is not None and edge != upto:
            edges.append(edge)
            edge = nth(session, table, by, edge, upto, step)
        return tuple(edges)
    # No index yields the order: one sort for all edges.
    conditions = sql.between(table, by, after, upto) or [f"{sql.quote(by[0])} IS NOT NULL"]
    if version(session).windows:
        names = [f"o{i}" for i in range(len(by))]
        named = [f"{sql.expression(table.column(c))} AS {n}" for c, n in zip(by, names, strict=True)]
        chosen = ", ".join([*named, f"ROW_NUMBER() OVER (ORDER BY {order}) AS place"])
        cells = session.rows(
            f"SELECT {', '.join(names)} FROM ({sql.query(table, chosen, conditions, index)})"
            f" AS ranked WHERE place % {int(step)} = 0 ORDER BY place"
        )
    else:
        ranked = sql.query(table, sql.position_columns(table, by), conditions, index, order=order)
        cells = _every(session, ranked, len(by), step)
    found = tuple(sql.position_of(table, by, row) for row in cells)
    return found[:-1] if found and found[-1] == upto else found


def _every(session: Session, query: str, columns: int, step: int) -> list[Row]:
    """Every `step`-th row. All rows travel: old servers number rows only by variables, in no sure order."""
    found: list[Row] = []
    seen = 0
    with closing(session.columns(query, LISTED, [pa.binary()] * columns)) as blocks:
        for block in blocks:
            which = pa.array(range((step - 1 - seen) % step, len(block[0]), step), pa.int64())
            found += zip(*(column.take(which).to_pylist() for column in block), strict=True)
            seen += len(block[0])
    return found


def estimate(session: Session, table: Table, index: str | None, conditions: Sequence[str]) -> int:
    """The optimizer's estimate of the rows in a range: a proportion, not a count."""
    # A SUM, because MySQL doesn't dive into a forced index unless something is aggregated: it then says 1.
    asked = sql.query(table, "SUM(1)", conditions, index, every=True)
    return int(session.records(f"EXPLAIN FORMAT=TRADITIONAL {asked}")[0]["rows"] or 0)


def empty(session: Session, table: Table) -> bool:
    """Whether the table has no row that matches its `where`."""
    return not session.rows(sql.query(table, "1", most=1))


def count(session: Session, table: Table, conditions: Sequence[str], index: str | None = None) -> int:
    """The exact number of rows; for ranges covered by an index, or where an estimate won't do."""
    return int(session.rows(sql.query(table, "COUNT(*)", conditions, index))[0][0] or 0)


def table_rows(session: Session, table: Table) -> int:
    """The table's size according to the statistics."""
    return max(1, estimate(session, table, table.source.key_index, ()))


def stored_bytes(session: Session, table: Table) -> tuple[int, int]:
    """The bytes of a row on average, and of all rows, according to the statistics; 0 if there are none."""
    schema, name = sql.text(table.source.schema), sql.text(table.source.table)
    found = session.rows(
        "SELECT AVG_ROW_LENGTH, DATA_LENGTH FROM information_schema.TABLES "
        f"WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = {name}"
    )
    return (int(found[0][0] or 0), int(found[0][1] or 0)) if found else (0, 0)


def split_key(session: Session, table: Table, parts: int, step: int) -> tuple[Position, ...]:
    """Edges that cut the whole key into parts of roughly equal size."""
    if parts <= 1:
        return ()
    column = table.column(table.key[0])
    if len(table.key) > 1 or column.data_type not in sql.NUMERIC - {"decimal"}:
        return walk(session, table, table.key, None, None, step)
    name = sql.quote(column.name)
    ends = session.rows(f"SELECT MIN({name}), MAX({name}) FROM {sql.source(table)}")[0]
    if ends[0] is None or ends[1] is None:
        return ()

    def dive(low: int, high: int) -> int:
        return estimate(session, table, table.source.key_index, [f"{name} > {low}", f"{name} <= {high}"])

    return tuple((edge,) for edge in bisect(dive, int(ends[0]) - 1, int(ends[1]), parts))


def bisect(dive: Callable[[int, int], int], low: int, high: int, parts: int) -> list[int]:
    """Inner edges that cut (low, high] into `parts` with equal shares of what `dive` counts."""
    if parts <= 1 or high - low < parts:
        return []
    left = parts // 2
    middle = _share(dive, low, high, left / parts)
    if not low < middle < high:
        return []
    return [*bisect(dive, low, middle, left), middle, *bisect(dive, middle, high, parts - left)]


def _share(dive: Callable[[int, int], int], low: int, high: int, share: float) -> int:
    """Where the given share of (low, high] ends."""
    total = dive(low, high)
    a, b = low, high
    guess = low + round((high - low) * share)
    for _ in range(DIVES):
        if total == 0 or not a < guess < b:
            break
        # Measure both sides, so that a dive's constant error cancels out.
        below, above = dive(low, guess), dive(guess, high)
        found = below / max(1, below + above)
        if abs(found - share) <= TOLERANCE * max(share, 1 - share):
            break
        if found < share:
            a = guess
        else:
            b = guess
        guess = a + (b - a) // 2
    return guess


def _places(table: Table) -> list[str]:
    """A row's position as texts."""
    columns = [table.column(c) for c in table.order]
    plain = sql.NUMERIC | sql.NUMBERED | TEMPORAL  # HEX would round a DECIMAL
    return [sql.expression(c) if c.data_type in plain else f"HEX({sql.expression(c)})" for c in columns]


def _sum(
    session: Session, table: Table, hashed: str, low: Position | None, high: Position | None
) -> tuple[int, str]:
    """The number of rows in a range, and the sum of their hashes."""
    inside = sql.between(table, table.order, low, high)
    asked = sql.query(table, f"COUNT(*), SUM({hashed})", inside, table.source.cursor_index)
    [(rows, total)] = session.rows(asked)
    return int(rows or 0), (total or b"0").decode()


def _fingerprint(
    session: Session, table: Table, cells: Sequence[str], low: Position | None, high: Position, every: bool
) -> tuple[int, str]:
    """The number of rows in a range, and a hash of these cells; `every`: also rows outside `where`, told apart."""
    if every:
        cells = [*cells, f"{sql.matches(table)} IS TRUE"]
        table = every_row(table)
    return _sum(session, table, _STRONG.format(f"CONCAT_WS('/', {', '.join(cells)})"), low, high)


def positions(
    session: Session, table: Table, low: Position | None, high: Position, *, every: bool = False
) -> tuple[int, str]:
    """The number of rows in a range, and a fingerprint of their positions; `every`: also of rows outside `where`."""
    rows, total = _fingerprint(session, table, _places(table), low, high, every)
    return rows, f"{low}:{high}:{rows}:{total}"


def contents(
    session: Session, table: Table, low: Position | None, high: Position, *, every: bool = False
) -> str:
    """A fingerprint of the rows in a range, over all columns; `every`: also of rows outside `where`."""
    cells = [f"IFNULL(CRC32({f.select}), '-')" for f in fields(table)]
    return _fingerprint(session, table, cells, low, high, every)[1]


def outside(session: Session, table: Table, conditions: Sequence[str]) -> str:
    """A fingerprint of the rows outside `where` that meet the conditions; empty if there are none."""
    hashed = _STRONG.format(f"CONCAT_WS('/', {', '.join(_places(table))})")
    found = [*conditions, f"{sql.matches(table)} IS NOT TRUE"]
    [(rows, total)] = session.rows(sql.query(table, f"COUNT(*), SUM({hashed})", found, every=True))
    return f"{int(rows or 0)}:{total.decode()}" if total else ""


@contextmanager
def _dirty(session: Session) -> Iterator[None]:
    """Inside, reads see what open transactions have written."""
    session.rows("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
    try:
        yield
    finally:
        session.rows("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def uncommitted(session: Session, table: Table, low: Position | None, high: Position) -> Value | None:
    """The lowest cursor in the range that an open transaction has written but not committed, or None."""
    hashed = _QUICK.format(f"CONCAT_WS('/', {', '.join(_places(table))})")
    with _dirty(session):
        rows, written = _sum(session, table, hashed, low, high)
    if (rows, written) == _sum(session, table, hashed, low, high):
        return None
    if rows <= LISTED:
        return _first_uncommitted(session, table, low, high)
    with _dirty(session):
        middle = nth(session, table, table.order, low, high, rows // 2)
    if middle is None or middle == high:
        return _first_uncommitted(session, table, low, high)
    found = uncommitted(session, table, low, middle)
    return found if found is not None else uncommitted(session, table, middle, high)


def _first_uncommitted(session: Session, table: Table, low: Position | None, high: Position) -> Value | None:
    columns, order = sql.position_columns(table, table.order), sql.ordering(table, table.order)
    inside = sql.between(table, table.order, low, high)
    asked = sql.query(table, columns, inside, table.source.cursor_index, order=order)

    def listed() -> Counter[Position]:
        return Counter(sql.position_of(table, table.order, row) for row in session.rows(asked))

    with _dirty(session):
        before = listed()
    committed = listed()
    with _dirty(session):
        after = listed()
    # A row that was committed throughout, but moved after the first look, is missing from the last one.
    return next((p[0] for p in before if min(before[p], after[p]) > committed[p]), None)


def next_auto_increment(session: Session, table: Table) -> int | None:
    """The next value of the auto-increment counter."""
    text = (session.rows(f"SHOW CREATE TABLE {sql.source(table)}")[0][1] or b"").decode(errors="replace")
    found = re.search(r"\) ENGINE=\S+ AUTO_INCREMENT=(\d+)", text)
    return int(found.group(1)) if found else None


def shared_value(
    session: Session, table: Table, name: str, low: Position | None, high: Position | None
) -> tuple[bool, str | None]:
    """Whether all rows of (low, high] share one value in a column, and that value as text; None means NULL.

    Only for values that a text represents fully: numbers without an exponent, short texts, times.
    """
    column, cell = table.column(name), sql.quote(name)
    inside = sql.between(table, table.order, low, high)

    def first(*more: str, select: str = "1") -> Sequence[bytes | None] | None:
        found = session.rows(sql.query(table, select, [*inside, *more], most=1))
        return found[0] if found else None

    row = first(select=cell)
    value = row[0] if row else None
    if value is None:
        return first(f"{cell} IS NOT NULL") is None, None
    if column.data_type in _TEXTS and len(value) <= 1000 and b"\0" not in value:
        same = f"CAST(CONVERT({cell} USING utf8mb4) AS BINARY) <=> X'{value.hex()}'"
    elif column.data_type in sql.NUMERIC or (column.data_type in TEMPORAL and b"-00" not in value):
        same = f"{cell} <=> {sql.literal(column, value.decode())}"
    else:
        return False, None
    if first(f"NOT ({same})") is not None:
        return False, None
    return True, value.decode() + ("+00" if column.data_type == "timestamp" else "")


# ---------------------------------------------------------------- weights of keys whose rows are gone


def key_weights(session: Session, table: Table, keys: Sequence[Key]) -> list[bytes | None]:
    """What `_floodmark_key` would be for rows with these keys; None if the key itself is compared.

    The values are cast to the columns' types, so that the data files' expression gives them the same weights.
    """
    expression = key_expression(table) if table.mode == "upsert" else None
    if expression is None:
        return [None] * len(keys)
    found: list[bytes | None] = []
    for some in sql.chunks(keys, WEIGHED):
        rows = " UNION ALL ".join(_row(table, i, key) for i, key in enumerate(some))
        answers = session.rows(f"SELECT floodmark_n, {expression} FROM ({rows}) AS floodmark_keys")
        by_number = {int(n or 0): weight for n, weight in answers}
        found += [by_number[i] for i in range(len(some))]
    return found


def _row(table: Table, number: int, key: Key) -> str:
    cells = []
    for name, value in zip(table.key, key, strict=True):
        column = table.column(name)
        given = "NULL" if value is None else sql.literal(column, value)
        cells.append(f"{_type(column).format(given)} AS {sql.quote(name)}")
    return f"SELECT {number} AS floodmark_n, {', '.join(cells)}"


def _type(column: Column) -> str:
    """The expression that casts a literal to the column's type, and prints like it."""
    kind = column.data_type
    if column.collation is not None and kind in _TEXTS - sql.NUMBERED:
        return f"CONVERT({{}} USING {column.charset}) COLLATE {column.collation}"
    if filled := re.search(r"\((\d+)(?:,(\d+))?\).*zerofill", column.type):
        digits = int(filled[1]) + (1 if int(filled[2] or 0) else 0)  # and the point
        return f"LPAD({{0}}, GREATEST({digits}, LENGTH({{0}})), '0')"
    if kind in sql.NUMBERED or (kind == "bigint" and column.unsigned):
        # In a UNION with smaller numbers, MySQL takes a bare number above 2^63 for a DECIMAL, or truncates
        # it.
        return "CAST({} AS UNSIGNED)"
    if kind == "year":
        return "LPAD({}, 4, '0')"
    if kind in sql.BINARY or (kind in sql.NUMERIC and kind != "decimal"):
        return "{}"
    if kind == "decimal":
        return f"CAST({{}} AS DECIMAL({column.precision},{column.scale}))"
    if kind in ("datetime", "timestamp"):
        return f"CAST({{}} AS DATETIME({column.fraction or 0}))"
    if kind == "time":
        return f"CAST({{}} AS TIME({column.fraction or 0}))"
    return f"CAST({{}} AS {kind})"  # dates, and MariaDB's types of addresses
