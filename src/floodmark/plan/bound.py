"""How far a table can be read now, such that no row will be committed below that point later.

Pure: `wait` queries the source and sleeps, in the order that matters, and passes the answers in. The bound is
the end of the tick that the source's clock was in when the run looked. It is lowered to the start of the
oldest open work that may write to the table, and below the lowest row that an open transaction has written.
Ids have no clock: they wait until all open work has ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from floodmark.config.load import TableOptions
from floodmark.log.fold import State
from floodmark.model import zones as clock
from floodmark.model.open_work import OpenWork, Trust
from floodmark.model.position import Position, Value
from floodmark.model.table import Column, Table
from floodmark.model.times import shifted, temporal
from floodmark.model.zones import FUTURE_SLACK, Zone
from floodmark.source.ranges import every_row

# If the source's own clock writes the cursor, and all open work is visible and there is none, rows are final
# as soon as their tick is over. This margin covers a clock that steps back by less than we can detect.
SURE_SECONDS = clock.STEADY
# Minimum wait for ids: work that began within the second of the query counts as open for up to two seconds.
ID_SECONDS = 3.0
# Step, in seconds, of the search for the moment at which a row becomes final.
AGING = 0.05
# Seconds before a statement that holds rows back is checked again. Most have ended by then, and a connection
# that is logging in or closing (ours included) briefly shows up as a statement.
GLANCE = 0.25
# How often at most, if each time others hold them back.
GLANCES = 3
# How many ids at most are counted to find those without a gap.
COUNTED_IDS = 2_000_000
# A column with more rows than this beyond tomorrow is a counter, however close to the clock some of its
# values are.
FEW_IN_THE_FUTURE = 10


@dataclass(frozen=True)
class Reading:
    """A table about to be read, with everything that decides from where and how far."""

    table: Table
    state: State  # what earlier runs have read, and up to which bound
    options: TableOptions
    trust: Trust  # whether the source shows all open work
    low: Position | None = None  # rows up to here have been read
    outside: bool = False  # whether rows outside `where` count too: their keys leave the target

    @property
    def rows(self) -> Table:
        """The table for queries about all rows that the sync looks at."""
        return every_row(self.table) if self.outside else self.table

    @property
    def cursor(self) -> Column:
        assert self.table.cursor is not None
        return self.table.column(self.table.cursor)

    @property
    def zone(self) -> str:
        """The zone in which cursors are compared: UTC for TIMESTAMP, else the server's or the user's."""
        return "UTC" if self.cursor.data_type == "timestamp" else self.options.cursor_timezone

    @property
    def by_day(self) -> bool:
        return self.cursor.data_type == "date"

    def has_news(self, newest: Position) -> bool:
        """Whether `newest` lies beyond what has been read."""
        return self.low is None or _behind(newest[0], self.low[0])


def looks_outside(table: Table, state: State) -> bool:
    """Whether the target may have rows that an update has moved out of `where`."""
    if table.mode != "upsert" or not table.recipe.where:
        return False
    return state.has_data or state.progress.moved_at is not None


@dataclass(frozen=True)
class Settled:
    """How far the table can be read now."""

    high: Position | None  # the last position that is final
    newest: Position | None  # the last position overall, settled or not
    bound: float | None = None
    wall: Value | None = None  # the cursor that is written at the bound
    beyond: Value | None = None  # cursors from here on lie in the future
    zone_shift: str | None = None  # clocks went back: read again from here
    ahead: float | None = None  # the source's clock minus ours
    back: float = 0.0  # seconds by which it was set back since the last window
    steady: bool = False  # no clock went back since the last window, not even after the bound
    back_to: str | None = None  # if one did: rows written since then have a cursor from here on
    zone: Zone | None = None  # of the cursors, if they have one
    behind: int = 0  # seconds by which sessions in other time zones write earlier cursors
    zones: tuple[str, ...] = ()  # time zones of such sessions, earlier or not
    held: tuple[str, ...] = ()  # what holds the bound back


# ---------------------------------------------------------------- cursors that tell the time


@dataclass(frozen=True)
class Aim:
    """How far a run would read if nothing were open: to the end of the tick that the source's clock is in."""

    now: float  # the source's clock when the run looked
    tick: float  # the cursor's smallest step, in seconds
    pause: float  # with nothing open, a tick is final this many seconds after its end
    ahead: float = 0.0  # the source's clock minus ours
    back: float = 0.0  # seconds by which it was set back since the last window

    @property
    def top(self) -> float:
        """The end of the current tick; no bound lies above it."""
        return (math.floor(self.now / self.tick) + 1) * self.tick

    @property
    def age(self) -> float:
        """The age at which a row is certainly final: its tick is over and the pause has passed."""
        return self.pause + self.tick

    @property
    def aged(self) -> float:
        """Rows written before this moment are already final."""
        return self.now - self.age


