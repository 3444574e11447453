"""Tables that follow the binary log where it can't be trusted blindly: what was lost may have changed a layout, and more."""

from __future__ import annotations

from floodmark.log.log import Log
from floodmark.model.changes import SOURCE_LOG
from floodmark.setup.services.databases import DatabaseServer
from floodmark.store.store import Store
from tests.conftest import Workspace
from tests.e2e.sync.test_following import equal, ran


def purged(workspace: Workspace) -> None:
    """Everything in the log up to now is gone."""
    workspace.execute("FLUSH BINARY LOGS")
    workspace.execute(f"PURGE BINARY LOGS TO '{workspace.execute('SHOW BINARY LOGS')[-1][0]}'")


def test_a_layout_that_changed_in_a_lost_part_of_the_log_is_described_anew(
    shop: Workspace, logged: DatabaseServer
) -> None:
    shop.execute(
        "CREATE TABLE pairs (id INT PRIMARY KEY, n INT)", "INSERT INTO pairs VALUES (1, 10), (2, 20)"
    )
    ran(shop, "pairs")
    shop.execute("ALTER TABLE pairs MODIFY n INT FIRST")
    purged(shop)
    ran(shop, "pairs")
    assert equal(shop, "pairs")
    shop.execute("UPDATE pairs SET n = 11 WHERE id = 1", "DELETE FROM pairs WHERE id = 2")
    ran(shop, "pairs")
    assert equal(shop, "pairs")


def test_a_row_outside_where_leaves_the_target_in_a_comparison_although_deletes_are_ignored(
    shop: Workspace, logged: DatabaseServer
) -> None:
    shop.execute(
        "CREATE TABLE parts (id INT PRIMARY KEY, n INT)", "INSERT INTO parts VALUES (1, 1), (2, 2), (3, 3)"
    )
    shop.write(tables={"parts": {"where": "n < 100", "deletes": "ignore"}})
    ran(shop, "parts")
    shop.execute("UPDATE parts SET n = 500 WHERE id = 1", "DELETE FROM parts WHERE id = 2")
    purged(shop)
    ran(shop, "parts")
    assert shop.query("SELECT id FROM parts ORDER BY id") == [(2,), (3,)]


def test_a_table_that_is_not_there_yet_makes_no_commit_in_every_run(shop: Workspace) -> None:
    def commits() -> int:
        return Log(Store(shop.settings.store), SOURCE_LOG).read().n

    shop.sync("later")
    before = commits()
    shop.sync("later")
    assert commits() == before


def test_rows_that_a_foreign_key_deletes_leave_the_target_if_cascades_are_followed(shop: Workspace) -> None:
    """MariaDB, and MySQL before 9.6, do not log them."""
    shop.write(tables={"children": {"cascades": "follow", "deletes_every": "0s"}})
    shop.execute(
        "CREATE TABLE parents (id INT PRIMARY KEY)",
        "CREATE TABLE children (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parents (id) ON DELETE CASCADE)",
        "INSERT INTO parents VALUES (1), (2)",
        "INSERT INTO children VALUES (1, 1), (2, 2)",
    )
    ran(shop, "parents", "children")
    shop.execute("DELETE FROM parents WHERE id = 1")
    ran(shop, "parents", "children")
    assert equal(shop, "parents", "children")
