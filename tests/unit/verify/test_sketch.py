"""Sketches of both sides: their size, keys as words, and which rows two sets don't share, told from sums alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodmark.model.canonical import Scope, forms, printed
from floodmark.model.errors import DataError
from floodmark.model.row_hash import hashes, to_hex
from floodmark.model.table import Column
from floodmark.model.warehouse import DUCKDB
from floodmark.verify.sketch import (
    MOST_BYTES,
    MOST_CELLS,
    Sketch,
    Sketches,
    bytes_of,
    cells_for,
    differing,
    key_words,
    packed,
    unpacked,
)
from tests.support.described import described

KEY = bytes(range(16))
ID = Column("id", "int(11)", "int", nullable=False)
HUGE = Column("huge", "bigint(20) unsigned", "bigint", nullable=False)
PRICE = Column("price", "decimal(20,9)", "decimal", nullable=False, precision=20, scale=9)
DAY = Column("day", "date", "date", nullable=False)
WALL = Column("wall", "datetime(6)", "datetime", nullable=False, fraction=6)
AT = Column("at", "timestamp(6)", "timestamp", nullable=False, fraction=6)
NAME = Column(
    "name", "varchar(9)", "varchar", nullable=False, characters=9, charset="utf8mb4", collation="utf8mb4_bin"
)


def scope(*key: Column) -> Scope:
    table = described(
        "s", "t", (*key, replace(NAME, name="v")), tuple(c.name for c in key), None, "full", "t"
    )
    return Scope(table, forms(table, DUCKDB), hash_key=KEY)


def sketch(seen: Scope, *keys: Any, values: str = "v") -> Sketch:
    columns = [*keys, pa.array([values] * len(keys[0]), pa.string())]
    made = Sketches(seen, 50)
    made.add(columns, hashes(columns, KEY))
    [found] = made.made()
    return found


def decimals(*texts: str, digits: int = 20, scale: int = 9) -> Any:
    return pa.array(texts).cast(pa.decimal128(digits, scale))


VALUES = {
    "int": (ID, pa.array([-5, 0, 2**31 - 1], pa.int32())),
    "int in a wider column": (ID, pa.array([-5, 0, 2**31 - 1], pa.int64())),
    "unsigned": (HUGE, decimals("18446744073709551615", "0", scale=0)),
    "decimal": (PRICE, decimals("0.000000001", "-0.5", "12", "-99999999999.999999999")),
    "decimal with more digits": (PRICE, decimals("0.000000001", "-0.5", digits=38)),
    "date": (DAY, pa.array([-719_468, 0, 2_932_896], pa.int32()).cast(pa.date32())),
    "datetime": (WALL, pa.array([-1, 0, 253_402_300_799_999_999], pa.int64()).cast(pa.timestamp("us"))),
    "timestamp": (AT, pa.array([1, 1_700_000_000_000_004], pa.int64()).cast(pa.timestamp("us", "UTC"))),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_key_is_the_same_after_its_way_through_a_sketch(kind: str) -> None:
    column, values = VALUES[kind]
    seen = scope(column)
    [form] = seen.keys
    assert printed(form, unpacked(form, packed(form, values))) == printed(form, values)
    assert printed(form, unpacked(form, packed(form, values[1:]))) == printed(form, values[1:])
    found = differing(seen, sketch(seen, values), sketch(seen, values[:0]), ())
    assert found == {(text,): False for text in printed(form, values)}
    again = hashes([unpacked(form, packed(form, values))], KEY)
    assert to_hex(again) == to_hex(hashes([values], KEY)), "left-out rows are known by that"


def test_a_composite_key_has_the_words_of_all_its_columns() -> None:
    seen = scope(PRICE, DAY, ID)
    assert key_words(seen) == 4
    ids, days = pa.array([1, 2], pa.int32()), pa.array([0, 1], pa.int32()).cast(pa.date32())
    prices = decimals("-1.5", "2")
    columns = (prices, days, ids)
    mine, theirs = sketch(seen, *columns), sketch(seen, *(c[:1] for c in columns), values="other")
    assert differing(seen, mine, theirs, ()) == {
        ("-1.500000000", "1970-01-01", "1"): True,
        ("2.000000000", "1970-01-02", "2"): False,
    }


def test_rows_outside_the_scope_are_ignored_by_their_hashed_keys() -> None:
    seen = scope(ID)
    ids = pa.array([1, 2, 3], pa.int32())
    beyond = to_hex(hashes([ids[1:2]], KEY))
    assert differing(seen, sketch(seen, ids[:0]), sketch(seen, ids), beyond) == {("1",): True, ("3",): True}
    assert differing(seen, sketch(seen, ids[:0]), sketch(seen, ids[1:2]), beyond) == {}


def test_sketches_that_are_equal_or_lacking_tell_nothing() -> None:
    """Where the sums differ all the same, the rows are listed."""
    seen = scope(ID)
    some = sketch(seen, pa.array([1, 2], pa.int32()))
    assert differing(seen, some, some, ()) is None
    assert differing(seen, some, (), ()) is None and differing(seen, (), some, ()) is None


def test_a_key_that_is_null_in_the_warehouse_spoils_all_sketches() -> None:
    seen = scope(ID)
    made = Sketches(seen, 50, ranges=2)
    for ids in (pa.array([1, None], pa.int32()), pa.array([2, 3], pa.int32())):
        columns = [ids, pa.array(["a", "b"])]
        made.add(columns, hashes(columns, KEY), pa.array([0, 1]).to_numpy())
    assert made.made() == [(), ()]


def test_a_key_that_no_source_row_can_have_is_refused_as_in_a_listing() -> None:
    seen = scope(WALL)
    endless = pa.array([2**63 - 1], pa.int64()).cast(pa.timestamp("us"))
    with pytest.raises(DataError, match="infinity in the key column wall"):
        differing(seen, sketch(seen, endless[:0]), sketch(seen, endless), ())


@pytest.mark.parametrize(
    ("key", "rows", "ranges", "cells"),
    [
        ((ID,), 0, 1, 50),
        ((ID,), 2_000_000, 8, 2500),
        ((ID,), 10**9, 1, 32_767),
        ((ID,), 250_000_000, 1000, 111),  # no more memory than for a smaller table
        ((ID,), 10**9, 4000, 0),
        ((NAME,), 2_000_000, 8, 0),
        ((replace(ID, nullable=True),), 2_000_000, 8, 0),
        ((PRICE, HUGE, DAY), 2_000_000, 8, 2500),
        ((PRICE, HUGE, DAY, ID), 2_000_000, 8, 0),
    ],
)
def test_the_size_of_sketches_depends_on_the_rows_and_the_key(
    key: tuple[Column, ...], rows: int, ranges: int, cells: int
) -> None:
    seen = scope(*key)
    assert cells_for(seen, rows, ranges) == cells
    assert not cells or ranges * bytes_of(seen, cells) <= MOST_BYTES
    assert cells_for(replace(seen, skipped=((None, (5,)),)), rows, ranges) == 0


# ---------------------------------------------------------------- which rows differ

Row = tuple[int, ...]  # the key's columns, then a value


def numbered(keys: int = 1) -> Scope:
    key = (replace(HUGE, name=f"k{n}", type="bigint(20)") for n in range(keys))
    columns = (*key, replace(HUGE, name="v", type="bigint(20)"))
    table = described("s", "t", columns, tuple(c.name for c in columns[:-1]), None, "full", "t")
    return Scope(table, forms(table, DUCKDB), hash_key=KEY)


def of_rows(rows: Sequence[Row], cells: int = 100, batch: int = 1000) -> Sketch:
    made = Sketches(numbered(len(rows[0]) - 1 if rows else 1), cells)
    for at in range(0, len(rows), batch):
        columns = [pa.array(column, pa.int64()) for column in zip(*rows[at : at + batch], strict=True)]
        made.add(columns, hashes(columns, KEY))
    return made.made()[0]


def told(mine: Sketch, theirs: Sketch, keys: int = 1) -> dict[tuple[int, ...], bool] | None:
    """Which keys differ, and whether the second side has a row with each."""
    found = differing(numbered(keys), mine, theirs, ())
    return None if found is None else {tuple(int(k or 0) for k in key): there for key, there in found.items()}


def test_rows_that_only_one_set_has_are_told_with_their_side() -> None:
    rows = [(n - 5000, n) for n in range(10_000)]
    other = [row for row in rows if row[0] % 100] + [(77_777, 1), (-(2**63), 2)]
    other[50] = (other[50][0], -1)
    expected = {(n,): False for n in range(-5000, 5000, 100)}
    expected |= {(77_777,): True, (-(2**63),): True, (other[50][0],): True}
    assert told(of_rows(rows), of_rows(other, batch=7000)) == expected


@pytest.mark.parametrize("keys", range(1, 6))
def test_a_key_may_have_several_columns(keys: int) -> None:
    rows = [(*(n * (w + 1) for w in range(keys)), n) for n in range(500)]
    assert told(of_rows(rows), of_rows(rows[:-1]), keys) == {rows[-1][:-1]: False}


def test_many_mixed_differences_are_all_told_or_none() -> None:
    """The sum of several rows is never mistaken for a row, however rows of both sides mix in a cell."""
    dice = random.Random(7)
    complete = 0
    for count in range(20, 300, 10):
        mine = [(dice.randrange(2**40), 1) for _ in range(count)]
        theirs = [(dice.randrange(2**40), 1) for _ in range(count)]
        found = told(of_rows(mine), of_rows(theirs))
        assert found is None or found == {(k,): False for k, _ in mine} | {(k,): True for k, _ in theirs}
        complete += found is not None
    assert 5 < complete < 20


def test_as_many_as_two_percent_are_told_by_a_cell_of_each_table_for_a_hundred_rows() -> None:
    rows = [(n, n) for n in range(50_000)]
    assert len(told(of_rows(rows, 500), of_rows([r for r in rows if r[0] % 50], 500)) or ()) == 1000
    assert told(of_rows(rows, 500), of_rows([r for r in rows if r[0] % 25], 500)) is None


def test_a_row_that_is_there_twice_is_told_and_one_that_is_there_more_often_is_not() -> None:
    rows = [(n, n) for n in range(50)]
    assert told(of_rows(rows), of_rows([*rows, rows[3]])) == {(3,): True}
    assert told(of_rows(rows), of_rows([*rows, rows[3], rows[3]])) is None


def test_each_range_has_a_sketch_of_its_own() -> None:
    made = Sketches(numbered(), 10, ranges=3)
    ids = pa.array(range(30), pa.int64())
    hashed = hashes([ids, ids], KEY)
    made.add([ids, ids], hashed, np.arange(30) % 3)
    made.add([ids[:0], ids[:0]], hashed[:0], np.arange(0))
    for part, found in enumerate(made.made()):
        assert found == of_rows([(n, n) for n in range(part, 30, 3)], 10)
        assert told(found, of_rows([(n, n) for n in range(part, 27, 3)], 10)) == {(27 + part,): False}


def test_the_largest_sketch_has_a_place_for_every_row() -> None:
    rows = [(n, n) for n in range(20_000)]
    assert told(of_rows(rows, MOST_CELLS), of_rows([], MOST_CELLS)) == {(n,): False for n, _ in rows}
    for cells in (0, MOST_CELLS + 1):
        with pytest.raises(ValueError, match="cells"):
            Sketches(numbered(), cells)
