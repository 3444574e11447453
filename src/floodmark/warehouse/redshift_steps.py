"""How a load is said to Redshift: a list of steps in, committed, rolled back or unknown out.

Both ways in (a socket, the Data API) run the same steps. A decision inside the transaction is a `Check`, which
fails it, or a `Choose`, whose `otherwise` is right in any case: the Data API can't look at an answer half-way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from floodmark.errors import DataError, FloodmarkError, TransientError

Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Do:
    """A statement; `rows` is how many it must change, checked where the answer says it."""

    sql: str
    rows: int | None = None
    seconds: float | None = (
        None  # how long it may wait for others' locks, else as long as a statement may take
    )


@dataclass(frozen=True)
class Check:
    """A question whose one answer must be this, or the transaction ends with the error."""

    sql: str
    want: int | str
    error: Callable[[object], FloodmarkError]  # of what was answered; None when that can't be seen
    again: bool = False  # whether a whole new try may succeed


@dataclass(frozen=True)
class Choose:
    """Steps by the answer to a question; the others are made when they are needed, and right whatever it is."""

    sql: str
    want: int | str
    then: tuple[Step, ...]
    otherwise: Callable[[], tuple[Step, ...]]


Step: TypeAlias = "Do | Check | Choose"


@dataclass(frozen=True)
class Lock:
    """The table that a transaction locks before anything else, and how long it waits for it."""

    table: str  # quoted
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """How a transaction ended."""

    state: Literal["committed", "rolled back", "unknown"]
    error: FloodmarkError | None = None
    again: bool = False  # rolled back, and a whole new try may succeed
    locked: bool = False  # somebody else kept the lock for too long
    lost: bool = False  # the session is gone; its backend may live on


class Failed(Exception):
    """A statement that was refused or not answered, in our words."""

    def __init__(
        self,
        error: FloodmarkError,
        *,
        again: bool = False,
        lost: bool = False,
        canceled: bool = False,
        code: str = "",
    ) -> None:
        super().__init__(error.message)
        self.error = error
        self.again = again  # a whole new try may succeed
        self.lost = lost  # no answer: the session is of no more use
        self.canceled = canceled  # it took longer than it may
        self.code = code  # SQLSTATE, where there is one


class Busy(TransientError):
    """A change of a table waited too long for others who use it."""

    def __init__(self, sql: str, seconds: float, who: str = "others") -> None:
        self.sql, self.seconds = sql, seconds
        super().__init__(
            f"{sql} waited {seconds:g} s for {who}",
            hint="run again when nobody reads the target for long; svv_transactions shows who does",
        )


class Session(Protocol):
    """One session. Not to be shared between threads. Its methods raise Failed."""

    pid: int | None  # of the backend, once it is known

    def query(
        self, sql: str, lock: Lock | None = None, *, seconds: float | None = None, waits: float | None = None
    ) -> list[Row]:
        """The rows of a question; asked while holding a lock, when one is given.

        `seconds`: how long it and those after it may take, else `Limits.question`; `waits`: how long this one may.
        """

    def execute(self, sql: str, *, seconds: float | None = None) -> None:
        """A statement by itself, outside any transaction; `seconds`: how long it may take, else as one of a load."""

    def transaction(self, lock: Lock, steps: Sequence[Step]) -> Outcome:
        """The steps in one transaction that begins with the lock; never raises Failed."""

    def close(self) -> None: ...


class TooLong(DataError):
    """More than this way in takes in one transaction; fewer commits at once may fit."""


class Transport(Protocol):
    """A way into one database."""

    longest: int  # bytes that a statement may have

    def open(self, label: str = "") -> Session:
        """A session; its statements carry the label in Redshift's own history. Raises Failed."""


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds, and how often a transaction is tried."""

    connect: float = 30.0
    question: float = 300.0  # of the catalog, of the ledger, for a count
    lock: float = 60.0  # for somebody else's load, and for who uses a table that has to be changed
    statement: float = 43_200.0  # of a load: a first one may have a billion rows
    idle: float = 30.0  # a session of ours that holds the lock and does nothing for so long is a dead one
    grace: float = 60.0  # how late an answer may be after the server should have given up
    attempts: int = 6
    pause: float = 0.5  # after the first attempt; doubled each time
