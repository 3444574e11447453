"""Asks the source what a plan needs, and decides by `plan`: the frozen window, its slices, what is read again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from secrets import token_hex

from floodmark import clock, plan
from floodmark.config import TableOptions
from floodmark.errors import ConfigError, DataError
from floodmark.model import Position, Slice, Table, Window
from floodmark.mysql import bounds, edges, sql
from floodmark.mysql.connect import Session
from floodmark.mysql.failures import as_discovered
from floodmark.mysql.looks import Looks
from floodmark.origin import check_origin
from floodmark.overlap import begins, read_again
from floodmark.plan import Plan, Request
from floodmark.reread import begins_whole, carrier, follow, follows_a_copy, in_place
from floodmark.settle import Settled, clocked, settle
from floodmark.state import Log, State, begun_anew
from floodmark.system import Start

# Counting exactly what lies before the start is for tables where that is quick.
COUNT_EXACTLY_BELOW = 2_000_000


@as_discovered()
def survey(
    session: Session,
    table: Table,
    state: State,
    options: TableOptions,
    request: Request,
    log: Log,
    start: Start | None = None,
    expected: Callable[[], None] = lambda: None,
    looks: Looks | None = None,
) -> Plan:
    """The plan of a run for one table; reads no rows and changes nothing.

    `start` is where a table without a position begins, when that is not `options.start`. `expected` is called where
    fresh rows have to be waited for, and there will be some to read. `looks` are shared with the run's other tables.
    """
    looks = looks or Looks()
    state = begun_anew(state, table)
    whole = begins_whole(state, table, request)
    columns = follow(session, table, state, options, request, log)
    table = columns.table
    if table.mode == "full":
        made = _snapshot(session, table, request)
        return replace(made, notes=(*made.notes, *columns.notes), recipe=columns.recipe)
    table = clocked(session, table)
    trust = looks.trust(session)
    notes = [*table.notes, *columns.notes]
    if request.since is not None:
        return _since(session, table, state, request, looks, options)

    begin = start or Start(options.start, "`start` in the configuration")
    first_time = state.position is None
    if whole and follows_a_copy(state):
        begin = Start(None, "the whole copy that it follows")
    low = plan.start_position(table, begin.timestamp) if first_time else state.position
    settled = settle(session, table, state, low, options, looks, expected)
    rewritten = begins(table, state, options, low, settled, trust) if plan.by_application(table) else None
    known = check_origin(
        session, table, state, looks, settled.newest, settled.steady, settled.back_to, rewritten
    )
    if not first_time:
        notes += _clock_notes(table, state, settled)

    window, resumed, pieces = _window(session, table, state, request, low, settled)
    again, overlap = read_again(session, table, state, options, low, settled, trust, notes)
    if whole and window is not None:
        window = in_place(table, window, notes)
    instead = None
    waits = first_time and window is None and _waits(session, table, low, settled)
    if whole and window is None:
        if waits:  # rows by another recipe must not be merged into those that the target still has
            again, overlap, whole = (), None, False
            notes.append(f"The rows that take the place of all that {table.target} has are not settled yet.")
        else:
            instead = Window(token_hex(8), low, None, "snapshot", (), None, 0, whole=True)
            notes.append(f"No row lies behind the start: all that {table.target} has gives way.")
    if columns.changed and not (pieces or again or columns.slices):
        again = carrier(session, table, state.position)
    origin = None
    if pieces or again or columns.slices:
        origin = known.with_witnesses(session, table, window, low)
    before = _before_start(session, table, low) if first_time else None
    if first_time and not resumed:
        notes.append(_said_start(begin, low, before))
    if settled.held and settled.high != settled.newest:
        notes.append("newer rows wait for the " + "; ".join(settled.held))
    return Plan(
        table=table,
        strategy=plan.strategy_of(request, len(pieces)),
        window=window or instead,
        resumed=resumed,
        slices=pieces,
        again=again,
        overlap=overlap,
        reread=columns.window,
        reread_slices=columns.slices,
        recipe=columns.recipe,
        load_as="replace" if whole else plan.load_as(table),
        in_order=plan.in_order(request, table),
        notes=tuple(notes),
        held=settled.held,
        waits=waits,
        before_start=before,
        start=str(low[0]) if first_time and low else None,
        zone=settled.zone,
        origin=origin,
    )


def _waits(session: Session, table: Table, low: Position | None, settled: Settled) -> bool:
    """Whether there are rows behind `low` that a later sync reads; those in the future are read by every one."""
    last = edges.last(session, table, settled.beyond) if settled.beyond is not None else settled.newest
    return last is not None and edges.nth(session, table, table.order, low, last, 1) is not None


def _said_start(begin: Start, low: Position | None, before: int | None) -> str:
    if low is None:
        return "The table has no position yet: it is read from its first row."
    left_out = f"{before or 0:,} rows at or before that are left out"
    return f"The table has no position yet: it is read after {begin.timestamp} ({begin.by}); {left_out}."


def _clock_notes(table: Table, state: State, settled: Settled) -> list[str]:
    """What to say of a source whose clock was set back; without a key what it has written since can't be read again."""
    if settled.zone is not None and settled.zone.others and not table.key:
        raise DataError(
            f"{clock.told(settled.zone)}: rows that were written since may lie before the watermark",
            hint="the table has no key, so they can't be read again by themselves: empty the target and reset the table "
            f"with --force, or go on without them: floodmark watermark set -t {table.name} with the time of the watermark",
            table=table.name,
        )
    check_not_in_the_future(table, state, settled)
    if not settled.back:
        return []
    said = f"the source's clock was set back by {settled.back:,.0f} s since the watermark, by this machine's clock"
    if table.key:
        return [f"{said}: rows from {settled.zone_shift} on are read again"]
    if state.bound is not None and settled.bound is not None and settled.bound < state.bound:
        raise DataError(
            f"{said}: rows that were written since may lie before the watermark",
            hint="the table has no key, so they can't be read again by themselves: reset the table with --force, or "
            f"go on without them: floodmark watermark set -t {table.name} with the time of the watermark",
            table=table.name,
        )
    return [
        f"{said}: rows that were written meanwhile may lie before the watermark, and there is no key to merge by"
    ]


