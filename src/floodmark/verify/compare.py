"""Compares source and warehouse by key: which rows are missing, extra or different. Read-only.

Only what was promised is compared: rows that match `where`, after the start and up to the watermark. Those
after it are left out on both sides by their keys; whether a row exists is judged by its key alone. Rows without
a place in the change order are compared too: a change since the last sync can't be told from an error there, and
is reported as what it may be. Nothing is reported until both sides have been queried a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from floodmark.host.retry import Retries
from floodmark.load.pending import ledger_for, pending
from floodmark.log.fold import State
from floodmark.log.lease import holder
from floodmark.log.log import Log
from floodmark.log.pipeline import Starts
from floodmark.log.stretches import stretches
from floodmark.model.canonical import Printed, Scope, forms
from floodmark.model.commit import Batch
from floodmark.model.errors import ConfigError, ConflictError, DataError
from floodmark.model.events import Noted, StageEnded
from floodmark.model.position import Position, Value
from floodmark.model.table import Column, Table
from floodmark.model.text import counted, place
from floodmark.model.times import sortable
from floodmark.model.types import fields
from floodmark.plan.bound import Reading
from floodmark.plan.decide import start_position
from floodmark.plan.make import before_start
from floodmark.plan.origin import check_caught_up
from floodmark.plan.overlap import future
from floodmark.plan.reread import check as check_recipe
from floodmark.plan.reread import check_dropped, vanished
from floodmark.plan.wait import Source
from floodmark.services import Services
from floodmark.source.describe import discover
from floodmark.source.errors import as_discovered
from floodmark.source.ranges import nth
from floodmark.source.session import Session
from floodmark.source.sources import source_id
from floodmark.verify.lookup import AT_ONCE, LookedUp, look_up
from floodmark.verify.search import search
from floodmark.verify.sides import parsed_columns
from floodmark.verify.snapshot import holds, last_snapshot

# How many times suspects are checked while other runs change the table, and the pause between.
TRIES = 10
PAUSE = 1.0
NO_WATERMARK = "a table in mode full has no watermark: changes since its last sync show as differences"
# Seconds to wait for a run that is loading.
PATIENCE = 60.0


@dataclass(frozen=True)
class Differences(LookedUp):
    """The confirmed disagreements; also left out are the rows after the watermark."""

    rows_source: int = 0  # compared, on either side
    rows_warehouse: int = 0
    changed: int = 0  # rows that have changed at the source since the snapshot that the target still holds
    compared_with: Literal["source", "snapshot"] = "source"  # the latter if the source has changed since
    agree: bool = True  # False: checksums differ, but no key can be named
    notes: tuple[str, ...] = ()
    low: Position | None = None  # rows after this position were compared; None: from the first
    high: Position | None = None  # up to this one; None: to the last

    def __bool__(self) -> bool:
        return not self.agree or super().__bool__()


@as_discovered()
def compare(
    services: Services,
    table: Table,
    state: State,
    *,
    only_keys: bool = False,
    also: Sequence[str] = (),
    totals: Callable[[int, int], None] = lambda source, warehouse: None,
    since: Position | None = None,
    expected_rows: int | None = None,
    most: int | None = None,
) -> Differences:
    """The differences between a table and its target, judged by what the log's state promises.

    `table` is the table as it is now (discovered), `state` the log's. Every commit in the log must have been
    loaded. `only_keys` compares which rows exist, plus the columns in `also`, but not the rest of their
    contents: cheaper, and enough for deletes. `totals` receives the row counts of both sides (the source's in
    full) before the search for differences, and may raise. `since` restricts it to the rows after a position,
    about `expected_rows` of them. If more than `most` rows are missing, it gives up.
    """
    scope, notes, taken_over = scope_of(services, table, state, only_keys, also)
    if since is None and not only_keys:
        notes += _before(services, scope, taken_over)
    elif since is not None and (scope.low is None or sortable(since[0]) > sortable(scope.low[0])):
        scope = replace(scope, low=since)
    found = search(services, scope, totals, expected_rows, most)
    services.emit(StageEnded(table.name, "verify"))
    differences = Differences(
        rows_source=found.source.rows,
        rows_warehouse=found.warehouse.rows,
        left_out=found.beyond,
        agree=not found.suspicious,
        notes=tuple(notes),
        low=scope.low,
        high=scope.high,
    )
    promised = last_snapshot(services, state) if table.mode == "full" else None
    if table.mode == "full" and promised is None:
        differences = replace(differences, notes=(*notes, NO_WATERMARK))
    if found.suspicious and table.key and not only_keys and _changed(services, table, state):
        raise _changing(table)
    suspects = found.suspects
    confirmed = _confirmed(services, table, state, suspects, only_keys, also) if suspects else Differences()
    misread = False
    if not confirmed and (sample := _misread(services, scope, state, found.sample)):
        confirmed = _confirmed(services, table, state, dict.fromkeys(sample, False), only_keys, also)
        # Rows of a live source may also have changed since they were hashed.
        misread = promised is not None and bool(confirmed) and not search(services, scope, totals).suspects
    if promised is not None and not misread:
        return _since_snapshot(services, table, state, promised, differences, confirmed)
    return replace(
        confirmed,
        rows_source=differences.rows_source,
        rows_warehouse=differences.rows_warehouse,
        left_out=differences.left_out + confirmed.left_out,
        agree=differences.agree and confirmed.agree,
        notes=differences.notes,
        low=differences.low,
        high=differences.high,
    )


def _since_snapshot(
    services: Services, table: Table, state: State, promised: Batch, sides: Differences, found: Differences
) -> Differences:
    """The differences between source and target as those between the snapshot and the target, if there are any."""
    rows = len(found.missing) + len(found.extra) + len(found.different)
    same = not rows and sides.agree and found.agree
    if same and promised.snapshot is None:
        return sides  # reading the snapshot's files would cost more than it could tell
    held = holds(services, state, promised)
    if held is False and _changed(services, table, state):
        raise _changing(table)
    whole = replace(sides, missing=found.missing, extra=found.extra, different=found.different)
    if held is None:
        return replace(whole, notes=(*sides.notes, NO_WATERMARK), agree=sides.agree and found.agree)
    if not held:
        note = "the target is not what the snapshot held; the rows named may also have changed at the source since"
        return replace(whole, notes=(*sides.notes, note), agree=bool(rows) and sides.agree and found.agree)
    if same:
        return sides
    what = counted(rows, "row") if rows else "rows"
    verb = "has" if rows == 1 else "have"
    note = f"{what} {verb} changed at the source since the snapshot; the next sync takes a new one"
    return replace(sides, agree=True, changed=rows, compared_with="snapshot", notes=(*sides.notes, note))


def described(services: Services, session: Session, name: str) -> Table:
    """The table as it is now, in the source that everything is compared with; raises if the run has read another."""
    table = discover(session, name, services.config.options(name), services.config.source.database)
    found = source_id(session, table, services.looks(session).ids(session, table))
    services.sources.check(name, found)
    services.sources.expect(name, found)
    return table


def check_different(services: Services, table: Table, state: State) -> None:
    """Raises TransientError if the rows differ because the source's address led to a server that is behind."""
    with services.reading("verify", table) as session:
        looks = services.looks(session)
        reading = Reading(table, state, services.config.options(table.name), looks.trust(session))
        check_caught_up(Source(session, looks, reading))


