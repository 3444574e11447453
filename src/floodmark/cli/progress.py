"""Progress of a sync: bars on a terminal, plain lines otherwise, log lines with `--json-logs`, or nothing.

All of it goes to stderr, from any thread, and none of it can stop a run: a terminal that went away is
ignored. What is printed is logged too (`said` keeps it from appearing twice).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from floodmark.cli.bars import Line, Picture, Running, Stage, frame, said_step, said_wait
from floodmark.model import events
from floodmark.model.errors import Interrupted
from floodmark.model.run import Step, TableReport, Wait
from floodmark.model.secrets import Scrubber
from floodmark.model.text import count, counted, duration, rate, shown, size, span

if TYPE_CHECKING:
    from rich.live import Live

log = logging.getLogger("floodmark.cli.progress")

_EVERY = 5.0  # seconds between two plain lines of one table and stage
_STYLES = {
    "": "",
    "name": "bold",
    "bar": "green",
    "rest": "bright_black",
    "dim": "bright_black",
    "bad": "red",
}
_DOING = {
    "extract": "extracting",
    "load": "loading",
    "clean": "removing",
    "verify": "verifying",
    "plan": "planning",
}
_DONE = {
    "extract": "extracted",
    "load": "loaded",
    "clean": "removed",
    "verify": "compared",
    "plan": "planned",
}
# What a stage is measured in; files are counted beside rows, but not beside themselves.
_UNITS = {"clean": "file"}


@dataclass
class Tally:
    """How far one stage of one table has got."""

    expected: int | None
    began: float = field(default_factory=time.monotonic)
    rows: int = 0
    files: int = 0
    bytes: int = 0
    underway: int = 0  # rows of tasks that have not ended
    step: Step | None = None  # what a load is doing
    step_began: float = 0.0
    said: float = 0.0
    ended: float | None = None

    def add(self, rows: int, files: int, bytes: int) -> None:
        self.rows += rows
        self.files += files
        self.bytes += bytes

    def at_work(self, rows: int, step: Step | None) -> None:
        """Rows of tasks that have not ended, and what a load is doing."""
        if step is not None and (self.step is None or step.kind != self.step.kind):
            self.step_began = time.monotonic()
        self.underway, self.step = rows, step

    @property
    def so_far(self) -> int:
        return self.rows + self.underway

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began

    @property
    def fields(self) -> dict[str, Any]:
        """The same for a log event (docs/logs.md)."""
        seconds = round(self.seconds, 3)
        return {"rows": self.rows, "files": self.files, "bytes": self.bytes, "seconds": seconds}


def said_so_far(stage: str, tally: Tally) -> str:
    """`extracting: 500,000 of about 1,250,000 rows (40%), 312,000 rows/s, 2 files, 33.1 MB, …`."""
    unit, rows = _UNITS.get(stage, "row"), tally.so_far
    told = counted(rows, unit)
    if tally.expected and rows <= tally.expected:
        told = f"{count(rows)} of {'about ' * (unit == 'row')}{counted(tally.expected, unit)}"
        told += f" ({rows * 100 // tally.expected}%)" if rows else ""
    parts = [told, rate(rows, tally.seconds, unit), *(_written(stage, tally) if rows else ())]
    if tally.step is not None:
        parts.append(f"{said_step(tally.step)} for {span(time.monotonic() - tally.step_began)}")
    if tally.expected and 0 < rows < tally.expected:
        parts.append(f"about {span(tally.seconds * (tally.expected - rows) / rows)} left")
    return f"{_DOING.get(stage, stage)}: {', '.join(part for part in parts if part)}"


def said_at_end(stage: str, tally: Tally) -> str:
    """`extracted 1,250,000 rows, 5 files, 83.1 MB in 4.0 s (312,000 rows/s)`."""
    unit = _UNITS.get(stage, "row")
    speed = rate(tally.rows, tally.seconds, unit)
    parts = [counted(tally.rows, unit), *_written(stage, tally)]
    said = (
        f"{_DONE.get(stage, stage)} {', '.join(part for part in parts if part)} in {duration(tally.seconds)}"
    )
    return f"{said} ({speed})" if speed else said


def _written(stage: str, tally: Tally) -> tuple[str, ...]:
    """Files and bytes; to compare moves none."""
    if stage == "verify":
        return ()
    files = () if stage in _UNITS else (counted(tally.files, "file"),)
    return (*files, size(tally.bytes))


@dataclass
class _Waiting:
    on: Wait
    since: float = field(default_factory=time.monotonic)


class SilentProgress:
    """Prints nothing, logs everything, and knows how far the run has got; subclasses print it."""

    def __init__(self, scrub: Scrubber, stopping: Callable[[], bool] = lambda: False) -> None:
        self.reports: list[TableReport] = []  # of the tables that are done
        self.notes: dict[str, list[str]] = {}  # by table, where they are gathered
        self._scrub = scrub
        self._stopping = stopping
        self._lock = threading.RLock()
        self._began = time.monotonic()
        self._names: tuple[str, ...] = ()
        self._tallies: dict[str, dict[str, Tally]] = {}  # by table and stage
        self._waits: dict[str, _Waiting] = {}
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

    def tables(self, names: Sequence[str]) -> None:
        """A run of these tables begins."""
        with self._lock:
            self._names, self._began = tuple(names), time.monotonic()
            self.reports = []
            for known in (self._tallies, self._waits, self._past):
                known.clear()

    def note(self, table: str, text: str) -> None:
        """Prints a note, or keeps it."""
        self._log(logging.INFO, table, None, text, "note")
        if self._brief is not None:
            known = self._brief.setdefault(table, deque(maxlen=8))
            if text in known:
                return
            known.append(text)
        if self._gathers and table:
            with self._lock:
                self.notes.setdefault(table, []).append(text)
            return
        self._say(table, text)

    def begin(self, table: str, stage: str, rows: int | None) -> None:
        """A stage of a table begins; rows is an estimate."""
        with self._lock:
            self._tallies.setdefault(table, {})[stage] = Tally(rows)
        self._log(logging.DEBUG, table, stage, f"{_DOING.get(stage, stage)} begins", "step_start", rows=rows)

    def advance(self, table: str, stage: str, rows: int, files: int, bytes: int) -> None:
        """Counts more rows, files and bytes as done."""
        with self._lock:
            tally = self._tallies.setdefault(table, {}).setdefault(stage, Tally(None))
            tally.add(rows, files, bytes)
            self._moved(table, stage, tally)

    def underway(self, table: str, stage: str, rows: int, step: Step | None = None) -> None:
        """The rows so far of tasks that have not ended, and what a load is doing."""
        with self._lock:
            tally = self._tallies.get(table, {}).get(stage)
            if tally is not None:
                tally.at_work(rows, step)
                self._moved(table, stage, tally)

    def wait(self, table: str, on: Wait | None) -> None:
        """The table waits; None: no longer."""
        with self._lock:
            before = self._waits.get(table)
            if on is None:
                self._waits.pop(table, None)
            elif before is None or before.on.kind != on.kind:
                self._waits[table] = _Waiting(on)
            else:
                before.on = on

    def end(self, table: str, stage: str) -> None:
        """The stage is over, well or not."""
        with self._lock:
            tally = self._tallies.get(table, {}).get(stage)
            if tally is None or tally.ended is not None:
                return
            tally.ended = time.monotonic()
            tally.at_work(0, None)
            if not self._names:  # nothing else will report that the table is done
                del self._tallies[table][stage]
        if stage != "plan":
            self._log(logging.INFO, table, stage, said_at_end(stage, tally), "step_end", **tally.fields)
            self._ended(table, stage, tally)

    def finished(self, report: TableReport) -> None:
        """The table's run is over."""
        with self._lock:
            for stage, tally in self._tallies.pop(report.table, {}).items():
                self._past[stage] = self._past.get(stage, 0) + tally.rows
            self._waits.pop(report.table, None)
            if report.left_out:
                self._names = tuple(name for name in self._names if name != report.table)
            else:
                self.reports.append(report)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def in_order(self) -> list[TableReport]:
        """The tables that are done, in the run's order."""
        with self._lock:
            place = {name: number for number, name in enumerate(self._names)}
            return sorted(self.reports, key=lambda report: place.get(report.table, -1))

    def at_work(self) -> list[str]:
        """The tables of which a stage is under way."""
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
            mine = self._waits.get("")
            return Picture(
                running=running,
                tables=max(len(self._names), len(running)),
                done=len(self.reports),
                failed=sum(bool(r.error) and not isinstance(r.error, Interrupted) for r in self.reports),
                seconds=now - self._began,
                whole=self._whole(),
                waits=mine.on if mine else None,
                waited=now - mine.since if mine else 0.0,
                stopping=self._stopping(),
            )

    def _running(self, name: str, now: float) -> Running:
        stages = tuple(
            Stage(
                stage,
                t.so_far,
                t.expected,
                t.seconds,
                t.ended is not None,
                _UNITS.get(stage, "row"),
                t.step,
                now - t.step_began,
            )
            for stage, t in self._tallies[name].items()
        )
        waits = self._waits.get(name)
        return Running(shown(name), stages, waits.on if waits else None, now - waits.since if waits else 0.0)

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
                found.append(Stage(stage, rows, total, seconds))
        return tuple(found)

    def _log(self, level: int, table: str, stage: str | None, text: str, event: str, **fields: Any) -> None:
        events.tell(log, level, event, text, table=table, step=stage, said=True, **fields)

    def _say(self, table: str, text: str) -> None: ...

    def _moved(self, table: str, stage: str, tally: Tally) -> None: ...

    def _ended(self, table: str, stage: str, tally: Tally) -> None: ...


