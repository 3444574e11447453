"""Charts: sound SVG, hidden from screen readers, whatever the values."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as some

from floodmark.web.charts import STAGES, WIDTH, ChartSpan, Point, bars, line, sparkline, timeline

VALUES = some.lists(some.none() | some.floats(0, 1e15), max_size=40)
NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)


def drawn(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    assert root.get("aria-hidden") == "true"
    assert not any("nan" in (value or "") for node in root.iter() for value in node.attrib.values())
    return root


@given(VALUES)
def test_any_values_make_sound_charts(values: list[float | None]) -> None:
    points = [Point("2026-11-17 12:00", value) for value in values]
    for svg in (sparkline(values), bars(points, lambda v: f"<{v}>"), line(points, lambda v: f"<{v}>", 5.0)):
        if svg:
            drawn(svg)


def test_a_bar_shows_its_stages_and_the_axis_round_times() -> None:
    stages = {"extract": 300.0, "load": 200.0, "verify": 60.0}
    span = ChartSpan("s.t", "2026-11-17T10:00:30Z", 600.0, "ok", "", "/", stages)
    svg = str(timeline([span], None))
    assert [svg.count(f'class="{stage}"') for stage in STAGES] == [1, 1, 1]
    assert re.findall(r">([\d: -]+)</text>", svg) == ["11-17 10:02", "10:04", "10:06", "10:08"]
    failed = str(timeline([replace(span, outcome="failed")], None))
    assert 'class="extract"' not in failed and 'class="diamond"' in failed


def test_bars_reach_from_the_first_time_to_the_last() -> None:
    points = [Point(f"2026-11-17 12:0{i}", 1.0) for i in range(3)]
    edges = [(float(r.attrib["x"]), float(r.attrib["width"])) for r in drawn(bars(points, str)).iter("rect")]
    assert edges[0][0] < 5 and sum(edges[-1]) > WIDTH - 5
    assert (
        str(bars(points, str)).count('">2026-11-17') == 2
        and str(bars(points[:1], str)).count('">2026-11-17') == 1
    )


def test_too_few_values_are_not_drawn() -> None:
    assert sparkline([1.0, None]) == ""
    assert bars([], str) == ""
    assert line([Point("", 1.0)], str) == ""
    assert timeline([], NOW) == ""


def test_a_gap_is_left_where_a_value_is_not_known() -> None:
    path = drawn(sparkline([1.0, 2.0, None, 3.0, 4.0])).find("path")
    assert path is not None
    assert path.attrib["d"].count("M") == 2


@pytest.mark.parametrize(("outcome", "shape"), [("failed", "diamond"), ("held", "ring"), ("ok", None)])
def test_outcomes_have_distinct_shapes(outcome: str, shape: str | None) -> None:
    span = ChartSpan("shop.<orders>", "2026-11-17T11:00:00Z", 60.0, outcome, "said", "/runs/x")  # type: ignore[arg-type]
    classes = {node.get("class") for node in drawn(timeline([span], NOW)).iter()}
    assert (classes & {"diamond", "ring"}) == ({shape} if shape else set())
