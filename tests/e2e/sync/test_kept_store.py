"""A store written by an earlier version: it is read as intended, and continued until every row has arrived, once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.conftest import Database, Workspace
from tests.kept_store.kept import LAYOUTS, Kept, lasting, versions
from tests.kept_store.tables import CREATE, SCHEMA, has_cursor, insert, target, update

pytestmark = pytest.mark.source

TABLES = [f"{SCHEMA}.{name}" for name in CREATE]
# Files that no commit names, of syncs that were killed: meant to be there until `s3clean orphans`.
ORPHANS = {f"{SCHEMA}.open_window": ["orphan"], f"{SCHEMA}.open_snapshot": ["orphan"]}
# How many rows a sync has to read after `go_on`: one that is new and one that has changed, and what the state asks for.
READ = dict.fromkeys(CREATE, 2) | {
    "open_window": 30 + 2,  # half of the window was committed
    "open_snapshot": 31,  # whole
    "snapshot": 40,
    "older_tool": 17 + 2,  # from the oldest row that the older tool had not loaded
    "given_up": 7 + 2,  # pending files that were cleaned
    "manual_set": 31 + 2,
    "reset_both": 39 + 2,
    "restored": 12 + 2,
    "hard_deletes": 1,  # the new row was deleted before it was read
    "soft_deletes": 1,
    "appended": 1,
}


# Rows that 0.1.0 counted together, as they are counted since: extracted, read again, and the same two loaded. Rows
# without a place in the order are read again by every sync; keys of deletes, snapshots before the last and files that
# were given up are not counted.
COUNTED = {
    "loose": (40, 4, 40, 4),
    "hard_deletes": (42, 0, 42, 0),
    "soft_deletes": (42, 0, 42, 0),
    "snapshot": (39, 0, 39, 0),
    "given_up": (42, 0, 42, 0),
}


@pytest.fixture(
    params=[  # what a folder and S3 have in common, tests/contract/store shows
        pytest.param((version, layout), marks=() if layout == "s3" else pytest.mark.long)
        for version in versions()
        for layout in LAYOUTS
    ],
    ids="-".join,
)
def kept(request: pytest.FixtureRequest) -> Kept:
    return Kept(*request.param)


@pytest.fixture
def source(database: Database, kept: Kept) -> Iterator[Database]:
    """The source as it was, on the server that all tests share; its name is in the store."""
    database.execute(f"DROP DATABASE IF EXISTS {SCHEMA}", f"CREATE DATABASE {SCHEMA}")
    source = Database(database.server, SCHEMA)
    source.execute(*kept.source)
    yield source
    database.execute(f"DROP DATABASE {SCHEMA}")


@pytest.fixture
def workspace(
    kept: Kept, source: Database, make_workspace: Callable[..., Workspace], request: pytest.FixtureRequest
) -> Workspace:
    """The store and its warehouse in a new place."""
    store: dict[str, str] = {"url": "./lake"}
    if kept.layout == "s3":
        seaweed: SeaweedFS = request.getfixturevalue("seaweed")
        store = seaweed.store(request.getfixturevalue("prefix"))
    workspace = make_workspace(source, **kept.config, store=store)
    kept.lay(workspace)
    return workspace


def watermarks(workspace: Workspace, *names: str) -> dict[str, Any]:
    found = workspace.pipeline.watermark_list(*(names or TABLES))["tables"]
    return {document["table_name"]: lasting(document) for document in found}


def expected(kept: Kept) -> dict[str, Any]:
    """What the version that wrote the store reported, in this version's counts."""
    found = kept.expected["watermarks"]
    fields = ("mysql_rows_extracted", "mysql_rows_reread", "redshift_rows_loaded", "redshift_rows_reloaded")
    for table, document in found.items():
        if fields[1] not in document:
            plain = (document[fields[0]], 0, document[fields[2]], 0)
            document |= zip(fields, COUNTED.get(table.partition(".")[2], plain), strict=True)
    return dict(found)


def findings(workspace: Workspace, *names: str, repair: bool = False) -> dict[str, list[str]]:
    """What validate finds, of tables where it finds something."""
    tables = workspace.pipeline.watermark_validate(*names, repair=repair)["tables"]
    return {t["table"]: sorted({f["kind"] for f in t["findings"]}) for t in tables if t["findings"]}


def synced(workspace: Workspace, *names: str, **options: Any) -> dict[str, dict[str, Any]]:
    """A sync that must succeed, of the given tables or of all: its report by their short names."""
    report = workspace.sync(*(names or TABLES), **options)
    tables = report.as_json()["tables"]
    assert report.ok, [t["error"] for t in tables if t["error"]]
    return {t["table"].partition(".")[2]: t for t in tables}


def arrived(workspace: Workspace, *names: str) -> None:
    """Every row of the source is in the warehouse, once and as it is, and no other."""
    for name in names or CREATE:
        comparison = workspace.compare(name, target(name))
        assert comparison.equal and comparison.source_rows > 25, (name, comparison)


def go_on(source: Database) -> None:
    """In every table of the source one row comes and one changes; some are deleted where deletes are looked for."""
    for name in CREATE:
        source.execute(insert(name, [9001]))
        if has_cursor(name):
            source.execute(update(name, "id = 2", "changed later", 86400))
    for name in ("hard_deletes", "soft_deletes"):
        source.execute(f"DELETE FROM {name} WHERE id IN (11, 9001)")


