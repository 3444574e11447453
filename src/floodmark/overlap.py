"""What a sync reads again besides its window: the stretch before the watermark, and rows without a place in the order."""

from __future__ import annotations

from floodmark import clock, plan
from floodmark.config import TableOptions
from floodmark.model import Position, Slice, Table
from floodmark.mysql import edges, sql
from floodmark.mysql.bounds import Trust
from floodmark.mysql.connect import Session
from floodmark.settle import Settled
from floodmark.state import State
from floodmark.units import duration


def read_again(
    session: Session,
    table: Table,
    state: State,
    options: TableOptions,
    low: Position | None,
    settled: Settled,
    trust: Trust,
    notes: list[str],
) -> tuple[tuple[Slice, ...], str | None]:
    """The slices of what is read again, and the fingerprint of the overlap among them; says why in `notes`."""
    if not table.key or not table.cursor:
        return (), None
    found: list[Slice] = []
    seconds, why = overlap_seconds(table, options, trust, settled)
    spread = clock.spread(settled.zone)
    fingerprint = None
    if state.position is not None and not state.manual:
        source_low = begins(table, state, options, low, settled, trust)
        if source_low is not None and low is not None:
            rows, places = edges.positions(session, table, source_low, low)
            mark = None
            if not plan.within_reach(table, low, settled.wall, seconds + spread):
                mark = "final"
            elif (state.overlap or "").startswith(f"{places}|"):
                # So soon after the watermark a row may change once more and keep its place.
                mark = edges.contents(session, table, source_low, low)
            if mark is None or state.overlap != f"{places}|{mark}":
                fingerprint = f"{places}|{mark}"
                found.append(Slice("overlap", 0, "cursor", source_low, low, rows=rows))
            if spread and settled.zone is not None:
                notes.append(_zone_changed(table, settled, source_low, spread))
    if why and seconds > 0:
        notes.append(
            f"the last {seconds:g} s before the watermark are read again by every sync: {'; '.join(why)}"
        )
    loose = _loose(session, table, state, settled)
    if loose is not None:
        found.append(loose)
        words = "NULL or zero cursor" if loose.zero else "NULL cursor"
        notes.append(f"{loose.rows:,} rows with a {words} or one in the future are read again by every sync")
    return tuple(found), fingerprint


def begins(
    table: Table, state: State, options: TableOptions, low: Position | None, settled: Settled, trust: Trust
) -> Position | None:
    """The position behind which rows are read again up to the watermark `low`, or None where none are."""
    seconds, _ = overlap_seconds(table, options, trust, settled)
    shift = settled.zone_shift
    return plan.overlap_from(table, low, state.began, seconds + clock.spread(settled.zone), shift)


def _zone_changed(table: Table, settled: Settled, source_low: Position, spread: float) -> str:
    assert settled.zone is not None
    since = str(source_low[0]).removesuffix(".000000")
    return (
        f"{clock.told(settled.zone)}: every sync reads the last {duration(spread)} before the watermark again, because"
        " connections keep the zone that they began with. When those from before the change are gone: "
        f"floodmark watermark set -t {table.name} --timestamp '{since}'"
    )


def _loose(session: Session, table: Table, state: State, settled: Settled) -> Slice | None:
    """Rows whose cursor is NULL, zero or in the future, if there are any."""
    assert table.cursor is not None
    beyond = settled.beyond
    if beyond is not None and not (settled.newest and plan.reaches(settled.newest[0], beyond)):
        beyond = None
    # Where everything was promised, `zero_dates: error` holds for cursors of 0000-00-00, too.
    everything = state.position is not None and state.began is None and state.moved_at is None
    zero = plan.temporal(table) and (table.zero_dates != "error" or everything)
    if not (table.column(table.cursor).nullable or zero or beyond is not None):
        return None
    rows = edges.count(session, table, [sql.loose(table, beyond, zero)])
    return Slice("loose", 1, beyond=beyond, zero=zero, rows=rows) if rows else None


def overlap_seconds(
    table: Table, options: TableOptions, trust: Trust, settled: Settled
) -> tuple[float, tuple[str, ...]]:
    """How far before the watermark rows are read again, and why."""
    if options.overlap_seconds is not None:
        return options.overlap_seconds, ("overlap_seconds is set",)
    reasons = list(trust.reasons)
    if table.unix:
        reasons.append(
            f"{table.cursor} tells the time (in {table.unix} since 1970) by the application's clock"
        )
    if plan.temporal(table) and table.cursor is not None:
        column = table.column(table.cursor)
        if not column.maintained:
            reasons.append(f"{column.name} is written by the application, not by ON UPDATE CURRENT_TIMESTAMP")
    seconds = plan.OVERLAP_SECONDS if reasons else 0.0
    behind = settled.behind
    if behind:
        zones = ", ".join(settled.zones) or "gone by now"
        reasons.append(
            f"sessions are in time zones of their own ({zones}), whose CURRENT_TIMESTAMP is up to {duration(behind)} earlier"
        )
        seconds += behind + clock.STEADY
    return seconds, tuple(reasons)
