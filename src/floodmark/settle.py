"""How far a table can be read now, so that nothing is committed there later.

Order matters here: the clock is read first, then the newest row, then (after the settling time, where rows are
that fresh) the open transactions, then what they have written already, and only then may a slice be read. So
whatever commits later than that carries a cursor above the bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from floodmark import clock, plan
from floodmark.config import TableOptions
from floodmark.model import Position, Table, Value, Zone
from floodmark.mysql import bounds, edges, sql
from floodmark.mysql.connect import Session
from floodmark.mysql.looks import Looks
from floodmark.mysql.open_work import Holder
from floodmark.state import State

# Ids wait this long at least: what began within the call's second counts as open for up to two.
ID_SECONDS = 3.0
WRITER_SECONDS = 3.0
# To look through more rows than this for uncommitted ones takes longer than most transactions: those are waited for first.
LOOKED_THROUGH = 100_000
AGING = 0.05
# A column with more rows than this beyond tomorrow is a counter, however close to the clock some of it is.
FEW_IN_THE_FUTURE = 10
# Where the source's own clock writes the cursor, and all open work can be seen and there is none, rows are final as soon
# as their moment is over. What is left covers a clock that goes back by less than is noticed.
SURE_SECONDS = clock.STEADY


@dataclass(frozen=True)
class Settled:
    """How far the table can be read now."""

    high: Position | None  # the last position that is final
    newest: Position | None  # the last position of all, settled or not
    bound: float | None = None
    wall: Value | None = None  # the cursor that is written at the bound
    beyond: Value | None = None  # cursors from here on lie in the future
    zone_shift: str | None = None  # read again from here: the clocks went back
    ahead: float | None = None  # the source's clock minus ours
    back: float = 0.0  # by how many seconds it was set back since the last window
    steady: bool = False  # no clock went back since the last window, not even after the bound
    back_to: str | None = None  # else what may have been written since has a cursor from here on
    zone: Zone | None = None  # of the cursors, where they have one
    behind: int = 0  # by how many seconds sessions in zones of their own write earlier cursors
    zones: tuple[str, ...] = ()  # of such sessions, earlier or not
    held: tuple[str, ...] = ()  # who holds the bound back


def settle(
    session: Session,
    table: Table,
    state: State,
    low: Position | None,
    options: TableOptions,
    looks: Looks,
    expected: Callable[[], None] = lambda: None,
) -> Settled:
    """How far the table can be read behind `low`; waits for the settling time where rows are fresh.

    Before it waits, `expected` is called when there will be rows to read, so that others can get ready meanwhile.
    """
    if table.unix is not None:
        return _unix(session, table, state, low, options, looks, expected, table.unix)
    if not plan.temporal(table):
        return _ids(session, table, state, low, options, looks)
    assert table.cursor is not None
    trust = looks.trust(session)
    look_now = partial(_open_work, session, table, looks)
    column = table.column(table.cursor)
    pause = options.settle_seconds
    if trust.complete and column.maintained:
        pause = min(pause, SURE_SECONDS)
    zone = "UTC" if column.data_type == "timestamp" else options.cursor_timezone
    offsets = bounds.zone_offsets(session, zone)
    now = bounds.now(session)
    ahead = now - time.time()
    back = clock.set_back(state.ahead, ahead)
    tick = 10 ** -(column.fraction or 0)
    top = (math.floor(now / tick) + 1) * tick
    previous = state.bound

    def ceiling(bound: float) -> Value:
        value = clock.ceiling(clock.sample(offsets, bound), bound)
        return value[:10] if column.data_type == "date" else value

    newest = edges.last(session, table, None)
    settled_newest = newest
    if newest is not None and str(newest[0]) >= str(ceiling(top)):
        settled_newest = edges.last(session, table, ceiling(top))
    age = pause + tick  # of a row whose second is over, and settled
    waited = fresh = (
        settled_newest is not None
        and column.data_type != "date"
        and str(settled_newest[0]) >= str(ceiling(now - age))
    )
    if fresh and settled_newest is not None:
        news = low is None or str(settled_newest[0]) > str(low[0])
        # An old transaction may hold back all of them.
        if news and not any(h.start < now - age for h in look_now()):
            expected()
        asked = bounds.now(session)
        for_all = max(0.0, top + pause - asked)
        for_newest = _until_aged(clock.sample(offsets, asked), str(settled_newest[0]), asked - age, for_all)
        waited = for_newest is None  # else what was the newest row is read up to, and later ones next time
        time.sleep(for_all if for_newest is None else for_newest)
    look = look_now()
    holders = [h for h in look if h.start < top]
    if holders and fresh and pause < options.settle_seconds:
        # They may be about to end: rows that are committed by then belong to this run.
        time.sleep(options.settle_seconds - pause)
        look = look_now()
        holders = [h for h in look if h.start < top]
    # A cursor is cut to its digits: a statement of 10:00:00.5 writes 10:00:00.
    bound = min([top, *(math.floor(h.start / tick) * tick for h in holders)])
    value = ceiling(bound)
    if waited or (settled_newest is not None and str(settled_newest[0]) >= str(value)):
        high = edges.last(session, table, value)
    else:
        high = settled_newest
    seen = bounds.now(session)
    moments = (previous, bound, seen, None if previous is None else previous - back)
    wall = clock.sample(offsets, *moments, state.zone.at if state.zone else None)
    zones = looks.zones(session) if zone == "server" else ()
    ours = {clock.grid(m): wall.offsets[clock.grid(m)] for m in moments if m is not None}
    behind = bounds.behind(session, zones, ours)
    zone_now = clock.zone_now(wall, state.zone, seen, behind)
    behind = max(behind, state.zone.behind if state.zone else 0)
    back_to = clock.reread_from(wall, previous, seen, back)
    if low is not None and (reach := max(clock.spread(zone_now), behind)):
        back_to = min(filter(None, [back_to, clock.shifted(str(low[0]), -reach - clock.STEADY)]))
    settled = Settled(
        high=high,
        newest=newest,
        bound=bound,
        wall=wall.at(bound),
        beyond=value if column.data_type == "date" else ceiling(seen + bounds.FUTURE_SLACK),
        zone_shift=clock.reread_from(wall, previous, bound, back),
        ahead=ahead,
        back=back,
        steady=previous is not None and back_to is None,
        back_to=back_to,
        zone=zone_now,
        behind=behind,
        zones=zones,
        held=_described(holders, seen),
    )
    written = _uncommitted(session, table, low, settled, look, look_now)
    if written is None:
        return settled
    return replace(
        settled,
        high=edges.last(session, table, written),
        bound=bound if previous is None else min(bound, previous),
        held=_described([h for h in look if h.modified], seen),
    )


def _open_work(session: Session, table: Table, looks: Looks) -> list[Holder]:
    """What may still commit a row of this table, oldest first."""
    found = looks.holders(session, looks.trust(session).sight)
    return [h for h in found if h.may_write(table.schema, table.table)]


def _until_aged(wall: clock.Wall, newest: str, since: float, most: float) -> float | None:
    """The seconds until the newest row has settled, where that is sooner than `most`."""
    steps = (step * AGING for step in range(int(most / AGING) + 1))
    return next((s + AGING for s in steps if newest < clock.ceiling(wall, since + s)), None)


def _uncommitted(
    session: Session,
    table: Table,
    low: Position | None,
    settled: Settled,
    look: Sequence[Holder],
    look_now: Callable[[], list[Holder]],
) -> Value | None:
    """The lowest cursor up to `high` that an open transaction has written, or None.

    Mostly such a cursor lies above the bound already. Not where a statement waited, with its NOW() fixed, before
    InnoDB began its transaction, which then stays open: it shows a later start than its rows. A prepared one shows
    the server's last start.
    """
    high = settled.high
    writing = [h for h in look if h.modified]
    if high is None or not writing:
        return None
    if settled.zone_shift is not None and low is not None and str(low[0]) > settled.zone_shift:
        low = (clock.shifted(settled.zone_shift, -1e-6),)
    size = edges.estimate(session, table, table.cursor_index, sql.between(table, table.order, low, high))
    if size > LOOKED_THROUGH and not bounds.wait_for(writing, look_now, bounds.now(session), WRITER_SECONDS):
        return None  # what they wrote is committed, and will be read
    return edges.uncommitted(session, table, low, high)


def _ids(
    session: Session,
    table: Table,
    state: State,
    low: Position | None,
    options: TableOptions,
    looks: Looks,
) -> Settled:
    newest = edges.last(session, table, None)
    if newest is None or newest == state.position:
        return Settled(newest, newest)
    settled = Settled(newest, newest, bound=bounds.now(session))
    return _ended(session, table, state, low, options, looks, settled)


def _ended(
    session: Session,
    table: Table,
    state: State,
    low: Position | None,
    options: TableOptions,
    looks: Looks,
    settled: Settled,
) -> Settled:
    """The same when everything that is open now has ended; until then the last position that was final."""
    seen = bounds.now(session)
    look_now = partial(_open_work, session, table, looks)
    open_still = bounds.wait_for_ids(session, look_now, max(options.settle_seconds, ID_SECONDS))
    if open_still:
        return replace(settled, high=state.position, bound=None, held=_described(open_still, seen))
    # Those that have come since write larger ids, unless the application chooses them.
    look = look_now()
    written = _uncommitted(session, table, low, settled, look, look_now)
    if written is None:
        return settled
    held = _described([h for h in look if h.modified], seen)
    return replace(settled, high=edges.last(session, table, written), held=held)


def clocked(session: Session, table: Table) -> Table:
    """The table with what its cursor counts, where that is an integer which tells the time; once found, it stays.

    Counters are told from clocks by the newest value: only a clock's is close to now. A few rows of a clock may lie in
    the future. Where nothing is written any more it can't be told, and need not: it can when something is.
    """
    if table.unix or table.cursor is None or not sql.integer(table.column(table.cursor)):
        return table
    newest = edges.last(session, table, None)
    if newest is None:
        return table
    now = bounds.now(session)
    unit = clock.unit_of(int(newest[0]), now)
    for each in clock.UNITS:
        later = clock.count(now + clock.CLOSE, each)
        if unit is not None or int(newest[0]) < later:
            break
        found = edges.last(session, table, later)
        if found is None or clock.unit_of(int(found[0]), now) != each:
            continue
        if edges.nth(session, table, table.order, (later,), None, FEW_IN_THE_FUTURE + 1) is None:
            unit = each
    return replace(table, unix=unit)


def _unix(
    session: Session,
    table: Table,
    state: State,
    low: Position | None,
    options: TableOptions,
    looks: Looks,
    expected: Callable[[], None],
    unit: clock.Unit,
) -> Settled:
    """Integers that an application's clock writes: up to the present tick, when all that was open after it has ended.

    That the open work has ended is what a counter needs, too: a counter that is taken for a clock loses nothing.
    """
    now = bounds.now(session)
    top = clock.count(now, unit) + 1
    newest = high = edges.last(session, table, None)
    if newest is not None and int(newest[0]) >= top:
        high = edges.last(session, table, top)
    if high is not None and int(high[0]) >= clock.count(now - options.settle_seconds, unit) - 1:
        if low is None or int(high[0]) > int(low[0]):
            expected()
        over = top / clock.UNITS[unit] + options.settle_seconds
        time.sleep(max(0.0, over - bounds.now(session)))
        high = edges.last(session, table, top)
    seen = bounds.now(session)
    beyond = clock.count(seen + bounds.FUTURE_SLACK, unit)
    settled = Settled(high, newest, bound=now, wall=top, beyond=beyond)
    if high is None or high == state.position:
        return settled
    return _ended(session, table, state, low, options, looks, settled)


def _described(holders: Sequence[Holder], now: float) -> tuple[str, ...]:
    return tuple(h.describe(now) for h in holders[:3])
