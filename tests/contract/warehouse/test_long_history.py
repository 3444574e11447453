"""What a load fetches of the ledger does not grow with the table's history, and finds what a look at every row would."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.clean.choose import Removal
from floodmark.clean.remove import due_files
from floodmark.load.duckdb.file import DatabaseFile
from floodmark.load.pending import ledger_for, pending
from floodmark.load.protocol import LEDGER, Warehouse
from floodmark.load.redshift.socket import SocketSession
from floodmark.log.document import condense
from floodmark.log.fold import State
from floodmark.log.log import Log, draft
from floodmark.model.commit import Batch, Claim, Clean, Commit, DataFile, Open, Reset
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.ledger import Ledger, Part
from floodmark.model.types import file_schema
from floodmark.store.store import Store
from tests.support.pending_loads import Done, load_pending
from tests.support.samples import RUN, TABLE
from tests.support.warehouse_loads import Place, RedshiftPlace

KEPT = 10  # commits and files that a state names here


class Long:
    """A log whose commits were loaded long ago; only the ledger knows."""

    def __init__(self, place: Place, store: Store, table: Any = TABLE) -> None:
        self.place, self.store, self.table = place, store, table
        self.log = Log(store, table.name)
        self.state = self.log.append(State(table.name), draft(State(table.name), Open, RUN))
        self.add(Claim, table=table, purpose="sync")

    def add(self, kind: type[Commit], **fields: Any) -> State:
        self.state = self.log.append(self.state, draft(self.state, kind, RUN, **fields))
        return self.state

    def batch(self, key: int) -> None:
        """A commit with a file that is there."""
        body = io.BytesIO()
        pq.write_table(
            pa.table({"id": [key], "update_at": [key * 10**6]}, schema=file_schema(self.table)), body
        )
        data, path = body.getvalue(), f"data/{self.table.name}/{key}.parquet"
        etag = self.store.put(path, data)
        file = DataFile(path, 1, len(data), hashlib.sha256(data).hexdigest(), 0, etag=etag)
        self.add(Batch, files=(file,), schema=self.table.fingerprint)

    def loaded(self, count: int) -> None:
        """This many more commits: the first is really loaded, the others have only ledger rows."""
        self.batch(1)
        self.load()
        first = self.state.n + 1
        file = DataFile(f"data/{self.table.name}/gone.parquet", 1, 100, "00", 0)
        for _ in range(count - 1):
            self.add(Batch, files=(file,), schema=self.table.fingerprint)
        columns = "log_id, epoch, n, digest, pipeline_id, source_table, target, run, rows, files, loaded_at"
        rows = [
            f"('{self.state.log}', 0, {c.n}, '{d}', 'p', '{self.table.name}', 'orders', 'r', 1, 1, "
            f"'2025-01-01 00:00:{c.n % 60:02}.5')"
            for c, d in self.log.commits(range(first, self.state.n + 1))
        ]
        self.place.run(f"INSERT INTO {LEDGER} ({columns}) VALUES {', '.join(rows)}")

    def load(self, warehouse: Warehouse | None = None) -> Done:
        opened = warehouse or self.place.open()
        return load_pending(opened, self.log, self.state, RUN)

    def waiting(self) -> list[int]:
        ledger = ledger_for(self.place.open(), self.state, self.table.target)
        return [d.n for d in pending(self.log.data(self.state, ledger.rows), ledger, self.state.load_epoch)]


@pytest.fixture
def long(place: Place, store: Store, monkeypatch: pytest.MonkeyPatch) -> Long:
    monkeypatch.setattr("floodmark.log.fold.RECENT_COMMITS", KEPT)
    monkeypatch.setattr("floodmark.log.fold.RECENT_FILES", KEPT)
    monkeypatch.setattr("floodmark.load.protocol.FEW", 2 * KEPT)
    return Long(place, store)


class Fetched:
    """Rows and bytes that were fetched of the ledger."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = self.bytes = 0
        run, enter = SocketSession._run, DatabaseFile._enter

        def redshift(session: Any, sql: str, *more: Any, **named: Any) -> Any:
            return self.seen(sql, run(session, sql, *more, **named))

        monkeypatch.setattr(SocketSession, "_run", redshift)
        monkeypatch.setattr(DatabaseFile, "_enter", lambda *args: _Counted(enter(*args), self.seen))

    def seen(self, sql: str, rows: Any) -> Any:
        if LEDGER in sql and rows:
            self.rows += len(rows)
            self.bytes += sum(len(str(value)) for row in rows for value in row)
        return rows


