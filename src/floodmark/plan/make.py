"""Makes one table's plan for a run: queries the source, and lets `bound`, `window` and `overlap` decide.

Rows that a sync reads again besides its window are found here too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from secrets import token_hex

from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.log.pipeline import Start
from floodmark.model import log_lines
from floodmark.model import zones as clock
from floodmark.model.changes import FollowedTo
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.notes import Note
from floodmark.model.origin import SourceId
from floodmark.model.position import Position
from floodmark.model.run import SyncOptions
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.times import cursor_value, temporal
from floodmark.model.types import fields
from floodmark.model.window import Intent, Slice, Window
from floodmark.plan import decide, overlap
from floodmark.plan.bound import Settled, looks_outside
from floodmark.plan.decide import (
    COUNT_EXACTLY_BELOW,
    Again,
    Chosen,
    Pass,
    TablePlan,
    again,
    passes,
    start_position,
    strategy_of,
)
from floodmark.plan.followed import FollowStep, TableNews, followed_plan, said_why
from floodmark.plan.origin import Known, check_origin
from floodmark.plan.overlap import begins, by_application, clock_notes
from floodmark.plan.reread import Upkeep, begins_whole, carrier, follow, follows_a_copy
from floodmark.plan.wait import Source, clocked, settle
from floodmark.source import one_moment, open_work, sql
from floodmark.source import ranges as edges
from floodmark.source.describe import Discovered
from floodmark.source.errors import as_discovered
from floodmark.source.identity import signs, source_id
from floodmark.source.session import Session

logger = logging.getLogger("floodmark")


@as_discovered()
def survey(
    source: Source, found: Discovered, request: SyncOptions, log: Log, start: Start | None = None
) -> TablePlan:
    """One table's plan for a run; reads no rows and changes nothing. All questions go to one session, in this order.

    `start` is where a table without a position begins, if not at `options.start`.
    """
    session, state, options = source.session, source.reading.state, source.reading.options
    request = _by_bytes(session, found.table, request)
    whole = begins_whole(state, found.table, request)
    columns = follow(session, found.table, state, options, request, log)
    if columns.table.follows:
        return _followed(source.of(table=columns.table), found, request, columns, whole)
    if columns.table.mode == "full":
        made = _snapshot(source, columns.table, request)
        about = (*found.notes, *made.about)
        return replace(made, about=about, notes=columns.notes, recipe=columns.recipe, asks=columns.asks)
    table = clocked(session, columns.table)
    outside = looks_outside(table, state) and not whole
    source = source.of(table=table, outside=outside)
    if request.since is not None:
        return replace(_since(source, request), asks=columns.asks, source=_source_id(source))

    begin = start or Start(options.start, "`start` in the configuration")
    if whole and follows_a_copy(state):
        begin = Start(None, "the target holds a whole copy")
    if state.followed_to is not None:
        return replace(_by_a_cursor_again(source, request, columns), about=found.notes)
    first_time = state.position is None
    low = start_position(table, begin.timestamp) if first_time else state.position
    source = source.of(low=low)

    settled = settle(source)
    _log_bound(table, settled)
    rewritten = begins(source.reading, settled) if by_application(table) else None
    known = check_origin(source, settled, rewritten)
    notes = [*columns.notes]
    if not first_time:
        notes += clock_notes(source.reading, settled)

    chosen = _window(source, request, settled)
    beside = read_again(source, settled)
    notes += beside.notes
    waits = first_time and chosen.window is None and _rows_wait(source, settled)
    if whole and waits:  # rows by the new recipe must not be merged into the old ones still in the target
        beside, whole = Again(), False
        notes.append(f"The rows that will replace those of {table.target} have not settled yet.")
    elif whole:
        notes.append(_said_whole(table, (*chosen.slices, *beside.slices)))
    # A window of rows that leave `where` writes no file, and neither may an overlap.
    if columns.changed and not columns.slices and (outside or not (chosen.slices or beside.slices)):
        beside = replace(beside, slices=(*beside.slices, *carrier(session, table, state.position)))
    reads = bool(chosen.slices or beside.slices or columns.slices)
    origin = known.with_witnesses(session, table, chosen.window, low) if reads else None
    before = before_start(session, table, low) if first_time else None
    # A table that was looked at before and still has no rows has nothing new to say.
    if first_time and not chosen.resumed and (chosen.slices or before or state.table is None):
        notes.append(_said_start(begin, low, before))
    newer_wait = bool(settled.held) and settled.high != settled.newest
    if newer_wait:
        notes.append("newer rows wait for the " + "; ".join(settled.held))
    strategy = strategy_of(request, len(chosen.slices))
    window = chosen.replacing(low) if whole else chosen.window
    return TablePlan(
        Intent("sync", table, window, columns.window, strategy, settled.zone, origin),
        passes(request, table, columns.slices, beside, chosen.slices, outside, whole),
        resumed=chosen.resumed,
        about=found.notes,
        notes=tuple(notes),
        held=settled.held,
        newer_wait=newer_wait,
        bound=None if settled.bound is None else settled.bound - (settled.ahead or 0.0),
        waits=waits,
        start=str(low[0]) if first_time and low else None,
        before_start=before,
        source=known.source(source, reads=reads),
        recipe=columns.recipe,
        asks=columns.asks,
    )


def _log_bound(table: Table, settled: Settled) -> None:
    """Logs how far the table can be read, and what holds the rest back."""
    newest = log_lines.place(settled.newest, "none")
    said = f"settled up to {log_lines.place(settled.high, 'no row')}; the newest row is {newest}"
    if settled.held:
        said += f"; held back by the {'; '.join(settled.held)}"
    log_lines.tell(logger, logging.DEBUG, "decision", said, table=table.name, step="plan", high=settled.high)


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
    todo = decide.left_open(state, request)
    if state.window is not None and todo == "resume":
        return Chosen(state.window, decide.slices(state.window, state.progress.done), resumed=True)
    if state.window is not None and todo == "cut finer":
        return _finer(source, state.window, request)
    high = settled.high
    if high is None or high == low or source.nth(low, high, 1) is None:
        return Chosen()
    if request.most is not None:
        high = decide.limited(source.table, low, high, request.most, _matching(source), source.last)
    rows, share = _size(source.session, source.table, low, high)
    by = decide.cut_by(request, source.table, share, rows)
    if by == "key":
        parts = decide.parts_of_the_key(request, rows)
        found = edges.split_key(source.session, source.table, parts, request.slice_rows)
    else:
        found = _walk(source, low, high, request)
    return decide.opened(request, low, settled, high, by, found, rows)


def _matching(source: Source) -> decide.Nth:
    """Finds the n-th row that matches `where`."""
    return lambda low, high, n: edges.nth(source.session, source.table, source.table.order, low, high, n)


def _by_bytes(session: Session, table: Table, request: SyncOptions) -> SyncOptions:
    """The request with smaller slices if the table's rows are wide; not if it can't be cut, or is loaded whole."""
    if (
        table.mode == "full"
        or not table.key
        or sum(field.max_bytes for field in fields(table)) < decide.WIDE_ROW
    ):
        return request
    return decide.by_bytes(request, *edges.stored_bytes(session, table))


def _walk(source: Source, low: Position | None, high: Position, request: SyncOptions) -> tuple[Position, ...]:
    """Slice boundaries along the cursor; without a key there is nowhere to cut."""
    # `--limit` counts rows that match; otherwise a slice is bounded by all rows that its task looks at.
    table = source.table if request.most is not None else source.reading.rows
    step = decide.rows_of_a_slice(request)
    return edges.walk(source.session, table, table.order, low, high, step) if table.key else ()


def _finer(source: Source, window: Window, request: SyncOptions) -> Chosen:
    session, table = source.session, source.table
    by = table.key if window.by == "key" else table.order
    also = sql.between(table, table.order, window.low, window.high) if window.by == "key" else []

    def nth(after: Position | None, upto: Position | None, n: int) -> Position | None:
        return edges.nth(session, table, by, after, upto, n, also)

    def count(after: Position | None, upto: Position | None) -> int:
        return edges.count(session, table, [*sql.between(table, by, after, upto), *also])

    return decide.finer(window, source.reading.state.progress.done, request, nth, count)


def _size(session: Session, table: Table, low: Position | None, high: Position) -> tuple[int, float]:
    """Roughly how many rows the window has, and its share of the table."""
    total = edges.table_rows(session, table)
    if table.source.cursor_index is None or (low is None and not temporal(table)):
        return total, 1.0
    conditions = sql.between(table, table.order, low, high)
    inside = edges.estimate(session, table, table.source.cursor_index, conditions)
    not_null = [f"{sql.quote(table.order[0])} IS NOT NULL"]
    everything = edges.estimate(session, table, table.source.cursor_index, not_null)
    counted = None
    if inside <= COUNT_EXACTLY_BELOW:
        counted = edges.count(session, table, conditions, table.source.cursor_index)
    return decide.size(total, inside, everything, counted)


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


def _since(source: Source, request: SyncOptions) -> TablePlan:
    """Reads a user-specified stretch again; the watermark does not move."""
    table = source.table
    if not temporal(table):
        raise ConfigError("--since needs a cursor that is a time")
    if not table.key and not request.force:
        raise ConfigError(
            "--since would load rows twice: the table has no key to merge by",
            hint="use --force to do it anyway",
        )
    low: Position = (cursor_value(table, request.since or ""),)
    settled, position = settle(source.of(low=low)), source.reading.state.position
    nothing = TablePlan(Intent("sync", table, strategy=strategy_of(request, 0)))
    high: Position | None = (cursor_value(table, request.until),) if request.until else position
    if high is None:
        return replace(nothing, notes=("nothing to read again: there is no watermark yet",))
    if settled.high is None:
        waits = position is None and bool(settled.held)
        return replace(nothing, held=settled.held, newer_wait=waits, waits=waits)
    if str(high[0]) > str(settled.high[0]):
        high = settled.high
    if source.nth(low, high, 1) is None:
        return nothing
    if request.most is not None:
        high = decide.limited(table, low, high, request.most, _matching(source), source.last)
    found = _walk(source, low, high, request)
    rows = decide.rows_of_a_slice(request) * (len(found) + 1)
    window = Window("since", low, high, "cursor", found, None, rows)
    pieces = [replace(s, kind="since") for s in decide.slices(window)]
    claim = replace(nothing.claim, strategy=strategy_of(request, len(pieces)))
    return TablePlan(claim, again(table, pieces, outside=source.reading.outside))


# ---------------------------------------------------------------- tables that follow the source's log


def _followed(
    source: Source, found: Discovered, request: SyncOptions, columns: Upkeep, whole: bool
) -> TablePlan:
    """The first copy along the key, whole or what is left of it; else what the log says comes next."""
    session, table, state = source.session, source.table, source.reading.state
    if request.since is not None:
        raise ConfigError("--since needs a cursor; this table follows the binary log", table=table.name)
    step = followed_plan(state, table, _news(source))
    chosen, notes = Chosen(), [*columns.notes]
    if step.do == "copy":
        chosen = _copy(source, request, step.followed_to, whole)
        notes.append(_said_whole(table, chosen.slices) if whole else f"First copy: {said_why(step)}.")
    elif step.do == "resume" and state.window is not None:
        left = decide.slices(state.window, state.progress.done)
        finer = request.most is not None
        chosen = _finer(source, state.window, request) if finer else Chosen(state.window, left, resumed=True)
    outside = looks_outside(table, state) and not whole
    beside = Again()
    if columns.changed and not columns.slices and not chosen.slices:
        beside = Again(carrier(session, table, None))
    strategy = strategy_of(request, len(chosen.slices))
    return TablePlan(
        Intent("sync", table, chosen.window, columns.window, strategy),
        passes(request, table, columns.slices, beside, chosen.slices, outside, whole),
        resumed=chosen.resumed,
        about=found.notes,
        notes=tuple(notes),
        bound=_news(source).until,
        source=_source_id(source),
        recipe=columns.recipe,
        asks=columns.asks,
        step=step,
    )


def _copy(source: Source, request: SyncOptions, followed: FollowedTo | None, whole: bool) -> Chosen:
    """A window over the whole key; of a bounded run, its first rows. Every row that changes meanwhile is read again."""
    session, table = source.session, source.table
    rows = edges.table_rows(session, table)
    # Without an index, each slice would be a scan of its own.
    parts = decide.parts_of_the_key(request, rows) if table.source.key_index else 1
    cuts = edges.split_key(session, edges.every_row(table), parts, request.slice_rows)
    window = Window(token_hex(8), None, None, "key", cuts, rows=rows, whole=whole, followed_to=followed)
    if request.most is not None:
        return replace(_finer(source, window, request), resumed=False)
    return Chosen(window, decide.slices(window))


def _by_a_cursor_again(source: Source, request: SyncOptions, columns: Upkeep) -> TablePlan:
    """A table that followed the log goes on from what is final now, once both sides are compared up to there.

    Its own past gives no position: a row may have been committed since, with a cursor from long before.
    """
    session, table = source.session, source.table
    settled = settle(source)
    known = Known(signs(session, table, source.looks.trust(session)))
    origin = known.with_witnesses(session, table, None, settled.high)
    strategy = strategy_of(request, len(columns.slices))
    return TablePlan(
        Intent("sync", table, None, columns.window, strategy, settled.zone, origin),
        passes(request, table, columns.slices, Again(), (), source.reading.outside, False),
        notes=columns.notes,
        held=settled.held,
        source=known.source(source, reads=True),
        recipe=columns.recipe,
        asks=columns.asks,
        step=FollowStep("reconcile", position=settled.high, why=("by binlog",)),
    )


def _news(source: Source) -> TableNews:
    """What the source's log says of the table."""
    if source.news is None:
        raise ConfigError(
            "the binary log was not read, so nothing tells what has changed",
            hint=f"set tables.{source.table.name}.changes: cursor",
            table=source.table.name,
        )
    return source.news


