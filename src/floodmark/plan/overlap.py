"""How far before the watermark rows are read again, and why; which rows have no place in the order. Pure.

Rows before the watermark are read again if the source may not show all open work, if applications write the
cursor (each by its own clock), or if a clock or a time zone went back.
"""

from __future__ import annotations

from collections.abc import Iterator

from floodmark.log.fold import State
from floodmark.model import zones as clock
from floodmark.model.errors import DataError
from floodmark.model.open_work import MEMBERSHIPS
from floodmark.model.position import Position, Value
from floodmark.model.table import Table
from floodmark.model.text import duration
from floodmark.model.times import shifted, temporal
from floodmark.model.window import Slice
from floodmark.model.zones import FUTURE_SLACK
from floodmark.plan.bound import Reading, Settled

# How many ids are read again if the source can't tell which transactions are open.
ID_OVERLAP = 10_000
OVERLAP_SECONDS = 600.0
# Whatever its zone, no clock that is right writes a cursor so many seconds ahead of UTC, not even while a verify runs.
FAR_AHEAD = 2 * 86_400


# ---------------------------------------------------------------- how far back


def by_application(table: Table) -> bool:
    """Whether the cursor is a time written by applications, whose clocks differ."""
    if table.cursor is None:
        return False
    return table.recipe.unix is not None or (temporal(table) and not table.column(table.cursor).maintained)


def overlap_seconds(reading: Reading, settled: Settled) -> float:
    """How many seconds before the watermark rows are read again."""
    if reading.options.overlap_seconds is not None:
        return reading.options.overlap_seconds
    trusted = reading.trust.complete and not by_application(reading.table)
    seconds = 0.0 if trusted else OVERLAP_SECONDS
    return seconds + (settled.behind + clock.STEADY if settled.behind else 0.0)


def because(reading: Reading, settled: Settled) -> Iterator[str]:
    """The reasons for the overlap, in words."""
    table, trust = reading.table, reading.trust
    if reading.options.overlap_seconds is not None:
        yield "overlap_seconds is set"
        return
    if not trust.sight.process:
        yield "the user has no PROCESS privilege, so open transactions can't be seen"
    if trust.replica:
        yield "the server is a replica or read-only, so rows arrive later than their cursor says"
    if trust.member_of is not None:
        yield f"the server is {MEMBERSHIPS[trust.member_of]}, whose other members' transactions can't be seen"
    if not trust.sees_engine:
        yield f"its engine is {trust.engine}, whose open transactions can't be seen"
    if table.recipe.unix:
        yield f"{table.cursor} is Unix time (in {table.recipe.unix}) from the application's clock"
    elif by_application(table):
        yield f"{table.cursor} is written by the application, not by ON UPDATE CURRENT_TIMESTAMP"
    if settled.behind:
        zones = ", ".join(settled.zones) or "gone by now"
        earlier = duration(settled.behind)
        yield f"some sessions use other time zones ({zones}), whose CURRENT_TIMESTAMP is up to {earlier} earlier"


def begins(reading: Reading, settled: Settled) -> Position | None:
    """The position after which rows are read again, up to the watermark `low`; None if none are."""
    seconds = overlap_seconds(reading, settled) + clock.spread(settled.zone)
    return overlap_from(reading.table, reading.low, reading.state.progress.began, seconds, settled.zone_shift)


def overlap_from(
    table: Table, low: Position | None, floor: Position | None, seconds: float, zone_shift: str | None
) -> Position | None:
    """The position after which rows are read again, up to `low`; None if none are."""
    if low is None or not table.key or not table.cursor:
        return None
    first = low[0]
    if not temporal(table):
        if seconds <= 0 or not isinstance(first, int):
            return None
        unit = table.recipe.unix
        return (max(0, first - clock.count(seconds, unit)) if unit else first - ID_OVERLAP,)
    starts = []
    if seconds > 0:
        starts.append(shifted(str(first), -seconds))
    if zone_shift is not None and zone_shift <= str(first):
        starts.append(shifted(zone_shift, -1e-6))
    if not starts:
        return None
    start: Value = min(starts)
    if table.column(table.cursor).data_type == "date":
        start = str(start)[:10]
    if floor is not None and str(floor[0]) > str(start):
        start = floor[0]
    return (start,) if str(start) < str(first) or table.column(table.cursor).data_type == "date" else None


# ---------------------------------------------------------------- whether the overlap has changed


def is_final(reading: Reading, settled: Settled) -> bool:
    """Whether no row can be written any more with a cursor up to the watermark."""
    seconds = overlap_seconds(reading, settled) + clock.spread(settled.zone)
    return reading.low is None or not within_reach(reading.table, reading.low, settled.wall, seconds)


def has_places(fingerprint: str | None, places: str) -> bool:
    """Whether the overlap read last had rows at the same positions."""
    return (fingerprint or "").startswith(f"{places}|")


def fingerprint(places: str, contents: str | None) -> str:
    """Identifies an overlap: the positions of its rows and, where it matters, their contents."""
    return f"{places}|{contents}"


def with_loose(overlap: str, loose: str) -> str:
    """The fingerprint as it is kept: of the overlap, and of the loose rows outside `where`, if there are any."""
    return f"{overlap}|{loose}" if loose else overlap or "|"


def parts(kept: str | None) -> tuple[str, str]:
    """Both fingerprints; only that of the loose rows ends with a count and a sum."""
    overlap, _, loose = (kept or "").rpartition("|")
    return (overlap, loose) if ":" in loose else (kept or "", "")


