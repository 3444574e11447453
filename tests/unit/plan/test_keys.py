"""Keys of the log, cut into slices and questions: decided without a source."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from floodmark.model.keys import distinct, keys_of, runs, values_of
from floodmark.model.table import Column, Table
from floodmark.model.types import TWIN, fields
from floodmark.model.window import Slice
from floodmark.plan.keys import KEYS_PER_SLICE, slices
from floodmark.source.sql import any_of, selects
from tests.support.described import described


def of(*columns: Column) -> Table:
    return described("s", "t", columns, tuple(c.name for c in columns), None, "upsert", "t")


BIG = Column("id", "bigint", "bigint", nullable=False)
UNSIGNED = Column("id", "bigint unsigned", "bigint", nullable=False)
TEXT = Column("c", "varchar(9)", "varchar", False, 9, charset="utf8mb4", collation="utf8mb4_general_ci")
IDS, UNSIGNED_IDS, PAIRS = of(BIG), of(UNSIGNED), of(Column("a", "int", "int", nullable=False), TEXT)


def numbers(*values: int, table: Table = IDS) -> pa.Table:
    return pa.table({"id": pa.array(values, fields(table)[0].arrow)})


def asked(table: Table, keys: pa.Table) -> list[str]:
    return [q.partition(" WHERE ")[2] for q in selects(table, Slice("keys", 0, keys=keys))]


def test_keys_are_sorted_and_named_once() -> None:
    found = distinct(numbers(5, 3, 5, -1, 3, 3))
    assert found.column("id").to_pylist() == [-1, 3, 5]
    pairs = pa.table({"a": [2, 1, 2, 1, None, None], "c": ["x", "b", "x", "B", "n", "n"]})
    assert set(keys_of(PAIRS, distinct(pairs))) == {(1, "B"), (1, "b"), (2, "x"), (None, "n")}
    assert distinct(pairs).num_rows == 4 and distinct(pairs.slice(0, 0)).num_rows == 0


def test_numbers_close_together_are_a_run_and_others_are_not() -> None:
    scattered = range(0, 100_000, 50)
    dense = range(200_000, 201_000, 2)
    keys = numbers(*scattered, *dense)
    assert runs(IDS, keys) == [(2000, 2500)]
    assert runs(IDS, numbers(*range(0, 1000, 5))) == [], "five numbers for each key: lookups are cheaper"
    assert runs(IDS, numbers(*range(100))) == [], "too few to pay for a statement"
    assert runs(PAIRS, pa.table({"a": range(500), "c": ["x"] * 500})) == []


@pytest.mark.parametrize(
    ("table", "first"), [(IDS, -(2**63)), (IDS, -100), (IDS, 2**63 - 300), (UNSIGNED_IDS, 2**64 - 300)]
)
def test_runs_reach_to_the_ends_of_a_type(table: Table, first: int) -> None:
    far = [0] if abs(first) > 2**60 else [2**62]
    keys = distinct(numbers(*far, *range(first, first + 300), table=table))
    [(begin, end)] = runs(table, keys)
    assert keys_of(table, keys)[begin:end] == [(n,) for n in range(first, first + 300)]
    assert f"(`id` BETWEEN {first} AND {first + 299})" in asked(table, keys)


def test_a_run_is_read_as_a_range_and_its_neighbours_as_a_list() -> None:
    keys = numbers(1, 50, *range(1000, 1300), 9000)
    assert asked(IDS, keys) == ["(`id` BETWEEN 1000 AND 1299)", "((`id` IN (1, 50, 9000)))"]


def test_lists_stay_below_the_length_from_which_mariadb_joins() -> None:
    questions = asked(IDS, numbers(*range(0, 100_000, 10)))
    assert [q.count(",") + q.count(" IN ") for q in questions] == [4500, 4500, 1000]
    assert all(part.count(",") < 900 for q in questions for part in q.split(" OR "))


def test_keys_that_share_their_first_columns_share_a_list() -> None:
    keys = [(1, "a"), (1, "b"), (2, "a")]
    assert any_of(PAIRS, keys) == (
        "(`a` = 1 AND `c` IN (_utf8mb4 X'61', _utf8mb4 X'62')) OR (`a` = 2 AND `c` IN (_utf8mb4 X'61'))"
    )
    assert any_of(PAIRS, [(1, None), (None, "a")]) == (
        "(`a` = 1 AND `c` IS NULL) OR (`a` IS NULL AND `c` IN (_utf8mb4 X'61'))"
    )
    assert any_of(PAIRS, []) == any_of(IDS, []) == "FALSE"


def test_a_question_joins_no_more_conditions_than_a_row_is_quickly_compared_with() -> None:
    keys = pa.table({"a": pa.array(range(1000), pa.int32()), "c": ["x"] * 1000})
    assert [q.count(" OR ") + 1 for q in asked(PAIRS, keys)] == [400, 400, 200]


@pytest.mark.parametrize("count", [0, 1, 499, 10_000, 200_001])
def test_slices_hold_every_key_once_and_take_only_their_own_along(count: int) -> None:
    keys = numbers(*range(0, count * 100, 100))
    pieces = slices(IDS, keys)
    held = [key for piece in pieces if piece.keys is not None for key in keys_of(IDS, piece.keys)]
    assert held == keys_of(IDS, keys)
    assert all(0 < piece.rows <= KEYS_PER_SLICE for piece in pieces)
    assert [piece.number for piece in pieces] == list(range(len(pieces)))
    assert all(len(pickle.dumps(piece)) < 10 * piece.rows + 5000 for piece in pieces)


def test_a_few_keys_are_one_slice_and_many_are_spread() -> None:
    assert len(slices(IDS, numbers(*range(0, 40_000, 100)))) == 1
    assert len(slices(IDS, numbers(*range(0, 400_000, 100)))) == 8
    assert len(slices(IDS, numbers(*range(0, 100_000_000, 100)))) == 50


def test_slices_of_a_run_are_ten_times_as_large() -> None:
    assert [piece.rows for piece in slices(IDS, numbers(*range(2_000_000)))] == [200_000] * 10


DECIMAL = Column("k", "decimal(9,2)", "decimal", nullable=False, precision=9, scale=2)
ENUM = Column("k", "enum('b','a','')", "enum", nullable=False)
SET = Column("k", "set('b','a')", "set", nullable=False)
MOMENT = Column("k", "datetime(3)", "datetime", nullable=False, fraction=3)


@pytest.mark.parametrize(
    ("column", "cells", "values"),
    [
        (DECIMAL, pa.array(["1.50", "-0.10"]).cast(pa.decimal128(9, 2)), ["1.50", "-0.10"]),
        (UNSIGNED, pa.array(["18446744073709551615"]).cast(pa.decimal128(20, 0)), [2**64 - 1]),
        (ENUM, pa.array(["a", "", f"{TWIN}0", None]), [2, 3, 0, None]),
        (SET, pa.array(["b,a", ""]), [3, 0]),
        (Column("k", "bit(1)", "bit", precision=1), pa.array([True, False]), [1, 0]),
        (Column("k", "binary(3)", "binary"), pa.array([b"\0a\0"]), ["0x006100"]),
        (MOMENT, pa.array([-62167219200000000], pa.timestamp("us", "UTC")), ["0000-01-01 00:00:00.000000"]),
        (Column("k", "date", "date"), pa.array([-719528], pa.date32()), ["0000-01-01"]),
    ],
)
def test_a_files_cells_are_the_values_that_positions_hold(
    column: Column, cells: Any, values: list[Any]
) -> None:
    assert values_of(column, cells) == values
