"""What every warehouse promises: a commit is in the target exactly when it is in the ledger."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from floodmark.errors import (
    ConfigError,
    ConflictError,
    DataError,
    TransientError,
    UnknownOutcome,
)
from floodmark.model import Column, Table, dump
from floodmark.store import Store, StoreSpec
from floodmark.warehouse.columns import same
from tests.conftest import PATIENT
from tests.fill import (
    CODES,
    EVENTS,
    ID,
    INT,
    NAME,
    ORDERS,
    SEEN,
    DuckPlace,
    Fill,
    Place,
    RedshiftPlace,
    as_json,
    code,
    row,
)


@pytest.fixture(params=["duckdb", "redshift"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "duckdb":
        return DuckPlace(tmp_path)
    server = request.getfixturevalue("redshift")
    server.faults.clear()
    return RedshiftPlace(server, f"t_{secrets.token_hex(4)}")


class Remote(Store):
    """A store that is not on this disk: its files have to be downloaded."""

    def local(self, path: str) -> Path | None:
        return None


@pytest.fixture
def store(place: Place, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A folder for DuckDB, S3 for Redshift."""
    if place.kind == "duckdb":
        return Store(StoreSpec(url=str(tmp_path / "lake")))
    return Store(StoreSpec(**request.getfixturevalue("seaweed").store(request.getfixturevalue("prefix"))))


@pytest.fixture(params=[Store, Remote])
def any_fill(request: pytest.FixtureRequest, place: Place, store: Store) -> Fill:
    if place.kind != "duckdb" and request.param is Remote:
        pytest.skip("Redshift reads its files by itself")
    return Fill(place, request.param(store.spec))


@pytest.fixture
def fill(place: Place, store: Store) -> Fill:
    return Fill(place, store)


# exactly once


def test_a_load_puts_rows_and_ledger_rows_in(fill: Fill) -> None:
    outcome = fill.load(fill.commit([row(1, "a"), row(2, "b")], [row(3, "c")]), fill.commit([row(4, "d")]))
    assert (outcome.rows, outcome.files, [r.n for r in outcome.loaded]) == (4, 3, [1, 2])
    assert fill.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    ledger = fill.place.open().ledger("log-1", "orders")
    assert ledger.epoch == 0 and ledger.rows == outcome.loaded
    assert [(r.n, r.digest, r.rows, r.files) for r in ledger.rows] == [
        (1, "digest-log-1-1", 3, 2),
        (2, "digest-log-1-2", 1, 1),
    ]
    assert abs(datetime.fromisoformat(ledger.rows[0].loaded_at).timestamp() - time.time()) < 60
    assert fill.place.open().rows("orders") == 4


def test_a_warehouse_that_is_not_there_yet_has_an_empty_ledger_and_is_not_created(fill: Fill) -> None:
    assert fill.place.open().ledger("log-1", "orders").rows == ()
    assert fill.place.open().rows("orders") == 0
    assert fill.place.empty


def test_a_commit_that_was_loaded_is_not_loaded_again(fill: Fill) -> None:
    fill.table = EVENTS
    first = fill.commit([{"n": 1}], load_as="insert")
    fill.load(first)
    outcome = fill.load(first, fill.commit([{"n": 2}], load_as="insert"))
    assert (outcome.already, outcome.rows) == ((1,), 1)
    assert fill.load(first).loaded == ()
    assert fill.rows("n") == [(1,), (2,)]


def test_a_number_that_was_loaded_with_another_digest_is_another_commit(fill: Fill) -> None:
    commit, _ = fill.commit([row(1, "old")])
    fill.load((commit, "digest-of-a-lost-log"))
    outcome = fill.load(fill.commit([row(2, "x")]), retake=frozenset({(1, "digest-of-a-lost-log")}))
    assert [r.n for r in outcome.loaded] == [2]
    assert fill.ledger() == [2]