def reaches(value: Value, other: Value) -> bool:
    """Whether a cursor is at or after another one; a DATE counts as every time of its day."""
    if isinstance(value, int) and isinstance(other, int):
        return value >= other
    return str(value) >= str(other)[: len(str(value))]


def within_reach(table: Table, low: Position, wall: Value | None, seconds: float) -> bool:
    """Whether a cursor up to `low` may still be written, as of `wall`, by rows up to `seconds` late."""
    if wall is None:
        return False
    if table.recipe.unix:
        return reaches(low[0], int(wall) - clock.count(seconds, table.recipe.unix))
    return reaches(low[0], shifted(str(wall), -seconds))


# ---------------------------------------------------------------- a clock that was set back, or its zone changed


def clock_notes(reading: Reading, settled: Settled) -> list[str]:
    """Notes on a clock that was set back; refuses if rows would surely be missing and can't be read again."""
    table, state = reading.table, reading.state
    if settled.zone is not None and settled.zone.others and not table.key:
        raise DataError(
            f"{clock.zone_change(settled.zone)}: rows written since may be before the watermark",
            hint="the table has no key, so they alone can't be read again: empty the target and reset the table "
            f"with --force, or continue without them: floodmark watermark set -t {table.name} with the time of the watermark",
        )
    check_not_in_the_future(table, state, settled)
    if not settled.back:
        return []
    said = f"the source's clock was set back by {settled.back:,.0f} s since the watermark, measured by this machine's clock"
    if table.key:
        return [f"{said}: rows from {settled.zone_shift} on are read again"]
    if (
        state.progress.bound is not None
        and settled.bound is not None
        and settled.bound < state.progress.bound
    ):
        raise DataError(
            f"{said}: rows written since may be before the watermark",
            hint="the table has no key, so they alone can't be read again: reset the table with --force, or "
            f"continue without them: floodmark watermark set -t {table.name} with the time of the watermark",
        )
    return [f"{said}: rows written in between may be before the watermark, and there is no key to merge by"]


def check_not_in_the_future(table: Table, state: State, settled: Settled) -> None:
    """Refuses a watermark in the future, as set by an earlier version that took a clock for a counter."""
    if not table.recipe.unix or state.position is None or settled.bound is None:
        return
    if reaches(state.position[0], clock.count(settled.bound + FUTURE_SLACK, table.recipe.unix)):
        raise DataError(
            f"the watermark {state.position[0]}, as Unix time in {table.recipe.unix}, is in the future: rows written since were left out",
            hint=f"read the table again: floodmark watermark reset -t {table.name} --mysql-only",
        )


# ---------------------------------------------------------------- rows without a place in the order


def loose(reading: Reading, settled: Settled) -> Slice | None:
    """A slice of the rows whose cursor is NULL, zero or in the future; None if there can't be any."""
    beyond = settled.beyond
    if beyond is not None and not (settled.newest and reaches(settled.newest[0], beyond)):
        beyond = None
    zero = zero_is_loose(reading.table, reading.state)
    if not (reading.cursor.nullable or zero or beyond is not None):
        return None
    return Slice("loose", 1, beyond=beyond, zero=zero)


def future(table: Table, now: float) -> Value | None:
    """The cursor from which on rows are certainly loose, in whatever zone it is written; None if no row can be."""
    if not table.key or not table.cursor:
        return None  # without a key, rows in the future are read when their time has come
    if table.recipe.unix:
        return clock.count(now + FAR_AHEAD, table.recipe.unix)
    if not temporal(table):
        return None
    wall = clock.text(now + FAR_AHEAD)
    return wall[:10] if table.column(table.cursor).data_type == "date" else wall


def zero_is_loose(table: Table, state: State) -> bool:
    """Whether to look for rows with a cursor of 0000-00-00, which no window contains."""
    # If all rows were promised, `zero_dates: error` applies to such cursors, too.
    everything = (
        state.position is not None and state.progress.began is None and state.progress.moved_at is None
    )
    return temporal(table) and (table.recipe.zero_dates != "error" or everything)


# ---------------------------------------------------------------- in words


def said_missed(why: str) -> str:
    return (
        f"rows that arrive with a cursor before the watermark are missed, and without a key nothing can be read "
        f"again: {why}. Set `overlap_seconds: 0` if there are none, or `mode: full`"
    )


def said_again(reading: Reading, seconds: float, why: str) -> str:
    """How far back every sync reads, why, and what that does not cover."""
    if not temporal(reading.table) and not reading.table.recipe.unix:
        stretch = f"{ID_OVERLAP:,} ids"
        missed = (
            f"A row whose id is more than {ID_OVERLAP:,} below the watermark when it is committed is missed."
        )
    else:
        stretch = f"{seconds:g} s"
        missed = f"A row that is committed more than {seconds:g} s after its cursor is missed: `overlap_seconds` sets that limit."
    covered = reading.trust.complete and not by_application(reading.table)
    return f"Every sync reads the last {stretch} before the watermark again: {why}." + (
        "" if covered else f" {missed}"
    )


def said_zone(reading: Reading, settled: Settled, begin: Position) -> str:
    assert settled.zone is not None
    since = str(begin[0]).removesuffix(".000000")
    return (
        f"{clock.zone_change(settled.zone)}: every sync reads the last {duration(clock.spread(settled.zone))} before the"
        " watermark again, because open connections keep their old time zone. Once those are closed: "
        f"floodmark watermark set -t {reading.table.name} --timestamp '{since}'"
    )


def said_loose(rows: Slice) -> str:
    words = "NULL or zero cursor" if rows.zero else "NULL cursor"
    return f"{rows.rows:,} rows with a {words} or one in the future are read again by every sync"
