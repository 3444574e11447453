"""Slices as tasks of a real Spark: results, errors, lost workers, and what is left after a kill."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import MySQLdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.config import SourceSpec, TableOptions
from floodmark.errors import ConfigError, DataError, TransientError
from floodmark.extract import SliceJob, SliceResult
from floodmark.model import Slice
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import discover
from floodmark.spark import Spark
from floodmark.store import Store, StoreSpec
from tests.conftest import Database

ROWS = 4000
STEP = 500


@pytest.fixture
def jobs(database: Database, tmp_path: Path) -> Iterator[list[SliceJob]]:
    """Eight slices of a table of 4,000 rows, by key."""
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), update_at DATETIME NOT NULL, KEY (update_at))",
        f"INSERT INTO t SELECT seq, CONCAT('n', seq), '2025-01-01' + INTERVAL seq SECOND FROM seq_1_to_{ROWS}",
    )
    server = database.server
    source = SourceSpec(server.host, server.port, server.user, server.password, database.name)
    with Session(source, purpose="test") as session:
        table = discover(session, f"{database.name}.t", TableOptions(), database.name)
    store = StoreSpec(url=str(tmp_path / "lake"))
    pieces = [
        Slice("window", i, "key", after=(i * STEP,), upto=((i + 1) * STEP,)) for i in range(ROWS // STEP)
    ]
    yield [SliceJob(source, store, table, piece, "20250101_000000_abcd", 1) for piece in pieces]
    # A query that sleeps does not notice that its client is gone.
    for (query,) in database.execute(
        "SELECT id FROM information_schema.processlist WHERE info LIKE '%floodmark: extract%SLEEP(%'"
    ):
        with suppress(MySQLdb.OperationalError):
            database.execute(f"KILL {query}")


def ids(job: SliceJob, results: list[SliceResult]) -> list[int]:
    store = Store(job.store)
    data = [store.get(f.path) for r in results for f in r.files]
    tables = [pq.read_table(io.BytesIO(d)) for d in data if d is not None]
    found: list[int] = sorted(pa.concat_tables(tables).column("id").to_pylist())  # type: ignore[arg-type]
    return found


def python_workers(spark: Spark) -> list[int]:
    """The forked workers; their parent is pyspark's daemon, a child of the JVM."""
    jvm = spark._jvm.process
    assert jvm is not None
    return [pid for daemon in children(jvm.pid) for pid in children(daemon)]


def children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] or _scan(pid)
    except OSError:
        return []


