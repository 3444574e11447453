"""What identifies a server and a table: the signs they report, and sample rows that serve as witnesses.

Anything that the user may not see, or that the server lacks, is unknown rather than an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from floodmark.model.errors import ConfigError
from floodmark.model.origin import Origin, Witness
from floodmark.model.position import Position, Value
from floodmark.model.table import Column, Table
from floodmark.model.times import TEMPORAL
from floodmark.model.window import Window
from floodmark.model.witnesses import (
    EARLIER,
    NEWEST,
    Answer,
    Cells,
    Deep,
    coarsened,
    compared,
    in_order,
    mark,
    told_by,
    without,
)
from floodmark.source import ranges as edges
from floodmark.source import sql
from floodmark.source.server_load import channels
from floodmark.source.session import Row, Session
from floodmark.source.trust import Trust

# A longer set is not kept, so that claims stay small.
MOST_GTIDS = 16_384
# Without a key, rows are found by cursor and cells among all rows with that cursor: this many of the newest
# and of earlier ones.
KEYLESS = 4
# Types whose values compare in Python just as in MySQL.
_COMPARABLE = (sql.NUMERIC | TEMPORAL) - {"decimal"}


def look(session: Session, table: Table, trust: Trust) -> Origin:
    """The source's current signs, without the table's id and witnesses."""
    try:
        gtids, created = session.rows(f"SELECT {trust.gtids or 'NULL'}, {creation_time(table)}")[0]
    except ConfigError:
        return Origin(trust.server)
    executed = "".join((gtids or b"").decode().split()).strip(",")
    if trust.replica and trust.own:
        # Transactions that originated on a replica (a user, statistics) will never reach another server.
        executed = without(executed, trust.own)
    return Origin(
        server=trust.server,
        gtids=executed if 0 < len(executed) <= MOST_GTIDS else None,
        created=created.decode() if created else None,
    )


def creation_time(table: Table) -> str:
    """An expression for the time when the table was created."""
    return (
        f"(SELECT CREATE_TIME FROM information_schema.TABLES WHERE TABLE_SCHEMA = {sql.text(table.source.schema)}"
        f" AND TABLE_NAME = {sql.text(table.source.table)})"
    )


def applying(session: Session, trust: Trust) -> bool:
    """Whether the server is a replica that keeps applying changes, as far as the user may know."""
    if trust.replica and trust.member_of == "aurora":
        return True  # a reader has no channel: it follows the writer's storage
    with suppress(ConfigError):
        return any(c.get("replica_sql_running") == "Yes" for c in channels(session))
    return trust.replica


# ---------------------------------------------------------------- witnesses


def witnesses(
    session: Session, table: Table, window: Window | None, low: Position | None, first: bool
) -> tuple[Witness, ...]:
    """Rows of what is about to be read: the newest, and if there are slices, some from all over the window.

    `first`: there are no witnesses yet, so without slices the lowest keys serve.
    """
    high = window.high if window else low
    if high is None or not table.order:
        return ()
    chosen = _chosen(table)
    # Without an index that yields the order, the newest keys serve instead. Rows outside the `where` are as
    # good as others: finding 16 that match it may take long.
    source = table.source
    straight = source.cursor_index is not None and source.cursor_index not in source.needs_sort
    along = table.order if straight or not table.key else table.key
    index = source.cursor_index if along == table.order else source.key_index
    newest = (
        f"SELECT {chosen} FROM {sql.source(table, index)}{sql.where([sql.upto(table, table.order, high)])}"
        f" ORDER BY {sql.ordering(table, along, 'DESC')} LIMIT {NEWEST if table.key else KEYLESS}"
    )
    rows = session.rows(newest)[::-1]
    if window is not None and window.edges and table.key and (straight or window.by == "key"):
        rows = [*session.rows(_at_edges(table, window, chosen)), *rows]
    elif first and table.key:
        lowest = f"ORDER BY {sql.ordering(table, table.key)} LIMIT {EARLIER}"
        rows = [*session.rows(f"SELECT {chosen} FROM {sql.source(table, source.key_index)} {lowest}"), *rows]
    n, marks = len(table.order), [mark(column) for column in told_by(table)]
    return in_order(
        table, [(sql.position_of(table, table.order, row[:n]), _cells(marks, row[n:])) for row in rows]
    )


def _at_edges(table: Table, window: Window, chosen: str) -> str:
    """The query for the first rows of slices."""
    source = table.source
    by, index = (table.key, source.key_index) if window.by == "key" else (table.order, source.cursor_index)
    step = -(-len(window.edges) // EARLIER)
    return " UNION ALL ".join(
        f"(SELECT {chosen} FROM {sql.source(table, index)}{sql.where([sql.after(table, by, edge)])}"
        f" ORDER BY {sql.ordering(table, by)} LIMIT 1)"
        for edge in window.edges[::step]
    )


def _chosen(table: Table) -> str:
    cells = [_checksum(column) for column in told_by(table)]
    return ", ".join([sql.position_columns(table, table.order), *cells])


def _checksum(column: Column) -> str:
    return f"CRC32({sql.quote(column.name)})"


def _cells(marks: Sequence[str], row: Row) -> Cells:
    return {name: None if cell is None else int(cell) for name, cell in zip(marks, row, strict=True)}


def answers(session: Session, table: Table, asked: Sequence[Witness]) -> list[list[Answer]]:
    """The rows that have the witnesses' keys now, all in one query."""
    if not asked:
        return []
    assert table.cursor is not None
    kinds = {table.column(name).data_type for name in (*table.key, table.cursor)}
    if len(table.key) == 1 and kinds <= _COMPARABLE and table.column(table.key[0]).data_type in sql.NUMERIC:
        return _by_number(session, table, asked)
    return _one_by_one(session, table, asked)


