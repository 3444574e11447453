"""Which slices are small enough to share a task."""

from __future__ import annotations

from floodmark.model.table import Column
from floodmark.model.window import Slice
from floodmark.sync.passes import SMALL_ROWS, SMALL_WIDE_ROWS, small
from tests.support.described import changed
from tests.support.samples import TABLE


def piece(rows: int) -> Slice:
    return Slice("window", 0, "cursor", rows=rows)


def test_one_slice_of_few_rows_along_an_index_is_small() -> None:
    assert small(TABLE, [piece(1)]) and small(TABLE, [piece(SMALL_ROWS)])
    assert not small(TABLE, [piece(SMALL_ROWS + 1)])
    assert not small(TABLE, [piece(10), piece(10)])  # these are to run side by side
    assert not small(TABLE, [])


def test_a_slice_is_not_small_if_it_may_take_long_for_few_rows() -> None:
    assert not small(changed(TABLE, cursor_index=None), [piece(10)])  # a full scan
    assert small(changed(TABLE, cursor_index=None), [Slice("keys", 0, rows=10)])  # but not of keys
    assert not small(TABLE, [piece(0)])  # nobody has counted
    columns = (*TABLE.source.columns, Column("body", "longtext", "longtext"))
    wide = changed(TABLE, columns=columns)
    assert small(wide, [piece(SMALL_WIDE_ROWS)]) and not small(wide, [piece(SMALL_WIDE_ROWS + 1)])