def _snapshot(source: Source, table: Table, request: SyncOptions) -> TablePlan:
    if request.most is not None:
        raise ConfigError(
            "--limit and --max-chunks can't be used with mode full: a snapshot is all or nothing"
        )
    if request.since is not None:
        raise ConfigError("--since needs a cursor; this table is read whole (mode full)")
    session, step = source.session, None
    if table.recipe.changes:
        step = followed_plan(source.reading.state, table, _news(source))
        if step.do == "nothing" and table == source.reading.state.table:
            return TablePlan(Intent("sync", table), step=step, bound=_news(source).until)
    rows = edges.table_rows(session, table)
    window = Window(token_hex(8), None, None, "snapshot", (), open_work.now(session), rows)
    window = replace(window, followed_to=_news(source).newest if step is not None else None)
    about: tuple[Note, ...] = ()
    pieces = decide.slices(window)
    if decide.shared(request, rows):
        unfit = one_moment.unfit(table) or one_moment.obstacle(session, table, source.reading.trust)
        if unfit is None:
            parts = decide.parts_of_the_key(request, rows)
            # Whether or not rows match `where`: finding the n-th row that does could take hours.
            cuts = edges.split_key(session, edges.every_row(table), parts, request.slice_rows)
            pieces = decide.parts(window, cuts)
        else:
            about = (Note("one_connection", obstacle=unfit),)
    claim = Intent("sync", table, window, strategy=strategy_of(request, len(pieces)))
    passes = (Pass("window", pieces, "replace"),)
    return TablePlan(claim, passes, about=about, source=_source_id(source.of(table=table)), step=step)


