"""Detects whether rows have changed: one hash over all of them, in order, as a file would hold them.

It depends only on the rows: not on how they are split into batches, nor on what memory holds in place of a
NULL. Equal fingerprints mean equal rows. Rows in a different order have a different one, which costs a
snapshot but loses nothing.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.model.canonical import Digest, forms
from floodmark.model.row_hash import Sums, hashes
from floodmark.model.table import Table
from floodmark.model.types import LONG, fields
from floodmark.model.warehouse import UNLIMITED


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


class SnapshotSums:
    """The digest of a stream of record batches, by which verify recognizes the rows in a target that hands them out."""

    def __init__(self, table: Table, key: bytes) -> None:
        names = [field.name for field in fields(table)]
        self._columns = [names.index(form.field.name) for form in forms(table, UNLIMITED)]
        self._key = key
        self._sums = Sums()

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the rows of a batch."""
        if batch.num_rows:
            self._sums.add(hashes([batch.columns[i] for i in self._columns], self._key))

    def digest(self) -> Digest:
        return self._sums.digests()[0]


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
