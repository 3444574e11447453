"""Deletes as every warehouse takes them: files of keys, in the log's order, removed or marked."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from floodmark.load.columns import same
from floodmark.model.ledger import TargetFiller
from tests.support.described import changed
from tests.support.warehouse_loads import (
    CODES,
    INT,
    ORDERS,
    SEEN,
    Fill,
    code,
    row,
)
from tests.support.warehouse_loads import ID as ID_COLUMN

NOON = "2025-05-01T12:00:00.123456Z"
LATER = "2025-05-02T09:30:00.000000Z"
AT_NOON, AT_LATER = datetime(2025, 5, 1, 12, 0, 0, 123456), datetime(2025, 5, 2, 9, 30)


def test_deletes_remove_rows_by_key_in_the_logs_order(fill: Fill) -> None:
    fill.load(fill.commit([row(1), row(2), row(3)]))
    fill.load(fill.commit([{"id": 1}, {"id": 3}, {"id": 99}], load_as="delete"))
    fill.load(fill.commit([row(3, "back")]))
    assert fill.rows() == [(2, None), (3, "back")] and fill.ledger() == [1, 2, 3]


def test_deletes_find_a_key_that_is_stored_in_another_case(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1), code("x", 2)]))
    fill.load(fill.commit([{"code": "ABC", "_floodmark_key": b"ABC"}], load_as="delete"))
    fill.load(fill.commit([code("abC", 5)]))
    assert fill.rows("code, n") == [("abC", 5), ("x", 2)]


def test_marked_rows_keep_the_time_of_their_commit(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a"), row(2, "b"), row(3, "c")]))
    fill.load(fill.commit([{"id": 1}, {"id": 99}], load_as="mark", at=NOON))
    assert fill.rows("id, name, _deleted_at") == [(1, "a", AT_NOON), (2, "b", None), (3, "c", None)]
    assert fill.ledger() == [1, 2]
    name, kind = fill.place.columns("orders")[-1]
    assert name == "_deleted_at" and same(kind, "TIMESTAMP")


def test_marks_of_several_commits_in_one_load_keep_their_own_times_and_the_first_one_stands(
    fill: Fill,
) -> None:
    fill.load(fill.commit([row(1), row(2), row(3)]))
    fill.load(
        fill.commit([{"id": 1}], load_as="mark", at=NOON),
        fill.commit([{"id": 1}], [{"id": 2}], load_as="mark", at=LATER),
    )
    assert fill.rows("id, _deleted_at") == [(1, AT_NOON), (2, AT_LATER), (3, None)]


def test_a_marked_row_that_comes_back_loses_its_mark(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a"), row(2, "b")]))
    fill.load(fill.commit([{"id": 1}, {"id": 2}], load_as="mark", at=NOON))
    fill.load(fill.commit([row(1, "back")]))
    assert fill.rows("id, name, _deleted_at") == [(1, "back", None), (2, "b", AT_NOON)]
    fill.load(fill.commit([{"id": 1}], load_as="mark", at=LATER))
    assert fill.rows("id, _deleted_at") == [(1, AT_LATER), (2, AT_NOON)]


def test_a_reload_of_the_whole_log_marks_and_removes_the_same_rows(fill: Fill) -> None:
    commits = [
        fill.commit([row(1), row(2), row(3), row(4)]),
        fill.commit([{"id": 1}, {"id": 2}], load_as="mark", at=NOON),
        fill.commit([row(2, "back")]),
        fill.commit([{"id": 3}], load_as="delete"),
    ]
    for commit in commits:
        fill.load(commit)
    before = fill.rows("id, name, _deleted_at")
    assert before == [(1, None, AT_NOON), (2, "back", None), (4, None, None)]
    fill.place.open().set_epoch(TargetFiller("pipe-1", "log-1", "shop.orders", 9), "orders")
    fill.epoch = 9
    for commit in commits:
        fill.load(commit)
    assert fill.rows("id, name, _deleted_at") == before


def test_marks_find_a_key_that_is_stored_in_another_case_and_an_upsert_of_it_clears_them(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1), code("x", 2), code("y", 3)]))
    keys: list[dict[str, Any]] = [
        {"code": "ABC", "_floodmark_key": b"ABC"},
        {"code": "x", "_floodmark_key": None},
    ]
    fill.load(fill.commit(keys, load_as="mark", at=NOON))
    assert fill.rows("code, n, _deleted_at") == [("abc", 1, AT_NOON), ("x", 2, AT_NOON), ("y", 3, None)]
    fill.load(fill.commit([code("Abc", 9)]))
    assert fill.rows("code, n, _deleted_at") == [("Abc", 9, None), ("x", 2, AT_NOON), ("y", 3, None)]


def test_keys_without_a_weight_are_deleted_by_their_bytes(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1), code("x", 2)]))
    fill.load(fill.commit([{"code": "abc", "_floodmark_key": None}], load_as="delete"))
    assert fill.rows("code, n") == [("x", 2)]
    fill.load(fill.commit([code("ABC", 3)]))
    assert fill.rows("code, n") == [("ABC", 3), ("x", 2)]


def test_composite_keys_are_marked_column_by_column(fill: Fill) -> None:
    fill.table = changed(ORDERS, columns=(ID_COLUMN, replace(INT, nullable=False), SEEN), key=("id", "n"))
    fill.load(fill.commit([{"id": 1, "n": 1}, {"id": 1, "n": 3}, {"id": 2, "n": 1}]))
    fill.load(fill.commit([{"id": 1, "n": 3}, {"id": 2, "n": 2}], load_as="mark", at=NOON))
    assert fill.rows("id, n, _deleted_at") == [(1, 1, None), (1, 3, AT_NOON), (2, 1, None)]


def test_marks_into_a_missing_target_create_it(fill: Fill) -> None:
    fill.load(fill.commit([{"id": 1}], load_as="mark", at=NOON))
    assert fill.rows("id, _deleted_at") == [] and fill.ledger() == [1]


def test_a_mark_whose_commit_response_was_lost_is_found_in_the_ledger(fill: Fill) -> None:
    fill.load(fill.commit([row(1), row(2)]))
    fill.warehouse = fill.place.losing("after")
    fill.load(fill.commit([{"id": 1}], load_as="mark", at=NOON))
    assert fill.rows("id, _deleted_at") == [(1, AT_NOON), (2, None)] and fill.ledger() == [1, 2]
