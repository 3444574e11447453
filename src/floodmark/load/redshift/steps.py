"""How a load is put to Redshift: a list of steps, which are committed, rolled back or, rarely, unknown.

Both transports (socket, Data API) run the same steps. A decision inside the transaction is a `Check`, which
fails it, or a `Choose`, whose `otherwise` is right in any case: the Data API can't look at an answer
half-way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Protocol, TypeAlias

from floodmark.load.merge import Do as Do
from floodmark.model.errors import DataError, FloodmarkError, TransientError
from floodmark.model.run import StepKind, Wait

Row: TypeAlias = tuple[Any, ...]
AtWork: TypeAlias = Callable[[StepKind], None]


@dataclass(frozen=True)
class Check:
    """A query that must return this one value, or the transaction ends with the error."""

    sql: str
    want: int | str
    error: Callable[[object], FloodmarkError]  # from the value returned; None if it can't be seen
    again: bool = False  # whether retrying the whole transaction may succeed


@dataclass(frozen=True)
class Choose:
    """Steps chosen by a query's answer; `otherwise` is built only when needed, and right for any answer."""

    sql: str
    want: int | str
    then: tuple[Step, ...]
    otherwise: Callable[[], tuple[Step, ...]]


Step: TypeAlias = "Do | Check | Choose"


def milliseconds(seconds: float) -> int:
    """A time as `statement_timeout` takes it, where 0 would be none."""
    return max(1, round(seconds * 1000))


_DOING: dict[str, StepKind] = {
    "COPY": "copy", "DELETE": "merge", "MERGE": "merge", "UPDATE": "merge", "INSERT": "merge",
    "COMMIT": "commit",
}  # fmt: skip


def doing(sql: str) -> StepKind | None:
    """What a statement of a load does to its rows; None if it does nothing to them."""
    return _DOING.get(sql.split(maxsplit=1)[0])


@dataclass(frozen=True)
class Lock:
    """The table that a transaction locks first, how long it waits for it, and whom it tells."""

    table: str  # quoted
    seconds: float
    waits: Callable[[Wait | None], None] = lambda on: None  # called before and after (socket)
    at_work: AtWork = lambda kind: None  # called with what its statements do, as far as the transport knows


@dataclass(eq=False)
class Failed(Exception):
    """A statement that was refused or not answered, as our error."""

    error: FloodmarkError
    _: KW_ONLY
    again: bool = False  # retrying the whole transaction may succeed
    lost: bool = False  # no answer: the session is unusable
    canceled: bool = False  # it took longer than allowed
    code: str = ""  # SQLSTATE, where there is one
    said: str = ""  # Redshift's own words, if it answered
    # Where in a transaction it failed, which was then rolled back unless it is `unknown`; "": not in one.
    stage: Literal["", "lock", "steps", "commit"] = ""

    @property
    def unknown(self) -> bool:
        """Whether the answer to COMMIT was lost."""
        return self.lost and self.stage == "commit"


class Busy(TransientError):
    """A change to a table waited too long for its users."""

    def __init__(self, sql: str, seconds: float, who: str = "others") -> None:
        self.sql, self.seconds = sql, seconds
        super().__init__(
            f"{sql} waited {seconds:g} s for {who}",
            hint="run again when no long query is reading the target; svv_transactions shows who is",
        )


class RedshiftSession(Protocol):
    """One session, not to be shared between threads. Its methods raise Failed."""

    pid: int | None  # of the backend, once it is known

    def query(
        self, sql: str, lock: Lock | None = None, *, seconds: float | None = None, waits: float | None = None
    ) -> list[Row]:
        """The rows of a query; run while holding the lock, if one is given.

        `seconds`: time limit for it and those after it, else `Limits.question`; `waits`: time limit for this
        one.
        """

    def execute(self, sql: str, *, seconds: float | None = None) -> None:
        """Run one statement outside any transaction; `seconds`: its time limit, else as in a load."""

    def transaction(self, lock: Lock, steps: Sequence[Step]) -> None:
        """Run the steps in one transaction that begins with the lock, and commit it."""

    def close(self) -> None: ...


class TooLong(DataError):
    """More than this transport takes in one transaction; fewer commits at once may fit."""


@dataclass(frozen=True)
class Limits:
    """Time limits, in seconds, and how often a transaction is tried."""

    connect: float = 30.0
    question: float = 300.0  # a query of the catalog or the ledger, or a count
    lock: float = 60.0  # waiting for another load, or for users of a table that has to change
    statement: float = 43_200.0  # one statement of a load; a first load may have a billion rows
    idle: float = 30.0  # a session of ours that holds the lock and is idle for this long is dead
    grace: float = 60.0  # how late an answer may be after the server should have given up
    attempts: int = 6
    pause: float = 0.5  # after the first attempt; doubled each time


class Transport(Protocol):
    """A way into one database."""

    longest: int  # the longest statement allowed, in bytes
    limits: Limits

    def open(self, label: str = "") -> RedshiftSession:
        """A session whose statements carry the label in Redshift's query history. Raises Failed."""
