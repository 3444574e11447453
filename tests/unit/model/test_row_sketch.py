"""Sketches: which rows two sets don't share, recovered from sums alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from floodmark.model.row_hash import hashes
from floodmark.model.row_sketch import MOST_CELLS, Sketch, Sketches, recovered

KEY = bytes(range(16))
Row = tuple[int, ...]  # the key's words, then a value


def sketch(rows: Sequence[Row], cells: int = 100, batch: int = 1000) -> Sketch:
    words = len(rows[0]) - 1 if rows else 1
    made = Sketches(cells, words)
    for at in range(0, len(rows), batch):
        columns = [np.array(column, np.int64) for column in zip(*rows[at : at + batch], strict=True)]
        made.add(hashes([pa.array(c) for c in columns], KEY), [c.view(np.uint64) for c in columns[:-1]])
    return made.made()[0]


def told(mine: Sketch, theirs: Sketch, words: int = 1) -> set[tuple[Any, ...]] | None:
    found = recovered(mine, theirs, words)
    if found is None:
        return None
    keys = zip(*(word.view(np.int64).tolist() for word in found.key), strict=True)
    return {(*key, side) for key, side in zip(keys, found.mine.tolist(), strict=True)}


def test_rows_that_only_one_set_has_are_told_with_their_side() -> None:
    rows = [(n - 5000, n) for n in range(10_000)]
    other = [row for row in rows if row[0] % 100] + [(77_777, 1), (-(2**63), 2)]
    other[50] = (other[50][0], -1)
    expected = {(n, True) for n in range(-5000, 5000, 100)}
    expected |= {(77_777, False), (-(2**63), False), (other[50][0], True), (other[50][0], False)}
    assert told(sketch(rows), sketch(other, batch=7000)) == expected
    assert told(sketch(rows), sketch(rows[::-1])) == set()


@pytest.mark.parametrize("words", range(1, 7))
def test_a_key_may_have_several_words(words: int) -> None:
    rows = [(*(n * (w + 1) for w in range(words)), n) for n in range(500)]
    assert told(sketch(rows), sketch(rows[:-1]), words) == {(*rows[-1][:-1], True)}


def test_many_mixed_differences_are_all_told_or_none() -> None:
    """The sum of several rows is never mistaken for a row, however rows of both sides mix in a cell."""
    dice = random.Random(7)
    complete = 0
    for count in range(20, 300, 10):
        mine = [(dice.randrange(2**40), 1) for _ in range(count)]
        theirs = [(dice.randrange(2**40), 1) for _ in range(count)]
        found = told(sketch(mine), sketch(theirs))
        assert found is None or found == {(k, True) for k, _ in mine} | {(k, False) for k, _ in theirs}
        complete += found is not None
    assert 5 < complete < 20


def test_as_many_as_two_percent_are_told_by_a_cell_of_each_table_for_a_hundred_rows() -> None:
    rows = [(n, n) for n in range(50_000)]
    assert len(told(sketch(rows, 500), sketch([r for r in rows if r[0] % 50], 500)) or ()) == 1000
    assert told(sketch(rows, 500), sketch([r for r in rows if r[0] % 25], 500)) is None


def test_a_row_that_is_there_twice_is_told_and_one_that_is_there_more_often_is_not() -> None:
    rows = [(n, n) for n in range(50)]
    assert told(sketch(rows), sketch([*rows, rows[3]])) == {(3, False)}
    assert told(sketch(rows), sketch([*rows, rows[3], rows[3]])) is None


def test_each_part_has_a_sketch_of_its_own() -> None:
    made = Sketches(10, 1, parts=3)
    ids = np.arange(30, dtype=np.int64)
    hashed = hashes([pa.array(ids), pa.array(ids)], KEY)
    made.add(hashed, [ids.view(np.uint64)], np.arange(30) % 3)
    made.add(hashed[:0], [ids[:0].view(np.uint64)], np.arange(0))
    for part, found in enumerate(made.made()):
        assert found == sketch([(n, n) for n in range(part, 30, 3)], 10)
        assert told(found, sketch([(n, n) for n in range(part, 27, 3)], 10)) == {(27 + part, True)}


def test_the_largest_sketch_has_a_place_for_every_row() -> None:
    rows = [(n, n) for n in range(20_000)]
    found = told(sketch(rows, MOST_CELLS), sketch([], MOST_CELLS))
    assert found == {(n, True) for n, _ in rows}
    for cells in (0, MOST_CELLS + 1):
        with pytest.raises(ValueError, match="cells"):
            Sketches(cells, 1)