def _scan(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def test_every_slice_comes_back_with_its_files(spark: Callable[[], Spark], jobs: list[SliceJob]) -> None:
    results = list(spark().submit(jobs, "t"))
    assert sorted(r.slice.number for r in results) == list(range(8))
    assert {r.rows for r in results} == {STEP}
    assert ids(jobs[0], results) == list(range(1, ROWS + 1))
    first = next(r for r in results if r.slice.number == 0)
    assert first.files[0].first == ("2025-01-01 00:00:01.000000", 1)
    assert first.files[0].last == ("2025-01-01 00:08:20.000000", 500)


def test_a_slice_without_rows_has_no_file(spark: Callable[[], Spark], jobs: list[SliceJob]) -> None:
    [result] = spark().submit([replace(jobs[0], slice=Slice("window", 0, "key", after=(ROWS,)))], "t")
    assert (result.rows, result.files) == (0, ())
    assert list(spark().submit([], "t")) == []


def test_results_arrive_while_later_slices_run(spark: Callable[[], Spark], jobs: list[SliceJob]) -> None:
    results = spark().submit(jobs, "t")
    assert next(results).rows == STEP
    assert sum(r.rows for r in results) == ROWS - STEP


def test_the_error_of_a_task_is_raised_as_itself_and_spark_goes_on(
    spark: Callable[[], Spark], jobs: list[SliceJob]
) -> None:
    wrong = replace(jobs[3], source=replace(jobs[3].source, password="not-the-password"))
    with pytest.raises(ConfigError, match="Access denied") as caught:
        list(spark().submit([*jobs[:3], wrong, *jobs[4:]], "t"))
    assert caught.value.table == jobs[0].table.name
    assert "not-the-password" not in str(caught.value)
    assert ids(jobs[0], list(spark().submit(jobs, "t"))) == list(range(1, ROWS + 1))


def test_data_that_can_not_be_carried_is_not_tried_again(
    spark: Callable[[], Spark], jobs: list[SliceJob], database: Database
) -> None:
    database.execute("SET sql_mode = ''", "UPDATE t SET update_at = '0000-00-00' WHERE id = 700")
    with pytest.raises(DataError, match="0000-00-00"):
        list(spark().submit(jobs, "t"))


def test_a_service_that_stays_away_is_transient(
    spark: Callable[[], Spark], jobs: list[SliceJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.spark.PAUSES", (0.1,))
    away = [replace(job, source=replace(job.source, port=1)) for job in jobs]
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1"):
        list(spark().submit(away, "t"))


def test_a_service_that_comes_back_is_waited_for(
    spark: Callable[[], Spark], jobs: list[SliceJob], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.spark.PAUSES", (0.2, 0.2))
    # A connection that is killed in the middle of a slice, once.
    slow = replace(jobs[0], table=replace(jobs[0].table, where="SLEEP(0.01) = 0"))
    results = spark().submit([slow], "t")
    killer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILL_ONE), str(database.server.port), database.server.password]
    )
    [result] = results
    assert killer.wait() == 0
    assert result.rows == STEP


KILL_ONE = """
import sys, time, MySQLdb
link = MySQLdb.connect(host="127.0.0.1", port=int(sys.argv[1]), user="root", passwd=sys.argv[2])
cursor = link.cursor()
for _ in range(200):
    cursor.execute("SELECT id FROM information_schema.processlist WHERE info LIKE '%extract%SLEEP%' AND id <> CONNECTION_ID()")
    if row := cursor.fetchone():
        cursor.execute(f"KILL {row[0]}")
        sys.exit(0)
    time.sleep(0.05)
sys.exit("nothing to kill")
"""


def test_a_killed_worker_costs_a_retry_and_no_row(spark: Callable[[], Spark], jobs: list[SliceJob]) -> None:
    one = spark()
    slow = [replace(job, table=replace(job.table, where="SLEEP(0.002) = 0")) for job in jobs[:4]]
    results = one.submit(slow, "t")
    found = [next(results)]  # by now the others are at work
    for pid in python_workers(one):
        os.kill(pid, signal.SIGKILL)
    found += results
    assert ids(jobs[0], found) == list(range(1, 4 * STEP + 1))


PROGRAM = """
import sys, pickle, threading, time
from floodmark.errors import FloodmarkError
from floodmark.spark import Spark
jobs, mode = pickle.loads(sys.stdin.buffer.read()), sys.argv[1]
spark = Spark("local[2]")
spark.start()
print(spark._jvm.process.pid, flush=True)
if mode == "cancel":
    threading.Timer(1.0, spark.cancel).start()
try:
    print(sum(r.rows for r in spark.submit(jobs, "t")), flush=True)
except FloodmarkError as error:
    print(type(error).__name__, flush=True)
spark.stop()
"""


def start(jobs: list[SliceJob], mode: str) -> subprocess.Popen[bytes]:
    import pickle

    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(jobs))
    process.stdin.close()
    process.stdin = None
    return process


def sleeping(jobs: list[SliceJob]) -> list[SliceJob]:
    return [replace(job, table=replace(job.table, where="SLEEP(1) = 0")) for job in jobs]


def test_nothing_outlives_a_killed_driver(jobs: list[SliceJob]) -> None:
    driver = start(sleeping(jobs), "run")
    assert driver.stdout is not None
    jvm = int(driver.stdout.readline())
    deadline = time.monotonic() + 30
    while not (workers := [w for d in children(jvm) for w in children(d)]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    driver.kill()
    driver.communicate()
    deadline = time.monotonic() + 15
    while any(os.path.exists(f"/proc/{pid}/exe") for pid in (jvm, *workers)):
        assert time.monotonic() < deadline, "the JVM or a Python worker has outlived its driver"
        time.sleep(0.1)


def test_a_cancel_is_quick_and_silent(jobs: list[SliceJob]) -> None:
    driver = start(sleeping(jobs), "cancel")
    said, noise = driver.communicate(timeout=60)
    assert said.split()[1] == b"Interrupted"
    assert noise == b""
    assert driver.returncode == 0


def test_a_run_leaves_no_word_of_spark_on_the_terminal(jobs: list[SliceJob]) -> None:
    driver = start(jobs, "run")
    said, noise = driver.communicate(timeout=60)
    assert (said.split()[1], noise) == (str(ROWS).encode(), b"")
