"""One word for each table, and why: the worst of its last run, its lag against its target, and its last verify. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from floodmark.model.text import clock, count, counted, duration

Word = Literal["failed", "behind", "unknown", "waiting to load", "never synced", "ok"]
# Worst first. The unknown may be as bad as anything, except what is known to be bad.
WORDS: tuple[Word, ...] = ("failed", "behind", "unknown", "waiting to load", "never synced", "ok")
# How far a table may be behind if the configuration sets no target: a missed nightly sync shows.
DEFAULT_TARGET = 25 * 3600.0


@dataclass(frozen=True)
class Facts:
    """What is known about a table."""

    readable: bool = True  # whether its watermark could be read
    synced: bool = True  # whether anything was ever read
    running: bool = False
    interrupted: bool = False  # a run stopped in the middle of a window, and no other has resumed it
    error: str | None = None  # why the last attempt failed
    lag: float | None = None  # seconds behind the source when a sync last looked
    lag_ids: int | None = None
    looked: str | None = None  # when a sync last looked,
    age: float | None = None  # and how many seconds ago that was
    target: float = DEFAULT_TARGET
    pending: int = 0  # files that wait to be loaded
    differences: int | None = None  # rows that the last verify found; None: never verified
    retired: bool = False


@dataclass(frozen=True)
class Health:
    """The word, and the reason in a few more."""

    word: Word
    why: str = ""

    @property
    def rank(self) -> int:
        return WORDS.index(self.word)


def behind(facts: Facts) -> float | None:
    """How far the table may be behind by now: its lag at the last look, plus the time since."""
    if facts.age is None:
        return facts.lag
    return (facts.lag or 0.0) + facts.age


def judge(facts: Facts) -> Health:
    """A table's health; a retired table is always fine."""
    if not facts.readable:
        return Health("unknown", "its watermark can't be read")
    if facts.retired:
        return Health("ok", "retired")
    if facts.error is not None:
        return Health("failed", facts.error)
    if facts.interrupted and not facts.running:
        return Health("failed", "the last run was interrupted; the next one continues from there")
    if facts.differences:
        return Health("failed", f"verify found {counted(facts.differences, 'difference')}")
    if not facts.synced:
        return Health("never synced", "a first sync is running" if facts.running else "")
    late = _late(facts)
    if late is not None and not (facts.running and (facts.lag or 0.0) <= facts.target):
        return late
    if facts.pending and not facts.running:
        return Health("waiting to load", f"{counted(facts.pending, 'file')} not yet in the warehouse")
    if facts.age is None and facts.lag is None and not facts.running:
        return Health("unknown", "no sync has recorded when it last looked")
    if facts.lag_ids:
        return Health("ok", f"{count(facts.lag_ids)} ids behind")
    return Health("ok")


def _late(facts: Facts) -> Health | None:
    """Behind its target: by the lag at the last look, or because no sync has looked for that long."""
    if facts.lag is not None and facts.lag > facts.target:
        return Health("behind", f"{duration(facts.lag)} behind the source, target {duration(facts.target)}")
    total = behind(facts)
    if total is not None and facts.age is not None and total > facts.target:
        since = f" since {clock(facts.looked)}" if facts.looked else ""
        return Health("behind", f"no sync has looked{since}, target {duration(facts.target)}")
    return None
