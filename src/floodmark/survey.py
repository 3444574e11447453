"""Asks the source what a plan needs, and decides by `plan`: the frozen window, its slices, what is read again.

Order matters here: the clock is read first, then the newest row, then (after the settling time, where rows are
that fresh) the open transactions, and only then may a slice be read. So whatever commits later than the look at
the open transactions carries a cursor above the bound.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from secrets import token_hex

from floodmark import clock, plan
from floodmark.config import TableOptions
from floodmark.errors import ConfigError, DataError
from floodmark.model import Position, Slice, Table, Value, Window
from floodmark.mysql import bounds, edges, sql
from floodmark.mysql.connect import Session
from floodmark.plan import Plan, Request
from floodmark.state import State

# Counting exactly what lies before the start is for tables where that is quick.
COUNT_EXACTLY_BELOW = 2_000_000


@dataclass(frozen=True)
class Settled:
    """How far the table can be read now."""

    high: Position | None  # the last position that is final
    newest: Position | None  # the last position of all, settled or not
    bound: float | None = None
    beyond: Value | None = None  # cursors from here on lie in the future
    zone_shift: str | None = None  # read again from here: the clocks went back
    held: tuple[str, ...] = ()


def survey(
    session: Session,
    table: Table,
    state: State,
    options: TableOptions,
    request: Request,
) -> Plan:
    """The plan of a run for one table; reads no rows and changes nothing."""
    if table.mode == "full":
        return _snapshot(session, table, request)
    trust = bounds.trust(session)
    notes = list(table.notes)
    if request.since is not None:
        return _since(session, table, state, request, trust, options)

    settled = _settle(session, table, state, options, trust)
    start = plan.start_position(table, options.start)
    first_time = state.position is None
    low = start if first_time else state.position
    if not first_time:
        _check_not_set_back(session, table, state, settled)

    window, resumed, done = _window(session, table, state, request, low, settled)
    pieces = plan.slices(window, done) if window else ()
    load_as = plan.load_as(table)
    if window is not None and not resumed and state.window is not None and state.done:
        load_as = "merge" if table.key else load_as  # slices behind the prefix are read a second time
    again, overlap = _again(session, table, state, options, low, start, settled, trust, notes)
    before = _before_start(session, table, start) if first_time else None
    if before:
        notes.append(f"{before:,} rows at or before the start {start[0] if start else ''} are left out")
    if settled.held and settled.high != settled.newest:
        notes.append("newer rows wait for the " + "; ".join(settled.held))
    return Plan(
        table=table,
        strategy=plan.strategy_of(request, len(pieces)),
        window=window,
        resumed=resumed,
        slices=pieces,
        again=again,
        overlap=overlap,
        load_as=load_as,
        in_order=plan.in_order(request, table),
        notes=tuple(notes),
        held=settled.held,
        before_start=before,
    )


def _settle(
    session: Session, table: Table, state: State, options: TableOptions, trust: bounds.Trust
) -> Settled:
    if not plan.temporal(table):
        return _settle_ids(session, table, state, options, trust)
    assert table.cursor is not None
    column = table.column(table.cursor)
    zone = "UTC" if column.data_type == "timestamp" else options.cursor_timezone
    offsets = bounds.zone_offsets(session, zone)
    now = bounds.now(session)
    tick = 10 ** -(column.fraction or 0)
    top = (int(now / tick) + 1) * tick
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
    holders = [h for h in bounds.holders(session, trust.process) if h.start < top]
    bound = min([top, *(h.start for h in holders)])
    value = ceiling(bound)
    if waited or (settled_newest is not None and str(settled_newest[0]) >= str(value)):
        high = edges.last(session, table, value)
    else:
        high = settled_newest
    seen = bounds.now(session)
    wall = clock.sample(offsets, previous, bound)
    return Settled(
        high=high,
        newest=newest,
        bound=bound,
        beyond=value if column.data_type == "date" else ceiling(seen + bounds.FUTURE_SLACK),
        zone_shift=clock.reread_from(wall, previous, bound),
        held=tuple(h.describe(seen) for h in holders[:3]),
    )


def _settle_ids(
    session: Session, table: Table, state: State, options: TableOptions, trust: bounds.Trust
) -> Settled:
    newest = edges.last(session, table, None)
    if newest is None or newest == state.position:
        return Settled(newest, newest)
    seen = bounds.now(session)
    open_still = bounds.wait_for_ids(session, trust.process, max(options.settle_seconds, 1.0))
    if open_still:
        held = tuple(h.describe(seen) for h in open_still[:3])
        return Settled(state.position, newest, held=held)
    return Settled(newest, newest, bound=seen)


def _check_not_set_back(session: Session, table: Table, state: State, settled: Settled) -> None:
    """A source whose row at the watermark is gone and whose newest rows are older was restored from a backup."""
    low = state.position
    if low is None or state.manual or len(low) < len(table.order):
        return
    if edges.nth(session, table, table.order, low, None, 1) is not None:
        return
    if edges.exists(session, table, table.order, low):
        return
    key = low[len(low) - len(table.key) :] if table.cursor not in table.key else None
    if key is None and table.order == table.key:
        key = low
    if key is not None and len(table.key) == 1 and table.column(table.key[0]).auto_increment:
        # A counter beyond the lost row, and no older version of it: it was deleted, nothing was set back.
        counter = edges.next_auto_increment(session, table)
        if counter and counter > int(key[0]) and not edges.exists(session, table, table.key, key):
            return
    newest = " ".join(map(str, settled.newest)) if settled.newest else "none"
    raise DataError(
        f"the source has been set back: the row at the watermark {low} is gone and its newest row is older ({newest})",
        hint=f"after a restore from a backup: floodmark watermark set -t {table.name} with the time of the "
        "backup; if the newest rows were only deleted: the time of the newest row",
        table=table.name,
    )


def _window(
    session: Session,
    table: Table,
    state: State,
    request: Request,
    low: Position | None,
    settled: Settled,
) -> tuple[Window | None, bool, Sequence[int]]:
    """The window of this run: the one left open, or a new one up to the settled bound."""
    if state.window is not None and request.most is None and state.window.by != "snapshot":
        return state.window, True, state.done
    high = settled.high
    if high is None or edges.nth(session, table, table.order, low, high, 1) is None:
        return None, False, ()
    if request.most is not None:
        high = _cut(session, table, low, high, request.most)
    rows, share = _size(session, table, low, high)
    by = plan.cut_by(request, table, share, rows)
    if by == "key":
        found = edges.split_key(session, table, max(1, -(-rows // request.slice_rows)), request.slice_rows)
    else:
        step = min(request.chunk or request.slice_rows, request.slice_rows)
        found = edges.walk(session, table, table.order, low, high, step) if table.key else ()
        rows = min(rows, (len(found) + 1) * step) if found else min(rows, step)
    if request.most is not None:
        rows = min(rows, request.most)
    window = Window(token_hex(8), low, high, by, found, settled.bound, rows)
    return window, False, ()


def _cut(session: Session, table: Table, low: Position | None, high: Position, most: int) -> Position:
    """The end of the first `most` rows in position order."""
    end = edges.nth(session, table, table.order, low, high, most)
    if end is None:
        return high
    if table.key or edges.nth(session, table, table.order, end, high, 1) is None:
        return end
    # Without a key a timestamp can't be cut in two: stop before the one that would be.
    beyond = edges.nth(session, table, table.order, low, high, most + 1)
    if beyond != end:
        return end
    assert table.cursor is not None
    whole = edges.last(session, table, end[0])
    if whole is None or (low is not None and str(whole[0]) <= str(low[0])):
        raise ConfigError(
            f"--limit {most}: more rows than that share the cursor {end[0]}, and without a key they can't be parted",
            hint="use a larger --limit",
            table=table.name,
        )
    return whole


def _size(session: Session, table: Table, low: Position | None, high: Position) -> tuple[int, float]:
    """About how many rows the window has, and which share of the table that is."""
    total = edges.table_rows(session, table)
    if table.cursor_index is None or low is None:
        return total, 1.0
    conditions = sql.between(table, table.order, low, high)
    everything = [f"{sql.quote(table.order[0])} IS NOT NULL"]
    inside = edges.estimate(session, table, table.cursor_index, conditions)
    whole = max(inside, edges.estimate(session, table, table.cursor_index, everything), 1)
    if inside <= COUNT_EXACTLY_BELOW:
        # Dives are off by a factor of two, and an index range of this size is counted in a blink.
        inside = edges.count(session, table, conditions, table.cursor_index)
    elif inside >= 0.45 * total:
        inside = total  # InnoDB never estimates a range at more than half of the table
    return inside, min(1.0, inside / whole)


def _again(
    session: Session,
    table: Table,
    state: State,
    options: TableOptions,
    low: Position | None,
    start: Position | None,
    settled: Settled,
    trust: bounds.Trust,
    notes: list[str],
) -> tuple[tuple[Slice, ...], str | None]:
    """Rows that are read again: the overlap before the watermark, and rows without a place in the order."""
    if not table.key or not table.cursor:
        return (), None
    found: list[Slice] = []
    seconds, why = overlap_seconds(table, options, trust)
    fingerprint = None
    if state.position is not None and not state.manual:
        source_low = plan.overlap_from(table, low, start, seconds, settled.zone_shift)
        if source_low is not None and low is not None:
            seen = edges.overlap_fingerprint(session, table, source_low, low)
            if seen != state.overlap:
                fingerprint = seen
                rows = int(seen.split(":")[-2])
                found.append(Slice("overlap", 0, "cursor", source_low, low, rows=rows))
    if why and seconds > 0:
        notes.append(
            f"the last {seconds:g} s before the watermark are read again by every sync: {'; '.join(why)}"
        )
    column = table.column(table.cursor)
    future = (
        settled.beyond
        if settled.beyond is not None and settled.newest and str(settled.newest[0]) >= str(settled.beyond)
        else None
    )
    if column.nullable or future is not None:
        piece = Slice("loose", 1, beyond=future)
        rows = edges.count(session, table, [sql.loose(table, future)])
        if rows:
            found.append(replace(piece, rows=rows))
            notes.append(
                f"{rows:,} rows with a NULL cursor or one in the future are read again by every sync"
            )
    return tuple(found), fingerprint


def overlap_seconds(
    table: Table, options: TableOptions, trust: bounds.Trust
) -> tuple[float, tuple[str, ...]]:
    """How far before the watermark rows are read again, and why."""
    if options.overlap_seconds is not None:
        return options.overlap_seconds, ("overlap_seconds is set",)
    reasons = list(trust.reasons)
    if plan.temporal(table) and table.cursor is not None:
        column = table.column(table.cursor)
        if "on update current_timestamp" not in column.extra.lower():
            reasons.append(f"{column.name} is written by the application, not by ON UPDATE CURRENT_TIMESTAMP")
    return (plan.OVERLAP_SECONDS if reasons else 0.0), tuple(reasons)


def _before_start(session: Session, table: Table, start: Position | None) -> int | None:
    if start is None:
        return None
    conditions = [sql.upto(table, table.order, start)]
    if edges.estimate(session, table, table.cursor_index, conditions) > COUNT_EXACTLY_BELOW:
        return edges.estimate(session, table, table.cursor_index, conditions)
    return edges.count(session, table, conditions, table.cursor_index)


def _since(
    session: Session,
    table: Table,
    state: State,
    request: Request,
    trust: bounds.Trust,
    options: TableOptions,
) -> Plan:
    """A re-read of a stretch that the user names; the watermark does not move."""
    if not plan.temporal(table):
        raise ConfigError("--since needs a cursor that tells the time", table=table.name)
    if not table.key and not request.force:
        raise ConfigError(
            "--since would load rows twice: the table has no key to merge by", hint="--force does it anyway",
            table=table.name,
        )  # fmt: skip
    low: Position = (plan.cursor_value(table, request.since or ""),)
    settled = _settle(session, table, state, options, trust)
    high: Position | None = (plan.cursor_value(table, request.until),) if request.until else None
    if high is None:
        high = state.position
    if high is None or settled.high is None:
        return Plan(
            table, plan.strategy_of(request, 0), notes=("nothing to read again: there is no watermark yet",)
        )
    if str(high[0]) > str(settled.high[0]):
        high = settled.high
    first = edges.nth(session, table, table.order, low, high, 1)
    if first is None:
        return Plan(table, plan.strategy_of(request, 0))
    if request.most is not None:
        high = _cut(session, table, low, high, request.most)
    step = min(request.chunk or request.slice_rows, request.slice_rows)
    found = edges.walk(session, table, table.order, low, high, step) if table.key else ()
    window = Window("since", low, high, "cursor", found, None, step * (len(found) + 1))
    pieces = tuple(replace(s, kind="since") for s in plan.slices(window))
    return Plan(table, plan.strategy_of(request, len(pieces)), again=pieces, load_as="merge")


def _snapshot(session: Session, table: Table, request: Request) -> Plan:
    if request.most is not None:
        raise ConfigError(
            "--limit and --max-chunks don't go with mode full: a snapshot is whole or nothing",
            table=table.name,
        )
    if request.since is not None:
        raise ConfigError("--since needs a cursor; this table is read whole (mode full)", table=table.name)
    rows = edges.table_rows(session, table)
    window = Window(token_hex(8), None, None, "snapshot", (), bounds.now(session), rows)
    pieces = plan.slices(window)
    return Plan(
        table,
        plan.strategy_of(request, 1),
        window,
        False,
        pieces,
        load_as="replace",
        notes=tuple(table.notes),
    )
