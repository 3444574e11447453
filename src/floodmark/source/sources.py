"""Which server and which table a session has read: whatever is not the run's own is never committed.

An address may lead to several servers, of which one is behind the others, and a table may be exchanged for another one
between two questions. So everything that is read carries the identity that its own session has seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from floodmark.config.load import SourceSpec
from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.model.origin import SourceId
from floodmark.model.table import Table
from floodmark.source import sql
from floodmark.source.identity import creation_time
from floodmark.source.session import Session, as_text
from floodmark.source.trust import first_server, server_of, server_parts, server_sql
from floodmark.source.version import parsed

# Seconds that the question for a table's id may take: a restarted MySQL 9.7 may never answer such questions, nor end them.
ANSWERED = 3.0
# The same for a server that has answered it before.
PATIENCE = 30.0
# Sessions that are opened to reach a certain server, or to find another one at the same address.
ATTEMPTS = 4

T = TypeVar("T")


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
    known = parsed(server_parts(server).get("version", ""))
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


class SourceChanged(TransientError):
    """Another server or another table was read than the one that the plan was made for."""


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
        raise TransientError(
            "the server no longer answers", hint="run again: nothing is lost", table=table.name
        )
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
            f"source.url leads to a proxy that splits reads and writes: it sends single queries to {_place(expected.server)}, "
            f"but transactions to {_place(found.server)}",
            hint="let source.url name a server, or a port or user of the proxy whose statements all go to one server",
            table=table.name,
        )
    return found


class Sources:
    """The server and the table that a run reads under each table's name: whatever else was read is refused."""

    def __init__(self) -> None:
        self._known: dict[str, SourceId] = {}
        self._doubted: set[str] = set()

    def expect(self, table: str, source: SourceId) -> None:
        """Everything read from now on must be of this source."""
        self._known[table] = source

    def expected(self, table: str) -> SourceId | None:
        return self._known.get(table)

    def doubted(self, table: str) -> bool:
        """Whether something else was read before."""
        return table in self._doubted

    def check(self, table: str, found: SourceId) -> None:
        """Raises SourceChanged if a session has read something else."""
        known = self._known.setdefault(table, found)
        if what := known.differs(found):
            del self._known[table]
            self._doubted.add(table)
            why, servers = ", and one run must read from one of them", [known.server, found.server]
            raise several_servers(table, servers, why) if what == "server" else exchanged(table)

    def twice(self, table: str, go: Callable[[], T], again: Callable[[], T] | None = None) -> T:
        """The same once more, or what to do instead, if something else was read."""
        try:
            return go()
        except SourceChanged:
            return (again or go)()


def several_servers(table: str, servers: Sequence[str], why: str = "") -> TransientError:
    """The error for an address that leads to several servers, of which one can't be used."""
    named = " and ".join(_place(server) for server in servers)
    return SourceChanged(
        f"source.url leads to several servers, {named}{why}",
        hint="run again: nothing is lost; if it keeps happening, let source.url name one server, or have the "
        "load balancer keep the connections of one client on one server",
        table=table,
    )


def exchanged(table: str) -> TransientError:
    """The error for a table that was another one when its rows were read."""
    return SourceChanged(
        "the table was altered, or exchanged for another one, while it was being read",
        hint="run again: nothing is lost, and what was read of it meanwhile doesn't count",
        table=table,
    )


def _place(server: str) -> str:
    parts = server_parts(server)
    where = ":".join(parts[name] for name in ("hostname", "port") if name in parts)
    return f"{where} (server_id {parts['server_id']})" if "server_id" in parts else where or "unknown"


def session_on(server: str, opened: Callable[[], Session]) -> Session:
    """A session on this server, if a few attempts lead there; else one on another, whose rows will not count."""
    for _ in range(ATTEMPTS - 1):
        session = opened()
        if not server or server_of(session, server) == server:
            return session
        session.close()
    return opened()


def elsewhere(session: Session) -> str | None:
    """Another server to which the session's address leads, if a few attempts find one."""
    here = server_of(session)
    for _ in range(ATTEMPTS):
        with Session(session.spec, purpose="which server") as other:
            if (there := server_of(other)) != here:
                return there
    return None
