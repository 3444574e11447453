"""Copies and commits lost or damaged between syncs: exact positions, no row lost, none twice, within seconds."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from floodmark import Pipeline
from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.model.errors import ConfigError, DataError
from floodmark.store.store import Store
from tests.conftest import Workspace

EVENTS = "CREATE TABLE {name} (id BIGINT AUTO_INCREMENT PRIMARY KEY, n INT NOT NULL, at DATETIME(6) NOT NULL, KEY (at))"
FILL = (
    "INSERT INTO {name} (n, at) SELECT seq, '2025-03-01' + INTERVAL {first} + seq SECOND FROM seq_1_to_{rows}"
)
SAME = ("commit", "last_mysql_data_timestamp", "last_mysql_data_id", "mysql_rows_extracted", "mysql_status",
        "redshift_rows_loaded", "redshift_status", "s3_file_count", "processed_s3_files", "pending_s3_files")  # fmt: skip


class Table:
    """A table without a key, appended by its time: a row that is read twice is there twice."""

    def __init__(self, workspace: Workspace, name: str = "events") -> None:
        self.workspace = workspace
        self.name = workspace.full_name(name)
        self.short = name
        self.rows = 0
        workspace.execute(EVENTS.format(name=name).replace(" AUTO_INCREMENT PRIMARY KEY", ""), "SELECT 1")

    @property
    def pipeline(self) -> Pipeline:
        return self.workspace.pipeline

    @property
    def store(self) -> Store:
        return Store(self.workspace.settings.store)

    def add(self, rows: int = 20) -> None:
        fill = FILL.format(name=self.short, first=self.rows, rows=rows).replace("(n, at)", "(id, n, at)")
        self.workspace.execute(fill.replace("SELECT seq,", f"SELECT {self.rows} + seq, seq,"))
        self.rows += rows

    def sync(self, **options: Any) -> dict[str, Any]:
        return self.workspace.synced(self.short, **options)

    def get(self) -> dict[str, Any]:
        return self.pipeline.watermark_get(self.name).as_json()

    def arrived(self) -> bool:
        """Whether every row is in the warehouse, once."""
        found = self.workspace.query(f"SELECT count(*), count(DISTINCT id), sum(id) FROM {self.short}")
        return found == [(self.rows, self.rows, self.rows * (self.rows + 1) // 2)]

    def paths(self, *places: str) -> list[str]:
        """Where the newest copies and the newest commit are."""
        store = self.store
        stems = {
            "primary": "watermark/tables/",
            "daily": "watermark/backups/daily/",
            "session": "watermark/backups/sessions/",
            "commit": f"commits/{self.name}/",
        }
        return [[o.path for o in store.list(stems[p]) if self.name in o.path][-1] for p in places]


@pytest.fixture
def events(workspace: Workspace) -> Table:
    """Two tables that were synced; the second is there to be mistaken for the first."""
    tables = [Table(workspace, name) for name in ("other", "events")]
    workspace.write(tables={t.name: {"mode": "append", "cursor": "at"} for t in tables})
    for table in tables:
        table.add()
        table.sync()
    return tables[1]


Harm = Callable[[Store, str, str], object]
HARMS: dict[str, Harm] = {
    "deleted": lambda store, path, other: store.delete([path]),
    "truncated": lambda store, path, other: store.put(path, (store.get(path) or b"")[:-40]),
    "random bytes": lambda store, path, other: store.put(path, os.urandom(700)),
    "another table's": lambda store, path, other: store.put(path, store.get(other) or b""),
}


# All kinds of harm to every place are in tests/unit/log/test_recover.py; here they go through the whole pipeline.
@pytest.mark.parametrize(
    ("places", "harms"),
    [
        pytest.param(("primary",), ("deleted", "another table's"), marks=pytest.mark.long),
        pytest.param(("daily",), ("truncated",), marks=pytest.mark.long),
        pytest.param(("session",), ("random bytes",), marks=pytest.mark.long),
        (("primary", "daily", "session"), tuple(HARMS)),
        (("commit",), tuple(HARMS)),
    ],
    ids=["primary", "daily", "session", "all three", "newest commit"],
)
def test_whatever_is_damaged_the_position_is_exact_and_no_row_is_lost_or_repeated(
    events: Table, places: tuple[str, ...], harms: tuple[str, ...]
) -> None:
    for harm in harms:
        before = events.get()
        for path in events.paths(*places):
            HARMS[harm](events.store, path, path.replace(events.short, "other"))
        events.add()
        began = time.monotonic()
        after = events.get()
        assert time.monotonic() - began < 10
        assert {k: after[k] for k in SAME} == {k: before[k] for k in SAME}
        assert events.sync()["rows_extracted"] == 20
        assert events.arrived()
    assert events.pipeline.watermark_validate(events.name, repair=True)["ok"]


@pytest.mark.parametrize("harm", ["deleted", "another table's"])
def test_the_sync_itself_recovers_a_lost_commit_and_reports_it(events: Table, harm: str) -> None:
    events.add()
    events.sync(backup_only=True)  # its rows are not in the warehouse yet
    (path,) = events.paths("commit")
    HARMS[harm](events.store, path, path.replace(events.short, "other"))
    events.add()
    table = events.sync()
    assert [f["kind"] for f in table["findings"]] == ["damaged_log"]
    assert table["rows_loaded"] == 40 and events.arrived()


def test_the_whole_log_is_rebuilt_from_the_copies(events: Table) -> None:
    for _ in range(2):
        events.add()
        events.sync(backup_only=True)
    before = events.get()
    log = Log(events.store, events.name)
    lost = log.numbers()
    events.store.delete([o.path for o in events.store.list(f"commits/{events.name}/")])
    assert {k: events.get()[k] for k in SAME} == {k: before[k] for k in SAME}
    assert log.numbers() == lost
    events.add()
    assert events.sync()["rows_loaded"] == 60 and events.arrived()


def test_commits_that_no_copy_carries_are_rebuilt_from_their_files(events: Table) -> None:
    """Three runs that were not loaded, the whole log lost, and copies that carry nothing but the newest commit."""
    for _ in range(3):
        events.add()
        events.sync(backup_only=True)
    before = Log(events.store, events.name).read()
    for item in list(events.store.list("watermark/")):
        if events.name not in item.path or "recoveries" in item.path:
            continue
        body = json.loads(events.store.get(item.path) or b"")
        body["checkpoint"]["commits"] = body["checkpoint"]["commits"][-1:]
        events.store.put(item.path, json.dumps(body, ensure_ascii=False).encode())
        if "sessions" in item.path:
            events.store.delete([item.path])
    events.store.delete([o.path for o in events.store.list(f"commits/{events.name}/")])
    state = Log(events.store, events.name).read()
    assert (state.position, state.totals.rows, state.data.commits) == (
        before.position,
        before.totals.rows,
        before.data.commits,
    )
    # An attempt that failed left a file of the same slice: it is not the one that was committed.
    committed = state.data.recent_files[-2].path
    events.store.put(committed.replace("-0.parquet", "x-0.parquet"), events.store.get(committed) or b"")
    table = events.sync()
    assert table["rows_loaded"] == 60 and events.arrived()
    assert any("rebuilt from its files" in f["detail"] for f in table["findings"])
    assert events.sync()["commits"] == []


def test_files_that_differ_from_what_the_copy_knows_rebuild_nothing(events: Table) -> None:
    events.add()
    events.sync(backup_only=True)
    log = Log(events.store, events.name)
    state = log.read()
    file = state.data.recent_files[-1].path
    events.store.put(file, (events.store.get(file) or b"") + b" ")
    for item in list(events.store.list("watermark/")):
        if events.name in item.path:
            body = json.loads(events.store.get(item.path) or b"")
            body["checkpoint"]["commits"] = []
            events.store.put(item.path, json.dumps(body, ensure_ascii=False).encode())
    events.store.delete(events.paths("commit"))
    report = events.workspace.sync(events.short)
    assert report.exit_code == 6 and "damaged" in str(report.tables[0].error)
    assert events.workspace.query("SELECT count(*) FROM events") == [(20,)]


def test_with_only_data_files_left_the_sync_stops_and_the_suggested_commands_work(events: Table) -> None:
    printed = events.workspace.folder / "backup.json"
    printed.write_text(json.dumps(events.get()))
    store = events.store
    paths = [o.path for o in store.list("") if events.name in o.path and not o.path.startswith("data/")]
    store.delete(paths)
    events.add()
    report = events.workspace.sync(events.short)
    assert report.exit_code == 6
    assert "watermark set" in str(report.tables[0].error.hint if report.tables[0].error else "")
    with pytest.raises(DataError):
        events.get()
    assert events.workspace.query("SELECT count(*) FROM events") == [(20,)]
    events.pipeline.watermark_restore(events.name, file=printed)
    assert events.sync(force=True)["rows_loaded"] == 20
    assert events.arrived()


def keyed(workspace: Workspace) -> tuple[str, Store]:
    """A table with a key that was synced: its name, and its store."""
    workspace.execute(EVENTS.format(name="keyed"), FILL.format(name="keyed", first=0, rows=50))
    name = workspace.full_name("keyed")
    workspace.write(tables={name: {"cursor": "at"}})
    workspace.synced("keyed")
    return name, Store(workspace.settings.store)


def test_with_nothing_left_a_reset_starts_a_keyed_table_over(workspace: Workspace) -> None:
    name, store = keyed(workspace)
    store.delete([o.path for o in store.list("") if name in o.path and not o.path.startswith("data/")])
    assert workspace.sync("keyed").exit_code == 6
    pipeline = workspace.pipeline
    pipeline.watermark_reset(name)
    assert workspace.synced("keyed")["rows_loaded"] == 50
    assert workspace.compare("keyed").equal


def test_a_damaged_log_beyond_recovery_is_given_up_only_with_force(workspace: Workspace) -> None:
    name, store = keyed(workspace)
    store.delete([o.path for o in store.list("watermark/") if name in o.path])
    store.put(f"commits/{name}/{1:020d}.json", b"\x00")
    assert workspace.sync("keyed").exit_code == 6
    pipeline = workspace.pipeline
    with pytest.raises(DataError, match="damaged"):
        pipeline.watermark_reset(name)
    pipeline.watermark_reset(name, force=True)
    assert workspace.synced("keyed")["rows_loaded"] == 50
    assert workspace.compare("keyed").equal


def test_a_sync_with_nothing_to_do_and_current_copies_writes_only_its_check_object(events: Table) -> None:
    lake = events.workspace.folder / "lake"

    def seen() -> list[tuple[Path, int]]:
        found = (p for p in lake.rglob("*") if p.is_file() and p.relative_to(lake).parts[0] != "status")
        return sorted((p, p.stat().st_mtime_ns) for p in found)

    before = seen()
    events.sync()
    assert seen() == before
    assert isinstance(Log(events.store, events.name).read(), State) and seen() == before


def test_copies_left_behind_by_an_upgrade_are_not_findings(workspace: Workspace) -> None:
    table = Table(workspace)
    table.add()
    first = table.sync()["watermark"]["backup_metadata"]["session_id"]
    path = f"watermark/backups/sessions/{first}/{table.name}.json"
    body = json.loads(table.store.get(path) or b"")
    body["checkpoint"]["body"]["written_by_another"] = True
    text = json.dumps(body["checkpoint"]["body"], ensure_ascii=False, separators=(",", ":")).encode()
    body["checkpoint"]["sum"] = hashlib.sha256(text).hexdigest()
    table.store.put(path, json.dumps(body).encode())
    assert "another version" in str(table.pipeline.watermark_validate(table.name))
    table.add()
    table.sync()
    assert table.pipeline.watermark_validate(table.name)["tables"][0]["findings"] == []


def test_what_is_left_of_a_dropped_table_does_not_hide_the_others(workspace: Workspace) -> None:
    workspace.execute(EVENTS.format(name="events"), FILL.format(name="events", first=0, rows=5))
    workspace.synced("events")
    # A folder whose objects are gone, as some servers keep it in their listings for a while.
    gone = workspace.full_name("dropped")
    (workspace.folder / "lake" / "commits" / gone).mkdir()
    pipeline = workspace.pipeline
    listed = {
        found["table_name"]: found["mysql_rows_extracted"] for found in pipeline.watermark_list()["tables"]
    }
    assert listed[workspace.full_name("events")] == 5
    with pytest.raises(ConfigError, match="no table"):
        pipeline.watermark_get(gone)