def check_compared(table: Table, found: Differences) -> None:
    """Refuses a comparison that left out every row: it has proven nothing."""
    if not found and not found.rows_source and found.left_out:
        rows = counted(found.left_out, "row")
        raise DataError(
            f"nothing could be compared: every row ({rows}) is after the watermark",
            hint=f"run floodmark sync -t {table.name} first",
            table=table.name,
        )


# ---------------------------------------------------------------- what to compare


def scope_of(
    services: Services, table: Table, state: State, only_keys: bool, also: Sequence[str] = ()
) -> tuple[Scope, list[str], bool]:
    """The columns and rows to compare, notes about those left out, and whether another tool brought the first rows."""
    if state.table is None or not (state.progress.started or state.has_data):
        raise ConfigError(
            "nothing to compare yet: the table was never synced",
            hint=f"run floodmark sync -t {table.name}",
            table=table.name,
        )
    options = services.config.options(table.name)
    check_recipe(table, state, options)
    if gone := vanished(state.table, table, options):
        with services.session("verify") as session:
            check_dropped(session, table, gone)
    kept, notes = comparable(table, state.table)
    if also or not only_keys:
        _must_fit(services, replace(table, source=replace(table.source, columns=kept)))
    can = services.config.warehouse.can
    parsed = frozenset() if can.embedded else parsed_columns(services, table)
    check_parsed(table, parsed)
    every = tuple(f for f in forms(table, can, parsed) if f.column in kept)
    named = {f.field.name: f for f in every}
    if not can.embedded and (left := [c.name for c in kept if c.name not in {f.column.name for f in every}]):
        notes.append(f"parsed JSON is not compared: {', '.join(left)}")
    beside = tuple(f for f in every if f.column.name in also and f.field.name not in table.key)
    chosen = (*(named[name] for name in table.key), *beside) if only_keys else every
    order = tuple(named[name] for name in table.order if name in named)
    if table.mode == "full" or table.cursor is None:
        return Scope(table, chosen), notes, False
    scope = Scope(
        table, chosen, order, state.progress.began, state.position, future(state.table, time.time())
    )
    if state.position is None and state.has_data:
        return replace(scope, low=_untouched(services, table, scope.future)), notes, False
    if state.progress.moved_at is None or (state.progress.began is not None and not only_keys):
        return scope, notes, False
    seen = stretches(Log(services.store, table.name), state)
    if scope.low is None:
        scope = replace(scope, low=seen.began)
    if not only_keys:
        return scope, notes, seen.taken_over
    # A search for deletes reads missing rows again, but not rows that someone skipped on purpose.
    return replace(scope, skipped=seen.skipped), notes, seen.taken_over


