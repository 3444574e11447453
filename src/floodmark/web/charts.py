"""Charts as SVG: sparklines, bars, lines, a timeline of runs. Pure, without inline styles.

Charts are only for the eye: they are hidden from screen readers, and the page has their figures in a table.
Colours come from classes of the style sheet; shapes show the outcome too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Literal

from markupsafe import Markup

from floodmark.model.text import shown
from floodmark.model.times import parse_moment

Outcome = Literal["ok", "failed", "held"]


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def sparkline(values: Sequence[float | None], width: int = 96, height: int = 22) -> Markup:
    """A small line; gaps where a value is unknown. Flat at the bottom if all are zero."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup("")
    most = max(known) or 1.0
    step = (width - 4) / max(1, len(values) - 1)
    places = [
        None if value is None else (2 + i * step, height - 3 - (height - 6) * value / most)
        for i, value in enumerate(values)
    ]
    path, pen_up = "", True
    for place in places:
        if place is None:
            pen_up = True
            continue
        path += f"{'M' if pen_up else 'L'}{_n(place[0])} {_n(place[1])}"
        pen_up = False
    last = next(place for place in reversed(places) if place is not None)
    return Markup(
        f'<svg class="spark" width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-hidden="true">'
        f'<path d="{path}"/><circle cx="{_n(last[0])}" cy="{_n(last[1])}" r="2"/></svg>'
    )


@dataclass(frozen=True)
class Point:
    """One value of a chart: its time, its value, and its tooltip."""

    at: str
    value: float | None
    said: str
    outcome: Outcome = "ok"


WIDTH, HEIGHT = 360, 130
LEFT, BOTTOM, TOP = 2, 22, 20


def _frame(body: str, top: str, first: str, last: str, kind: str) -> Markup:
    base = HEIGHT - BOTTOM
    return Markup(
        f'<svg class="chart {kind}" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">'
        f'<line class="grid" x1="{LEFT}" y1="{TOP}" x2="{WIDTH - LEFT}" y2="{TOP}"/>'
        f'<line class="grid" x1="{LEFT}" y1="{_n((TOP + base) / 2)}" x2="{WIDTH - LEFT}" y2="{_n((TOP + base) / 2)}"/>'
        f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - LEFT}" y2="{base}"/>{body}'
        f'<text x="{LEFT}" y="{TOP - 5}">{escape(top)}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{escape(first)}</text>'
        f'<text class="end" x="{WIDTH - LEFT}" y="{HEIGHT - 6}">{escape(last)}</text></svg>'
    )


def bars(points: Sequence[Point], top: str) -> Markup:
    """A bar for each point, oldest first; a failed one has a cross above it."""
    if not points:
        return Markup("")
    most = max((point.value or 0.0 for point in points), default=0.0) or 1.0
    base, step = HEIGHT - BOTTOM, min(28.0, (WIDTH - 2 * LEFT) / len(points))
    body = ""
    for i, point in enumerate(points):
        tall = (base - TOP) * (point.value or 0.0) / most
        tall = max(tall, 1.5) if point.value else 0.0
        x = LEFT + i * step
        body += f"<g><title>{escape(point.said)}</title>"
        body += (
            f'<rect class="{point.outcome}" x="{_n(x + 1)}" y="{_n(base - tall)}" '
            f'width="{_n(max(1.0, step - 2))}" height="{_n(tall)}" rx="1"/>'
        )
        if point.outcome == "failed":
            mid, y = x + step / 2, base - tall - 7
            body += f'<path class="cross" d="M{_n(mid - 3)} {_n(y - 3)}l6 6m0 -6l-6 6"/>'
        body += "</g>"
    return _frame(body, top, points[0].at, points[-1].at, "bars")


def line(points: Sequence[Point], top: str, target: float | None = None) -> Markup:
    """A line through the points that are known, oldest first; the target as a dashed line where it fits."""
    known = [point.value for point in points if point.value is not None]
    if len(known) < 2:
        return Markup("")
    most = max(known) or 1.0
    base, step = HEIGHT - BOTTOM, (WIDTH - 2 * LEFT) / max(1, len(points) - 1)
    path, area, pen_up, marks, start, x = "", "", True, "", 0.0, 0.0
    for i, point in enumerate(points):
        if point.value is None:
            pen_up = True
            continue
        before, x, y = x, LEFT + i * step, base - (base - TOP) * point.value / most
        if pen_up:
            area += f"L{_n(before)} {base}Z" if area else ""
            area += f"M{_n(x)} {base}"
            start = x
        area += f"L{_n(x)} {_n(y)}"
        path += f"{'M' if pen_up else 'L'}{_n(x)} {_n(y)}"
        pen_up = False
        marks += f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{3 if i == len(points) - 1 else 1.8}"><title>{escape(point.said)}</title></circle>'
    area += f"L{_n(x)} {base}L{_n(start)} {base}Z"
    body = f'<path class="area" d="{area}"/><path class="line" d="{path}"/>{marks}'
    if target is not None and target <= most:
        y = base - (base - TOP) * target / most
        body += f'<line class="target" x1="{LEFT}" y1="{_n(y)}" x2="{WIDTH - LEFT}" y2="{_n(y)}"/>'
    return _frame(body, top, points[0].at, points[-1].at, "lines")


@dataclass(frozen=True)
class Span:
    """One table's part of one run on the timeline."""

    table: str
    begun: str
    seconds: float
    outcome: Outcome
    said: str
    href: str


def timeline(spans: Sequence[Span], now: datetime) -> Markup:
    """Tables from top to bottom, time from left to right; a failed run has a diamond on its bar, a held table a ring."""
    if not spans:
        return Markup("")
    names = list(dict.fromkeys(span.table for span in spans))
    begun = [parse_moment(span.begun) for span in spans]
    first = min(begun)
    whole = max((now - first).total_seconds(), max(s.seconds for s in spans), 60.0)
    left, tall, wide = 250, 24, 1240
    scale = (wide - left - 12) / whole
    height = tall * len(names) + 26
    body = ""
    for i, name in enumerate(names):
        y = i * tall
        body += f'<text class="name" x="{left - 10}" y="{y + 16}">{escape(_short(shown(name)))}</text>'
        body += f'<line class="grid" x1="{left}" y1="{y + tall}" x2="{wide - 4}" y2="{y + tall}"/>'
    for span, start in zip(spans, begun, strict=True):
        y = names.index(span.table) * tall
        x = left + (start - first).total_seconds() * scale
        width = max(3.0, span.seconds * scale)
        shape = (
            f'<rect class="{span.outcome}" x="{_n(x)}" y="{y + 7}" width="{_n(width)}" height="11" rx="2"/>'
        )
        middle, level = x + width, y + 12.5
        if span.outcome == "failed":
            shape += f'<path class="diamond" d="M{_n(middle)} {_n(level - 6)}l6 6l-6 6l-6 -6z"/>'
        elif span.outcome == "held":
            shape += f'<circle class="ring" cx="{_n(middle)}" cy="{_n(level)}" r="4.5"/>'
        body += f'<a href="{escape(span.href)}" tabindex="-1"><title>{escape(shown(span.said))}</title>{shape}</a>'
    ends = (
        f'<text x="{left}" y="{height - 6}">{first:%Y-%m-%d %H:%M}</text>'
        f'<text class="end" x="{wide - 6}" y="{height - 6}">now, {now:%H:%M} UTC</text>'
    )
    return Markup(
        f'<svg class="chart timeline" viewBox="0 0 {wide} {height}" aria-hidden="true">{body}{ends}</svg>'
    )


def _short(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:15]}…{name[-16:]}"
