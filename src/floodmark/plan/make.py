"""Makes one table's plan for a run: queries the source, and lets `bound`, `window` and `overlap` decide."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from secrets import token_hex

from floodmark.config.load import TableOptions
from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.log.pipeline import Start
from floodmark.model import log_lines
from floodmark.model.errors import ConfigError
from floodmark.model.notes import Note
from floodmark.model.position import Position
from floodmark.model.run import SyncOptions, Wait
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.times import cursor_value, temporal
from floodmark.model.types import fields
from floodmark.model.window import Slice, Window
from floodmark.plan import window as cutting
from floodmark.plan.again import Again, read_again
from floodmark.plan.bound import Reading, Settled, looks_outside
from floodmark.plan.decide import Plan, in_order, load_as, start_position, strategy_of
from floodmark.plan.origin import check_origin
from floodmark.plan.overlap import begins, by_application, clock_notes
from floodmark.plan.reread import begins_whole, carrier, follow, follows_a_copy
from floodmark.plan.wait import Source, clocked, settle
from floodmark.plan.window import COUNT_EXACTLY_BELOW, Chosen, Size
from floodmark.source import one_moment, open_work, sql
from floodmark.source import ranges as edges
from floodmark.source.describe import Discovered
from floodmark.source.errors import as_discovered
from floodmark.source.session import Session
from floodmark.source.shared_looks import SharedLooks
from floodmark.source.sources import source_id
from floodmark.source.trust import Trust

log = logging.getLogger("floodmark")


@as_discovered()
def survey(
    session: Session,
    found: Discovered,
    state: State,
    options: TableOptions,
    request: SyncOptions,
    log: Log,
    start: Start | None,
    expected: Callable[[], None],
    looks: SharedLooks,
    waiting: Callable[[Wait | None], None] | None,
    doubted: bool,
) -> Plan:
    """One table's plan for a run; reads no rows and changes nothing. All questions go to one session.

    `start` is where a table without a position begins, if not at `options.start`. `expected` is called when
    fresh rows have to settle first and there will be some to read. `looks` are shared with the run's other
    tables. `waiting` receives what the plan is waiting for; None: it waits for nothing. `doubted`: the table may have been exchanged meanwhile.
    """
    request = _by_bytes(session, found.table, request)
    whole = begins_whole(state, found.table, request)
    columns = follow(session, found.table, state, options, request, log)
    trust = replace(looks.trust(session), engine=found.engine)
    if columns.table.mode == "full":
        made = _snapshot(session, columns.table, request, trust)
        about = (*found.notes, *made.about)
        read = source_id(session, columns.table, looks.ids(session, columns.table))
        return replace(
            made, about=about, notes=columns.notes, recipe=columns.recipe, asks=columns.asks, source=read
        )
    table = clocked(session, columns.table)
    outside = looks_outside(table, state) and not whole
    reading = Reading(table, state, options, trust, outside=outside)
    if request.since is not None:
        made = _since(Source(session, looks, reading, waiting), request)
        read = source_id(session, table, looks.ids(session, table))
        return replace(made, asks=columns.asks, source=read)

    begin = start or Start(options.start, "`start` in the configuration")
    if whole and follows_a_copy(state):
        begin = Start(None, "the target holds a whole copy")
    first_time = state.position is None
    low = start_position(table, begin.timestamp) if first_time else state.position
    reading = replace(reading, low=low)
    source = Source(session, looks, reading, waiting, doubted)

    settled = settle(source, expected)
    _log_bound(table, settled)
    rewritten = begins(reading, settled) if by_application(table) else None
    known = check_origin(source, settled.newest, settled.steady, settled.back_to, rewritten)
    notes = [*columns.notes]
    if not first_time:
        notes += clock_notes(reading, settled)

    chosen = _window(source, request, settled)
    again = read_again(source, settled)
    notes += again.notes
    waits = first_time and chosen.window is None and _rows_wait(source, settled)
    if whole and waits:  # rows by the new recipe must not be merged into the old ones still in the target
        again, whole = Again(), False
        notes.append(f"The rows that will replace those of {table.target} have not settled yet.")
    elif whole:
        notes.append(_said_whole(table, (*chosen.slices, *again.slices)))
    # A window of rows that leave `where` writes no file, and neither may an overlap.
    if columns.changed and not columns.slices and (outside or not (chosen.slices or again.slices)):
        again = replace(again, slices=(*again.slices, *carrier(session, table, state.position)))
    origin = None
    if chosen.slices or again.slices or columns.slices:
        origin = known.with_witnesses(session, table, chosen.window, low)
    before = before_start(session, table, low) if first_time else None
    # A table that was looked at before and still has no rows has nothing new to say.
    if first_time and not chosen.resumed and (chosen.slices or before or state.table is None):
        notes.append(_said_start(begin, low, before))
    newer_wait = bool(settled.held) and settled.high != settled.newest
    if newer_wait:
        notes.append("newer rows wait for the " + "; ".join(settled.held))
    if whole:
        chosen = cutting.in_place_of_all(chosen, low)
    return Plan(
        table=table,
        strategy=strategy_of(request, len(chosen.slices)),
        window=chosen.window,
        resumed=chosen.resumed,
        slices=chosen.slices,
        again=again.slices,
        overlap=again.overlap,
        reread=columns.window,
        reread_slices=columns.slices,
        recipe=columns.recipe,
        asks=columns.asks,
        load_as="replace" if whole else load_as(table),
        in_order=in_order(request, table),
        about=found.notes,
        notes=tuple(notes),
        held=settled.held,
        newer_wait=newer_wait,
        bound=None if settled.bound is None else settled.bound - (settled.ahead or 0.0),
        waits=waits,
        before_start=before,
        start=str(low[0]) if first_time and low else None,
        zone=settled.zone,
        origin=origin,
        outside=outside,
        source=known.source(source, reads=origin is not None),
    )


def _log_bound(table: Table, settled: Settled) -> None:
    """Logs how far the table can be read, and what holds the rest back."""
    newest = log_lines.place(settled.newest, "none")
    said = f"settled up to {log_lines.place(settled.high, 'no row')}; the newest row is {newest}"
    if settled.held:
        said += f"; held back by the {'; '.join(settled.held)}"
    log_lines.tell(log, logging.DEBUG, "decision", said, table=table.name, step="plan", high=settled.high)


def _said_start(begin: Start, low: Position | None, before: int | None) -> str:
    if low is None:
        return "First sync: reads from the first row."
    left_out = f"; {before:,} rows at or before that are left out" if before else ""
    return f"First sync: reads rows after {begin.timestamp} ({begin.by}){left_out}."


def _said_whole(table: Table, pieces: Sequence[Slice]) -> str:
    if not pieces:
        return f"There is no row after the start: {table.target} will be emptied."
    rows = counted(sum(piece.rows for piece in pieces), "row")
    return f"The rows read now, about {rows}, replace all rows of {table.target}."


# ---------------------------------------------------------------- queries to the source


def _window(source: Source, request: SyncOptions, settled: Settled) -> Chosen:
    """The window of this run: the one left open, or a new one that ends at the settled bound."""
    state, low = source.reading.state, source.reading.low
    todo = cutting.left_open(state, request)
    if state.window is not None and todo == "resume":
        return Chosen(state.window, cutting.slices(state.window, state.progress.done), resumed=True)
    if state.window is not None and todo == "cut finer":
        return _finer(source, state.window, request)
    high = settled.high
    if high is None or high == low or source.nth(low, high, 1) is None:
        return Chosen()
    if request.most is not None:
        high = cutting.limited(source.table, low, high, request.most, _matching(source), source.last)
    size = _size(source.session, source.table, low, high)
    by = cutting.cut_by(request, source.table, size.share, size.rows)
    if by == "key":
        parts = cutting.parts_of_the_key(request, size.rows)
        found = edges.split_key(source.session, source.table, parts, request.slice_rows)
    else:
        found = _walk(source, low, high, request)
    return cutting.opened(request, low, settled, high, by, found, size.rows)


def _matching(source: Source) -> cutting.Nth:
    """Finds the n-th row that matches `where`."""
    return lambda low, high, n: edges.nth(source.session, source.table, source.table.order, low, high, n)


def _by_bytes(session: Session, table: Table, request: SyncOptions) -> SyncOptions:
    """The request with smaller slices if the table's rows are wide; not if it can't be cut, or is loaded whole."""
    if (
        table.mode == "full"
        or not table.key
        or sum(field.max_bytes for field in fields(table)) < cutting.WIDE_ROW
    ):
        return request
    return cutting.by_bytes(request, *edges.stored_bytes(session, table))


def _walk(source: Source, low: Position | None, high: Position, request: SyncOptions) -> tuple[Position, ...]:
    """Slice boundaries along the cursor; without a key there is nowhere to cut."""
    # `--limit` counts rows that match; otherwise a slice is bounded by all rows that its task looks at.
    table = source.table if request.most is not None else source.reading.rows
    step = cutting.rows_of_a_slice(request)
    return edges.walk(source.session, table, table.order, low, high, step) if table.key else ()


def _finer(source: Source, window: Window, request: SyncOptions) -> Chosen:
    session, table = source.session, source.table
    by = table.key if window.by == "key" else table.order
    also = sql.between(table, table.order, window.low, window.high) if window.by == "key" else []

    def nth(after: Position | None, upto: Position | None, n: int) -> Position | None:
        return edges.nth(session, table, by, after, upto, n, also)

    def count(after: Position | None, upto: Position | None) -> int:
        return edges.count(session, table, [*sql.between(table, by, after, upto), *also])

    return cutting.finer(window, source.reading.state.progress.done, request, nth, count)


def _size(session: Session, table: Table, low: Position | None, high: Position) -> Size:
    """Roughly how many rows the window has, and its share of the table."""
    total = edges.table_rows(session, table)
    if table.source.cursor_index is None or (low is None and not temporal(table)):
        return Size(total)
    conditions = sql.between(table, table.order, low, high)
    inside = edges.estimate(session, table, table.source.cursor_index, conditions)
    not_null = [f"{sql.quote(table.order[0])} IS NOT NULL"]
    everything = edges.estimate(session, table, table.source.cursor_index, not_null)
    counted = None
    if inside <= COUNT_EXACTLY_BELOW:
        counted = edges.count(session, table, conditions, table.source.cursor_index)
    return cutting.size(total, inside, everything, counted)


def _rows_wait(source: Source, settled: Settled) -> bool:
    """Whether a later sync will read rows beyond `low`; not counting future ones, which every sync reads."""
    last = source.last(below=settled.beyond) if settled.beyond is not None else settled.newest
    return last is not None and source.nth(source.reading.low, last, 1) is not None


def before_start(session: Session, table: Table, start: Position | None) -> int | None:
    """How many rows a first sync leaves out; an estimate if they are too many to be counted quickly."""
    if start is None:
        return None
    conditions = [sql.upto(table, table.order, start)]
    if temporal(table) and table.recipe.zero_dates != "error":  # every sync reads rows with a zero cursor
        conditions.append(f"NOT {sql.loose(table, None, zero=True)}")
    index = table.source.cursor_index
    estimate = edges.estimate(session, table, index, conditions)
    return estimate if estimate > COUNT_EXACTLY_BELOW else edges.count(session, table, conditions, index)


def _since(source: Source, request: SyncOptions) -> Plan:
    """Reads a user-specified stretch again; the watermark does not move."""
    table = source.table
    if not temporal(table):
        raise ConfigError("--since needs a cursor that is a time", table=table.name)
    if not table.key and not request.force:
        raise ConfigError(
            "--since would load rows twice: the table has no key to merge by", hint="use --force to do it anyway",
            table=table.name,
        )  # fmt: skip
    low: Position = (cursor_value(table, request.since or ""),)
    settled = settle(replace(source, reading=replace(source.reading, low=low)))
    high: Position | None = (cursor_value(table, request.until),) if request.until else None
    if high is None:
        high = source.reading.state.position
    if high is None:
        return Plan(
            table, strategy_of(request, 0), notes=("nothing to read again: there is no watermark yet",)
        )
    if settled.high is None:
        waits = source.reading.state.position is None and bool(settled.held)
        return Plan(table, strategy_of(request, 0), held=settled.held, newer_wait=waits, waits=waits)
    if str(high[0]) > str(settled.high[0]):
        high = settled.high
    if source.nth(low, high, 1) is None:
        return Plan(table, strategy_of(request, 0))
    if request.most is not None:
        high = cutting.limited(table, low, high, request.most, _matching(source), source.last)
    found = _walk(source, low, high, request)
    rows = cutting.rows_of_a_slice(request) * (len(found) + 1)
    window = Window("since", low, high, "cursor", found, None, rows)
    pieces = tuple(replace(s, kind="since") for s in cutting.slices(window))
    strategy = strategy_of(request, len(pieces))
    return Plan(table, strategy, again=pieces, load_as="merge", outside=source.reading.outside)


def _snapshot(session: Session, table: Table, request: SyncOptions, trust: Trust) -> Plan:
    if request.most is not None:
        raise ConfigError(
            "--limit and --max-chunks can't be used with mode full: a snapshot is all or nothing",
            table=table.name,
        )
    if request.since is not None:
        raise ConfigError("--since needs a cursor; this table is read whole (mode full)", table=table.name)
    rows = edges.table_rows(session, table)
    window = Window(token_hex(8), None, None, "snapshot", (), open_work.now(session), rows)
    about: tuple[Note, ...] = ()
    pieces = cutting.slices(window)
    if cutting.shared(request, rows):
        unfit = one_moment.unfit(table) or one_moment.obstacle(session, table, trust)
        if unfit is None:
            parts = cutting.parts_of_the_key(request, rows)
            pieces = cutting.parts(window, edges.split_all(session, table, parts, request.slice_rows))
        else:
            about = (Note("one_connection", obstacle=unfit),)
    strategy = strategy_of(request, len(pieces))
    return Plan(table, strategy, window, slices=pieces, load_as="replace", about=about)