def _before(services: Services, scope: Scope, taken_over: bool) -> list[str]:
    """The note about rows that are not compared because they come before those that were read."""
    if scope.low is None:
        return []
    with services.session("verify") as session:
        rows = before_start(session, scope.table, scope.low)
    if not rows:
        return []
    what = "the position that was taken over from another tool" if taken_over else "the start"
    upto = place(scope.low[:1], apart=True)
    return [f"not compared: {counted(rows, 'row')} from before {what}, that is up to {upto}"]


def _untouched(services: Services, table: Table, future: Value | None) -> Position | None:
    """The start of a table without a position and with no rows after it but loose ones: a sync would open no window."""
    low = start_position(table, Starts(services.store, services.config).of(table.name).timestamp)
    with services.reading("verify", table) as session:
        empty = nth(session, table, table.order, low, None if future is None else (future,), 1) is None
    if empty:
        return low
    raise DataError(
        "there is no watermark to compare up to: the first extraction has not finished, or it was reset",
        hint=f"run floodmark sync -t {table.name} first",
        table=table.name,
    )


def _must_fit(services: Services, table: Table) -> None:
    """Refuses a target that lacks columns: an interrupted run may have described some but loaded nothing."""
    lacking = [c for c in services.warehouse().changes(table) if c.kind in ("add", "rename")]
    if lacking:
        raise DataError(
            f"{table.target} does not have every column yet ({'; '.join(c.statement for c in lacking)}), "
            "so source and warehouse can't agree",
            hint=f"run floodmark sync -t {table.name} first; if it has nothing to do, floodmark watermark reset "
            f"-t {table.name} reads the table again",
            table=table.name,
        )


def check_parsed(table: Table, parsed: Collection[str]) -> None:
    """Refuses parsed JSON in the key and the cursor: no row could be found by them."""
    needed = {*table.key, *table.order}
    for field in fields(table):
        if field.column in needed and field.target in parsed:
            raise DataError(
                f"column {field.target} of {table.target} is SUPER, but rows are found by it, so they can't be compared",
                hint="change its type: docs/redshift.md has the statements",
                table=table.name,
            )