def test_a_failed_load_leaves_nothing_behind(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a")]))
    good, bad = fill.commit([row(2, "b")]), fill.commit([row(3, "c")])
    wrong = replace(bad[0], files=(replace(bad[0].files[0], rows=99),))
    with pytest.raises(DataError, match="has 1 rows, and its commit says 99"):
        fill.load(good, (wrong, bad[1]))
    assert fill.rows() == [(1, "a")] and fill.ledger() == [1]


def test_a_commit_whose_answer_was_lost_is_found_in_the_ledger(fill: Fill) -> None:
    fill.warehouse = fill.place.losing("after")
    assert fill.load(fill.commit([row(1)])).rows == 1
    assert fill.ledger() == [1]


def test_a_commit_that_did_not_happen_is_a_transient_error_and_loads_the_next_time(fill: Fill) -> None:
    commit = fill.commit([row(1)])
    fill.warehouse = fill.place.losing("before")
    with pytest.raises(TransientError):
        fill.load(commit)
    fill.warehouse = None
    assert fill.load(commit).rows == 1
    assert fill.rows("id") == [(1,)]


def test_an_unanswered_commit_whose_ledger_cannot_be_read_is_an_unknown_outcome(fill: Fill) -> None:
    fill.warehouse = fill.place.gone_after_commit()
    with pytest.raises(UnknownOutcome):
        fill.load(fill.commit([row(1)]))


def test_two_loaders_at_once_load_once(fill: Fill) -> None:
    fill.table = EVENTS
    commits = [fill.commit([{"n": n}], load_as="insert") for n in range(8)]

    def loader() -> None:
        for commit in commits:
            for _ in range(100):
                try:
                    fill.load(commit)
                    break
                except (TransientError, ConflictError):
                    time.sleep(0.01)

    threads = [threading.Thread(target=loader) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fill.rows("n") == [(n,) for n in range(8)]
    assert fill.ledger() == list(range(1, 9))


# the later read wins


def test_the_later_commit_wins_whatever_its_cursor_says(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "from 2099", at=59)]), fill.commit([row(1, "corrected", at=1)]))
    assert fill.rows() == [(1, "corrected")]


def test_a_later_load_replaces_the_row_of_an_earlier_one(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "old", at=59), row(2, "kept")]))
    fill.load(fill.commit([row(1, "new", at=1), row(3, "added")]))
    assert fill.rows() == [(1, "new"), (2, "kept"), (3, "added")]


def test_inside_a_commit_the_higher_cursor_wins_and_null_is_lowest(fill: Fill) -> None:
    fill.load(
        fill.commit(
            [row(1, "high", at=9), row(2, "null", at=None), row(3, "only null", at=None)],
            [row(1, "low", at=2), row(2, "set", at=1)],
        )
    )
    assert fill.rows() == [(1, "high"), (2, "set"), (3, "only null")]


