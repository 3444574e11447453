"""A table's past and its copies: history, restore, backups, cleanup, validate, as commands and as documents."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from floodmark import Pipeline
from floodmark.cli import main
from floodmark.config import load
from floodmark.errors import ConfigError
from floodmark.model import Window
from floodmark.spark import Spark
from floodmark.state import Log, claim, commit_path, draft, primary_path
from floodmark.state.claims import Claimed
from floodmark.store import Store
from floodmark.testing.services import MariaDB
from tests.conftest import Database, Floodmark, Workspace

ORDERS = """CREATE TABLE orders (
  id BIGINT AUTO_INCREMENT PRIMARY KEY, amount INT NOT NULL,
  update_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, KEY (update_at))"""
FILL = """INSERT INTO orders (amount, update_at)
  SELECT seq, '2025-03-01' + INTERVAL seq SECOND FROM seq_1_to_{n}"""


class Orders:
    """A table, its pipeline, and the command line in its folder."""

    def __init__(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        monkeypatch.chdir(workspace.folder)
        self.workspace, self.capsys = workspace, capsys
        self.name = f"{workspace.database.name}.orders"
        self.pipeline = Pipeline(workspace.folder / "floodmark.yaml")
        self.store = Store(load(workspace.folder / "floodmark.yaml").store)
        self.log = Log(self.store, self.name)

    def run(self, *arguments: str, code: int = 0) -> str:
        """A `watermark` command in this process: what it printed."""
        self.capsys.readouterr()
        found = main(["watermark", *arguments])
        out, err = self.capsys.readouterr()
        assert found == code, out + err
        return out + err

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        self.capsys.readouterr()
        found = main(["watermark", *arguments, "--json"])
        out, err = self.capsys.readouterr()
        assert found == code, out + err
        return dict(json.loads(out))

    def kinds(self, *arguments: str, code: int = 7) -> list[str]:
        """The kinds of what validate finds."""
        document = self.json("validate", "-t", self.name, *arguments, code=code)
        (table,) = document["tables"]
        assert document["ok"] is (code == 0) and table["table"] == self.name
        return [f["kind"] for f in table["findings"]]

    def add(self, rows: int = 10) -> None:
        """So many rows more in the source, until the test is over."""
        newest = "(SELECT MAX(update_at) FROM (SELECT update_at FROM orders) AS o)"
        self.workspace.execute(
            f"INSERT INTO orders (amount, update_at) SELECT seq, {newest} + INTERVAL seq SECOND FROM seq_1_to_{rows}"
        )

    def objects(self, prefix: str) -> list[str]:
        return [o.path for o in self.store.list(prefix) if self.name in o.path]


@pytest.fixture(scope="module")
def template(
    mariadb: MariaDB, spark: Callable[[], Spark], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workspace]:
    """A table of a hundred rows that was synced twice: 40 rows, then the others."""
    database = Database(mariadb, f"t_{secrets.token_hex(4)}")
    mariadb.execute(f"CREATE DATABASE {database.name}")
    folder = tmp_path_factory.mktemp("past")
    config = {
        "source": {"url": database.url},
        "store": {"url": "./lake"},
        "warehouse": {"url": "duckdb:///warehouse.duckdb"},
        "defaults": {"settle_seconds": 0.2},
    }
    workspace = Workspace(folder, database, config, Floodmark(folder), spark)
    workspace.write()
    workspace.execute(ORDERS, FILL.format(n=100))
    workspace.synced("orders", limit=40)
    workspace.synced("orders")
    yield workspace
    mariadb.execute(f"DROP DATABASE {database.name}")


@pytest.fixture
def orders(
    template: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Orders]:
    """A copy of its store and warehouse, with the same source."""
    folder = tmp_path / "copy"
    shutil.copytree(template.folder, folder)
    identity = folder / "lake/pipeline.json"  # names the warehouse, which has moved
    identity.write_text(identity.read_text().replace(str(template.folder), str(folder)))
    yield Orders(replace(template, folder=folder, config=dict(template.config)), monkeypatch, capsys)
    template.execute("DELETE FROM orders WHERE id > 100")


# history and restore


def test_history_shows_the_commits_newest_first_with_the_position_after_each(orders: Orders) -> None:
    commits = orders.json("history", "-t", orders.name)["commits"]
    assert [c["n"] for c in commits] == [4, 3, 2, 1, 0]
    assert [c["kind"] for c in commits] == ["batch", "claim", "batch", "claim", "open"]
    assert [(c["rows"], c["files"]) for c in commits] == [(60, 1), (0, 0), (40, 1), (0, 0), (0, 0)]
    assert [c["position"] and c["position"][-1] for c in commits] == [100, 40, 40, None, None]
    assert {"n", "kind", "at", "run", "rows", "files", "position"} <= set(commits[0])
    text = orders.run("history", "-t", orders.name)
    assert (
        "claim (sync)" in text and "2025-03-01 00:01:40" in text and text.index(" batch") < text.index("open")
    )


def test_a_restore_moves_only_the_extraction_s_position_and_can_be_undone(orders: Orders) -> None:
    before = orders.pipeline.watermark_get(orders.name)
    document = orders.json("restore", "-t", orders.name, "--commit", "2")
    assert document["last_mysql_data_id"] == [40] and document["mysql_status"] == "success"
    for same in ("mysql_rows_extracted", "s3_file_count", "redshift_rows_loaded", "processed_s3_files"):
        assert document[same] == before[same]
    assert orders.log.read().n == 6 and orders.log.commit(6)[0].kind == "restore"
    # Sixty rows are read again and replace themselves.
    assert orders.workspace.synced("orders")["rows_extracted"] == 60
    assert orders.workspace.compare("orders").equal
    text = orders.run("restore", "-t", orders.name, "--commit", "2")
    assert "2025-03-01 00:00:40 (id 40)" in text
    undo = text.partition("To undo: floodmark watermark ")[2].split()
    assert "2025-03-01 00:01:40 (id 100)" in orders.run(*undo)
    assert orders.workspace.synced("orders")["rows_extracted"] == 0


def test_what_get_printed_is_restored_exactly(orders: Orders, tmp_path: Path) -> None:
    file = tmp_path / "backup.json"
    file.write_text(json.dumps(orders.json("get", "-t", orders.name)))
    position = orders.log.read().position
    orders.add()
    orders.workspace.synced("orders")
    orders.run("restore", "-t", orders.name, "--file", str(file))
    assert orders.log.read().position == position
    assert orders.workspace.synced("orders")["rows_extracted"] == 10


def test_a_printed_watermark_goes_on_in_a_new_store_too(orders: Orders, tmp_path: Path) -> None:
    file = tmp_path / "backup.json"
    file.write_text(json.dumps(orders.json("get", "-t", orders.name)))
    orders.add()
    orders.workspace.write(store={"url": "./other"}, warehouse={"url": "duckdb:///other.duckdb"})
    orders.run("restore", "-t", orders.name, "--file", str(file))
    assert orders.workspace.synced("orders")["rows_extracted"] == 10


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x00\x01", "no JSON"),
        (b"[]", "no JSON object"),
        (b'{"timestamp": "2025-01-01 00:00:00"}', "has no table_name"),
        (b'{"tables": []}', "a list of watermarks"),
        (b'{"ok": false, "error": {}}', "has no table_name"),
    ],
)
def test_any_other_file_is_refused_with_a_line_that_says_so(
    orders: Orders, tmp_path: Path, content: bytes, why: str
) -> None:
    file = tmp_path / "backup.json"
    file.write_bytes(content)
    said = orders.run("restore", "-t", orders.name, "--file", str(file), code=2)
    assert "is not what `floodmark watermark get" in said and why in said
    assert orders.log.read().n == 4


def test_another_table_s_watermark_a_stored_copy_and_a_missing_file_are_refused(
    orders: Orders, tmp_path: Path
) -> None:
    file = tmp_path / "backup.json"
    document = orders.json("get", "-t", orders.name)
    file.write_text(json.dumps(document | {"table_name": "shop.others"}))
    assert "watermark of shop.others" in orders.run("restore", "-t", orders.name, "--file", str(file), code=2)
    file.write_text(json.dumps(document | {"last_mysql_data_id": {"id": 7}}))
    assert "can't be understood" in orders.run("restore", "-t", orders.name, "--file", str(file), code=2)
    file.write_bytes(orders.store.get(primary_path(orders.name)) or b"")
    assert "stored copy" in orders.run("restore", "-t", orders.name, "--file", str(file), code=2)
    assert "can't be read" in orders.run("restore", "-t", orders.name, "--file", "nowhere.json", code=2)
    assert "no commit 9" in orders.run("restore", "-t", orders.name, "--commit", "9", code=2)
    orders.run("restore", "-t", orders.name, code=2)


def test_a_keyless_table_is_moved_back_only_by_force(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE events (n INT, at DATETIME NOT NULL, KEY (at))")
    name = f"{workspace.database.name}.events"
    workspace.write(tables={name: {"mode": "append", "cursor": "at"}})
    pipeline = Pipeline(workspace.folder / "floodmark.yaml")
    for day in (1, 2):
        workspace.execute(f"INSERT INTO events VALUES ({day}, '2025-03-0{day}')")
        workspace.synced("events")
    with pytest.raises(ConfigError, match="doubled"):
        pipeline.watermark_restore(name, commit=2)
    pipeline.watermark_restore(name, commit=4)  # where it is: nothing is read again
    pipeline.watermark_restore(name, commit=2, force=True)
    pipeline.watermark_restore(name, commit=4)  # forward again
    assert workspace.synced("events")["rows_extracted"] == 0


# backups and cleanup


def test_backups_shows_the_copies_and_the_latest_recoveries(orders: Orders) -> None:
    document = orders.json("backups", "-t", orders.name)
    places = document["backup_locations"]
    assert document["table_name"] == orders.name and document["recoveries"] == []
    for place, count in (("primary", None), ("daily", 1), ("sessions", 2)):
        assert places[place]["status"] == "valid" and places[place]["commit"] == 4
        assert places[place]["bytes"] > 1000 and places[place].get("count") == count
    orders.store.put(primary_path(orders.name), b"?")
    assert orders.json("backups", "-t", orders.name)["backup_locations"]["primary"]["status"] == "damaged"
    orders.run("get", "-t", orders.name)
    document = orders.json("backups", "-t", orders.name)
    assert document["backup_locations"]["primary"]["status"] == "valid"
    (recovery,) = document["recoveries"]
    assert recovery["success"] and recovery["source"] == "daily" and recovery["seconds"] < 10
    assert "1 of them successful" in orders.run("backups", "-t", orders.name)


def age(orders: Orders, days: int) -> None:
    """Copies as if they had been made so many days ago, beside those of today."""
    moment = datetime.now(UTC) - timedelta(days=days)
    data = orders.store.get(primary_path(orders.name)) or b""
    orders.store.put(f"watermark/backups/daily/{orders.name}_{moment:%Y%m%d}.json", data)
    orders.store.put(f"watermark/backups/sessions/{moment:%Y%m%d_%H%M%S}_0000/{orders.name}.json", data)


def test_cleanup_removes_old_copies_when_told_to(orders: Orders) -> None:
    for days in (3, 8, 30):
        age(orders, days)
    before = orders.objects("watermark/")
    document = orders.json("cleanup", "--dry-run")
    assert (document["cleaned_daily_backups"], document["cleaned_session_backups"]) == (2, 2)
    assert document["bytes"] > 4000 and orders.objects("watermark/") == before
    assert "--force" in orders.run("cleanup", code=2) and orders.objects("watermark/") == before
    assert "Removed 2 daily copies and 2 session copies" in orders.run("cleanup", "--force")
    assert len(orders.objects("watermark/")) == len(before) - 4
    assert orders.json("cleanup", "--days", "2", "--force")["cleaned_daily_backups"] == 1
    assert orders.json("cleanup", "--days", "0", "--force")["cleaned_daily_backups"] == 0  # today's stays
    assert orders.kinds(code=0) == []


def test_a_sync_removes_old_copies_once_a_day_and_a_sync_without_work_never(orders: Orders) -> None:
    age(orders, 8)
    orders.workspace.synced("orders")
    assert len(orders.objects("watermark/backups/")) == 5
    orders.store.put("watermark/backups/cleaned.txt", b"2025-01-01")
    orders.add()
    orders.workspace.synced("orders")
    assert len(orders.objects("watermark/backups/")) == 4  # one more session, and the two old ones gone
    age(orders, 8)
    orders.add()
    orders.workspace.synced("orders")
    assert len(orders.objects("watermark/backups/")) == 7


def test_copies_are_kept_as_long_as_keep_copies_says(orders: Orders) -> None:
    orders.workspace.write(tables={orders.name: {"keep_copies": "10d"}})
    for days in (8, 12):
        age(orders, days)
    orders.store.delete(["watermark/backups/cleaned.txt"])
    orders.add()
    orders.workspace.synced("orders")
    old = datetime.now(UTC) - timedelta(days=8)
    dated = [p for p in orders.objects("watermark/backups/daily/") if f"{old:%Y%m%d}" in p]
    assert len(dated) == 1 and len(orders.objects("watermark/backups/daily/")) == 2


# validate


def test_a_table_in_order_has_no_findings(orders: Orders) -> None:
    document = orders.json("validate")
    assert document["ok"] is True
    (table,) = document["tables"]
    assert table["rows_warehouse"] == 100 and table["findings"] == []
    assert f"{orders.name}: ok" in orders.run("validate")


def test_re_reads_resets_and_moves_are_no_findings(orders: Orders) -> None:
    orders.workspace.synced("orders", since="2025-03-01 00:00:10", until="2025-03-01 00:00:20")
    orders.pipeline.watermark_restore(orders.name, commit=2)
    orders.workspace.synced("orders", limit=10, max_chunks=2)
    orders.pipeline.watermark_set(orders.name, timestamp="2025-03-01 00:00:50")
    orders.workspace.synced("orders")
    assert orders.kinds(code=0) == []
    orders.pipeline.watermark_reset(orders.name)
    assert orders.kinds(code=0) == []
    orders.workspace.synced("orders", backup_only=True)
    assert orders.kinds(code=0) == []


def test_a_file_that_is_gone_or_has_another_size_is_found(orders: Orders) -> None:
    first, second = orders.objects("data/")
    orders.store.delete([first])
    orders.store.put(second, b"PAR1")
    assert sorted(orders.kinds()) == ["count_mismatch", "missing_file"]
    said = orders.run("validate", "-t", orders.name, code=7)
    assert first in said and "its rows are in the warehouse" in said
    assert sorted(orders.kinds("--repair")) == ["count_mismatch", "missing_file"]


def test_an_orphan_is_found_and_left_alone_but_a_running_sync_s_files_are_none(orders: Orders) -> None:
    run = "20250819_153000_ab12"
    path = f"data/{orders.name}/{run}/9-window0-abcd-0.parquet"
    orders.store.put(path, b"PAR1")
    assert orders.kinds() == ["orphan"]
    assert orders.kinds("--repair") == ["orphan"] and path in orders.objects("data/")
    taken = claim(orders.log, orders.log.read(), run=run, purpose="sync")
    assert isinstance(taken, Claimed)
    with taken.lease:
        assert orders.kinds(code=0) == []
    assert "orphan" in orders.kinds()


@pytest.mark.parametrize("place", ["tables/", "backups/daily/", "backups/sessions/"])
def test_a_copy_that_is_damaged_is_found_and_published_again(orders: Orders, place: str) -> None:
    path = orders.objects(f"watermark/{place}")[-1]
    orders.store.put(path, b"\x00")
    assert orders.kinds() == ["stale_copy"]
    assert orders.store.get(path) == b"\x00"  # looking mends nothing
    document = orders.json("validate", "-t", orders.name, "--repair")
    assert document["ok"] and "published again" in document["tables"][0]["repaired"][0]
    assert orders.kinds(code=0) == []


def test_copies_that_lag_behind_the_log_are_found_and_published_again(orders: Orders) -> None:
    state = orders.log.read()
    taken = claim(orders.log, state, run="20250819_153000_ab12", purpose="sync")
    assert isinstance(taken, Claimed)
    taken.lease.release()
    assert orders.kinds() == ["stale_copy"] * 3
    assert "shows commit 4, the log is at 5" in orders.run("validate", "-t", orders.name, code=7)
    assert orders.kinds("--repair", code=0) == []


def test_a_commit_that_is_lost_is_found_and_put_back(orders: Orders) -> None:
    whole = orders.store.get(commit_path(orders.name, 2))
    orders.store.delete([commit_path(orders.name, 2)])
    assert orders.kinds()[0] == "damaged_log"
    document = orders.json("validate", "-t", orders.name, "--repair")
    assert "commit 2 put back" in document["tables"][0]["repaired"][0]
    assert orders.store.get(commit_path(orders.name, 2)) == whole


def test_a_warehouse_that_lost_rows_or_ledger_rows_is_found(orders: Orders) -> None:
    with duckdb.connect(str(orders.workspace.warehouse)) as connection:
        connection.execute("DELETE FROM orders WHERE id > 30")
    assert orders.kinds() == ["count_mismatch"]
    said = orders.run("validate", "-t", orders.name, code=7)
    assert "orders has 30 rows; the files that were loaded make at least 60" in said
    with duckdb.connect(str(orders.workspace.warehouse)) as connection:
        connection.execute("DELETE FROM floodmark_ledger WHERE n = 4")
    assert "stale_copy" in orders.kinds()
    assert "shows 100 loaded rows, the ledger has 40" in orders.run("validate", "-t", orders.name, code=7)
    orders.workspace.synced("orders")
    with duckdb.connect(str(orders.workspace.warehouse)) as connection:
        connection.execute("UPDATE floodmark_ledger SET rows = 7, digest = digest WHERE n = 4")
        connection.execute(
            "INSERT INTO floodmark_ledger SELECT * REPLACE (99 AS n) FROM floodmark_ledger WHERE n = 4"
        )
    found = orders.kinds()
    assert "ledger_ahead" in found and "count_mismatch" in found


def test_windows_that_do_not_join_are_a_gap_or_an_overlap(orders: Orders) -> None:
    for low, kind in (
        ((("2025-03-01 00:01:50.000000", 110),), "gap"),
        ((("2025-03-01 00:00:10.000000", 10),), "overlap"),
    ):
        state = orders.log.read()
        window = Window(kind, low[0], ("2025-03-02 00:00:00.000000", 999), "cursor")
        taken = claim(orders.log, state, run="20250819_153000_ab12", purpose="sync", window=window)
        assert isinstance(taken, Claimed)
        orders.log.append(
            taken.state, draft(taken.state, "restore", "20250819_153000_ab12", position=state.position)
        )
        taken.lease.release()
    assert [k for k in orders.kinds() if k != "stale_copy"] == ["gap", "overlap"]


def test_validate_of_a_table_that_is_not_there_says_so(orders: Orders) -> None:
    assert "nowhere" in orders.run("validate", "-t", f"{orders.workspace.database.name}.nowhere", code=2)


def test_a_log_that_can_not_be_read_is_a_finding_with_what_to_do(orders: Orders) -> None:
    orders.store.delete(orders.objects("watermark/"))
    orders.store.put(commit_path(orders.name, 1), b"\x00")
    assert orders.kinds() == ["damaged_log"]
    assert "reset" in orders.run("validate", "-t", orders.name, "--repair", code=7)
