"""Slices as tasks of a real Spark: results, errors, lost workers, and silence."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
import pytest

from floodmark.config.load import SourceSpec, StoreSpec, TableOptions
from floodmark.extract.task import SliceJob, SliceResult
from floodmark.host.retry import Retries
from floodmark.model.errors import ConfigError, DataError, TransientError
from floodmark.model.window import Slice
from floodmark.source.describe import discover
from floodmark.source.session import Session
from floodmark.spark.context import Spark
from floodmark.store.store import Store
from tests.conftest import Database
from tests.support.described import changed

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
        with suppress(pymysql.OperationalError):
            database.execute(f"KILL {query}")


def ids(job: SliceJob, results: list[SliceResult]) -> list[int]:
    store = Store(job.store)
    data = [store.get(f.path) for r in results for f in r.files]
    tables = [pq.read_table(io.BytesIO(d)) for d in data if d is not None]
    found: list[int] = sorted(pa.concat_tables(tables).column("id").to_pylist())  # type: ignore[arg-type]
    return found


def python_workers(spark: Spark) -> list[int]:
    """The forked workers; their parent is the daemon that was started beside the JVM, or by it."""
    jvm, early = spark._jvm.process, spark._jvm._workers
    assert jvm is not None and early is not None
    return [pid for daemon in (early.pid, *children(jvm.pid)) for pid in children(daemon)]


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
    results = list(spark().run(jobs, "t"))
    assert sorted(r.slice.number for r in results) == list(range(8))
    assert {r.rows for r in results} == {STEP}
    assert ids(jobs[0], results) == list(range(1, ROWS + 1))
    first = next(r for r in results if r.slice.number == 0)
    assert first.files[0].first == ("2025-01-01 00:00:01.000000", 1)
    assert first.files[0].last == ("2025-01-01 00:08:20.000000", 500)


def test_a_slice_without_rows_has_no_file(spark: Callable[[], Spark], jobs: list[SliceJob]) -> None:
    [result] = spark().run([replace(jobs[0], slice=Slice("window", 0, "key", after=(ROWS,)))], "t")
    assert (result.rows, result.files) == (0, ())
    assert list(spark().run([], "t")) == []


def test_results_arrive_while_later_slices_run(spark: Callable[[], Spark], jobs: list[SliceJob]) -> None:
    results = spark().run(jobs, "t")
    assert next(results).rows == STEP
    assert sum(r.rows for r in results) == ROWS - STEP


def test_a_tasks_error_keeps_its_type_and_spark_keeps_running(
    spark: Callable[[], Spark], jobs: list[SliceJob]
) -> None:
    wrong = replace(jobs[3], source=replace(jobs[3].source, password="not-the-password"))
    with pytest.raises(ConfigError, match="Access denied") as caught:
        list(spark().run([*jobs[:3], wrong, *jobs[4:]], "t"))
    assert caught.value.table == jobs[0].table.name
    assert "not-the-password" not in str(caught.value)
    assert ids(jobs[0], list(spark().run(jobs, "t"))) == list(range(1, ROWS + 1))


def test_a_data_error_is_not_retried(
    spark: Callable[[], Spark], jobs: list[SliceJob], database: Database
) -> None:
    database.execute("SET sql_mode = ''", "UPDATE t SET update_at = '0000-00-00' WHERE id = 700")
    with pytest.raises(DataError, match="0000-00-00"):
        list(spark().run(jobs, "t"))


def test_a_service_that_stays_down_is_a_transient_error(
    spark: Callable[[], Spark], jobs: list[SliceJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.spark.context.SLICE", Retries(2, 0.1))
    away = [replace(job, source=replace(job.source, port=1)) for job in jobs]
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1"):
        list(spark().run(away, "t"))


def test_a_task_waits_for_a_service_that_comes_back(
    spark: Callable[[], Spark], jobs: list[SliceJob], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.spark.context.SLICE", Retries(3, 0.2, factor=1))
    # A connection that is killed in the middle of a slice, once.
    slow = replace(jobs[0], table=changed(jobs[0].table, where="SLEEP(0.01) = 0"))
    results = spark().run([slow], "t")
    killer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILL_ONE), str(database.server.port), database.server.password]
    )
    [result] = results
    assert killer.wait() == 0
    assert result.rows == STEP


KILL_ONE = """
import sys, time, pymysql
link = pymysql.connect(host="127.0.0.1", port=int(sys.argv[1]), user="root", password=sys.argv[2])
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
    slow = [replace(job, table=changed(job.table, where="SLEEP(0.002) = 0")) for job in jobs[:4]]
    results = one.run(slow, "t")
    found = [next(results)]  # by now the others are running
    for pid in python_workers(one):
        os.kill(pid, signal.SIGKILL)
    found += results
    assert ids(jobs[0], found) == list(range(1, 4 * STEP + 1))


