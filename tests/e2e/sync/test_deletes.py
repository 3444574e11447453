"""Deletes: rows that the source no longer has are removed once the source confirms it, and stay away."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from floodmark.watermark.validate import watermark_validate
from tests.conftest import Workspace
from tests.support.held_sync import commits
from tests.support.orders import NOTE, create_orders, fill_orders

pytestmark = pytest.mark.source

# Only a source whose own clock writes the cursor is read without an overlap, which would bring rows back.
ORDERS = create_orders(f"{NOTE}, status INT NOT NULL DEFAULT 0", "TIMESTAMP(6)")
Row = tuple[Any, ...]


def fill(rows: int) -> str:
    return fill_orders(rows, "(seq DIV 40) SECOND", id="seq * 3", note="CONCAT('n', seq)", status="seq % 5")


def filled(workspace: Workspace, rows: int, **options: Any) -> None:
    """A table with so many rows, synced; deletes are looked for by every sync."""
    workspace.write(tables={"orders": {"deletes": "hard", "deletes_every": "0s", **options}})
    workspace.execute(ORDERS, fill(rows))
    workspace.synced("orders")


def ids(workspace: Workspace, where: str = "TRUE", table: str = "orders") -> list[int]:
    return [row[0] for row in workspace.query(f"SELECT id FROM {table} WHERE {where} ORDER BY id")]


def source_ids(workspace: Workspace, where: str = "TRUE", table: str = "orders") -> list[int]:
    return [row[0] for row in workspace.execute(f"SELECT id FROM {table} WHERE {where} ORDER BY id")]


def error_of(workspace: Workspace, name: str = "orders", **options: Any) -> dict[str, Any]:
    report = workspace.sync(name, **options)
    (table,) = report.as_json()["tables"]
    assert table["error"], table
    return dict(table["error"])


def no_findings(workspace: Workspace) -> None:
    found = watermark_validate(workspace.settings, run="20250101_000000_test")
    assert found["ok"], found


def reloads_alike(workspace: Workspace) -> None:
    """Whether a reload of the whole log makes the same rows."""
    before = workspace.query("SELECT * FROM orders ORDER BY id")
    workspace.run("watermark", "reset", "-t", "orders", "--redshift-only").ok()
    workspace.run("sync", "-t", "orders", "--redshift-only").ok()
    assert workspace.query("SELECT * FROM orders ORDER BY id") == before


def kinds(workspace: Workspace) -> list[str]:
    return [c["kind"] + (f" {c['purpose']}" if c["kind"] == "claim" else "") for c in commits(workspace)]


def test_rows_that_were_deleted_leave_the_warehouse(workspace: Workspace) -> None:
    filled(workspace, 5000)
    workspace.execute("DELETE FROM orders WHERE id % 100 = 0")
    done = workspace.synced("orders")
    assert done["rows_deleted"] == 50 and done["rows_extracted"] == 0
    assert ids(workspace) == source_ids(workspace)
    assert any("50 rows no longer at the source: deleted" in note for note in done["notes"])
    last = commits(workspace)[-1]
    assert (last["kind"], last["load_as"], last["files"][0]["rows"]) == ("deletes", "delete", 50)
    assert workspace.synced("orders")["rows_deleted"] == 0
    no_findings(workspace)


def test_all_rows_of_one_range_leave_the_warehouse(workspace: Workspace) -> None:
    filled(workspace, 5000)
    workspace.execute("DELETE FROM orders WHERE id BETWEEN 3000 AND 6000")
    assert workspace.synced("orders")["rows_deleted"] == 1001
    assert ids(workspace) == source_ids(workspace)
    no_findings(workspace)


def test_an_emptied_source_does_not_empty_the_warehouse_without_force(workspace: Workspace) -> None:
    filled(workspace, 3000)
    log = kinds(workspace)
    workspace.execute("DELETE FROM orders")
    error = error_of(workspace)
    assert error["code"] == 6 and "3,000 of the 3,000 rows in orders are gone" in error["message"]
    assert "--force" in error["hint"]
    assert len(ids(workspace)) == 3000 and kinds(workspace) == log
    assert workspace.synced("orders", force=True)["rows_deleted"] == 3000
    assert ids(workspace) == []
    no_findings(workspace)


def test_a_source_that_lost_nearly_everything_is_not_trusted(workspace: Workspace) -> None:
    filled(workspace, 1000)
    workspace.execute("DELETE FROM orders WHERE id > 270")
    assert error_of(workspace)["code"] == 6
    assert len(ids(workspace)) == 1000
    workspace.execute("DELETE FROM orders", fill(1000), "DELETE FROM orders WHERE id > 600")
    assert workspace.synced("orders")["rows_deleted"] == 800
    assert ids(workspace) == source_ids(workspace)


def test_a_small_table_may_lose_most_rows_but_not_the_last_one(workspace: Workspace) -> None:
    filled(workspace, 10)
    workspace.execute("DELETE FROM orders WHERE id > 3")
    assert workspace.synced("orders")["rows_deleted"] == 9
    workspace.execute("DELETE FROM orders")
    assert error_of(workspace)["code"] == 6
    workspace.execute("INSERT INTO orders (id) VALUES (700)")
    assert workspace.synced("orders")["rows_deleted"] == 1
    assert ids(workspace) == [700]


def test_rows_that_no_longer_match_the_where_are_deletes(workspace: Workspace) -> None:
    filled(workspace, 2000, where="status <> 4")
    assert len(ids(workspace)) == 1600
    workspace.execute("UPDATE orders SET status = 4 WHERE id % 30 = 0 AND status <> 4")
    expected = source_ids(workspace, "status <> 4")
    assert workspace.synced("orders")["rows_deleted"] == 1600 - len(expected) > 0
    assert ids(workspace) == expected
    workspace.execute("UPDATE orders SET status = 1 WHERE id = 30")
    assert workspace.synced("orders")["rows_deleted"] == 0
    assert ids(workspace) == source_ids(workspace, "status <> 4")
    no_findings(workspace)


def test_the_old_version_of_a_changed_key_is_a_delete(workspace: Workspace) -> None:
    filled(workspace, 500)
    workspace.execute("UPDATE orders SET id = id + 100000 WHERE id % 50 = 0")
    done = workspace.synced("orders")
    assert (done["rows_extracted"], done["rows_deleted"]) == (10, 10)
    assert ids(workspace) == source_ids(workspace)


def test_a_key_that_was_deleted_and_comes_back_is_in_the_warehouse(workspace: Workspace) -> None:
    filled(workspace, 500)
    workspace.execute("DELETE FROM orders WHERE id IN (3, 6, 9)")
    workspace.synced("orders")
    workspace.execute("INSERT INTO orders (id, note) VALUES (6, 'back')")
    done = workspace.synced("orders")
    assert (done["rows_extracted"], done["rows_deleted"]) == (1, 0)
    workspace.execute(
        "DELETE FROM orders WHERE id = 12", "INSERT INTO orders (id, note) VALUES (12, 'at once')"
    )
    assert workspace.synced("orders")["rows_deleted"] == 0
    assert workspace.query("SELECT id, note FROM orders WHERE id < 15 ORDER BY id") == [
        (6, "back"),
        (12, "at once"),
    ]
    assert workspace.compare("orders").equal


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_rows_that_come_back_unchanged_or_match_the_where_again_are_read(
    workspace: Workspace, deletes: str
) -> None:
    filled(workspace, 500, deletes=deletes, where="status <> 4")
    workspace.execute(
        "CREATE TABLE kept SELECT * FROM orders WHERE id IN (3, 6, 9)",
        "DELETE FROM orders WHERE id IN (3, 6, 9)",
    )
    assert workspace.synced("orders")["rows_deleted"] == 3
    workspace.execute(
        "INSERT INTO orders SELECT * FROM kept",
        "UPDATE orders SET status = 1, update_at = update_at WHERE id = 12",
    )
    done = workspace.synced("orders")
    assert (done["rows_extracted"], done["rows_reread"], done["rows_deleted"]) == (0, 4, 0)
    there = "TRUE" if deletes == "hard" else "_deleted_at IS NULL"
    assert ids(workspace, there) == source_ids(workspace, "status <> 4")
    assert workspace.synced("orders")["rows_reread"] == 0
    reloads_alike(workspace)
    no_findings(workspace)


def test_rows_before_the_start_that_were_never_replicated_do_not_matter(workspace: Workspace) -> None:
    workspace.execute(ORDERS)
    workspace.execute(
        "INSERT INTO orders (id, update_at) SELECT 100000 + seq, '2024-05-01' FROM seq_1_to_500"
    )
    workspace.execute(fill(500))
    workspace.write(tables={"orders": {"deletes": "hard", "deletes_every": "0s", "start": "2025-01-01"}})
    assert workspace.synced("orders")["rows_deleted"] == 0
    workspace.execute("DELETE FROM orders WHERE id IN (3, 100003)")
    assert workspace.synced("orders")["rows_deleted"] == 1
    assert ids(workspace) == source_ids(workspace, "id < 100000")


def test_a_reload_brings_no_deleted_row_back(workspace: Workspace) -> None:
    filled(workspace, 800)
    workspace.execute("DELETE FROM orders WHERE id % 7 = 0")
    workspace.synced("orders")
    workspace.execute("INSERT INTO orders (id, note) VALUES (21, 'back')", "DELETE FROM orders WHERE id = 3")
    workspace.synced("orders")
    assert ids(workspace) == source_ids(workspace)
    reloads_alike(workspace)
    no_findings(workspace)


def test_soft_deletes_mark_rows_and_an_upsert_clears_the_mark(workspace: Workspace) -> None:
    filled(workspace, 600, deletes="soft")
    workspace.execute("DELETE FROM orders WHERE id IN (30, 60, 90)")
    began = datetime.now(UTC).replace(tzinfo=None)
    done = workspace.synced("orders")
    assert done["rows_deleted"] == 3 and any("marked as deleted" in note for note in done["notes"])
    marked = workspace.query("SELECT id, _deleted_at FROM orders WHERE _deleted_at IS NOT NULL ORDER BY id")
    assert [row[0] for row in marked] == [30, 60, 90] and len(ids(workspace)) == 600
    assert all(timedelta(0) <= at - began < timedelta(minutes=2) for _, at in marked)
    assert marked[0][1].isoformat(timespec="microseconds") + "Z" == commits(workspace)[-1]["at"]
    assert workspace.synced("orders")["rows_deleted"] == 0, "a row that is marked is not there"
    workspace.execute("INSERT INTO orders (id, note) VALUES (60, 'back')")
    workspace.synced("orders")
    assert ids(workspace, "_deleted_at IS NOT NULL") == [30, 90]
    reloads_alike(workspace)
    no_findings(workspace)


def test_hard_soft_and_ignore_can_be_switched(workspace: Workspace) -> None:
    filled(workspace, 300, deletes="soft")
    workspace.execute("DELETE FROM orders WHERE id = 3")
    workspace.synced("orders")
    workspace.write(tables={"orders": {"deletes": "ignore", "deletes_every": "0s"}})
    workspace.execute("DELETE FROM orders WHERE id = 6")
    assert workspace.synced("orders")["commits"] == []
    workspace.write(tables={"orders": {"deletes": "hard", "deletes_every": "0s"}})
    workspace.execute("DELETE FROM orders WHERE id = 9")
    assert workspace.synced("orders")["rows_deleted"] == 2
    assert ids(workspace)[:3] == [3, 12, 15] and ids(workspace, "_deleted_at IS NOT NULL") == [3]
    workspace.write(tables={"orders": {"deletes": "soft", "deletes_every": "0s"}})
    workspace.execute("DELETE FROM orders WHERE id = 12", "INSERT INTO orders (id) VALUES (3)")
    assert workspace.synced("orders")["rows_deleted"] == 1
    assert ids(workspace, "_deleted_at IS NOT NULL") == [12] and 3 in ids(workspace)


def test_text_keys_are_deleted_as_their_collation_compares_them(workspace: Workspace) -> None:
    workspace.write(tables={"codes": {"deletes": "hard", "deletes_every": "0s"}})
    workspace.execute(
        "CREATE TABLE codes (code VARCHAR(20) COLLATE utf8mb4_general_ci, part INT, n INT, update_at TIMESTAMP(6) "
        "NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), PRIMARY KEY (code, part), KEY (update_at))",
        "INSERT INTO codes (code, part, n) SELECT CONCAT('Größe ', seq), seq % 3, seq FROM seq_1_to_300",
    )
    workspace.synced("codes")
    workspace.execute(
        "DELETE FROM codes WHERE n % 10 = 0",
        # The same key to MySQL, and no change that the cursor shows.
        "UPDATE codes SET code = UPPER(code), update_at = update_at WHERE n = 5",
    )
    assert workspace.synced("codes")["rows_deleted"] == 30
    kept = [row[0] for row in workspace.query("SELECT n FROM codes ORDER BY n")]
    assert kept == [n for n in range(1, 301) if n % 10]
    assert workspace.query("SELECT count(*) FROM floodmark_keys_codes") == [(270,)]
    workspace.execute("INSERT INTO codes (code, part, n) VALUES ('GRÖSSE 10', 1, 10), ('größe 11', 2, 11) "
                      "ON DUPLICATE KEY UPDATE n = 1011")  # fmt: skip
    workspace.synced("codes")
    assert workspace.query("SELECT count(*) FROM codes") == workspace.execute("SELECT count(*) FROM codes")


def test_deletes_are_searched_at_most_once_per_interval(workspace: Workspace) -> None:
    filled(workspace, 300, deletes_every="24h")
    assert kinds(workspace)[-1] == "deletes" and commits(workspace)[-1]["files"] == []
    workspace.execute("DELETE FROM orders WHERE id = 3")
    log = kinds(workspace)
    done = workspace.synced("orders")
    assert done["rows_deleted"] == 0 and done["commits"] == [] and kinds(workspace) == log
    assert 3 in ids(workspace)
    time.sleep(1)
    workspace.write(tables={"orders": {"deletes": "hard", "deletes_every": "1s"}})
    assert workspace.synced("orders")["rows_deleted"] == 1
    assert kinds(workspace) == [*log, "claim deletes", "deletes"]


def test_a_dry_run_backup_only_or_load_only_run_searches_no_deletes(workspace: Workspace) -> None:
    filled(workspace, 300)
    workspace.execute("DELETE FROM orders WHERE id = 3")
    for options in ({"dry_run": True}, {"backup_only": True}, {"load_only": True}):
        assert workspace.synced("orders", **options)["commits"] == []
    assert 3 in ids(workspace)


@pytest.mark.parametrize("deletes", ["hard", "soft"])
def test_a_table_that_is_only_appended_to_needs_a_key(workspace: Workspace, deletes: str) -> None:
    workspace.execute(
        "CREATE TABLE events (at DATETIME NOT NULL, n INT)", "INSERT INTO events VALUES ('2025-03-01', 1)"
    )
    workspace.write(tables={"events": {"deletes": deletes, "mode": "append", "cursor": "at"}})
    error = error_of(workspace, "events")
    assert error["code"] == 2 and "needs a key" in error["message"]


def test_rows_of_an_append_table_with_a_key_are_deleted_too(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE events (id INT AUTO_INCREMENT PRIMARY KEY, n INT)",
        "INSERT INTO events (n) SELECT seq FROM seq_1_to_400",
    )
    workspace.write(tables={"events": {"deletes": "hard", "deletes_every": "0s"}})
    workspace.synced("events")
    workspace.execute("DELETE FROM events WHERE id % 4 = 0")
    assert workspace.synced("events")["rows_deleted"] == 100
    assert ids(workspace, table="events") == source_ids(workspace, table="events")
    no_findings(workspace)


def test_counters_are_sums_over_the_commits_and_history_names_the_kind(workspace: Workspace) -> None:
    filled(workspace, 400)
    workspace.execute("DELETE FROM orders WHERE id <= 30")
    watermark = workspace.synced("orders")["watermark"]
    # A file of keys is a file of the log like any other, but keys are no rows.
    assert (watermark["mysql_rows_extracted"], watermark["redshift_rows_loaded"]) == (400, 400)
    assert (watermark["mysql_rows_reread"], watermark["redshift_rows_reloaded"]) == (0, 0)
    assert watermark["s3_file_count"] == len(watermark["processed_s3_files"]) == 2
    assert (watermark["mysql_status"], watermark["redshift_status"]) == ("success", "success")
    history = workspace.run("watermark", "history", "-t", "orders", "--json").ok().json["commits"]
    assert (history[0]["kind"], history[0]["rows"], history[0]["files"]) == ("deletes", 10, 1)


def test_concurrent_writers_lose_no_row_to_a_search_for_deletes(workspace: Workspace) -> None:
    filled(workspace, 2000)
    stop = threading.Event()

    def write(first: int) -> None:
        link = workspace.database.connect()
        cursor = link.cursor()
        n = 0
        while not stop.is_set():
            n += 1
            key = first + n % 400 * 6
            cursor.execute(f"DELETE FROM orders WHERE id = {key}")
            if n % 3:
                link.commit()
                time.sleep(0.002)
            if n % 4:
                cursor.execute(f"INSERT INTO orders (id, note) VALUES ({key}, 'again {n}')")
            cursor.execute(f"UPDATE orders SET note = 'u{n}' WHERE id = {first + n % 350 * 6}")
            link.commit()
        link.close()

    writers = [threading.Thread(target=write, args=(first,)) for first in (3, 6)]
    for writer in writers:
        writer.start()
    try:
        deleted = sum(workspace.synced("orders")["rows_deleted"] for _ in range(5))
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert deleted > 0
    time.sleep(0.5)
    workspace.synced("orders")
    assert workspace.compare("orders").equal
    no_findings(workspace)


def test_a_key_file_can_stand_in_for_its_lost_commit(workspace: Workspace) -> None:
    filled(workspace, 300)
    workspace.execute("DELETE FROM orders WHERE id = 3")
    workspace.synced("orders")
    lake = workspace.folder / "lake"
    folder = lake / "commits" / workspace.full_name("orders")
    lost = sorted(folder.glob("*.json"))[-1]
    document = json.loads(lost.read_bytes())
    assert document["kind"] == "deletes"
    lost.unlink()
    workspace.execute("DELETE FROM orders WHERE id = 6")
    assert workspace.synced("orders")["rows_deleted"] == 1
    assert ids(workspace) == source_ids(workspace)


def test_scattered_deletes_are_found_without_examining_every_small_range(workspace: Workspace) -> None:
    filled(workspace, 30_000)
    workspace.execute("DELETE FROM orders WHERE (id DIV 3) % 100 = 0")
    assert workspace.synced("orders")["rows_deleted"] == 300
    assert ids(workspace) == source_ids(workspace)
