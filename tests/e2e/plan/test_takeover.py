"""From the older tool: its watermarks and unloaded files are taken over once, and no row is lost by it."""

from __future__ import annotations

import io
import json
from datetime import datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.store.store import Store
from tests.conftest import Workspace
from tests.support.orders import NOTE, create_orders, fill_orders

# Two rows a minute: the watermark's own moment is shared.
FILL = fill_orders(200, "(seq DIV 2) MINUTE", id="seq", note="'n'")


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(NOTE), FILL)
    return workspace


def name(workspace: Workspace, table: str = "orders") -> str:
    return workspace.full_name(table)


def put(workspace: Workspace, path: str, data: bytes) -> None:
    place = workspace.folder / "lake" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)


def older(workspace: Workspace, table: str = "orders", **fields: Any) -> None:
    """A watermark as the older tool kept it."""
    body = {
        "table_name": name(workspace, table),
        "last_mysql_data_timestamp": "2025-03-01T01:00:00",
        "mysql_status": "success",
        "redshift_status": "success",
        "s3_file_count": 0,
        **fields,
    }
    flat = name(workspace, table).replace(".", "_")
    put(workspace, f"watermark/tables/{flat}.json", json.dumps(body).encode())


def staged(workspace: Workspace, number: int, *minutes: int, table: str = "orders") -> str:
    """A file as the older tool staged it, with rows of these minutes."""
    flat = name(workspace, table).replace(".", "_")
    path = f"incremental/year=2025/month=03/day=01/hour=00/{flat}_20250301_000000_batch_{number:04}.parquet"
    at = [datetime(2025, 3, 1) + timedelta(minutes=m) for m in minutes]
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": list(minutes), "update_at": at}), sink, write_statistics=False)
    put(workspace, path, sink.getvalue())
    return path


def test_a_takeover_starts_at_the_older_timestamp_inclusively_and_happens_once(orders: Workspace) -> None:
    older(orders)
    plan = orders.pipeline.plan(name(orders))
    assert plan["window"]["low"] == ["2025-03-01 00:59:59.999999"] and plan["rows_before_start"] is None
    assert not (orders.folder / "lake" / "commits").exists()  # a plan takes nothing over
    table = orders.synced("orders", limit=10)
    assert orders.query("SELECT min(id), max(id) FROM orders") == [(120, 129)]
    assert any("taken over" in n and "2025-03-01 01:00:00" in n for n in table["notes"])
    document = table["watermark"]
    assert not document["metadata"]["manual_watermark"] and document["backup_strategy"] != "manual_cli"
    older(orders, last_mysql_data_timestamp="2025-03-01T00:01:00")  # it counts no longer
    table = orders.synced("orders")
    assert table["rows_extracted"] == 71 and not any("older tool" in n for n in table["notes"])


def test_rows_of_files_that_the_older_tool_had_not_loaded_are_read_again(orders: Workspace) -> None:
    loaded = staged(orders, 1, 1, 2)
    staged(orders, 2, 50, 40, 45)
    staged(orders, 3, 55)
    staged(orders, 4, 3, table="orders_archive")
    older(orders, processed_s3_files=[f"s3://bucket/prefix/{loaded}"])
    table = orders.synced("orders")
    assert orders.query("SELECT min(update_at), count(*) FROM orders") == [(datetime(2025, 3, 1, 0, 40), 121)]
    said = " ".join(table["notes"])
    assert "s3_file_count is 0, but there are 3 files" in said
    assert "2 of its 3 files had not been loaded" in said and "2025-03-01 00:40:00" in said


