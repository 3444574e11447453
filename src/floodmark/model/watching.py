"""Progress for the library's users: any object with some of the methods of `Progress`, or one function for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from floodmark.model.run import Progress, Step, TableReport, Unwatched, Wait


@dataclass(frozen=True)
class ProgressEvent:
    """Something that happened during a run.

    `event` is the method of `floodmark.model.run.Progress` that it stands for: tables, note, begin, advance, underway,
    wait, end or finished.
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


def watching(progress: Progress | Callback | None) -> Progress:
    """The caller's progress; methods of `Progress` that it lacks, as one written for an earlier version may, do nothing."""
    if callable(progress):
        return _Calls(progress)
    watch = Unwatched()
    for name in (name for name in vars(Unwatched) if not name.startswith("_")):
        if (method := getattr(progress, name, None)) is not None:
            setattr(watch, name, method)
    return watch


class _Calls:
    """A `Progress` that makes an event of every call."""

    def __init__(self, callback: Callback) -> None:
        self._call = callback

    def tables(self, names: Sequence[str]) -> None:
        self._call(ProgressEvent("tables", tables=tuple(names)))

    def note(self, table: str, text: str) -> None:
        self._call(ProgressEvent("note", table, text=text))

    def begin(self, table: str, stage: str, rows: int | None) -> None:
        self._call(ProgressEvent("begin", table, stage, rows))

    def advance(self, table: str, stage: str, rows: int, files: int, bytes: int) -> None:
        self._call(ProgressEvent("advance", table, stage, rows, files, bytes))

    def underway(self, table: str, stage: str, rows: int, step: Step | None = None) -> None:
        self._call(ProgressEvent("underway", table, stage, rows))

    def wait(self, table: str, on: Wait | None) -> None:
        self._call(ProgressEvent("wait", table, text=f"{on.kind} {on.who}".strip() if on else None))

    def end(self, table: str, stage: str) -> None:
        self._call(ProgressEvent("end", table, stage))

    def finished(self, report: TableReport) -> None:
        loaded = report.rows_loaded
        self._call(ProgressEvent("finished", report.table, rows=loaded, ok=report.error is None))
