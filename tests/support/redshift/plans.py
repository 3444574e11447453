"""What to do with one statement: forward translated SQL to the backend, or run it here.

A `Plan` is created when the statement is parsed and used each time it is executed. `Context` is all that a
statement run here may touch: the caller's own backend, and the stand-in around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from floodmark.store.store import Store
from tests.support.redshift.backend import Backend
from tests.support.redshift.columntypes import Domain
from tests.support.redshift.faults import Faults
from tests.support.redshift.history import History
from tests.support.redshift.wire import SqlError


class Services(Protocol):
    """What sessions share."""

    faults: Faults
    history: History

    def furnish(self, database: str, domains: Iterable[Domain], names: Iterable[str]) -> None:
        """Make sure that a database has these types and knows these long names."""
        ...

    def bucket(self, name: str) -> Store:
        """The objects behind s3://name/."""
        ...

    def record(self, database: str, table: str, *rows: dict[str, object]) -> None:
        """Add rows to a system table, whether the caller's transaction commits or not."""
        ...

    def base_type(self, database: str, kind: int) -> int:
        """The base type of one of the stand-in's domains."""
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
    query: int = 0  # the number of the running statement
    settings: dict[str, str] = field(default_factory=dict)
    copy_count: int = 0
    copy_id: int = -1
    copied: bool = False  # the count is newer than the one a rollback would restore in the backend

    @property
    def in_block(self) -> bool:
        return self.backend.status != b"I"

    def tell_count(self) -> None:
        """Update pg_last_copy_count()."""
        self.backend.query(f"SET floodmark.copy_count = '{self.copy_count}'")

    def tell_id(self) -> None:
        """Update pg_last_copy_id(); a rollback undoes it."""
        self.backend.query(f"SET floodmark.copy_id = '{self.copy_id}'")


@dataclass(frozen=True)
class Plan:
    """One parsed statement."""

    text: str  # as the client wrote it
    sql: str = ""  # as sent to the backend
    run: Callable[[Context], str] | None = None  # instead of `sql`; returns the command tag
    writes: str | None = None  # the table whose write lock it needs
    outside: str | None = None  # Redshift's error if this is used in a transaction block
    domains: frozenset[Domain] = frozenset()
    names: frozenset[str] = frozenset()
    history: bool = False  # it reads SYS_QUERY_HISTORY
    label: str | None = None  # the label that later statements carry there

    def check(self, context: Context) -> None:
        """Refuse what is not allowed in a transaction block."""
        if self.outside is not None and context.in_block:
            raise SqlError("25001", self.outside)


def script(*steps: str, tag: str, commits: bool = False) -> Callable[[Context], str]:
    """Statements to run one after the other; `commits`: they commit the surrounding transaction."""

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
