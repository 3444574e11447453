"""A table's past and its copies: history, restore, backups, cleanup, as commands and as documents."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from floodmark.log.document import primary_path
from floodmark.model.errors import ConfigError
from floodmark.store.store import Store
from tests.conftest import Workspace
from tests.support.orders import create_orders, fill_orders
from tests.support.synced_twice import Past

# history and restore


def test_history_shows_the_commits_newest_first_with_the_position_after_each(past: Past) -> None:
    commits = past.json("history", "-t", past.name)["commits"]
    assert [c["n"] for c in commits] == [4, 3, 2, 1, 0]
    assert [c["kind"] for c in commits] == ["batch", "claim", "batch", "claim", "open"]
    assert [(c["rows"], c["files"]) for c in commits] == [(60, 1), (0, 0), (40, 1), (0, 0), (0, 0)]
    assert [c["position"] and c["position"][-1] for c in commits] == [100, 40, 40, None, None]
    assert {"n", "kind", "at", "run", "rows", "files", "position"} <= set(commits[0])
    text = past.run("history", "-t", past.name)
    assert (
        "claim (sync)" in text and "2025-03-01 00:01:40" in text and text.index(" batch") < text.index("open")
    )


def test_a_restore_moves_only_the_extractions_position_and_can_be_undone(past: Past) -> None:
    before = past.pipeline.watermark_get(past.name)
    document = past.json("restore", "-t", past.name, "--commit", "2")
    assert document["last_mysql_data_id"] == [40] and document["mysql_status"] == "success"
    for same in ("mysql_rows_extracted", "s3_file_count", "redshift_rows_loaded", "processed_s3_files"):
        assert document[same] == before[same]
    assert past.log.read().n == 6 and past.log.commit(6)[0].kind == "restore"
    # Sixty rows are read again and merged by key.
    assert past.workspace.synced("orders")["rows_extracted"] == 60
    assert past.workspace.compare("orders").equal
    text = past.run("restore", "-t", past.name, "--commit", "2")
    assert "2025-03-01 00:00:40 (id 40)" in text
    undo = text.partition("To undo: floodmark watermark ")[2].split()
    assert "2025-03-01 00:01:40 (id 100)" in past.run(*undo)
    assert past.workspace.synced("orders")["rows_extracted"] == 0


def test_the_output_of_get_is_restored_exactly(past: Past, tmp_path: Path) -> None:
    file = tmp_path / "backup.json"
    file.write_text(json.dumps(past.json("get", "-t", past.name)))
    position = past.log.read().position
    past.add()
    past.workspace.synced("orders")
    past.run("restore", "-t", past.name, "--file", str(file))
    assert past.log.read().position == position
    assert past.workspace.synced("orders")["rows_extracted"] == 10


@pytest.mark.parametrize("by", ["file", "file of another log", "commit"])
def test_a_position_beyond_files_that_never_loaded_because_of_a_reset_is_refused(
    past: Past, tmp_path: Path, by: str
) -> None:
    """Their rows would be skipped: nothing reads them again, and nothing loads their files."""
    past.add()
    past.workspace.pipeline.sync(past.name, backup_only=True, spark=past.workspace.spark())
    file, n = tmp_path / "backup.json", past.log.read().n
    document = past.json("get", "-t", past.name)
    file.write_text(json.dumps({**document, "commit": 0} if by == "file of another log" else document))
    undo = (
        past.run("reset", "-t", past.name)
        .partition("To undo: floodmark watermark ")[2]
        .splitlines()[0]
        .split()
    )
    how = ["--commit", str(n)] if by == "commit" else ["--file", str(file)]
    refused = past.run("restore", "-t", past.name, *how, code=6)
    assert "10 rows up to there never reached the warehouse" in refused and " ".join(undo) in refused
    past.run(*undo)
    assert past.workspace.synced("orders")["rows_extracted"] == 10
    assert past.workspace.compare("orders").equal
    past.run("restore", "-t", past.name, *how)  # since then they have been read again


def test_a_printed_watermark_can_be_restored_in_a_new_store(past: Past, tmp_path: Path) -> None:
    file = tmp_path / "backup.json"
    file.write_text(json.dumps(past.json("get", "-t", past.name)))
    past.add()
    past.workspace.write(store={"url": "./other"}, warehouse={"url": "duckdb:///other.duckdb"})
    past.run("restore", "-t", past.name, "--file", str(file))
    assert past.workspace.synced("orders")["rows_extracted"] == 10


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x00\x01", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"timestamp": "2025-01-01 00:00:00"}', "has no table_name"),
        (b'{"tables": []}', "a list of watermarks"),
        (b'{"ok": false, "error": {}}', "has no table_name"),
    ],
)
def test_any_other_file_is_refused_in_one_line(past: Past, tmp_path: Path, content: bytes, why: str) -> None:
    file = tmp_path / "backup.json"
    file.write_bytes(content)
    said = past.run("restore", "-t", past.name, "--file", str(file), code=2)
    assert "is not what `floodmark watermark get" in said and why in said
    assert past.log.read().n == 4


def test_another_tables_watermark_a_stored_copy_and_a_missing_file_are_refused(
    past: Past, tmp_path: Path
) -> None:
    file = tmp_path / "backup.json"
    document = past.json("get", "-t", past.name)
    file.write_text(json.dumps(document | {"table_name": "shop.others"}))
    assert "watermark of shop.others" in past.run("restore", "-t", past.name, "--file", str(file), code=2)
    file.write_text(json.dumps(document | {"last_mysql_data_id": {"id": 7}}))
    assert "is not valid" in past.run("restore", "-t", past.name, "--file", str(file), code=2)
    file.write_bytes(past.store.get(primary_path(past.name)) or b"")
    assert "stored copy" in past.run("restore", "-t", past.name, "--file", str(file), code=2)
    assert "can't be read" in past.run("restore", "-t", past.name, "--file", "nowhere.json", code=2)
    assert "no commit 9" in past.run("restore", "-t", past.name, "--commit", "9", code=2)
    past.run("restore", "-t", past.name, code=2)


def test_a_keyless_table_is_moved_back_only_with_force(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE events (n INT, at DATETIME NOT NULL, KEY (at))")
    name = workspace.full_name("events")
    workspace.write(tables={name: {"mode": "append", "cursor": "at"}})
    pipeline = workspace.pipeline
    for day in (1, 2):
        workspace.execute(f"INSERT INTO events VALUES ({day}, '2025-03-0{day}')")
        workspace.synced("events")
    with pytest.raises(ConfigError, match="duplicated"):
        pipeline.watermark_restore(name, commit=2)
    pipeline.watermark_restore(name, commit=4)  # where it is: nothing is read again
    pipeline.watermark_restore(name, commit=2, force=True)
    pipeline.watermark_restore(name, commit=4)  # forward again
    assert workspace.synced("events")["rows_extracted"] == 0


# backups and cleanup


def test_backups_shows_the_copies_and_the_latest_recoveries(past: Past) -> None:
    document = past.json("backups", "-t", past.name)
    places = document["backup_locations"]
    assert document["table_name"] == past.name and document["recoveries"] == []
    for place, count in (("primary", None), ("daily", 1), ("sessions", 2)):
        assert places[place]["status"] == "valid" and places[place]["commit"] == 4
        assert places[place]["bytes"] > 1000 and places[place].get("count") == count
    past.store.put(primary_path(past.name), b"?")
    assert past.json("backups", "-t", past.name)["backup_locations"]["primary"]["status"] == "damaged"
    past.run("get", "-t", past.name)
    document = past.json("backups", "-t", past.name)
    assert document["backup_locations"]["primary"]["status"] == "valid"
    (recovery,) = document["recoveries"]
    assert recovery["success"] and recovery["source"] == "daily" and recovery["seconds"] < 10
    assert "1 successful" in past.run("backups", "-t", past.name)


def age(past: Past, days: int) -> None:
    """Copies as if they had been made so many days ago, beside those of today."""
    moment = datetime.now(UTC) - timedelta(days=days)
    data = past.store.get(primary_path(past.name)) or b""
    past.store.put(f"watermark/backups/daily/{past.name}_{moment:%Y%m%d}.json", data)
    past.store.put(f"watermark/backups/sessions/{moment:%Y%m%d_%H%M%S}_0000/{past.name}.json", data)


def test_cleanup_removes_old_copies_on_request(past: Past) -> None:
    for days in (3, 8, 30):
        age(past, days)
    before = past.objects("watermark/")
    document = past.json("cleanup", "--dry-run")
    assert (document["cleaned_daily_backups"], document["cleaned_session_backups"]) == (2, 2)
    assert document["bytes"] > 4000 and past.objects("watermark/") == before
    assert "--force" in past.run("cleanup", code=2) and past.objects("watermark/") == before
    assert "Removed 2 daily copies and 2 session copies" in past.run("cleanup", "--force")
    assert len(past.objects("watermark/")) == len(before) - 4
    assert past.json("cleanup", "--days", "2", "--yes")["cleaned_daily_backups"] == 1
    assert past.json("cleanup", "--days", "0", "--force")["cleaned_daily_backups"] == 0  # today's stays
    assert past.kinds(code=0) == []


def test_a_sync_removes_old_copies_once_a_day_but_never_when_idle(past: Past) -> None:
    age(past, 8)
    past.workspace.synced("orders")
    assert len(past.objects("watermark/backups/")) == 5
    past.store.put("watermark/backups/cleaned.txt", b"2025-01-01")
    past.add()
    past.workspace.synced("orders")
    assert len(past.objects("watermark/backups/")) == 4  # one more session, and the two old ones gone
    age(past, 8)
    past.add()
    past.workspace.synced("orders")
    assert len(past.objects("watermark/backups/")) == 7


def test_copies_are_kept_as_long_as_keep_copies_says(past: Past) -> None:
    past.workspace.write(tables={past.name: {"keep_copies": "10d"}})
    for days in (8, 12):
        age(past, days)
    past.store.delete(["watermark/backups/cleaned.txt"])
    past.add()
    past.workspace.synced("orders")
    old = datetime.now(UTC) - timedelta(days=8)
    dated = [p for p in past.objects("watermark/backups/daily/") if f"{old:%Y%m%d}" in p]
    assert len(dated) == 1 and len(past.objects("watermark/backups/daily/")) == 2


# further places, and the drill


def test_a_lost_bucket_is_recovered_from_a_further_place(s3_workspace: Workspace) -> None:
    config = s3_workspace.config["store"]
    other = config["url"] + "-copies"
    s3_workspace.write(store={"copies_to": [{"url": other, "log": True}, "./kept"]})
    s3_workspace.execute(create_orders(), fill_orders(100))
    name = s3_workspace.full_name("orders")
    s3_workspace.synced("orders")
    run = s3_workspace.run
    listed = json.loads(run("--json", "watermark", "backups", "-t", name).stdout)["backup_locations"]
    assert listed["copies_to"]["valid"] == 4 and other in listed["copies_to"]["copies"][0]["uri"]
    assert [(p["log"], p["commits"]) for p in listed["copies_to"]["places"]] == [(True, 3), (False, None)]
    drilled = run("watermark", "drill", "-t", name)
    assert drilled.code == 0 and "losses tried: 12; all can be recovered" in drilled.stdout
    assert f"copies_to {other}/watermark/tables/{name}.json" in drilled.stdout
    # And it is.
    store = Store(s3_workspace.settings.store)
    before = json.loads(run("--json", "watermark", "get", "-t", name).stdout)
    # But for the lease, which says that the run of this very process is over.
    store.delete([item.path for item in store.list("") if not item.path.startswith("leases/")])
    found = run("--json", "watermark", "get", "-t", name)
    after = json.loads(found.stdout)
    assert "recovered from" in found.stderr and other in found.stderr
    for key in ("commit", "last_mysql_data_id", "mysql_rows_extracted", "redshift_rows_loaded"):
        assert after[key] == before[key]
    s3_workspace.execute(fill_orders(50, since="2025-04-01", id="100000 + seq", amount="1"))
    assert s3_workspace.synced("orders")["rows_extracted"] == 50
    assert s3_workspace.compare("orders").equal
    assert run("watermark", "drill", "--all").code == 0
    # A place that falls behind is found, and a place that is away is exit code 7, which stops no sync.
    shutil.rmtree(s3_workspace.folder / "kept")
    (s3_workspace.folder / "kept").write_text("in the way")
    s3_workspace.execute(fill_orders(10, since="2025-05-01", id="200000 + seq", amount="1"))
    assert s3_workspace.synced("orders")["rows_loaded"] == 10
    assert run("watermark", "drill", "-t", name).code == 7
    assert run("watermark", "validate", "-t", name).code == 7
