"""Pieces of documents for people: positions, lags, labelled lines and tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from floodmark.cli.output.emit import Document
from floodmark.model.text import count, data_time, duration

UNKNOWN = "unknown"


def position(document: Document) -> str | None:
    """`2025-08-14 15:30:22 (id 1250000)`; None before the first row."""
    at, ids = data_time(document.get("last_mysql_data_timestamp")), document.get("last_mysql_data_id")
    key = "id " + ", ".join(str(part) for part in ids) if ids else None
    return f"{at} ({key})" if at and key else at or key


def lag(document: Document) -> str:
    """How far the extraction is behind the source, if that is known."""
    return behind(document.get("lag_seconds"), document.get("lag_ids"))


def behind(seconds: float | None, ids: int | None) -> str:
    if seconds is None and ids is not None:
        return f"{count(int(ids))} ids"
    return UNKNOWN if seconds is None else duration(float(seconds))


def said(label: str, value: str) -> list[str]:
    return [f"  {label:<14}{value}"]


def table(
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    paint: Callable[[int, int, str], str] = lambda row, column, cell: cell,
) -> list[str]:
    """Rows of cells as lines with aligned columns; those in `right` are numbers. `paint` colours a cell that already has its full width."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    lines = []
    for number, row in enumerate(rows):
        cells = (
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(paint(number, i, cell) for i, cell in enumerate(cells)).rstrip())
    return lines
