"""What users do with a table that follows the binary log, besides syncing it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import duckdb
import pytest

from floodmark.api import SyncFailed
from floodmark.log.log import Log
from floodmark.model.commit import WithFiles
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.run import new_run
from floodmark.services import Services
from floodmark.setup.services.databases import DatabaseServer
from floodmark.verify.run import verify_loaded
from tests.conftest import (
    LOGGED,
    Database,
    Silent,
    Workspace,
)
from tests.support.doctor_checks import doctor


def change(shop: Workspace) -> None:
    """One row of each kind of difference, and a key that is spelled differently."""
    shop.execute(
        "INSERT INTO orders VALUES (4, 'd', 4)",
        "UPDATE orders SET price = 20 WHERE id = 2",
        "DELETE FROM orders WHERE id = 1",
        "UPDATE tags SET name = 'ABC', n = 10 WHERE name = 'abc'",
    )


# ---------------------------------------------------------------- verify


def test_rows_that_have_changed_since_are_no_differences(shop: Workspace) -> None:
    change(shop)
    orders, tags = shop.verified("orders"), shop.verified("tags")
    assert (orders["ok"], orders["rows_changed"], orders["rows_source"]) == (True, 3, 1)
    assert (tags["ok"], tags["rows_changed"]) == (True, 1)


def test_keys_that_another_table_s_sync_has_found_count_as_changed_too(shop: Workspace) -> None:
    change(shop)
    shop.synced("tags")
    orders = shop.verified("orders")
    assert (orders["ok"], orders["rows_changed"]) == (True, 3)


def test_a_row_that_differs_without_a_change_is_still_reported_and_repaired(shop: Workspace) -> None:
    shop.execute("SET sql_log_bin = 0; UPDATE orders SET note = 'unlogged' WHERE id = 3")
    change(shop)
    found = shop.verified("orders")
    assert (found["ok"], found["different"], found["missing"], found["extra"]) == (False, 1, 0, 0)
    repaired = shop.verified("orders", repair=True)
    assert (repaired["ok"], repaired["repaired"]) == (True, 1)
    shop.synced("orders")
    assert shop.compare("orders").equal


def test_verify_refuses_to_guess_where_the_log_does_not_name_the_rows(shop: Workspace) -> None:
    shop.execute("TRUNCATE TABLE orders", "INSERT INTO orders VALUES (3, 'c', 3)")
    with pytest.raises(SyncFailed, match=r"can't tell .* truncated"):
        shop.verified("orders")
    shop.synced("orders")
    assert shop.verified("orders")["ok"]


# ---------------------------------------------------------------- positions by hand


def test_a_timestamp_follows_the_log_again_from_there(shop: Workspace) -> None:
    time.sleep(1.1)  # MariaDB's commit times are whole seconds
    later = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    change(shop)
    shop.synced("orders")
    shop.synced("tags")
    with duckdb.connect(str(shop.warehouse)) as warehouse:
        warehouse.execute("UPDATE orders SET note = 'spoilt' WHERE id = 4")
        warehouse.execute("UPDATE tags SET n = 0 WHERE name = 'ABC'")
    early = f"{datetime.now(UTC) - timedelta(seconds=3600):%Y-%m-%d %H:%M:%S}"
    with pytest.raises(DataError, match="only since"):
        shop.pipeline.watermark_set(shop.full_name("orders"), timestamp=early)
    mark = shop.pipeline.watermark_set(shop.full_name("orders"), timestamp=later)
    assert mark.rows_read_again and "again" in mark.notes[0]
    shop.pipeline.watermark_set(shop.full_name("tags"), timestamp=later)
    shop.synced("orders")
    shop.synced("tags")
    assert shop.compare("orders").equal
    assert shop.query("SELECT n FROM tags WHERE name = 'ABC'") == [(10,)]


def test_an_id_and_since_are_refused(shop: Workspace) -> None:
    with pytest.raises(ConfigError, match="no id"):
        shop.pipeline.watermark_set(shop.full_name("orders"), id=3)
    report = shop.sync("orders", since="2026-01-01")
    assert report.exit_code == 2


def test_accept_goes_on_behind_what_can_not_be_read_and_compares_all_tables(shop: Workspace) -> None:
    shop.execute("UPDATE orders SET note = 'unread' WHERE id = 3", "DELETE FROM tags WHERE name = 'def'")
    mark = shop.pipeline.watermark_accept(shop.full_name("orders"))
    assert "compares" in mark.notes[0]
    shop.execute("INSERT INTO orders VALUES (7, 'g', 7)")
    shop.synced("orders")
    shop.synced("tags")
    assert shop.compare("orders").equal
    assert shop.query("SELECT name FROM tags") == [("abc",)]


def test_a_table_is_described_anew_after_a_loss(shop: Workspace) -> None:
    shop.execute(
        "CREATE TABLE swapped (a INT NOT NULL, id INT PRIMARY KEY)",
        "INSERT INTO swapped VALUES (10, 1), (20, 2), (30, 3)",
    )
    shop.synced("swapped")
    shop.execute("ALTER TABLE swapped MODIFY a INT NOT NULL AFTER id", "FLUSH BINARY LOGS")
    shop.execute(f"PURGE BINARY LOGS TO '{shop.execute('SHOW BINARY LOGS')[-1][0]}'")
    shop.synced("swapped")
    shop.execute("UPDATE swapped SET a = 100 WHERE id = 1", "DELETE FROM swapped WHERE id = 3")
    shop.synced("swapped")
    assert shop.compare("swapped").equal


def test_another_server_with_other_transactions_is_refused_until_it_is_accepted(
    shop: Workspace, logged: DatabaseServer
) -> None:
    name = shop.database.name
    with type(logged)(args=LOGGED[logged.name], buffer_pool="64M") as other:
        other.execute(f"CREATE DATABASE {name} DEFAULT CHARSET=utf8mb4")
        other.execute(
            "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40), price DECIMAL(9,2))",
            "INSERT INTO orders VALUES (2, 'b', 2), (3, 'other', 3), (8, 'h', 8)",
            database=name,
        )
        shop.write(source={"url": Database(other, name).url})
        report = shop.sync("orders")
        assert report.exit_code == 6, report
        error = report.tables[0].error
        assert error is not None and "accept" in str(error.hint)
        shop.pipeline.watermark_accept(shop.full_name("orders"))
        shop.synced("orders")
        assert shop.query("SELECT id, note FROM orders ORDER BY id") == [(2, "b"), (3, "other"), (8, "h")]


def test_lag_is_nothing_once_followed_however_old_the_last_change_is(shop: Workspace) -> None:
    for _ in range(2):
        shop.execute("INSERT INTO orders SELECT MAX(id) + 1, 'new', 1 FROM orders")
        shop.synced("orders")
    shop.execute("UPDATE orders SET note = 'later' WHERE id = 1")
    shop.synced("tags")
    marks = {mark.table_name.partition(".")[2]: mark for mark in shop.pipeline.watermark_list().tables}
    assert marks["tags"].lag_seconds == 0.0
    assert marks["orders"].lag_seconds is not None


# ---------------------------------------------------------------- sync's options


def test_a_limit_takes_whole_reads_of_the_log(shop: Workspace) -> None:
    for id in (10, 20, 30):
        shop.execute(f"INSERT INTO orders VALUES ({id}, 'n', 1), ({id + 1}, 'n', 1)")
        shop.synced("tags")  # reads the log for both
    counts = []
    for limit in (1, 3, None):
        shop.synced("orders", limit=limit)
        counts.append(shop.query("SELECT count(*) FROM orders"))
    assert counts == [[(5,)], [(7,)], [(9,)]]
    shop.execute("DELETE FROM orders WHERE id > 9")
    shop.synced("orders", limit=100)
    assert shop.compare("orders").equal


def test_what_a_run_has_loaded_is_compared_with_the_source(shop: Workspace) -> None:
    change(shop)
    report = shop.sync("orders", "tags", verify_data=True)
    assert report.ok, report
    notes = {one.table.partition(".")[2]: " ".join(one.notes) for one in report.tables}
    assert "verified: 3 rows" in notes["orders"] and "verified: 1 row" in notes["tags"]


def test_a_loaded_row_that_differs_is_found_by_its_key(shop: Workspace) -> None:
    change(shop)
    n = shop.synced("orders")["commits"]
    with duckdb.connect(str(shop.warehouse)) as warehouse:
        warehouse.execute("UPDATE orders SET note = 'spoilt' WHERE id = 4")
    shop.execute("UPDATE orders SET note = 'later' WHERE id = 2")
    with Services(shop.settings, Silent(), new_run(), shop.spark()) as services:
        log = Log(services.store, shop.full_name("orders"))
        loaded = [commit for commit, _ in log.commits(n) if isinstance(commit, WithFiles)]
        checked = verify_loaded(services, shop.full_name("orders"), log.read(), loaded)
    [found] = checked.findings
    assert found.detail.startswith("id = 4 differs in note")


def test_doctor_says_of_a_table_that_follows_what_its_next_sync_would_do(shop: Workspace) -> None:
    shop.write(tables={shop.full_name("orders"): {}, shop.full_name("tags"): {}})
    found = doctor(shop)
    assert "tables follow it; " in found.one("source", "binary log")["detail"]
    assert not [name for name in found.all("failure") if name.startswith("tables")]
