"""A table's report is the fold of its events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from floodmark.model import events
from floodmark.model.errors import TransientError
from floodmark.model.events import Account, after
from floodmark.model.results import PlanResult, Watermark
from floodmark.model.run import Counts, Finding, Lag, TableReport

T = "s.t"
AWAY = TransientError("away")
FINDING = Finding("orphan", T, "a file")
MARK, PLAN = Watermark.of({"commit": 1}), PlanResult.of({"rows": 5})
PLACE = MARK.but(commit=3)
COUNTS = Counts(rows_extracted=3, rows_reread=2, rows_deleted=1, files_written=2, bytes_written=9)
BEFORE = TableReport(
    T, strategy="sequential", rows_extracted=10, rows_loaded=10, files_loaded=1, commits=(1,), notes=("a",),
    findings=(FINDING,), stage_seconds={"load": 1.0}, watermark=MARK,
)  # fmt: skip


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        (events.Noted(T, "b"), {"notes": ("a", "b")}),
        (events.Noted(T, "c", aloud=False), {"notes": ("a", "c")}),
        (events.LagMeasured(T, Lag(5.0)), {"lag_before": Lag(5.0)}),
        (events.Planned(T, "intra-table", True), {}),
        (
            events.Planned(T, "intra-table", False, held_back_by=("x",), complete_at=7.0),
            {"strategy": "intra-table", "held_back_by": ("x",), "complete_at": 7.0},
        ),
        (events.Previewed(T, PLAN), {"plan": PLAN}),
        (
            events.Committed(T, 2, "batch", None, 5, 0.1, COUNTS),
            {"commits": (1, 2), "rows_extracted": 13, "rows_reread": 2, "rows_deleted": 1,
             "files_written": 2, "bytes_written": 9},
        ),
        (events.Loaded(T, 5, 2), {"rows_loaded": 15, "files_loaded": 3}),
        (events.Cleaned(T, 4, 99), {"files_cleaned": 4, "bytes_cleaned": 99}),
        (events.Found(T, (FINDING,)), {}),
        (events.TimeSpent(T, "load", 0.5), {"stage_seconds": {"load": 1.5}}),
        (events.TimeSpent(T, "extract", 2.0), {"stage_seconds": {"load": 1.0, "extract": 2.0}}),
        (events.Succeeded(T, MARK.but(commit=2), Lag(1.0)), {"watermark": MARK.but(commit=2), "lag_after": Lag(1.0)}),
        (events.Failed(T, AWAY, stopped=True), {"error": AWAY, "stopped": True}),
        (events.Failed(T, AWAY, watermark=PLACE), {"error": AWAY, "watermark": PLACE}),
        (events.StageBegan(T, "load", 5), {}),
        (events.Advanced(T, "load", 5), {}),
    ],
)  # fmt: skip
def test_each_event_changes_what_it_is_about(event: events.Event, changes: dict[str, Any]) -> None:
    assert after(BEFORE, event) == replace(BEFORE, **changes)


def test_a_table_without_a_plan_yet_takes_the_strategy_of_an_empty_one() -> None:
    assert after(TableReport(T), events.Planned(T, "inter-table", True)).strategy == "inter-table"


def test_an_account_passes_everything_on_and_has_each_line_once() -> None:
    seen: list[events.Event] = []
    account = Account(T, seen.append)
    for text in ("a", "b", "a"):
        account.note(text)
    with account.timed("verify"):
        pass
    assert account.report.notes == ("a", "b") and set(account.report.stage_seconds) == {"verify"}
    assert [type(event) for event in seen] == [events.Noted, events.Noted, events.TimeSpent]