def test_rows_of_one_key_and_cursor_in_one_commit_give_one_row(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a"), row(1, "b")], [row(1, "c")]))
    # Redshift does not say where in the files a row was: any of them may be the one.
    assert fill.rows() in ([[(1, "c")]] if fill.place.kind == "duckdb" else [[(1, n)] for n in "abc"])


def test_composite_and_nullable_keys_are_compared_column_by_column(fill: Fill) -> None:
    fill.table = replace(ORDERS, columns=(ID, INT, NAME, SEEN), key=("id", "n"))
    fill.load(fill.commit([{"id": 1, "n": n, "Name": "first"} for n in (1, 2, None)]))
    fill.load(fill.commit([{"id": 1, "n": n, "Name": "then"} for n in (1, 3, None)]))
    assert fill.rows("id, n, name") == [(1, 1, "then"), (1, 2, "first"), (1, 3, "then"), (1, None, "then")]


def test_earlier_commits_that_load_late_take_the_later_ones_back(fill: Fill) -> None:
    early, late = fill.commit([row(1, "early"), row(2, "early")]), fill.commit([row(1, "late")])
    fill.load(late)
    with pytest.raises(ConflictError, match="loaded before"):
        fill.load(early)
    fill.load(early, retake=frozenset({(2, late[1])}))
    assert fill.ledger() == [1]  # whatever dies now, the late one is pending
    fill.load(late)
    assert fill.rows() == [(1, "late"), (2, "early")] and fill.ledger() == [1, 2]


def test_commits_taken_back_may_load_in_the_same_transaction(fill: Fill) -> None:
    early, late = fill.commit([row(1, "early")]), fill.commit([row(1, "late")])
    fill.load(late)
    fill.load(early, late, retake=frozenset({(2, late[1])}))
    assert fill.rows() == [(1, "late")] and fill.ledger() == [1, 2]


# ways


def test_insert_adds_rows_and_keeps_equal_ones(fill: Fill) -> None:
    fill.table = EVENTS
    fill.load(fill.commit([{"n": 1}, {"n": 1}], load_as="insert"))
    fill.load(fill.commit([{"n": 1}], load_as="insert"))
    assert fill.rows("n") == [(1,), (1,), (1,)]


def test_insert_into_a_table_with_a_key_never_doubles_a_row(fill: Fill) -> None:
    fill.table = replace(ORDERS, mode="append", cursor="id")
    fill.load(fill.commit([row(1, "a")], load_as="insert"))
    fill.load(fill.commit([row(1, "again"), row(2, "b")], load_as="insert"))
    assert fill.rows() == [(1, "again"), (2, "b")]


def test_a_snapshot_replaces_everything(fill: Fill) -> None:
    fill.table = replace(EVENTS, mode="full")
    fill.load(fill.commit([{"n": 1}, {"n": 2}], load_as="replace"))
    fill.load(fill.commit([{"n": 2}, {"n": 3}], load_as="replace"))
    assert fill.rows("n") == [(2,), (3,)]


def test_an_empty_snapshot_empties_the_target(fill: Fill) -> None:
    fill.table = replace(EVENTS, mode="full")
    fill.load(fill.commit([{"n": 1}], load_as="replace"))
    fill.load(fill.commit(load_as="replace"))
    assert fill.rows("n") == [] and fill.ledger() == [1, 2]


def test_of_several_snapshots_only_the_last_is_read_and_all_are_in_the_ledger(fill: Fill) -> None:
    fill.table = replace(EVENTS, mode="full")
    first, second = fill.commit([{"n": 1}], load_as="replace"), fill.commit([{"n": 2}], load_as="replace")
    fill.store.delete([first[0].files[0].path])
    fill.load(first, second)
    assert fill.rows("n") == [(2,)] and fill.ledger() == [1, 2]


def test_deletes_remove_rows_by_key_in_the_logs_order(fill: Fill) -> None:
    fill.load(fill.commit([row(1), row(2), row(3)]))
    fill.load(fill.commit([{"id": 1}, {"id": 3}, {"id": 99}], load_as="delete"))
    fill.load(fill.commit([row(3, "back")]))
    assert fill.rows() == [(2, None), (3, "back")] and fill.ledger() == [1, 2, 3]


def test_a_file_without_rows_is_loaded_like_any_other(fill: Fill) -> None:
    fill.load(fill.commit([]))
    assert fill.rows() == [] and fill.ledger() == [1]


# keys as MySQL compares them


def test_a_key_that_changed_its_case_replaces_the_old_row(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1), code("x", 1)]))
    fill.load(fill.commit([code("ABC", 2)]))
    fill.load(fill.commit([code("aBc", 3)]))
    assert fill.rows("code, n") == [("aBc", 3), ("x", 1)]


def test_keys_that_differ_in_case_only_are_one_key_inside_a_load(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1, at=9), code("ABC", 2, at=3)]), fill.commit([code("Abd", 1)]))
    assert fill.rows("code, n") == [("Abd", 1), ("abc", 1)]


def test_the_target_has_only_the_sources_columns(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1)]))
    assert [name for name, _ in fill.place.columns("codes")] == ["code", "n", "update_at"]


def test_deletes_find_a_key_that_is_stored_in_another_case(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1), code("x", 2)]))
    fill.load(fill.commit([{"code": "ABC", "_floodmark_key": b"ABC"}], load_as="delete"))
    fill.load(fill.commit([code("abC", 5)]))
    assert fill.rows("code, n") == [("abC", 5), ("x", 2)]


def test_rows_that_were_there_before_the_weights_are_found_by_their_bytes(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1)]))
    fill.place.run("DROP TABLE floodmark_keys_codes")
    fill.load(fill.commit([code("abc", 2)]))
    assert fill.rows("code, n") == [("abc", 2)]


# epochs and holders


def test_a_load_of_another_epoch_stops(fill: Fill) -> None:
    commit = fill.commit([row(1)])
    fill.load(commit)
    fill.place.open().set_epoch("pipe-1", "log-1", "shop.orders", "orders", 7)
    with pytest.raises(ConflictError, match="reset"):
        fill.load(fill.commit([row(2)]))
    fill.epoch = 7
    assert [r.n for r in fill.load(commit).loaded] == [1]  # exactly because it was told to
    assert fill.rows("id") == [(1,)] and fill.ledger() == [1, 1]


