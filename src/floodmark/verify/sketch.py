"""Sketches of both sides, which tell the rows that differ without a second read.

A sketch is an invertible Bloom lookup table. Every row is added to three of its cells, chosen by the row's hash. A cell
holds the number of its rows and the sum of their words: the hash's two, a check, and the key's. In the difference of
two sketches, rows that both sets have cancel out. A cell with a single row left tells which; without that row, other
cells have a single one left, and so on. That almost always reaches every row if they are fewer than two thirds of the cells.

A key fits into a sketch if its columns are numbers, dates or times. The sketches are of the rows that the digests are of.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.model.canonical import Form, Printed, Scope, printed
from floodmark.model.row_hash import compiled, hashes, to_hex, words

# The sums of all cells: a block of bytes for each pair of words.
Sketch = tuple[bytes, ...]

# A row is in one cell of each table, chosen by so many bits of its hash.
TABLES = 3
_BITS = 16
# Cells of a table, at most: their product with 16 bits is still an int32.
MOST_CELLS = (1 << 15) - 1
# Rows for each cell of a table, so that three tables recover 2 % of the rows; and cells, at least.
ROWS_PER_CELL = 100
FEW_CELLS = 50
# Bytes of the sketches of all ranges, at most, on either side: a run compares several tables at once. Those of a large
# table have fewer cells.
MOST_BYTES = 16_000_000
# A key of more words would make sketches too expensive.
MOST_WORDS = 5
# The words of a row before its key's: its hash, and a check that a sum of several rows doesn't pass.
_BEFORE_KEY = 3
# Bytes of a sum: a count, and two words that are added as one number.
_SUM = 24


def key_words(scope: Scope) -> int:
    """How many words a key has; 0: it doesn't fit into a sketch."""
    if not scope.ordered or not scope.keys:
        return 0
    count = sum(_words(form) for form in scope.keys)
    return count if count <= MOST_WORDS else 0


