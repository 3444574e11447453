"""What a server says of itself and of a table that tells it from another one, and its rows that are witnesses.

Whatever the user may not see, or the server does not have, is unknown and no error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from floodmark.errors import ConfigError
from floodmark.model import Column, Origin, Position, Table, Value, Window, Witness
from floodmark.mysql import edges, sql
from floodmark.mysql.bounds import Trust
from floodmark.mysql.connect import Row, Session
from floodmark.mysql.load import channels
from floodmark.witnesses import (
    EARLIER,
    NEWEST,
    Answer,
    Cells,
    coarsened,
    compared,
    in_order,
    mark,
    told_by,
    without,
)

# A set that is longer is not kept: claims stay small.
MOST_GTIDS = 16_384
# Without a key, rows are found by cursor and cells, among all that share the cursor: so many of the newest, and of earlier ones.
KEYLESS = 4
# Types whose values compare in Python as they do in MySQL.
_COMPARABLE = (sql.NUMERIC | {"date", "datetime", "timestamp"}) - {"decimal"}


def look(session: Session, table: Table, trust: Trust) -> Origin:
    """The signs of the source now, without the table's id and witnesses."""
    made = (
        f"SELECT CREATE_TIME FROM information_schema.TABLES WHERE TABLE_SCHEMA = {_text(table.schema)}"
        f" AND TABLE_NAME = {_text(table.table)}"
    )
    try:
        gtids, created = session.rows(f"SELECT {trust.gtids or 'NULL'}, ({made})")[0]
    except ConfigError:
        return Origin(trust.server)
    executed = "".join((gtids or b"").decode().split()).strip(",")
    if trust.replica and trust.own:
        # What a replica has executed of its own (a user, statistics), no other server will ever have.
        executed = without(executed, trust.own)
    return Origin(
        server=trust.server,
        gtids=executed if 0 < len(executed) <= MOST_GTIDS else None,
        created=created.decode() if created else None,
    )


def table_id(session: Session, table: Table, trust: Trust) -> int | None:
    """InnoDB's number for the table. A list of all tables is looked through for it: 3 ms for a thousand."""
    name = f"{table.schema}/{table.table}"
    if not trust.sight.process or not re.fullmatch(r"\w+/\w+", name, re.ASCII):
        return None  # no right to ask, or a name that is written in a code of its own there
    listed = "INNODB_TABLES" if trust.numbers >= (8, 0) and not trust.sight.mariadb else "INNODB_SYS_TABLES"
    with suppress(ConfigError):
        rows = session.rows(f"SELECT TABLE_ID FROM information_schema.{listed} WHERE NAME = {_text(name)}")
        return int(rows[0][0] or 0) if rows else None
    return None


def applying(session: Session, trust: Trust) -> bool:
    """Whether the server is a replica that goes on applying what comes, as far as the user may know."""
    with suppress(ConfigError):
        return any(c.get("replica_sql_running") == "Yes" for c in channels(session))
    return trust.replica


# ---------------------------------------------------------------- witnesses


def witnesses(
    session: Session, table: Table, window: Window | None, low: Position | None, first: bool
) -> tuple[Witness, ...]:
    """Rows of what is about to be read: the newest, and where it has slices, some from all over it.

    `first`: there are no others yet, so that the lowest keys have to do where there are no slices.
    """
    high = window.high if window else low
    if high is None or not table.order:
        return ()
    chosen = _chosen(table)
    # Along an index that does not give the order, or without one, the newest keys have to do. Rows outside of the `where`
    # are as good as others: to look for 16 that are in it may take long.
    straight = table.cursor_index is not None and table.cursor_index not in table.crooked
    along = table.order if straight or not table.key else table.key
    index = table.cursor_index if along == table.order else table.key_index
    newest = (
        f"SELECT {chosen} FROM {sql.source(table, index)}{sql.where([sql.upto(table, table.order, high)])}"
        f" ORDER BY {sql.ordering(table, along, 'DESC')} LIMIT {NEWEST if table.key else KEYLESS}"
    )
    rows = session.rows(newest)[::-1]
    if window is not None and window.edges and table.key and (straight or window.by == "key"):
        rows = [*session.rows(_at_edges(table, window, chosen)), *rows]
    elif first and table.key:
        lowest = f"ORDER BY {sql.ordering(table, table.key)} LIMIT {EARLIER}"
        rows = [*session.rows(f"SELECT {chosen} FROM {sql.source(table, table.key_index)} {lowest}"), *rows]
    n, marks = len(table.order), [mark(column) for column in told_by(table)]
    return in_order(
        table, [(sql.position_of(table, table.order, row[:n]), _cells(marks, row[n:])) for row in rows]
    )


