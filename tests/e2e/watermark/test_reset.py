"""Resets and manual watermarks: what loads again, what never does, and what nothing can undo."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from floodmark.load.protocol import open_warehouse
from floodmark.log.claim import claim
from floodmark.log.log import Log, draft
from floodmark.model.commit import Reset
from floodmark.model.errors import ConfigError, ConflictError, DataError
from floodmark.setup.services.databases import DatabaseServer
from floodmark.store.store import Store
from tests.conftest import Workspace
from tests.support.orders import NOTE, create_orders, fill_orders
from tests.support.pending_loads import load_pending


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    rows = fill_orders(300, "seq MINUTE", id="seq", note="CONCAT('n', seq)")
    workspace.execute(create_orders(NOTE), rows)
    return workspace


def name(workspace: Workspace, table: str = "orders") -> str:
    return workspace.full_name(table)


def count(workspace: Workspace, table: str = "orders") -> int:
    return int(workspace.query(f"SELECT count(*) FROM {table}")[0][0])


def counts(document: Mapping[str, Any]) -> tuple[int, int, int]:
    return (
        document["mysql_rows_extracted"],
        document["s3_file_count"],
        document["redshift_rows_loaded"],
    )


def utc(seconds: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S.%f")


# a reset


def test_a_reset_of_both_stages_reads_from_the_start_and_old_files_no_longer_load(orders: Workspace) -> None:
    orders.synced("orders", limit=100)
    orders.synced("orders", limit=100, backup_only=True)  # one file waits
    document = orders.pipeline.watermark_reset(name(orders))
    assert counts(document) == (0, 0, 0)
    assert (document["mysql_status"], document["redshift_status"]) == ("pending", "pending")
    assert document["last_mysql_data_timestamp"] is None and document["pending_s3_files"] == []
    assert document["next_start"] is None
    assert orders.synced("orders", load_only=True)["files_loaded"] == 0
    table = orders.synced("orders")
    assert (table["rows_extracted"], table["rows_loaded"]) == (300, 300)
    assert orders.compare("orders").equal
    assert counts(table["watermark"]) == (300, 1, 300)


def test_a_reset_of_the_load_loads_every_file_again_once(orders: Workspace) -> None:
    for _ in range(3):
        orders.synced("orders", limit=100)
    orders.execute("UPDATE orders SET note = 'later' WHERE id = 7")
    orders.synced("orders")
    document = orders.pipeline.watermark_reset(name(orders), redshift_only=True)
    assert counts(document) == (301, 4, 0) and len(document["pending_s3_files"]) == 4
    assert document["undo"].startswith("no need")
    table = orders.synced("orders", load_only=True)
    assert (table["files_loaded"], table["rows_loaded"]) == (4, 301)
    assert orders.synced("orders", load_only=True)["files_loaded"] == 0
    assert orders.compare("orders").equal


def test_a_reset_of_the_extraction_leaves_loaded_rows(orders: Workspace) -> None:
    orders.synced("orders", limit=100)
    orders.synced("orders", limit=100, backup_only=True)
    document = orders.pipeline.watermark_reset(name(orders), mysql_only=True)
    assert counts(document) == (0, 0, 100)
    assert len(document["pending_s3_files"]) == 1  # what was extracted before still loads
    table = orders.synced("orders")
    assert (table["rows_extracted"], table["rows_loaded"]) == (300, 400)
    assert orders.compare("orders").equal


def test_a_load_reset_is_refused_if_files_were_cleaned_and_names_them(orders: Workspace) -> None:
    for _ in range(2):
        orders.synced("orders", limit=100)
    gone, _ = sorted((orders.folder / "lake" / "data").rglob("*.parquet"))
    gone.unlink()
    with pytest.raises(DataError, match="1 of 2 files") as refused:
        orders.pipeline.watermark_reset(name(orders), redshift_only=True, force=True)
    assert gone.name in refused.value.message and f"reset -t {name(orders)}" in str(refused.value.hint)
    assert orders.synced("orders")["rows_loaded"] == 100  # nothing was changed: everything else continues


def test_a_load_reset_works_after_older_snapshots_were_cleaned(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE plain (a INT)", "INSERT INTO plain VALUES (1), (1), (2)")
    workspace.synced("plain")
    workspace.execute("INSERT INTO plain VALUES (3)")
    workspace.synced("plain")
    [_] = (workspace.folder / "lake" / "data").rglob("*.parquet")  # the sync has removed the first one
    workspace.pipeline.watermark_reset(name(workspace, "plain"), redshift_only=True)
    workspace.synced("plain", load_only=True)
    assert workspace.query("SELECT a FROM plain ORDER BY 1") == [(1,), (1,), (2,), (3,)]


def test_a_keyless_append_table_is_moved_back_only_with_force(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE events (n INT, update_at DATETIME, KEY (update_at))",
        "INSERT INTO events SELECT seq, '2025-03-01' + INTERVAL seq MINUTE FROM seq_1_to_20",
    )
    events = name(workspace, "events")
    workspace.write(tables={events: {"mode": "append", "cursor": "update_at"}})
    workspace.synced("events")
    stages: list[dict[str, Any]] = [{}, {"mysql_only": True}, {"redshift_only": True}]
    for stage in stages:
        with pytest.raises(ConfigError, match="duplicated"):
            workspace.pipeline.watermark_reset(events, **stage)
    with pytest.raises(ConfigError, match="duplicated"):
        workspace.pipeline.watermark_set(events, timestamp="2025-03-01 00:05:00")
    workspace.pipeline.watermark_set(events, timestamp="2025-03-01 00:20:00")  # where it stands
    assert workspace.synced("events")["rows_extracted"] == 0
    document = workspace.pipeline.watermark_reset(events, redshift_only=True, force=True)
    assert document["undo"] == "empty events before the next sync"
    workspace.synced("events")
    assert count(workspace, "events") == 40  # as was said


def test_a_load_in_flight_cannot_undo_a_reset(orders: Workspace) -> None:
    orders.synced("orders", limit=100)
    orders.synced("orders", limit=100, backup_only=True)
    config = orders.pipeline.config
    log = Log(Store(config.store), name(orders))
    before = log.read()
    orders.pipeline.watermark_reset(name(orders))
    warehouse = open_warehouse(config.warehouse)
    assert before.table is not None
    # A run that was paused before the reset wakes up and loads what was pending then.
    with pytest.raises(ConflictError, match="was reset during this run"):
        load_pending(warehouse, log, before)
    assert count(orders) == 100
    ledger = warehouse.ledger(before.log, "orders")
    assert ledger.epoch == log.read().load_epoch > 0


def test_the_next_load_finishes_a_reset_that_died_before_reaching_the_warehouse(
    orders: Workspace,
) -> None:
    orders.synced("orders")
    config = orders.pipeline.config
    log = Log(Store(config.store), name(orders))
    taken = claim(log, log.read(), run="20250819_153000_dead", purpose="reset")
    with taken.lease:
        after = log.append(taken.state, draft(taken.state, Reset, "20250819_153000_dead", stages=("load",)))
    assert open_warehouse(config.warehouse).ledger(after.log, "orders").epoch == 0
    assert orders.synced("orders", load_only=True)["rows_loaded"] == 300
    assert open_warehouse(config.warehouse).ledger(after.log, "orders").epoch == after.n
    assert orders.compare("orders").equal


def test_a_reset_works_while_the_warehouse_is_down_and_says_so(orders: Workspace) -> None:
    orders.synced("orders", limit=100)
    away = orders.warehouse.rename(orders.folder / "elsewhere")
    orders.warehouse.mkdir()  # a folder is no database
    document = orders.pipeline.watermark_reset(name(orders))
    assert document["commit"] and "has not recorded the reset yet" in document["notes"][0]
    orders.warehouse.rmdir()
    away.rename(orders.warehouse)
    assert orders.synced("orders")["rows_extracted"] == 300
    assert orders.compare("orders").equal


def test_no_copy_revives_a_reset_table(orders: Workspace) -> None:
    orders.synced("orders")
    primary = orders.folder / "lake" / "watermark" / "tables" / f"{name(orders)}.json"
    before = primary.read_bytes()
    orders.pipeline.watermark_reset(name(orders))
    primary.write_bytes(before)  # a copy from before the reset
    assert counts(orders.pipeline.watermark_get(name(orders))) == (0, 0, 0)
    assert orders.synced("orders")["rows_extracted"] == 300


def test_a_reset_does_not_claim_rows_that_we_never_loaded(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE plain (a INT)", "INSERT INTO plain VALUES (1)")
    workspace.synced("plain", backup_only=True)
    with duckdb.connect(str(workspace.warehouse)) as warehouse:
        warehouse.execute("CREATE TABLE plain AS SELECT 99 AS a")
    workspace.pipeline.watermark_reset(name(workspace, "plain"))
    (table,) = workspace.sync("plain").tables
    assert table.exit_code == 6 and table.error is not None and "did not load" in table.error.message
    assert workspace.query("SELECT a FROM plain") == [(99,)]


def test_a_held_table_is_not_reset(orders: Workspace) -> None:
    orders.synced("orders", limit=10)
    log = Log(Store(orders.pipeline.config.store), name(orders))
    taken = claim(log, log.read(), run="20250819_153000_live", purpose="sync")
    with taken.lease, pytest.raises(ConflictError, match="20250819_153000_live"):
        orders.pipeline.watermark_reset(name(orders))


def test_a_reset_works_while_mysql_is_down_and_refuses_an_unknown_table(orders: Workspace) -> None:
    orders.synced("orders", limit=10)
    with pytest.raises(ConfigError, match="no table"):
        orders.pipeline.watermark_reset(name(orders, "nothing"))
    orders.write(source={"url": "mysql://nobody:x@127.0.0.1:1/shop"})
    assert counts(orders.pipeline.watermark_reset(name(orders))) == (0, 0, 0)
    assert not (orders.folder / "lake" / "commits" / name(orders, "nothing")).exists()


def test_undoing_a_reset_goes_back_to_before_the_unloaded_files(orders: Workspace) -> None:
    orders.synced("orders", limit=100)
    orders.synced("orders", limit=100, backup_only=True)  # superseded by the reset: must be read again
    undo = orders.pipeline.watermark_reset(name(orders))["undo"]
    commit = re.fullmatch(rf"floodmark watermark restore -t {name(orders)} --commit (\d+)", undo)
    assert commit is not None
    orders.pipeline.watermark_restore(name(orders), commit=int(commit[1]))
    assert orders.synced("orders")["rows_extracted"] == 200
    assert orders.compare("orders").equal


# the system watermark


def test_a_table_without_a_position_starts_at_the_system_watermark_and_counts_skipped_rows(
    orders: Workspace,
) -> None:
    orders.pipeline.watermark_set(timestamp="2025-03-01 01:40:00")
    plan = orders.pipeline.plan(name(orders))
    assert (plan["start"], plan["rows_before_start"]) == ("2025-03-01 01:40:00.000000", 100)
    table = orders.synced("orders", limit=150)
    (said,) = [n for n in table["notes"] if "First sync" in n]
    assert "2025-03-01 01:40:00" in said and "the system watermark" in said and "100 rows" in said
    assert orders.query("SELECT min(id), max(id) FROM orders") == [(101, 250)]
    # It is for tables without a position only: this one has its own now.
    orders.pipeline.watermark_set(timestamp="2025-03-01 00:00:30")
    assert orders.synced("orders")["rows_extracted"] == 50
    # After a reset it has none again.
    document = orders.pipeline.watermark_reset(name(orders))
    assert (document["next_start"], document["next_start_by"]) == (
        "2025-03-01 00:00:30",
        "the system watermark",
    )
    assert orders.synced("orders")["rows_extracted"] == 300


def test_the_overlap_never_reaches_before_the_start_that_was_used(orders: Workspace) -> None:
    orders.write(defaults={"overlap_seconds": 7200})
    orders.pipeline.watermark_set(timestamp="2025-03-01 01:40:00")
    orders.synced("orders", limit=10)
    orders.execute("UPDATE orders SET note = 'late', update_at = '2025-03-01 01:45:30' WHERE id = 200")
    orders.synced("orders", limit=10)
    assert orders.query("SELECT min(id) FROM orders") == [(101,)]
    # A later system watermark does not cut what an earlier start has promised.
    orders.pipeline.watermark_set(timestamp="2025-03-01 04:00:00")
    orders.execute("UPDATE orders SET note = 'later', update_at = '2025-03-01 01:46:30' WHERE id = 300")
    orders.synced("orders")
    assert orders.query("SELECT count(*), min(id) FROM orders") == [(200, 101)]
    assert orders.query("SELECT note FROM orders WHERE id IN (200, 300) ORDER BY id") == [
        ("late",),
        ("later",),
    ]


def test_without_a_system_watermark_the_configured_start_is_shown(orders: Workspace) -> None:
    orders.write(defaults={"start": "2025-03-01 00:10:00"})
    (said,) = [n for n in orders.synced("orders")["notes"] if "First sync" in n]
    assert "2025-03-01 00:10:00" in said and "`start`" in said and "10 rows" in said
    assert count(orders) == 290


# manual watermarks


def test_a_manual_watermark_holds_through_loads_and_gives_way_to_the_next_sync_that_extracts(
    orders: Workspace,
) -> None:
    orders.synced("orders", limit=100, backup_only=True)
    between = utc()
    orders.synced("orders", limit=100, backup_only=True)
    document = orders.pipeline.watermark_set(name(orders), timestamp=between)
    assert (document["mysql_status"], document["redshift_status"]) == ("success", "pending")
    assert document["backup_strategy"] == "manual_cli" and document["metadata"]["manual_watermark"]
    table = orders.synced("orders", load_only=True)
    assert table["files_loaded"] == 1
    assert any(
        "Using manual watermark-based incremental Redshift loading: files after" in n for n in table["notes"]
    )
    assert "Found 2 files, filtered to 1 files for loading" in table["notes"]
    again = orders.synced("orders", load_only=True)
    assert again["files_loaded"] == 0 and again["watermark"]["metadata"]["manual_watermark"]
    # It is after all rows: an ordinary sync extracts nothing, so it stays, but the skipped file loads.
    table = orders.synced("orders")
    assert (table["rows_extracted"], table["files_loaded"]) == (0, 1)
    assert any("1 later file will load again" in note for note in table["notes"])
    assert table["watermark"]["metadata"]["manual_watermark"]
    orders.pipeline.watermark_set(name(orders), timestamp="2025-03-01 02:30:00")
    table = orders.synced("orders")
    assert table["rows_extracted"] == 150
    assert table["watermark"]["backup_strategy"] != "manual_cli"
    assert orders.compare("orders").equal


def test_superseded_files_load_only_by_a_manual_watermark_with_redshift_only(orders: Workspace) -> None:
    orders.synced("orders", limit=100)
    between = utc()
    orders.synced("orders", limit=100)
    orders.pipeline.watermark_reset(name(orders))
    orders.execute("DELETE FROM orders")
    assert orders.synced("orders")["rows_loaded"] == 0
    orders.pipeline.watermark_set(name(orders), timestamp=between)
    before = orders.pipeline.watermark_get(name(orders))["commit"]
    table = orders.synced("orders")  # an ordinary sync does not, and takes the table for nothing
    assert (table["rows_loaded"], table["watermark"]["commit"]) == (0, before)
    table = orders.synced("orders", load_only=True)
    assert (table["rows_loaded"], table["files_loaded"]) == (100, 1)
    assert "Found 2 files, filtered to 1 files for loading" in table["notes"]


def test_a_set_prints_the_command_that_undoes_it(orders: Workspace) -> None:
    before = orders.synced("orders", limit=100)["watermark"]
    document = orders.pipeline.watermark_set(name(orders), timestamp="2025-03-01 00:10:00", id=10)
    assert document["last_mysql_data_id"] == [10]
    assert document["undo"].startswith(f"floodmark watermark restore -t {name(orders)} --commit ")
    assert int(document["undo"].split()[-1]) == document["commit"] - 1
    assert before["commit"] < document["commit"]


@pytest.mark.parametrize(
    ("zone", "cursor"), [("+00:00", "DATETIME"), ("+09:00", "DATETIME"), ("-09:00", "TIMESTAMP")]
)
def test_a_time_in_the_future_is_refused_by_the_clock_of_the_cursor(
    workspace: Workspace, zone: str, cursor: str
) -> None:
    workspace.execute(f"CREATE TABLE t (id INT PRIMARY KEY, update_at {cursor})")
    hours = int(zone[:3]) if cursor == "DATETIME" else 0
    here = datetime.now(UTC) + timedelta(hours=hours)
    (before,) = workspace.execute("SELECT @@global.time_zone")
    workspace.execute(f"SET GLOBAL time_zone = '{zone}'")
    try:
        with pytest.raises(ConfigError, match="future"):
            workspace.pipeline.watermark_set(
                name(workspace, "t"), timestamp=f"{here + timedelta(minutes=30):%Y-%m-%d %H:%M:%S}"
            )
        past = f"{here - timedelta(minutes=30):%Y-%m-%d %H:%M:%S}"
        assert workspace.pipeline.watermark_set(name(workspace, "t"), timestamp=past)["commit"]
    finally:
        workspace.execute(f"SET GLOBAL time_zone = '{before[0]}'")


@pytest.mark.parametrize(
    "text", ["1969-12-31", "2025-13-01", "yesterday", "2025-01-01T00:00:00Z", "2199-01-01"]
)
def test_an_invalid_start_time_is_refused(orders: Workspace, text: str) -> None:
    with pytest.raises(ConfigError):
        orders.pipeline.watermark_set(name(orders), timestamp=text)
    assert not Path(orders.folder / "lake").exists()


# lag


def test_the_lag_is_what_the_source_has_beyond_the_position(orders: Workspace) -> None:
    orders.synced("orders", limit=100)
    orders.execute("INSERT INTO orders (note, update_at) VALUES ('far', '2099-01-01')")
    orders.execute(
        "CREATE TABLE ids (id INT AUTO_INCREMENT PRIMARY KEY)", "INSERT INTO ids VALUES (1), (2), (3)"
    )
    orders.synced("ids", limit=1)
    document = orders.pipeline.watermark_get(name(orders))
    assert document["lag_seconds"] == 200 * 60
    listed = {d["table_name"]: d for d in orders.pipeline.watermark_list()["tables"]}
    assert listed[name(orders)]["lag_seconds"] == 200 * 60
    assert (listed[name(orders, "ids")]["lag_seconds"], listed[name(orders, "ids")]["lag_ids"]) == (None, 2)


def test_a_set_is_refused_if_a_column_became_unreadable(orders: Workspace, server: DatabaseServer) -> None:
    schema, user = orders.database.name, ("setter", "secret")
    orders.execute("ALTER TABLE orders ADD COLUMN at DATETIME DEFAULT '2025-03-01', ADD COLUMN hidden INT")
    server.create_user(*user, f"SELECT (id, note, update_at, at) ON `{schema}`.orders", "PROCESS ON *.*")
    orders.write(source={"url": server.url(schema, *user)})
    orders.synced("orders")
    orders.pipeline.watermark_reset(name(orders))
    orders.execute(f"REVOKE SELECT (note) ON `{schema}`.orders FROM setter@'%'")
    orders.write(tables={name(orders): {"cursor": "at"}})
    with pytest.raises(ConfigError, match="no longer shows note"):
        orders.pipeline.watermark_set(name(orders), timestamp="2025-02-01 00:00:00")
    (refused,) = orders.sync("orders").tables
    assert refused.exit_code == 2 and "no longer shows note" in str(refused.error)
