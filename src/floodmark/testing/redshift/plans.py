"""What is to be done with one statement: forward other SQL to the backend, or run it here.

A `Plan` is made when the statement is parsed and used each time that it is executed. `Context` is all that a
statement run here may touch: the caller's own backend, and the stand-in around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from floodmark.store import Store
from floodmark.testing.redshift.backend import Backend
from floodmark.testing.redshift.columntypes import Domain
from floodmark.testing.redshift.faults import Faults
from floodmark.testing.redshift.history import History
from floodmark.testing.redshift.wire import SqlError


class Services(Protocol):
    """What sessions share."""

    faults: Faults
    history: History

    def furnish(self, database: str, domains: Iterable[Domain], names: Iterable[str]) -> None:
        """Make sure that a database has these types, and knows these long names."""
        ...

    def bucket(self, name: str) -> Store:
        """The objects behind s3://name/."""
        ...

    def record(self, database: str, table: str, *rows: dict[str, object]) -> None:
        """Add rows to one of the system tables, whatever becomes of the caller's transaction."""
        ...

    def base_type(self, database: str, kind: int) -> int:
        """The type under one of the stand-in's own."""
        ...

    def publish(self) -> None:
        """Bring SYS_QUERY_HISTORY up to date."""
        ...


@dataclass
class Context:
    """The session that a statement runs in."""

    backend: Backend
    database: str
    services: Services
    user: str = ""
    query: int = 0  # the number of the statement that runs
    settings: dict[str, str] = field(default_factory=dict)
    copy_count: int = 0
    copy_id: int = -1
    copied: bool = False  # the count is newer than what a rollback would leave in the backend

    @property
    def in_block(self) -> bool:
        return self.backend.status != b"I"

    def tell_count(self) -> None:
        """Let pg_last_copy_count() know."""
        self.backend.query(f"SET floodmark.copy_count = '{self.copy_count}'")

    def tell_id(self) -> None:
        """Let pg_last_copy_id() know, until a rollback takes it back."""
        self.backend.query(f"SET floodmark.copy_id = '{self.copy_id}'")


@dataclass(frozen=True)
class Plan:
    """One statement, understood."""

    text: str  # as the client wrote it
    sql: str = ""  # as the backend is to have it
    run: Callable[[Context], str] | None = None  # instead of `sql`; answers with the command's tag
    writes: str | None = None  # the table whose write lock it needs
    outside: str | None = None  # what Redshift says when this stands in a transaction block
    domains: frozenset[Domain] = frozenset()
    names: frozenset[str] = frozenset()
    history: bool = False  # it reads SYS_QUERY_HISTORY
    label: str | None = None  # what later statements carry in it

    def check(self, context: Context) -> None:
        """Refuse what may not stand in a transaction block."""
        if self.outside is not None and context.in_block:
            raise SqlError("25001", self.outside)


def script(*steps: str, tag: str, commits: bool = False) -> Callable[[Context], str]:
    """Statements to run one after the other; `commits`: they end the surrounding transaction."""

    def run(context: Context) -> str:
        if not context.in_block and len(steps) > 1:
            context.backend.query("BEGIN;" + ";".join(steps) + ";COMMIT")
            return tag
        for step in steps:
            context.backend.query(step)
        if commits and context.in_block:
            context.backend.query("COMMIT")
        return tag

    return run
