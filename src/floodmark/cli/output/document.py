"""Pieces of documents for people: positions, lags, labelled lines and tables. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Sequence
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
    """`2025-08-14 15:30:22 (id 1250000)`; None before the first row."""
    at, ids = mark.last_mysql_data_timestamp, mark.last_mysql_data_id
    return place([at, *ids] if at else ids) if at or ids else None


def lag(mark: Watermark) -> str:
    """How far the extraction is behind the source, if that is known."""
    return behind(Lag(seconds=mark.lag_seconds, ids=mark.lag_ids))


def behind(lag: Lag) -> str:
    if lag.seconds is None and lag.ids is not None:
        return f"{count(lag.ids)} ids"
    return UNKNOWN if lag.seconds is None else duration(lag.seconds)


Paint = Callable[[int, int, str], str]


def _unpainted(row: int, column: int, cell: str) -> str:
    return cell


def table(rows: Sequence[Sequence[str]], right: Collection[int] = (), paint: Paint = _unpainted) -> list[str]:
    """Rows of cells as lines with aligned columns; those in `right` are numbers. `paint` colours a cell that already has its full width."""
    widths = [max(cells(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    lines = []
    for number, row in enumerate(rows):
        padded = []
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            blank = " " * (width - cells(cell))
            padded.append(paint(number, i, blank + cell if i in right else cell + blank))
        lines.append("  ".join(padded).rstrip())
    return lines


def fitted(
    rows: Sequence[Sequence[str]],
    width: int | None,
    right: Collection[int] = (),
    drop: Sequence[int] = (),
    paint: Paint = _unpainted,
) -> list[str] | None:
    """The same for a terminal: names of tables, in the first column, are shortened, and columns of `drop` go, one after another.

    A name that is still too long gets a line of its own. None: the lines are too wide anyway. The first row is the header.
    """
    if width is None:
        return table(rows, right, paint)
    widths = [max(cells(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number in range(len(drop) + 1):
        kept = [i for i in range(len(widths)) if i not in drop[:number]]
        room = width - sum(widths[i] + 2 for i in kept[1:])
        if room < min(LEAST_NAME, widths[0]):
            continue
        names = [rows[0][0], *shortened_alike([row[0] for row in rows[1:]], room)]
        narrow = [(name or "", *(row[i] for i in kept[1:])) for name, row in zip(names, rows, strict=True)]
        lines = _narrow(narrow, kept, right, paint)
        for n in reversed([n for n, name in enumerate(names) if name is None]):
            lines.insert(n, shortened(rows[n][0], width) or rows[n][0])
        return lines + _left_out(rows[0], drop[:number], width)
    return None


def _narrow(
    rows: Sequence[Sequence[str]], kept: Sequence[int], right: Collection[int], paint: Paint
) -> list[str]:
    """Rows that have only some columns, which are counted as before."""
    numbers = [n for n, i in enumerate(kept) if i in right]
    return table(rows, numbers, lambda row, column, cell: paint(row, kept[column], cell))


def _left_out(head: Sequence[str], columns: Sequence[int], width: int) -> list[str]:
    if not columns:
        return []
    names = ", ".join(dict.fromkeys(head[i].lower() for i in sorted(columns)))
    return indented("", f"Not shown, for lack of space: {names}. --json has everything.", width)


def indented(first: str, text: str, width: int | None) -> list[str]:
    """A text behind its label, on as many lines as the terminal needs."""
    if width is None:
        return [first + text]
    indent = " " * (len(first) if width - len(first) >= 20 else min(len(first), 16))
    lines = [
        line
        for part in text.split("\n")
        for line in textwrap.wrap(
            part, max(20, width - len(first)), break_on_hyphens=False, break_long_words=False
        )
    ]
    return [(first if number == 0 else indent) + line for number, line in enumerate(lines or [""])]


def folded(lines: Sequence[str], width: int | None) -> list[str]:
    """Labelled lines, none wider than the terminal."""
    if width is None:
        return list(lines)
    found = []
    for line in lines:
        parts = _LABELLED.fullmatch(line) if cells(_COLOUR.sub("", line)) > width else None
        label, text = parts.groups() if parts else ("", "")
        if not text:
            found.append(line)
        elif width - len(label) >= 20:
            found += indented(label, text, width)
        else:
            found += [
                label.rstrip(),
                *indented(label[: len(label) - len(label.lstrip())] + "  ", text, width),
            ]
    return found


def named(names: Sequence[str], most: int = 4) -> str:
    """The names of tables, and how many more there are beyond the first ones."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[: most - 1])} and {count(len(names) - most + 1)} more tables"


def card(name: str, said: Sequence[str], width: int) -> list[str]:
    """A row on a narrow terminal: its name, and its values below."""
    lines = [shortened(name, width) or name]
    return lines + [line for text in said for line in indented("  ", text, width)]
