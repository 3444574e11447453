"""What can go wrong with a DuckDB file, and what the operator sees."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest

from floodmark.load.duckdb import file
from floodmark.load.duckdb import warehouse as duckdb_warehouse
from floodmark.load.duckdb.file import DatabaseFile, said_through_arrow, translated
from floodmark.load.duckdb.warehouse import DuckDB
from floodmark.load.protocol import LEDGER
from floodmark.model.errors import ConfigError, DataError, FloodmarkError, Interrupted, TransientError
from floodmark.model.ledger import TargetFiller

HOLD = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "w.duckdb"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has the warehouse open until its stdin is closed."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=-1, stdout=-1)
    assert process.stdout and process.stdin
    process.stdout.readline()
    yield process
    process.stdin.close()
    process.wait()
    process.stdout.close()


def test_a_file_held_by_another_process_is_a_transient_error_with_its_pid(
    path: Path, holder: subprocess.Popen[bytes]
) -> None:
    warehouse = DuckDB(path, lock_seconds=0.3)
    with pytest.raises(TransientError, match=f"locked by process {holder.pid}") as locked:
        warehouse.ledger("log", "t")
    assert locked.value.code == 4
    with pytest.raises(TransientError, match=f"locked by process {holder.pid}"):
        warehouse.set_epoch(TargetFiller("p", "log", "s.t", 1), "t")


def test_a_lock_is_waited_for(path: Path, holder: subprocess.Popen[bytes]) -> None:
    assert holder.stdin is not None
    threading.Timer(0.5, holder.stdin.close).start()
    DuckDB(path, lock_seconds=20).set_epoch(TargetFiller("p", "log", "s.t", 1), "t")
    assert DuckDB(path).ledger("log", "t").epoch == 1


LOAD = """
import sys
from pathlib import Path
from floodmark.load.duckdb.warehouse import DuckDB
from floodmark.load.protocol import LEDGER
from floodmark.model.ledger import TargetFiller
print("ready", flush=True)
sys.stdin.readline()
DuckDB(Path(sys.argv[1]), lock_seconds=20).set_epoch(TargetFiller("p", "log", "s.t", 1), "t")
print("done", flush=True)
"""


def test_another_process_gets_the_file_while_rows_are_handed_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with duckdb.connect(str(path)) as con:
        con.execute("CREATE TABLE t AS SELECT i::INT AS id FROM range(60000) r(i)")
    monkeypatch.setattr(file, "HOLD", 0.2)
    monkeypatch.setattr(duckdb_warehouse, "PORTION_SECONDS", 0.1)
    ids, done = list[Any](), threading.Event()
    with subprocess.Popen([sys.executable, "-c", LOAD, str(path)], stdin=-1, stdout=-1) as other:
        assert other.stdin and other.stdout and other.stdout.readline()

        def watch() -> None:
            if other.stdout and other.stdout.readline():
                done.set()

        watching = threading.Thread(target=watch)
        watching.start()
        seen_done = list[int]()

        def each(batch: pa.RecordBatch) -> None:
            if not ids:
                assert other.stdin
                other.stdin.write(b"go\n")
                other.stdin.flush()
            ids.extend(batch.column(0).to_pylist())
            time.sleep(0.05)
            if done.is_set():
                seen_done.append(len(ids))

        warehouse = DuckDB(path, linger=0.25, lock_seconds=20)
        warehouse.hand_out("t", lambda place: f"SELECT id FROM {place.table}", each, width=2**32)
        warehouse.close()
        watching.join()
    assert sorted(ids) == list(range(60_000))
    assert seen_done, "it had to wait for the last row"


def test_nothing_is_kept_open_between_calls(path: Path) -> None:
    DuckDB(path).set_epoch(TargetFiller("p", "log", "s.t", 1), "t")
    asked = subprocess.run([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.DEVNULL, timeout=30)
    assert asked.returncode == 0


def test_a_ledger_of_which_a_table_is_gone_is_an_error_not_an_empty_one(path: Path) -> None:
    with duckdb.connect(str(path)) as con:
        con.execute("CREATE TABLE orders (id INT)")
    assert not DuckDB(path).ledger("log", "t").rows
    DuckDB(path).set_epoch(TargetFiller("p", "log", "s.t", 1), "t")
    with duckdb.connect(str(path)) as con:
        con.execute(f"DROP TABLE {LEDGER}")
    with pytest.raises(FloodmarkError, match=LEDGER):
        DuckDB(path).ledger("log", "t")


def test_others_may_read_while_we_read(path: Path) -> None:
    DuckDB(path).set_epoch(TargetFiller("p", "log", "s.t", 1), "t")
    read = "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", read, str(path)], stdin=-1, stdout=-1) as process:
        assert process.stdout and process.stdin
        process.stdout.readline()
        assert DuckDB(path).ledger("log", "t").epoch == 1
        process.stdin.close()


def test_a_folder_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    warehouse = DuckDB(tmp_path / "nowhere" / "w.duckdb")
    with pytest.raises(ConfigError, match="does not exist"):
        warehouse.ledger("log", "t")
    with pytest.raises(ConfigError, match="does not exist"):
        warehouse.set_epoch(TargetFiller("p", "log", "s.t", 1), "t")


def test_a_path_that_is_a_folder_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be opened"):
        DuckDB(tmp_path).ledger("log", "t")


@pytest.mark.parametrize("content", [b"", b"not a database" * 1000])
def test_a_file_that_is_not_a_database_is_a_data_error(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DataError, match="can't be read as a DuckDB database"):
        DuckDB(path).ledger("log", "t")


def test_a_new_file_is_private_to_the_user_and_an_existing_one_keeps_its_mode(
    path: Path, open_umask: None
) -> None:
    DuckDB(path).set_epoch(TargetFiller("p", "log", "s.t", 1), "t")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    DuckDB(path).set_epoch(TargetFiller("p", "log", "s.t", 2), "t")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_new_file_appears_whole(path: Path) -> None:
    seen: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            if path.exists():
                seen.append(path.stat().st_size)

    watcher = threading.Thread(target=watch)
    watcher.start()
    DuckDB(path).set_epoch(TargetFiller("p", "log", "s.t", 1), "t")
    time.sleep(0.05)
    stop.set()
    watcher.join()
    assert seen and min(seen) >= 4096
    assert [p.name for p in path.parent.iterdir()] == ["w.duckdb"]


def test_every_exception_of_duckdb_has_a_translation(path: Path) -> None:
    expected: dict[str, type[FloodmarkError]] = {
        "IOException": TransientError, "TransactionException": TransientError, "ConnectionException": TransientError,
        "OutOfMemoryException": TransientError, "FatalException": TransientError, "InterruptException": Interrupted,
        "PermissionException": ConfigError, "ConversionException": DataError, "ConstraintException": DataError,
        "InvalidInputException": DataError, "SerializationException": DataError, "DependencyException": DataError,
        "OutOfRangeException": DataError, "TypeMismatchException": DataError, "ParserException": FloodmarkError,
        "BinderException": FloodmarkError, "CatalogException": FloodmarkError, "InternalException": FloodmarkError,
    }  # fmt: skip
    kinds = [k for k in vars(duckdb).values() if isinstance(k, type) and issubclass(k, duckdb.Error)]
    assert set(expected) <= {k.__name__ for k in kinds}
    for kind in kinds:
        found = translated(kind("said so"), path)
        assert type(found) is expected.get(kind.__name__, type(found)), kind


def test_what_duckdb_says_through_arrow_is_translated_like_its_own_exceptions(path: Path) -> None:
    for said, kind in {
        "IO Error: Could not read from file: Input/output error": TransientError,
        "Out of Memory Error: failed to allocate data": TransientError,
        "INTERRUPT Error: Interrupted!": Interrupted,
        "Conversion Error: Could not convert": DataError,
        "Corrupt database file: computed checksum 1 does not match stored checksum 2": DataError,
        "something else": TransientError,
    }.items():
        assert type(translated(said_through_arrow(OSError(said)), path)) is kind, said


def test_a_full_disk_is_a_transient_error_wherever_it_shows(path: Path) -> None:
    for kind in (duckdb.IOException, duckdb.TransactionException):
        found = translated(kind('Could not write file "w.duckdb.wal": No space left on device'), path)
        assert type(found) is TransientError and "no space left" in found.message


def test_loads_during_an_extraction_leave_no_row_groups_that_a_checkpoint_writes_a_second_time(
    path: Path,
) -> None:
    file = DatabaseFile(path, memory=1_000_000_000, lock_seconds=1)
    with file.writing() as con:
        con.execute("CREATE TABLE t (a BIGINT)")
        files = [str(path.with_name(f"{number}.parquet")) for number in range(8)]
        for number, name in enumerate(files):
            rows = f"SELECT range AS a FROM range({number * 250_000}, {(number + 1) * 250_000})"
            con.execute(f"COPY ({rows}) TO '{name}' (FORMAT parquet, ROW_GROUP_SIZE 125_000)")
        for number in range(0, 8, 2):
            with file.threads_for(con, 500_000):
                con.execute("INSERT INTO t SELECT * FROM read_parquet(?)", [files[number : number + 2]])
        before = row_groups(con)
        con.execute("CHECKPOINT")
        assert row_groups(con) == before


def row_groups(con: duckdb.DuckDBPyConnection) -> list[int]:
    found = con.execute(
        "SELECT row_group_id, sum(count) FROM pragma_storage_info('t') WHERE segment_type = 'BIGINT' GROUP BY ALL ORDER BY ALL"
    )
    return [int(row[1]) for row in found.fetchall()]


class Answering:
    """A connection that says how far its statement is, and takes settings."""

    def __init__(self) -> None:
        self.settings: list[str] = []

    def query_progress(self) -> float:
        return 40.0

    def execute(self, sql: str) -> None:
        self.settings.append(sql)


def test_the_rows_of_a_long_insert_are_counted_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "LOOK_EVERY", 0.001)
    con, told, looked = Answering(), list[int](), threading.Event()

    def at_work(rows: int) -> None:
        told.append(rows)
        if len(told) > 1:
            looked.set()

    with file.counting(cast(file.Connection, con), 1_000_000, at_work):
        assert looked.wait(60)
    assert told[:2] == [0, 400_000]
    assert con.settings[-1] == "SET enable_progress_bar = false"
    few: list[int] = []
    with file.counting(cast(file.Connection, con), 10, few.append):
        pass
    assert few == [0] and len(con.settings) == 2