class _Counted:
    """A connection to DuckDB whose answers are counted."""

    def __init__(self, con: Any, seen: Callable[[str, Any], Any]) -> None:
        self._con, self._seen, self._sql = con, seen, ""

    def execute(self, sql: str, *values: Any) -> _Counted:
        self._sql = sql
        self._con.execute(sql, *values)
        return self

    def fetchall(self) -> Any:
        return self._seen(self._sql, self._con.fetchall())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._con, name)


def test_a_load_fetches_no_more_of_the_ledger_after_a_long_history_than_after_a_short_one(
    long: Long, monkeypatch: pytest.MonkeyPatch
) -> None:
    long.loaded(10 * KEPT)
    fetched: list[tuple[int, int]] = []
    for more in (0, 300):
        if more:
            long.loaded(more)
        long.batch(2)
        with monkeypatch.context() as patch:
            counted = Fetched(patch)
            done = long.load()
            fetched.append((counted.rows, counted.bytes))
        assert done.commits == (long.state.n,) and done.ledger.part is not None
        assert condense(long.state, done.ledger.rows) == condense(long.state, _whole(long))
        assert long.load().commits == ()
    (rows, size), (later, later_size) = fetched
    assert rows == later < 10 * KEPT  # the catalog's rows come with it
    assert later_size < size + 100  # the numbers have a digit more
    assert condense(long.state, _whole(long)).commits == 10 * KEPT + 302


def _whole(long: Long) -> Any:
    return long.place.open().ledger(long.state.log, "orders").rows


