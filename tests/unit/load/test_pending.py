"""Pending is the log minus the ledger, in the log's order, and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from floodmark.load.columns import TargetColumn, WantedColumn, changes, fits
from floodmark.load.descriptions import description
from floodmark.load.pending import (
    Choice,
    again,
    choose,
    created_after,
    first_rows,
    groups,
    ledger_for,
    lost,
    pending,
)
from floodmark.log.document import accounts_for_older, condense
from floodmark.log.fold import DataCommit, data_commit, sum_digests, within
from floodmark.model.commit import Batch, Clean, CleanedFiles, Commit, DataFile, GivenUp, LoadAs, Reset
from floodmark.model.errors import DataError
from floodmark.model.ledger import SUMMED_DIGITS, Ledger, LedgerRow, Part
from tests.support.samples import TABLE, History, files, numbers, window
from tests.support.samples import at as position


def data(n: int, rows: int = 10, load_as: LoadAs = "merge", schema: str = "s", **more: Any) -> DataCommit:
    made = DataCommit(n, f"d{n}", rows, 1, rows * 10, "2025-01-01T00:00:00.000000Z", load_as, schema, 1)
    return made._replace(**more)


def ledger(*numbers: int, epoch: int = 0) -> Ledger:
    return Ledger(epoch, tuple(LedgerRow(n, f"d{n}", epoch, 10, 1, "", "orders") for n in numbers))


# what is pending


def test_pending_is_what_the_ledger_lacks_by_number_and_digest() -> None:
    commits = (data(2), data(3), data(4, digest="another"))
    assert numbers(pending(commits, ledger(2, 4), 0)) == [3, 4]


def test_rows_of_another_epoch_do_not_count_as_loaded() -> None:
    assert numbers(pending((data(2), data(3)), ledger(2, 3, epoch=0), 9)) == [2, 3]


def test_superseded_commits_load_only_on_request() -> None:
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
    at = "2025-08-14T17:00:00.000000Z"
    return Batch(n=n, id="", log="", table_name="s.t", run="", at=at, prev="", files=made)


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


def test_commits_with_the_same_schema_and_load_mode_are_one_group() -> None:
    commits = [
        data(2),
        data(3),
        data(4, schema="t"),
        data(5, schema="t", load_as="delete"),
        data(6, schema="t"),
    ]
    assert [numbers(g) for g in groups(commits)] == [[2, 3], [4], [5], [6]]


@pytest.mark.parametrize(("most", "bound"), [("MAX_ROWS", 100), ("MAX_BYTES", 900)])
def test_groups_are_bounded_but_a_commit_is_never_split(
    most: str, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = [data(2, 40), data(3, 40), data(4, 40), data(5, 500), data(6, 1)]
    monkeypatch.setattr(f"floodmark.load.pending.{most}", bound)
    assert [numbers(g) for g in groups(commits)] == [[2, 3], [4], [5], [6]]
    assert groups([]) == ()


def test_wide_rows_load_in_smaller_groups_where_the_warehouse_asks_for_it() -> None:
    wide = [data(n, 10, bytes=1_000_000) for n in range(2, 6)]
    narrow = [data(n, 1000, bytes=1_000_000) for n in range(6, 9)]
    assert [numbers(g) for g in groups(wide + narrow)] == [[2, 3, 4, 5, 6, 7, 8]]
    bounded = groups(wide + narrow, wide_bytes=2_000_000)
    assert [numbers(g) for g in bounded] == [[2, 3], [4, 5, 6, 7, 8]]


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
        made.add(Batch, window_id="w", slices=(i,), files=files(10, prefix=str(i)), schema=TABLE.fingerprint)
    return made


def loaded(made: History, *which: int) -> Ledger:
    return Ledger(made.state.load_epoch, tuple(r._replace(target="orders") for r in made.ledger(*which)))


def test_summed_ledger_rows_are_never_counted_as_pending() -> None:
    summed = Ledger(0, (LedgerRow(3, "0f", 0, 20, 2, "", "orders", 2, True),), part=Part(0, 3))
    assert numbers(pending((data(4),), summed, 0)) == [4]
    with pytest.raises(ValueError, match="by sums only"):
        pending((data(3), data(4)), summed, 0)


class Asked:
    """A warehouse that has only a ledger."""

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
def test_part_of_the_ledger_plus_sums_equals_all_of_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floodmark.log.fold.RECENT_COMMITS", 3)
    monkeypatch.setattr("floodmark.log.fold.RECENT_FILES", 5)
    chance = random.Random(seed)
    made = History()
    made.claim()
    rows: list[LedgerRow] = []

    def load(missing: float) -> None:
        for r in made.ledger():
            row = r._replace(loaded_at=f"{r.n:04}", target="orders")
            old = r.n < made.state.data.superseded and chance.random() < 0.9
            if row not in rows and not old and chance.random() > missing:
                rows.append(row)

    for _ in range(chance.randint(2, 25)):
        match chance.choice(["batch"] * 12 + ["claim", "load", "both", "clean"]):
            case "batch":
                made.add(Batch, files=files(chance.randint(1, 9)), schema="s")
            case "claim":
                made.claim()
            case "clean" if waiting := pending(
                made.state.live, Ledger(0, tuple(rows)), made.state.load_epoch
            ):
                gone = chance.choice(waiting)
                given_up = (GivenUp(gone.n, gone.digest, gone.rows, gone.files, gone.bytes),)
                made.add(Clean, clean=CleanedFiles(dropped=((gone.n, gone.n),), given_up=given_up))
            case "load" | "both" as which if chance.random() < 0.4:
                made.add(Reset, stages=("load",) if which == "load" else ("extract", "load"))
        if chance.random() < 0.8:
            load(0.0 if seed % 2 else 0.1)
    if seed % 3:
        load(0.0)
    state, asked = made.state, Asked(Ledger(0, tuple(rows)))
    found = ledger_for(asked, state, "orders")  # type: ignore[arg-type]
    assert condense(state, found.rows) == condense(state, rows)
    accounted = accounts_for_older(state, rows)
    if found.part is None:
        assert not accounted or state.data.dropped or state.data.older.upto == 0
    assert accounts_for_older(state, found.rows) == accounted
    every = tuple(data_commit(c, d, 1) for c, d in made.commits if data_commit(c, d, 1))
    live = state.live if accounted else tuple(d for d in every if d and d.n > state.data.superseded)
    live = tuple(d for d in live if not within(state.data.dropped, d.n))
    assert pending(live, found, state.load_epoch) == pending(live, asked.whole, state.load_epoch)
    assert lost(state, live, found) == lost(state, live, asked.whole)
    # A run's cached part is used as long as it covers the state.
    assert ledger_for(asked, state, "orders", found) is found  # type: ignore[arg-type]
    whole = ledger_for(asked, made.add(Reset, stages=("load",)), "orders", found)  # type: ignore[arg-type]
    assert whole is (found if found.part is None else asked.whole)


def test_a_manual_watermark_leaves_files_pending_and_the_next_load_keeps_the_order() -> None:
    made = history()
    first = choose(made.state, made.state.data.commits, Ledger(0), keyed=True, after=frozenset({4}))
    assert (numbers(first.commits), numbers(first.skipped), first.found, first.files) == ([4], [2, 3], 3, 1)
    then = choose(made.state, made.state.data.commits, loaded(made, 4), keyed=True)
    assert numbers(then.commits) == [2, 3, 4]
    assert {n for n, _ in then.retake} == {4} and then.files == 2


def test_a_limit_does_not_hold_back_what_has_to_load_again() -> None:
    made = history()
    choice = choose(made.state, made.state.data.commits, loaded(made, 4), keyed=True, limit=1)
    assert numbers(choice.commits) == [2, 4]


def test_a_ledger_that_knows_more_than_the_log_is_noticed() -> None:
    made = history()
    beyond = LedgerRow(9, "x", 0, 1, 1, "")
    other = LedgerRow(3, "x", 0, 1, 1, "")
    seen = replace(loaded(made), rows=(*loaded(made).rows, beyond, other))
    assert lost(made.state, made.state.data.commits, seen) == (beyond, other)
    assert lost(made.state, made.state.data.commits, loaded(made)) == ()
    chosen = choose(made.state, made.state.data.commits, seen, keyed=True)
    assert chosen == Choice(seen, made.state.data.commits, lost=(beyond, other))


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
    wanted = [WantedColumn("id", "BIGINT"), WantedColumn("b", "INTEGER"), WantedColumn("c", "VARCHAR")]
    assert [c.statement for c in changes('"main"."t"', "t", wanted, None)] == [
        'CREATE TABLE "main"."t" ("id" BIGINT, "b" INTEGER, "c" VARCHAR)'
    ]
    found = [
        TargetColumn("ID", "INTEGER"),
        TargetColumn("extra", "DATE", False, "now()"),
        TargetColumn("b", "BIGINT"),
    ]
    assert [(c.kind, c.statement) for c in changes('"main"."t"', "t", wanted, found)] == [
        ("widen", 'ALTER TABLE "main"."t" ALTER COLUMN "ID" TYPE BIGINT'),
        ("add", 'ALTER TABLE "main"."t" ADD COLUMN "c" VARCHAR'),
    ]


def test_files_without_a_description_name_the_command_that_reads_their_table_again() -> None:
    """The hint can be pasted as it is."""
    with pytest.raises(DataError) as refused:
        description({}, data(7), "shop.orders")
    assert refused.value.hint == "read the table again: floodmark watermark reset -t shop.orders"
