"""Formats numbers, sizes and times for people, and makes any text safe to show. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_LEAST_SCHEMA = 3  # letters of a schema that don't tell yet which one it is
# The colours that Floodmark itself writes.
_COLOUR = re.compile(r"(\x1b\[(?:0|3[123])m)")
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)?", re.ASCII)
# Characters that JSON allows unescaped but that control a terminal or mislead a reader.
_STEERING = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"
)


def shown(line: str, painted: bool = False) -> str:
    """A line made safe to show: nothing in it can control the terminal or break the line."""
    if line.isprintable():
        return line
    if painted:
        return "".join(p if n % 2 else shown(p) for n, p in enumerate(_COLOUR.split(line)))
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)


def shown_json(text: str) -> str:
    """The same for JSON text, without changing its meaning."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def count(number: int) -> str:
    """1250000 as `1,250,000`."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """1 as `1 row`, 1250000 as `1,250,000 rows`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size(number: int) -> str:
    """Bytes with the unit that fits: `512 B`, `83.1 MB`."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.95 or unit == "GB":
            return f"{number:,} B" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{number:,} B"


def duration(seconds: float) -> str:
    """`0.4 s`, `12.3 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    for big, small, names in ((86400, 3600, ("d", "h")), (3600, 60, ("h", "min")), (60, 1, ("min", "s"))):
        if whole >= big:
            rest = whole % big // small
            return f"{whole // big} {names[0]} {rest} {names[1]}" if rest else f"{whole // big} {names[0]}"
    return f"{whole} s"


def span(seconds: float) -> str:
    """A running time, without fractions: `0 s`, `12 s`, `4 min 10 s`."""
    return duration(round(seconds)) if seconds >= 59.5 else f"{round(max(seconds, 0.0))} s"


def rate(rows: int, seconds: float, noun: str = "row") -> str:
    """`312,000 rows/s`; empty if there is nothing to report."""
    if rows <= 0 or seconds <= 0:
        return ""
    speed = rows / seconds
    return f"{speed:,.0f} {noun}s/s" if speed >= 10 else f"{speed:.1f} {noun}s/s"


def clock(text: str | None, digits: int = 0) -> str | None:
    """`2025-08-14T16:45:33.123456Z` as `2025-08-14 16:45:33 UTC`, with `digits` of the fraction."""
    if not text:
        return None
    whole, _, fraction = text.replace("T", " ").removesuffix("Z").partition(".")
    return f"{whole}.{fraction[:digits]} UTC" if digits else f"{whole} UTC"


def data_time(text: str | None) -> str | None:
    """A column's `2025-08-14T15:30:22.000000` as `2025-08-14 15:30:22`; a nonzero fraction stays."""
    if not text:
        return None
    whole, _, digits = text.replace("T", " ").partition(".")
    return f"{whole}.{digits}" if digits.strip("0") else whole


def place(position: Sequence[object], apart: bool = False) -> str:
    """A position as every output spells it: `2025-08-14 15:30:22 (id 1250000)`, or `id 1250000`.

    `apart`: the first value is a cursor of its own, even if it is not a time: `1755185422 (id 1250000)`.
    """
    first, *rest = position
    timed = isinstance(first, str) and _TIME.fullmatch(first) is not None
    if not timed and not apart:
        return "id " + ", ".join(map(str, position))
    at = (data_time(first) if isinstance(first, str) and timed else None) or str(first)
    return f"{at} (id {', '.join(map(str, rest))})" if rest else at


def shortened(name: str, room: int) -> str | None:
    """A table's name, cut from the left; None where even its own part does not fit."""
    if cells(name) <= room:
        return name
    schema, dot, own = name.partition(".")
    rest = room - cells(own) - 2
    if dot and rest >= 1:
        while cells(schema) > rest:
            schema = schema[1:]
        return f"…{schema}.{own}"
    return own if dot and cells(own) <= room else None


def shortened_alike(names: Sequence[str], room: int) -> list[str | None]:
    """The names of a list, cut from the left; where too little of a schema is left, all its tables go without it."""
    cut = [shortened(name, room) for name in names]
    bare = {
        name.partition(".")[0]
        for name, short in zip(names, cut, strict=True)
        if short not in (None, name) and cells(str(short).rpartition(".")[0]) <= _LEAST_SCHEMA
    }
    return [
        shortened(name.partition(".")[2], room) if short and name.partition(".")[0] in bare else short
        for name, short in zip(names, cut, strict=True)
    ]


def cells(text: str) -> int:
    """How many columns a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
