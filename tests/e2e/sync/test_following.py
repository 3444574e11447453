"""Tables that follow the binary log: every change arrives, deletes too, and a table that nobody touched costs nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from floodmark.log.status import read_checked, read_status
from floodmark.model.run import SyncOptions, SyncReport, new_run
from floodmark.plan.tables import StoredTables
from floodmark.services import Services
from floodmark.setup.services.databases import DatabaseServer, MariaDB
from floodmark.source.session import Session
from floodmark.spark.context import Spark
from floodmark.status.facts import StoreFacts
from floodmark.store.store import Store
from floodmark.sync.changes import follow_log
from floodmark.sync.news import news_of
from floodmark.sync.table import sync_table
from floodmark.sync.work import Work
from tests.conftest import (
    Silent,
    Workspace,
)


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


# ---------------------------------------------------------------- tables that are not even read


@pytest.fixture
def noted(shop: Workspace) -> Workspace:
    """The same, and the last run has found both tables untouched."""
    ran(shop)
    return shop


def stored(shop: Workspace) -> Store:
    return Store(shop.settings.store)


def checked(shop: Workspace) -> list[str]:
    """The tables on which the last run has reported without reading their logs."""
    before = read_checked(stored(shop)).run
    run = ran(shop).run
    found = read_checked(stored(shop))
    return sorted(name.rpartition(".")[2] for name in found.tables) if found.run == run != before else []


def test_a_table_without_news_is_reported_as_before_though_its_log_is_not_read(shop: Workspace) -> None:
    def shown() -> dict[str, dict[str, Any]]:
        found = {one.table: one.as_json() for one in ran(shop).tables}
        for table in found.values():
            assert table["watermark"].pop("last_check_time") and table.pop("seconds") is not None
            table["stage_seconds"] = set(table["stage_seconds"])
        return found

    read = shown()
    assert checked(shop) == ["orders", "tags"]
    assert shown() == read


def test_an_untouched_table_counts_as_checked_now(noted: Workspace) -> None:
    name = noted.full_name("tags")
    status = read_status(stored(noted), name)
    assert checked(noted) == ["orders", "tags"]
    later, listed = read_status(stored(noted), name), noted.pipeline.watermark_get(name)
    assert status and later and later.run != status.run
    assert later.last_check_time and status.last_check_time and later.last_check_time > status.last_check_time
    assert listed["last_check_time"] == later.last_check_time == later.caught_up_at
    facts = {one.table: one.status for one in StoreFacts(stored(noted)).tables()}
    assert facts[name] == later.masked(str)


def test_only_the_touched_table_is_read(noted: Workspace) -> None:
    noted.execute("DELETE FROM orders WHERE id = 1")
    assert checked(noted) == ["tags"]
    assert equal(noted)


def test_another_configuration_a_reset_and_a_lost_target_are_seen(noted: Workspace) -> None:
    assert checked(noted) == ["orders", "tags"]
    noted.write(tables={noted.full_name("orders"): {"exclude": ["price"]}})
    assert checked(noted) == ["tags"]
    noted.write(tables=None)
    assert checked(noted) == ["tags"]
    noted.pipeline.watermark_reset(noted.full_name("tags"), force=True)
    assert checked(noted) == []
    assert equal(noted)
    ran(noted)
    assert checked(noted) == ["orders", "tags"]
    noted.warehouse.unlink()
    assert checked(noted) == []
    assert equal(noted)


def test_a_table_that_failed_is_read_until_it_succeeds(noted: Workspace) -> None:
    assert checked(noted) == ["orders", "tags"]
    noted.execute("RENAME TABLE tags TO aside", "INSERT INTO orders VALUES (9, 'i', 9)")
    assert not noted.sync("orders", "tags").ok
    noted.execute("RENAME TABLE aside TO tags")
    assert checked(noted) == []
    assert equal(noted)


def test_what_foreign_keys_do_unlogged_is_said_or_looked_for(shop: Workspace, logged: DatabaseServer) -> None:
    shop.execute(
        "CREATE TABLE items (id INT PRIMARY KEY, order_id INT, FOREIGN KEY (order_id) REFERENCES orders (id) ON DELETE CASCADE)",
        "INSERT INTO items VALUES (1, 1), (2, 2)",
    )
    notes = [note for one in ran(shop, "orders", "items").tables for note in one.notes]
    unlogged = any("what foreign keys do (ON DELETE CASCADE from" in note for note in notes)
    assert unlogged == isinstance(logged, MariaDB)
    if unlogged:
        shop.write(defaults={"changes": "binlog", "cascades": "follow", "deletes_every": "0s"})
    shop.execute("DELETE FROM orders WHERE id = 1")
    ran(shop, "orders", "items")
    assert equal(shop, "orders", "items")


def test_many_listed_tables_are_looked_up_at_once_and_missing_ones_by_name(shop: Workspace) -> None:
    names = [f"t{n}" for n in range(30)]
    shop.execute(*(f"CREATE TABLE {name} (id INT PRIMARY KEY)" for name in names))
    shop.write(tables={name: {} for name in (*names, "missing", "tag*")})
    settings = shop.settings
    with Session(settings.source, purpose="test") as session:

        def asked() -> int:
            return int(session.rows("SHOW SESSION STATUS LIKE 'Questions'")[0][1] or 0)

        before = asked()
        found, unknown = StoredTables(settings, stored(shop)).resolve(
            lambda _: nullcontext(session), [], True
        )
        assert asked() - before < 10
    assert set(found) == {shop.full_name(name) for name in (*names, "tags")}
    assert shop.full_name("missing") in [one.table for one in unknown if one.error]


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
