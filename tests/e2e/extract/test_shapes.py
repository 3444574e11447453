"""Tables of awkward shapes: wide, empty and partitioned ones, huge rows, cursors of dates and of microseconds."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys

import pytest

from floodmark.extract.task import SliceJob
from floodmark.load.duckdb.warehouse import DuckDB
from floodmark.load.protocol import LoadRequest
from floodmark.log.log import Log
from floodmark.model.commit import WithFiles
from floodmark.model.events import Event, StageBegan
from floodmark.model.run import SyncOptions, new_run
from floodmark.model.window import Slice
from floodmark.source.describe import discover
from floodmark.source.session import Session
from floodmark.store.store import Store
from floodmark.sync.run import sync
from floodmark.verify.run import verify
from tests.conftest import Silent, Workspace
from tests.support.table_shapes import AT, configured, same

pytestmark = pytest.mark.source


def test_a_decimal_wider_than_the_warehouses_arrives_as_its_text(workspace: Workspace) -> None:
    most = "9" * 35 + "." + "9" * 30
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, n DECIMAL(65,30), {AT})",
        f"INSERT INTO t (id, n) VALUES (1, -{most}), (2, 0.1)",
    )
    workspace.synced("t")
    assert workspace.query("SELECT n FROM t ORDER BY id") == [(f"-{most}",), ("0.1" + "0" * 29,)]


def test_a_table_of_300_columns_arrives_with_all_of_them(workspace: Workspace) -> None:
    columns = [f"c{i} {('INT', 'VARCHAR(9)', 'DECIMAL(9,2)')[i % 3]}" for i in range(300)]
    values = ", ".join(f"seq + {i}" for i in range(300))
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, {AT}, {', '.join(columns)})",
        f"INSERT INTO t SELECT seq, '2025-03-01', {values} FROM seq_1_to_300",
    )
    workspace.synced("t")
    assert workspace.compare("t").equal


def test_a_table_without_rows_is_not_an_error(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE upserted (id INT PRIMARY KEY, {AT})",
        "CREATE TABLE appended (id INT AUTO_INCREMENT PRIMARY KEY)",
        "CREATE TABLE copied (a INT)",
    )
    report = workspace.sync()
    assert report.ok and [t.rows_extracted for t in report.tables] == [0, 0, 0], report.as_json()
    again = workspace.sync()
    assert again.ok and [bool(t.commits) for t in again.tables] == [False, True, False], (
        "a snapshot each, but once"
    )
    config, names = workspace.settings, [t.table for t in report.tables]
    verified, code = verify(config, names, Silent(), new_run(), spark=workspace.spark())
    assert code == 0 and [t["rows_warehouse"] for t in verified["tables"]] == [0, 0, 0], verified
    assert workspace.query("SELECT * FROM upserted UNION ALL SELECT id, NULL FROM appended") == []
    workspace.execute(
        "INSERT INTO upserted (id) VALUES (1)",
        "INSERT INTO appended VALUES (5)",
        "INSERT INTO copied VALUES (9)",
    )
    report = workspace.sync()
    assert report.ok and [t.rows_loaded for t in report.tables] == [1, 1, 1], report.as_json()


@pytest.mark.parametrize("change", ["CHANGE n renamed INT", "DROP INDEX update_at"])
def test_a_table_renamed_or_dropped_during_a_read_is_retried(workspace: Workspace, change: str) -> None:
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, n INT, {AT}, KEY update_at (update_at))",
        "INSERT INTO t (id, n) SELECT seq, seq FROM seq_1_to_50",
    )

    class Meddling(Silent):
        def __call__(self, event: Event) -> None:
            if isinstance(event, StageBegan) and event.stage == "extract":
                workspace.execute(f"ALTER TABLE t {change}")

    config, name = workspace.settings, workspace.full_name("t")
    report = sync(config, [name], False, SyncOptions(), Meddling(), new_run(), spark=workspace.spark())
    (error,) = [t.error for t in report.tables]
    assert error is not None and error.code == 4 and "changed while it was being read" in error.message
    workspace.synced("t")
    assert same(workspace, "t")


def test_a_partitioned_table_is_one_table(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (id INT, day DATE, n INT, {AT}, PRIMARY KEY (id, day), KEY (update_at)) PARTITION BY RANGE"
        " COLUMNS (day) (PARTITION a VALUES LESS THAN ('2025-02-01'), PARTITION b VALUES LESS THAN ('2025-03-01'),"
        " PARTITION c VALUES LESS THAN (MAXVALUE))",
        "INSERT INTO t (id, day, n) SELECT seq, '2025-01-01' + INTERVAL seq % 90 DAY, seq FROM seq_1_to_900",
    )
    configured(workspace, "t", slice_rows=200)
    assert workspace.synced("t")["rows_extracted"] == 900
    workspace.execute("UPDATE t SET n = -n, update_at = '2025-03-02' WHERE id % 4 = 0")
    assert workspace.synced("t", strategy="sequential")["rows_extracted"] == 225
    assert workspace.compare("t").equal


@pytest.mark.long
def test_rows_of_a_megabyte_pass_in_bounded_memory(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, body LONGTEXT, {AT})",
        "INSERT INTO t (id, body) SELECT seq, REPEAT(SHA2(seq, 256), 16384) FROM seq_1_to_300",
    )
    assert workspace.synced("t")["rows_loaded"] == 300
    assert workspace.query("SELECT id, length(body), sha256(body) FROM t ORDER BY id") == workspace.execute(
        "SELECT id, LENGTH(body), SHA2(body, 256) FROM t ORDER BY id"
    )
    # The task again, in a process that did nothing else: rows of 300 MB, and 100 MB are Python and Arrow. Held all
    # at once they would take 400 MB and more; what is held takes 200 to 280, as the allocator likes.
    assert peak(workspace, "t") < 330 << 20


@pytest.mark.long
def test_commits_and_loads_of_wide_rows_are_bounded_by_bytes(workspace: Workspace) -> None:
    workspace.execute(f"CREATE TABLE t (id INT PRIMARY KEY, body LONGTEXT, {AT})")
    for n in range(0, 240, 8):
        rows = (f"({i}, '{random.Random(i).randbytes(500_000).hex()}')" for i in range(n, n + 8))
        workspace.execute(f"INSERT INTO t (id, body) VALUES {', '.join(rows)}")
    workspace.execute("ANALYZE TABLE t")  # the server's statistics say how wide rows are
    report = workspace.synced("t")
    assert report["rows_loaded"] == 240 and len(report["commits"]) >= 3
    found = "SELECT count(DISTINCT row_group_id), max(count) FROM pragma_storage_info('t')"
    ((groups, most),) = workspace.query(found)
    assert groups >= 3 and most <= 120
    assert workspace.query("SELECT id, sha256(body) FROM t ORDER BY id") == workspace.execute(
        "SELECT id, SHA2(body, 256) FROM t ORDER BY id"
    )


def test_more_wide_rows_than_the_warehouse_holds_at_once_are_loaded(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, body LONGTEXT, {AT})",
        "INSERT INTO t (id, body) SELECT seq, REPEAT(SHA2(seq, 256), 1024) FROM seq_1_to_2200",
    )
    workspace.synced("t", backup_only=True)
    config = workspace.settings
    store = Store(config.store)
    log = Log(store, workspace.full_name("t"))
    state = log.read()
    assert state.table is not None
    found = (log.commit(data.n) for data in state.data.commits)
    commits = tuple((commit, digest) for commit, digest in found if isinstance(commit, WithFiles))
    # DuckDB takes 2,048 rows at a time, here 134 MB; a table of a megabyte each would need 2 GB and more.
    small = DuckDB(workspace.warehouse, memory=150_000_000)
    request = LoadRequest("p", state.log, state.table, "t", 0, commits, store, "run")
    assert small.load(request).rows == 2200
    assert workspace.query("SELECT count(*), sum(length(body)) FROM t") == [(2200, 2200 * 65_536)]


def peak(workspace: Workspace, table: str) -> int:
    """The total memory that a slice's task takes."""
    config = workspace.settings
    with Session(config.source) as session:
        found = discover(session, table, config.options(workspace.full_name(table)), workspace.database.name)
    job = SliceJob(
        config.source, config.store, found, Slice("snapshot", 0, "snapshot"), "20250101_000000_aaaa", 1
    )
    done = subprocess.run(
        [sys.executable, "-c", TASK], input=pickle.dumps(job), capture_output=True, check=True
    )
    return int(done.stdout) * 1024