def _at_edges(table: Table, window: Window, chosen: str) -> str:
    """The question for the first rows of slices."""
    by, index = (table.key, table.key_index) if window.by == "key" else (table.order, table.cursor_index)
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
    """The rows that have the witnesses' keys now, all in one question."""
    if not asked:
        return []
    assert table.cursor is not None
    kinds = {table.column(name).data_type for name in (*table.key, table.cursor)}
    if len(table.key) == 1 and kinds <= _COMPARABLE and table.column(table.key[0]).data_type in sql.NUMERIC:
        return _by_number(session, table, asked)
    return _one_by_one(session, table, asked)


def _by_number(session: Session, table: Table, asked: Sequence[Witness]) -> list[list[Answer]]:
    """By keys and cursors that compare here as they do there: one look-up for each, and no more."""
    assert table.cursor is not None
    cursor, at = table.column(table.cursor), table.order.index(table.key[0])
    keys = sql.any_of(table, [(w.position[at],) for w in asked])
    columns = told_by(table)
    marks = [mark(column) for column in columns]
    chosen = ", ".join([sql.quote(table.key[0]), sql.expression(cursor), *map(_checksum, columns)])
    rows = session.rows(f"SELECT {chosen} FROM {sql.source(table, table.key_index)}{sql.where([keys])}")
    there = {int(key or 0): (moment, _cells(marks, tuple(cells))) for key, moment, *cells in rows}
    found: list[list[Answer]] = []
    for witness in asked:
        moment, cells = there.get(int(witness.position[at]), (None, None))
        if cells is None:
            found.append([])
            continue
        was, now = witness.position[0], None if moment is None else sql.value_of(cursor, moment)
        # A cursor that is NULL now was changed; such rows are read again by every sync.
        found.append([Answer(1 if now is None else compared(cursor, was, now), cells)])
    return found


def _one_by_one(session: Session, table: Table, asked: Sequence[Witness]) -> list[list[Answer]]:
    """Compared by MySQL, in the columns' own terms."""
    assert table.cursor is not None
    cursor, columns = table.column(table.cursor), told_by(table)
    key, index = (table.key, table.key_index) if table.key else (table.order, table.cursor_index)
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
    """The witnesses that can be asked for at little cost."""
    whole = [w for w in kept if len(w.position) == len(table.order)]
    if table.key:
        return whole
    return whole[:KEYLESS] + whole[KEYLESS:][-KEYLESS:] if table.cursor_index else []


def _is(column: Column, value: Value) -> str:
    return f"{sql.expression(column)} = {sql.literal(column, value)}"


@dataclass(frozen=True)
class Ends:
    """Where a table's rows are, for a closer look."""

    below: bool
    lowest: int | None
    counter: int | None


def ends(session: Session, table: Table, upto: Position) -> Ends:
    """Whether there are rows at or below a position; the lowest key, and the next one where the server counts them."""
    below = session.rows(
        f"SELECT 1 FROM {sql.source(table)}{sql.where([sql.upto(table, table.order, upto)])} LIMIT 1"
    )
    if len(table.key) != 1 or not table.column(table.key[0]).auto_increment:
        return Ends(bool(below), None, None)
    lowest = session.rows(f"SELECT MIN({sql.quote(table.key[0])}) FROM {sql.source(table)}")[0][0]
    counter = edges.next_auto_increment(session, table)
    return Ends(bool(below), int(lowest) if lowest is not None else None, counter)


def _text(value: str) -> str:
    return f"_utf8mb4 X'{value.encode().hex()}'" if value else "''"
