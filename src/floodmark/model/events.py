"""What happens during a run: small values, emitted by one call where it happens, and folded or shown by subscribers.

Whoever emits an event knows no subscriber: the report (the fold of a table's events), the terminal, the live document, log lines, traces, lineage,
metrics and alerts all read these. Events come from any thread. An exception from a subscriber ends the table's run; those
that must not do that (a terminal that went away, a trace, lineage) catch it themselves.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
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


# ---------------------------------------------------------------- progress for the library's users


@dataclass(frozen=True)
class ProgressEvent:
    """Something that happened during a run.

    `event` is the method that an object may have for it: tables, note, begin, advance, underway, wait, end or finished.
    """

    event: str
    table: str = ""
    stage: str | None = None
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    text: str | None = None  # a note, or what the table waits for
    tables: tuple[str, ...] = ()  # those of the run
    ok: bool | None = None  # how the table's run ended


Callback = Callable[[ProgressEvent], object]
_METHODS: dict[type[Event], str] = {
    StageBegan: "begin",
    Advanced: "advance",
    Underway: "underway",
    StageEnded: "end",
}


def watching(progress: Callback | object | None) -> Emit:
    """Passes a run's events on to the caller's progress, in its words."""

    def emit(event: Event) -> None:
        name, arguments, more = _call(event)
        if not name:
            return
        if callable(progress):
            progress(ProgressEvent(name, event.table, **more))
        elif (method := getattr(progress, name, None)) is not None:
            method(*arguments)

    return emit


def _call(event: Event) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """The method that stands for an event, its arguments, and the fields of a `ProgressEvent`; "": it is not passed on."""
    match event:
        case TablesChosen(_, names):
            return "tables", (names,), {"tables": names}
        case Noted(table, text, aloud=True):
            return "note", (table, text), {"text": text}
        case Waiting(table, on):
            return "wait", (table, on), {"text": f"{on.kind} {on.who}".strip() if on else None}
        case Ended(_, report):
            return "finished", (report,), {"rows": report.rows_loaded, "ok": report.error is None}
    given = {field.name: getattr(event, field.name) for field in fields(event)}
    more = {name: value for name, value in given.items() if name not in ("table", "step")}
    return _METHODS.get(type(event), ""), tuple(given.values()), more


# ---------------------------------------------------------------- the report of one table's run


def after(report: TableReport, event: Event) -> TableReport:
    """The report after one more event. Pure."""
    match event:
        case Noted(_, text):
            return replace(report, notes=(*report.notes, text))
        case LagMeasured(_, lag):
            return replace(report, lag_before=lag)
        case Planned():
            keeps = event.empty and report.strategy is not None
            return replace(
                report,
                strategy=report.strategy if keeps else event.strategy,
                held_back_by=event.held_back_by,
                complete_at=event.complete_at,
                looked=event.looked or report.looked,
            )
        case Previewed(_, plan):
            return replace(report, plan=plan)
        case Committed():
            changed = Counter(report.changed)
            for column, values in event.changed:
                changed[column] += values
            return replace(report.plus(event.counts), commits=(*report.commits, event.n), changed=changed)
        case Loaded(_, rows, files):
            return replace(
                report, rows_loaded=report.rows_loaded + rows, files_loaded=report.files_loaded + files
            )
        case Cleaned(_, files, size):
            return replace(
                report, files_cleaned=report.files_cleaned + files, bytes_cleaned=report.bytes_cleaned + size
            )
        case Found(_, findings):
            new = tuple(finding for finding in findings if finding not in report.findings)
            return replace(report, findings=(*report.findings, *new))
        case TimeSpent(_, stage, seconds):
            spent = report.stage_seconds.get(stage, 0.0) + seconds
            return replace(report, stage_seconds={**report.stage_seconds, stage: spent})
        case Succeeded(_, watermark, lag):
            return replace(report, watermark=watermark, lag_after=lag)
        case Failed(_, error, stopped, watermark):
            return replace(report, error=error, stopped=stopped, watermark=watermark or report.watermark)
        case Ended():
            return event.report
    return report


class Account:
    """Folds a table's events into its report, and passes them on to the run. Thread-safe."""

    def __init__(self, table: str, emit: Emit) -> None:
        self.report = TableReport(table)
        self._emit = emit
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            self.report = after(self.report, event)
        self._emit(event)

    def note(self, text: str, aloud: bool = True) -> None:
        """Adds a note unless it is already there."""
        if text not in self.report.notes:
            self(Noted(self.report.table, text, aloud))

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the time spent inside to a stage's seconds."""
        began = time.monotonic()
        try:
            yield
        finally:
            self(TimeSpent(self.report.table, stage, time.monotonic() - began))