def _by_number(session: Session, table: Table, asked: Sequence[Witness]) -> list[list[Answer]]:
    """For keys and cursors that compare here just as in MySQL: one lookup per witness, no more."""
    assert table.cursor is not None
    cursor, at = table.column(table.cursor), table.order.index(table.key[0])
    keys = sql.any_of(table, [(w.position[at],) for w in asked])
    columns = told_by(table)
    marks = [mark(column) for column in columns]
    chosen = ", ".join([sql.quote(table.key[0]), sql.expression(cursor), *map(_checksum, columns)])
    source = sql.source(table, table.source.key_index)
    rows = session.rows(f"SELECT {chosen} FROM {source}{sql.where([keys])}")
    there = {int(key or 0): (moment, _cells(marks, tuple(cells))) for key, moment, *cells in rows}
    found: list[list[Answer]] = []
    for witness in asked:
        moment, cells = there.get(int(witness.position[at]), (None, None))
        if cells is None:
            found.append([])
            continue
        was, now = witness.position[0], None if moment is None else sql.value_of(cursor, moment)
        # A cursor that is NULL now was changed; every sync reads such rows again.
        found.append([Answer(1 if now is None else compared(cursor, was, now), cells)])
    return found


def _one_by_one(session: Session, table: Table, asked: Sequence[Witness]) -> list[list[Answer]]:
    """Compares in MySQL, in the columns' own terms."""
    assert table.cursor is not None
    cursor, columns = table.column(table.cursor), told_by(table)
    source = table.source
    key, index = (table.key, source.key_index) if table.key else (table.order, source.cursor_index)
    marks = [mark(column) for column in columns]
    parts = []
    for number, witness in enumerate(asked):
        values = dict(zip(table.order, witness.position, strict=True))
        name = sql.expression(cursor)
        low, high = (sql.literal(cursor, v) for v in coarsened(cursor, values[cursor.name]))
        order = f"CASE WHEN {name} < {low} THEN -1 WHEN {name} <= {high} THEN 0 ELSE 1 END"
        chosen = ", ".join([str(number), order, *map(_checksum, columns)])
        there = [_is(table.column(k), values[k]) for k in key]
        if not table.key:
            cells = dict(witness.cells)
            there += [f"{_checksum(c)} <=> {_number(cells[mark(c)])}" for c in columns if mark(c) in cells]
        parts.append(f"(SELECT {chosen} FROM {sql.source(table, index)}{sql.where(there)} LIMIT 1)")
    found: list[list[Answer]] = [[] for _ in asked]
    for which, side, *row in session.rows(" UNION ALL ".join(parts)):
        found[int(which or 0)].append(Answer(int(side or 0), _cells(marks, tuple(row))))
    return found


def _number(value: int | None) -> str:
    return "NULL" if value is None else str(int(value))


def to_ask(table: Table, kept: Sequence[Witness]) -> list[Witness]:
    """The witnesses that are cheap to look up."""
    whole = [w for w in kept if len(w.position) == len(table.order)]
    if table.key:
        return whole
    return whole[:KEYLESS] + whole[KEYLESS:][-KEYLESS:] if table.source.cursor_index else []


def _is(column: Column, value: Value) -> str:
    return f"{sql.expression(column)} = {sql.literal(column, value)}"


def ends(session: Session, table: Table, upto: Position) -> Deep:
    """Whether there are rows up to a position; the lowest key, and the next one if it is auto-increment."""
    below = session.rows(
        f"SELECT 1 FROM {sql.source(table)}{sql.where([sql.upto(table, table.order, upto)])} LIMIT 1"
    )
    if len(table.key) != 1 or not table.column(table.key[0]).auto_increment:
        return Deep(bool(below))
    lowest = session.rows(f"SELECT MIN({sql.quote(table.key[0])}) FROM {sql.source(table)}")[0][0]
    counter = edges.next_auto_increment(session, table)
    return Deep(bool(below), int(lowest) if lowest is not None else None, counter)
