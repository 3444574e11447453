"""One open DuckDB file, shared by several users at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

from floodmark.load.duckdb import file as duckdb_file
from floodmark.load.duckdb.file import THREAD_ROWS, DatabaseFile, Volume
from floodmark.model.errors import TransientError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with duckdb.connect(tmp_path / "w.duckdb") as con:
        con.execute("CREATE TABLE t AS SELECT 1 AS a")
    return tmp_path / "w.duckdb"


def lingering(path: Path) -> DatabaseFile:
    return DatabaseFile(path, memory=1_000_000_000, lock_seconds=0.2, linger=30)


def free(path: Path) -> bool:
    """Whether somebody with other settings can open the file: in one process DuckDB refuses that as a lock would."""
    try:
        duckdb.connect(path, config={"threads": 1}).close()
    except duckdb.Error:
        return False
    return True


def rows(file: DatabaseFile) -> int:
    with file.reading() as con:
        assert con is not None
        found = con.execute("SELECT count(*) FROM t").fetchone()
    assert found is not None
    return int(found[0])


def test_a_file_is_released_after_every_use_unless_it_lingers(path: Path) -> None:
    file = DatabaseFile(path, memory=1_000_000_000, lock_seconds=0.2)
    assert rows(file) == 1
    assert free(path)


def test_a_lingering_file_is_released_on_close_and_after_a_while(path: Path) -> None:
    file = lingering(path)
    rows(file)
    assert not free(path)
    file.close()
    assert free(path)
    file = DatabaseFile(path, memory=1_000_000_000, lock_seconds=0.2, linger=0.05)
    rows(file)
    while not free(path):
        threading.Event().wait(0.02)


def test_a_read_beside_a_write_sees_what_was_committed(path: Path) -> None:
    file = lingering(path)
    with ThreadPoolExecutor(1) as pool:
        with file.writing() as con:
            con.execute("BEGIN")
            con.execute("INSERT INTO t VALUES (2)")
            assert pool.submit(rows, file).result(20) == 1
            con.execute("COMMIT")
        assert pool.submit(rows, file).result(20) == 2
    file.close()


def test_uncommitted_work_is_rolled_back_although_the_file_lingers(path: Path) -> None:
    file = lingering(path)
    with file.writing() as con:
        con.execute("BEGIN")
        con.execute("INSERT INTO t VALUES (2)")
    assert rows(file) == 1
    file.close()


def test_after_a_failure_the_file_is_reopened(path: Path) -> None:
    file = lingering(path)
    with pytest.raises(RuntimeError), file.writing() as con:
        con.execute("BEGIN")
        con.execute("INSERT INTO t VALUES (2)")
        raise RuntimeError
    assert free(path)
    assert rows(file) == 1
    file.close()


def test_a_file_that_was_replaced_while_it_lingered_is_the_one_that_is_used(path: Path) -> None:
    file = lingering(path)
    rows(file)
    other = path.with_name("other.duckdb")
    with duckdb.connect(other) as con:
        con.execute("CREATE TABLE t AS SELECT * FROM range(7)")
    other.replace(path)
    assert rows(file) == 7
    path.unlink()
    with file.writing() as con:
        con.execute("CREATE TABLE t AS SELECT * FROM range(3)")
    file.close()
    with duckdb.connect(path) as con:
        assert con.execute("SELECT count(*) FROM t").fetchone() == (3,)


def test_a_writer_waits_for_readers_that_opened_the_file_to_read(path: Path) -> None:
    file = lingering(path)
    wrote = threading.Event()

    def write() -> None:
        with file.writing() as con:
            con.execute("INSERT INTO t VALUES (2)")
        wrote.set()

    with ThreadPoolExecutor(1) as pool:
        with file.reading():
            done = pool.submit(write)
            assert not wrote.wait(0.2)
        done.result(20)
    assert rows(file) == 2
    file.close()


def test_a_file_held_by_another_process_is_a_transient_error(path: Path) -> None:
    file = DatabaseFile(path, memory=1_000_000_000, lock_seconds=0.2)
    with duckdb.connect(path, config={"threads": 1}), pytest.raises(TransientError), file.writing():
        pass


def test_a_file_in_constant_use_stays_open_a_while_if_nobody_is_seen_waiting(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_file, "HOLD", 0.0)
    file = lingering(path)
    rows(file)
    rows(file)
    assert not free(path)
    monkeypatch.setattr(duckdb_file, "HOLD_AT_MOST", 0.0)
    rows(file)
    assert free(path)
    file.close()


def test_a_process_that_waits_for_a_file_gets_it_before_the_one_that_just_released_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_file, "HOLD", 0.1)
    monkeypatch.setattr(duckdb_file, "TRY_EVERY", 0.7)  # a machine so busy that a waiting process rarely runs
    busy, ended = lingering(path), threading.Event()
    busy._lock_seconds = 20

    def ask_on_and_on() -> None:
        while not ended.is_set():
            rows(busy)

    waiting = DatabaseFile(path, memory=1_000_000_000, lock_seconds=4)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_on_and_on)
        try:
            for _ in range(2):
                with waiting.writing() as con:
                    con.execute("INSERT INTO t VALUES (2)")
        finally:
            ended.set()
        asking.result(20)
    assert rows(busy) == 3
    busy.close()


def test_a_process_that_waits_for_a_file_gets_it_although_its_uses_overlap(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_file, "HOLD", 0.1)
    busy, ended = lingering(path), threading.Event()
    busy._lock_seconds = 20

    def ask_on_and_on(first: float) -> None:
        time.sleep(first)
        while not ended.is_set():
            with busy.reading():
                rows(busy)  # a use within a use never waits for itself
                time.sleep(0.1)

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask_on_and_on, first) for first in (0, 0.05)]
        time.sleep(0.3)
        try:
            with DatabaseFile(path, memory=1_000_000_000, lock_seconds=3).writing() as con:
                con.execute("INSERT INTO t VALUES (2)")
        finally:
            ended.set()
        for each in asking:
            each.result(20)
    busy.close()


def test_a_file_is_not_waited_for_because_its_neighbour_is_busy_and_nothing_is_left_behind(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    neighbour = path.with_name("other.duckdb")
    waiting = DatabaseFile(neighbour, memory=1_000_000_000, lock_seconds=2)

    def wait() -> None:
        with pytest.raises(TransientError), waiting.writing():
            pass

    with duckdb.connect(neighbour, config={"threads": 1}), ThreadPoolExecutor(1) as pool:
        waits = pool.submit(wait)
        time.sleep(0.5)
        began = time.monotonic()
        assert rows(DatabaseFile(path, memory=1_000_000_000, lock_seconds=5)) == 1
        assert time.monotonic() - began < 1
        [door] = (tmp_path / "cache" / "floodmark").iterdir()
        assert door.stat().st_mode & 0o777 == 0o600
        waits.result(20)
    assert not any((tmp_path / "cache" / "floodmark").iterdir())
    assert sorted(tmp_path.glob(".*")) == []


def threads(con: duckdb.DuckDBPyConnection) -> int:
    found = con.execute("SELECT current_setting('threads')").fetchone()
    assert found is not None
    return int(found[0])


def test_few_rows_are_inserted_by_one_thread_and_queries_use_all_of_them_again(path: Path) -> None:
    file = lingering(path)
    with file.writing() as con:
        every = threads(con)
        with file.threads_for(con, 2 * THREAD_ROWS - 1):
            assert threads(con) == 1
        with file.threads_for(con, 2 * THREAD_ROWS):
            assert threads(con) == min(2, every)
        with file.threads_for(con, 1000 * every * THREAD_ROWS):
            assert threads(con) == every
    with file.reading() as reader:
        assert reader is not None
        assert threads(reader) == every
    file.close()


def test_row_groups_of_a_file_are_merged_unless_it_has_a_table_of_very_wide_rows(path: Path) -> None:
    file = DatabaseFile(path, memory=1_000_000_000, lock_seconds=0.2)

    def merges_after(load: Volume | None) -> bool:
        with file.writing() as con:
            if load is not None:
                file.set_apart(con, "main.t", load)
        with file.writing() as con:
            return con.execute("SELECT current_setting('max_vacuum_tasks')").fetchone() != (0,)

    # One long row among short ones, or alone in a small load; many rows that are not wide enough.
    assert merges_after(Volume(rows=2_000, bytes=20_000_000, widest=5_000_000))
    assert merges_after(Volume(rows=1, bytes=5_000_000, widest=5_000_000))
    assert merges_after(Volume(rows=1_000, bytes=100_000_000, widest=100_000))
    assert not merges_after(Volume(rows=100, bytes=100_000_000, widest=1_000_000))
    with file.writing() as con:
        con.execute("DROP TABLE t")
    assert merges_after(None)


def test_no_progress_bar_of_duckdb_gets_into_the_output_of_a_notebook(path: Path) -> None:
    """DuckDB takes `python -c` for interactive use, as it does notebooks, and turns its bar on."""
    program = (
        "from pathlib import Path; from floodmark.load.duckdb.file import DatabaseFile\n"
        f"with DatabaseFile(Path({str(path)!r}), memory=10**9, lock_seconds=1).reading() as con:\n"
        "    print(con.execute(\"SELECT current_setting('enable_progress_bar')\").fetchone()[0])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
