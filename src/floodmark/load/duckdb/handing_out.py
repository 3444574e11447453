"""Rows that leave DuckDB as Arrow columns: in batches bounded by bytes, and in portions bounded by time.

While a query runs, no other process can open the file for writing. So a long one is asked portion by portion.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from floodmark.load.duckdb.errors import said_through_arrow
from floodmark.load.duckdb.file import ROW_GROUP, VECTOR

# Rows and bytes per batch that is handed out.
HANDED_OUT = 8 * VECTOR
BATCH_BYTES = 64_000_000
# Rows of a batch as long as nobody knows how wide they are, but they may be very wide.
UNKNOWN = 128
# Seconds for which rows are handed out before others may have the file, and how much more the next portion may have.
PORTION_SECONDS = 1.0
GROWTH = 8


@dataclass(frozen=True)
class Portion:
    """Rows that are handed out without releasing the file: so many, by DuckDB's row numbers."""

    first: int
    rows: int
    seen: int = 0  # bytes of a row in the batches before it, on average; 0: nothing was handed out yet

    def of(self, table: str, last: bool) -> str:
        """The table, or query in its place, that has these rows; the last portion has all that follow."""
        ends = [f"rowid >= {self.first}"] if self.first else []
        ends += [] if last else [f"rowid < {self.first + self.rows}"]
        return f"(SELECT * FROM {table} WHERE {' AND '.join(ends)})" if ends else table

    def next(self, seconds: float, seen: int = 0) -> Portion:
        """The portion after this one, which took so long and had rows of so many bytes."""
        rows = int(self.rows * min(GROWTH, PORTION_SECONDS / max(seconds, 0.001)))
        return Portion(self.first + self.rows, max(VECTOR, rows // VECTOR * VECTOR), max(seen, self.seen))


def first_portion(width: int) -> Portion:
    """The first rows; only a batch of them if they may be wide."""
    rows = batch_rows(width)
    return Portion(0, 4 * ROW_GROUP if rows == HANDED_OUT else max(VECTOR, rows))


def batch_rows(width: int, seen: int = 0) -> int:
    """Rows per batch, if a row has up to `width` bytes, and had `seen` so far: whole vectors unless they are wide."""
    if width * VECTOR <= BATCH_BYTES:
        return min(HANDED_OUT, BATCH_BYTES // max(1, width) // VECTOR * VECTOR)
    return min(VECTOR, max(1, BATCH_BYTES // seen)) if seen else UNKNOWN


def streamed(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The batches of a running query; if it fails, DuckDB's error."""
    try:
        yield from reader
    except (OSError, pa.ArrowException) as error:
        raise said_through_arrow(error) from error