def check_not_in_the_future(table: Table, state: State, settled: Settled) -> None:
    """Where an earlier version took a clock for a counter, a value in the future may have become the watermark."""
    if not table.unix or state.position is None or settled.bound is None:
        return
    if plan.reaches(state.position[0], clock.count(settled.bound + bounds.FUTURE_SLACK, table.unix)):
        raise DataError(
            f"the watermark {state.position[0]} lies in the future, in {table.unix} since 1970: rows since were left out",
            hint=f"read the table again: floodmark watermark reset -t {table.name} --mysql-only",
            table=table.name,
        )


def _window(
    session: Session,
    table: Table,
    state: State,
    request: Request,
    low: Position | None,
    settled: Settled,
) -> tuple[Window | None, bool, tuple[Slice, ...]]:
    """The window of this run, whether it was left open, and its slices: a new one ends at the settled bound."""
    left = state.window
    if left is not None and left.by != "snapshot":
        if request.most is None:
            return left, True, plan.slices(left, state.done)
        if plan.scattered(left, state.done):
            return _finer(session, table, left, state.done, request)
        # All that was committed of it lies before the position: a new one goes on from there.
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
    window = Window(token_hex(8), low, high, by, found, settled.bound, rows, ahead=settled.ahead)
    return window, False, plan.slices(window)


def _finer(
    session: Session, table: Table, window: Window, done: Sequence[int], request: Request
) -> tuple[Window, bool, tuple[Slice, ...]]:
    """The open window cut finer, so that a bounded run reads a part of what is left, and nothing twice."""
    by = table.key if window.by == "key" else table.order
    also = sql.between(table, table.order, window.low, window.high) if window.by == "key" else []
    most = request.most or 0
    found: list[Position] = []
    finished: list[int] = []
    chosen: list[int] = []
    for piece in plan.slices(window):
        if piece.number in done:
            finished.append(len(found))
        place = piece.after
        while piece.number not in done and most > 0:
            step = min(request.chunk or most, request.slice_rows, most)
            edge = edges.nth(session, table, by, place, piece.upto, step, also)
            chosen.append(len(found))
            if edge is None:
                most -= edges.count(session, table, [*sql.between(table, by, place, piece.upto), *also])
                break
            most -= step
            if edge == piece.upto:
                break
            found.append(edge)
            place = edge
        if piece.number < len(window.edges):
            found.append(window.edges[piece.number])
    finer = replace(window, id=token_hex(8), edges=tuple(found), done=tuple(finished))
    return finer, True, tuple(s for s in plan.slices(finer, finished) if s.number in chosen)


def _cut(session: Session, table: Table, low: Position | None, high: Position, most: int) -> Position:
    """The end of the first `most` rows in position order."""
    end = edges.nth(session, table, table.order, low, high, most)
    if end is None:
        return high
    if table.key or edges.nth(session, table, table.order, low, high, most + 1) != end:
        return end
    # Without a key a timestamp can't be cut in two: stop before the one that would be.
    assert table.cursor is not None
    whole = edges.last(session, table, end[0])
    if whole is None or edges.nth(session, table, table.order, low, whole, 1) is None:
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
    looks: Looks,
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
    settled = settle(session, table, state, low, options, looks)
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
    strategy = plan.strategy_of(request, 1)
    return Plan(table, strategy, window, slices=pieces, load_as="replace", notes=table.notes)
