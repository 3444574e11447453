"""Which server and which table a session has read, and the signs and sample rows by which both are known again.

An address may lead to several servers, of which one is behind the others, and a table may be exchanged for another one
between two questions. So everything that is read carries the identity that its own session has seen; whatever is not the
run's own is never committed. Anything that the user may not see, or that the server lacks, is unknown rather than an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress

from floodmark.config.load import SourceSpec
from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.model.open_work import Trust
from floodmark.model.origin import Origin, SourceId, Witness, server_parts, server_place
from floodmark.model.position import Position
from floodmark.model.table import Column, Table
from floodmark.model.times import TEMPORAL
from floodmark.model.window import Window
from floodmark.model.witnesses import (
    EARLIER,
    NEWEST,
    Cells,
    CurrentRow,
    Deep,
    coarsened,
    compared,
    in_order,
    mark,
    told_by,
    without,
)
from floodmark.source import sql
from floodmark.source.ranges import next_auto_increment
from floodmark.source.server import channels, first_server, server_of, server_sql
from floodmark.source.session import Row, Session, as_text, parse_version

# Seconds that the question for a table's id may take: a restarted MySQL 9.7 may never answer such questions, nor end them.
ANSWERED = 3.0
# The same for a server that has answered it before.
PATIENCE = 30.0
# Sessions that are opened to reach a certain server, or to find another one at the same address.
ATTEMPTS = 4


def table_id(session: Session, table: Table) -> int | None:
    """InnoDB's id of the table, if the server tells it in time; if it does not, the session is closed.

    It lists the tables that are in use, and scans all of them for that: 1 ms for a thousand.
    """
    try:
        rows = session.rows_within(f"SELECT {_id_sql(table, first_server(session))}", ANSWERED) or [(None,)]
    except ConfigError:
        return None  # no privilege
    return int(rows[0][0]) if rows[0][0] else None


def _id_sql(table: Table, server: str) -> str:
    """An expression for it, on this server."""
    name = f"{table.source.schema}/{table.source.table}"
    if not re.fullmatch(r"\w+/\w+", name, re.ASCII):
        return "NULL"  # InnoDB stores it in its own encoding
    known = parse_version(server_parts(server).get("version", ""))
    listed = "INNODB_SYS_TABLESTATS" if known.mariadb or known.numbers < (8, 0) else "INNODB_TABLESTATS"
    named = sql.text(name)
    return (  # there may be others, whose names differ in case
        f"(SELECT TABLE_ID FROM information_schema.{listed} WHERE NAME = {named}"
        f" ORDER BY CAST(NAME AS BINARY) = CAST({named} AS BINARY) DESC LIMIT 1)"
    )


def tells_ids(spec: SourceSpec, table: Table) -> bool | None:
    """Whether the server answers the question for a table's id; in a session of its own, which it may cost."""
    with suppress(FloodmarkError), Session(spec, purpose="table id") as session:
        table_id(session, table)
        return session.at_rest
    return None  # there is no room for another session now


def source_id(session: Session, table: Table, with_id: bool, like: str = "") -> SourceId:
    """The server and the table that the session has read; `like` as in `server_sql`.

    Asked in the transaction that has read the table: until its end, nobody can rename or rebuild it.
    """
    like = like or first_server(session)
    id_ = _id_sql(table, like) if with_id else "NULL"
    question = f"SELECT {server_sql(session, like)}, {creation_time(table)}, {id_}"
    try:
        rows = session.rows_within(question, PATIENCE)
    except ConfigError:  # no privilege to see ids, or a server of another kind
        rows = session.rows(f"SELECT {server_sql(session)}, {creation_time(table)}, NULL")
    if rows is None:
        raise TransientError("the server no longer answers", hint="run again: nothing is lost")
    server, created, number = rows[0]
    return SourceId(as_text(server), as_text(created) or None, int(number) if number else None)


def end_read(session: Session, table: Table, expected: SourceId, commits: bool = False) -> SourceId:
    """What a transaction has read of the table, which is all that it was to read; `commits` ends it.

    Raises ConfigError if transactions go to another server than single queries: they would never read what was planned.
    """
    found = source_id(session, table, expected.table_id is not None, expected.server)
    strange = found.differs(expected) == "server"
    if commits or strange:
        session.rows("COMMIT")
    if strange and server_of(session) == expected.server:
        raise ConfigError(
            f"source.url leads to a proxy that splits reads and writes: it sends single queries to {server_place(expected.server)}, "
            f"but transactions to {server_place(found.server)}",
            hint="let source.url name a server, or a port or user of the proxy whose statements all go to one server",
        )
    return found


@contextmanager
def session_on(server: str, opened: Callable[[], AbstractContextManager[Session]]) -> Iterator[Session]:
    """A session on this server, if a few attempts lead there; else one on another, whose rows will not count."""
    for attempt in range(1, ATTEMPTS + 1):
        with opened() as session:
            if not server or attempt == ATTEMPTS or server_of(session, server) == server:
                yield session
                return
            session.close()


def elsewhere(session: Session) -> str | None:
    """Another server to which the session's address leads, if a few attempts find one."""
    here = server_of(session)
    for _ in range(ATTEMPTS):
        with Session(session.spec, purpose="which server") as other:
            if (there := server_of(other)) != here:
                return there
    return None


# A longer set is not kept, so that claims stay small.
MOST_GTIDS = 16_384
# Without a key, rows are found by cursor and cells among all rows with that cursor: this many of the newest
# and of earlier ones.
KEYLESS = 4
# Types whose values compare in Python just as in MySQL.
_COMPARABLE = (sql.NUMERIC | TEMPORAL) - {"decimal"}


