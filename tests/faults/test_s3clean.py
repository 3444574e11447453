"""Cleaning while others work or die: no commit ever waits for a file that is gone, nothing is removed too much."""

from __future__ import annotations

import json
import os
import pty
import secrets
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import duckdb
import pytest

from floodmark.log.claim import claim
from floodmark.log.log import Log, draft
from floodmark.model.commit import Batch, DataFile
from floodmark.model.run import new_run
from floodmark.model.times import stamp
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store, encode
from tests.conftest import PATIENT, Workspace
from tests.faults.lab.spawn import INJECT
from tests.support.held_sync import Gate, all_gone, commits, descendants, until
from tests.support.orders import create_orders, fill_orders

SLICE = 250
BELOW = 2 * SLICE * 7


def valid(workspace: Workspace) -> None:
    found = workspace.pipeline.watermark_validate()
    assert found["ok"], [f for t in found["tables"] for f in t["findings"]]


def plant(workspace: Workspace, commits: int, files: int) -> list[str]:
    """Loaded commits with so many small files each; their paths."""
    store, name, run = Store(workspace.pipeline.config.store), workspace.full_name("orders"), new_run()
    log = Log(store, name)
    paths = [
        [f"data/{encode(name)}/{run}/{n}-{k}-{secrets.token_hex(2)}.parquet" for k in range(files)]
        for n in range(commits)
    ]

    def put(path: str) -> None:
        local = store.local(path)
        if local is None:
            store.put(path, b"row")
            return
        local.parent.mkdir(
            parents=True, exist_ok=True
        )  # thousands of times flushed to the disk takes minutes
        local.write_bytes(b"row")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, (p for each in paths for p in each)))
    taken = claim(log, log.read(), run=run, purpose="sync")
    state, rows = taken.state, []
    with taken.lease:
        for each in paths:
            made = tuple(DataFile(path, 1, 3, "00", 0, created_at=stamp()) for path in each)
            state = log.append(state, draft(state, Batch, run, files=made, schema="s"))
            rows.append((state.log, 0, state.n, state.digest, "", name, "orders", run, files, files, stamp()))
    columns = "log_id, epoch, n, digest, pipeline_id, source_table, target, run, rows, files, loaded_at"
    with duckdb.connect(str(workspace.warehouse)) as connection:
        places = ", ".join("?" * 11)
        connection.executemany(f"INSERT INTO floodmark_ledger ({columns}) VALUES ({places})", rows)
    return [p for each in paths for p in each]


def staged(workspace: Workspace) -> set[str]:
    store = Store(workspace.pipeline.config.store)
    return {o.path for o in store.list(f"data/{encode(workspace.database.name)}.orders/")}


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    return _orders(workspace)


@pytest.fixture
def s3_orders(s3_workspace: Workspace) -> Workspace:
    return _orders(s3_workspace)


def _orders(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(), fill_orders(100))
    workspace.synced("orders")
    return workspace


# many files


def test_thousands_of_files_are_removed_at_once_and_the_log_stays_small(orders: Workspace) -> None:
    paths = plant(orders, 20, 500 if PATIENT else 100)
    began = time.monotonic()
    done = orders.run("s3clean", "clean", "-t", "orders", "--force", "--json").ok().json
    assert done["deleted"] == len(paths) + 1 and staged(orders) == set()
    assert time.monotonic() - began < 120
    assert len(json.dumps(commits(orders)[-1])) < 2000
    valid(orders)
    assert orders.synced("orders")["commits"] == []


def test_thousands_of_files_are_removed_from_s3(s3_orders: Workspace) -> None:
    paths = plant(s3_orders, 5 if PATIENT else 3, 500)
    listed = s3_orders.run("s3clean", "list", "-t", "orders").ok().stdout.splitlines()
    assert len(listed) == len(paths) + 1  # more than a page of a listing
    result = s3_orders.run("s3clean", "clean", "-t", "orders", "--force").ok()
    assert staged(s3_orders) == set()
    assert len(result.stdout.splitlines()) == len(paths) + 2
    assert f"removed {len(paths) + 1:,} files" in result.stderr
    valid(s3_orders)


