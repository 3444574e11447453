"""Charts as SVG: sparklines, bars, lines, a timeline of runs. Pure, without inline styles.

Charts are only for the eye: they are hidden from screen readers, and the page has their figures in a table.
Colours come from classes of the style sheet; shapes show the outcome too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from html import escape
from itertools import groupby
from typing import Any, Literal

from markupsafe import Markup

from floodmark.model.text import shown
from floodmark.model.times import parse_moment

Outcome = Literal["ok", "failed", "held"]
Say = Callable[[Any], str]  # a value in words


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def _stretches(places: Sequence[tuple[float, float] | None]) -> list[list[tuple[str, str]]]:
    """The places that are known, without the gaps between them."""
    runs = groupby(places, key=lambda place: place is not None)
    return [[(_n(at[0]), _n(at[1])) for at in run if at] for known, run in runs if known]


def _path(stretches: Sequence[Sequence[tuple[str, str]]]) -> str:
    return "".join("M" + "L".join(f"{x} {y}" for x, y in one) for one in stretches)


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
    stretches = _stretches(places)
    x, y = stretches[-1][-1]
    return Markup(
        f'<svg class="spark" width="{width}" height="{height}" viewBox="0 0 {width} {height}" aria-hidden="true">'
        f'<path d="{_path(stretches)}"/><circle cx="{x}" cy="{y}" r="2"/></svg>'
    )


@dataclass(frozen=True)
class Point:
    """One value of a chart: its time, its value, and how that ended."""

    at: str
    value: float | None
    outcome: Outcome = "ok"

    def said(self, say: Say) -> str:
        """Its tooltip."""
        return escape(f"{self.at}: {say(self.value or 0)}")


WIDTH, HEIGHT = 360, 140
LEFT, BOTTOM, TOP = 2, 22, 30


def _frame(body: str, top: str, first: str, last: str, kind: str) -> Markup:
    base = HEIGHT - BOTTOM
    return Markup(
        f'<svg class="chart {kind}" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">'
        f'<line class="grid" x1="{LEFT}" y1="{TOP}" x2="{WIDTH - LEFT}" y2="{TOP}"/>'
        f'<line class="grid" x1="{LEFT}" y1="{_n((TOP + base) / 2)}" x2="{WIDTH - LEFT}" y2="{_n((TOP + base) / 2)}"/>'
        f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{WIDTH - LEFT}" y2="{base}"/>{body}'
        f'<text x="{LEFT}" y="{TOP - 15}">{escape(top)}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{escape(first)}</text>'
        f'<text class="end" x="{WIDTH - LEFT}" y="{HEIGHT - 6}">{escape(last)}</text></svg>'
    )


def bars(points: Sequence[Point], say: Say) -> Markup:
    """A bar for each point, oldest first; a failed one has a cross above it."""
    if not points:
        return Markup("")
    largest = max(point.value or 0 for point in points)
    most = largest or 1.0
    base, room = HEIGHT - BOTTOM, WIDTH - 2 * LEFT
    wide = min(28.0, room / len(points))
    step = (room - wide) / max(1, len(points) - 1)  # from edge to edge, as the times below say
    body = ""
    for i, point in enumerate(points):
        tall = (base - TOP) * (point.value or 0.0) / most
        tall = max(tall, 1.5) if point.value else 0.0
        x = LEFT + i * step
        at = f'x="{_n(x + 1)}" y="{_n(base - tall)}" width="{_n(max(1.0, wide - 2))}" height="{_n(tall)}"'
        body += f'<g><title>{point.said(say)}</title><rect class="{point.outcome}" {at} rx="1"/>'
        if point.outcome == "failed":
            mid, y = x + wide / 2, base - tall - 7
            body += f'<path class="cross" d="M{_n(mid - 3)} {_n(y - 3)}l6 6m0 -6l-6 6"/>'
        body += "</g>"
    last = points[-1].at if len(points) > 1 else ""
    return _frame(body, f"at most {say(largest)}", points[0].at, last, "bars")


def line(points: Sequence[Point], say: Say, target: float | None = None, said: str = "") -> Markup:
    """A line through the points that are known, oldest first; the target as a dashed line where it fits."""
    known = [point.value for point in points if point.value is not None]
    if len(known) < 2:
        return Markup("")
    most = max(known) or 1.0
    base, step = HEIGHT - BOTTOM, (WIDTH - 2 * LEFT) / max(1, len(points) - 1)
    places = [
        None if point.value is None else (LEFT + i * step, base - (base - TOP) * point.value / most)
        for i, point in enumerate(points)
    ]
    stretches, marks = _stretches(places), ""
    below = [f"M{one[0][0]} {base}L{_path([one])[1:]}L{one[-1][0]} {base}" for one in stretches]
    area = f"{'Z'.join(below)}L{stretches[-1][0][0]} {base}Z"
    for place, point in zip(places, points, strict=True):
        if place is not None:
            wide = 3 if point is points[-1] else 1.8
            marks += f'<circle cx="{_n(place[0])}" cy="{_n(place[1])}" r="{wide}"><title>{point.said(say)}</title></circle>'
    body = f'<path class="area" d="{area}"/><path class="line" d="{_path(stretches)}"/>{marks}'
    if target is not None and target <= most:
        y = base - (base - TOP) * target / most
        body += f'<line class="target" x1="{LEFT}" y1="{_n(y)}" x2="{WIDTH - LEFT}" y2="{_n(y)}"/>'
        body += f'<text class="end" x="{WIDTH - LEFT}" y="{TOP - 15}">{escape(said)}</text>'
    return _frame(body, f"at most {say(max(known))}", points[0].at, points[-1].at, "lines")


STAGES = ("extract", "load", "verify")


@dataclass(frozen=True)
class ChartSpan:
    """One table's part of one run on the timeline."""

    table: str
    begun: str
    seconds: float
    outcome: Outcome
    said: str
    href: str
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds of each