class PlainProgress(SilentProgress):
    """Lines for logs, pipes and screen readers: one every few seconds for each table, and one when a stage is over."""

    def __init__(
        self,
        scrub: Scrubber,
        write: Callable[[str], None] | None = None,
        stopping: Callable[[], bool] = lambda: False,
        patience: float = _EVERY,
    ) -> None:
        super().__init__(scrub, stopping)
        self._write = write or to_stderr
        self._patience = patience
        self._timers: dict[str, threading.Timer] = {}

    def stop(self) -> None:
        with self._lock:
            timers, self._timers = list(self._timers.values()), {}
        for timer in timers:
            timer.cancel()

    def wait(self, table: str, on: Wait | None) -> None:
        """A wait that lasts is worth a line."""
        super().wait(table, on)
        with self._lock:
            if on is None:
                if timer := self._timers.pop(table, None):
                    timer.cancel()
            elif table not in self._timers and self._brief is None and not self._closed:
                self._timers[table] = timer = threading.Timer(self._patience, self._say_wait, (table,))
                timer.daemon = True
                timer.start()

    def underway(self, table: str, stage: str, rows: int, step: Step | None = None) -> None:
        """A step that lasts is worth a line too, even if nothing is heard of it meanwhile."""
        with self._lock:
            tally = self._tallies.get(table, {}).get(stage)
            before = tally.step if tally else None
            super().underway(table, stage, rows, step)
            if tally is None or (before and before.kind) == (step and step.kind):
                return
            if timer := self._timers.pop(f"{table} {stage}", None):
                timer.cancel()
            if step is not None and self._brief is None and not self._closed:
                self._say_later(table, stage, tally, step, self._patience)

    def _say_later(self, table: str, stage: str, tally: Tally, step: Step, seconds: float) -> None:
        """Says what a load is doing if it still does it then, and again after twice that time."""

        def say() -> None:
            with self._lock:
                if self._closed or tally.step is None or tally.step.kind != step.kind:
                    return
                self._say_later(table, stage, tally, step, seconds * 2)
                tally.said = tally.seconds
                text = said_so_far(stage, tally)
            self._say(table, text)

        self._timers[f"{table} {stage}"] = timer = threading.Timer(seconds, say)
        timer.daemon = True
        timer.start()

    def _say_wait(self, table: str) -> None:
        with self._lock:
            waiting = self._waits.get(table)
        if waiting is not None:
            self._say(table, said_wait(waiting.on, time.monotonic() - waiting.since))

    def _say(self, table: str, text: str) -> None:
        self._write(shown(self._scrub(f"{table}: {text}" if table else text)))

    def _moved(self, table: str, stage: str, tally: Tally) -> None:
        if tally.seconds - tally.said >= _EVERY:
            tally.said = tally.seconds
            self._say(table, said_so_far(stage, tally))

    def _ended(self, table: str, stage: str, tally: Tally) -> None:
        if tally.rows and self._brief is None:
            self._say(table, said_at_end(stage, tally))