def _source_id(source: Source) -> SourceId:
    return source_id(source.session, source.table, source.looks.ids(source.session, source.table))


# ---------------------------------------------------------------- rows beside the window


def read_again(source: Source, settled: Settled) -> Again:
    """Slices to read again: the stretch before the watermark if it changed, and rows outside the order."""
    table, reading = source.table, source.reading
    if not table.cursor:
        return Again()
    if not table.key:
        _check_cursors(source.session, table, reading.state)
    seconds = overlap.overlap_seconds(reading, settled)
    why = "; ".join(overlap.because(reading, settled)) if seconds > 0 else ""
    if not table.key:
        if why and not reading.trust.sees_engine:
            raise DataError(
                f"open transactions of engine {reading.trust.engine} can't be seen, and without a key nothing can be read"
                " again: their rows would be missing",
                hint=f"set tables.{table.name}.mode: full, or overlap_seconds: 0 if no transaction writes to it",
            )
        return Again(notes=(overlap.said_missed(why),) if why else ())
    found: list[Slice] = []
    notes: list[str] = []
    fingerprint = None
    before, known = overlap.parts(reading.state.progress.overlap)
    begin = overlap.begins(reading, settled)
    if reading.state.position is not None and not reading.state.progress.manual and begin is not None:
        piece, fingerprint = _before_the_watermark(source, settled, begin, before)
        found += [piece] if fingerprint is not None else []
        if clock.spread(settled.zone):
            notes.append(overlap.said_zone(reading, settled, begin))
    if why:
        notes.append(overlap.said_again(reading, seconds, why))
    loose, outside = _loose(source, settled)
    if loose.rows or outside != known:
        found.append(replace(loose, outside=outside != known))
    if loose.rows:
        notes.append(overlap.said_loose(loose))
    if fingerprint is not None or outside != known:
        fingerprint = overlap.with_loose(fingerprint or before, outside)
    return Again(tuple(found), fingerprint, tuple(notes))


