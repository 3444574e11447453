"""Presets for the system watermark, such as `aug4` or `1week`: times without a zone, based on UTC. Pure."""

from __future__ import annotations

import calendar
import re
from datetime import datetime, timedelta

_DAY = re.compile(r"([a-z]+)[ -]?(\d{1,2})", re.ASCII)
_AGO = re.compile(r"(\d+) ?(hour|day|week|month)s?", re.ASCII)

PRESETS = (
    "a month and a day (aug4, december24: the latest one not in the future), "
    "Nhours, Ndays, Nweeks or Nmonths ago (6hours, 1week), today, yesterday"
)


def preset(text: str, now: datetime) -> str:
    """A preset's time at `now` (UTC), as `YYYY-MM-DD HH:MM:SS`; ValueError listing the presets if unknown."""
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
        raise ValueError(f"{text!r} is not a preset; use {PRESETS}")
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
    """A month's number by its English name, long or short (`sep` or `sept`)."""
    return next((i + 1 for i, name in enumerate(_NAMES) if word in (name, name[:3], name[:4])), None)


# Not calendar.month_name: that follows the locale.
_NAMES = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip


def _latest(midnight: datetime, month: int, day: int) -> datetime | None:
    """The latest such day that is not in the future; a 29 February may be years back."""
    for year in range(midnight.year, midnight.year - 9, -1):
        if 1 <= day <= calendar.monthrange(year, month)[1]:
            found = midnight.replace(year=year, month=month, day=day)
            if found <= midnight:
                return found
    return None
