"""Progress of a sync: bars on a terminal, plain lines otherwise, log lines with `--json-logs`, or nothing.

All of it goes to stderr, from any thread, and none of it can stop a run: a terminal that went away is
forgotten. What is said is logged too (`said` keeps it from appearing twice).
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from floodmark.logs import Scrubber
from floodmark.units import count, counted, duration, rate, shown, size

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

log = logging.getLogger("floodmark.progress")

_EVERY = 5.0  # seconds between two plain lines of one table and stage
_WIDE = 120  # columns; with fewer, numbers are worth more than bars and schema names
_DOING = {"extract": "extracting", "load": "loading", "clean": "removing", "verify": "verifying"}
_DONE = {"extract": "extracted", "load": "loaded", "clean": "removed", "verify": "compared"}
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
    said: float = 0.0

    def add(self, rows: int, files: int, bytes: int) -> None:
        self.rows += rows
        self.files += files
        self.bytes += bytes

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


def said_so_far(stage: str, tally: Tally) -> str:
    """`extracting: 500,000 of about 1,250,000 rows (40%), 312,000 rows/s, 2 files, 33.1 MB, …`."""
    unit = _UNITS.get(stage, "row")
    rows = counted(tally.rows, unit)
    if tally.expected and tally.rows <= tally.expected:
        rows = f"{count(tally.rows)} of {'about ' * (unit == 'row')}{counted(tally.expected, unit)}"
        rows += f" ({tally.rows * 100 // tally.expected}%)"
    parts = [rows, rate(tally.rows, tally.seconds, unit), *_written(stage, tally)]
    if tally.expected and 0 < tally.rows < tally.expected:
        left = tally.seconds * (tally.expected - tally.rows) / tally.rows
        parts.append(f"about {duration(left)} left")
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


class SilentProgress:
    """Says nothing, logs everything; the others say what it logs."""

    def __init__(self, scrub: Scrubber) -> None:
        self._scrub = scrub
        self._lock = threading.RLock()
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._brief: dict[str, deque[str]] | None = None

    def brief(self) -> Self:
        """For one sync after the other: a stage's end is said elsewhere, and a note only when it is news."""
        self._brief = {}
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the terminal as it was."""

    def note(self, table: str, text: str) -> None:
        """Say one line aloud."""
        self._log(logging.INFO, table, None, text)
        if self._brief is not None:
            known = self._brief.setdefault(table, deque(maxlen=8))
            if text in known:
                return
            known.append(text)
        self._say(table, text)

    def begin(self, table: str, stage: str, rows: int | None) -> None:
        """A stage of a table begins; rows is an estimate."""
        with self._lock:
            self._tallies[table, stage] = Tally(rows)
        self._log(logging.DEBUG, table, stage, f"{_DOING.get(stage, stage)} begins")

    def advance(self, table: str, stage: str, rows: int, files: int, bytes: int) -> None:
        """So many more rows, files and bytes are done."""
        with self._lock:
            tally = self._tallies.setdefault((table, stage), Tally(None))
            tally.add(rows, files, bytes)
            self._moved(table, stage, tally)

    def end(self, table: str, stage: str) -> None:
        """The stage is over, well or not."""
        with self._lock:
            tally = self._tallies.pop((table, stage), None)
        if tally is not None:
            self._log(logging.INFO, table, stage, said_at_end(stage, tally))
            self._ended(table, stage, tally)

    def _log(self, level: int, table: str, stage: str | None, text: str) -> None:
        log.log(level, "%s", text, extra={"table": table, "step": stage, "said": True})

    def _say(self, table: str, text: str) -> None: ...

    def _moved(self, table: str, stage: str, tally: Tally) -> None: ...

    def _ended(self, table: str, stage: str, tally: Tally) -> None: ...


class PlainProgress(SilentProgress):
    """Lines for logs and pipes: one every few seconds for each table, and one when a stage is over."""

    def __init__(self, scrub: Scrubber, write: Callable[[str], None] | None = None) -> None:
        super().__init__(scrub)
        self._write = write or to_stderr

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
            self._log(logging.INFO, table, stage, said_so_far(stage, tally))


class BarProgress(SilentProgress):
    """One bar for each stage of each table at work; a line for each that is over."""

    def __init__(self, scrub: Scrubber) -> None:
        super().__init__(scrub)
        self._bars: RichProgress | None = None
        self._tasks: dict[tuple[str, str], TaskID] = {}

    def stop(self) -> None:
        with self._lock:
            if self._bars is not None:
                self._bars.stop()
                self._bars = None

    def begin(self, table: str, stage: str, rows: int | None) -> None:
        super().begin(table, stage, rows)
        with self._lock:
            if self._bars is None:
                self._bars = _bars()
                self._bars.start()
            name = _fitting(shown(table), self._bars.console.width)
            self._tasks[table, stage] = self._bars.add_task(
                f"{name} {stage}", total=rows or None, rows="", speed="", files="", left=""
            )

    def _say(self, table: str, text: str) -> None:
        line = shown(self._scrub(f"{table}: {text}" if table else text))
        with self._lock:
            if self._bars is None:
                to_stderr(line)
            else:
                self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _moved(self, table: str, stage: str, tally: Tally) -> None:
        task = self._tasks.get((table, stage))
        if self._bars is None or task is None:
            return
        left = ""
        if tally.expected and 0 < tally.rows < tally.expected:
            left = duration(tally.seconds * (tally.expected - tally.rows) / tally.rows) + " left"
        unit = _UNITS.get(stage, "row")
        files = " ".join(_written(stage, tally))
        speed = rate(tally.rows, tally.seconds, unit)
        self._bars.update(
            task, completed=tally.rows, rows=counted(tally.rows, unit), speed=speed, files=files, left=left
        )

    def _ended(self, table: str, stage: str, tally: Tally) -> None:
        with self._lock:
            task = self._tasks.pop((table, stage), None)
            if self._bars is not None and task is not None:
                self._bars.remove_task(task)
        if tally.rows and self._brief is None:  # else it failed, which is said elsewhere
            self._say(table, said_at_end(stage, tally))


def _fitting(table: str, width: int) -> str:
    """The table's name, or its end, so that the numbers beside it stay whole."""
    room = max(width - 66, 12)
    return table if width >= _WIDE or len(table) <= room else "…" + table[1 - room :]


def _bars() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

    console = Console(stderr=True)  # rich itself respects NO_COLOR
    shown = ("description", "fields[rows]", "fields[speed]", "fields[files]", "fields[left]")
    columns: list[ProgressColumn] = [TextColumn(f"{{task.{text}}}", markup=False) for text in shown]
    if console.width >= _WIDE:
        columns.insert(1, BarColumn(bar_width=24))
    return Progress(*columns, console=console, transient=True, refresh_per_second=8)


def to_stderr(line: str) -> None:
    """One line to stderr; a stderr that is closed is no reason to stop."""
    stream = sys.stderr
    try:
        encoding = stream.encoding or "utf-8"
        stream.write(line.encode(encoding, "replace").decode(encoding) + "\n")
        stream.flush()
    except (OSError, ValueError, AttributeError):
        return


def choose(scrub: Scrubber, *, json: bool, quiet: bool, json_logs: bool, terminal: bool) -> SilentProgress:
    """The progress that fits the global options and where stderr goes."""
    if quiet:
        return SilentProgress(scrub)
    if json_logs:
        return LoggedProgress(scrub)
    if json:
        return SilentProgress(scrub)  # the document has the notes
    return BarProgress(scrub) if terminal else PlainProgress(scrub)
