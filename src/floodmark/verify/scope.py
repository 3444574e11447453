"""What is compared: the columns and rows that the log's state promises.

Rows that match `where`, after the start and up to the watermark. Those after it are left out on both sides by their
keys; whether a row exists is judged by its key alone. Rows without a place in the change order are compared too.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.log.pipeline import Starts
from floodmark.log.stretches import stretches
from floodmark.model.canonical import Scope, forms
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.position import Position, Value
from floodmark.model.table import Column, Table
from floodmark.model.text import counted, place
from floodmark.model.types import fields
from floodmark.plan.decide import start_position
from floodmark.plan.make import before_start
from floodmark.plan.overlap import future
from floodmark.plan.reread import check as check_recipe
from floodmark.plan.reread import check_dropped, vanished
from floodmark.services import Services
from floodmark.source.ranges import nth


def scope_of(
    services: Services, table: Table, state: State, only_keys: bool, also: Sequence[str] = ()
) -> tuple[Scope, list[str], bool]:
    """The columns and rows to compare, notes about those left out, and whether another tool brought the first rows."""
    if state.table is None or not (state.progress.started or state.has_data):
        raise ConfigError(
            "nothing to compare yet: the table was never synced", hint=f"run floodmark sync -t {table.name}"
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
    if table.follows and state.followed_to is None and state.position is None:
        raise _no_watermark(table)
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


def rows_before(services: Services, scope: Scope, taken_over: bool) -> list[str]:
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
    raise _no_watermark(table)


def _no_watermark(table: Table) -> DataError:
    return DataError(
        "there is no watermark to compare up to: the first extraction has not finished, or it was reset",
        hint=f"run floodmark sync -t {table.name} first",
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
        )


def check_parsed(table: Table, parsed: Collection[str]) -> None:
    """Refuses parsed JSON in the key and the cursor: no row could be found by them."""
    needed = {*table.key, *table.order}
    for field in fields(table):
        if field.column in needed and field.target in parsed:
            raise DataError(
                f"column {field.target} of {table.target} is SUPER, but rows are found by it, so they can't be compared",
                hint="change its type: docs/redshift.md has the statements",
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


def parsed_columns(services: Services, table: Table) -> frozenset[str]:
    """The target's columns of parsed JSON: whoever created the target may have made text such a column."""
    types, can = services.warehouse().types(table.target) or {}, services.config.warehouse.can
    return frozenset(name for name, type_ in types.items() if type_.upper() == can.parsed)
