"""Moments as people write them: timestamps, and the presets of the system watermark. Pure.

A moment carries no zone: it is read in the terms of whichever column it is compared with. Presets are counted
from the clock in UTC.
"""

from __future__ import annotations

import calendar
import re
from datetime import datetime, timedelta

_TIMESTAMP = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[ T](\d{2}:\d{2}:\d{2})(\.\d{1,6})?)?", re.ASCII)
_ZONED = re.compile(r":\d\d(\.\d+)?\s*(Z|UTC|[+-]\d\d:?(\d\d)?)$", re.IGNORECASE)
_DAY = re.compile(r"([a-z]+)[ -]?(\d{1,2})", re.ASCII)
_AGO = re.compile(r"(\d+) ?(hour|day|week|month)s?", re.ASCII)
# No zone is further ahead of UTC: later than this is the future everywhere.
_AHEAD = timedelta(hours=14)

PRESETS = (
    "a month and a day (aug4, december24: the latest that is not in the future), "
    "Nhours, Ndays, Nweeks or Nmonths ago (6hours, 1week), today, yesterday"
)


def timestamp(text: str, now: datetime | None = None) -> str:
    """`YYYY-MM-DD[ HH:MM:SS[.ffffff]]`, also with T, as `YYYY-MM-DD HH:MM:SS[.ffffff]`; else ValueError.

    With `now` (UTC), what lies in the future in every zone of the world is refused too.
    """
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None and _ZONED.search(text):
        raise ValueError(f"{text!r} has a zone; write it without, in the cursor column's own terms")
    if match is None:
        raise ValueError(f"{text!r} is not YYYY-MM-DD[ HH:MM:SS[.ffffff]]")
    day, time, fraction = match.group(1), match.group(2) or "00:00:00", match.group(3)
    plain = f"{day} {time}" + (fraction.ljust(7, "0") if fraction else "")
    try:
        moment = datetime.fromisoformat(plain)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a date and time that exists ({error})") from None
    if moment.year < 1970:
        raise ValueError(f"{text!r} is before 1970")
    if now is not None and moment > now.replace(tzinfo=None) + _AHEAD:
        raise ValueError(f"{text!r} is in the future; rows up to then would be left out")
    return plain


def preset(text: str, now: datetime) -> str:
    """The moment that a preset means at `now` (UTC), as `YYYY-MM-DD HH:MM:SS`; ValueError with the list for others."""
    clock = now.replace(tzinfo=None, microsecond=0)
    midnight = clock.replace(hour=0, minute=0, second=0)
    word = text.strip().lower()
    try:
        if word == "today":
            found: datetime | None = midnight
        elif word == "yesterday":
            found = midnight - timedelta(days=1)
        elif match := _AGO.fullmatch(word):
            found = _ago(clock, int(match[1]), match[2])
        elif (match := _DAY.fullmatch(word)) and (month := _month(match[1])):
            found = _latest(midnight, month, int(match[2]))
        else:
            found = None
    except OverflowError:
        raise ValueError(f"{text!r} is before 1970") from None
    if found is None:
        raise ValueError(f"{text!r} is no preset; there are {PRESETS}")
    if found.year < 1970:
        raise ValueError(f"{text!r} is before 1970")
    return f"{found:%Y-%m-%d %H:%M:%S}"


def _ago(clock: datetime, number: int, unit: str) -> datetime:
    if unit != "month":
        return clock - timedelta(**{f"{unit}s": number})
    months = clock.year * 12 + clock.month - 1 - number
    if months < 12:
        raise OverflowError
    year, month = months // 12, months % 12 + 1
    return clock.replace(year=year, month=month, day=min(clock.day, calendar.monthrange(year, month)[1]))


def _month(word: str) -> int | None:
    """The number of a month by its English name, long or short (`sep` and `sept` alike)."""
    names = [name.lower() for name in _NAMES]
    return next((i + 1 for i, name in enumerate(names) if word in (name, name[:3], name[:4])), None)


# Not calendar.month_name: that follows the locale.
_NAMES = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def _latest(midnight: datetime, month: int, day: int) -> datetime | None:
    """The latest such day that is not in the future; a 29 February may lie years back."""
    for year in range(midnight.year, midnight.year - 9, -1):
        if 1 <= day <= calendar.monthrange(year, month)[1]:
            found = midnight.replace(year=year, month=month, day=day)
            if found <= midnight:
                return found
    return None
