"""What we remember about a source, so that we notice if it has been replaced, or another one was read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from floodmark.model.errors import TransientError
from floodmark.model.position import Position


class Witness(NamedTuple):
    """A row as the source had it: its position, and checksums of some cells by `witnesses.mark`."""

    position: Position
    cells: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True)
class SourceId:
    """The server and the table that a session has read. Each part may be unknown."""

    server: str = ""  # all that tells it from others, as `trust.server_of` has it
    created: str | None = None  # when the table was created
    table_id: int | None = None  # InnoDB's id of the table

    def differs(self, other: SourceId) -> Literal["server", "table"] | None:
        """What is not the same, as far as both know it."""
        if self.server and other.server and self.server != other.server:
            return "server"
        pairs = (self.created, other.created), (self.table_id, other.table_id)
        return "table" if any(None not in pair and pair[0] != pair[1] for pair in pairs) else None


UNKNOWN_SOURCE = SourceId()


@dataclass(frozen=True)
class Origin:
    """What identifies a source. Each part may be unknown."""

    server: str | None = None  # its UUID
    gtids: str | None = None  # executed transactions: MySQL's GTID set, or MariaDB's GTID position
    table_id: int | None = None  # InnoDB's id of the table
    created: str | None = None  # when the table was created
    witnesses: tuple[Witness, ...] = ()  # some rows, highest positions last


# ---------------------------------------------------------------- what one run has read

T = TypeVar("T")


class SourceChanged(TransientError):
    """Another server or another table was read than the one that the plan was made for."""


class Sources:
    """The server and the table that a run reads under each table's name: whatever else was read is refused."""

    def __init__(self) -> None:
        self._known: dict[str, SourceId] = {}
        self._doubted: set[str] = set()

    def expect(self, table: str, source: SourceId) -> None:
        """Everything read from now on must be of this source."""
        self._known[table] = source

    def expected(self, table: str) -> SourceId:
        return self._known.get(table, UNKNOWN_SOURCE)

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
            raise several_servers(servers, why) if what == "server" else exchanged()

    def twice(self, go: Callable[[], T], again: Callable[[], T] | None = None) -> T:
        """The same once more, or what to do instead, if something else was read."""
        try:
            return go()
        except SourceChanged:
            return (again or go)()


def several_servers(servers: Sequence[str], why: str = "") -> TransientError:
    """The error for an address that leads to several servers, of which one can't be used."""
    named = " and ".join(server_place(server) for server in servers)
    return SourceChanged(
        f"source.url leads to several servers, {named}{why}",
        hint="run again: nothing is lost; if it keeps happening, let source.url name one server, or have the "
        "load balancer keep the connections of one client on one server",
    )


def exchanged() -> TransientError:
    """The error for a table that was another one when its rows were read."""
    return SourceChanged(
        "the table was altered, or exchanged for another one, while it was being read",
        hint="run again: nothing is lost, and what was read of it meanwhile doesn't count",
    )


def server_place(server: str) -> str:
    parts = server_parts(server)
    where = ":".join(parts[name] for name in ("hostname", "port") if name in parts)
    return f"{where} (server_id {parts['server_id']})" if "server_id" in parts else where or "unknown"


def server_parts(server: str) -> dict[str, str]:
    """The variables in the answer to `server_sql`, by name, and perhaps pieces of a uid with slashes. Pure."""
    return dict(part.partition("=")[::2] for part in server.split("/") if part)
