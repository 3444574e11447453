"""Finds out how far a table can be read now, and waits for fresh rows to settle; `bound` decides.

Order matters: first the clock is read, then the newest row, then (after the settling time, if rows are fresh)
the open transactions, then what they have written so far. Only then may a slice be read. That way, everything
committed later has a cursor above the bound.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from floodmark.model import zones as clock
from floodmark.model.open_work import OpenWork
from floodmark.model.position import Position, Value
from floodmark.model.run import Wait
from floodmark.model.table import Table
from floodmark.model.times import temporal
from floodmark.plan import bound
from floodmark.plan.bound import Reading, Settled
from floodmark.plan.followed import TableNews
from floodmark.plan.overlap import begins
from floodmark.source import open_work, sql, time_zones
from floodmark.source import ranges as edges
from floodmark.source.connections import SharedLooks
from floodmark.source.session import Session

WRITER_SECONDS = 3.0
# Searching more rows than this for uncommitted ones takes longer than most transactions: wait for those
# first.
LOOKED_THROUGH = 100_000


@dataclass(frozen=True)
class Source:
    """The source, for queries about a table that is about to be read."""

    session: Session
    looks: SharedLooks  # shared with the run's other tables
    reading: Reading
    # Receives the reason for waiting, and None when it's over. Without it, nobody waits.
    waits: Callable[[Wait | None], None] | None = lambda on: None
    doubted: bool = False  # whether the table may not be the one it was, though it looks the same
    news: TableNews | None = None  # what the source's log says of it, if it follows that

    @property
    def table(self) -> Table:
        return self.reading.table

    def of(self, **reading: Any) -> Source:
        """The same, with other values of the reading."""
        return replace(self, reading=replace(self.reading, **reading))

    def now(self) -> float:
        """The source's clock."""
        return open_work.now(self.session)

    def last(self, below: Value | None = None) -> Position | None:
        """The highest position overall, or below a cursor value."""
        return edges.last(self.session, self.reading.rows, below)

    def nth(self, low: Position | None, high: Position | None, n: int) -> Position | None:
        """The n-th position in (low, high], if there are that many."""
        return edges.nth(self.session, self.reading.rows, self.table.order, low, high, n)

    def open_work(self) -> list[OpenWork]:
        """Work that may still commit a row of this table, oldest first."""
        found = self.looks.holders(self.session, self.looks.trust(self.session).sight)
        return [h for h in found if h.may_write(self.table.source.schema, self.table.source.table)]


def settle(source: Source) -> Settled:
    """How far the table can be read; waits for the settling time if rows are fresh.

    Whoever is told about the wait learns whether there will be rows to read, and can get ready meanwhile.
    """
    if source.table.recipe.unix is not None:
        return _unix(source, source.table.recipe.unix)
    return _times(source) if temporal(source.table) else _ids(source)


def _times(source: Source) -> Settled:
    """Settles cursors that are times in a zone."""
    reading = source.reading
    # Its first and its last reading show whether the zone was the same all the time.
    zoned = time_zones.ZoneClock(source.session, reading.zone)
    offsets = zoned.offsets
    aim = bound.aim(reading, zoned.now(), time.time())
    newest = last = source.last()
    if bound.nothing_new(reading, aim, newest):
        now = zoned.now()
        zones = _zones(source, offsets, bound.moments(reading, aim, aim.top, now), now)
        settled = bound.settled(reading, aim, (), zones, newest, newest)
        if begins(reading, settled) is None:
            return settled  # nothing will be read: no reason to look at open work, nor to wait for it
    wall = clock.sample(offsets, aim.top, aim.aged)
    top = bound.ceiling(reading, wall, aim.top)
    if bound.at_or_behind(newest, top):
        last = source.last(below=top)
    fresh = ask_again = bound.is_fresh(reading, aim, wall, last)
    if last is not None and fresh:
        coming = reading.has_news(last) and not bound.all_held(aim, source.open_work())
        pause = bound.pause(aim, wall, last, source.now())
        _sleep(source, pause.seconds, Wait("settling", coming=coming))
        ask_again = pause.for_all
    look, seen = source.open_work(), frozenset[int]()
    if more := bound.patience(reading, aim, fresh, look):
        seen = frozenset(h.thread for h in look)
        _sleep(source, more, Wait("open_work", look[0].describe(source.now()) if look else ""))
        look = source.open_work()
    for glance in range(bound.GLANCES + 1):
        moment = bound.lowered(aim, look)
        value = bound.ceiling(reading, clock.sample(offsets, moment), moment)
        passing = bound.passing(reading, aim, look, last, value)
        if not passing or passing & seen or glance == bound.GLANCES:
            break
        seen = passing
        _sleep(source, bound.GLANCE, Wait("open_work", look[0].describe(source.now())))
        look = source.open_work()
    high = source.last(below=value) if ask_again or bound.at_or_behind(last, value) else last
    now = zoned.now()
    zones = _zones(source, offsets, bound.moments(reading, aim, moment, now), now)
    settled = bound.settled(reading, aim, look, zones, high, newest)
    return _below_uncommitted(source, settled, look, now)


