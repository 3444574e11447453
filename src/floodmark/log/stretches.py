"""Which stretches of the change order were read, according to the log; rows outside them were never promised.

A state knows where reading began until someone moves the table by hand; after that only the log does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from floodmark.log.fold import ClaimInfo, Data, State, fold
from floodmark.log.log import Log
from floodmark.model.commit import Claim, Commit, Restore
from floodmark.model.position import Position, Value

# After the first position (None: from the first row) up to and including the second.
Gap = tuple[Position | None, Position]


@dataclass(frozen=True)
class Stretches:
    """What was read."""

    # After the first position, up to the second; None: nothing read without gaps.
    read: tuple[tuple[Position | None, Position | None], ...] = ()
    at: Position | None = None  # set by hand, with nothing read since
    ragged: bool = False  # windows were abandoned after only some of their slices had been read
    taken_over: bool = False  # reading continued from another tool's position, with that tool's rows

    @property
    def began(self) -> Position | None:
        """The lowest position from which rows were read; None: from the first row, or none were read."""
        lows = [low for low, _ in self.read]
        if not lows or None in lows:
            return None
        return min((low for low in lows if low is not None), key=_place)

    @property
    def skipped(self) -> tuple[Gap, ...]:
        """The gaps between the stretches, skipped by positions set by hand."""
        found: list[Gap] = []
        every = [*self.read, *([(self.at, self.at)] if self.read and self.at is not None else [])]
        every.sort(key=lambda one: (one[0] is not None, _place(one[0]) if one[0] is not None else ()))
        reached = every[0][0] if every else None
        for low, high in every:
            if low is not None and (reached is None or _place(low) > _place(reached)):
                found.append((reached, low))
                reached = low
            if high is not None and (reached is None or _place(high) > _place(reached)):
                reached = high
        return tuple(found)


def lowest(one: Position | None, other: Position | None) -> Position | None:
    """The lower of two positions; None comes before every row."""
    return None if one is None or other is None else min(one, other, key=_place)


def stretches(log: Log, state: State, whole: bool = False) -> Stretches:
    """What was read up to the state: since the extraction was last reset, or in the `whole` log."""
    first = 1 if whole else state.extraction.epoch + 1
    return followed(log.commits(range(first, state.n + 1)))


def followed(commits: Iterable[tuple[Commit, str]]) -> Stretches:
    """The stretches of all commits since a reset of the extraction, or since the log was opened."""
    state: State | None = None
    read: list[tuple[Position | None, Position | None]] = []
    reading, low, ragged, taken_over = False, None, False, False
    for commit, found in commits:
        before = state or _nothing_before(commit)
        state = fold(before, commit, found)
        if state.progress.moved_at != before.progress.moved_at:
            if reading:
                read.append((low, before.position))
            ragged = ragged or (state.window is None and before.progress.scattered)
            taken_over = taken_over or (isinstance(commit, Restore) and not reading and not read)
            reading = False
        if not isinstance(commit, Claim) or commit.window is None or commit.window.by == "snapshot":
            continue
        if commit.window.whole:  # its rows replace all others
            read, reading, ragged = [], False, False
        if not reading:
            reading, low = True, commit.window.low
    if state is None:
        return Stretches()
    if reading:
        read.append((low, state.position))
    return Stretches(tuple(read), None if reading else state.position, ragged, taken_over)


def _nothing_before(commit: Commit) -> State:
    """A stand-in for the state before a commit, enough to fold what was read."""
    claim = ClaimInfo(commit.n - 1, "", commit.run, commit.at, None, None)
    return State(commit.table_name, commit.log, commit.n - 1, commit.prev, claim, data=Data(apart=True))


def _place(position: Position) -> tuple[int, Decimal, str, bool]:
    """Sort key for positions, by cursor; one without a key comes after every row with the same cursor."""
    return (*_sortable(position[0]), len(position) == 1)


def _sortable(value: Value) -> tuple[int, Decimal, str]:
    if isinstance(value, int) or re.fullmatch(r"-?\d+(\.\d+)?", value):
        return 0, Decimal(value), ""
    return 1, Decimal(0), value
