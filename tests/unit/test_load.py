"""Pending is the log minus the ledger, in the log's order, and nothing else."""

from __future__ import annotations

import hashlib
import io
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.errors import ConflictError, DataError
from floodmark.load import (
    Choice,
    Loaded,
    again,
    choose,
    created_after,
    first_rows,
    groups,
    ledger_for,
    load_pending,
    lost,
    pending,
)
from floodmark.model import Clean, Column, Commit, DataFile, GivenUp, LoadAs, Table
from floodmark.state import DataCommit, Log, State, draft
from floodmark.state.fold import data_commit, sum_digests
from floodmark.state.loaded import SUMMED_DIGITS, accounts_for_older, condense
from floodmark.state.spans import within
from floodmark.store import Store, StoreSpec
from floodmark.testing.samples import TABLE, History, files, window
from floodmark.testing.samples import at as position
from floodmark.types import file_schema
from floodmark.warehouse import Ledger, LedgerRow, Part
from floodmark.warehouse.columns import TargetColumn, Wanted, fits
from floodmark.warehouse.duckdb import DuckDB
from floodmark.warehouse.duckdb_ddl import changes

RUN = "20250819_153000_ab12"


def data(n: int, rows: int = 10, load_as: LoadAs = "merge", schema: str = "s", **more: Any) -> DataCommit:
    made = DataCommit(n, f"d{n}", rows, 1, rows * 10, "2025-01-01T00:00:00.000000Z", load_as, schema, 1)
    return made._replace(**more)


def ledger(*numbers: int, epoch: int = 0) -> Ledger:
    return Ledger(epoch, tuple(LedgerRow(n, f"d{n}", epoch, 10, 1, "", "orders") for n in numbers))


def numbers(commits: tuple[DataCommit, ...]) -> list[int]:
    return [d.n for d in commits]


# what is pending


def test_pending_is_what_the_ledger_lacks_by_number_and_digest() -> None:
    commits = (data(2), data(3), data(4, digest="another"))
    assert numbers(pending(commits, ledger(2, 4), 0)) == [3, 4]


def test_rows_of_another_epoch_do_not_count_as_loaded() -> None:
    assert numbers(pending((data(2), data(3)), ledger(2, 3, epoch=0), 9)) == [2, 3]


def test_superseded_commits_load_only_when_they_are_asked_for() -> None:
    commits = (data(2, superseded=True), data(3))
    assert numbers(pending(commits, ledger(), 0)) == [3]
    assert numbers(pending(commits, ledger(), 0, superseded=True)) == [2, 3]


def test_a_limit_takes_whole_commits_until_it_is_reached() -> None:
    commits = (data(2, 10), data(3, 10), data(4, 10))
    assert numbers(first_rows(commits, 1)) == [2]
    assert numbers(first_rows(commits, 10)) == [2]
    assert numbers(first_rows(commits, 11)) == [2, 3]
    assert numbers(first_rows(commits, None)) == [2, 3, 4]


def commit_at(n: int, *created: str) -> Commit:
    made = tuple(DataFile(f"f{i}", 1, 1, "", i, created_at=text) for i, text in enumerate(created))
    return Commit(n, "", "", "batch", "s.t", "", "2025-08-14T17:00:00.000000Z", "", files=made)


def test_a_manual_watermark_lets_commits_through_whose_files_are_all_newer() -> None:
    commits = [
        commit_at(2, "2025-08-14T16:00:00.000000Z"),
        commit_at(3, "2025-08-14T16:00:00.000001Z", "2025-08-14T16:30:00.000000Z"),
        commit_at(4, "2025-08-14T15:59:59.000000Z", "2025-08-14T16:30:00.000000Z"),
        commit_at(5, ""),
    ]
    for moment in ("2025-08-14 16:00:00", "2025-08-14T16:00:00", "2025-08-14T16:00:00Z"):
        assert created_after(commits, moment) == {3, 5}
    assert created_after(commits, "2025-08-14") == {2, 3, 4, 5}


# groups


def test_commits_that_look_alike_and_go_in_alike_are_one_group() -> None:
    commits = [
        data(2),
        data(3),
        data(4, schema="t"),
        data(5, schema="t", load_as="delete"),
        data(6, schema="t"),
    ]
    assert [numbers(g) for g in groups(commits)] == [[2, 3], [4], [5], [6]]


def test_groups_are_bounded_but_a_commit_is_never_parted() -> None:
    commits = [data(2, 40), data(3, 40), data(4, 40), data(5, 500), data(6, 1)]
    assert [numbers(g) for g in groups(commits, max_rows=100)] == [[2, 3], [4], [5], [6]]
    assert [numbers(g) for g in groups(commits, max_bytes=900)] == [[2, 3], [4], [5], [6]]
    assert groups([]) == ()


