"""Tables that follow the binary log: every change arrives, deletes too, and a table that nobody touched costs nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from floodmark.model.run import SyncOptions, SyncReport, new_run
from floodmark.services import Services
from floodmark.setup.services.databases import DatabaseServer
from floodmark.spark.context import Spark
from floodmark.sync.changes import follow_log
from floodmark.sync.news import news_of
from floodmark.sync.table import sync_table
from floodmark.sync.work import Work
from tests.conftest import (
    BOTH,
    NO_MYSQL,
    SERVERS,
    Floodmark,
    Silent,
    Workspace,
    fresh_database,
    new_workspace,
)
from tests.support.followed_log import LOGGED


@pytest.fixture(scope="module", params=BOTH)
def logged(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """A server that writes a binary log."""
    if request.param == "mysql" and NO_MYSQL:
        pytest.skip(NO_MYSQL)
    with SERVERS[request.param](args=LOGGED[request.param], buffer_pool="64M") as server:
        yield server


@pytest.fixture
def shop(
    logged: DatabaseServer, tmp_path: Path, floodmark: Floodmark, spark: Callable[[], Spark]
) -> Iterator[Workspace]:
    """Two tables without any cursor column, copied once."""
    with fresh_database(logged) as database:
        workspace = new_workspace(tmp_path, database, floodmark, spark, store={"url": "./lake"})
        workspace.write(defaults={"changes": "binlog"})
        workspace.execute(
            "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40), price DECIMAL(9,2))",
            "CREATE TABLE tags (name VARCHAR(20) PRIMARY KEY, n INT) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
            "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)",
            "INSERT INTO tags VALUES ('abc', 1), ('def', 2)",
        )
        ran(workspace)
        yield workspace


def ran(workspace: Workspace, *tables: str) -> SyncReport:
    """A sync of both tables, which must succeed."""
    report = workspace.sync(*(tables or ("orders", "tags")))
    errors = [one.error for one in report.tables if one.error is not None]
    if errors:
        raise errors[0]
    return report


def equal(workspace: Workspace, *tables: str) -> bool:
    keys = {"tags": "n"}
    found = [workspace.compare(table, key=keys.get(table, "id")) for table in tables or ("orders", "tags")]
    return all(one.equal for one in found)


def test_inserts_updates_and_deletes_arrive_without_any_cursor(shop: Workspace) -> None:
    assert equal(shop)
    shop.execute(
        "INSERT INTO orders VALUES (4, 'd', 4)",
        "UPDATE orders SET price = 20 WHERE id = 2",
        "DELETE FROM orders WHERE id = 1",
    )
    ran(shop)
    assert equal(shop)
    assert shop.query("SELECT id FROM orders ORDER BY id") == [(2,), (3,), (4,)]


def test_a_table_that_nobody_touched_asks_nothing_and_commits_nothing(shop: Workspace) -> None:
    shop.execute("UPDATE orders SET price = 20 WHERE id = 2")
    report = {one.table.rpartition(".")[2]: one for one in ran(shop).tables}
    assert (report["orders"].rows_extracted, report["tags"].rows_extracted) == (1, 0)
    assert report["orders"].commits and not report["tags"].commits
    assert not any(one.commits for one in ran(shop).tables)
    assert equal(shop)


def test_a_key_that_changed_also_by_case_leaves_its_old_row_and_no_other(shop: Workspace) -> None:
    shop.execute(
        "UPDATE orders SET id = 30 WHERE id = 3",
        "UPDATE tags SET name = 'ABC' WHERE name = 'abc'",
        "UPDATE tags SET name = 'dèf' WHERE name = 'def'",
    )
    ran(shop)
    assert equal(shop)
    assert shop.query("SELECT name FROM tags ORDER BY n") == [("ABC",), ("dèf",)]


def test_a_truncated_table_is_compared_and_repaired_in_the_same_run(shop: Workspace) -> None:
    shop.execute("TRUNCATE TABLE orders", "INSERT INTO orders VALUES (3, 'c', 3), (9, 'new', 9)")
    ran(shop)
    assert equal(shop)


def test_a_column_added_between_changes_arrives(shop: Workspace) -> None:
    shop.execute(
        "UPDATE orders SET note = 'before' WHERE id = 1",
        "ALTER TABLE orders ADD COLUMN state INT DEFAULT 4 FIRST",
        "INSERT INTO orders VALUES (5, 7, 'g', 7)",
        "UPDATE orders SET note = 'after' WHERE id = 2",
    )
    ran(shop)
    ran(shop)
    assert equal(shop)


def test_a_swapped_table_is_compared(shop: Workspace) -> None:
    shop.execute(
        "CREATE TABLE orders_new LIKE orders",
        "INSERT INTO orders_new SELECT id + 1, note, price FROM orders",
        "RENAME TABLE orders TO orders_old, orders_new TO orders",
        "UPDATE orders SET note = 'x' WHERE id = 3",
    )
    ran(shop)
    assert equal(shop)


def test_a_purged_log_is_compared(shop: Workspace, logged: DatabaseServer) -> None:
    shop.execute("UPDATE orders SET note = 'lost' WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    shop.execute("FLUSH BINARY LOGS")
    last = shop.execute("SHOW BINARY LOGS")[-1][0]
    shop.execute(f"PURGE BINARY LOGS TO '{last}'")
    ran(shop)
    assert equal(shop)


def test_a_column_added_before_a_truncate_that_leaves_no_row_comes_with_the_next_row(shop: Workspace) -> None:
    shop.execute("ALTER TABLE orders ADD COLUMN state INT DEFAULT 4 FIRST", "TRUNCATE TABLE orders")
    ran(shop)
    assert shop.query("SELECT id FROM orders") == []
    shop.execute("INSERT INTO orders VALUES (5, 7, 'g', 7)")
    ran(shop)
    assert equal(shop)


def test_a_run_goes_on_from_where_another_one_that_read_the_log_later_has_left_a_table(
    shop: Workspace, spark: Callable[[], Spark]
) -> None:
    with Services(shop.settings, Silent(), new_run(), spark()) as services:
        work = Work(services, SyncOptions())
        work.resolve([shop.full_name("orders")], False)
        earlier = follow_log(services, [shop.full_name("orders")])
        work.news = news_of(services.store, earlier, time.time())
        shop.execute("UPDATE orders SET price = 20 WHERE id = 2")
        ran(shop)
        report = sync_table(work.table(shop.full_name("orders")))
    assert (report.error, report.commits) == (None, ())
    assert equal(shop)
