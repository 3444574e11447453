"""Tables that are copied whole: without a key or by configuration, swapped in at once, and the target is never missing."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from floodmark.model.run import SyncOptions, new_run
from floodmark.spark.context import Spark, WarmSpark
from floodmark.sync.run import sync
from tests.conftest import Silent, Workspace
from tests.support.table_shapes import AT, configured, refused, same

pytestmark = pytest.mark.source


def test_a_table_without_a_key_is_copied_whole_with_its_duplicates(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (a INT, b VARCHAR(9))", "INSERT INTO t VALUES (1, 'x'), (1, 'x'), (NULL, NULL)"
    )
    assert workspace.synced("t")["rows_extracted"] == 3
    assert same(workspace, "t")
    workspace.execute("DELETE FROM t WHERE a IS NULL", "INSERT INTO t VALUES (2, ''), (1, 'x')")
    assert workspace.synced("t")["rows_extracted"] == 4
    assert same(workspace, "t")


def test_a_snapshot_includes_deletes_and_silent_changes(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, n INT, {AT})",
        "INSERT INTO t (id, n) SELECT seq, seq FROM seq_1_to_300",
    )
    configured(workspace, "t", mode="full")
    workspace.synced("t")
    workspace.execute(
        "DELETE FROM t WHERE id % 3 = 0", "UPDATE t SET n = -1, update_at = update_at WHERE id % 5 = 0"
    )
    workspace.synced("t")
    assert same(workspace, "t")


def test_a_resident_sync_makes_a_snapshot_only_when_a_row_has_changed(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (a INT, f FLOAT, b LONGTEXT, d DATETIME(6)) ENGINE=InnoDB",
        "INSERT INTO t SELECT seq % 7, seq / 3, REPEAT(seq, 900), NOW(6) FROM seq_1_to_50",
    )

    def commits(**options: Any) -> int:
        return len(workspace.synced("t", **options)["commits"])

    assert commits(repeated=True) and not commits(repeated=True)
    assert commits(), "only a resident sync looks first"
    assert commits(repeated=True), "a snapshot without a fingerprint may be of any rows"
    for change in (
        "UPDATE t SET f = f * (1 + 1e-6) LIMIT 1",
        "UPDATE t SET b = CONCAT(b, ' ') LIMIT 1",
        "INSERT INTO t SELECT * FROM (SELECT * FROM t LIMIT 1) AS twin",
        "ALTER TABLE t ADD COLUMN c INT",
    ):
        workspace.execute(change)
        assert commits(repeated=True) and same(workspace, "t", "a, b, d"), change
    assert not commits(repeated=True)
    with duckdb.connect(str(workspace.warehouse)) as link:
        link.execute("DELETE FROM t")
    assert commits(repeated=True) and same(workspace, "t", "a, b, d"), "the target lacks what it had"
    configured(workspace, "t", where="a <> 3")
    assert commits(repeated=True) and not commits(repeated=True)


def test_a_column_renamed_while_a_resident_sync_looks_is_retried(
    workspace: Workspace,
) -> None:
    workspace.execute("CREATE TABLE t (a INT, b INT)", "INSERT INTO t VALUES (1, 2)")
    assert workspace.synced("t", repeated=True)["commits"]

    class Renaming(WarmSpark):
        def get(self) -> Spark:
            """What the look uses, determined once the table is known."""
            workspace.execute("ALTER TABLE t RENAME COLUMN b TO c")
            return super().get()

    config, name = workspace.settings, workspace.full_name("t")
    spark = Renaming(config, "t", running=workspace.spark())
    report = sync(config, [name], False, SyncOptions(repeated=True), Silent(), new_run(), spark=spark)
    (error,) = [t.error for t in report.tables]
    assert error is not None and error.code == 4 and "changed while it was being read" in error.message
    workspace.synced("t", repeated=True)
    assert same(workspace, "t", "a, c")


def test_a_failed_snapshot_leaves_the_previous_one(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, d DATE)",
        "INSERT INTO t SELECT seq, '2025-01-01' FROM seq_1_to_2000",
    )
    configured(workspace, "t", slice_rows=500)
    workspace.synced("t")
    before = workspace.query("SELECT * FROM t ORDER BY id")
    # Several files of the new snapshot are written before the row that can't be read is met.
    workspace.execute("SET sql_mode = ''", "UPDATE t SET d = IF(id = 1999, '2025-00-00', '2026-01-01')")
    assert refused(workspace, "t")["code"] == 6
    assert workspace.query("SELECT * FROM t ORDER BY id") == before
    workspace.execute("UPDATE t SET d = '2026-01-01' WHERE id = 1999")
    workspace.synced("t")
    assert same(workspace, "t")


def test_an_implausibly_small_snapshot_is_swapped_in_only_with_force(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t SELECT seq FROM seq_1_to_1000")
    workspace.synced("t")
    workspace.execute("DELETE FROM t WHERE a > 99")
    error = refused(workspace, "t")
    assert (error["code"], error["kind"]) == (6, "data")
    assert "99 rows, down from 1,000" in error["message"] and "--force" in error["hint"]
    assert workspace.query("SELECT count(*) FROM t") == [(1000,)]
    # Refused again, by the snapshot that was loaded and not by the one that was refused.
    assert refused(workspace, "t")["code"] == 6
    workspace.synced("t", force=True)
    assert same(workspace, "t")


def test_an_emptied_table_needs_force_and_then_empties_the_target(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t SELECT seq FROM seq_1_to_100")
    workspace.synced("t")
    workspace.execute("DELETE FROM t")
    assert refused(workspace, "t")["code"] == 6
    table = workspace.synced("t", force=True)
    assert (table["rows_extracted"], workspace.query("SELECT count(*) FROM t")) == (0, [(0,)])
    workspace.execute("INSERT INTO t VALUES (7)")
    workspace.synced("t")
    assert workspace.query("SELECT a FROM t") == [(7,)]


def test_a_small_table_may_be_emptied_without_force(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1), (2)")
    workspace.synced("t")
    workspace.execute("DELETE FROM t")
    workspace.synced("t")
    assert workspace.query("SELECT count(*) FROM t") == [(0,)]


@pytest.mark.parametrize("option", [{"limit": 5}, {"max_chunks": 1}])
def test_a_limit_cannot_be_combined_with_a_snapshot(workspace: Workspace, option: dict[str, int]) -> None:
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)")
    error = refused(workspace, "t", **option)
    assert error["code"] == 2 and "mode full" in error["message"]
    assert not list((workspace.folder / "lake").rglob("*.parquet"))


def test_a_target_filled_by_hand_is_not_swapped_away(workspace: Workspace) -> None:
    with duckdb.connect(str(workspace.warehouse)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 42 AS precious")
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)")
    assert refused(workspace, "t")["code"] == 6
    assert workspace.query("SELECT precious FROM t") == [(42,)]
