"""Moments and wall clocks: how far a DATETIME cursor can be trusted when zones shift. Pure.

A moment is UTC epoch seconds. A wall clock is text without a zone. A zone maps one to the other; it is given
here as its offsets at sampled moments, because only the source knows its own zone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from floodmark.model.times import wall_clock

# Seconds between samples; if the offset differs between two, the exact second of the shift is located.
STEP = 900
REACH = 3 * 3600
# If two clocks differ by at most this many seconds more than before, that is drift or network delay.
STEADY = 1.0
# A cursor this far ahead of the clock is in the future; less is a writer's clock running slightly fast.
FUTURE_SLACK = 60.0
# Daylight saving may shift an old connection's zone by this much relative to the new one.
SAVING = 3600

_EPOCH = datetime(1970, 1, 1)

Offsets = Callable[[Sequence[int]], list[int]]
Unit = Literal["s", "ms", "us", "ns"]


@dataclass(frozen=True)
class Zone:
    """The zone of a table's cursors as a sync saw it: its offset from UTC in seconds at a given moment."""

    at: int
    offset: int
    # Offsets of earlier zones: connections keep the zone they started with.
    others: tuple[int, ...] = ()
    behind: int = 0  # how many seconds too early the cursors are that sessions with their own zone write


def text(moment: float, offset: int = 0) -> str:
    """The wall clock at a moment, with microseconds, as MySQL prints DATETIME(6)."""
    wall = _EPOCH + timedelta(microseconds=round(moment * 1e6)) + timedelta(seconds=offset)
    return wall_clock(wall)


def named(zone: str) -> Offsets:
    """The offsets of a named zone."""
    info = ZoneInfo(zone)

    def offsets(moments: Sequence[int]) -> list[int]:
        found = [datetime.fromtimestamp(m, UTC).astimezone(info).utcoffset() for m in moments]
        return [int(o.total_seconds()) if o else 0 for o in found]

    return offsets


def utc(moments: Sequence[int]) -> list[int]:
    """The offsets of UTC."""
    return [0] * len(moments)


@dataclass(frozen=True)
class Repeat:
    """A stretch of wall-clock time that occurred twice."""

    at: int  # the moment at which the clocks went back
    first: str  # the wall clock just after, the lower end of the repeated stretch
    last: str  # the wall clock just before, its upper end
    until: int  # the moment at which the repeated stretch ends


@dataclass(frozen=True)
class Wall:
    """The zone around the moments that matter: the last window's bound and this one's."""

    offsets: dict[int, int]  # sampled moment -> offset

    def at(self, moment: float) -> str:
        """The wall clock at a moment."""
        before = max((m for m in self.offsets if m <= moment), default=min(self.offsets))
        return text(moment, self.offsets[before])

    def repeats(self) -> list[Repeat]:
        """Where the clocks went back between two samples."""
        found = []
        moments = sorted(self.offsets)
        for earlier, later in itertools.pairwise(moments):
            back = self.offsets[earlier] - self.offsets[later]
            # Samples far apart belong to different moments; rows between them are not reread.
            if back > 0 and later - earlier <= STEP:
                last = text(later, self.offsets[earlier])
                found.append(Repeat(later, text(later, self.offsets[later]), last, later + back))
        return found


def grid(moment: float) -> int:
    """The last moment before this one that `samples` always includes."""
    return int(moment) // STEP * STEP


def samples(*moments: float | None) -> list[int]:
    """The moments to sample a zone at, so that a shift near any of the given ones is noticed."""
    wanted: set[int] = set()
    for moment in moments:
        if moment is not None:
            centre = grid(moment)
            wanted.update(range(centre - REACH, centre + REACH + STEP, STEP))
    return sorted(wanted)


def sample(offsets: Offsets, *moments: float | None) -> Wall:
    """The zone around the given moments, including the seconds just before and at each shift."""
    wanted = samples(*moments)
    found = dict(zip(wanted, offsets(wanted), strict=True))
    for earlier, later in itertools.pairwise(wanted):
        if later - earlier > STEP:
            continue
        while found[earlier] != found[later] and later - earlier > 1:
            middle = (earlier + later) // 2
            [found[middle]] = offsets([middle])
            earlier, later = (middle, later) if found[middle] == found[earlier] else (earlier, middle)
    return Wall(found)


def ceiling(wall: Wall, bound: float) -> str:
    """The wall clock that no row written before the bound can reach: cursor < this.

    Within a repeated stretch that is its upper end: rows of the first pass may be anywhere below it.
    """
    value = wall.at(bound)
    for repeat in wall.repeats():
        if repeat.at <= bound < repeat.until:
            value = max(value, repeat.last)
    return value


def set_back(before: float | None, ahead: float) -> float:
    """How many seconds a clock was set back, given how far it was ahead of ours then and now; 0 if it was not.

    If our own clock was set forward instead, rows are reread needlessly.
    """
    if before is None:
        return 0.0
    back = before - ahead
    return back if back > STEADY else 0.0


def reread_from(wall: Wall, previous: float | None, bound: float, back: float = 0.0) -> str | None:
    """Where to reread from if the clocks went back since the previous window, by zone or by `back` seconds.

    Rows of the second pass have wall clocks that the previous window may already have passed. A clock set
    back after the previous bound shows at least that bound minus `back`.
    """
    if previous is None:
        return None
    starts = [r.first for r in wall.repeats() if r.at <= bound and previous < r.until]
    if back:
        starts.append(wall.at(previous - back - STEADY))
    return min(starts, default=None)


def zone_now(wall: Wall, before: Zone | None, now: float, behind: int = 0) -> Zone:
    """The current zone of the cursors; if it has changed, with the previous offsets.

    The two are compared at the moment of the earlier look, so daylight saving is not a change. `wall` covers
    that moment and now.
    """
    others: set[int] = set()
    if before is not None:
        then = wall.offsets[before.at]
        others = {*before.others, before.offset} if then != before.offset else {*before.others}
        others.discard(then)
    at = grid(now)
    return Zone(at, wall.offsets[at], tuple(sorted(others)), behind)


def spread(zone: Zone | None) -> int:
    """The largest difference, in seconds, between what connections from before and after a zone change write."""
    if zone is None or not zone.others:
        return 0
    return max(abs(zone.offset - other) for other in zone.others) + SAVING


def zone_change(zone: Zone) -> str:
    """A change of zone in a few words."""

    def text(offset: int) -> str:
        return f"{'-' if offset < 0 else '+'}{abs(offset) // 3600:02}:{abs(offset) // 60 % 60:02}"

    before = " or ".join(text(other) for other in zone.others)
    return f"the time zone of the source's cursors changed from UTC{before} to UTC{text(zone.offset)}"


# ---------------------------------------------------------------- integers that hold Unix time

UNITS: dict[Unit, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# An integer column holds Unix time if its newest value is within this many seconds of the clock.
CLOSE = 86_400


def count(moment: float, unit: Unit) -> int:
    """A moment as Unix time in the given unit."""
    return round(moment * 1e6) * UNITS[unit] // 10**6


def unit_of(newest: int, now: float) -> Unit | None:
    """The unit of an integer that, as Unix time, is close to now; None: it is not a time."""
    return next((unit for unit, each in UNITS.items() if abs(newest / each - now) <= CLOSE), None)
