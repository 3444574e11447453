"""Times as text: one parser, one stamp, one "just before this cursor". Pure.

There are two kinds. A moment is a point in time: UTC with a `Z`, as in the log, the ledger and the leases. A
wall clock has no zone: it is what a cursor holds and what people write, in the terms of the column it is
compared with. Nothing here converts a wall clock between zones.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line imports this module before it needs the model
    from floodmark.model.position import Value
    from floodmark.model.table import Table

# Types of columns that hold a date, with or without a time.
TEMPORAL = frozenset({"date", "datetime", "timestamp"})
# A moment's format, in codes that Python and DuckDB share.
STAMP = "%Y-%m-%dT%H:%M:%S.%fZ"

_WRITTEN = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?)?", re.ASCII)
_ZONED = re.compile(r":\d\d(\.\d+)?\s*(Z|UTC|[+-]\d\d:?(\d\d)?)$", re.IGNORECASE)
# No zone is further ahead of UTC, so anything later is in the future everywhere.
_AHEAD = timedelta(hours=14)
_DAY = 86_400


def parse_time(text: str) -> datetime:
    """Parses a time in any ISO format, with its zone if given; else ValueError."""
    return datetime.fromisoformat(text.strip())


# ---------------------------------------------------------------- moments


def stamp(moment: datetime | None = None) -> str:
    """A moment, by default now, in the one format used everywhere: UTC, microseconds, Z."""
    return (moment or datetime.now(UTC)).astimezone(UTC).strftime(STAMP)


def compact(moment: datetime) -> str:
    """A moment (UTC) as used in run ids, `20250819_153000`; the first eight digits are the day."""
    return f"{moment:%Y%m%d_%H%M%S}"


def begun(run: str) -> str:
    """When a run began, by its id: `20250819_153000_ab12` → `2025-08-19T15:30:00.000000Z`."""
    return stamp(datetime.strptime(run[:15], "%Y%m%d_%H%M%S").replace(tzinfo=UTC))


def parse_moment(text: str) -> datetime:
    """A moment as written by us or by a person; UTC unless it has a zone."""
    found = parse_time(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def ago(now: datetime, seconds: float) -> datetime:
    """The moment this many seconds ago, or the earliest one possible."""
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


# ---------------------------------------------------------------- wall clocks


def wall_clock(time: datetime) -> str:
    """A time without its zone, with microseconds, as MySQL prints DATETIME(6)."""
    return time.replace(tzinfo=None).isoformat(" ", "microseconds")


def shifted(wall: str, seconds: float) -> str:
    """The wall clock this many seconds later, but not before the first day of year 1."""
    try:
        return wall_clock(parse_time(wall) + timedelta(microseconds=round(seconds * 1e6)))
    except OverflowError:
        return wall_clock(datetime.min)


def data_timestamp(value: Value) -> str | None:
    """A cursor's time as `2025-08-14T15:30:22.000000`, even a zero date; None for anything else."""
    found = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    day, time, fraction = found.groups()
    return f"{day}T{time or '00:00:00'}.{(fraction or '').ljust(6, '0')}"


# ---------------------------------------------------------------- cursors


def temporal(table: Table) -> bool:
    """Whether the cursor is a time, rather than an id or a version."""
    return table.cursor is not None and table.column(table.cursor).data_type in TEMPORAL


def cursor_value(table: Table, timestamp: str) -> str:
    """A time written by the user, in the cursor's format."""
    return _as_cursor(table, wall_clock(parse_time(timestamp)))


def just_before(table: Table, *values: Value) -> Value | None:
    """The cursor's value just before the lowest of these; None if it can't be determined."""
    value = min(values, key=sortable)
    if isinstance(value, int):
        return value - 1
    if not temporal(table):
        return None
    try:
        return _as_cursor(table, shifted(value, -_DAY if _by_day(table) else -1e-6))
    except ValueError:  # a zero date
        return None


def sortable(value: Value) -> tuple[int, str]:
    """Sort key for a cursor value among others of its column."""
    return (value, "") if isinstance(value, int) else (0, value)


def _as_cursor(table: Table, wall: str) -> str:
    return wall[:10] if _by_day(table) else wall


def _by_day(table: Table) -> bool:
    assert table.cursor is not None
    return table.column(table.cursor).data_type == "date"


# ---------------------------------------------------------------- what people write


def timestamp(text: str, now: datetime | None = None) -> str:
    """`YYYY-MM-DD[ HH:MM:SS[.ffffff]]`, also with T, as `YYYY-MM-DD HH:MM:SS[.ffffff]`; else ValueError.

    With `now` (UTC), also rejects times that are in the future in every time zone.
    """
    try:
        plain = spelled(text)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None
    if parse_time(plain).year < 1970:
        raise ValueError(f"{text!r} is before 1970")
    if now is not None and parse_time(plain) > now.replace(tzinfo=None) + _AHEAD:
        raise ValueError(f"{text!r} is in the future; rows up to then would be left out")
    return plain


def spelled(text: str) -> str:
    """A timestamp in canonical form; else a ValueError that says what is wrong without quoting the text."""
    match = _WRITTEN.fullmatch(text.strip())
    if match is None and _ZONED.search(text):
        raise ValueError("has a time zone; leave it out, and write the time as the cursor column has it")
    if match is None:
        raise ValueError("is not YYYY-MM-DD[ HH:MM:SS[.ffffff]]")
    day, time, fraction = match.groups()
    plain = f"{day} {time or '00:00:00'}" + (f".{fraction.ljust(6, '0')}" if fraction else "")
    try:
        parse_time(plain)
    except ValueError as error:
        raise ValueError(f"is not a date and time that exists ({error})") from None
    return plain
