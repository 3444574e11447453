"""Small loads of several tables in one transaction: all of it, or each by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from floodmark.config.load import StoreSpec
from floodmark.load.duckdb import warehouse as duckdb_warehouse
from floodmark.load.duckdb.file import Connection, DatabaseFile
from floodmark.load.duckdb.warehouse import DuckDB
from floodmark.load.protocol import LoadOutcome, LoadRequest
from floodmark.model.errors import ConfigError, DataError, UnknownOutcome
from floodmark.model.run import Step
from floodmark.store.store import Store
from tests.support.described import described
from tests.support.warehouse_loads import ID, NAME, SEEN, DuckPlace, Fill, row

TABLES = 6


class Gathers(DuckDB):
    """A DuckDB whose first COMMIT waits until the loads of all other tables are ready."""

    others = TABLES - 1
    commits = 0

    def _commit(self, con: Connection) -> None:
        self.commits += 1
        deadline = time.monotonic() + 20
        while self.commits == 1 and len(self._small._waiting) < self.others:
            assert time.monotonic() < deadline, "the other loads don't wait for this one"
            time.sleep(0.005)
        super()._commit(con)


class Lost(Gathers):
    """The answer to the second COMMIT, of the loads that share a transaction, is lost."""

    happens = True

    def _commit(self, con: Connection) -> None:
        if self.commits == 1 and not self.happens:
            self.commits += 1
            raise duckdb.IOException("IO Error: the answer was lost")
        super()._commit(con)
        if self.commits == 2:
            raise duckdb.IOException("IO Error: the answer was lost")


class Gone(Gathers):
    """After the second COMMIT the file can't be read any more."""

    def _commit(self, con: Connection) -> None:
        super()._commit(con)
        if self.commits == 2:
            con.close()
            self.path.write_bytes(b"damaged")
            raise duckdb.IOException("IO Error: the answer was lost")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return DuckPlace(tmp_path).path


@pytest.fixture
def fills(tmp_path: Path) -> list[Fill]:
    place, store = DuckPlace(tmp_path), Store(StoreSpec(url=str(tmp_path / "lake")))
    return [
        Fill(
            place,
            store,
            described("shop", f"t{n}", (ID, NAME, SEEN), ("id",), "update_at", "upsert", f"t{n}"),
            f"log-{n}",
        )
        for n in range(TABLES)
    ]


def loaded(warehouse: DuckDB, fills: list[Fill]) -> list[Future[LoadOutcome]]:
    """What became of one load per table: the first begins, the others come while it is being committed."""
    return together(warehouse, [one.request(*one.made) for one in fills])


def together(warehouse: DuckDB, requests: list[LoadRequest]) -> list[Future[LoadOutcome]]:
    begun = threading.Event()

    def at_work(step: Step, rows: int) -> None:
        if step.kind == "commit":
            begun.set()

    requests = [replace(one, at_work=at_work) for one in requests]
    with ThreadPoolExecutor(len(requests)) as pool:
        first = pool.submit(warehouse.load, requests[0])
        begun.wait(20)
        return [first, *(pool.submit(warehouse.load, one) for one in requests[1:])]


def filled(fills: list[Fill], rows: int = 3) -> None:
    for one in fills:
        one.window([row(i, "a") for i in range(rows)])


def all_there(fills: list[Fill]) -> bool:
    return all(one.rows() == [(0, "a"), (1, "a"), (2, "a")] and one.ledger() == [1] for one in fills)


def test_small_loads_that_wait_for_one_another_share_a_transaction(fills: list[Fill], path: Path) -> None:
    filled(fills)
    warehouse = Gathers(path)
    outcomes = [one.result() for one in loaded(warehouse, fills)]
    assert [[r.n for r in one.loaded] for one in outcomes] == [[1]] * TABLES
    assert warehouse.commits == 2
    assert all_there(fills)


def test_the_next_loads_find_what_a_shared_transaction_left(fills: list[Fill], path: Path) -> None:
    filled(fills)
    loaded(Gathers(path), fills)
    for one in fills:
        one.commit([row(0, "b", 2), row(3, "b", 2)])
    again = [one.result() for one in loaded(Gathers(path), fills)]
    assert [([r.n for r in one.loaded], one.already) for one in again] == [([2], (1,))] * TABLES
    for one in fills:
        assert one.rows() == [(0, "b"), (1, "a"), (2, "a"), (3, "b")]
        assert one.ledger() == [1, 2]


def test_a_table_that_others_have_changed_fails_alone(fills: list[Fill], path: Path) -> None:
    filled(fills)
    loaded(Gathers(path), fills)
    fills[3].place.run("DELETE FROM t3 WHERE id = 1")
    for one in fills:
        one.window([row(7, "b", 2)])
    ended = loaded(DuckDB(path), fills)
    assert [n for n, one in enumerate(ended) if one.exception()] == [3]
    assert isinstance(ended[3].exception(), DataError)
    assert [one.ledger() for one in fills] == [[1, 2] if n != 3 else [1] for n in range(TABLES)]


