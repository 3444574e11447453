"""Whole loads, with a real log and a real warehouse."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.config.load import StoreSpec
from floodmark.load.duckdb.warehouse import DuckDB
from floodmark.log.fold import State
from floodmark.log.log import Log, draft
from floodmark.model.commit import Batch, Claim, Commit, DataFile, Deletes, LoadAs, Open, Reset, Set
from floodmark.model.errors import ConflictError, DataError
from floodmark.model.table import Column, Table
from floodmark.model.types import file_schema
from floodmark.store.store import Store
from tests.support.described import changed
from tests.support.pending_loads import Done, load_pending
from tests.support.samples import TABLE, at, numbers, window

RUN = "20250819_153000_ab12"


class Bench:
    """A log in a folder, a DuckDB file, and loads between them."""

    def __init__(self, folder: Path, table: Table = TABLE) -> None:
        self.folder, self.table = folder, table
        self.store = Store(StoreSpec(url=str(folder / "lake")))
        self.log = Log(self.store, table.name)
        self.warehouse = DuckDB(folder / "w.duckdb")
        self.state = self.log.append(State(table.name), draft(State(table.name), Open, RUN))
        self.claim(table)
        self.files = 0

    def add(self, kind: type[Commit], **fields: Any) -> State:
        self.state = self.log.append(self.state, draft(self.state, kind, RUN, **fields))
        return self.state

    def claim(self, table: Table) -> None:
        self.table = table
        self.add(Claim, table=table, purpose="sync")

    def batch(
        self, *ids: int, load_as: LoadAs = "merge", second: int = 0, created: str = "", **more: Any
    ) -> int:
        """A commit with a row for each id."""
        moment = datetime(2025, 1, 1, 0, 0, second, tzinfo=UTC)
        rows = [{"id": n, "update_at": moment} for n in ids]
        names = file_schema(self.table).names
        return self._commit(Batch, rows, names, load_as=load_as, created=created, **more)

    def _commit(
        self,
        kind: type[Commit],
        rows: list[dict[str, Any]],
        names: Sequence[str],
        *,
        load_as: LoadAs,
        created: str = "",
        **more: Any,
    ) -> int:
        schema = pa.schema([field for field in file_schema(self.table) if field.name in names])
        body = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), body)
        content, self.files = body.getvalue(), self.files + 1
        path = f"data/{self.table.name}/{self.files}.parquet"
        self.store.put(path, content)
        digest = hashlib.sha256(content).hexdigest()
        file = DataFile(path, len(rows), len(content), digest, 0, created_at=created)
        return self.add(kind, files=(file,), load_as=load_as, schema=self.table.fingerprint, **more).n

    def deletes(self, *ids: int) -> int:
        """A commit of the keys of deleted rows."""
        return self._commit(Deletes, [{"id": n} for n in ids], TABLE.key, load_as="delete")

    def load(self, **more: Any) -> Done:
        return load_pending(self.warehouse, self.log, self.state, RUN, **more)

    def rows(self, columns: str = "id, second(update_at)") -> list[tuple[Any, ...]]:
        with duckdb.connect(self.folder / "w.duckdb") as con:
            return con.execute(f"SELECT {columns} FROM {self.table.target} ORDER BY ALL").fetchall()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_everything_pending_loads_and_then_nothing_does(bench: Bench) -> None:
    bench.batch(1, 2)
    bench.batch(2, 3, second=5)
    done = bench.load()
    assert (done.commits, done.rows, done.files) == ((2, 3), 4, 2)
    assert len(done.outcomes) == 1, "in one transaction"
    assert bench.rows() == [(1, 0), (2, 5), (3, 5)]
    assert done.ledger.rows == bench.warehouse.ledger(bench.state.log, "orders").rows
    assert bench.load().commits == () and bench.load(ledger=done.ledger).commits == ()


def test_commits_before_a_change_of_the_table_load_as_they_were_written(bench: Bench) -> None:
    bench.batch(1)
    note = Column("note", "int(11)", "int")
    bench.claim(changed(TABLE, columns=(*TABLE.columns, note)))
    bench.batch(2)
    assert bench.load().commits == (2, 4)
    assert bench.rows("id, note") == [(1, None), (2, None)]


def test_a_limit_leaves_the_rest_pending(bench: Bench) -> None:
    for i in range(4):
        bench.batch(i)
    assert bench.load(limit=2).commits == (2, 3)
    assert bench.load().commits == (4, 5)


def test_a_manual_watermark_loads_newer_files_first_and_the_later_read_still_wins(bench: Bench) -> None:
    bench.batch(1, 2, second=1, created="2025-08-01T00:00:00.000000Z")
    bench.batch(1, second=9, created="2025-08-02T00:00:00.000000Z")
    bench.add(Set, position=("2025-08-01 12:00:00",))
    done = bench.load(manual="2025-08-01 12:00:00")
    assert (done.commits, done.choice.found, done.files) == ((3,), 2, 1)
    assert numbers(done.choice.skipped) == [2]
    assert bench.load().commits == (2, 3)
    assert bench.rows() == [(1, 9), (2, 1)]


def test_superseded_files_load_only_by_a_manual_watermark(bench: Bench) -> None:
    bench.batch(1)
    bench.load()
    bench.add(Reset, stages=("extract", "load"))
    assert bench.load().commits == ()
    assert bench.load(manual="2000-01-01").commits == (2,)


def test_a_reset_that_died_before_it_reached_the_warehouse_is_finished_by_the_load(bench: Bench) -> None:
    bench.batch(1)
    bench.load()
    bench.add(Reset, stages=("load",))
    done = bench.load()
    assert done.commits == (2,) and done.ledger.epoch == bench.state.load_epoch == 3
    assert bench.load().commits == () and bench.rows("id") == [(1,)]


def test_a_load_with_an_older_state_than_the_reset_stops(bench: Bench) -> None:
    bench.batch(1)
    before = bench.state
    bench.add(Reset, stages=("load",))
    bench.load()
    bench.state = replace(before, n=9)
    with pytest.raises(ConflictError, match="reset"):
        bench.load()


def test_a_warehouse_that_was_set_back_gets_the_missing_commits_again(bench: Bench, tmp_path: Path) -> None:
    bench.batch(1)
    bench.load()
    backup = (tmp_path / "w.duckdb").read_bytes()
    bench.batch(2)
    bench.load()
    (tmp_path / "w.duckdb").write_bytes(backup)
    assert bench.load().commits == (3,)
    assert bench.rows("id") == [(1,), (2,)]


def ahead(bench: Bench, tmp_path: Path) -> None:
    """Loads two commits, then loses the second from the log and writes another in its place."""
    load_as: LoadAs = "merge" if bench.table.key else "insert"
    bench.batch(1, load_as=load_as)
    kept = bench.state
    bench.batch(1, 2, second=5, load_as=load_as)
    bench.load()
    (tmp_path / "lake" / "commits" / bench.table.name / f"{bench.state.n:020d}.json").unlink()
    bench.state = kept
    bench.batch(1, 3, second=7, load_as=load_as)


def test_a_ledger_ahead_of_the_log_is_a_finding_if_rows_merge_by_key(bench: Bench, tmp_path: Path) -> None:
    ahead(bench, tmp_path)
    done = bench.load()
    assert done.commits == (3,) and [f.kind for f in done.findings] == ["ledger_ahead"]
    assert bench.rows() == [(1, 7), (2, 5), (3, 7)]
    assert bench.load().findings == ()  # reported once: the ledger matches the log again


def test_a_ledger_ahead_of_the_log_is_refused_if_rows_would_be_duplicated(tmp_path: Path) -> None:
    bench = Bench(tmp_path, changed(TABLE, key=(), mode="append"))
    ahead(bench, tmp_path)
    with pytest.raises(DataError, match="without a key"):
        bench.load()
    assert bench.load(adopt=True).commits == (3,)
    assert bench.load().findings == ()


def test_an_outdated_state_is_a_conflict(bench: Bench) -> None:
    bench.batch(1)
    stale = bench.state
    bench.batch(2)
    bench.load()
    bench.state = stale
    with pytest.raises(ConflictError, match="another run"):
        bench.load()


def test_keys_that_are_deleted_between_two_schemas_bring_no_columns(bench: Bench) -> None:
    bench.batch(1, 2)
    bench.claim(changed(TABLE, columns=(*TABLE.columns, Column("n", "int(11)", "int"))))
    bench.deletes(1)
    bench.batch(3)
    assert numbers(bench.load().choice.commits) == [2, 4, 5]
    assert bench.rows("id, n") == [(2, None), (3, None)]


@pytest.mark.parametrize(
    ("mode", "said"),
    [("append", "orders is empty"), ("upsert", "orders has 0 rows, but the last load left 1")],
)
def test_only_in_mode_upsert_may_rows_that_left_where_have_emptied_the_target(
    tmp_path: Path, mode: str, said: str
) -> None:
    bench = Bench(tmp_path, changed(TABLE, mode=mode, where="id > 0"))
    way: LoadAs = "insert" if mode == "append" else "merge"
    bench.batch(1, load_as=way)
    bench.load()
    with duckdb.connect(str(tmp_path / "w.duckdb")) as target:
        target.execute("DELETE FROM orders")
    bench.add(Claim, table=bench.table, purpose="sync", window=window("w", None, (), at(5)))
    bench.batch(2, load_as=way, window_id="w", slices=(0,))
    with pytest.raises(DataError, match=said):
        bench.load()
