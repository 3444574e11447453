"""How fresh a target is after a run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from floodmark.commit.checks import Check
from floodmark.model.errors import TransientError
from floodmark.model.run import Lag, SyncOptions, TableReport
from floodmark.sync.freshness import freshness
from tests.support.warehouse_loads import ORDERS

LOOKED = datetime(2025, 8, 19, 15, 30, tzinfo=UTC)
MARK = {
    "last_check_time": "2025-08-19T15:30:00.000000Z",
    "pending_s3_files": [],
    "last_mysql_data_timestamp": "2025-08-19T15:29:58.000000",
    "commit": 42,
}


def report(mark: dict[str, Any] = MARK, **more: Any) -> TableReport:
    return TableReport(ORDERS.name, watermark=mark, described=ORDERS, **more)


def test_a_target_is_as_fresh_as_the_look_that_found_it_complete() -> None:
    found = freshness(report(), SyncOptions(), "r")
    assert found is not None and (found.target, found.as_of, found.checked_at) == ("orders", LOOKED, LOOKED)
    assert (found.source_table, found.watermark, found.commit_n) == (
        "shop.orders",
        "2025-08-19T15:29:58.000000",
        42,
    )


def test_the_lag_that_a_run_left_makes_it_staler() -> None:
    found = freshness(report(lag_after=Lag(seconds=90.0)), SyncOptions(), "r")
    assert found is not None and found.as_of == LOOKED - timedelta(seconds=90) and found.checked_at == LOOKED


@pytest.mark.parametrize(
    ("told", "options"),
    [
        (report(error=TransientError("away")), SyncOptions()),
        (report(left_out=True), SyncOptions()),
        (report({**MARK, "pending_s3_files": ["a"]}), SyncOptions()),
        (report({**MARK, "last_check_time": None}), SyncOptions()),
        (TableReport("a.b", watermark=MARK), SyncOptions()),
        (report(lag_after=Lag(seconds=1.0)), SyncOptions(limit=10)),
        (report(lag_after=Lag(ids=3)), SyncOptions(max_chunks=1)),
        (report(), SyncOptions(limit=10)),
        (report(), SyncOptions(load_only=True)),
    ],
)
def test_a_run_that_failed_was_limited_or_left_files_says_nothing_new(
    told: TableReport, options: SyncOptions
) -> None:
    assert freshness(told, options, "r") is None


def test_a_limited_run_that_reached_the_end_counts() -> None:
    assert freshness(report(lag_after=Lag(seconds=0.0)), SyncOptions(limit=10), "r") is not None


def test_a_run_that_only_loads_is_as_fresh_as_the_run_that_extracted() -> None:
    check = Check(ORDERS.name, "r", None, caught_up_at="2025-08-19T14:00:00.000000Z", lag=Lag(seconds=60.0))
    found = freshness(report(), SyncOptions(load_only=True), "r", check)
    assert found is not None and found.as_of == LOOKED - timedelta(minutes=91)


def test_a_target_is_no_fresher_than_the_bound_that_open_work_holds_back() -> None:
    since = LOOKED - timedelta(hours=1)
    found = freshness(report(held=True, held_at=since.timestamp()), SyncOptions(), "r")
    assert found is not None and (found.as_of, found.checked_at) == (since, LOOKED)
    assert freshness(report(held=True), SyncOptions(), "r") is None  # ids: nobody knows since when