def aim(reading: Reading, now: float, ours: float) -> Aim:
    """How far to read at best, given the source's clock and ours at the same moment."""
    pause = reading.options.settle_seconds
    if reading.trust.complete and reading.cursor.maintained:
        pause = min(pause, SURE_SECONDS)
    ahead = now - ours
    back = clock.set_back(reading.state.progress.ahead, ahead)
    return Aim(now, 10 ** -(reading.cursor.fraction or 0), pause, ahead, back)


def ceiling(reading: Reading, wall: clock.Wall, moment: float) -> Value:
    """The cursor that no row written before the moment can reach; for dates, the day of the moment."""
    value = clock.ceiling(wall, moment)
    return value[:10] if reading.by_day else value


def at_or_behind(position: Position | None, value: Value) -> bool:
    """Whether there is a position and its cursor is at or above the value."""
    return position is not None and str(position[0]) >= str(value)


def is_fresh(reading: Reading, aim: Aim, wall: clock.Wall, newest: Position | None) -> bool:
    """Whether the newest row is too young to be final. Dates are never waited for: it would take all day."""
    return not reading.by_day and at_or_behind(newest, ceiling(reading, wall, aim.aged))


def nothing_new(reading: Reading, aim: Aim, newest: Position | None) -> bool:
    """Whether a table has no row beyond its position, and no open work can change what follows from that.

    Work that is open now commits rows beyond the position: when it was reached, nothing was open that could commit
    below. The next run reads them. Only where that can't be trusted, or a clock went back, does it matter now.
    """
    trusted = reading.trust.complete and reading.cursor.maintained and not aim.back
    at_rest = reading.state.window is None and reading.low == reading.state.position == newest
    return trusted and at_rest and newest is not None and not reading.by_day


def all_held(aim: Aim, look: Iterable[OpenWork]) -> bool:
    """Whether any open work is older than every fresh row and so may hold all of them back."""
    return any(h.start < aim.aged for h in look)


@dataclass(frozen=True)
class Pause:
    """How long to wait for fresh rows."""

    seconds: float
    for_all: bool  # the current tick is final then; else only the newest row seen; later ones wait


def pause(aim: Aim, wall: clock.Wall, newest: Position, now: float) -> Pause:
    """How long until fresh rows are final: the newest row, if that is sooner than the current tick."""
    most = max(0.0, aim.top + aim.pause - now)
    for step in range(int(most / AGING) + 1):
        seconds = step * AGING
        if str(newest[0]) < clock.ceiling(wall, now - aim.age + seconds):
            return Pause(seconds + AGING, for_all=False)
    return Pause(most, for_all=True)


def patience(reading: Reading, aim: Aim, fresh: bool, look: Iterable[OpenWork]) -> float:
    """How much longer to wait for open work: it may soon commit rows that this run could still read."""
    holders = _below(aim, look)
    if not fresh or not holders:
        return 0.0
    only_statements = not any(h.trx for h in holders)
    return max(reading.options.settle_seconds - aim.pause, GLANCE if only_statements else 0.0)


def passing(
    reading: Reading, aim: Aim, look: Iterable[OpenWork], last: Position | None, value: Value
) -> frozenset[int]:
    """The connections whose statements, and nothing else, hold back new rows: those at or above `value`."""
    holders = _below(aim, look)
    if (
        last is None
        or not reading.has_news(last)
        or not at_or_behind(last, value)
        or any(h.trx for h in holders)
    ):
        return frozenset()
    return frozenset(h.thread for h in holders)


