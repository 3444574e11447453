"""Progress of a sync: bars on a terminal, plain lines otherwise, log lines with `--json-logs`, or nothing.

`SilentProgress` knows how far a run has got and logs it; its subclasses in `lines` and `bars` print it. All of it goes to
stderr, from any thread, and none of it can stop a run: a terminal that went away is ignored. What is printed is logged too
(`said` keeps it from appearing twice).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Self

from floodmark.cli.progress.frame import Picture, Running, Stage
from floodmark.model.errors import Interrupted
from floodmark.model.events import Ended, Event, Noted, StageEnded, TablesChosen, Waiting
from floodmark.model.log_lines import LogLines
from floodmark.model.run import TableReport, Wait
from floodmark.model.secrets import Scrubber
from floodmark.model.tally import UNITS, Tally
from floodmark.model.text import shown


class SilentProgress(LogLines):
    """Prints nothing, logs everything, and knows how far the run has got; subclasses print it."""

    _prints_stages = False

    def __init__(self, scrub: Scrubber, stopping: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self.reports: list[TableReport] = []  # of the tables that are done
        self.notes: dict[str, list[str]] = {}  # by table, where they are gathered
        self._scrub = scrub
        self._stopping = stopping
        self._began = time.monotonic()
        self._names: tuple[str, ...] = ()
        self._waits: dict[str, tuple[Wait, float]] = {}  # on what, and since when
        self._cut_short: set[str] = set()  # tables that an interruption ended
        self._past: dict[str, int] = {}  # rows of tables that are done, by stage
        self._brief: dict[str, deque[str]] | None = None
        self._gathers = False
        self._closed = False

    def brief(self) -> Self:
        """For a resident sync: doesn't print the end of a stage, and prints a note only if it is new."""
        self._brief = {}
        return self

    def gathering(self) -> Self:
        """Keeps notes about tables for the result instead of printing them one by one."""
        self._gathers = True
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True
        self.stop()

    def stop(self) -> None:
        """Leave the terminal as it was."""

    def __call__(self, event: Event) -> None:
        with self._lock:
            match event:
                case TablesChosen(_, names):
                    self._names, self._began, self.reports = names, time.monotonic(), []
                    for known in (self._tallies, self._waits, self._past, self._cut_short):
                        known.clear()
                case Waiting(table, None):
                    self._waits.pop(table, None)
                case Waiting(table, Wait() as on):
                    before, since = self._waits.get(table, (on, time.monotonic()))
                    self._waits[table] = on, since if before.kind == on.kind else time.monotonic()
                case Ended(table, report):
                    self._end(report)
        super().__call__(event)
        # Without tables that were chosen, nothing else will report that the table is done.
        if isinstance(event, StageEnded) and not self._names:
            self._tallies.get(event.table, {}).pop(event.stage, None)

    def _end(self, report: TableReport) -> None:
        for stage, tally in self._tallies.get(report.table, {}).items():
            self._past[stage] = self._past.get(stage, 0) + tally.rows
        self._waits.pop(report.table, None)
        if report.left_out:
            self._names = tuple(name for name in self._names if name != report.table)
            return
        self.reports.append(report)
        # A library may have wrapped the interruption.
        if report.error and (isinstance(report.error, Interrupted) or self._stopping()):
            self._cut_short.add(report.table)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def in_order(self) -> list[TableReport]:
        """The tables that are done, in the run's order."""
        with self._lock:
            place = {name: number for number, name in enumerate(self._names)}
            return sorted(self.reports, key=lambda report: place.get(report.table, -1))

    def at_work(self) -> list[str]:
        """The tables with a stage under way."""
        with self._lock:
            return [
                name for name, stages in self._tallies.items() if any(not t.ended for t in stages.values())
            ]

    def unfinished(self) -> list[str]:
        """The tables of the run that are not done."""
        with self._lock:
            done = {report.table for report in self.reports}
            return [name for name in self._names if name not in done]

    def picture(self) -> Picture:
        """How far the run has got."""
        with self._lock:
            now = time.monotonic()
            running = tuple(self._running(name, now) for name in self._tallies if self._tallies[name])
            waits, waited = self._waited("", now)
            return Picture(
                running=running,
                tables=max(len(self._names), len(running)),
                done=len(self.reports) - len(self._cut_short),
                failed=sum(bool(r.error) and r.table not in self._cut_short for r in self.reports),
                seconds=now - self._began,
                whole=self._whole(),
                waits=waits,
                waited=waited,
                stopping=self._stopping(),
            )

    def _running(self, name: str, now: float) -> Running:
        stages = tuple(_stage(stage, tally, now) for stage, tally in self._tallies[name].items())
        return Running(shown(name), stages, *self._waited(name, now))

    def _waited(self, name: str, now: float) -> tuple[Wait | None, float]:
        """What a table waits for, and for how long."""
        on, since = self._waits.get(name, (None, now))
        return on, now - since

    def _whole(self) -> tuple[Stage, ...]:
        """The stages of all tables together; the expected rows are known once every table has been planned."""
        seen = [*self._tallies.values()]
        planned = len(self.reports) + len(seen) >= len(self._names) and all("extract" in one for one in seen)
        found = []
        for stage in ("extract", "load"):
            those = [one[stage] for one in seen if stage in one]
            if those or self._past.get(stage):
                past = self._past.get(stage, 0)
                sizes = [(one.get(stage) or one["extract"]).expected for one in seen] if planned else [None]
                total = None if None in sizes else past + sum(size or 0 for size in sizes)
                rows = past + sum(tally.so_far for tally in those)
                began = min((tally.began for tally in those), default=self._began)
                seconds = time.monotonic() - (self._began if past else began)
                over = total is not None and all(
                    stage in one and one[stage].ended is not None for one in seen
                )
                found.append(Stage(stage, rows, total, seconds, over=over))
        return tuple(found)

    def _print(self, event: Event, text: str) -> None:
        if not isinstance(event, Noted):
            if self._prints_stages and not (self._brief is not None and isinstance(event, StageEnded)):
                self._say(event.table, text)
            return
        if self._brief is not None:
            known = self._brief.setdefault(event.table, deque(maxlen=8))
            if text in known:
                return
            known.append(text)
        if self._gathers and event.table:
            with self._lock:
                self.notes.setdefault(event.table, []).append(text)
        else:
            self._say(event.table, text)

    def _say(self, table: str, text: str) -> None: ...


def _stage(name: str, tally: Tally, now: float) -> Stage:
    over, stepped = tally.ended is not None, now - tally.step_began
    unit = UNITS.get(name, "row")
    return Stage(name, tally.so_far, tally.expected, tally.seconds, over, unit, tally.step, stepped)