def test_a_snapshot_takes_everything_before_it_into_its_group() -> None:
    commits = [
        data(2),
        data(3, 10**9, "replace", "x"),
        data(4, load_as="insert"),
        data(5, load_as="replace"),
        data(6),
    ]
    assert [numbers(g) for g in groups(commits)] == [[2, 3, 4, 5], [6]]


# order


def test_loaded_commits_after_a_late_one_load_again() -> None:
    commits = (data(2), data(3), data(4), data(5))
    assert numbers(again((data(3),), commits, ledger(2, 4), 0, keyed=True)) == [4]
    assert again((), commits, ledger(2, 4), 0, keyed=True) == ()


def test_rows_that_are_only_added_never_load_again() -> None:
    commits = tuple(data(n, load_as="insert") for n in (2, 3))
    assert again(commits[:1], commits, ledger(3), 0, keyed=False) == ()


def history() -> History:
    made = History()
    made.claim(window=window("w", None, [position(1), position(2)], position(3)))
    for i in range(3):
        made.add(
            "batch", window_id="w", slices=(i,), files=files(10, prefix=str(i)), schema=TABLE.fingerprint
        )
    return made


def loaded(made: History, *which: int) -> Ledger:
    rows = tuple(
        LedgerRow(r.n, r.digest, r.epoch, r.rows, r.files, r.loaded_at, "orders") for r in made.ledger(*which)
    )
    return Ledger(made.state.load_epoch, rows)


def test_what_was_asked_for_as_sums_is_never_taken_for_pending() -> None:
    summed = Ledger(0, (LedgerRow(3, "0f", 0, 20, 2, "", "orders", 2, True),), part=Part(0, 3))
    assert numbers(pending((data(4),), summed, 0)) == [4]
    with pytest.raises(ValueError, match="sums only"):
        pending((data(3), data(4)), summed, 0)


class Asked:
    """A warehouse that is only asked for its ledger."""

    def __init__(self, whole: Ledger) -> None:
        self.whole, self.parts = whole, list[Part | None]()

    def ledger(self, log: str, target: str, part: Part | None = None) -> Ledger:
        self.parts.append(part)
        if part is None:
            return self.whole
        listed = [r for r in self.whole.rows if r.epoch == part.epoch and r.n > part.after]
        groups: dict[tuple[int, bool], list[LedgerRow]] = {}
        for r in self.whole.rows:
            if r not in listed:
                key = (r.epoch if r.epoch == part.epoch else -1, r.n > part.superseded)
                groups.setdefault(key, []).append(r)
        sums = [
            LedgerRow(
                max(r.n for r in some), sum_digests(r.digest for r in some)[-SUMMED_DIGITS:], epoch,
                sum(r.rows for r in some), sum(r.files for r in some), max(r.loaded_at for r in some), "orders",
                len(some), True,
            )
            for (epoch, _), some in groups.items()
        ]  # fmt: skip
        return replace(self.whole, rows=(*sums, *listed), part=part)