def _zones(source: Source, offsets: clock.Offsets, moments: Sequence[float], now: float) -> bound.Zones:
    """The zone of the cursors at these moments, and the zones of sessions that use others."""
    reading = source.reading
    known = reading.state.progress.zone
    wall = clock.sample(offsets, *moments, known.at if known else None)
    others = source.looks.zones(source.session) if reading.zone == "server" else ()
    ours = {clock.grid(m): wall.offsets[clock.grid(m)] for m in moments}
    return bound.Zones(now, wall, others, time_zones.behind(source.session, others, ours))


def _below_uncommitted(source: Source, settled: Settled, look: Sequence[OpenWork], now: float) -> Settled:
    """The same, but below the lowest cursor up to `high` that an open transaction has written.

    Usually such a cursor is above the bound anyway. The exception: a statement waited, its NOW() already
    fixed, before InnoDB began its transaction. While that stays open, it shows a later start than its rows
    have. A prepared transaction shows the server's last start instead of its own.
    """
    session, table, high = source.session, source.reading.rows, settled.high
    writing = bound.writers(look)
    if high is None or not writing:
        return settled
    low = bound.searched_from(source.reading, settled)
    inside = sql.between(table, table.order, low, high)
    size = edges.estimate(session, table, table.source.cursor_index, inside)
    if size > LOOKED_THROUGH and not _wait_for(source, writing, source.now(), WRITER_SECONDS):
        return settled  # their rows are committed and will be read
    written = edges.uncommitted(session, table, low, high)
    if written is None:
        return settled
    return bound.below_uncommitted(source.reading, settled, source.last(below=written), look, now)


def _ids(source: Source) -> Settled:
    newest = source.last()
    if newest is None or newest == source.reading.state.position:
        return Settled(newest, newest)
    return _when_ended(source, Settled(newest, newest, bound=source.now()))


def _unix(source: Source, unit: clock.Unit) -> Settled:
    """Settles integers from an application's clock: up to the current tick, once work open then has ended.

    Waiting for open work is what a counter needs, too: taking a counter for a clock loses nothing.
    """
    reading = source.reading
    tick = bound.Tick(source.now(), unit, reading.options.settle_seconds)
    newest = high = source.last()
    if newest is not None and int(newest[0]) >= tick.top:
        high = source.last(below=tick.top)
    if high is not None and tick.is_fresh(high):
        _sleep(source, tick.over - source.now(), Wait("settling", coming=reading.has_news(high)))
        high = source.last(below=tick.top)
    settled = tick.settled(high, newest, source.now())
    if high is None or high == reading.state.position:
        return settled
    return _when_ended(source, settled)


def _when_ended(source: Source, settled: Settled) -> Settled:
    """The same once everything open now has ended; until then, only up to the last final position.

    An id has no clock: any work that is open now may still commit a row with a smaller one.
    """
    now = source.now()
    waited_for = bound.to_wait_for(source.open_work())
    open_still = _wait_for(source, waited_for, now, bound.id_patience(source.reading))
    if open_still:
        return bound.held_back(source.reading, settled, open_still, now, _dense(source, settled.newest))
    # Work that began since writes larger ids, unless the application picks them.
    return _below_uncommitted(source, settled, source.open_work(), now)


def _dense(source: Source, newest: Position | None) -> int | None:
    """The end of the ids that follow the position without a gap; None if there are none."""
    ids, table = bound.taken_ids(source.reading, newest), source.table
    if ids is None:
        return None

    def count(low: int, high: int) -> int:
        inside = sql.between(table, table.key, (low,), (high,))
        return edges.count(source.session, table, inside, table.source.key_index)

    low, high = ids
    if source.reading.low is None and edges.uncommitted(source.session, table, None, (0,)) is not None:
        return None  # an id below 1, which somebody has picked
    end = bound.end_of_dense(low, high, count)
    return end if end > low else None


def _wait_for(source: Source, holders: list[OpenWork], since: float, seconds: float) -> list[OpenWork]:
    """Waits for this work, open at `since`, to end; returns what is still open after `seconds`."""
    if source.waits is None:
        return holders
    deadline = time.monotonic() + seconds
    while holders and time.monotonic() < deadline:
        source.waits(Wait("open_work", holders[0].describe(since)))
        # InnoDB refreshes its list of transactions only after 0.1 s without a query, from anyone.
        time.sleep(random.uniform(0.15, 0.3))
        holders = bound.still_open(holders, source.open_work(), since)
    source.waits(None)
    return holders


def _sleep(source: Source, seconds: float, on: Wait) -> None:
    if source.waits is not None:
        source.waits(on)
        time.sleep(max(0.0, seconds))
        source.waits(None)


def clocked(session: Session, table: Table) -> Table:
    """The table with its cursor's unit, if that is an integer that tells the time; once found, it stays.

    It can't be determined for a table that nothing is written to, and needn't be: the next write reveals it.
    """
    if table.recipe.unix or table.cursor is None or not sql.integer(table.column(table.cursor)):
        return table
    newest = edges.last(session, table, None)
    if newest is None:
        return table

    def last_below(value: int) -> int | None:
        found = edges.last(session, table, value)
        return int(found[0]) if found else None

    def many_from(value: int) -> bool:
        few = bound.FEW_IN_THE_FUTURE
        return edges.nth(session, table, table.order, (value,), None, few + 1) is not None

    unit = bound.unit_of(int(newest[0]), open_work.now(session), last_below, many_from)
    return replace(table, recipe=replace(table.recipe, unix=unit))
