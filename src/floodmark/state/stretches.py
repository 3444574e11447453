"""Which stretches of the change order were read, as the log has it: what lies before or between was never promised.

A state knows where reading began until somebody moves the table by hand; after that only the log does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from floodmark.model import Commit, Position, Value
from floodmark.state.fold import ClaimInfo, State, fold
from floodmark.state.log import Log

# Behind the first position, or from the first row on, up to the second.
Gap = tuple[Position | None, Position]


@dataclass(frozen=True)
class Stretches:
    """What was read since the extraction was last reset."""

    # Behind the first, up to the second; None: nothing without gaps.
    read: tuple[tuple[Position | None, Position | None], ...] = ()
    at: Position | None = None  # set by hand, and nothing was read since
    ragged: bool = False  # windows were given up of which single slices had been read
    taken_over: bool = False  # it went on from a position that others had reached, with rows of theirs

    @property
    def began(self) -> Position | None:
        """The lowest place from which on rows were read; None: from the first row on, or none were."""
        lows = [low for low, _ in self.read]
        if not lows or None in lows:
            return None
        return min((low for low in lows if low is not None), key=_place)

    @property
    def skipped(self) -> tuple[Gap, ...]:
        """What lies between them: positions set by hand have passed over it."""
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
    """The lower of two places; None is before every row."""
    return None if one is None or other is None else min(one, other, key=_place)


def began(log: Log, state: State) -> Position | None:
    """Where reading began: what lies before was never promised."""
    if state.began is not None or state.moved_at is None:
        return state.began
    return stretches(log, state).began


def stretches(log: Log, state: State) -> Stretches:
    """The stretches of a log up to the state."""
    return followed(log.commits(range(state.extract_epoch + 1, state.n + 1)))


def followed(commits: Iterable[tuple[Commit, str]]) -> Stretches:
    """The stretches of all commits since a reset of the extraction, or since the log was opened."""
    state: State | None = None
    read: list[tuple[Position | None, Position | None]] = []
    reading, low, ragged, taken_over = False, None, False, False
    for commit, found in commits:
        before = state or _nothing_before(commit)
        state = fold(before, commit, found)
        if state.moved_at != before.moved_at:
            if reading:
                read.append((low, before.position))
            given_up = before.window if state.window is None else None
            scattered = given_up is not None and before.done != tuple(range(len(before.done)))
            by_key = given_up is not None and given_up.by == "key" and bool(before.done)
            ragged = ragged or scattered or by_key
            taken_over = taken_over or (commit.kind == "restore" and not reading and not read)
            reading = False
        if commit.window is None or commit.window.by == "snapshot":
            continue
        if commit.window.whole:  # its rows take the place of all others
            read, reading, ragged = [], False, False
        if not reading:
            reading, low = True, commit.window.low
    if state is None:
        return Stretches()
    if reading:
        read.append((low, state.position))
    return Stretches(tuple(read), None if reading else state.position, ragged, taken_over)


def _nothing_before(commit: Commit) -> State:
    """The state that a commit follows, as far as what was read goes."""
    claim = ClaimInfo(commit.n - 1, "", commit.run, commit.at, None, None)
    return State(commit.table_name, commit.log, commit.n - 1, commit.prev, claim, apart=True)


def _place(position: Position) -> tuple[int, Decimal, str, bool]:
    """For positions in their order, by the cursor; one without a key lies behind every row that shares its cursor."""
    return (*_sortable(position[0]), len(position) == 1)


def _sortable(value: Value) -> tuple[int, Decimal, str]:
    if isinstance(value, int) or re.fullmatch(r"-?\d+(\.\d+)?", value):
        return 0, Decimal(value), ""
    return 1, Decimal(0), value
