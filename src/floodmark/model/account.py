"""The account of one table's run: its report is the fold of its events."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from floodmark.model import events
from floodmark.model.run import TableReport


def after(report: TableReport, event: events.Event) -> TableReport:
    """The report after one more event. Pure."""
    match event:
        case events.Noted(_, text):
            return replace(report, notes=(*report.notes, text))
        case events.LagMeasured(_, lag):
            return replace(report, lag_before=lag)
        case events.Planned():
            keeps = event.empty and report.strategy is not None
            return replace(
                report,
                strategy=report.strategy if keeps else event.strategy,
                held_back_by=event.held_back_by,
                complete_at=event.complete_at,
                looked=event.looked or report.looked,
            )
        case events.Previewed(_, plan):
            return replace(report, plan=plan)
        case events.Committed():
            changed = Counter(report.changed)
            for column, values in event.changed:
                changed[column] += values
            return replace(report.plus(event.counts), commits=(*report.commits, event.n), changed=changed)
        case events.Loaded(_, rows, files):
            return replace(
                report, rows_loaded=report.rows_loaded + rows, files_loaded=report.files_loaded + files
            )
        case events.Cleaned(_, files, size):
            return replace(
                report, files_cleaned=report.files_cleaned + files, bytes_cleaned=report.bytes_cleaned + size
            )
        case events.Found(_, findings):
            new = tuple(finding for finding in findings if finding not in report.findings)
            return replace(report, findings=(*report.findings, *new))
        case events.TimeSpent(_, stage, seconds):
            spent = report.stage_seconds.get(stage, 0.0) + seconds
            return replace(report, stage_seconds={**report.stage_seconds, stage: spent})
        case events.Succeeded(_, watermark, lag):
            return replace(report, watermark=watermark, lag_after=lag)
        case events.Failed(_, error, stopped, watermark):
            return replace(report, error=error, stopped=stopped, watermark=watermark or report.watermark)
        case events.Ended():
            return event.report
    return report


class Account:
    """Folds a table's events into its report, and passes them on to the run. Thread-safe."""

    def __init__(self, table: str, emit: events.Emit) -> None:
        self.report = TableReport(table)
        self._emit = emit
        self._lock = threading.Lock()

    def __call__(self, event: events.Event) -> None:
        with self._lock:
            self.report = after(self.report, event)
        self._emit(event)

    def note(self, text: str, aloud: bool = True) -> None:
        """Adds a note unless it is already there."""
        if text not in self.report.notes:
            self(events.Noted(self.report.table, text, aloud))

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the time spent inside to a stage's seconds."""
        began = time.monotonic()
        try:
            yield
        finally:
            self(events.TimeSpent(self.report.table, stage, time.monotonic() - began))