# crashes


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_clean_killed_at_its_first_file_leaves_nothing_missing(orders: Workspace, when: str) -> None:
    paths = plant(orders, 3, 4)
    plan = orders.folder / "plan.json"
    steps = str(orders.folder / "steps")
    plan.write_text(json.dumps({"steps": steps, "label": "delete data file", "when": when}))
    killed = subprocess.run(
        [sys.executable, "-m", "floodmark", "s3clean", "clean", "-t", "orders", "--force"],
        cwd=orders.folder,
        env={**os.environ, "PYTHONPATH": str(INJECT), "LAB_PLAN": str(plan)},
        timeout=120,
    )
    assert killed.returncode == -signal.SIGKILL
    left = staged(orders)
    assert len(left) == len(paths) + 1 - (when == "after")
    assert commits(orders)[-1]["kind"] == "clean"
    found = orders.pipeline.watermark_validate()["tables"][0]["findings"]
    assert {f["kind"] for f in found} <= {"stale_copy"}
    # For the log they are gone: they never load again.
    assert orders.run("watermark", "reset", "-t", "orders", "--redshift-only").code == 6
    assert orders.synced("orders")["commits"] == []
    assert orders.pipeline.s3clean_clean("orders")["deleted"] == len(left)
    assert staged(orders) == set()
    valid(orders)


# other runs


@pytest.fixture
def gated(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(), fill_orders(2000))
    return workspace


def test_nothing_is_removed_that_a_running_sync_then_commits(gated: Workspace) -> None:
    with Gate(gated, BELOW) as gate:
        gated.write(tables={gated.full_name("orders"): {"where": gate.where, "slice_rows": SLICE}})
        process = gated.run.start("sync", "-t", "orders", "-s", "intra-table")
        until(lambda: len(commits(gated)) >= 2 or process.poll() is not None, 120)
        gate.close()
        # Files of slices that are read but not committed yet look like orphans without a look at the lease.
        until(lambda: (gated.folder / "lake" / "data").exists() and len(staged(gated)) >= 2, 120, pause=0.1)
        for command in ("orphans", "clean"):
            result = gated.run("s3clean", command, "-t", "orders", "--force")
            assert result.code == 3 and "holds the table" in result.stderr
        shown = gated.run("s3clean", "list", "-t", "orders", "--json").ok().json["files"]
        assert shown and "orphan" not in {f["state"] for f in shown}
        gate.open()
        assert process.wait(120) == 0, process.communicate()
    valid(gated)
    gated.write(tables={gated.full_name("orders"): {"slice_rows": SLICE}})
    assert gated.compare("orders").equal
    assert gated.pipeline.s3clean_orphans("orders")["deleted"] == 0


def test_files_of_a_dead_run_are_removed_and_its_window_is_finished(gated: Workspace) -> None:
    with Gate(gated, BELOW) as gate:
        gated.write(tables={gated.full_name("orders"): {"where": gate.where, "slice_rows": SLICE}})
        process = gated.run.start("sync", "-t", "orders", "--backup-only", "-s", "intra-table")
        until(lambda: len(commits(gated)) >= 2 or process.poll() is not None, 120)
        gate.close()
        until(lambda: (gated.folder / "lake" / "data").exists() and staged(gated), 120, pause=0.1)
        workers = descendants(process.pid)
        process.kill()
        process.wait()
    assert all_gone(workers, 30)  # until then they may still write
    named = {f["path"] for c in commits(gated) if c["kind"] == "batch" for f in c["files"]}
    orphans = staged(gated) - named
    dry = gated.pipeline.s3clean_orphans("orders", dry_run=True)
    done = gated.run("s3clean", "orphans", "-t", "orders", "--force", "--json").ok().json
    assert [f["uri"] for f in done["files"]] == [f["uri"] for f in dry["files"]]
    assert done["deleted"] == len(orphans) and staged(gated) == named
    valid(gated)
    gated.write(tables={gated.full_name("orders"): {"slice_rows": SLICE}})
    gated.synced("orders")
    assert gated.compare("orders").equal
    valid(gated)