@pytest.mark.parametrize("seed", range(300))
def test_a_part_of_the_ledger_and_sums_say_what_all_of_it_says(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.state.fold.RECENT_COMMITS", 3)
    monkeypatch.setattr("floodmark.state.fold.RECENT_FILES", 5)
    chance = random.Random(seed)
    made = History()
    made.claim()
    rows: list[LedgerRow] = []

    def load(missing: float) -> None:
        for r in made.ledger():
            row = LedgerRow(r.n, r.digest, r.epoch, r.rows, r.files, f"{r.n:04}", "orders")
            old = r.n < made.state.superseded and chance.random() < 0.9
            if row not in rows and not old and chance.random() > missing:
                rows.append(row)

    for _ in range(chance.randint(2, 25)):
        match chance.choice(["batch"] * 12 + ["claim", "load", "both", "clean"]):
            case "batch":
                made.add("batch", files=files(chance.randint(1, 9)), schema="s")
            case "claim":
                made.claim()
            case "clean" if waiting := pending(
                made.state.live, Ledger(0, tuple(rows)), made.state.load_epoch
            ):
                gone = chance.choice(waiting)
                given_up = (GivenUp(gone.n, gone.digest, gone.rows, gone.files, gone.bytes),)
                made.add("clean", clean=Clean(dropped=((gone.n, gone.n),), given_up=given_up))
            case "load" | "both" as which if chance.random() < 0.4:
                made.add("reset", stages=("load",) if which == "load" else ("extract", "load"))
        if chance.random() < 0.8:
            load(0.0 if seed % 2 else 0.1)
    if seed % 3:
        load(0.0)
    state, asked = made.state, Asked(Ledger(0, tuple(rows)))
    found = ledger_for(asked, state, "orders")  # type: ignore[arg-type]
    assert condense(state, found.rows) == condense(state, rows)
    accounted = accounts_for_older(state, rows)
    if found.part is None:
        assert not accounted or state.dropped or state.older.upto == 0
    assert accounts_for_older(state, found.rows) == accounted
    every = tuple(data_commit(c, d, 1) for c, d in made.commits if data_commit(c, d, 1))
    live = state.live if accounted else tuple(d for d in every if d and d.n > state.superseded)
    live = tuple(d for d in live if not within(state.dropped, d.n))
    assert pending(live, found, state.load_epoch) == pending(live, asked.whole, state.load_epoch)
    assert lost(state, live, found) == lost(state, live, asked.whole)
    # What is kept of it in a run serves for as long as it tells enough of the state.
    assert ledger_for(asked, state, "orders", found) is found  # type: ignore[arg-type]
    whole = ledger_for(asked, made.add("reset", stages=("load",)), "orders", found)  # type: ignore[arg-type]
    assert whole is (found if found.part is None else asked.whole)


def test_a_manual_watermark_leaves_files_pending_and_the_next_load_keeps_the_order() -> None:
    made = history()
    first = choose(made.state, made.state.data, Ledger(0), keyed=True, after=frozenset({4}))
    assert (numbers(first.commits), numbers(first.skipped), first.found, first.files) == ([4], [2, 3], 3, 1)
    then = choose(made.state, made.state.data, loaded(made, 4), keyed=True)
    assert numbers(then.commits) == [2, 3, 4]
    assert {n for n, _ in then.retake} == {4} and then.files == 2


def test_a_limit_does_not_hold_back_what_has_to_load_again() -> None:
    made = history()
    choice = choose(made.state, made.state.data, loaded(made, 4), keyed=True, limit=1)
    assert numbers(choice.commits) == [2, 4]


def test_a_ledger_that_knows_more_than_the_log_is_noticed() -> None:
    made = history()
    beyond = LedgerRow(9, "x", 0, 1, 1, "")
    other = LedgerRow(3, "x", 0, 1, 1, "")
    seen = replace(loaded(made), rows=(*loaded(made).rows, beyond, other))
    assert lost(made.state, made.state.data, seen) == (beyond, other)
    assert lost(made.state, made.state.data, loaded(made)) == ()
    assert choose(made.state, made.state.data, seen, keyed=True) == Choice(lost=(beyond, other))


# types


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("SMALLINT", "INTEGER"), ("INTEGER", "BIGINT"), ("integer", "int8"), ("BIGINT", "DECIMAL(20,0)"),
        ("DECIMAL(6,2)", "DECIMAL(12,4)"), ("NUMERIC(6,2)", "DECIMAL(6,2)"), ("FLOAT", "DOUBLE"),
        ("VARCHAR(10)", "character varying(20)"), ("VARCHAR(10)", "VARCHAR"), ("TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE"),
    ],
)  # fmt: skip
def test_a_wider_type_holds_every_value(narrow: str, wide: str) -> None:
    assert fits(narrow, wide)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("BIGINT", "INTEGER"), ("BIGINT", "DECIMAL(18,0)"), ("DECIMAL(12,2)", "DECIMAL(12,4)"), ("BIGINT", "DOUBLE"),
        ("VARCHAR", "VARCHAR(10)"), ("TIMESTAMP", "TIMESTAMPTZ"), ("INTEGER", "VARCHAR"), ("DOUBLE", "FLOAT"),
    ],
)  # fmt: skip
def test_a_type_that_could_lose_something_does_not_fit(narrow: str, wide: str) -> None:
    assert not fits(narrow, wide)


def test_changes_are_one_statement_each_and_none_when_all_fits() -> None:
    wanted = [Wanted("id", "BIGINT"), Wanted("b", "INTEGER"), Wanted("c", "VARCHAR")]
    assert [c.statement for c in changes("main", "t", wanted, None)] == [
        'CREATE TABLE "main"."t" ("id" BIGINT, "b" INTEGER, "c" VARCHAR)'
    ]
    found = [
        TargetColumn("ID", "INTEGER"),
        TargetColumn("extra", "DATE", False, "now()"),
        TargetColumn("b", "BIGINT"),
    ]
    assert [(c.kind, c.statement) for c in changes("main", "t", wanted, found)] == [
        ("widen", 'ALTER TABLE "main"."t" ALTER COLUMN "ID" TYPE BIGINT'),
        ("add", 'ALTER TABLE "main"."t" ADD COLUMN "c" VARCHAR'),
    ]


# the whole way, over a real log and a real warehouse


