"""Differences that sketches of both sides tell, without a second read: how large sketches are, keys as their words.

A key fits into a sketch if its columns are numbers, dates or times. The sketches are of the rows that the digests are of.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.model.canonical import Form, Printed, Scope, printed
from floodmark.model.row_hash import hashes, to_hex
from floodmark.model.row_sketch import MOST_CELLS, TABLES, Sketch, Sketches, bytes_per_cell, recovered

# Rows for each cell of a table, so that three tables recover 2 % of the rows; and cells, at least.
ROWS_PER_CELL = 100
FEW_CELLS = 50
# Bytes of the sketches of all ranges, at most, on either side: a run compares several tables at once. Those of a large
# table have fewer cells.
MOST_BYTES = 16_000_000
# A key of more words would make sketches too expensive.
MOST_WORDS = 5


def key_words(scope: Scope) -> int:
    """How many words a key has; 0: it doesn't fit into a sketch."""
    if not scope.ordered or not scope.keys:
        return 0
    words = sum(_words(form) for form in scope.keys)
    return words if words <= MOST_WORDS else 0


def cells_for(scope: Scope, rows: int, ranges: int) -> int:
    """The cells of a table in the sketch of each of these ranges, which have so many rows together; 0: no sketches."""
    words = key_words(scope)
    if not words or scope.skipped:  # the warehouse's sums include rows that were skipped
        return 0
    most = MOST_BYTES // (ranges * TABLES * bytes_per_cell(words))
    cells = min(most, MOST_CELLS, max(FEW_CELLS, rows // ranges // ROWS_PER_CELL))
    return cells if cells >= FEW_CELLS else 0


def _words(form: Form) -> int:
    return 2 if pa.types.is_decimal(form.field.arrow) else 1


class KeyedSketches:
    """The sketches of ranges, filled batch by batch."""

    def __init__(self, scope: Scope, cells: int, ranges: int = 1) -> None:
        self._keys = [(form, scope.forms.index(form)) for form in scope.keys]
        self._ranges = ranges
        self._sketches: Sketches | None = Sketches(cells, key_words(scope), ranges)

    def add(self, columns: Sequence[Any], hashed: Any, numbers: Any = None) -> None:
        """Adds rows, by their columns and hashes; `numbers`: that of each row's range."""
        if any(columns[at].null_count for _, at in self._keys):
            self._sketches = None  # no words stand for NULL
        if self._sketches is not None:
            words = [word for form, at in self._keys for word in packed(form, columns[at])]
            self._sketches.add(hashed, words, numbers)

    def made(self) -> list[Sketch]:
        """The sketch of each range; empty if a key was NULL."""
        return self._sketches.made() if self._sketches is not None else [()] * self._ranges


def packed(form: Form, values: Any) -> list[Any]:
    """A key column's values as words."""
    kind = form.field.arrow
    if pa.types.is_decimal(kind):
        values = values.cast(pa.decimal128(38, kind.scale))
        both = np.frombuffer(values.buffers()[1], np.uint64).reshape(-1, 2)
        both = both[values.offset : values.offset + len(values)]
        return [both[:, 0], both[:, 1]]
    if pa.types.is_date(kind):
        values = values.cast(pa.int32())
    return [values.cast(pa.int64()).to_numpy().view(np.uint64)]


def unpacked(form: Form, words: Sequence[Any]) -> Any:
    """The values that have these words."""
    kind = form.field.arrow
    if pa.types.is_decimal(kind):
        buffer = pa.py_buffer(np.column_stack(words).tobytes())
        return pa.Array.from_buffers(pa.decimal128(38, kind.scale), len(words[0]), [None, buffer])
    values = pa.array(words[0].view(np.int64))
    return values.cast(pa.int32()).cast(pa.date32()) if pa.types.is_date(kind) else values


def differing(
    scope: Scope, mine: Sketch, theirs: Sketch, beyond: Collection[str]
) -> dict[Printed, bool] | None:
    """The keys whose rows differ, and whether the warehouse has a row with it; None if the sketches can't tell.

    `beyond`: the hashed keys of rows outside the scope, whatever the warehouse has of them.
    """
    found = recovered(mine, theirs, key_words(scope)) if mine and theirs else None
    if found is None or not len(found.mine):
        return None
    words = iter(found.key)
    keys = [unpacked(form, [next(words) for _ in range(_words(form))]) for form in scope.keys]
    texts = zip(*(printed(form, key) for form, key in zip(scope.keys, keys, strict=True)), strict=True)
    passed, hashed = set(beyond), [""] * len(found.mine)
    if passed:
        assert scope.hash_key is not None
        hashed = to_hex(hashes(keys, scope.hash_key))
    suspects: dict[Printed, bool] = {}
    for key, text, is_mine in zip(texts, hashed, found.mine.tolist(), strict=True):
        if text not in passed:
            suspects[key] = not is_mine or suspects.get(key, False)
    return suspects
