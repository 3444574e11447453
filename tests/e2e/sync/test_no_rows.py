"""Syncs that find no row to read: what the target then has, and what people see."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Workspace
from tests.support.held_sync import without_batches

AT = "at DATETIME(6) NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (at)"


def configure(workspace: Workspace, **options: Any) -> None:
    workspace.write(tables={workspace.full_name("t"): {"cursor": "at", "start": "2025-01-01", **options}})


def statuses(table: dict[str, Any]) -> tuple[str, str]:
    return table["watermark"]["mysql_status"], table["watermark"]["redshift_status"]


def test_a_table_without_rows_is_up_to_date_once_a_sync_has_looked(workspace: Workspace) -> None:
    configure(workspace)
    workspace.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {AT})")
    assert statuses(workspace.synced("t")) == ("success", "success")
    again = workspace.synced("t")
    assert statuses(again) == ("success", "success") and not again["commits"]
    workspace.run("watermark", "reset", "-t", "t").ok()
    shown = workspace.run("watermark", "get", "-t", "t", "--json").ok().json
    assert (shown["mysql_status"], shown["redshift_status"]) == ("pending", "pending")
    assert statuses(workspace.synced("t")) == ("success", "success")
    assert not workspace.synced("t")["commits"]
    workspace.execute("INSERT INTO t (id) VALUES (1)")
    assert workspace.synced("t")["rows_loaded"] == 1


def test_a_sync_that_finds_nothing_gives_up_the_window_of_one_that_died_before_its_first_commit(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(workspace)
    workspace.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {AT})", "INSERT INTO t (id) VALUES (1)")
    workspace.synced("t")
    workspace.execute("INSERT INTO t (id) VALUES (2)")
    with without_batches(monkeypatch):
        [died] = workspace.sync("t").as_json()["tables"]
        assert died["exit_code"] == 6 and died["watermark"]["activity"]["state"] == "interrupted"
    workspace.execute("DELETE FROM t WHERE id = 2")
    for _ in range(2):
        done = workspace.synced("t")
        assert statuses(done) == ("success", "success") and done["commits"] == []
        assert done["watermark"]["activity"]["state"] == "idle"
    workspace.execute("INSERT INTO t (id) VALUES (3)")
    assert workspace.synced("t")["rows_loaded"] == 1


def test_rows_without_a_cursor_replace_a_full_copy(workspace: Workspace) -> None:
    configure(workspace, mode="full")
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, {AT})", "INSERT INTO t VALUES (1, NULL), (2, NULL)"
    )
    workspace.synced("t")
    workspace.execute("DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (3, NULL)")
    configure(workspace, mode="upsert")
    assert "about 2 rows, replace all rows of t" in str(workspace.synced("t")["notes"])
    assert workspace.query("SELECT id FROM t ORDER BY id") == [(1,), (3,)]
    workspace.execute("INSERT INTO t VALUES (4, '2025-03-01')")
    workspace.synced("t")
    assert workspace.query("SELECT id FROM t ORDER BY id") == [(1,), (3,), (4,)]


def another_key_after(workspace: Workspace, change: str) -> None:
    """A table of 200 rows that was synced, then changed and given another key."""
    configure(workspace)
    rows = ", ".join(f"({i}, {i + 1000}, '2025-03-01')" for i in range(200))
    workspace.execute(f"CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL UNIQUE, {AT})")
    workspace.execute(f"INSERT INTO t VALUES {rows}")
    workspace.synced("t")
    workspace.execute(change)
    configure(workspace, key=["n"])
    workspace.run("watermark", "reset", "-t", "t").ok()


def test_another_key_with_no_row_after_the_start_empties_a_large_target_only_with_force(
    workspace: Workspace,
) -> None:
    another_key_after(workspace, "UPDATE t SET at = '2024-01-01'")
    for _ in range(2):
        (refused,) = workspace.sync("t").tables
        assert refused.exit_code == 6 and "--force" in str(refused.error and refused.error.hint)
        assert workspace.query("SELECT count(*) FROM t") == [(200,)]
    done = workspace.synced("t", force=True)
    assert statuses(done) == ("success", "success") and workspace.query("SELECT count(*) FROM t") == [(0,)]
    workspace.execute("UPDATE t SET at = '2025-03-02' WHERE id = 7")
    assert workspace.synced("t")["rows_loaded"] == 1
    assert workspace.query("SELECT id, n FROM t") == [(7, 1007)]


def test_a_few_rows_replace_many_only_with_force_even_if_read_and_loaded_separately(
    workspace: Workspace,
) -> None:
    another_key_after(workspace, "DELETE FROM t WHERE id > 0")
    (refused,) = workspace.sync("t").tables
    assert refused.exit_code == 6 and "1 row, down from 200" in str(refused.error)
    assert not refused.commits
    workspace.synced("t", backup_only=True)
    for options in ({"load_only": True}, {}):
        (refused,) = workspace.sync("t", **options).tables
        assert refused.exit_code == 6 and "t has 200 rows, and 1 row would replace" in str(refused.error)
    assert workspace.query("SELECT count(*) FROM t") == [(200,)]
    workspace.synced("t", load_only=True, force=True)
    assert workspace.query("SELECT id FROM t") == [(0,)]


def test_a_majority_of_rows_without_a_cursor_replaces_the_old_rows_like_any_others(
    workspace: Workspace,
) -> None:
    configure(workspace)
    rows = ", ".join(["(0, 1000, '2025-03-01')", *(f"({i}, {i + 1000}, NULL)" for i in range(1, 200))])
    workspace.execute(f"CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL UNIQUE, {AT})")
    workspace.execute(f"INSERT INTO t VALUES {rows}")
    workspace.synced("t")
    configure(workspace, key=["n"])
    workspace.run("watermark", "reset", "-t", "t").ok()
    workspace.synced("t")
    assert workspace.query("SELECT count(*) FROM t") == [(200,)]


def test_a_table_that_began_without_rows_is_loaded_again_from_its_files(workspace: Workspace) -> None:
    configure(workspace)
    workspace.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {AT})")
    workspace.synced("t")
    workspace.execute(
        "INSERT INTO t (id, at) VALUES " + ", ".join(f"({i}, '2025-03-01')" for i in range(200))
    )
    workspace.synced("t")
    workspace.run("watermark", "reset", "-t", "t", "--redshift-only").ok()
    assert workspace.synced("t")["rows_loaded"] == 200
    assert workspace.query("SELECT count(*) FROM t") == [(200,)]


@pytest.mark.parametrize("start", [None, "2025-01-01 00:00:00"])
def test_rows_that_are_not_settled_yet_leave_the_target_as_it_is(
    workspace: Workspace, start: str | None
) -> None:
    table = workspace.full_name("t")
    workspace.write(tables={table: {"mode": "full", "start": start}}, defaults={"settle_seconds": 0.1})
    workspace.execute("CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    workspace.synced("t")
    workspace.write(tables={table: {"mode": "append", "start": start}})
    with workspace.database.connect() as link:
        link.cursor().execute("INSERT INTO t VALUES (3)")
        waiting = workspace.synced("t")
        assert "have not settled yet" in str(waiting["notes"]) and not waiting["commits"]
        assert workspace.query("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
        link.commit()
    workspace.synced("t")
    assert workspace.query("SELECT id FROM t ORDER BY id") == [(1,), (2,), (3,)]
