"""What happens during a run: small values, emitted by one call where it happens, and folded or shown by subscribers.

Whoever emits an event knows no subscriber: the report, the terminal, the live document, log lines, traces, lineage,
metrics and alerts all read these. Events come from any thread. An exception from a subscriber ends the table's run; those
that must not do that (a terminal that went away, a trace, lineage) catch it themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, dataclass_transform

from floodmark.model.run import Counts, Finding, Lag, Step, SyncReport, TableReport, Wait

if TYPE_CHECKING:  # the command line needs this module before it needs the model
    from floodmark.model.errors import FloodmarkError
    from floodmark.model.position import Position
    from floodmark.model.results import PlanResult, Watermark
    from floodmark.model.window import Slice, Window


@dataclass_transform(frozen_default=True)
@dataclass(frozen=True)
class Event:
    """Something that happened to a table, or to the run as a whole if `table` is empty. Each kind is a frozen dataclass."""

    table: str

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


Emit = Callable[[Event], None]


class Noted(Event):
    """Something worth knowing; unless it is said aloud, it only goes into the report."""

    text: str
    aloud: bool = True


class StageEvent(Event):
    """Something about one stage: plan, extract, load, verify, clean."""

    stage: str


class StageEnded(StageEvent):
    """The stage has ended, successfully or not."""


class StageBegan(StageEvent):
    """A stage begins; `rows` is an estimate."""

    rows: int | None = None


class Advanced(StageEvent):
    """This many more rows, files and bytes are done."""

    rows: int
    files: int = 0
    bytes: int = 0


class Underway(StageEvent):
    """Rows so far of running tasks, and what a load is doing; replaces the last ones. Rows may shrink when a task starts over."""

    rows: int
    step: Step | None = None


class TimeSpent(StageEvent):
    """So many more seconds for the report's account of a stage."""

    seconds: float


class Waiting(Event):
    """The table is waiting; None: no longer."""

    on: Wait | None


class LagMeasured(Event):
    """How far the table was behind its source when it was planned."""

    lag: Lag


class Planned(Event):
    """A plan was made."""

    strategy: str
    empty: bool  # there is nothing to read
    rows: int = 0
    slices: int = 0
    seconds: float = 0.0
    window: Window | None = None
    resumed: bool = False
    again: tuple[tuple[str, int], ...] = ()  # rows to read again, by kind
    reason: str = ""  # for the strategy
    held_back_by: tuple[str, ...] = ()  # open work that newer rows wait for
    complete_at: float | None = None  # all that was committed before will be extracted
    looked: str | None = None  # when the source was looked at, unless in a dry run


class Previewed(Event):
    """What a dry run would do: the document that `plan` prints."""

    plan: PlanResult


class SliceBegan(Event):
    """A slice is about to be read."""

    slice: Slice


class SliceRead(Event):
    """A slice was read, and is not committed yet."""

    slice: Slice
    rows: int
    files: int
    bytes: int
    seconds: float


class CommitBegan(Event):
    """A commit is about to be written."""


class Committed(Event):
    """A commit was written; `counts` is what it adds to the report, `rows` those in its files, of whatever kind.

    `changed`: values that policies have changed in it, by column.
    """

    n: int
    kind: str
    position: Position | None
    rows: int
    seconds: float
    counts: Counts
    changed: tuple[tuple[str, int], ...] = ()


class Loaded(Event):
    """These rows and files are in the warehouse for the first time."""

    rows: int
    files: int


class Cleaned(Event):
    """Staged files were removed (`keep_files`)."""

    files: int
    bytes: int


class Found(Event):
    """Discrepancies, or things that the user should know."""

    findings: tuple[Finding, ...]


class Succeeded(Event):
    """Everything asked for is done, and this is what people see of it."""

    watermark: Watermark
    lag: Lag | None


class Failed(Event):
    """The table's run failed. `stopped`: only because the run was interrupted."""

    error: FloodmarkError
    stopped: bool = False
    watermark: Watermark | None = None


class Ended(Event):
    """The table's run has ended, successfully or not."""

    report: TableReport
    position: Position | None = None


class RunBegan(Event):
    """A run begins."""

    run: str
    command: str = "sync"
    dry: bool = False


class TablesChosen(Event):
    """The run covers these tables."""

    names: tuple[str, ...]


class RunEnded(Event):
    """A sync has ended: with a report, or with an error before its tables had their turn."""

    report: SyncReport | None
    error: FloodmarkError | None = None


class Compared(Event):
    """A verify has ended, with these results of its tables and this exit code."""

    run: str
    results: tuple[Mapping[str, Any], ...]
    code: int


def ignore(event: Event) -> None:
    """A subscriber that wants to know nothing."""


def to_all(*subscribers: Emit) -> Emit:
    """Emits to each of them, in this order."""

    def emit(event: Event) -> None:
        for subscriber in subscribers:
            subscriber(event)

    return emit


@contextmanager
def waiting(emit: Emit, table: str, on: Wait) -> Iterator[None]:
    """The table waits for this inside."""
    emit(Waiting(table, on))
    try:
        yield
    finally:
        emit(Waiting(table, None))