PROGRAM = """
import sys, pickle, threading
from floodmark.model.errors import FloodmarkError
from floodmark.spark.context import Spark
jobs, sleeping = pickle.loads(sys.stdin.buffer.read())
spark = Spark("local[2]")
spark.start()
print(sum(r.rows for r in spark.run(jobs, "t")), flush=True)
threading.Timer(1.0, spark.cancel).start()
try:
    list(spark.run(sleeping, "t"))
except FloodmarkError as error:
    print(type(error).__name__, flush=True)
spark.stop()
"""


def test_spark_prints_nothing_to_the_terminal_even_when_cancelled(jobs: list[SliceJob]) -> None:
    sleeping = [replace(job, table=changed(job.table, where="SLEEP(1) = 0")) for job in jobs]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=pickle.dumps((jobs, sleeping)), capture_output=True, timeout=90
    )
    assert (done.stdout.split(), done.stderr) == ([str(ROWS).encode(), b"Interrupted"], b"")
    assert done.returncode == 0


ASKED = """
import os, pickle, sys
from floodmark.spark import worker_daemon as daemon
from floodmark.spark.context import Spark
jobs, mode = pickle.loads(sys.stdin.buffer.read()), sys.argv[1]
if mode == "late":
    daemon.start_early = lambda folder: None
spark = Spark("local[2]")
spark.start()
print(sum(r.rows for r in spark.run(jobs, "t")), spark._jvm.process.pid)
daemon, imported = spark._context.runJob(spark._base, lambda _: [os.getppid(), "floodmark.extract.task" in sys.modules])
parent = int(open(f"/proc/{daemon}/stat").read().rpartition(")")[2].split()[1])
print(daemon, imported, {os.getpid(): "early", spark._jvm.process.pid: "late"}[parent], flush=True)
spark.stop()
"""


@pytest.mark.parametrize("mode", ["early", "late"])
def test_workers_fork_from_the_daemon_started_with_the_jvm_or_else_from_the_jvms_own(
    jobs: list[SliceJob], mode: str
) -> None:
    command = [sys.executable, "-c", ASKED, mode]
    done = subprocess.run(command, input=pickle.dumps(jobs), capture_output=True, timeout=90)
    rows, jvm, daemon, imported, parent = done.stdout.split()
    assert (done.returncode, int(rows), imported, done.stderr) == (0, ROWS, b"True", b"")
    assert parent.decode() == mode
    assert not any(os.path.exists(f"/proc/{int(pid)}/exe") for pid in (jvm, daemon))


STARTED = """
import sys
from floodmark.spark.context import Spark
spark = Spark("local[1]")
spark.start()
spark.rehearse(2)
if sys.argv[1] == "cancelled":
    spark.cancel()
print("SharedArchiveFile" in " ".join(spark._jvm.process.args))
spark.stop()
"""


@pytest.mark.long
def test_the_second_run_on_a_machine_stores_sparks_classes_for_the_third(tmp_path: Path) -> None:
    def run(how: str) -> tuple[str, list[str]]:
        done = subprocess.run(
            [sys.executable, "-c", STARTED, how],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip(), [f.suffix for f in (tmp_path / "floodmark").glob("spark-*")]

    assert run("whole") == ("False", [".wanted"])
    assert run("cancelled") == ("False", [".wanted"])
    assert run("whole") == ("False", [".jsa"])
    assert run("whole") == ("True", [".jsa"])