def test_one_bad_load_leaves_the_others_of_its_transaction_to_transactions_of_their_own(
    fills: list[Fill],
    path: Path,
) -> None:
    fills[4].place.run("CREATE TABLE t4 (id BIGINT, name VARCHAR UNIQUE, update_at TIMESTAMP)")
    filled(fills)
    warehouse = Gathers(path)
    ended = loaded(warehouse, fills)
    assert [n for n, one in enumerate(ended) if one.exception()] == [4]
    assert isinstance(ended[4].exception(), DataError)
    assert warehouse.commits == TABLES - 1
    assert all_there([one for one in fills if one is not fills[4]])
    assert fills[4].rows() == [] and fills[4].ledger() == []


def test_a_lost_answer_to_the_commit_of_a_shared_transaction_is_looked_up(
    fills: list[Fill], path: Path
) -> None:
    filled(fills)
    warehouse = Lost(path)
    assert all(len(one.result().loaded) == 1 for one in loaded(warehouse, fills))
    assert warehouse.commits == 2
    assert all_there(fills)


def test_loads_whose_shared_transaction_was_not_committed_load_by_themselves(
    fills: list[Fill], path: Path
) -> None:
    filled(fills)
    warehouse = Lost(path)
    warehouse.happens = False
    assert all(len(one.result().loaded) == 1 for one in loaded(warehouse, fills))
    assert warehouse.commits == 1 + 1 + (TABLES - 1)
    assert all_there(fills)


def test_a_shared_commit_that_nobody_can_ask_about_is_an_unknown_outcome_for_each(
    fills: list[Fill], path: Path
) -> None:
    filled(fills)
    ended = loaded(Gone(path), fills)
    assert ended[0].exception() is None
    errors = [one.exception() for one in ended[1:]]
    assert all(isinstance(error, UnknownOutcome) for error in errors)
    assert {error.table for error in errors if isinstance(error, UnknownOutcome)} == {
        one.table.name for one in fills[1:]
    }


def test_a_commit_that_another_run_has_loaded_says_nothing_about_the_others_of_its_transaction(
    fills: list[Fill], path: Path
) -> None:
    filled(fills)

    class Overtaken(Lost):
        """Once the shared COMMIT has failed, another run loads the first of its commits."""

        happens = False

        def _not_committed(self, loads: Any, cause: Any) -> Any:
            DuckDB(path).load(loads[0].request)
            return super()._not_committed(loads, cause)

    ended = loaded(Overtaken(path), fills)
    done = [n for n, one in enumerate(ended) if not one.exception()]
    assert [one.ledger() for one in fills] == [[1] if n in done else [] for n in range(TABLES)]
    assert len(done) == 2


def test_loads_whose_shared_transaction_fails_after_its_commit_are_loaded(
    fills: list[Fill], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(fills)
    warehouse = Gathers(path)

    @contextmanager
    def room_for(self: DatabaseFile, con: Connection, loads: object) -> Iterator[None]:
        yield
        if warehouse.commits == 2:
            raise duckdb.IOException("IO Error: settings can't be reset")

    monkeypatch.setattr(DatabaseFile, "room_for", room_for)
    assert [one.exception() for one in loaded(warehouse, fills)] == [None] * TABLES
    assert warehouse.commits == 2
    assert all_there(fills)


def test_two_tables_with_one_target_never_share_a_transaction(fills: list[Fill], path: Path) -> None:
    fills[0].place.run("CREATE TABLE same (id BIGINT, name VARCHAR, update_at TIMESTAMP)")
    filled(fills)
    requests = [fills[0].request(*fills[0].made)]
    requests += [one.request(*one.made, target="same") for one in fills[1:]]
    ended = together(Gathers(path), requests)
    assert [isinstance(one.exception(), ConfigError) for one in ended[1:]].count(True) == TABLES - 2
    [winner] = [one for one, end in zip(fills[1:], ended[1:], strict=True) if not end.exception()]
    assert winner.rows(target="same") == [(0, "a"), (1, "a"), (2, "a")]
    assert [one.ledger() for one in fills[1:]].count([1]) == 1


def test_a_load_of_many_rows_has_its_own_transaction(
    fills: list[Fill], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_warehouse, "SMALL_ROWS", 2)
    filled(fills, 3)
    warehouse = Gathers(path)
    warehouse.others = 0
    assert not warehouse.shares(fills[0].request(*fills[0].made))
    assert all(len(one.result().loaded) == 1 for one in loaded(warehouse, fills))
    assert warehouse.commits == TABLES
    assert all_there(fills)