def test_a_watermark_that_ignores_its_110_files_is_corrected_with_a_note(orders: Workspace) -> None:
    for number in range(110):
        staged(orders, number, 60 - number // 10)
    older(orders, s3_file_count=0)
    table = orders.synced("orders")
    assert "its s3_file_count is 0, but there are 110 files" in table["notes"]
    assert orders.query("SELECT min(update_at) FROM orders") == [(datetime(2025, 3, 1, 0, 50),)]


def test_rows_that_the_older_tool_loaded_stay_and_are_merged_by_key(orders: Workspace) -> None:
    with duckdb.connect(str(orders.warehouse)) as warehouse:
        warehouse.execute("CREATE TABLE orders (id BIGINT, note VARCHAR, update_at TIMESTAMP)")
        warehouse.execute(
            "INSERT INTO orders SELECT i, 'n', TIMESTAMP '2025-03-01' + to_minutes(i // 2) FROM range(1, 121) t(i)"
        )
    older(orders)
    orders.synced("orders")
    assert orders.compare("orders").equal
    assert orders.verified("orders")["notes"] == [
        "not compared: 119 rows from before the position that was taken over from another tool, "
        "that is up to 2025-03-01 00:59:59.999999"
    ]


@pytest.mark.parametrize("schema", [True, False])
def test_tables_whose_names_look_alike_are_not_mixed_up(orders: Workspace, schema: bool) -> None:
    other = f"{orders.database.name}_x"
    orders.execute("RENAME TABLE orders TO x_orders", f"CREATE DATABASE {other}")
    try:
        orders.execute(
            f"CREATE TABLE {other}.orders LIKE x_orders", f"INSERT INTO {other}.orders SELECT * FROM x_orders"
        )
        mine, foreign = name(orders, "x_orders"), f"{other}.orders"
        assert mine.replace(".", "_") == foreign.replace(".", "_")
        older(orders, "x_orders", table_name=mine if schema else foreign)
        report = orders.sync(mine)
        assert report.ok
        taken = any("taken over" in n for n in report.tables[0].notes)
        assert taken == schema and report.tables[0].rows_extracted == (81 if schema else 200)
    finally:
        orders.execute(f"DROP DATABASE {other}")


def test_a_table_without_a_key_is_not_taken_over_and_either_suggested_command_works(
    workspace: Workspace,
) -> None:
    workspace.execute(
        "CREATE TABLE events (n INT, update_at DATETIME NOT NULL, KEY (update_at))",
        "INSERT INTO events SELECT seq, '2025-03-01' + INTERVAL seq MINUTE FROM seq_1_to_100",
    )
    workspace.write(tables={name(workspace, "events"): {"mode": "append", "cursor": "update_at"}})
    older(workspace, "events")
    report = workspace.sync("events")
    (table,) = report.tables
    assert report.exit_code == 6 and table.error is not None and "without a key" in table.error.message
    go_on = (
        f'floodmark watermark set -t {name(workspace, "events")} --timestamp "2025-03-01 01:00:00" --force'
    )
    anew = f"floodmark watermark reset -t {name(workspace, 'events')} --force"
    assert go_on in str(table.error.hint) and anew in str(table.error.hint)
    pipeline = workspace.pipeline
    pipeline.watermark_set(name(workspace, "events"), timestamp="2025-03-01 01:00:00")
    assert workspace.synced("events")["rows_extracted"] == 40
    pipeline.watermark_reset(name(workspace, "events"), force=True)
    assert workspace.synced("events")["rows_extracted"] == 100


def test_a_reset_forgets_the_older_watermark_for_good(orders: Workspace) -> None:
    older(orders)
    pipeline = orders.pipeline
    assert pipeline.watermark_get(name(orders))["next_start_by"] == "the older tool's watermark"
    pipeline.watermark_reset(name(orders))
    assert orders.synced("orders")["rows_extracted"] == 200


@pytest.mark.parametrize(
    ("zone", "column_type", "written", "first"),
    [
        # Wall clocks are the column's own, whatever zone the server has.
        ("+08:00", "DATETIME", "2025-03-01T01:00:00+00:00", "2025-03-01 01:00:00"),
        # A zone behind a wall clock may be true: in a zone west of it that is earlier.
        ("-07:00", "DATETIME", "2025-03-01T08:00:00Z", "2025-03-01 01:00:00"),
        # A TIMESTAMP without a zone was printed in the server's.
        ("+08:00", "TIMESTAMP", "2025-03-01T01:00:00", "2025-03-01 01:00:00"),
    ],
)
def test_an_ambiguous_timestamp_means_the_earlier_moment(
    workspace: Workspace, zone: str, column_type: str, written: str, first: str
) -> None:
    (before,) = workspace.execute("SELECT @@global.time_zone")
    workspace.execute(f"SET GLOBAL time_zone = '{zone}'")
    try:
        workspace.execute(f"SET time_zone = '{zone}'", create_orders(NOTE, column_type), FILL)
        older(workspace, last_mysql_data_timestamp=written)
        workspace.synced("orders")
        (expected,) = workspace.execute(
            f"SET time_zone = '{zone}'", f"SELECT COUNT(*) FROM orders WHERE update_at >= '{first}'"
        )
        assert workspace.query("SELECT count(*) FROM orders") == [expected]
    finally:
        workspace.execute(f"SET GLOBAL time_zone = '{before[0]}'")


def test_an_unreadable_older_watermark_stops_the_table(orders: Workspace) -> None:
    for kind in ("DATETIME", "TIMESTAMP"):
        orders.execute(f"ALTER TABLE orders MODIFY update_at {kind} NOT NULL")
        for fields, said in (
            ({"last_mysql_data_timestamp": "2099-01-01T00:00:00"}, "future"),
            ({"last_mysql_data_timestamp": "soon"}, "'soon'"),
            ({"table_name": None}, "does not name its table"),
        ):
            older(orders, **fields)
            (table,) = orders.sync("orders").tables
            assert table.exit_code == 6 and table.error is not None and said in table.error.message
    assert not (orders.folder / "lake" / "commits").exists()


def test_a_watermark_without_a_timestamp_starts_at_the_start_with_a_note(orders: Workspace) -> None:
    older(orders, last_mysql_data_timestamp=None)
    notes = orders.run("plan", "-t", "orders", "--json").ok().json["notes"]
    assert "the table begins at 2025-01-01 00:00:00 (the older tool's default)" in notes
    orders.write(defaults={"start": "2025-03-01 01:30:00"})
    staged(orders, 1, 80)
    table = orders.synced("orders")
    assert any("has no last_mysql_data_timestamp" in n for n in table["notes"])
    assert orders.query("SELECT min(update_at) FROM orders") == [(datetime(2025, 3, 1, 1, 20),)]


def test_an_unloaded_file_that_cannot_be_read_stops_the_table(orders: Workspace) -> None:
    older(orders)
    put(orders, staged(orders, 1, 5), b"PAR1 and no more")
    (table,) = orders.sync("orders").tables
    assert table.exit_code == 6 and table.error is not None and "batch_0001" in table.error.message


def test_watermarks_and_files_in_a_bucket_are_taken_over_alike(s3_workspace: Workspace) -> None:
    s3_workspace.execute(create_orders(NOTE), FILL)
    store = Store(s3_workspace.settings.store)
    older(s3_workspace)
    staged(s3_workspace, 1, 40, 45)
    for file in (s3_workspace.folder / "lake").rglob("*.*"):
        store.put(str(file.relative_to(s3_workspace.folder / "lake")), file)
    s3_workspace.synced("orders")
    assert s3_workspace.query("SELECT min(update_at) FROM orders") == [(datetime(2025, 3, 1, 0, 40),)]
