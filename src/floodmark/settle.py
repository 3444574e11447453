"""How far a table can be read now, so that nothing is committed there later.

Order matters here: the clock is read first, then the newest row, then (after the settling time, where rows are
that fresh) the open transactions, then what they have written already, and only then may a slice be read. So
whatever commits later than that carries a cursor above the bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from floodmark import clock, plan
from floodmark.config import TableOptions
from floodmark.model import Position, Table, Value
from floodmark.mysql import bounds, edges, sql
from floodmark.mysql.connect import Session
from floodmark.state import State

# Ids wait this long at least: what began within the call's second counts as open for up to two.
ID_SECONDS = 3.0
# In windows of more rows than this, uncommitted rows are looked for in the last day only: no statement waits
# longer for a lock (lock_wait_timeout) before it is given up.
LOOK_EVERYWHERE_BELOW = 100_000
LONGEST_WAIT = 86400.0


@dataclass(frozen=True)
class Settled:
    """How far the table can be read now."""

    high: Position | None  # the last position that is final
    newest: Position | None  # the last position of all, settled or not
    bound: float | None = None
    wall: Value | None = None  # the cursor that is written at the bound
    beyond: Value | None = None  # cursors from here on lie in the future
    zone_shift: str | None = None  # read again from here: the clocks went back
    held: tuple[str, ...] = ()  # who holds the bound back


def settle(
    session: Session,
    table: Table,
    state: State,
    low: Position | None,
    options: TableOptions,
    trust: bounds.Trust,
) -> Settled:
    """How far the table can be read behind `low`; waits for the settling time where rows are fresh."""
    if not plan.temporal(table):
        return _ids(session, table, state, low, options, trust)
    assert table.cursor is not None
    column = table.column(table.cursor)
    zone = "UTC" if column.data_type == "timestamp" else options.cursor_timezone
    offsets = bounds.zone_offsets(session, zone)
    now = bounds.now(session)
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
    fresh = str(ceiling(now - options.settle_seconds - tick))
    waited = settled_newest is not None and column.data_type != "date" and str(settled_newest[0]) >= fresh
    if waited:
        time.sleep(max(0.0, top + options.settle_seconds - bounds.now(session)))
    look = bounds.holders(session, trust.process)
    holders = [h for h in look if h.start < top]
    # A cursor is cut to its digits: a statement of 10:00:00.5 writes 10:00:00.
    bound = min([top, *(math.floor(h.start / tick) * tick for h in holders)])
    value = ceiling(bound)
    if waited or (settled_newest is not None and str(settled_newest[0]) >= str(value)):
        high = edges.last(session, table, value)
    else:
        high = settled_newest
    seen = bounds.now(session)
    wall = clock.sample(offsets, previous, bound)
    settled = Settled(
        high=high,
        newest=newest,
        bound=bound,
        wall=wall.at(bound),
        beyond=value if column.data_type == "date" else ceiling(seen + bounds.FUTURE_SLACK),
        zone_shift=clock.reread_from(wall, previous, bound),
        held=_described(holders, seen),
    )
    written = _uncommitted(session, table, low, settled, look)
    if written is None:
        return settled
    return replace(
        settled,
        high=edges.last(session, table, written),
        bound=bound if previous is None else min(bound, previous),
        held=_described([h for h in look if h.modified], seen),
    )


def _uncommitted(
    session: Session, table: Table, low: Position | None, settled: Settled, look: Sequence[bounds.Holder]
) -> Value | None:
    """The lowest cursor up to `high` that an open transaction has written, or None.

    Mostly such a cursor lies above the bound already. Not where a statement waited, with its NOW() fixed, before
    InnoDB began its transaction, which then stays open: it shows a later start than its rows.
    """
    high = settled.high
    if high is None or not any(h.modified for h in look):
        return None
    if settled.zone_shift is not None and low is not None and str(low[0]) > settled.zone_shift:
        low = (clock.shifted(settled.zone_shift, -1e-6),)
    if settled.wall is not None:
        size = edges.estimate(session, table, table.cursor_index, sql.between(table, table.order, low, high))
        recent = clock.shifted(str(settled.wall), -LONGEST_WAIT)
        if size > LOOK_EVERYWHERE_BELOW and (low is None or str(low[0]) < recent):
            low = (recent,)
    return edges.uncommitted(session, table, low, high)


def _ids(
    session: Session,
    table: Table,
    state: State,
    low: Position | None,
    options: TableOptions,
    trust: bounds.Trust,
) -> Settled:
    newest = edges.last(session, table, None)
    if newest is None or newest == state.position:
        return Settled(newest, newest)
    seen = bounds.now(session)
    open_still = bounds.wait_for_ids(session, trust.process, max(options.settle_seconds, ID_SECONDS))
    if open_still:
        return Settled(state.position, newest, held=_described(open_still, seen))
    settled = Settled(newest, newest, bound=seen)
    # Those that have come since write larger ids, unless the application chooses them.
    look = bounds.holders(session, trust.process)
    written = _uncommitted(session, table, low, settled, look)
    if written is None:
        return settled
    held = _described([h for h in look if h.modified], seen)
    return replace(settled, high=edges.last(session, table, written), held=held)


def _described(holders: Sequence[bounds.Holder], now: float) -> tuple[str, ...]:
    return tuple(h.describe(now) for h in holders[:3])
