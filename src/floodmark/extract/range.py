"""The lowest and highest position in a data file, found column by column with Arrow.

Positions compare by cursor, then key; text by its bytes, because only MySQL can apply the collation. Rows
without a cursor have no position. Values are in MySQL's form, as defined by `model.Value`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.model.position import Position, Value
from floodmark.model.table import Column, Table


class Extremes:
    """Tracks the extremes over a stream of record batches of one table."""

    def __init__(self, table: Table) -> None:
        self._columns = [table.column(name) for name in table.order]
        self._low: list[pa.Scalar[Any]] | None = None
        self._high: list[pa.Scalar[Any]] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes the batch's rows into account."""
        if not self._columns:
            return
        columns = [batch.column(c.name) for c in self._columns]
        self._low = _further(columns, self._low, "min")
        self._high = _further(columns, self._high, "max")

    @property
    def first(self) -> Position | None:
        return self._position(self._low)

    @property
    def last(self) -> Position | None:
        return self._position(self._high)

    def _position(self, scalars: Sequence[pa.Scalar[Any]] | None) -> Position | None:
        if scalars is None:
            return None
        return tuple(_value(c, s) for c, s in zip(self._columns, scalars, strict=True))


def _further(
    columns: Sequence[pa.Array[Any]], best: list[pa.Scalar[Any]] | None, end: str
) -> list[pa.Scalar[Any]] | None:
    """The extreme row of these columns, or the best so far if that is more extreme."""
    found = pc.min_max(columns[0])[end]
    if not found.is_valid:
        return best
    if best is not None:
        closer = pc.less if end == "min" else pc.greater
        if closer(best[0], found).as_py():
            return best
    row, rest = [found], list(columns)
    while len(row) < len(columns):
        # Keep only the rows that match the values found so far.
        ties = pc.equal(rest[0], row[-1])
        rest = [column.filter(ties) for column in rest[1:]]
        row.append(pc.min_max(rest[0])[end])
    return row if best is None else _outer(row, best, end)


def _outer(row: list[pa.Scalar[Any]], best: list[pa.Scalar[Any]], end: str) -> list[pa.Scalar[Any]]:
    for mine, theirs in zip(row, best, strict=True):
        if not mine.equals(theirs):
            less = bool(pc.less(mine, theirs).as_py())
            return row if less == (end == "min") else best
    return best


def _value(column: Column, scalar: pa.Scalar[Any]) -> Value:
    """The value as used in a position."""
    if pa.types.is_timestamp(scalar.type):
        # Not through datetime: MySQL's years start at 0000.
        text = scalar.cast(pa.timestamp("us")).cast(pa.string()).as_py()
        return str(text)
    value = scalar.as_py()
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if column.data_type == "enum":
        return column.members.index(value) + 1 if value in column.members else 0
    if column.data_type == "set":
        return sum(1 << column.members.index(v) for v in value.split(",")) if value else 0
    if isinstance(value, int):
        return int(value)
    if pa.types.is_decimal(scalar.type) and column.data_type != "decimal":
        return int(value)  # BIGINT UNSIGNED, BIT(64)
    return format(value, "f") if isinstance(value, Decimal) else str(value)
