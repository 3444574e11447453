"""`watermark validate`: finds what is wrong with a table's log, files, copies and ledger, and repairs it on request."""

from __future__ import annotations

import duckdb
import pytest

from floodmark.log.claim import claim
from floodmark.log.document import commit_path
from floodmark.log.log import draft
from floodmark.model.commit import Restore
from floodmark.model.window import Window
from tests.support.synced_twice import Past


def test_an_intact_table_has_no_findings(past: Past) -> None:
    document = past.json("validate")
    assert document["ok"] is True
    (table,) = document["tables"]
    assert table["rows_warehouse"] == 100 and table["findings"] == []
    assert f"{past.name}: ok" in past.run("validate")


def test_rereads_resets_and_moves_are_not_findings(past: Past) -> None:
    past.workspace.synced("orders", since="2025-03-01 00:00:10", until="2025-03-01 00:00:20")
    past.pipeline.watermark_restore(past.name, commit=2)
    past.workspace.synced("orders", limit=10, max_chunks=2)
    past.pipeline.watermark_set(past.name, timestamp="2025-03-01 00:00:50")
    past.workspace.synced("orders")
    assert past.kinds(code=0) == []
    past.pipeline.watermark_reset(past.name)
    assert past.kinds(code=0) == []
    past.workspace.synced("orders", backup_only=True)
    assert past.kinds(code=0) == []


def test_a_missing_file_or_one_of_another_size_is_found(past: Past) -> None:
    first, second = past.objects("data/")
    past.store.delete([first])
    past.store.put(second, b"PAR1")
    assert sorted(past.kinds()) == ["count_mismatch", "missing_file"]
    said = past.run("validate", "-t", past.name, code=7)
    assert first in said and "its rows are in the warehouse" in said
    assert sorted(past.kinds("--repair")) == ["count_mismatch", "missing_file"]


def test_an_orphan_is_found_and_kept_but_a_running_syncs_files_are_not_orphans(past: Past) -> None:
    run = "20250819_153000_ab12"
    path = f"data/{past.name}/{run}/9-window0-abcd-0.parquet"
    past.store.put(path, b"PAR1")
    assert past.kinds() == ["orphan"]
    assert past.kinds("--repair") == ["orphan"] and path in past.objects("data/")
    taken = claim(past.log, past.log.read(), run=run, purpose="sync")
    with taken.lease:
        assert past.kinds(code=0) == []
    assert "orphan" in past.kinds()


@pytest.mark.parametrize("place", ["tables/", "backups/daily/", "backups/sessions/"])
def test_a_damaged_copy_is_found_and_published_again(past: Past, place: str) -> None:
    path = past.objects(f"watermark/{place}")[-1]
    past.store.put(path, b"\x00")
    assert past.kinds() == ["stale_copy"]
    assert past.store.get(path) == b"\x00"  # looking repairs nothing
    document = past.json("validate", "-t", past.name, "--repair")
    assert document["ok"] and "published again" in document["tables"][0]["repaired"][0]
    assert past.kinds(code=0) == []


def test_copies_that_lag_behind_the_log_are_found_and_published_again(past: Past) -> None:
    state = past.log.read()
    taken = claim(past.log, state, run="20250819_153000_ab12", purpose="sync")
    taken.lease.release()
    assert past.kinds() == ["stale_copy"] * 3
    assert "shows commit 4, the log is at 5" in past.run("validate", "-t", past.name, code=7)
    assert past.kinds("--repair", code=0) == []


def test_a_lost_commit_is_found_and_restored(past: Past) -> None:
    whole = past.store.get(commit_path(past.name, 2))
    past.store.delete([commit_path(past.name, 2)])
    assert past.kinds()[0] == "damaged_log"
    document = past.json("validate", "-t", past.name, "--repair")
    assert "commit 2 put back" in document["tables"][0]["repaired"][0]
    assert past.store.get(commit_path(past.name, 2)) == whole


def test_a_warehouse_that_lost_rows_or_ledger_rows_is_found(past: Past) -> None:
    with duckdb.connect(str(past.workspace.warehouse)) as connection:
        connection.execute("DELETE FROM orders WHERE id > 30")
    assert past.kinds() == ["count_mismatch"]
    said = past.run("validate", "-t", past.name, code=7)
    assert "orders has 30 rows, but the loaded files have at least 60" in said
    with duckdb.connect(str(past.workspace.warehouse)) as connection:
        connection.execute("DELETE FROM floodmark_ledger WHERE n = 4")
    assert "stale_copy" in past.kinds()
    assert "shows 100 loaded rows, the ledger has 40" in past.run("validate", "-t", past.name, code=7)
    past.workspace.synced("orders")
    with duckdb.connect(str(past.workspace.warehouse)) as connection:
        connection.execute("UPDATE floodmark_ledger SET rows = 7, digest = digest WHERE n = 4")
        connection.execute(
            "INSERT INTO floodmark_ledger SELECT * REPLACE (99 AS n) FROM floodmark_ledger WHERE n = 4"
        )
    found = past.kinds()
    assert "ledger_ahead" in found and "count_mismatch" in found


def test_windows_that_do_not_join_are_a_gap_or_an_overlap(past: Past) -> None:
    for low, kind in (
        ((("2025-03-01 00:01:50.000000", 110),), "gap"),
        ((("2025-03-01 00:00:10.000000", 10),), "overlap"),
    ):
        state = past.log.read()
        window = Window(kind, low[0], ("2025-03-02 00:00:00.000000", 999), "cursor")
        taken = claim(past.log, state, run="20250819_153000_ab12", purpose="sync", window=window)
        past.log.append(
            taken.state, draft(taken.state, Restore, "20250819_153000_ab12", position=state.position)
        )
        taken.lease.release()
    assert [k for k in past.kinds() if k != "stale_copy"] == ["gap", "overlap"]


def test_validate_reports_an_unknown_table(past: Past) -> None:
    assert "nowhere" in past.run("validate", "-t", past.workspace.full_name("nowhere"), code=2)


def test_an_unreadable_log_is_a_finding_with_a_remedy(past: Past) -> None:
    past.store.delete(past.objects("watermark/"))
    past.store.put(commit_path(past.name, 1), b"\x00")
    assert past.kinds() == ["damaged_log"]
    assert "reset" in past.run("validate", "-t", past.name, "--repair", code=7)
