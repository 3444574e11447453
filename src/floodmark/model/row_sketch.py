"""Sketches of sets of rows: from those of two sets, the rows that only one of them has can be recovered.

A sketch is an invertible Bloom lookup table. Every row is added to three of its cells, chosen by the row's hash. A cell
holds the number of its rows and the sum of their words: the hash's two, a check, and the key's. In the difference of
two sketches, rows that both sets have cancel out. A cell with a single row left tells which; without that row, other
cells have a single one left, and so on. That almost always reaches every row if they are fewer than two thirds of the cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from floodmark.model.row_hash import compiled, raw_bytes

# The sums of all cells: a block of bytes for each pair of words.
Sketch = tuple[bytes, ...]

# A row is in one cell of each table, chosen by so many bits of its hash.
TABLES = 3
_BITS = 16
# Cells of a table, at most: their product with 16 bits is still an int32.
MOST_CELLS = (1 << 15) - 1
# The words of a row before its key's: its hash, and a check that a sum of several rows doesn't pass.
_BEFORE_KEY = 3
# Bytes of a sum: a count, and two words that are added as one number.
_SUM = 24


class Recovered(NamedTuple):
    """Rows that only one of two sets has."""

    key: list[Any]  # the words of their keys: for each word, numpy's array of all rows
    mine: Any  # numpy's array: whether the first set has the row, else the second


class Sketches:
    """Makes the sketches of several parts of a set."""

    def __init__(self, cells: int, key_words: int, parts: int = 1, first: Sketch = ()) -> None:
        """`cells`: in each of the three tables. `first`: the rows of the only part, so far."""
        if not 0 < cells <= MOST_CELLS:
            raise ValueError(f"a table of {cells} cells")
        self._cells = cells
        self._size = TABLES * cells * _SUM
        size = self._size * parts
        self.blocks = [bytearray(block) for block in first or [size] * _blocks(key_words)]

    def add(self, hashed: Any, key: Sequence[Any], parts: Any = None) -> None:
        """Adds rows by their hashes and their keys' words (numpy's uint64); `parts`: the number of each row's part."""
        if len(hashed):
            self.add_words(np.frombuffer(raw_bytes(hashed), np.uint64).reshape(-1, 2), key, parts)

    def add_words(self, hashed: Any, key: Sequence[Any], parts: Any = None) -> None:
        """The same, with the hashes as two columns of words."""
        hashed = np.ascontiguousarray(hashed)
        words = [hashed[:, 0] * hashed[:, 1], *key]
        rows = [hashed]
        for at in range(0, len(words), 2):
            block = np.zeros((len(hashed), 2), np.uint64)
            for i, word in enumerate(words[at : at + 2]):
                block[:, i] = word
            rows.append(block)
        begins = 0 if parts is None else np.asarray(parts, np.int32) * np.int32(TABLES * self._cells)
        for table in range(TABLES):
            cells = _chosen(hashed, table, self._cells) + begins
            for block, sums in zip(rows, self.blocks, strict=True):
                compiled.add(block, cells, sums)

    def made(self) -> list[Sketch]:
        """The sketch of each part."""
        ends = range(0, len(self.blocks[0]), self._size)
        return [tuple(bytes(block[at : at + self._size]) for block in self.blocks) for at in ends]


def bytes_per_cell(key_words: int) -> int:
    """The size of a cell."""
    return _blocks(key_words) * _SUM


def _blocks(key_words: int) -> int:
    return -(-(_BEFORE_KEY + key_words) // 2)


def _chosen(hashed: Any, table: int, cells: int) -> Any:
    """The number of each row's cell in a table."""
    bits = hashed.view("<u2")[:, table].astype(np.int32)
    return (bits * np.int32(cells) >> _BITS) + np.int32(table * cells)


def recovered(mine: Sketch, theirs: Sketch, key_words: int) -> Recovered | None:
    """The rows that only one of two sets has; None if there are too many, or one set has a row several times more."""
    cells = len(mine[0]) // (TABLES * _SUM)
    sides = [Sketches(cells, key_words, first=sketch) for sketch in (mine, theirs)]
    keys, is_mine = [[np.zeros(0, np.uint64)] * key_words], [np.zeros(0, bool)]
    for _ in range(TABLES * cells):
        rows, ours = _single(_difference(*sides), cells)
        if not len(ours):
            break
        hashed, key = np.column_stack(rows[:2]), rows[_BEFORE_KEY : _BEFORE_KEY + key_words]
        keys.append(key)
        is_mine.append(ours)
        for lacks, which in zip(sides, (~ours, ours), strict=True):
            lacks.add_words(hashed[which], [word[which] for word in key])
    if any(column.any() for block in _difference(*sides) for column in block):
        return None
    return Recovered([np.concatenate(words) for words in zip(*keys, strict=True)], np.concatenate(is_mine))


def _difference(mine: Sketches, theirs: Sketches) -> list[tuple[Any, Any, Any]]:
    """What is left in each cell, block by block: counts, low words, high words, all modulo 2**64."""
    left = []
    for ours, others in zip(mine.blocks, theirs.blocks, strict=True):
        a, b = (np.frombuffer(block, np.uint64).reshape(-1, 3) for block in (ours, others))
        borrowed = a[:, 1] < b[:, 1]
        left.append((a[:, 0] - b[:, 0], a[:, 1] - b[:, 1], a[:, 2] - b[:, 2] - borrowed))
    return left


def _single(left: Sequence[tuple[Any, Any, Any]], cells: int) -> tuple[list[Any], Any]:
    """The words of the rows that are alone in a cell, each once, and whether each is of the first set."""
    counts = left[0][0].view(np.int64)
    [which] = np.nonzero(np.abs(counts) == 1)
    is_mine = counts[which] == 1
    words: list[Any] = []
    for _, low, high in left:
        low, high = low[which], high[which]
        words += [np.where(is_mine, low, -low), np.where(is_mine, high, ~high + (low == 0))]
    hashed = np.column_stack(words[:2])
    here = np.choose(which // cells, [_chosen(hashed, table, cells) for table in range(TABLES)]) == which
    good = here & (words[0] * words[1] == words[2])
    _, once = np.unique(words[0][good], return_index=True)
    return [word[good][once] for word in words], is_mine[good][once]