def test_an_epoch_never_goes_back(fill: Fill) -> None:
    warehouse = fill.place.open()
    warehouse.set_epoch("pipe-1", "log-1", "shop.orders", "orders", 7)
    warehouse.set_epoch("pipe-1", "log-1", "shop.orders", "orders", 7)
    with pytest.raises(ConflictError):
        warehouse.set_epoch("pipe-1", "log-1", "shop.orders", "orders", 5)
    assert warehouse.ledger("log-1", "orders").epoch == 7


def test_a_target_of_another_pipeline_is_refused_until_it_is_taken_over(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "theirs")]))
    ours = Fill(fill.place, fill.store, log="log-2", pipeline="pipe-2")
    commit = ours.commit([row(1, "ours")])
    with pytest.raises(ConfigError, match="another pipeline") as refused:
        ours.load(commit)
    assert "target" in str(refused.value.hint) and "--force" in str(refused.value.hint)
    ours.load(commit, adopt=True)
    assert fill.rows() == [(1, "ours")]
    ours.load(ours.commit([row(2, "ours")]))
    with pytest.raises(ConfigError, match="another pipeline"):  # now it is they who don't hold it
        fill.load(fill.commit([row(3)]))


def test_a_target_of_another_table_is_refused(fill: Fill) -> None:
    fill.load(fill.commit([row(1)]))
    other = Fill(fill.place, fill.store, replace(ORDERS, table="returns"), log="log-2")
    with pytest.raises(ConfigError, match=r"filled from shop\.orders"):
        other.load(other.commit([row(1)]))


def test_a_log_begun_anew_merges_by_key_and_says_so(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "old")]))
    anew = Fill(fill.place, fill.store, log="log-2")
    outcome = anew.load(anew.commit([row(1, "new"), row(2, "new")]))
    assert [f.kind for f in outcome.findings] == ["new_log"]
    assert fill.rows() == [(1, "new"), (2, "new")]
    assert anew.load(anew.commit([row(3)])).findings == ()


def test_a_log_begun_anew_without_a_key_is_refused(fill: Fill) -> None:
    fill.table = EVENTS
    fill.load(fill.commit([{"n": 1}], load_as="insert"))
    anew = Fill(fill.place, fill.store, EVENTS, log="log-2")
    with pytest.raises(DataError, match="doubled"):
        anew.load(anew.commit([{"n": 1}], load_as="insert"))
    assert fill.rows("n") == [(1,)]


def test_a_target_that_changed_its_name_is_refused_rather_than_half_filled(fill: Fill) -> None:
    fill.load(fill.commit([row(1)]))
    with pytest.raises(ConfigError, match="was loaded into orders until now"):
        fill.load(fill.commit([row(2)]), target="orders_2")


def test_a_target_that_was_dropped_is_refused_rather_than_half_filled(fill: Fill) -> None:
    fill.load(fill.commit([row(1)]))
    fill.place.run("DROP TABLE orders")
    with pytest.raises(DataError, match="is gone") as refused:
        fill.load(fill.commit([row(2)]))
    assert "--redshift-only" in str(refused.value.hint)


def test_rows_that_nobody_loaded_are_merged_but_never_doubled_or_wiped(fill: Fill) -> None:
    fill.place.run("CREATE TABLE orders (id BIGINT, name VARCHAR(80), update_at TIMESTAMP)")
    fill.place.run("INSERT INTO orders VALUES (1, 'mine', NULL)")
    fill.place.run("CREATE TABLE events (n INTEGER, name VARCHAR(80))")
    fill.place.run("INSERT INTO events VALUES (1, 'mine')")
    fill.load(fill.commit([row(1, "loaded"), row(2, "loaded")]))
    assert fill.rows() == [(1, "loaded"), (2, "loaded")]
    adds = Fill(fill.place, fill.store, EVENTS, log="log-2")
    with pytest.raises(DataError, match="can't be told apart"):
        adds.load(adds.commit([{"n": 1}], load_as="insert"))
    swaps = Fill(fill.place, fill.store, replace(EVENTS, mode="full"), log="log-3")
    snapshot = swaps.commit([{"n": 5}], load_as="replace")
    with pytest.raises(DataError, match="did not load"):
        swaps.load(snapshot)
    swaps.load(snapshot, adopt=True)
    assert swaps.rows("n") == [(5,)]


# columns


