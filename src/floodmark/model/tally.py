"""How far one stage of one table has got, and the sentences that say so."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from floodmark.model.run import Step
from floodmark.model.text import count, counted, duration, rate, size, span

# What is done in a stage, and what was.
VERBS = {
    "extract": ("extracting", "extracted"),
    "load": ("loading", "loaded"),
    "clean": ("removing", "removed"),
    "verify": ("verifying", "compared"),
    "plan": ("planning", "planned"),
    "follow": ("reading the binary log", "read"),
}
TELLING = 0.01  # the share of a stage that says something about the rest
EVERY = 5.0  # seconds between two lines of one table and stage
# What a stage is measured in; files are counted next to rows, but not next to files.
UNITS = {"clean": "file", "follow": "byte"}


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

    def due(self) -> bool:
        """Whether it is time for a line about it; if so, the next one is due a few seconds later."""
        if self.seconds - self.said < EVERY:
            return False
        self.said = self.seconds
        return True

    def end(self) -> bool:
        """The stage has ended; returns whether that is news."""
        if self.ended is not None:
            return False
        self.ended = time.monotonic()
        self.at_work(0, None)
        return True

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


def said_step(step: Step) -> str:
    """`copying files, 3 of 12`, `checking 1 file`."""
    verb = {
        "check": "checking",
        "copy": "copying",
        "merge": "merging rows",
        "insert": "inserting rows",
        "commit": "committing",
    }[step.kind]
    if step.kind not in ("check", "copy"):
        return verb + (f", {step.done} of {step.total}" if step.done else "")
    if step.done:
        return f"{verb} files, {step.done} of {step.total}"
    return f"{verb} {counted(step.total, 'file') if step.total else 'files'}"


def said_so_far(stage: str, tally: Tally) -> str:
    """`extracting: 500,000 of about 1,250,000 rows (40%), 312,000 rows/s, 2 files, 33.1 MB, …`."""
    unit, rows = UNITS.get(stage, "row"), tally.so_far
    told = counted(rows, unit)
    if tally.expected and rows <= tally.expected:
        told = f"{count(rows)} of {'about ' * (unit == 'row')}{counted(tally.expected, unit)}"
        told += f" ({rows * 100 // tally.expected}%)" if rows else ""
    parts = [told, rate(rows, tally.seconds, unit), *(_written(stage, tally) if rows else ())]
    if tally.step is not None:
        lasted = time.monotonic() - tally.step_began
        parts.append(said_step(tally.step) + (f" for {span(lasted)}" if lasted >= 1 else ""))
    if tally.expected and tally.expected * TELLING <= rows < tally.expected:
        parts.append(f"about {span(tally.seconds * (tally.expected - rows) / rows)} left")
    return f"{VERBS[stage][0]}: {', '.join(part for part in parts if part)}"


def said_at_end(stage: str, tally: Tally) -> str:
    """`extracted 1,250,000 rows, 5 files, 83.1 MB in 4.0 s (312,000 rows/s)`."""
    unit = UNITS.get(stage, "row")
    speed = rate(tally.rows, tally.seconds, unit)
    parts = [counted(tally.rows, unit), *_written(stage, tally)]
    said = f"{VERBS[stage][1]} {', '.join(part for part in parts if part)} in {duration(tally.seconds)}"
    return f"{said} ({speed})" if speed else said


def _written(stage: str, tally: Tally) -> tuple[str, ...]:
    """Files and bytes; a comparison has none, nor has a read of the binary log."""
    if stage in ("verify", "follow"):
        return ()
    files = () if stage in UNITS else (counted(tally.files, "file"),)
    return (*files, size(tally.bytes))