def lowered(aim: Aim, look: Iterable[OpenWork]) -> float:
    """The bound: below all open work. Cursors are truncated: a statement of 10:00:00.5 may write 10:00:00."""
    starts = (math.floor(h.start / aim.tick) * aim.tick for h in _below(aim, look))
    return min([aim.top, *starts])


def _below(aim: Aim, look: Iterable[OpenWork]) -> list[OpenWork]:
    return [h for h in look if h.start < aim.top]


def moments(reading: Reading, aim: Aim, bound: float, now: float) -> list[float]:
    """The moments, from the last bound to now, at which the zone of the cursors matters."""
    previous = reading.state.progress.bound
    return [bound, now, *([] if previous is None else [previous, previous - aim.back])]


@dataclass(frozen=True)
class Zones:
    """The time zones that cursors are written in, once the bound is known."""

    now: float  # the source's clock
    wall: clock.Wall  # around `moments`, and where the last claim looked
    others: tuple[str, ...] = ()  # of sessions that don't use the server's zone
    behind: int = 0  # seconds by which these lag the server's zone at most


def settled(
    reading: Reading,
    aim: Aim,
    look: Sequence[OpenWork],
    zones: Zones,
    high: Position | None,
    newest: Position | None,
) -> Settled:
    """What follows from a bound: how far to read, where to read again from, and what holds it back."""
    state, bound, wall = reading.state, lowered(aim, look), zones.wall
    zone = clock.zone_now(wall, state.progress.zone, zones.now, zones.behind)
    behind = max(zones.behind, state.progress.zone.behind if state.progress.zone else 0)
    back_to = clock.reread_from(wall, state.progress.bound, zones.now, aim.back)
    reach = max(clock.spread(zone), behind)
    if reading.low is not None and reach:
        earliest = shifted(str(reading.low[0]), -reach - clock.STEADY)
        back_to = min(filter(None, [back_to, earliest]))
    return Settled(
        high=high,
        newest=newest,
        bound=bound,
        wall=wall.at(bound),
        beyond=ceiling(reading, wall, bound if reading.by_day else zones.now + FUTURE_SLACK),
        zone_shift=clock.reread_from(wall, state.progress.bound, bound, aim.back),
        ahead=aim.ahead,
        back=aim.back,
        steady=state.progress.bound is not None and back_to is None,
        back_to=back_to,
        zone=zone,
        behind=behind,
        zones=zones.others,
        held=described(_below(aim, look), zones.now),
    )


# ---------------------------------------------------------------- what open transactions have written


def writers(look: Iterable[OpenWork]) -> list[OpenWork]:
    """The open transactions that have written rows."""
    return [h for h in look if h.modified]


def searched_from(reading: Reading, settled: Settled) -> Position | None:
    """The position after which uncommitted rows matter: the start of all that is read, re-reads included."""
    low, shift = reading.low, settled.zone_shift
    if shift is not None and low is not None and str(low[0]) > shift:
        return (shifted(shift, -1e-6),)
    return low


def below_uncommitted(
    reading: Reading, settled: Settled, high: Position | None, look: Iterable[OpenWork], now: float
) -> Settled:
    """The same, but only up to `high`, the last position below what open transactions have written."""
    bound, previous = settled.bound, reading.state.progress.bound
    if temporal(reading.table) and bound is not None and previous is not None:
        bound = min(bound, previous)
    return replace(settled, high=high, bound=bound, held=described(writers(look), now))


# ---------------------------------------------------------------- ids and integers


def id_patience(reading: Reading) -> float:
    """How long to wait for open work to end."""
    return max(reading.options.settle_seconds, ID_SECONDS)


def to_wait_for(look: Sequence[OpenWork]) -> list[OpenWork]:
    """Work that must end before an id is final; of a thread that has written, only its transaction counts."""
    writing = {h.thread for h in writers(look)}
    return [h for h in look if h.modified or h.thread not in writing]