def _before_the_watermark(
    source: Source, settled: Settled, begin: Position, before: str
) -> tuple[Slice, str | None]:
    """The stretch from `begin` to the watermark, and its fingerprint; None if unchanged since last read."""
    session, table, low = source.session, source.table, source.reading.low
    assert low is not None
    every = source.reading.outside
    rows, places = edges.positions(session, table, begin, low, every=every)
    contents = None
    if overlap.is_final(source.reading, settled):
        contents = "final"
    elif overlap.has_places(before, places):
        # This close to the watermark, a row may change again and keep its position.
        contents = edges.contents(session, table, begin, low, every=every)
    fingerprint = overlap.fingerprint(places, contents)
    same = contents is not None and fingerprint == before
    return Slice("overlap", 0, "cursor", begin, low, rows=rows), None if same else fingerprint


def _loose(source: Source, settled: Settled) -> tuple[Slice, str]:
    """Rows whose cursor is NULL, zero or in the future, and a fingerprint of those outside `where`.

    The target lacks the latter since they were last read, unless the fingerprint has changed.
    """
    session, table = source.session, source.table
    found = overlap.loose(source.reading, settled)
    if found is None:
        return Slice("loose", 1), ""
    loose = sql.loose(table, found.beyond, found.zero)
    outside = edges.outside(session, table, [loose]) if source.reading.outside else ""
    return replace(found, rows=edges.count(session, table, [loose])), outside


def _check_cursors(session: Session, table: Table, state: State) -> None:
    """Refuses rows that fit no window and, without a key, would be duplicated if every sync read them."""
    assert table.cursor is not None
    zero = overlap.zero_is_loose(table, state)
    if not (table.column(table.cursor).nullable or zero):
        return
    rows = edges.count(session, table, [sql.loose(table, None, zero)])
    if not rows:
        return
    empty = edges.count(session, table, [sql.loose(table, None)])
    lacking = f"no {table.cursor}" if empty else f"a {table.cursor} of 0000-00-00"
    if 0 < empty < rows:
        lacking += ", or one of 0000-00-00"
    cures = ["give them a value", "set `key` if some columns identify a row"]
    if not table.recipe.where:
        condition = f"{sql.quote(table.cursor)} {'IS NOT NULL' if rows == empty else '<> 0'}"
        cures.append(f'leave them out until they have one: tables.{table.name}.where: "{condition}"')
    raise DataError(
        f"{counted(rows, 'row')} of {table.name} {'has' if rows == 1 else 'have'} {lacking}, and without a key "
        "they can't be read: they would be missing",
        hint=f"{', '.join(cures)}, or set tables.{table.name}.mode: full",
    )
