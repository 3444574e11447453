"""A long stretch of the binary log, read by executors on a standalone cluster: its files side by side, and no secret in Spark's events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.spark.context import Spark
from tests.conftest import LOGGED, SERVERS, USUAL, Workspace, lasting_workspace
from tests.support.spark_cluster import SparkCluster

pytestmark = pytest.mark.long

SIZE = 1000


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster(workers=2, cores=1, memory="512m") as cluster:
        yield cluster


@pytest.fixture
def notes(cluster: SparkCluster, tmp_path: Path, spark: Callable[[], Spark]) -> Iterator[Workspace]:
    (tmp_path / "events").mkdir()
    conf = {
        "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m",
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{tmp_path}/events", "spark.eventLog.compress": "false",
    }  # fmt: skip
    with (
        SERVERS[USUAL](args=LOGGED[USUAL], buffer_pool="64M") as server,
        lasting_workspace(tmp_path, server, spark, store={"url": "./lake"}) as workspace,
    ):
        workspace.write(spark={"master": cluster.master.url, "conf": conf}, defaults={"changes": "binlog"})
        workspace.execute("CREATE TABLE notes (id INT PRIMARY KEY, note VARCHAR(2000))")
        yield workspace
        workspace.run.kill_all()


def read_by_tasks(events: Path) -> list[tuple[str, int, int]]:
    """The tasks that read the log: by which executor, from when to when."""
    said: list[dict[str, Any]] = [
        json.loads(line)
        for file in events.rglob("*")
        if file.is_file()
        for line in file.open()
        if line[0] == "{"
    ]
    stages = {
        one["Stage Infos"][0]["Stage ID"]
        for one in said
        if one["Event"] == "SparkListenerJobStart" and "binary log" in json.dumps(one["Properties"])
    }
    tasks = [one for one in said if one["Event"] == "SparkListenerTaskEnd" and one["Stage ID"] in stages]
    infos = [one["Task Info"] for one in tasks]
    return [(one["Executor ID"], one["Launch Time"], one["Finish Time"]) for one in infos]


def test_executors_read_the_files_of_a_long_log_side_by_side(notes: Workspace, tmp_path: Path) -> None:
    notes.run("sync", "-t", "notes", timeout=300).ok()
    for number in range(6):
        first = number * 5 * SIZE
        notes.execute(
            f"INSERT INTO notes SELECT {first} + seq, REPEAT('x', {SIZE}) FROM seq_1_to_{5 * SIZE}",
            "FLUSH BINARY LOGS",
        )
    notes.execute("DELETE FROM notes WHERE id % 7 = 0")
    notes.run("sync", "-t", "notes", timeout=300).ok()
    assert notes.compare("notes").equal
    tasks = read_by_tasks(tmp_path / "events")
    assert len(tasks) >= 6
    assert any(a[0] != b[0] and a[1] < b[2] and b[1] < a[2] for a in tasks for b in tasks)
    secret = notes.settings.source.password
    assert secret
    kept = b"".join(file.read_bytes() for file in (tmp_path / "events").rglob("*") if file.is_file())
    assert secret.encode() not in kept
