"""Fences: who may commit, what counts as loaded, and what happens when one of the two truths was set back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

from tests.conftest import Workspace
from tests.support.held_sync import Gate, batches, commits, lease, rows, until
from tests.support.orders import create_orders, fill_orders

ROWS = 1500
SLICE = 250
BELOW = 2 * SLICE * 7


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(), fill_orders(ROWS))
    workspace.write(defaults={"slice_rows": SLICE})
    return workspace


@pytest.fixture
def gate(orders: Workspace) -> Iterator[Gate]:
    with Gate(orders, BELOW) as gate:
        orders.write(tables={orders.full_name("orders"): {"where": gate.where}})
        yield gate


@pytest.fixture
def holding(orders: Workspace, gate: Gate) -> Iterator[Any]:
    """A sync, as a process, that has loaded two slices and waits at the gate with the others."""
    process = orders.run.start("sync", "-t", "orders", "-s", "sequential", "--json")
    until(lambda: len(commits(orders)) >= 2)
    gate.close()
    published = orders.folder / "lake" / "watermark" / "tables" / f"{orders.database.name}.orders.json"
    until(
        lambda: (
            published.exists() and json.loads(published.read_bytes())["redshift_rows_loaded"] == 2 * SLICE
        ),
        90,
    )
    assert len(batches(orders)) == 2
    yield process


def one(orders: Workspace, **options: Any) -> dict[str, Any]:
    """A sync of the table, however it ends."""
    [table] = orders.sync("orders", **options).as_json()["tables"]
    return dict(table)


def arrives_once(orders: Workspace, total: int = ROWS) -> None:
    assert orders.query("SELECT count(*), count(DISTINCT id) FROM orders") == [(total, total)]
    comparison = orders.compare("orders")
    assert comparison.equal, comparison.differences


def free(orders: Workspace) -> bool:
    """Whether nobody has the warehouse's file open."""
    try:
        orders.query("SELECT 1")
    except duckdb.IOException:
        return False
    return True


# ---------------------------------------------------------------- one run at a time


def test_a_held_table_is_code_3_naming_the_holder_and_a_dead_holder_is_replaced_at_once(
    orders: Workspace, gate: Gate, holding: Any
) -> None:
    before = commits(orders)
    table = one(orders)
    assert (table["exit_code"], table["error"]["kind"]) == (3, "conflict")
    assert (
        before[-1]["run"] in table["error"]["message"] and f"pid {holding.pid}" in table["error"]["message"]
    )
    assert commits(orders) == before
    holding.kill()
    holding.wait()
    gate.open()
    began = time.monotonic()
    assert one(orders)["rows_extracted"] == ROWS - 2 * SLICE
    assert time.monotonic() - began < 20  # not the minute that its lease had left
    arrives_once(orders)


def test_the_watermark_is_shown_during_a_sync_and_with_every_service_but_the_store_down(
    orders: Workspace, gate: Gate, holding: Any
) -> None:
    document = orders.run("watermark", "get", "-t", "orders", "--json").ok().json
    assert (
        document["mysql_rows_extracted"] == document["redshift_rows_loaded"] == 2 * SLICE
        and document["mysql_status"] == "pending"
    )
    assert document["last_mysql_data_id"] == [BELOW]
    gate.open()
    stdout, _ = holding.communicate(timeout=60)
    assert json.loads(stdout)["ok"]
    # Now MySQL is away, and the warehouse is no database any more.
    orders.write(source={"url": "mysql://root:x@127.0.0.1:1/" + orders.database.name})
    orders.warehouse.write_bytes(b"not a database" * 999)
    result = orders.run("watermark", "get", "-t", "orders", "--json").ok()
    assert result.json["mysql_rows_extracted"] == result.json["redshift_rows_loaded"] == ROWS
    assert result.json["redshift_status_as_of"] and result.stderr == ""
    listed = orders.run("watermark", "list").ok()
    assert orders.full_name("orders") in listed.stdout and "did not answer" in listed.stdout


