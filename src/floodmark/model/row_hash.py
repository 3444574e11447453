"""Rows of Arrow columns, hashed in bulk: a keyed hash of 128 bits each, and sums that don't depend on the order.

Both sides of a comparison hash the same values alike, whatever the width of their integers and floats. The key
is random for each comparison, so nobody can choose rows whose hashes collide or cancel out. The work is done in
the compiled `row_hash_fast`; without it, `compiled` is None and the servers have to hash.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.model.canonical import Digest

compiled: Any  # missing if there was no compiler, or Floodmark runs from a zip
try:
    from floodmark.model import row_hash_fast

    compiled = row_hash_fast
except ImportError:
    compiled = None

WIDTH = 16  # bytes of a hash
HASH = pa.binary(WIDTH)
_SUM = struct.Struct("<QQQ")


def new_key() -> bytes:
    """The key of one comparison."""
    return secrets.token_bytes(16)


def hashes(columns: Sequence[Any], key: bytes) -> Any:
    """The hash of each row, as an Arrow array."""
    rows = len(columns[0])
    hashed = compiled.hashes(rows, [_described(column) for column in columns], key)
    return pa.Array.from_buffers(HASH, rows, [None, pa.py_buffer(hashed)])


def _described(column: Any) -> tuple[Any, ...]:
    """A column as `row_hash_fast` takes it: kind, size, first, bitmap, values, bytes."""
    kind = column.type
    if pa.types.is_decimal(kind) and kind.bit_width != 128:
        column = column.cast(pa.decimal128(38, kind.scale))
    elif pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        column = column.cast(pa.large_binary())
    shape = _shape(column.type)
    valid, values, *text = column.buffers()
    return (
        *shape,
        column.offset,
        valid if column.null_count else None,
        values or b"",
        text[0] if text else None,
    )


def _shape(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_boolean(kind):
        return compiled.BIT, 0
    if pa.types.is_decimal(kind):
        return compiled.DECIMAL, 16
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return compiled.TEXT, 8
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return compiled.TEXT, 4
    if pa.types.is_floating(kind):
        return compiled.FLOAT, kind.bit_width // 8
    if pa.types.is_signed_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return compiled.INTEGER, kind.bit_width // 8
    raise TypeError(f"rows with {kind} are not hashed")


class Sums:
    """Counts and sums of hashes, by part."""

    def __init__(self, parts: int = 1) -> None:
        self._sums = bytearray(_SUM.size * parts)

    def add(self, hashed: Any, parts: Any = None) -> None:
        """Adds rows; `parts` has the number of each row's part, or else all are of part 0."""
        if not len(hashed):
            return
        compiled.add(
            raw_bytes(hashed), None if parts is None else np.ascontiguousarray(parts, np.int32), self._sums
        )

    def digests(self) -> list[Digest]:
        """The digest of each part."""
        return [Digest(rows, low | high << 64) for rows, low, high in _SUM.iter_unpack(self._sums)]

    def by_group(self, digits: int) -> Iterator[tuple[str, Digest]]:
        """The digests of groups that have rows, by the first digits of their hashed keys."""
        return ((f"{n:0{digits}x}", digest) for n, digest in enumerate(self.digests()) if digest.rows)


def raw_bytes(hashed: Any) -> memoryview:
    """The hashes, one after the other."""
    first = hashed.offset * WIDTH
    return memoryview(hashed.buffers()[1])[first : first + len(hashed) * WIDTH]


def words(hashed: Any) -> Any:
    """The two words of each hash, as numpy's integers."""
    return np.frombuffer(raw_bytes(hashed), np.uint64).reshape(-1, 2)


def groups(hashed: Any, digits: int) -> Any:
    """The number in the first hexadecimal digits of each hash, as numpy's integers."""
    first = np.frombuffer(raw_bytes(hashed), ">u4")[::4]
    return (first >> np.uint32(32 - 4 * digits)).astype(np.int32)


def from_hex(texts: Sequence[str]) -> Any:
    """Hashes from their hexadecimal digits."""
    return pa.array([bytes.fromhex(text) for text in texts], HASH)


def to_hex(hashed: Any) -> list[str]:
    """Hashes as hexadecimal digits."""
    return [value.hex() for value in hashed.to_pylist()]
