"""Small slices of several tables as one task of a real Spark: each has its own result, error and end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from floodmark.config.load import SourceSpec, StoreSpec, TableOptions
from floodmark.extract.task import SliceJob, SliceResult
from floodmark.model.errors import ConfigError
from floodmark.model.window import Slice
from floodmark.source.connections import Throttle
from floodmark.source.describe import discover
from floodmark.source.session import Session
from floodmark.spark.context import Spark
from tests.conftest import Database
from tests.support.described import changed

TABLES = 6


@pytest.fixture
def jobs(database: Database, tmp_path: Path) -> Iterator[list[SliceJob]]:
    """One slice of each of six tables, of 1 to 6 rows; the source allows one connection."""
    server = database.server
    source = SourceSpec(
        server.host, server.port, server.user, server.password, database.name, max_connections=1
    )
    made = []
    for n in range(TABLES):
        database.execute(
            f"CREATE TABLE t{n} (id INT PRIMARY KEY, update_at DATETIME NOT NULL, KEY (update_at))",
            f"INSERT INTO t{n} SELECT seq, '2025-01-01' + INTERVAL seq SECOND FROM seq_1_to_{n + 1}",
        )
        with Session(source, purpose="test") as session:
            table = discover(session, f"{database.name}.t{n}", TableOptions(), database.name)
        piece = Slice("window", 0, "key", rows=n + 1)
        store = StoreSpec(url=str(tmp_path / "lake"))
        made.append(SliceJob(source, store, table, piece, "20250101_000000_abcd", 1))
    yield made
    # A query that sleeps does not notice that its client is gone.
    for (query,) in database.execute(
        "SELECT id FROM information_schema.processlist WHERE info LIKE '%floodmark: extract%SLEEP(%'"
    ):
        with suppress(pymysql.OperationalError):
            database.execute(f"KILL {query}")


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read(spark: Spark, job: SliceJob, throttle: Throttle) -> list[SliceResult]:
    """Reads a slice as the only one of its table."""
    return list(spark.run([job], job.table.name, throttle, small=True))


def waiting(spark: Spark, throttle: Throttle) -> int:
    shared = spark._shared.get(throttle)
    return len(shared._waiting) if shared else 0


@pytest.fixture
def tasks(spark: Callable[[], Spark], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of the Spark jobs that are run."""
    context, titles = spark()._context, list[str]()
    named = context.setJobGroup

    def setJobGroup(group: str, title: str, **options: Any) -> None:
        if group != "warm-up":
            titles.append(title)
        named(group, title, **options)

    monkeypatch.setattr(context, "setJobGroup", setJobGroup)
    return titles


def test_slices_that_wait_share_tasks_and_an_error_is_its_own_tables(
    spark: Callable[[], Spark], jobs: list[SliceJob], tasks: list[str]
) -> None:
    jobs[1] = replace(jobs[1], source=replace(jobs[1].source, password="not-the-password"))
    one, throttle = spark(), Throttle(jobs[0].source)
    let_go = ExitStack()
    let_go.enter_context(throttle.room())  # the only connection: the slices wait for it
    with ThreadPoolExecutor(TABLES) as pool:
        running = [pool.submit(read, one, job, throttle) for job in jobs]
        until(lambda: waiting(one, throttle) == TABLES)
        let_go.close()
        with pytest.raises(ConfigError, match="Access denied") as caught:
            running.pop(1).result(60)
        assert caught.value.table == jobs[1].table.name
        assert [result.rows for future in running for result in future.result(60)] == [1, 3, 4, 5, 6]
    assert len(tasks) < TABLES and "more" in tasks[0]


def test_a_table_that_ends_early_ends_the_shared_task_and_the_others_run_alone(
    spark: Callable[[], Spark], jobs: list[SliceJob], database: Database
) -> None:
    endless = replace(jobs[0], table=changed(jobs[0].table, where="SLEEP(600) = 0"))
    one, throttle = spark(), Throttle(jobs[0].source)
    let_go = ExitStack()
    let_go.enter_context(throttle.room())
    stop: list[ConfigError | None] = [None]

    def ends_early() -> list[SliceResult]:
        return list(one.run([endless], "endless", throttle, failed=lambda: stop[0], small=True))

    with ThreadPoolExecutor(TABLES) as pool:
        early = pool.submit(ends_early)
        until(lambda: waiting(one, throttle) == 1)
        others = [pool.submit(read, one, job, throttle) for job in jobs[1:]]
        until(lambda: waiting(one, throttle) == TABLES)
        let_go.close()
        asleep = "SELECT 1 FROM information_schema.processlist WHERE info LIKE '%floodmark: extract%SLEEP(%'"
        until(lambda: bool(database.execute(f"{asleep} AND id <> CONNECTION_ID()")))
        stop[0] = ConfigError("enough")
        with pytest.raises(ConfigError, match="enough"):
            early.result(60)
        assert [result.rows for future in others for result in future.result(60)] == [2, 3, 4, 5, 6]