# Not the rusage's figure: that begins with the memory of the process that this one was started from.
TASK = """import pickle, re, sys
pickle.load(sys.stdin.buffer).go()
print(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])"""


# ---------------------------------------------------------------- cursors


def test_a_date_cursor_loses_no_row_of_today(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, day DATE NOT NULL, n INT, KEY (day))",
        "INSERT INTO t SELECT seq, UTC_DATE() - INTERVAL seq DAY, seq FROM seq_1_to_20",
        "INSERT INTO t VALUES (100, UTC_DATE(), 1)",
    )
    configured(workspace, "t", cursor="day", start=None)
    workspace.synced("t")
    assert same(workspace, "t")
    # More rows of today, and changes of those that are there: the day isn't over.
    workspace.execute("INSERT INTO t VALUES (101, UTC_DATE(), 1)", "UPDATE t SET n = 2 WHERE id = 100")
    workspace.synced("t")
    assert same(workspace, "t")


def test_a_microsecond_cursor_is_sliced_between_microseconds(workspace: Workspace) -> None:
    workspace.execute(
        "SET time_zone = '+05:00'",
        "CREATE TABLE t (id INT PRIMARY KEY, n INT, update_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"
        " ON UPDATE CURRENT_TIMESTAMP(6), KEY (update_at))",
        "INSERT INTO t SELECT seq, seq, '2025-03-01 05:00:00' + INTERVAL seq MICROSECOND FROM seq_1_to_90",
    )
    table = workspace.synced("t", limit=40)
    assert table["watermark"]["last_mysql_data_timestamp"] == "2025-03-01T00:00:00.000040"
    assert workspace.query("SELECT count(*), max(id) FROM t") == [(40, 40)]
    assert workspace.synced("t")["rows_extracted"] == 50
    workspace.execute("UPDATE t SET n = 0 WHERE id % 9 = 0")
    assert workspace.synced("t")["rows_extracted"] == 10
    assert workspace.compare("t").equal


def test_a_memory_table_is_read_by_its_primary_key(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, n INT,"
        " updated_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)) ENGINE=MEMORY",
        "INSERT INTO t (n) SELECT seq FROM seq_1_to_500",
    )
    workspace.write(defaults={"slice_rows": 100})
    assert workspace.synced("t")["rows_extracted"] == 500
    workspace.execute("UPDATE t SET n = -n WHERE id % 50 = 0", "INSERT INTO t (n) VALUES (7)")
    assert workspace.synced("t")["rows_extracted"] == 11
    assert workspace.compare("t").equal
    assert workspace.verified("t")["ok"]