def test_every_kept_state_is_read_as_it_was_written(kept: Kept, workspace: Workspace) -> None:
    said = kept.expected["findings"]
    assert findings(workspace) == {table: kinds for table, kinds in said.items() if kinds}
    assert watermarks(workspace) == expected(kept)
    assert workspace.pipeline.watermark_get()["timestamp"] == "2025-02-01 00:00:00"
    # Reading it has put the damaged log back.
    backups = workspace.pipeline.watermark_backups(f"{SCHEMA}.damaged_log")
    assert backups["recoveries"] and all(recovery["success"] for recovery in backups["recoveries"])
    assert findings(workspace, f"{SCHEMA}.damaged_log", repair=True) == {}


def test_pending_commits_load_open_windows_resume_and_every_row_arrives_once(
    kept: Kept, source: Database, workspace: Workspace
) -> None:
    waiting = {
        table.partition(".")[2]: document["mysql_rows_extracted"] - document["redshift_rows_loaded"]
        for table, document in kept.expected["watermarks"].items()
        if document["pending_s3_files"]
    }
    assert {"pending", "changed", "hard_deletes", "soft_deletes", "damaged_log", "reset_load"} <= set(waiting)
    loaded = synced(workspace, load_only=True)
    assert {name: t["rows_loaded"] for name, t in loaded.items() if t["rows_loaded"]} == waiting
    damaged = [name for name, t in loaded.items() if "damaged_log" in {f["kind"] for f in t["findings"]}]
    assert damaged == ["damaged_log"]
    go_on(source)
    assert {name: t["rows_extracted"] for name, t in synced(workspace).items()} == READ
    arrived(workspace)
    assert workspace.pipeline.verify(*TABLES, spark=workspace.spark())["ok"]
    assert findings(workspace) == ORPHANS


def test_sentences_in_claims_of_earlier_versions_cause_no_claim_and_new_claims_have_none(
    source: Database, workspace: Workspace
) -> None:
    names = ("appended", "changed", "cleaned", "taken_over")
    store = Store(workspace.settings.store)

    def claims() -> dict[str, Any]:
        paths = [o.path for name in names for o in store.list(f"commits/{SCHEMA}.{name}/")]
        found = {path: json.loads(store.get(path) or b"") for path in paths}
        return {path: c["table"]["notes"] for path, c in found.items() if c["kind"] == "claim" and c["table"]}

    synced(workspace, *names)  # what was pending is loaded
    before = claims()
    assert all(any(f".{name}/" in path and notes for path, notes in before.items()) for name in names)
    assert not [t["commits"] for t in synced(workspace, *names).values() if t["commits"]]
    for name in names:
        assert workspace.pipeline.watermark_backups(f"{SCHEMA}.{name}")["recoveries"] == []
    go_on(source)
    synced(workspace, *names)
    new = {path: notes for path, notes in claims().items() if path not in before}
    assert len(new) >= len(names) and not any(new.values())


def test_an_earlier_position_is_restored(source: Database, workspace: Workspace) -> None:
    names = ("pending", "hard_deletes", "changed", "cleaned", "damaged_log")
    for name in names:
        commits = workspace.pipeline.watermark_history(name)["commits"]
        first = next(c for c in reversed(commits) if c["kind"] == "batch" and c["position"])
        # Rows above 30 came after it; how they change now is seen only by who reads them again.
        source.execute(update(name, "id > 30", "changed unseen"))
        restored = workspace.pipeline.watermark_restore(name, commit=first["n"])
        assert restored["last_mysql_data_id"] == first["position"][1:]
    read = synced(workspace, *names)
    assert all(t["rows_extracted"] >= 12 for t in read.values())
    arrived(workspace, *names)


def test_rows_before_the_start_that_0_1_0_knew_stay_out_until_a_reset(
    source: Database, workspace: Workspace
) -> None:
    """Neither a sync nor a reread nor a search for deletes brings them, and `verify` does not miss them."""
    names = ("hard_deletes", "taken_over", "reset_load")
    synced(workspace, *names)
    for name in names:
        source.execute(
            f"INSERT INTO {name} (id, amount, update_at) VALUES (8000, 1, '2024-05-01')",
            f"ALTER TABLE {name} ADD added INT",
            f"UPDATE {name} SET added = id, update_at = update_at",
        )
    assert all(t["rows_reread"] > 25 for t in synced(workspace, *names).values())
    for name in names:
        found = workspace.query(
            f"SELECT count(*) FILTER (id = 8000), count(*) FILTER (added = id) FROM {name}"
        )
        ((rows,),) = source.execute(f"SELECT count(*) FROM {name}")
        assert found == [(0, rows - 1)], name
    full = [f"{SCHEMA}.{name}" for name in names]
    assert workspace.pipeline.verify(*full, spark=workspace.spark())["ok"]
    workspace.pipeline.watermark_clear()
    (note,) = workspace.pipeline.watermark_reset("hard_deletes")["notes"]
    assert "rows at or before 2025-02-01 00:00:00, which were left out so far" in note
    assert (
        "First sync: reads from the first row." in synced(workspace, "hard_deletes")["hard_deletes"]["notes"]
    )
    arrived(workspace, "hard_deletes")


def test_one_kind_of_copy_is_enough_when_the_whole_log_is_lost(kept: Kept, workspace: Workspace) -> None:
    left = {
        "watermark/tables/": "pending",
        "watermark/backups/daily/": "cleaned",
        "watermark/backups/sessions/": "changed",
    }
    store = Store(workspace.settings.store)
    for mine in left.values():
        gone = ["commits/", *(place for place, table in left.items() if table != mine)]
        store.delete([o.path for place in gone for o in store.list(place) if f"{SCHEMA}.{mine}" in o.path])
    names = [f"{SCHEMA}.{table}" for table in left.values()]
    assert watermarks(workspace, *names) == {name: expected(kept)[name] for name in names}
    synced(workspace, *names)
    arrived(workspace, *left.values())