def test_orphans_are_not_guessed_if_a_commit_is_lost(orders: Workspace) -> None:
    plant(orders, 1, 1)
    orders.execute("UPDATE orders SET note = 'x' WHERE id = 7")
    orders.synced("orders")
    log = orders.folder / "lake" / "commits" / orders.full_name("orders")
    sorted(log.iterdir())[2].write_bytes(b"{}")
    before = staged(orders)
    result = orders.run("s3clean", "orphans", "-t", "orders", "--force")
    assert result.code == 6 and "look like orphans" in result.stderr
    assert staged(orders) == before
    # What other commits name may go all the same.
    assert orders.pipeline.s3clean_clean("orders")["deleted"] == 2


def test_a_table_whose_files_are_all_cleaned_never_starts_over_silently(orders: Workspace) -> None:
    orders.pipeline.s3clean_clean("orders")
    lake = orders.folder / "lake"
    for part in ("commits", "watermark"):
        for path in (lake / part).rglob("*.json"):
            path.unlink()
    result = orders.run("sync", "-t", "orders")
    assert result.code == 6 and "neither its log nor a sound watermark copy" in result.stderr


# buckets that keep versions


def test_cleaning_a_versioned_bucket_says_what_stays(
    s3_workspace: Workspace, seaweed: SeaweedFS, prefix: str
) -> None:
    spec = seaweed.store(prefix)
    client: Any = boto3.client(
        "s3", endpoint_url=spec["endpoint"], region_name="us-east-1",
        aws_access_key_id=spec["access_key_id"], aws_secret_access_key=spec["secret_access_key"],
    )  # fmt: skip
    client.create_bucket(Bucket=prefix)
    client.put_bucket_versioning(Bucket=prefix, VersioningConfiguration={"Status": "Enabled"})
    s3_workspace.write(store={"url": f"s3://{prefix}/lake"})
    workspace = _orders(s3_workspace)
    done = workspace.run("s3clean", "clean", "-t", "orders", "--force", "--json").ok().json
    assert done["deleted"] == 1 and "keeps versions" in " ".join(done["tables"][0]["notes"])
    assert staged(workspace) == set() and workspace.run("s3clean", "list").ok().stdout == ""
    valid(workspace)
    versions = client.list_object_versions(Bucket=prefix, Prefix="lake/data/")
    assert (len(versions["Versions"]), len(versions["DeleteMarkers"])) == (1, 1)
    assert workspace.pipeline.s3clean_clean("orders")["deleted"] == 0


# a terminal


def test_on_a_terminal_clean_asks_and_list_prints_a_table(orders: Workspace) -> None:
    shown = _typed(orders.folder, "", "s3clean", "list", "-t", "orders")
    assert "STATE" in shown and "loaded:" in shown and "100 rows" in shown
    refused = _typed(orders.folder, "n\n", "s3clean", "clean", "-t", "orders")
    assert f"Remove the staged files of {orders.database.name}.orders (1 file," in refused
    assert "nothing was changed" in refused and len(staged(orders)) == 1
    done = _typed(orders.folder, "y\n", "s3clean", "clean", "-t", "orders")
    assert "removed 1 file" in done and staged(orders) == set()


def _typed(folder: Path, answer: str, *args: str) -> str:
    """What a terminal shows of a command, and what is typed there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "floodmark", *args], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # the other end is closed
        pass
    process.wait(60)
    os.close(ours)
    return shown.decode()
