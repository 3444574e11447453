"""The files that an extraction writes, and what is found out about their rows on the way.

A file is uploaded only once all its rows have been read. Files from a failed attempt are orphans, because only
returned files are ever committed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.model.commit import DataFile
from floodmark.model.keys import values_of
from floodmark.model.parquet import Footer, data_file, writer
from floodmark.model.position import Position
from floodmark.model.table import Table
from floodmark.model.times import stamp
from floodmark.model.types import LONG, READ_FIELD, file_schema
from floodmark.store.store import Store, file_folders

if TYPE_CHECKING:
    from floodmark.extract.task import SliceJob

# A row group is the unit of parallel reads, and what a worker holds in memory. It ends at whichever comes first.
GROUP_ROWS = 125_000
GROUP_BYTES = 48 << 20
# A column gets a dictionary if less than this share of its values in the first rows are distinct.
REPEATED = 0.5


class DataFiles:
    """Splits a stream of record batches into files, with one file open at a time."""

    def __init__(self, job: SliceJob, store: Store) -> None:
        self.job = job
        self.store = store
        self.read = _read_at(job)
        self.schema = file_schema(job.table)
        if self.read is not None:
            self.schema = self.schema.append(pa.field(READ_FIELD, pa.int64()))
        self.attempt = secrets.token_hex(4)
        self.done: list[DataFile] = []
        self._file: _File | None = None
        self._changed = 0  # values changed by policy, in finished files and the open one
        self._counted = 0  # of these, those in finished files

    def add(self, batch: pa.RecordBatch, changed: int) -> None:
        if self.read is not None:
            reads = pa.repeat(self.read, batch.num_rows)
            batch = pa.RecordBatch.from_arrays([*batch.columns, reads], schema=self.schema)
        while batch.num_rows:
            if self._file is not None and self._file.full:
                self.close()
            if self._file is None:
                self._file = _File(self.job, self.schema, batch)
            room = self.job.max_file_rows - self._file.rows
            self._file.add(batch.slice(0, room))
            batch = batch.slice(room)
        self._changed = changed

    def close(self) -> None:
        """Uploads the open file, if there is one, with a footer that says where it belongs if the log is ever lost."""
        if self._file is None:
            return
        job, piece, file = self.job, self.job.slice, self._file
        self._file = None
        footer = Footer(
            job.table.name, job.log, job.run, job.claim, job.window, piece.kind, piece.number,
            job.table.fingerprint, self.attempt, first=file.extremes.first, last=file.extremes.last,
        )  # fmt: skip
        name = f"{job.claim}-{piece.kind}{piece.number}-{self.attempt}-{len(self.done)}.parquet"
        path = f"{file_folders(job.table.name)[0]}{job.run}/{name}"
        truncated, self._counted = self._changed - self._counted, self._changed
        self.done.append(put_file(self.store, path, file.finish(footer), footer, file.rows, truncated))


def put_file(
    store: Store, path: str, data: pa.Buffer, footer: Footer, rows: int, truncated: int = 0
) -> DataFile:
    etag = store.put(path, memoryview(data))
    return data_file(path, data, footer, rows, truncated=truncated, created_at=stamp(), etag=etag)


def _read_at(job: SliceJob) -> int | None:
    """A number that grows with the log: higher for later claims, and for a window's rows than for reread ones.

    None if rows don't merge by key, or if a column already has the name.
    """
    if not job.table.key or job.slice.kind == "snapshot":
        return None
    if any(column.name.lower() == READ_FIELD for column in job.table.columns):
        return None
    return job.claim * 2 + (job.slice.kind == "window")


class _File:
    """One Parquet file in memory. Row groups are encoded as soon as they are full."""

    def __init__(self, job: SliceJob, schema: pa.Schema, sample: pa.RecordBatch) -> None:
        self.job = job
        self.schema = schema
        self.rows = 0
        self.extremes = Extremes(job.table)
        self._sink = pa.BufferOutputStream()
        # Numbers and times get statistics, because the load checks their ranges; text does not.
        measured = [field.name for field in schema if field.type not in LONG]
        self._writer = writer(
            self._sink, schema, use_dictionary=_repeating(sample), write_statistics=measured
        )
        self._group: list[pa.RecordBatch] = []
        self._size = (0, 0)  # of the group: rows and bytes

    @property
    def full(self) -> bool:
        return self.rows >= self.job.max_file_rows or self._sink.tell() >= self.job.max_file_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        self.extremes.add(batch)
        self.rows += batch.num_rows
        self._group.append(batch)
        self._size = rows, size = self._size[0] + batch.num_rows, self._size[1] + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._group:
            table = pa.Table.from_batches(self._group, self.schema)
            self._group, self._size = [], (0, 0)
            self._writer.write_table(table, row_group_size=table.num_rows)

    def finish(self, footer: Footer) -> pa.Buffer:
        """The finished file."""
        self._flush()
        self._writer.add_key_value_metadata(footer.metadata())
        self._writer.close()
        return self._sink.getvalue()


def _repeating(sample: pa.RecordBatch) -> list[str]:
    """The columns whose values repeat in the first rows: only there does a dictionary pay off."""
    head = sample.slice(0, 2048)
    return [
        name
        for name, column in zip(head.schema.names, head.columns, strict=True)
        if pc.count_distinct(column, mode="all").as_py() < max(2, head.num_rows * REPEATED)
    ]


# ---------------------------------------------------------------- the lowest and highest position


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
        cells = (pa.array([s], s.type) for s in scalars)
        found = (values_of(c, cell)[0] for c, cell in zip(self._columns, cells, strict=True))
        return tuple(value for value in found if value is not None)


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


# ---------------------------------------------------------------- whether rows have changed


class Fingerprint:
    """The hash of a stream of record batches."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows = 0
        # Per column, so that batch boundaries don't matter: validity, lengths, bytes.
        self._hashes = [tuple(hashlib.sha256() for _ in range(3)) for _ in schema]

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the rows of a batch."""
        self._rows += batch.num_rows
        for column, (there, lengths, values) in zip(batch.columns, self._hashes, strict=True):
            there.update(_bytes(pc.is_valid(column)))
            dense: Any = column.drop_null() if column.null_count else column
            if dense.type in LONG:
                lengths.update(_bytes(pc.binary_length(dense)))
                values.update(_joined(dense))
            else:
                values.update(_bytes(dense))

    def text(self) -> str:
        """The fingerprint, once all rows have been added."""
        parts = [
            str(self._schema),
            str(self._rows),
            *(h.hexdigest() for three in self._hashes for h in three),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _bytes(values: Any) -> memoryview:
    """The bytes of fixed-width values without NULLs."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    width, buffer = values.type.bit_width // 8, values.buffers()[1]
    return memoryview(buffer or b"")[values.offset * width : (values.offset + len(values)) * width]


def _joined(values: Any) -> memoryview:
    """The bytes of variable-length values, concatenated."""
    if not len(values):
        return memoryview(b"")
    _, offsets, data = values.buffers()
    ends = memoryview(offsets).cast("q" if values.type in (pa.large_string(), pa.large_binary()) else "i")
    return memoryview(data or b"")[ends[values.offset] : ends[values.offset + len(values)]]