def test_a_run_that_was_paused_and_overtaken_cannot_commit(
    orders: Workspace, gate: Gate, holding: Any
) -> None:
    until(lambda: free(orders), 30, pause=0.1)  # paused with the file open, it would keep others from it
    os.kill(holding.pid, signal.SIGSTOP)
    gate.open()
    note = json.loads(lease(orders).read_bytes())
    past = (datetime.now(UTC) - timedelta(minutes=5)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    lease(orders).write_text(json.dumps({**note, "expires_at": past}))
    assert orders.synced("orders")["rows_extracted"] == ROWS - 2 * SLICE
    log = commits(orders)
    os.kill(holding.pid, signal.SIGCONT)
    stdout, stderr = holding.communicate(timeout=60)
    assert holding.returncode == 3, stderr
    [table] = json.loads(stdout)["tables"]
    assert table["error"]["kind"] == "conflict" and log[-1]["run"] in table["error"]["message"]
    assert commits(orders) == log
    assert json.loads(lease(orders).read_bytes())["run"] == log[-1]["run"]  # not the loser's any more
    arrives_once(orders)
    assert one(orders)["commits"] == []


# ---------------------------------------------------------------- a truth that was set back


def test_a_warehouse_that_was_set_back_gets_what_it_lacks(orders: Workspace) -> None:
    orders.synced("orders")
    shutil.copy(orders.warehouse, orders.folder / "yesterday")
    for n in range(2):
        orders.execute(
            f"UPDATE orders SET note = 'turn {n}' WHERE id % 5 = {n}",
            "INSERT INTO orders (amount) VALUES (1)",
        )
        orders.synced("orders")
    later = rows(batches(orders)) - ROWS
    shutil.copy(orders.folder / "yesterday", orders.warehouse)
    table = orders.synced("orders")
    assert (table["rows_extracted"], table["rows_loaded"], table["commits"]) == (0, later, [])
    arrives_once(orders, ROWS + 2)


def test_a_warehouse_that_is_gone_is_filled_again(orders: Workspace) -> None:
    orders.synced("orders")
    orders.warehouse.unlink()
    assert orders.synced("orders")["rows_loaded"] == ROWS
    arrives_once(orders)


def test_a_new_store_does_not_look_loaded(orders: Workspace) -> None:
    orders.synced("orders")
    shutil.rmtree(orders.folder / "lake")
    orders.execute("UPDATE orders SET note = 'since' WHERE id % 5 = 0")
    table = one(orders)
    assert table["exit_code"] == 2 and "another store" in table["error"]["message"]
    assert "--force" in table["error"]["hint"] and commits(orders) == []
    table = one(orders, force=True)
    assert (table["exit_code"], table["rows_extracted"], table["rows_loaded"]) == (0, ROWS, ROWS)
    arrives_once(orders)
    assert one(orders)["exit_code"] == 0  # adopted: no need to force it again


@pytest.mark.parametrize("copies", [True, False], ids=["with its copies there", "without a copy"])
def test_a_lost_newest_commit_is_never_a_silent_loss(orders: Workspace, copies: bool) -> None:
    orders.synced("orders")
    orders.execute("UPDATE orders SET note = 'lost?' WHERE id % 5 = 0")
    orders.synced("orders")
    newest = max((orders.folder / "lake" / "commits").rglob("*.json"))
    newest.unlink()
    if not copies:
        shutil.rmtree(orders.folder / "lake" / "watermark")
    orders.execute("UPDATE orders SET note = 'after' WHERE id % 7 = 0")
    table = one(orders)
    assert table["exit_code"] == 6 or table["findings"], "recovered without a word"
    if table["exit_code"] == 0:
        arrives_once(orders)


def test_a_wiped_log_whose_files_remain_stops_the_sync_and_says_what_to_do(orders: Workspace) -> None:
    orders.synced("orders")
    for folder in ("commits", "watermark"):
        shutil.rmtree(orders.folder / "lake" / folder)
    result = orders.run("sync", "-t", "orders")
    assert result.code == 6
    said = [line for line in result.stderr.splitlines() if line.startswith(("floodmark:", "  "))]
    assert len(said) == 2 and "data files" in said[0] and "floodmark watermark" in said[1]
    assert commits(orders) == []


# ---------------------------------------------------------------- the two stages


def test_a_failed_load_leaves_the_extraction_and_the_next_run_loads_without_reading(
    orders: Workspace,
) -> None:
    orders.warehouse.write_bytes(b"not a database" * 999)
    table = one(orders)
    assert (table["exit_code"], table["rows_extracted"], table["rows_loaded"]) == (6, ROWS, 0)
    assert (
        table["watermark"]["mysql_status"] == "success" and table["watermark"]["redshift_status"] == "failed"
    )
    assert "can't be read as a DuckDB database" in table["watermark"]["last_error"]
    orders.warehouse.unlink()
    table = orders.synced("orders")
    assert (table["rows_extracted"], table["rows_loaded"]) == (0, ROWS)
    assert table["watermark"]["last_error"] is None
    arrives_once(orders)


def test_backup_only_leaves_files_that_redshift_only_loads_without_the_source(orders: Workspace) -> None:
    table = orders.synced("orders", backup_only=True)
    assert (table["rows_extracted"], table["rows_loaded"]) == (ROWS, 0)
    assert not orders.warehouse.exists()
    away = orders.config["source"]["url"]
    orders.write(source={"url": "mysql://root:x@127.0.0.1:1/" + orders.database.name})
    table = orders.synced("orders", load_only=True)
    assert (table["rows_extracted"], table["rows_loaded"]) == (0, ROWS)
    orders.write(source={"url": away})
    arrives_once(orders)


def test_a_manual_watermark_filters_what_redshift_only_loads_and_the_rest_follows(orders: Workspace) -> None:
    orders.synced("orders", backup_only=True, limit=500)
    time.sleep(1.1)
    moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    orders.synced("orders", backup_only=True)
    total = sum(len(c["files"]) for c in batches(orders))
    newer = sum(len(c["files"]) for c in batches(orders) if c["at"] > moment.replace(" ", "T"))
    assert 0 < newer < total
    done = orders.run("watermark", "set", "-t", "orders", "--timestamp", moment, "--id", "12", "--json").ok()
    assert done.json["backup_strategy"] == "manual_cli" and done.json["last_mysql_data_id"] == [12]
    assert (done.json["mysql_status"], done.json["redshift_status"]) == ("success", "pending")
    loaded = orders.run("sync", "-t", "orders", "--redshift-only").ok()
    for said in (loaded.stdout, loaded.stderr):  # in the result, and before it loads
        using = f"Using manual watermark-based incremental Redshift loading: files after {moment}"
        assert using in said.replace("T", " ")
        assert f"Found {total} files, filtered to {newer} files for loading" in said
    assert orders.query("SELECT count(*) FROM orders") == [(ROWS - 500,)]
    # The rest stays pending, and an ordinary sync loads it: the later read still wins.
    assert orders.synced("orders")["files_loaded"] >= total - newer
    arrives_once(orders)


def test_a_set_by_id_alone_moves_a_table_read_by_id(orders: Workspace) -> None:
    orders.execute(
        "CREATE TABLE events (id BIGINT AUTO_INCREMENT PRIMARY KEY, n INT)",
        "INSERT INTO events (n) SELECT seq FROM seq_1_to_50",
    )
    document = orders.run("watermark", "set", "-t", "events", "--id", "40", "--json").ok().json
    assert (document["last_mysql_data_timestamp"], document["last_mysql_data_id"]) == (None, [40])
    refused = orders.run("watermark", "set", "-t", "events", "--timestamp", "2025-01-01")
    assert refused.code == 2 and "--id" in refused.stderr
    assert orders.synced("events")["rows_extracted"] == 10
