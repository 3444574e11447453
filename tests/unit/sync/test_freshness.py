"""How fresh a target is after a run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from floodmark.log.status import TableStatus
from floodmark.model.errors import TransientError
from floodmark.model.results import Watermark
from floodmark.model.run import SyncOptions, TableReport
from floodmark.sync.run import freshness
from tests.support.warehouse_loads import ORDERS

LOOKED = datetime(2025, 8, 19, 15, 30, tzinfo=UTC)
MARK = {
    "last_check_time": "2025-08-19T15:30:00.000000Z",
    "pending_s3_files": [],
    "last_mysql_data_timestamp": "2025-08-19T15:29:58.000000",
    "commit": 42,
}


def report(
    mark: dict[str, Any] = MARK, complete_at: float | None = LOOKED.timestamp(), **more: Any
) -> TableReport:
    return TableReport(
        ORDERS.name, watermark=Watermark.of(mark), described=ORDERS, complete_at=complete_at, **more
    )


def test_a_target_is_as_fresh_as_the_bound_of_what_it_holds() -> None:
    bound = LOOKED - timedelta(hours=1)  # open work held it back
    found = freshness(report(complete_at=bound.timestamp()), SyncOptions(), "r")
    assert found is not None and (found.target, found.as_of, found.checked_at) == ("orders", bound, LOOKED)
    assert (found.source_table, found.watermark, found.commit_n) == (
        "shop.orders",
        "2025-08-19T15:29:58.000000",
        42,
    )


@pytest.mark.parametrize(
    ("told", "options"),
    [
        (report(error=TransientError("away")), SyncOptions()),
        (report(left_out=True), SyncOptions()),
        (report({**MARK, "pending_s3_files": ["a"]}), SyncOptions()),
        (report({**MARK, "last_check_time": None}), SyncOptions()),
        (TableReport("a.b", watermark=Watermark.of(MARK)), SyncOptions()),
        (report(complete_at=None), SyncOptions()),  # limited, `--since`, or ids that open work holds back
        (report(), SyncOptions(load_only=True)),
    ],
)
def test_a_run_that_failed_was_limited_or_left_files_does_not_advance_freshness(
    told: TableReport, options: SyncOptions
) -> None:
    assert freshness(told, options, "r") is None


def test_a_run_that_only_loads_is_as_fresh_as_the_run_that_extracted() -> None:
    bound = LOOKED - timedelta(minutes=91)
    check = TableStatus(
        ORDERS.name,
        "r",
        None,
        caught_up_at="2025-08-19T14:00:00.000000Z",
        complete_at=bound.timestamp(),
    )
    found = freshness(report(), SyncOptions(load_only=True), "r", check)
    assert found is not None and found.as_of == bound
    unknown = replace(check, complete_at=None)
    assert freshness(report(), SyncOptions(load_only=True), "r", unknown) is None
