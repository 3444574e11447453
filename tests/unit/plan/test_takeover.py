"""The older tool's watermarks: whose they are, and which files are theirs."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.config.load import StoreSpec
from floodmark.log.fold import Progress, State
from floodmark.model.commit import Batch, Reset, Set
from floodmark.model.errors import DataError
from floodmark.plan.takeover import belongs, find, oldest, timestamp, untouched, waiting
from floodmark.store.store import Store
from tests.support.samples import TABLE, History, at, files, window


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(StoreSpec(str(tmp_path)))


def put(store: Store, path: str, **body: Any) -> None:
    store.put(path, json.dumps(body).encode())


def test_a_watermark_is_found_in_both_layouts_by_the_name_inside_it(store: Store) -> None:
    put(
        store,
        "watermark/tables/shop_orders.json",
        table_name="shop.orders",
        last_mysql_data_timestamp="2025-08-14T15:30:22",
    )
    put(
        store,
        "watermarks/shop.events.json",
        table_name="shop.events",
        mysql_state={"last_timestamp": "2025-08-15"},
    )
    ((first,), _), ((second,), _) = find(store, "shop.orders"), find(store, "shop.events")
    assert (first.timestamp, second.timestamp) == ("2025-08-14T15:30:22", "2025-08-15")
    assert find(store, "shop.others") == ([], [])
    assert timestamp(store, "shop.orders") == "2025-08-14T15:30:22"


def test_a_b_dot_c_and_a_dot_b_c_are_never_mixed_up(store: Store) -> None:
    put(store, "watermark/tables/a_b_c.json", table_name="a_b.c", last_mysql_data_timestamp="2025-08-14")
    assert len(find(store, "a_b.c")[0]) == 1
    found, (said,) = find(store, "a.b_c")
    assert found == [] and "a_b.c" in said
    put(store, "watermark/tables/a_b_c.json", last_mysql_data_timestamp="2025-08-14")
    with pytest.raises(DataError, match="does not name its table"):
        find(store, "a.b_c")


def test_a_file_name_that_separates_schema_and_table_is_enough_if_the_document_has_no_name(
    store: Store,
) -> None:
    put(store, "watermarks/a.b_c.json", last_mysql_data_timestamp="2025-08-14")
    (found,), (said,) = find(store, "a.b_c")
    assert found.timestamp == "2025-08-14" and "does not name its table" in said
    assert find(store, "a_b.c") == ([], [])


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"text"', b"\xff\xfe"])
def test_a_damaged_watermark_stops_the_table_with_the_two_commands(store: Store, data: bytes) -> None:
    store.put("watermark/tables/shop_orders.json", data)
    with pytest.raises(DataError) as stopped:
        find(store, "shop.orders")
    assert "watermark set -t shop.orders" in str(stopped.value.hint)
    assert "watermark reset -t shop.orders" in str(stopped.value.hint)


def test_its_lists_are_understood_as_addresses_and_as_paths(store: Store) -> None:
    put(
        store,
        "watermark/tables/shop_orders.json",
        table_name="shop.orders",
        processed_s3_files=["s3://bucket/some/prefix/incremental/a.parquet", "incremental/b.parquet", None],
        backup_s3_files=["incremental/c.parquet", "elsewhere/d.parquet"],
    )
    ((found,), _) = find(store, "shop.orders")
    assert found.loaded == {"incremental/a.parquet", "incremental/b.parquet"}
    assert found.listed == found.loaded | {"incremental/c.parquet"}
    assert found.timestamp is None and found.files is None


@pytest.mark.parametrize(
    ("path", "is_its"),
    [
        (
            "incremental/year=2025/month=08/day=14/hour=15/shop_orders_20250814_153022_batch_0001.parquet",
            True,
        ),
        ("incremental/table=shop_orders/year=2025/month=08/day=14/20250814_153022_batch_0001.parquet", True),
        ("incremental/year=2025/month=08/table=shop_orders/day=14/hour=15/20250814_1_batch_1.parquet", True),
        ("incremental/shop_orders_batch_1.parquet", True),
        ("incremental/shop_orders.parquet", True),
        ("incremental/shop/orders/1.parquet", True),
        ("incremental/shop.orders/1.parquet", True),
        ("incremental/shop_orders_archive_20250814_153022_batch_0001.parquet", False),
        ("incremental/table=shop_orders_archive/20250814_153022_batch_0001.parquet", False),
        ("incremental/workshop_orders_20250814_153022_batch_0001.parquet", False),
        ("incremental/shop/customers/orders_1.parquet", False),
    ],
)
def test_a_file_belongs_to_a_table_by_the_name_that_the_older_tool_gave_it(path: str, is_its: bool) -> None:
    assert belongs(path, TABLE) == is_its


def parquet(store: Store, **columns: Any) -> str:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    store.put("incremental/f.parquet", sink.getvalue())
    return "incremental/f.parquet"


WALL = datetime(2025, 8, 14, 15, 30, 22, 123456)


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (pa.array([None, WALL, datetime(2025, 9, 1)], pa.timestamp("us")), WALL),
        (pa.array([WALL], pa.timestamp("ns")), WALL),
        (pa.array([WALL], pa.timestamp("ms")), WALL.replace(microsecond=123000)),
        (pa.array([WALL], pa.timestamp("us", "UTC")), WALL.replace(tzinfo=UTC)),
        (pa.array([datetime(1960, 1, 1)], pa.timestamp("s")), datetime(1960, 1, 1)),
        (pa.array([date(2025, 8, 14)]), datetime(2025, 8, 14)),
        (pa.array(["2025-08-14 15:30:22", "2025-08-15"]), datetime(2025, 8, 14, 15, 30, 22)),
        (pa.array([None], pa.timestamp("us")), None),
    ],
)
def test_the_oldest_row_of_a_file_is_the_smallest_of_its_column(
    store: Store, column: Any, found: Any
) -> None:
    path = parquet(store, ID=pa.array([1] * len(column)), Update_At=column)
    assert oldest(store, path, TABLE) == found


def test_another_table_s_file_is_left_out_and_an_unreadable_one_is_reported(store: Store) -> None:
    assert oldest(store, parquet(store, other=["x"]), TABLE) is None
    with pytest.raises(DataError, match="no column update_at"):
        oldest(store, parquet(store, id=[1]), TABLE)
    with pytest.raises(DataError, match="is not a time"):
        oldest(store, parquet(store, id=[1], update_at=[1755185422]), TABLE)
    store.put("incremental/f.parquet", b"PAR1 no more")
    with pytest.raises(DataError, match="can't be read"):
        oldest(store, "incremental/f.parquet", TABLE)


def test_only_a_table_without_any_state_of_ours_is_taken_over() -> None:
    assert untouched(State("shop.orders"))
    history = History()
    assert untouched(history.claim())  # a run that died right after its claim
    reset = History()
    reset.claim()
    assert not untouched(reset.add(Reset, stages=("extract", "load")))
    by_hand = History()
    by_hand.claim()
    assert not untouched(by_hand.add(Set, position=at(1)))
    opened = history.claim(window=window("w", None, (), at(42, 7)))
    assert not untouched(opened)
    read = history.add(Batch, window_id="w", slices=(0,), files=files(1))
    assert not untouched(read)
    assert not untouched(replace(read, progress=Progress()))


def test_watermarks_that_wait_to_be_taken_over_are_found_by_the_name_inside(tmp_path: Path) -> None:
    store = Store(StoreSpec(str(tmp_path)))
    store.put(
        "watermark/tables/shop_orders.json",
        b'{"table_name": "shop.orders", "last_mysql_data_timestamp": "x"}',
    )
    store.put("watermark/tables/shop_items.json", b'{"table_name": "shop.items"}')
    store.put("watermark/tables/shop.items.json", b'{"table_name": "shop.items", "commit": 1}')  # ours
    store.put("watermark/tables/shop_broken.json", b"[1]")
    store.put("watermarks/shop.events.json", b'{"mysql_state": {"last_timestamp": "2025-08-14"}}')
    found = waiting(store, {"shop.items"})
    assert [(name, one.timestamp) for name, one in found] == [
        ("shop.events", "2025-08-14"),
        ("shop.orders", "x"),
    ]