def comparable(now: Table, then: Table) -> tuple[tuple[Column, ...], list[str]]:
    """The columns unchanged since rows were last read; the next sync takes care of the others."""
    before = {c.name: c for c in then.columns}
    needed = {*now.key, *now.order}
    kept = tuple(
        c
        for c in now.columns
        if c.name in needed
        or (c.name in before and (before[c.name].type, before[c.name].charset) == (c.type, c.charset))
    )
    left = [c.name for c in now.columns if c not in kept]
    notes = [f"columns changed since the last sync, not compared: {', '.join(left)}"] if left else []
    return kept, notes


# ---------------------------------------------------------------- second query


def _misread(services: Services, scope: Scope, state: State, sample: Sequence[Printed]) -> list[Printed]:
    """Those of some rows that differ as the servers print them, though their hashes agree; maybe out of date."""
    some = sample[:: max(1, -(-len(sample) // AT_ONCE))]
    if not some or _loaded(services, scope.table, state) is None:
        return []
    return list(some) if look_up(services, scope, some) else []


def _confirmed(
    services: Services,
    table: Table,
    state: State,
    suspects: Mapping[Printed, bool],
    only_keys: bool,
    also: Sequence[str] = (),
) -> Differences:
    """The suspects that really differ, judged at a moment when no other run is changing the table.

    A row that the warehouse has listed and that neither side has under its key, though no run has changed the
    table since, can't be named, but differs.
    """
    seen = state
    for number in range(TRIES):
        if number:
            time.sleep(PAUSE)
            state = Log(services.store, table.name).read()
        before = _loaded(services, table, state)
        if before is None:
            continue
        scope, *_ = scope_of(services, table, state, only_keys, also)
        found = Differences(**vars(look_up(services, scope, list(suspects))))
        if not found:
            lost = any(suspects[key] for key in found.nowhere) and not _changed(services, table, seen)
            return replace(found, agree=not lost)
        if _loaded(services, table, Log(services.store, table.name).read()) == before:
            return found
    raise _changing(table)


def _changing(table: Table) -> ConflictError:
    return ConflictError(
        "other runs keep changing the table, so no difference can be confirmed",
        hint="run verify again when they have finished",
        table=table.name,
    )


def _changed(services: Services, table: Table, state: State) -> bool:
    """Whether another run has written to the log since."""
    return _version(Log(services.store, table.name).read()) != _version(state)


def _version(state: State) -> object:
    return state.n, state.digest


def _loaded(services: Services, table: Table, state: State) -> object:
    """The log's version once everything is loaded; None while something waits to be loaded."""
    if waiting(services, table, state):
        return None
    return _version(state)


def waiting(services: Services, table: Table, state: State) -> int:
    """How many of the log's rows are not in the warehouse yet."""
    ledger = ledger_for(services.warehouse(), state, table.target)
    data = Log(services.store, table.name).data(state, ledger.rows)
    return sum(max(1, d.rows) for d in pending(data, ledger, state.load_epoch))


def loaded_state(services: Services, table: Table) -> State:
    """The log's state once all of it is loaded; waits while a live run is about to load the rest.

    Raises ConflictError if that run takes too long, DataError if rows wait and no run is loading them.
    """
    log, told = Log(services.store, table.name), False
    for _ in Retries(pause=PAUSE, factor=1, seconds=PATIENCE):
        state = log.read()
        # Read before the ledger: a holder that is gone by now has loaded all that it will.
        held = holder(log.store, log.table_name, state.claim)
        rows = waiting(services, table, state)
        if not rows:
            return state
        if held is None or not held.alive or services.interrupted:
            raise DataError(
                f"{counted(rows, 'row')} {'waits' if rows == 1 else 'wait'} to be loaded, "
                "so source and warehouse can't agree yet",
                hint=f"run floodmark sync -t {table.name} first",
                table=table.name,
            )
        who, what = held.describe(), counted(rows, "row")
        if not told:
            services.emit(Noted(table.name, f"waiting for {who} to load {what}"))
            told = True
    raise ConflictError(
        f"{who} still has {what} to load",
        hint="run verify again when it has finished",
        table=table.name,
    )