FAULTS = {
    "a row was deleted": ("DELETE FROM {ledger} WHERE n = 9", [9]),
    "a row is of another commit with that number": (
        "UPDATE {ledger} SET digest = '{other}' WHERE n = 9",
        [9],
    ),
    "a row's digest is none": ("UPDATE {ledger} SET digest = 'none' WHERE n = 9", [9]),
    "a row is of another epoch": ("UPDATE {ledger} SET epoch = 7 WHERE n = 9", [9]),
    "rows are of another log": ("UPDATE {ledger} SET log_id = 'other' WHERE n IN (9, 30)", [9, 30]),
    "one commit's row stands for another": (
        "UPDATE {ledger} SET n = 9, digest = '{other}' WHERE n = 10",
        [10],
    ),
    "the newest rows are gone: a backup": ("DELETE FROM {ledger} WHERE n > 20", list(range(21, 42))),
    "old rows were cleared away": ("DELETE FROM {ledger} WHERE n < 15", list(range(2, 15))),
    "all rows are gone": ("DELETE FROM {ledger}", list(range(2, 42))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_among_summed_rows_are_found(long: Long, fault: str) -> None:
    long.loaded(4 * KEPT)
    assert long.waiting() == [] and long.state.data.older.upto == 31
    statement, lacking = FAULTS[fault]
    long.place.run(statement.format(ledger=LEDGER, other="ab" * 32))
    assert long.waiting() == lacking
    found = ledger_for(long.place.open(), long.state, "orders")
    assert found.rows == _whole(long) and (found.part is None or min(lacking) > 31)


def test_a_row_of_an_unknown_commit_is_found_among_old_ones(long: Long) -> None:
    long.loaded(4 * KEPT)
    long.place.run(
        f"INSERT INTO {LEDGER} SELECT log_id, epoch, n, '{'ab' * 32}', pipeline_id, source_table, target, run, "
        f"rows, files, loaded_at FROM {LEDGER} WHERE n = 9"
    )
    assert long.waiting() == [] and long.load().findings[0].kind == "ledger_ahead"


def test_a_duplicate_row_changes_nothing_and_is_not_mistaken_for_another(
    redshift_place: RedshiftPlace, long: Long
) -> None:
    if long.place is not redshift_place:
        return  # DuckDB refuses it
    long.loaded(4 * KEPT)
    long.place.run(f"DELETE FROM {LEDGER} WHERE n = 10")
    long.place.run(f"INSERT INTO {LEDGER} SELECT * FROM {LEDGER} WHERE n = 9")
    assert long.waiting() == [10]


def test_rows_that_went_into_another_target_are_found_among_old_ones(long: Long) -> None:
    long.loaded(4 * KEPT)
    long.place.run(f"UPDATE {LEDGER} SET target = 'elsewhere' WHERE n = 9")
    long.batch(2)
    with pytest.raises(ConfigError, match="was loaded into elsewhere so far"):
        long.load()


def test_a_target_that_is_gone_is_noticed_by_the_sums_of_its_loads(long: Long) -> None:
    long.loaded(4 * KEPT)
    long.place.run("DROP TABLE orders")
    long.batch(2)
    with pytest.raises(DataError, match="is gone"):
        long.load()


def test_sums_tell_apart_epochs_targets_and_what_was_superseded(long: Long) -> None:
    long.loaded(2 * KEPT)
    log = long.state.log
    long.place.run(f"UPDATE {LEDGER} SET epoch = 1 WHERE n = 2")
    long.place.run(f"UPDATE {LEDGER} SET target = 'elsewhere' WHERE n = 3")
    digests = {row.n: int(row.digest, 16) for row in _whole(long)}
    part = Part(0, 15, superseded=5, cleaned=((0, 8), (11, 11)))
    found = long.place.open().ledger(log, "orders", part)
    assert found.commits == 2 * KEPT and found.part == part
    assert [r.n for r in found.rows if not r.summed] == list(range(16, 22))
    sums = {(r.epoch, r.target, r.n): r for r in found.rows if r.summed}
    assert {key: (r.commits, r.rows, r.files) for key, r in sums.items()} == {
        (-1, "orders", 2): (1, 1, 1),
        (0, "elsewhere", 3): (1, 1, 1),
        (0, "orders", 5): (2, 2, 2),
        (0, "orders", 15): (10, 10, 10),
    }
    last = sums[0, "orders", 15]
    assert int(last.digest, 16) == sum(digests[n] for n in range(6, 16)) % 16**15
    assert (last.loaded_at, last.oldest) == ("2025-01-01T00:00:15.500000Z", "2025-01-01T00:00:09.500000Z")
    assert sums[0, "orders", 5].oldest == ""
    unproven = long.place.open().ledger(log, "orders", replace(part, proven=False))
    assert {r.digest for r in unproven.rows if r.summed} == {""} and unproven.commits == 2 * KEPT


DAY = 86_400.0


def due(long: Long, state: State) -> tuple[Removal, Ledger]:
    """The files that are due for removal after a load if they are kept for a day."""
    ledger = ledger_for(long.place.open(), state, "orders")
    return due_files(long.place.open(), long.log, state, ledger, DAY, datetime.now(UTC))


def test_files_are_due_even_if_their_loads_are_only_summed(
    long: Long, monkeypatch: pytest.MonkeyPatch
) -> None:
    long.loaded(4 * KEPT)
    removal, _ = due(long, long.state)
    assert len(removal.files) == 39  # the first was loaded just now
    state = long.add(Clean, clean=removal.clean)
    assert state.data.cleaned == ((3, 41),)
    # What was loaded since is not due, and that is known without another query.
    ledger = ledger_for(long.place.open(), state, "orders")
    counted = Fetched(monkeypatch)
    removal, _ = due_files(long.place.open(), long.log, state, ledger, DAY, datetime.now(UTC))
    assert counted.rows == 0 and removal.empty


def test_files_that_another_run_makes_load_again_are_not_due(long: Long) -> None:
    """It has reset the load stage, and loaded the newest commit again."""
    long.loaded(4 * KEPT)
    state = long.add(Reset, stages=("load",))
    long.place.run(f"UPDATE {LEDGER} SET epoch = {state.load_epoch} WHERE n = 41")
    removal, ledger = due(long, state)
    assert condense(state, ledger.rows) == condense(state, _whole(long))
    assert all(first > 40 for first, _ in removal.clean.whole)