class LoggedProgress(SilentProgress):
    """For `--json-logs`: everything is a log line, the steps in between too."""

    def _moved(self, table: str, stage: str, tally: Tally) -> None:
        if tally.seconds - tally.said >= _EVERY:
            tally.said = tally.seconds
            more = {"rows_expected": tally.expected, **tally.fields, "rows": tally.so_far}
            self._log(logging.INFO, table, stage, said_so_far(stage, tally), "progress", **more)


class BarProgress(SilentProgress):
    """The tables that run, with a bar for each stage, and a line for all; gone when the run is over."""

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

    def begin(self, table: str, stage: str, rows: int | None) -> None:
        super().begin(table, stage, rows)
        self._start()

    def wait(self, table: str, on: Wait | None) -> None:
        super().wait(table, on)
        if on is not None:
            self._start()

    def _start(self) -> None:
        with self._screen:
            if self._live is None and not self._closed:
                self._live = _live(self._drawn)
                self._live.start()

    def _say(self, table: str, text: str) -> None:
        line = shown(self._scrub(f"{table}: {text}" if table else text))
        with self._screen:
            if self._live is None:
                to_stderr(line)
            else:
                self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _drawn(self, width: int, height: int) -> list[Line]:
        return frame(self.picture(), width, height)


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


def to_stderr(line: str) -> None:
    """One line to stderr; a closed stderr is no reason to stop."""
    stream = sys.stderr
    try:
        encoding = stream.encoding or "utf-8"
        stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return


def choose(
    scrub: Scrubber,
    *,
    json: bool,
    quiet: bool,
    json_logs: bool,
    bars: bool,
    stopping: Callable[[], bool] = lambda: False,
) -> SilentProgress:
    """The progress that fits the global options and where stderr goes."""
    if quiet:
        return SilentProgress(scrub, stopping)
    if json_logs:
        return LoggedProgress(scrub, stopping)
    if json:
        return SilentProgress(scrub, stopping)  # the document has the notes
    return BarProgress(scrub, stopping) if bars else PlainProgress(scrub, stopping=stopping)
