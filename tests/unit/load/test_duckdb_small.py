"""Small loads into DuckDB: they ask little, and take nothing for granted."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec
from floodmark.load.ledger import Count
from floodmark.model.errors import DataError
from floodmark.model.ledger import Ledger, LedgerRow
from floodmark.model.statements import STATEMENTS
from floodmark.store.store import Store
from tests.support.warehouse_loads import DuckPlace, Fill, row


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    return Fill(DuckPlace(tmp_path), Store(StoreSpec(url=str(tmp_path / "lake"))))


def test_a_small_load_reads_the_ledger_and_counts_the_rows_once_before_it_writes(
    fill: Fill, caplog: pytest.LogCaptureFixture
) -> None:
    fill.load(fill.window([row(1)]))
    with caplog.at_level(logging.DEBUG, STATEMENTS.name):
        fill.load(fill.window([row(2)]))
    said = [record.getMessage() for record in caplog.records]
    assert len([one for one in said if "floodmark_ledger" in one and " SELECT " in one]) == 1
    assert len([one for one in said if "SELECT count(*)" in one]) == 2  # before and after
    assert len(said) <= 22


def test_what_another_run_has_loaded_and_cleaned_is_not_missed(fill: Fill) -> None:
    commit = fill.window([row(1)])
    fill.load(commit)
    fill.store.delete([commit[0].files[0].path])
    outcome = fill.load(commit)
    assert (outcome.loaded, outcome.already) == ((), (1,))


def test_a_load_that_another_run_has_half_done_loads_the_rest(fill: Fill) -> None:
    first, second = fill.window([row(1)]), fill.window([row(2)])
    fill.load(first)
    outcome = fill.load(first, second)
    assert ([one.n for one in outcome.loaded], outcome.already) == ([2], (1,))
    assert fill.ledger() == [1, 2]


def test_a_file_with_other_rows_than_its_commit_says_is_refused(fill: Fill) -> None:
    commit, digest = fill.window([row(1), row(2)])
    file = replace(commit.files[0], rows=3)
    with pytest.raises(DataError, match="has 2 rows, but its commit says 3"):
        fill.load((replace(commit, files=(file,)), digest))
    assert not fill.place.open().rows("orders")


def loaded(n: int, target: str = "orders", epoch: int = 0, commits: int = 1) -> LedgerRow:
    return LedgerRow(n, f"{n:064x}", epoch, 10, 1, f"2025-08-14T17:12:{n:02}.000000Z", target, commits)


LEDGER = Ledger(epoch=0, rows=(loaded(2, commits=2), loaded(3), loaded(5, epoch=-1), loaded(6, "other")))


def test_the_ledger_after_a_load_has_its_rows_and_not_those_that_it_took_back() -> None:
    assert LEDGER.last("orders", 0) == (3, loaded(3).loaded_at)
    after = LEDGER.after(0, frozenset({loaded(3).identity, loaded(5).identity}), [loaded(4)])
    assert after.rows == (LEDGER.rows[0], *LEDGER.rows[2:], loaded(4))
    assert after.last("orders", 0) == (3, loaded(4).loaded_at)
    assert Ledger().last("orders", None) == (0, None)


def test_a_count_is_valid_only_while_the_ledger_is_as_the_load_left_it() -> None:
    count = Count("orders", "log-1", 0, *LEDGER.last("orders", 0), 30)
    assert count.valid(LEDGER, "log-1")
    assert not count.valid(LEDGER, "log-2")
    assert not count.valid(replace(LEDGER, epoch=1), "log-1")
    assert not count.valid(replace(LEDGER, epoch=None), "log-1")
    assert not count.valid(LEDGER.after(0, frozenset(), [loaded(4)]), "log-1")
    # Another version took one back and loaded it again: as many commits, at another time.
    assert not count.valid(LEDGER.after(0, frozenset({loaded(3).identity}), [loaded(4)]), "log-1")
    empty = Ledger(epoch=0)
    assert not Count("orders", "log-1", 0, *empty.last("orders", 0), 30).valid(empty, "log-1")
