"""Rows that a sync reads again besides its window: finds those that `overlap` calls for and slices them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from floodmark.log.fold import State
from floodmark.model import zones as clock
from floodmark.model.errors import DataError
from floodmark.model.position import Position
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.window import Slice
from floodmark.plan import overlap
from floodmark.plan.bound import Settled
from floodmark.plan.wait import Source
from floodmark.source import ranges as edges
from floodmark.source import sql
from floodmark.source.session import Session


@dataclass(frozen=True)
class Again:
    """The slices to read again, and why."""

    slices: tuple[Slice, ...] = ()
    overlap: str | None = None  # fingerprint of the overlap among them
    notes: tuple[str, ...] = ()


def read_again(source: Source, settled: Settled) -> Again:
    """Slices to read again: the stretch before the watermark if it changed, and rows outside the order."""
    table, reading = source.table, source.reading
    if not table.key or not table.cursor:
        _check_cursors(source.session, table, source.reading.state)
    if not table.cursor:
        return Again()
    seconds = overlap.overlap_seconds(reading, settled)
    why = "; ".join(overlap.because(reading, settled)) if seconds > 0 else ""
    if not table.key:
        if why and not reading.trust.sees_engine:
            raise DataError(
                f"open transactions of engine {reading.trust.engine} can't be seen, and without a key nothing can be read"
                " again: their rows would be missing",
                hint=f"set tables.{table.name}.mode: full, or overlap_seconds: 0 if no transaction writes to it",
                table=table.name,
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
    if table.cursor is None:
        return
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
        table=table.name,
    )
