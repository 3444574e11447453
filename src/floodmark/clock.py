"""Moments and wall clocks: how far a DATETIME cursor can be trusted when zones shift. Pure.

A moment is UTC epoch seconds. A wall clock is text without a zone. Between the two stands a zone, given here as
its offsets at sampled moments, because the source's own zone is only known to the source.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo

from floodmark.model import Zone

# Where a zone's offset differs from one of these steps to the next, the very second of the shift is looked for.
STEP = 900
REACH = 3 * 3600
# Two clocks that differ by so many seconds more than before have only drifted apart, or the network was slow.
STEADY = 1.0
# Daylight saving may move the zone of an old connection by so much beside the one that took its place.
SAVING = 3600

_EPOCH = datetime(1970, 1, 1)

Offsets = Callable[[Sequence[int]], list[int]]
Unit = Literal["s", "ms", "us", "ns"]


def text(moment: float, offset: int = 0) -> str:
    """The wall clock at a moment, with microseconds, as MySQL prints DATETIME(6)."""
    wall = _EPOCH + timedelta(microseconds=round(moment * 1e6)) + timedelta(seconds=offset)
    return wall.strftime("%Y-%m-%d %H:%M:%S.%f").zfill(26)


def shifted(wall: str, seconds: float) -> str:
    """The wall clock so many seconds later; what lies before year 1 stays at its first day."""
    try:
        moved = datetime.fromisoformat(wall) + timedelta(microseconds=round(seconds * 1e6))
    except OverflowError:
        return "0001-01-01 00:00:00.000000"
    return moved.strftime("%Y-%m-%d %H:%M:%S.%f").zfill(26)


def named(zone: str) -> Offsets:
    """The offsets of a zone that we know by name."""
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
    """A stretch of wall clock that the clocks showed twice."""

    at: int  # the moment at which they went back
    first: str  # the wall clock right after, the lower end of the repeated stretch
    last: str  # the wall clock right before, its upper end
    until: int  # the moment at which the repeated stretch is over


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
            # Far samples belong to different stretches; what lies between them is not read again.
            if back > 0 and later - earlier <= STEP:
                last = text(later, self.offsets[earlier])
                found.append(Repeat(later, text(later, self.offsets[later]), last, later + back))
        return found


def grid(moment: float) -> int:
    """The last moment before this one that `samples` always has."""
    return int(moment) // STEP * STEP


def samples(*moments: float | None) -> list[int]:
    """The moments to ask a zone about, so that a shift near any of the given ones is seen."""
    wanted: set[int] = set()
    for moment in moments:
        if moment is not None:
            centre = grid(moment)
            wanted.update(range(centre - REACH, centre + REACH + STEP, STEP))
    return sorted(wanted)


def sample(offsets: Offsets, *moments: float | None) -> Wall:
    """The zone around the given moments, with the seconds before and at each shift among them."""
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

    In a repeated stretch that is its upper end: rows of the first pass may stand anywhere below it.
    """
    value = wall.at(bound)
    for repeat in wall.repeats():
        if repeat.at <= bound < repeat.until:
            value = max(value, repeat.last)
    return value


def set_back(before: float | None, ahead: float) -> float:
    """By how many seconds a clock was set back, from how far it was ahead of ours then and now; 0 when it was not.

    Ours may have been set forward instead: then rows are read again for nothing.
    """
    back = (before or ahead) - ahead
    return back if back > STEADY else 0.0


def reread_from(wall: Wall, previous: float | None, bound: float, back: float = 0.0) -> str | None:
    """Where to read again because the clocks went back since the previous window, by the zone or by `back` seconds.

    Rows of the second pass carry wall clocks that the previous window may have passed already. A clock that was set
    back later than the previous bound shows at least that bound less the seconds.
    """
    if previous is None:
        return None
    starts = [r.first for r in wall.repeats() if r.at <= bound and previous < r.until]
    if back:
        starts.append(wall.at(previous - back - STEADY))
    return min(starts, default=None)


def zone_now(wall: Wall, before: Zone | None, now: float, behind: int = 0) -> Zone:
    """The zone of the cursors as it is now; where it is another one than before, with what it was until then.

    Both are asked for the moment of the earlier look, so daylight saving is no change. `wall` has that moment and now.
    """
    others: set[int] = set()
    if before is not None:
        then = wall.offsets[before.at]
        others = {*before.others, before.offset} if then != before.offset else {*before.others}
        others.discard(then)
    at = grid(now)
    return Zone(at, wall.offsets[at], tuple(sorted(others)), behind)


def spread(zone: Zone | None) -> int:
    """The widest difference, in seconds, between what connections of now and from before a change of zone write."""
    if zone is None or not zone.others:
        return 0
    return max(abs(zone.offset - other) for other in zone.others) + SAVING


def told(zone: Zone) -> str:
    """A change of zone in a few words."""

    def text(offset: int) -> str:
        return f"{'-' if offset < 0 else '+'}{abs(offset) // 3600:02}:{abs(offset) // 60 % 60:02}"

    before = " or ".join(text(other) for other in zone.others)
    return f"the time zone of the source's cursors is UTC{text(zone.offset)} and was UTC{before} before"


# ---------------------------------------------------------------- integers that tell the time

UNITS: dict[Unit, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# A column whose newest value is this close to the clock, in seconds, is one.
CLOSE = 86_400


def count(moment: float, unit: Unit) -> int:
    """The integer that stands for a moment."""
    return round(moment * 1e6) * UNITS[unit] // 10**6


def unit_of(newest: int, now: float) -> Unit | None:
    """What an integer counts since 1970, if it is a time of about now."""
    return next((unit for unit, each in UNITS.items() if abs(newest / each - now) <= CLOSE), None)