class Bench:
    """A log in a folder, a DuckDB file, and loads between them."""

    def __init__(self, folder: Path, table: Table = TABLE) -> None:
        self.folder, self.table = folder, table
        self.store = Store(StoreSpec(url=str(folder / "lake")))
        self.log = Log(self.store, table.name)
        self.warehouse = DuckDB(folder / "w.duckdb")
        self.state = self.log.append(State(table.name), draft(State(table.name), "open", RUN))
        self.claim(table)
        self.files = 0

    def add(self, kind: Any, **fields: Any) -> State:
        self.state = self.log.append(self.state, draft(self.state, kind, RUN, **fields))
        return self.state

    def claim(self, table: Table) -> None:
        self.table = table
        self.add("claim", table=table, purpose="sync")

    def batch(self, *ids: int, load_as: LoadAs = "merge", second: int = 0, created: str = "") -> int:
        """A commit with a row for each id."""
        moment = datetime(2025, 1, 1, 0, 0, second, tzinfo=UTC)
        rows = [{"id": n, "update_at": moment} for n in ids]
        body = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows, schema=file_schema(self.table)), body)
        content, self.files = body.getvalue(), self.files + 1
        path = f"data/{self.table.name}/{self.files}.parquet"
        self.store.put(path, content)
        file = DataFile(
            path, len(ids), len(content), hashlib.sha256(content).hexdigest(), 0, created_at=created
        )
        return self.add("batch", files=(file,), load_as=load_as, schema=self.table.fingerprint).n

    def load(self, **more: Any) -> Loaded:
        return load_pending(self.warehouse, self.log, self.state, self.table, pipeline="p", run=RUN, **more)

    def rows(self, columns: str = "id, second(update_at)") -> list[tuple[Any, ...]]:
        with duckdb.connect(self.folder / "w.duckdb") as con:
            return con.execute(f"SELECT {columns} FROM {self.table.target} ORDER BY ALL").fetchall()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_everything_pending_loads_and_then_nothing_does(bench: Bench) -> None:
    bench.batch(1, 2)
    bench.batch(2, 3, second=5)
    told: list[int] = []
    done = bench.load(on_group=lambda outcome: told.append(outcome.rows))
    assert (done.commits, done.rows, done.files, told) == ((2, 3), 4, 2, [4])
    assert bench.rows() == [(1, 0), (2, 5), (3, 5)]
    assert done.ledger.rows == bench.warehouse.ledger(bench.state.log, "orders").rows
    assert bench.load().commits == () and bench.load(ledger=done.ledger).commits == ()


def test_commits_before_a_change_of_the_table_load_as_they_were_written(bench: Bench) -> None:
    bench.batch(1)
    note = Column("note", "int(11)", "int")
    bench.claim(replace(TABLE, columns=(*TABLE.columns, note)))
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
    bench.add("set", position=("2025-08-01 12:00:00",))
    done = bench.load(manual="2025-08-01 12:00:00")
    assert (done.commits, done.choice.found, done.choice.files) == ((3,), 2, 1)
    assert numbers(done.choice.skipped) == [2]
    assert bench.load().commits == (2, 3)
    assert bench.rows() == [(1, 9), (2, 1)]


def test_superseded_files_load_only_by_a_manual_watermark(bench: Bench) -> None:
    bench.batch(1)
    bench.load()
    bench.add("reset", stages=("extract", "load"))
    assert bench.load().commits == ()
    assert bench.load(manual="2000-01-01").commits == (2,)


def test_a_reset_that_died_before_it_reached_the_warehouse_is_finished_by_the_load(bench: Bench) -> None:
    bench.batch(1)
    bench.load()
    bench.add("reset", stages=("load",))
    done = bench.load()
    assert done.commits == (2,) and done.ledger.epoch == bench.state.load_epoch == 3
    assert bench.load().commits == () and bench.rows("id") == [(1,)]


def test_a_load_with_an_older_state_than_the_reset_stops(bench: Bench) -> None:
    bench.batch(1)
    before = bench.state
    bench.add("reset", stages=("load",))
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


def test_a_ledger_ahead_of_the_log_is_a_finding_where_rows_merge_by_key(bench: Bench, tmp_path: Path) -> None:
    ahead(bench, tmp_path)
    done = bench.load()
    assert done.commits == (3,) and [f.kind for f in done.findings] == ["ledger_ahead"]
    assert bench.rows() == [(1, 7), (2, 5), (3, 7)]
    assert bench.load().findings == ()  # said once: the ledger is the log's again


def test_a_ledger_ahead_of_the_log_is_refused_where_rows_would_be_doubled(tmp_path: Path) -> None:
    bench = Bench(tmp_path, replace(TABLE, key=(), mode="append"))
    ahead(bench, tmp_path)
    with pytest.raises(DataError, match="without a key"):
        bench.load()
    assert bench.load(adopt=True).commits == (3,)
    assert bench.load().findings == ()


def test_a_state_that_another_run_has_left_behind_is_a_conflict(bench: Bench) -> None:
    bench.batch(1)
    stale = bench.state
    bench.batch(2)
    bench.load()
    bench.state = stale
    with pytest.raises(ConflictError, match="another run"):
        bench.load()
