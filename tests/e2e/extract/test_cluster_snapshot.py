"""A snapshot that executors on a standalone cluster read together: one moment under writers, started over if one of them dies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from floodmark.spark.context import Spark
from tests.conftest import SERVERS, USUAL, Workspace, lasting_workspace
from tests.support import transfers
from tests.support.held_sync import Gate, until
from tests.support.spark_cluster import SparkCluster
from tests.support.table_shapes import configured, same

pytestmark = pytest.mark.long

SLICE = 250
WAITING = (
    "SELECT COUNT(*) FROM information_schema.processlist WHERE INFO LIKE '%floodmark: extract%IS_USED_LOCK%'"
    " AND ID <> CONNECTION_ID()"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster(workers=2, cores=1, memory="512m") as cluster:
        yield cluster


@pytest.fixture
def accounts(cluster: SparkCluster, tmp_path: Path, spark: Callable[[], Spark]) -> Iterator[Workspace]:
    conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    with (
        SERVERS[USUAL](args=transfers.LOGGED[USUAL]) as server,
        lasting_workspace(tmp_path, server, spark, store={"url": "./lake"}) as workspace,
    ):
        workspace.write(spark={"master": cluster.master.url, "conf": conf})
        transfers.create(server, workspace.database.name)
        configured(workspace, "accounts", mode="full", slice_rows=SLICE)
        yield workspace
        workspace.run.kill_all()


def connections(logs: str) -> list[int]:
    """With how many connections snapshots were read, by the command's log."""
    lines = [json.loads(line) for line in logs.splitlines() if line.startswith("{")]
    return [line["connections"] for line in lines if "connections" in line]


def test_executors_see_one_moment_under_writers(accounts: Workspace) -> None:
    database = accounts.database
    with transfers.writing(database.server, database.name, rate=10.0, threads=2):
        done = accounts.run("sync", "-t", "accounts", "--json-logs", "--debug", timeout=600)
    assert done.code == 0, done.stderr
    assert connections(done.stderr) == [2]
    [seen] = accounts.query(f"SELECT {transfers.halves()} FROM accounts")
    assert transfers.one_moment(seen)


def test_an_executor_that_dies_begins_the_snapshot_anew(accounts: Workspace, cluster: SparkCluster) -> None:
    with Gate(accounts, 10) as gate:
        configured(accounts, "accounts", mode="full", slice_rows=SLICE, where=gate.where)
        gate.close()
        running = accounts.run.start("sync", "-t", "accounts", "--json-logs", "--debug")
        until(lambda: accounts.execute(WAITING)[0][0] >= 2, 600, pause=0.2)
        accounts.execute("UPDATE accounts SET moves = moves + 1")  # no old slice may be among the rows
        [executor] = next(w for w in cluster.workers if w.executors()).executors()
        os.kill(executor, signal.SIGKILL)
        until(lambda: accounts.execute(WAITING)[0][0] < 2, 60, pause=0.2)
        gate.open()
        _, logs = running.communicate(timeout=600)
    assert running.returncode == 0, logs
    assert same(accounts, "accounts")
    assert "starts over" in logs