def cells_for(scope: Scope, rows: int, ranges: int) -> int:
    """The cells of a table in the sketch of each of these ranges, which have so many rows together; 0: no sketches."""
    if not key_words(scope) or scope.skipped:  # the warehouse's sums include rows that were skipped
        return 0
    most = MOST_BYTES // (ranges * bytes_of(scope, 1))
    cells = min(most, MOST_CELLS, max(FEW_CELLS, rows // ranges // ROWS_PER_CELL))
    return cells if cells >= FEW_CELLS else 0


def bytes_of(scope: Scope, cells: int) -> int:
    """The size of a sketch with so many cells in a table."""
    return TABLES * cells * _SUM * _blocks(scope)


def _blocks(scope: Scope) -> int:
    return -(-(_BEFORE_KEY + key_words(scope)) // 2)


class Sketches:
    """The sketches of ranges, filled batch by batch."""

    def __init__(self, scope: Scope, cells: int, ranges: int = 1) -> None:
        """`cells`: in each of the three tables."""
        if not 0 < cells <= MOST_CELLS:
            raise ValueError(f"a table of {cells} cells")
        self._keys = [(form, scope.forms.index(form)) for form in scope.keys]
        self._cells = cells
        self._null = False  # no words stand for NULL
        self._blocks = [bytearray(TABLES * cells * _SUM * ranges) for _ in range(_blocks(scope))]

    def add(self, columns: Sequence[Any], hashed: Any, numbers: Any = None) -> None:
        """Adds rows, by their columns and hashes; `numbers`: that of each row's range."""
        self._null |= any(columns[at].null_count for _, at in self._keys)
        if len(hashed) and not self._null:
            key = [word for form, at in self._keys for word in packed(form, columns[at])]
            _add(self._blocks, self._cells, words(hashed), key, numbers)

    def made(self) -> list[Sketch]:
        """The sketch of each range; empty if a key was NULL."""
        size = TABLES * self._cells * _SUM
        starts = range(0, len(self._blocks[0]), size)
        return [() if self._null else tuple(bytes(b[at : at + size]) for b in self._blocks) for at in starts]


def _add(
    blocks: Sequence[bytearray], cells: int, hashed: Any, key: Sequence[Any], numbers: Any = None
) -> None:
    """Adds rows by the two words of their hashes, and those of their keys."""
    hashed = np.ascontiguousarray(hashed)
    every = [hashed[:, 0], hashed[:, 1], hashed[:, 0] * hashed[:, 1], *key]
    if len(every) % 2:
        every.append(np.zeros(len(hashed), np.uint64))
    pairs = [np.column_stack(every[at : at + 2]) for at in range(0, len(every), 2)]
    begins = 0 if numbers is None else np.asarray(numbers, np.int32) * np.int32(TABLES * cells)
    for table in range(TABLES):
        chosen = _chosen(hashed, table, cells) + begins
        for pair, sums in zip(pairs, blocks, strict=True):
            compiled.add(pair, chosen, sums)


def _chosen(hashed: Any, table: int, cells: int) -> Any:
    """The number of each row's cell in a table."""
    bits = hashed.view("<u2")[:, table].astype(np.int32)
    return (bits * np.int32(cells) >> _BITS) + np.int32(table * cells)


def _words(form: Form) -> int:
    return 2 if pa.types.is_decimal(form.field.arrow) else 1


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


def unpacked(form: Form, packed: Sequence[Any]) -> Any:
    """The values that have these words."""
    kind = form.field.arrow
    if pa.types.is_decimal(kind):
        buffer = pa.py_buffer(np.column_stack(packed).tobytes())
        return pa.Array.from_buffers(pa.decimal128(38, kind.scale), len(packed[0]), [None, buffer])
    values = pa.array(packed[0].view(np.int64))
    return values.cast(pa.int32()).cast(pa.date32()) if pa.types.is_date(kind) else values


# ---------------------------------------------------------------- rows that only one of two sides has


def differing(
    scope: Scope, mine: Sketch, theirs: Sketch, beyond: Collection[str]
) -> dict[Printed, bool] | None:
    """The keys whose rows differ, and whether the warehouse has a row with it; None if the sketches can't tell.

    `beyond`: the hashed keys of rows outside the scope, whatever the warehouse has of them.
    """
    found = _recovered(mine, theirs, key_words(scope)) if mine and theirs else None
    if found is None or not len(found[1]):
        return None
    word, is_mine = iter(found[0]), found[1]
    keys = [unpacked(form, [next(word) for _ in range(_words(form))]) for form in scope.keys]
    texts = zip(*(printed(form, key) for form, key in zip(scope.keys, keys, strict=True)), strict=True)
    passed, hashed = set(beyond), [""] * len(is_mine)
    if passed:
        assert scope.hash_key is not None
        hashed = to_hex(hashes(keys, scope.hash_key))
    suspects: dict[Printed, bool] = {}
    for key, text, ours in zip(texts, hashed, is_mine.tolist(), strict=True):
        if text not in passed:
            suspects[key] = not ours or suspects.get(key, False)
    return suspects


def _recovered(mine: Sketch, theirs: Sketch, count: int) -> tuple[list[Any], Any] | None:
    """The words of the keys of rows that only one side has, and whether it is the first.

    None if there are too many, or one side has a row several times more.
    """
    cells = len(mine[0]) // (TABLES * _SUM)
    sides = [[bytearray(block) for block in sketch] for sketch in (mine, theirs)]
    keys, is_mine = [[np.zeros(0, np.uint64)] * count], [np.zeros(0, bool)]
    for _ in range(TABLES * cells):
        row, ours = _single(_difference(*sides), cells)
        if not len(ours):
            break
        hashed, key = np.column_stack(row[:2]), row[_BEFORE_KEY : _BEFORE_KEY + count]
        keys.append(key)
        is_mine.append(ours)
        for lacks, which in zip(sides, (~ours, ours), strict=True):
            _add(lacks, cells, hashed[which], [word[which] for word in key])
    if any(column.any() for block in _difference(*sides) for column in block):
        return None
    return [np.concatenate(some) for some in zip(*keys, strict=True)], np.concatenate(is_mine)


def _difference(mine: Sequence[bytearray], theirs: Sequence[bytearray]) -> list[tuple[Any, Any, Any]]:
    """What is left in each cell, block by block: counts, low words, high words, all modulo 2**64."""
    left = []
    for ours, others in zip(mine, theirs, strict=True):
        a, b = (np.frombuffer(block, np.uint64).reshape(-1, 3) for block in (ours, others))
        borrowed = a[:, 1] < b[:, 1]
        left.append((a[:, 0] - b[:, 0], a[:, 1] - b[:, 1], a[:, 2] - b[:, 2] - borrowed))
    return left


def _single(left: Sequence[tuple[Any, Any, Any]], cells: int) -> tuple[list[Any], Any]:
    """The words of the rows that are alone in a cell, each once, and whether each is of the first side."""
    counts = left[0][0].view(np.int64)
    [which] = np.nonzero(np.abs(counts) == 1)
    is_mine = counts[which] == 1
    row: list[Any] = []
    for _, low, high in left:
        low, high = low[which], high[which]
        row += [np.where(is_mine, low, -low), np.where(is_mine, high, ~high + (low == 0))]
    hashed = np.column_stack(row[:2])
    here = np.choose(which // cells, [_chosen(hashed, table, cells) for table in range(TABLES)]) == which
    good = here & (row[0] * row[1] == row[2])
    _, once = np.unique(row[0][good], return_index=True)
    return [word[good][once] for word in row], is_mine[good][once]