def signs(session: Session, table: Table, trust: Trust) -> Origin:
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
    # Without an index that yields the order, the newest keys serve instead. Rows outside the `where` are as
    # good as others: finding 16 that match it may take long.
    source = table.source
    straight = source.cursor_index is not None and source.cursor_index not in source.needs_sort
    along = table.order if straight or not table.key else table.key
    index = source.cursor_index if along == table.order else source.key_index
    last, most = sql.ordering(table, along, "DESC"), NEWEST if table.key else KEYLESS
    rows = session.rows(_rows(table, [sql.upto(table, table.order, high)], index, last, most))[::-1]
    if window is not None and window.edges and table.key and (straight or window.by == "key"):
        by, index = (
            (table.key, source.key_index) if window.by == "key" else (table.order, source.cursor_index)
        )
        edges, order = window.edges[:: -(-len(window.edges) // EARLIER)], sql.ordering(table, by)
        each = [f"({_rows(table, [sql.after(table, by, edge)], index, order, 1)})" for edge in edges]
        rows = [*session.rows(" UNION ALL ".join(each)), *rows]
    elif first and table.key:
        lowest = _rows(table, [], source.key_index, sql.ordering(table, table.key), EARLIER)
        rows = [*session.rows(lowest), *rows]
    n, marks = len(table.order), [mark(column) for column in told_by(table)]
    return in_order(
        table, [(sql.position_of(table, table.order, row[:n]), _cells(marks, row[n:])) for row in rows]
    )


def _rows(table: Table, conditions: Sequence[str], index: str | None, order: str, most: int) -> str:
    """The query for some rows, with their checksums."""
    chosen = ", ".join([sql.position_columns(table, table.order), *map(_checksum, told_by(table))])
    return sql.query(table, chosen, conditions, index, order=order, most=most, every=True)


def _checksum(column: Column) -> str:
    return f"CRC32({sql.quote(column.name)})"


def _cells(marks: Sequence[str], row: Row) -> Cells:
    return {name: None if cell is None else int(cell) for name, cell in zip(marks, row, strict=True)}


def answers(session: Session, table: Table, asked: Sequence[Witness]) -> list[list[CurrentRow]]:
    """The rows that have the witnesses' keys now, all in one query."""
    if not asked:
        return []
    assert table.cursor is not None
    kinds = {table.column(name).data_type for name in (*table.key, table.cursor)}
    if len(table.key) == 1 and kinds <= _COMPARABLE and table.column(table.key[0]).data_type in sql.NUMERIC:
        return _by_number(session, table, asked)
    return _one_by_one(session, table, asked)


def _by_number(session: Session, table: Table, asked: Sequence[Witness]) -> list[list[CurrentRow]]:
    """For keys and cursors that compare here just as in MySQL: one lookup per witness, no more."""
    assert table.cursor is not None
    cursor, at = table.column(table.cursor), table.order.index(table.key[0])
    keys = sql.any_of(table, [(w.position[at],) for w in asked])
    columns = told_by(table)
    marks = [mark(column) for column in columns]
    chosen = ", ".join([sql.quote(table.key[0]), sql.expression(cursor), *map(_checksum, columns)])
    rows = session.rows(sql.query(table, chosen, [keys], table.source.key_index, every=True))
    there = {int(key or 0): (moment, _cells(marks, tuple(cells))) for key, moment, *cells in rows}
    found: list[list[CurrentRow]] = []
    for witness in asked:
        moment, cells = there.get(int(witness.position[at]), (None, None))
        if cells is None:
            found.append([])
            continue
        was, now = witness.position[0], None if moment is None else sql.value_of(cursor, moment)
        # A cursor that is NULL now was changed; every sync reads such rows again.
        found.append([CurrentRow(1 if now is None else compared(cursor, was, now), cells)])
    return found


def _one_by_one(session: Session, table: Table, asked: Sequence[Witness]) -> list[list[CurrentRow]]:
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
        there = [f"{sql.expression(c)} = {sql.literal(c, values[c.name])}" for c in map(table.column, key)]
        if not table.key:
            cells = dict(witness.cells)
            known = [(c, cells[mark(c)]) for c in columns if mark(c) in cells]
            there += [f"{_checksum(c)} <=> {'NULL' if n is None else int(n)}" for c, n in known]
        parts.append(f"({sql.query(table, chosen, there, index, most=1, every=True)})")
    found: list[list[CurrentRow]] = [[] for _ in asked]
    for which, side, *row in session.rows(" UNION ALL ".join(parts)):
        found[int(which or 0)].append(CurrentRow(int(side or 0), _cells(marks, tuple(row))))
    return found


def to_ask(table: Table, kept: Sequence[Witness]) -> list[Witness]:
    """The witnesses that are cheap to look up."""
    whole = [w for w in kept if len(w.position) == len(table.order)]
    if table.key:
        return whole
    return whole[:KEYLESS] + whole[KEYLESS:][-KEYLESS:] if table.source.cursor_index else []


def ends(session: Session, table: Table, upto: Position) -> Deep:
    """Whether there are rows up to a position; the lowest key, and the next one if it is auto-increment."""
    up_to = [sql.upto(table, table.order, upto)]
    below = session.rows(sql.query(table, "1", up_to, most=1, every=True))
    if len(table.key) != 1 or not table.column(table.key[0]).auto_increment:
        return Deep(bool(below))
    lowest = session.rows(sql.query(table, f"MIN({sql.quote(table.key[0])})", every=True))[0][0]
    counter = next_auto_increment(session, table)
    return Deep(bool(below), int(lowest) if lowest is not None else None, counter)