def test_wall_clocks_and_instants_arrive_as_they_are(fill: Fill) -> None:
    fill.table = replace(
        ORDERS,
        columns=(ID, SEEN, replace(SEEN, name="moment", type="timestamp(6)", data_type="timestamp")),
    )
    first, last = datetime(1000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    instant = datetime(2025, 3, 30, 1, 30, 0, 5, tzinfo=UTC)
    fill.load(fill.commit([{"id": 1, "update_at": first, "moment": instant}, {"id": 2, "update_at": last}]))
    found = fill.rows("id, CAST(update_at AS VARCHAR), extract(epoch FROM moment)")
    assert [(*found[0][:2], round(float(found[0][2]), 6)), found[1]] == [
        (1, "1000-01-01 00:00:00", instant.timestamp()),
        (2, "9999-12-31 23:59:59.999999", None),
    ]
    types = dict(fill.place.columns("orders"))
    assert same(types["update_at"], "TIMESTAMP") and same(types["moment"], "TIMESTAMP WITH TIME ZONE")


def test_names_are_folded_and_any_name_is_possible(fill: Fill) -> None:
    names = ("190_time", "order", 'with "quotes"', "filename", "file_row_number", "file_index", "Größe")
    columns = (ID, SEEN, *(replace(INT, name=name) for name in names))
    fill.table = replace(ORDERS, columns=columns, target="select")
    values = {name: i for i, name in enumerate(names)}
    fill.load(fill.commit([{"id": 1, **values}, {"id": 1, **values}]))
    found = fill.place.run('SELECT * FROM "select"')
    assert found == [(1, None, *range(len(names)))]


def test_an_extra_column_with_a_default_is_tolerated(fill: Fill) -> None:
    fill.place.run(
        "CREATE TABLE orders (note VARCHAR NOT NULL DEFAULT 'x', ID BIGINT, update_at TIMESTAMP, name VARCHAR)"
    )
    fill.load(fill.commit([row(1, "a")]))
    assert fill.rows("note, id, name") == [("x", 1, "a")]


def test_an_extra_column_that_takes_no_null_is_refused_with_the_statement(fill: Fill) -> None:
    fill.place.run(
        "CREATE TABLE orders (note VARCHAR NOT NULL, id BIGINT, update_at TIMESTAMP, name VARCHAR)"
    )
    with pytest.raises(DataError, match="NOT NULL") as refused:
        fill.load(fill.commit([row(1, "a")]))
    # Redshift can't make a column nullable.
    change = 'ALTER COLUMN "note" DROP NOT NULL' if fill.place.kind == "duckdb" else 'DROP COLUMN "note"'
    assert change in str(refused.value.hint)


def test_a_column_that_was_added_is_added_and_one_that_was_dropped_gets_null(fill: Fill) -> None:
    wider = replace(ORDERS, columns=(*ORDERS.columns, INT))
    narrower = replace(ORDERS, columns=(ID, SEEN))
    fill.load(fill.commit([row(1, "a")]))
    fill.load(fill.commit([{**row(2, "b"), "n": 5}], table=wider), table=wider)
    fill.load(fill.commit([row(3)], table=narrower), table=narrower)
    assert fill.rows("id, name, n") == [(1, "a", None), (2, "b", 5), (3, None, None)]


def test_a_column_that_was_widened_is_widened_and_older_files_still_fit(fill: Fill) -> None:
    def shape(number: Column, price: Column) -> Table:
        return replace(ORDERS, columns=(ID, SEEN, number, price))

    price = Column("price", "decimal(6,2)", "decimal", precision=6, scale=2)
    narrow = shape(INT, price)
    wide = shape(
        replace(INT, type="bigint(20)", data_type="bigint"),
        replace(price, type="decimal(12,4)", precision=12, scale=4),
    )
    old = {"n": 7, "price": Decimal("1234.56")}
    first = fill.commit([{"id": 1, **old}], table=narrow)
    fill.load(first, table=narrow)
    fill.load(fill.commit([{"id": 2, "n": 2**40, "price": Decimal("12345678.1234")}], table=wide), table=wide)
    fill.load(fill.commit([{"id": 3, **old}], table=narrow), table=narrow)
    assert fill.rows("id, n, price") == [
        (1, 7, Decimal("1234.5600")),
        (2, 2**40, Decimal("12345678.1234")),
        (3, 7, Decimal("1234.5600")),
    ]


def test_a_change_that_could_lose_values_is_refused_with_the_statement(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a")]))
    text = replace(ORDERS, columns=(replace(NAME, name="id", nullable=False, collation="binary"), NAME, SEEN))
    with pytest.raises(DataError, match="column id of orders") as refused:
        fill.load(fill.commit([{**row(1), "id": "1"}], table=text), table=text)
    assert "ALTER TABLE" in str(refused.value.hint)
    assert fill.rows() == [(1, "a")]


def test_files_of_two_shapes_never_load_together(fill: Fill) -> None:
    wider = replace(ORDERS, columns=(*ORDERS.columns, INT))
    with pytest.raises(ValueError, match="together"):
        fill.load(fill.commit([row(1)]), fill.commit([row(2)], table=wider))


def test_a_target_that_is_a_view_is_refused(fill: Fill) -> None:
    fill.place.run("CREATE VIEW orders AS SELECT 1 AS id")
    with pytest.raises(ConfigError, match="is a view"):
        fill.load(fill.commit([row(1)]))


# files


def test_a_missing_file_is_named_and_nothing_is_loaded(any_fill: Fill) -> None:
    first, second = any_fill.commit([row(1)]), any_fill.commit([row(2)])
    any_fill.store.delete([second[0].files[0].path])
    with pytest.raises(DataError, match=r"log-1-2-0\.parquet") as gone:
        any_fill.load(first, second)
    assert gone.value.code == 6 and gone.value.hint and gone.value.table == "shop.orders"
    assert any_fill.place.open().ledger("log-1", "orders").rows == ()


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_file_that_is_not_what_its_commit_describes_is_refused(any_fill: Fill, damage: str) -> None:
    commit = any_fill.commit([row(1, "a")])
    path = commit[0].files[0].path
    data = any_fill.store.get(path) or b""
    any_fill.store.put(path, data[:-10] if damage == "cut" else b"x" + data[1:])
    with pytest.raises(DataError, match="not what its commit describes"):
        any_fill.load(commit)


def test_a_file_with_other_columns_than_the_log_says_is_refused(any_fill: Fill) -> None:
    swapped = replace(ORDERS, columns=(NAME, ID, SEEN))
    commit, digest = any_fill.commit([row(1)], table=swapped)
    with pytest.raises(DataError, match="columns"):
        any_fill.load((replace(commit, schema=ORDERS.fingerprint), digest))


def test_many_files_load_at_once(any_fill: Fill) -> None:
    any_fill.load(any_fill.commit(*([row(i)] for i in range(300))))
    assert any_fill.place.open().rows("orders") == 300


# crashes

LOADER = """
import json, sys
from pathlib import Path
from floodmark.config import Tls, WarehouseSpec
from floodmark.model import Commit, Table, load
from floodmark.store import Store, StoreSpec
from floodmark.warehouse import LoadRequest
from floodmark.warehouse.open import open_warehouse
said = json.load(sys.stdin)
commits = tuple((load(Commit, c.encode()), d) for c, d in said["commits"])
table = load(Table, said["table"].encode())
spec = said["warehouse"]
if "path" in spec:
    spec["path"] = Path(spec["path"])
warehouse = open_warehouse(WarehouseSpec(**spec, tls=Tls("disabled")))
print("ready", flush=True)
for commit in commits:
    warehouse.load(LoadRequest(
        "pipe-1", "log-1", table, table.target, 0, (commit,), Store(StoreSpec(**said["store"])), "run"))
"""


def test_a_loader_killed_at_any_moment_leaves_whole_commits(fill: Fill) -> None:
    if fill.place.kind != "duckdb" and not PATIENT:
        pytest.skip("tests/faults/test_redshift_kills.py does it statement by statement")
    fill.table = EVENTS
    commits = [fill.commit([{"n": n} for _ in range(2000)], load_as="insert") for n in range(20)]
    said = {
        "commits": [(dump(c).decode(), d) for c, d in commits],
        "table": dump(EVENTS).decode(),
        "warehouse": fill.place.spec,
        "store": as_json(fill.store),
    }
    slow = 1.0 if fill.place.kind == "duckdb" else 5.0
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2, 0.35) if PATIENT else (0.0, 0.05, 0.1, 0.35):
        process = subprocess.Popen(
            [sys.executable, "-c", LOADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(said))
        process.stdin.close()
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay * slow)
        process.kill()
        process.wait()
        process.stdout.close()
        loaded = [r.n for r in fill.place.open().ledger("log-1", "events").rows]
        assert loaded == list(range(1, len(loaded) + 1))
        assert fill.place.open().rows("events") == 2000 * len(loaded)
    for commit in commits:
        fill.load(commit)
    assert fill.rows("n, count(*)", "events GROUP BY n") == [(n, 2000) for n in range(20)]