def timeline(spans: Sequence[ChartSpan], now: datetime | None) -> Markup:
    """Tables from top to bottom, time from left to right, up to now or, without that, to the last end.

    A bar has the extraction above and the load below, which run side by side, and the verify at its end. A failed
    run has a diamond on its bar, a held table a ring.
    """
    if not spans:
        return Markup("")
    names = list(dict.fromkeys(span.table for span in spans))
    begun = [parse_moment(span.begun) for span in spans]
    first = min(begun)
    longest = max(s.seconds + (b - first).total_seconds() for s, b in zip(spans, begun, strict=True))
    whole = max((now - first).total_seconds(), longest, 60.0) if now else max(longest, 1.0)
    left, tall, wide = 250, 24, 1240
    scale = (wide - left - 12) / whole
    height = tall * len(names) + 26
    body = ""
    for at, said in _ticks(first, whole):
        x = left + at * scale
        body += f'<line class="grid" x1="{_n(x)}" y1="0" x2="{_n(x)}" y2="{height - 20}"/>'
        body += f'<text x="{_n(x)}" y="{height - 6}">{escape(said)}</text>'
    for i, name in enumerate(names):
        y = i * tall
        body += f'<text class="name" x="{left - 10}" y="{y + 16}">{escape(_short(shown(name)))}</text>'
        body += f'<line class="grid" x1="{left}" y1="{y + tall}" x2="{wide - 4}" y2="{y + tall}"/>'
    for span, start in zip(spans, begun, strict=True):
        y = names.index(span.table) * tall
        x = left + (start - first).total_seconds() * scale
        width = max(3.0, span.seconds * scale)
        shape = _bar(span, x, y, width)
        middle, level = x + width, y + 12.5
        if span.outcome == "failed":
            shape += f'<path class="diamond" d="M{_n(middle)} {_n(level - 6)}l6 6l-6 6l-6 -6z"/>'
        elif span.outcome == "held":
            shape += f'<circle class="ring" cx="{_n(middle)}" cy="{_n(level)}" r="4.5"/>'
        body += f'<a href="{escape(span.href)}" tabindex="-1"><title>{escape(shown(span.said))}</title>{shape}</a>'
    if now is not None:
        body += f'<text class="end" x="{wide - 6}" y="{height - 6}">now</text>'
    return Markup(
        f'<svg class="chart timeline" viewBox="0 0 {wide} {height}" aria-hidden="true">{body}</svg>'
    )


def _bar(span: ChartSpan, x: float, y: float, width: float) -> str:
    """One bar: by stages where they are known and there is room for them."""
    if width < 8 or span.outcome != "ok" or not set(span.stages) & set(STAGES):
        return (
            f'<rect class="{span.outcome}" x="{_n(x)}" y="{y + 7}" width="{_n(width)}" height="11" rx="2"/>'
        )
    whole = span.seconds or 1.0
    extract, load, verify = (min(span.stages.get(stage, 0.0), whole) / whole * width for stage in STAGES)
    loaded = x + max(0.0, width - verify - load)
    parts = (
        ("extract", x, y + 6, extract, 6),
        ("load", loaded, y + 13, load, 6),
        ("verify", x + width - verify, y + 6, verify, 13),
    )
    return "".join(
        f'<rect class="{stage}" x="{_n(at)}" y="{_n(top)}" width="{_n(long)}" height="{high}" rx="1.5"/>'
        for stage, at, top, long, high in parts
        if long > 0
    )


_ROUND = ((1, (1, 2, 5, 10, 20, 30)), (60, (1, 2, 5, 10, 20, 30)), (3600, (1, 2, 3, 6, 12)), (86400, (1, 7)))
_STEPS = [unit * number for unit, numbers in _ROUND for number in numbers]


def _ticks(first: datetime, seconds: float) -> list[tuple[float, str]]:
    """At most eight round times, as seconds since the first moment, and what is written there; none near the end."""
    step = next((step for step in _STEPS if seconds / step <= 8), 30 * 86400)
    start = first.timestamp()
    at = -start % step
    found, day = [], ""
    while at < seconds * 0.93:
        moment = first + timedelta(seconds=at)
        form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86400 else "%m-%d"
        said = f"{moment:{form}}"
        if step < 86400 and f"{moment:%m-%d}" != day:
            day = f"{moment:%m-%d}"
            said = f"{day} {said}"
        found.append((at, said))
        at += step
    return found


def _short(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:15]}…{name[-16:]}"
