"""Results: attributes of an unchanged document, and rows for notebooks."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from floodmark.model import results
from floodmark.model.errors import ConfigError, TransientError
from floodmark.model.results import History, RunHistory, SyncResult, Watermark, WatermarkList
from floodmark.model.run import Lag, SyncReport, TableReport

REPORT = SyncReport(
    "20250819_153000_ab12",
    1.5,
    (
        TableReport(
            "shop.orders",
            rows_loaded=7,
            commits=(
                3,
                4,
            ),
            lag_after=Lag(seconds=2.5),
        ),
        TableReport("shop.<b>", error=TransientError("away & <gone>", hint="later")),
    ),
).as_json()


def test_a_result_has_attributes_and_is_the_document_that_it_was_made_of() -> None:
    result = SyncResult.of(REPORT)
    first, second = result.tables
    assert (first.rows_loaded, first.commits, first.lag_after.seconds if first.lag_after else 0) == (
        7,
        (3, 4),
        2.5,
    )
    assert second.error is not None and (second.error.code, second.error.hint) == (4, "later")
    assert result.rows_loaded == 7 and result.ok is False
    assert result.as_json() == REPORT and json.loads(json.dumps(result.as_json())) == REPORT


def test_a_result_still_works_as_the_dictionary_that_it_used_to_be() -> None:
    result = SyncResult.of(REPORT)
    assert result["tables"][0]["commits"] == [3, 4] and "run" in result and {**result} == REPORT
    assert result == REPORT and result.get("nothing") is None
    with pytest.raises(KeyError):
        result["nothing"]


def test_a_result_can_not_be_changed_and_can_be_pickled() -> None:
    result = SyncResult.of(REPORT)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.ok = True  # type: ignore[misc]
    result.as_json()["tables"].clear()
    assert pickle.loads(pickle.dumps(result)).tables[0].table == "shop.orders"


def test_what_a_document_lacks_is_none_or_empty() -> None:
    mark = Watermark.of({"table_name": "shop.orders", "commit": None})
    assert (mark.undo, mark.pending_s3_files, mark.last_mysql_data_id, mark.activity) == (None, (), (), None)


def test_every_result_has_a_type_for_each_field_that_rows_can_be_made_of() -> None:
    kinds: list[Any] = [
        one for one in vars(results).values() if isinstance(one, type) and one.__module__ == results.__name__
    ]
    assert len(kinds) > 25
    for kind in kinds:
        made = kind.of({})
        if hasattr(made, "to_arrow"):
            assert made.to_arrow().num_rows == 0


def test_the_rows_of_a_result_are_an_arrow_table_with_times_as_times() -> None:
    commits = [
        {"n": 2, "kind": "batch", "at": "2025-08-19T15:30:00.000001Z", "rows": 5, "position": ["x", 1]}
    ]
    table = History.of({"table_name": "shop.orders", "commits": commits}).to_arrow()
    assert table.column_names == ["n", "kind", "at", "run", "rows", "files", "purpose", "removed", "binlog"]
    assert table.to_pylist()[0]["at"] == datetime(2025, 8, 19, 15, 30, 0, 1, tzinfo=UTC)
    assert RunHistory(runs=()).to_arrow().column_names[:4] == ["run", "at", "table", "ok"]
    lags = SyncResult.of(REPORT).to_arrow().to_pydict()
    assert lags["lag_after_seconds"] == [2.5, None] and lags["error_code"] == [None, 4]


def test_to_pandas_gives_a_frame() -> None:
    pytest.importorskip("pandas")
    frame: Any = SyncResult.of(REPORT).to_pandas()
    assert list(frame["rows_loaded"]) == [7, 0]


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="needs pandas") as failed:
        SyncResult.of(REPORT).to_pandas()
    assert failed.value.code == 2 and failed.value.hint and "floodmark[pandas]" in failed.value.hint


def test_what_a_notebook_shows_is_escaped() -> None:
    shown = SyncResult.of(REPORT)._repr_html_()
    assert "shop.&lt;b&gt;" in shown and "away &amp; &lt;gone&gt;" in shown and "<b>" not in shown
    one = Watermark.of({"table_name": "<script>", "commit": 1200})._repr_html_()
    assert "&lt;script&gt;" in one and "<script>" not in one and "1,200" in one


def test_a_long_table_is_cut_off_in_a_notebook() -> None:
    marks = WatermarkList.of({"tables": [{"table_name": f"t{n}", "commit": n} for n in range(250)]})
    assert "and 50 more" in marks._repr_html_() and len(marks.entries) == 250
