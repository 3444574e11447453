"""The files of snapshots that a later one has replaced: removed by the sync that loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from tests.conftest import Workspace


def staged(workspace: Workspace) -> list[dict[str, Any]]:
    return list(workspace.pipeline.s3clean_list("t")["files"])


def test_five_changed_snapshots_leave_the_files_of_one(workspace: Workspace) -> None:
    workspace.write(tables={workspace.full_name("t"): {"mode": "full"}})
    workspace.execute("CREATE TABLE t (a INT, b INT)")
    name = workspace.full_name("t")
    for n in range(5):
        workspace.execute(f"INSERT INTO t VALUES ({n}, {n})")
        done = workspace.synced("t")
    files = workspace.run("s3clean", "list", "-t", name, "--json").ok().json["files"]
    assert [(f["state"], f["rows"]) for f in files] == [("loaded", 5)]
    assert done["files_cleaned"] == 1 and not [note for note in done["notes"] if "removed" in note]
    workspace.run("watermark", "validate", "-t", name).ok()
    shown = workspace.run("watermark", "get", "-t", name, "--json").ok().json
    assert (shown["mysql_rows_extracted"], shown["redshift_rows_loaded"]) == (5, 5)
    # The newest snapshot loads again; those before it are not needed.
    workspace.run("watermark", "reset", "-t", name, "--redshift-only").ok()
    workspace.run("watermark", "validate", "-t", name).ok()
    done = workspace.synced("t", load_only=True)
    assert (done["rows_loaded"], done["files_loaded"]) == (5, 1)
    assert done["watermark"]["redshift_rows_loaded"] == 5
    assert workspace.verified("t")["rows_warehouse"] == 5
    with duckdb.connect(str(workspace.warehouse)) as target:
        target.execute("DELETE FROM floodmark_ledger")
        target.execute("DROP TABLE t")
    workspace.synced("t", load_only=True)
    assert workspace.verified("t")["ok"]


def test_what_a_crash_leaves_of_a_superseded_snapshot_does_no_harm_and_the_next_one_removes_it(
    workspace: Workspace,
) -> None:
    name = workspace.full_name("t")
    workspace.write(tables={name: {"mode": "full"}})
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)")
    workspace.synced("t")
    [file] = (workspace.folder / "lake" / "data").rglob("*.parquet")
    content = file.read_bytes()
    workspace.execute("INSERT INTO t VALUES (2)")
    workspace.synced("t")
    assert not file.exists()
    # As if the run had died between its commit and the removal.
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    workspace.run("watermark", "validate", "-t", name).ok()
    assert workspace.verified("t")["ok"]
    workspace.run("watermark", "reset", "-t", name, "--redshift-only").ok()
    assert workspace.synced("t", load_only=True)["rows_loaded"] == 2
    workspace.execute("INSERT INTO t VALUES (3)")
    assert workspace.synced("t")["files_cleaned"] == 2
    workspace.execute("INSERT INTO t VALUES (4)")
    assert workspace.synced("t")["files_cleaned"] == 1
    assert [(f["state"], f["rows"]) for f in staged(workspace)] == [("loaded", 4)]
    workspace.run("watermark", "validate", "-t", name).ok()


def test_a_snapshot_removes_no_file_from_before_the_table_was_read_whole(workspace: Workspace) -> None:
    name = workspace.full_name("t")
    workspace.write(tables={name: {"mode": "append"}})
    workspace.execute("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT)", "INSERT INTO t VALUES (1), (2)")
    workspace.synced("t")
    workspace.execute("DELETE FROM t", "INSERT INTO t VALUES (3)")
    workspace.write(tables={name: {"mode": "full"}})
    workspace.synced("t")
    workspace.execute("INSERT INTO t VALUES (4)")
    assert workspace.synced("t")["files_cleaned"] == 1
    assert [(f["state"], f["rows"]) for f in staged(workspace)] == [("loaded", 2), ("loaded", 2)]
    workspace.run("watermark", "validate", "-t", name).ok()
    workspace.write(tables={name: {"mode": "full", "keep_files": "1s"}})
    workspace.execute("SELECT SLEEP(1.2)", "INSERT INTO t VALUES (5)")
    assert workspace.synced("t")["files_cleaned"] == 2
    assert [(f["state"], f["rows"]) for f in staged(workspace)] == [("loaded", 3)]


def test_snapshots_that_the_store_does_not_delete_fail_no_sync_and_are_removed_later(
    workspace: Workspace,
) -> None:
    workspace.write(tables={workspace.full_name("t"): {"mode": "full"}})
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)")
    workspace.synced("t")
    kept: dict[Path, bytes] = {}
    for n in (2, 3):
        workspace.execute(f"INSERT INTO t VALUES ({n})")
        [file] = (p for p in (workspace.folder / "lake" / "data").rglob("*.parquet") if p.is_file())
        kept[file] = file.read_bytes()
        file.unlink()
        file.mkdir()  # no file: can't be deleted like one
        done = workspace.synced("t")
        assert done["ok"] and done["files_cleaned"] == 0
        assert "removed 0 of 1 file of superseded snapshots" in " ".join(done["notes"])
    for file, content in kept.items():
        file.rmdir()
        file.write_bytes(content)
    workspace.execute("INSERT INTO t VALUES (4)")
    assert workspace.synced("t")["files_cleaned"] == 3
    assert [(f["state"], f["rows"]) for f in staged(workspace)] == [("loaded", 4)]


def test_a_reload_by_a_cursor_is_no_snapshot(workspace: Workspace) -> None:
    name = workspace.full_name("t")
    clock = "DATETIME(6) DEFAULT NOW(6) ON UPDATE NOW(6)"
    workspace.execute(f"CREATE TABLE t (id INT PRIMARY KEY, update_at {clock} NOT NULL, KEY (update_at))")
    for n, mode in enumerate(("full", "upsert", "full", "full")):
        workspace.write(tables={name: {"mode": mode}})
        workspace.execute(f"INSERT INTO t (id) VALUES ({n})")
        done = workspace.synced("t")
    assert done["files_cleaned"] == 1
    assert [f["rows"] for f in staged(workspace)] == [1, 2, 4]