def still_open(waited_for: Iterable[OpenWork], look: Sequence[OpenWork], since: float) -> list[OpenWork]:
    """Which of these, open at `since`, a later look still shows.

    A transaction that writes keeps its id. Other work gets an id once it begins to write, and a statement may
    continue as a transaction: such work has ended when its thread shows nothing that began by `since`.
    """
    transactions = {h.trx for h in look if h.trx}
    threads = {h.thread for h in look if h.start <= since}
    return [h for h in waited_for if (h.trx in transactions if h.modified else h.thread in threads)]


def held_back(
    reading: Reading, settled: Settled, open_still: Sequence[OpenWork], now: float, dense: int | None = None
) -> Settled:
    """The same while open work may still commit a smaller id: nothing beyond the last proven position.

    `dense`: the end of the ids that follow it without a gap. They are all taken, so nobody can commit one below.
    """
    high: Position | None = reading.state.position if dense is None else (dense,)
    return replace(settled, high=high, bound=None, held=described(open_still, now))


def taken_ids(reading: Reading, newest: Position | None) -> tuple[int, int] | None:
    """The ids (low, high] that may turn out to be all taken; None if the cursor alone doesn't identify a row.

    A `where` hides rows that are there, and no counter gives ids below 1. Where rows were read before and there is no
    position, all of them may be about to be replaced: a part of the table would not do.
    """
    table, position = reading.table, reading.state.position
    if position is None and reading.state.has_had_rows:
        return None
    identifies = len(table.key) == 1 and table.order == table.key and table.source.key_index is not None
    if not identifies or table.recipe.where or newest is None or not isinstance(newest[0], int):
        return None
    low = int(position[0]) if position is not None else 0
    return (low, min(int(newest[0]), low + COUNTED_IDS)) if low < int(newest[0]) else None


def end_of_dense(low: int, high: int, count: Callable[[int, int], int]) -> int:
    """The last of the ids after `low`, and up to `high`, that follow one another without a gap.

    `count`: how many there are after the first and up to the second. It counts about `high - low` rows in all.
    """
    while low < high:
        middle = (low + high + 1) // 2
        if count(low, middle) == middle - low:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True)
class Tick:
    """How far to read integers that hold a time: below the tick after the current one, in their unit."""

    now: float  # the source's clock when the run looked
    unit: clock.Unit
    pause: float

    @property
    def top(self) -> int:
        return clock.count(self.now, self.unit) + 1

    @property
    def over(self) -> float:
        """The moment at which the current tick is final."""
        return self.top / clock.UNITS[self.unit] + self.pause

    def is_fresh(self, newest: Position) -> bool:
        """Whether the newest row (future ones excluded) is too young to be final."""
        return int(newest[0]) >= clock.count(self.now - self.pause, self.unit) - 1

    def settled(self, high: Position | None, newest: Position | None, now: float) -> Settled:
        """How far to read when no open work could write below."""
        beyond = clock.count(now + FUTURE_SLACK, self.unit)
        return Settled(high, newest, bound=self.now, wall=self.top, beyond=beyond)


def unit_of(
    newest: int, now: float, last_below: Callable[[int], int | None], many_from: Callable[[int], bool]
) -> clock.Unit | None:
    """The unit of integers that count time since 1970; None if they are ids or a counter.

    Only a clock's newest value is close to now. A clock may have a few rows in the future: then the last
    value below tomorrow decides, and `many_from` says whether more than a few lie beyond.
    """
    unit = clock.unit_of(newest, now)
    if unit is not None:
        return unit
    for each in clock.UNITS:
        tomorrow = clock.count(now + clock.CLOSE, each)
        if newest < tomorrow:
            return None
        last = last_below(tomorrow)
        if last is not None and clock.unit_of(last, now) == each and not many_from(tomorrow):
            return each
    return None


def described(holders: Sequence[OpenWork], now: float) -> tuple[str, ...]:
    """The oldest work that holds rows back, in words."""
    return tuple(h.describe(now) for h in holders[:3])


def _behind(value: Value, other: Value) -> bool:
    if isinstance(value, int) and isinstance(other, int):
        return value > other
    return str(value) > str(other)
