"""Pieces of documents for people: positions, lags, labelled lines and tables. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from floodmark.model.run import Lag
from floodmark.model.text import cells, count, duration, place, shortened, shortened_alike

if TYPE_CHECKING:
    from floodmark.model.results import Watermark

UNKNOWN = "unknown"
_COLOUR = re.compile(r"\x1b\[\d*m")
_LABELLED = re.compile(r"( *(?:\S(?:.*?\S)?  +(?=\S))?)(.*)")
LEAST_NAME = 12  # columns for tables' names; with fewer, each table has lines of its own


def position(mark: Watermark) -> str | None:
    """`2025-08-14 15:30:22 (id 1250000)` or `2025-08-14 15:30:22 (binlog.000042:1234)`; None before the first row."""
    at, ids = mark.last_mysql_data_timestamp, mark.last_mysql_data_id
    if mark.log_place is not None:
        return f"{place([at])} ({mark.log_place})" if at else mark.log_place
    return place([at, *ids] if at else ids) if at or ids else None


def lag(mark: Watermark) -> str:
    """How far the extraction is behind the source, if that is known."""
    return behind(Lag(seconds=mark.lag_seconds, ids=mark.lag_ids))


def behind(lag: Lag) -> str:
    if lag.seconds is None and lag.ids is not None:
        return f"{count(lag.ids)} ids"
    return UNKNOWN if lag.seconds is None else duration(lag.seconds)


def colour(text: str, code: str | None) -> str:
    """The text in a colour of the terminal; as it is without one."""
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


def table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Rows of cells as lines with aligned columns; those in `right` are numbers."""
    widths = [max(map(_wide, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        blanks = [" " * (width - _wide(cell)) for cell, width in zip(row, widths, strict=True)]
        padded = [
            b + cell if i in right else cell + b for i, (cell, b) in enumerate(zip(row, blanks, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def _wide(cell: str) -> int:
    return cells(_COLOUR.sub("", cell))


def fit(
    rows: Sequence[Sequence[str]], width: int | None, right: Collection[int] = (), drop: Sequence[int] = ()
) -> list[str] | None:
    """The same for a terminal: names of tables, in the first column, are shortened, and columns of `drop` go, one after another.

    A name that is still too long gets a line of its own. None: the lines are too wide anyway. The first row is the header.
    """
    if width is None:
        return table(rows, right)
    widths = [max(map(_wide, column)) for column in zip(*rows, strict=True)]
    for number in range(len(drop) + 1):
        kept = [i for i in range(len(widths)) if i not in drop[:number]]
        room = width - sum(widths[i] + 2 for i in kept[1:])
        if room < min(LEAST_NAME, widths[0]):
            continue
        names = [rows[0][0], *shortened_alike([row[0] for row in rows[1:]], room)]
        narrow = [(name or "", *(row[i] for i in kept[1:])) for name, row in zip(names, rows, strict=True)]
        lines = table(narrow, [n for n, i in enumerate(kept) if i in right])
        for n in reversed([n for n, name in enumerate(names) if name is None]):
            lines.insert(n, shortened(rows[n][0], width) or rows[n][0])
        if number:
            gone = ", ".join(dict.fromkeys(rows[0][i].lower() for i in sorted(drop[:number])))
            lines += indent("", f"Not shown, for lack of space: {gone}. --json has everything.", width)
        return lines
    return None


def indent(first: str, text: str | Iterable[str], width: int | None) -> list[str]:
    """A text behind its label, on as many lines as the terminal needs; or several texts, each behind it."""
    if not isinstance(text, str):
        return [line for one in text for line in indent(first, one, width)]
    if width is None:
        return [first + text]
    blank = " " * (len(first) if width - len(first) >= 20 else min(len(first), 16))
    room = max(20, width - len(first))
    lines = [
        line
        for part in text.split("\n")
        for line in textwrap.wrap(part, room, break_on_hyphens=False, break_long_words=False)
    ]
    return [(blank if number else first) + line for number, line in enumerate(lines or [""])]


def label(texts: Iterable[tuple[str, str]], width: int | None) -> list[str]:
    """Texts behind their labels."""
    return [line for label, text in texts for line in indent(f"  {label:<14}", text, width)]


def fold(lines: Sequence[str], width: int | None) -> list[str]:
    """Labelled lines, none wider than the terminal."""
    if width is None:
        return list(lines)
    found = []
    for line in lines:
        parts = _LABELLED.fullmatch(line) if _wide(line) > width else None
        label, text = parts.groups() if parts else ("", "")
        if not text:
            found.append(line)
        elif width - len(label) >= 20:
            found += indent(label, text, width)
        else:
            found += [
                label.rstrip(),
                *indent(label[: len(label) - len(label.lstrip())] + "  ", text, width),
            ]
    return found


def list_names(names: Sequence[str], most: int = 4) -> str:
    """The names of tables, and how many more there are beyond the first ones."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {count(len(names) - most + 1)} more tables"


def card(name: str, said: Sequence[str], width: int) -> list[str]:
    """A row on a narrow terminal: its name, and its values below."""
    return [shortened(name, width) or name, *indent("  ", said, width)]
