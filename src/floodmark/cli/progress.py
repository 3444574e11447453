"""Progress of a sync: bars on a terminal, plain lines otherwise, log lines with `--json-logs`, or nothing.

`SilentProgress` knows how far a run has got and logs it; its subclasses print it: `PlainProgress` as lines, `BarProgress` as
the picture of `frame`. All of it goes to stderr, from any thread, and none of it can stop a run: a terminal that went away
is ignored. What is printed is logged too (`said` keeps it from appearing twice).
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from floodmark.cli.frame import Line, Picture, Running, Stage, frame, said_wait
from floodmark.cli.printing import to_stderr, wrap
from floodmark.model.errors import Interrupted
from floodmark.model.events import (
    Ended,
    Event,
    Noted,
    StageBegan,
    StageEnded,
    TablesChosen,
    Underway,
    Waiting,
)
from floodmark.model.log_lines import LogLines
from floodmark.model.run import TableReport, Wait
from floodmark.model.secrets import Scrubber
from floodmark.model.tally import EVERY, UNITS, Tally, said_so_far
from floodmark.model.text import shown

if TYPE_CHECKING:
    from rich.live import Live

_OF_THE_RUN = ("spark", "warehouse")  # what tables wait for together
_STYLES = {
    "": "", "name": "bold", "bar": "green", "rest": "bright_black", "dim": "bright_black", "bad": "red"
}  # fmt: skip


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

    def _say(self, table: str, text: str) -> None:
        self._show(shown(self._scrub(f"{table}: {text}" if table else text)))

    def _show(self, line: str) -> None: ...


def _stage(name: str, tally: Tally, now: float) -> Stage:
    over, stepped = tally.ended is not None, now - tally.step_began
    unit = UNITS.get(name, "row")
    return Stage(name, tally.so_far, tally.expected, tally.seconds, over, unit, tally.step, stepped)


class PlainProgress(SilentProgress):
    """Lines for logs, pipes and screen readers: one every few seconds for each table, and one when a stage is over.

    A long wait is worth a line, and a long step of a load too, even if nothing reports on it.
    """

    _prints_stages = True

    def __init__(self, scrub: Scrubber, stopping: Callable[[], bool] = lambda: False) -> None:
        super().__init__(scrub, stopping)
        self._lines: Counter[object] = Counter()  # about each wait and step, so far
        self._over = threading.Event()
        self._watch: threading.Thread | None = None

    def stop(self) -> None:
        self._over.set()

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        lasts = isinstance(event, Waiting | Underway) and self._brief is None and not self._closed
        with self._lock:
            if lasts and self._watch is None:
                self._watch = threading.Thread(target=self._look, name="progress", daemon=True)
                self._watch.start()

    def _look(self) -> None:
        while not self._over.wait(EVERY / 5):
            with self._lock:
                lines = list(self._lasting(time.monotonic()))
            for table, text in lines:
                self._say(table, text)

    def _lasting(self, now: float) -> Iterator[tuple[str, str]]:
        """What has lasted long enough for a line, or for another one."""
        for table, (on, since) in self._waits.items():
            whole = on.kind in _OF_THE_RUN  # all tables wait for the same: once is enough
            if self._is_due(on if whole else (table, since), now - since, most=1):
                yield "" if whole else table, said_wait(on, now - since)
        for table, stages in self._tallies.items():
            for stage, tally in stages.items():
                if tally.step and self._is_due((table, stage, tally.step_began), now - tally.step_began):
                    tally.said = tally.seconds
                    yield table, said_so_far(stage, tally)

    def _is_due(self, what: object, seconds: float, most: float = math.inf) -> bool:
        """Whether it is time for a line about something that lasts; if so, the next one is due after twice that time."""
        said = self._lines[what]
        due = said < most and seconds >= EVERY * (2 ** (said + 1) - 1)
        self._lines[what] += due
        return due

    def _show(self, line: str) -> None:
        to_stderr(line)


class BarProgress(SilentProgress):
    """The running tables, with a bar for each stage, and a line for all; removed when the run is over."""

    def __init__(self, scrub: Scrubber, stopping: Callable[[], bool] = lambda: False) -> None:
        super().__init__(scrub, stopping)
        self._live: Live | None = None
        # A holder of this lock may wait for the drawing thread, and that one for `_lock`: never the other way round.
        self._screen = threading.RLock()

    def stop(self) -> None:
        with self._screen:
            live, self._live = self._live, None
            if live is not None:
                with suppress(OSError, ValueError):
                    live.stop()

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, StageBegan) or (isinstance(event, Waiting) and event.on is not None):
            self._start()

    def _start(self) -> None:
        with self._screen:
            if self._live is None and not self._closed:
                self._live = _live(lambda width, height: frame(self.picture(), width, height))
                self._live.start()

    def _show(self, line: str) -> None:
        with self._screen:
            if self._live is None:
                to_stderr(line)
            else:
                console = self._live.console
                for part in wrap(line, console.width):
                    console.print(part, markup=False, highlight=False, soft_wrap=True)


def _live(lines: Callable[[int, int], list[Line]]) -> Live:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, highlight=False)

    def drawn() -> Text:
        width, height = console.size
        # The last column stays free: some terminals go to the next line when it is written to.
        rows = lines(max(width - 1, 20), height)
        text = Text("\n", no_wrap=True, overflow="crop").join(
            Text.assemble(*((piece, _STYLES[style]) for piece, style in row)) for row in rows
        )
        text.no_wrap = True
        return text

    return Live(console=console, transient=True, refresh_per_second=4, get_renderable=drawn)
