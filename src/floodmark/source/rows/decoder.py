"""Decodes rows of MySQL's text and binary protocols into Arrow columns; only buffers, no object per cell.

Binary are the rows of a prepared statement: numbers and times have a fixed layout, which the server need not
print and we need not parse; all other cells are text. Only columns whose bytes say exactly what their text would are read
this way: `layout` tells how each travels, or that the text protocol is needed. The compiled `decoder_fast`, if
available, decodes ordinary blocks in a fifth of the time; unusual blocks, and all errors, are handled here.

The cells of a row must fill its packet exactly. That check also keeps every place inside the buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute

from floodmark.source.rows.packets import ERROR, LENGTHS, NULL, length_at, malformed

# The compiled decoder; missing if there was no compiler, or Floodmark runs from a zip.
compiled: Any
try:
    from floodmark.source.rows import decoder_fast as _rows

    compiled = _rows
except ImportError:
    compiled = None

Array: TypeAlias = Any
Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_buffer: Any = pa.py_buffer  # the stubs don't accept numpy arrays as buffers
_take = pyarrow.compute.get_function("take").call
_TAKE = pyarrow.compute.TakeOptions(boundscheck=False)


def gathered(wanted: pa.DataType) -> pa.DataType:
    """The type in which to gather cells that will become this type."""
    large = pa.types.is_large_string(wanted) or pa.types.is_large_binary(wanted)
    return pa.large_binary() if large else pa.binary()


def follow(buffer: bytearray, heads: Numbers, count: int, end: int) -> int:
    """Extends the `count` packet starts in `heads` over all complete packets, as far as there is room.

    Returns the new number of starts.
    """
    if compiled is not None:
        return int(compiled.follow(buffer, heads, count, end))
    at, last, room = int(heads[count - 1]), end - 4, len(heads) - count
    found: list[int] = []
    while at <= last and len(found) < room:
        at += 4 + length_at(buffer, at)
        found.append(at)
    if at > end:
        found.pop()
    heads[count : count + len(found)] = found
    return count + len(found)


def places(data: Numbers, heads: Numbers, columns: int) -> tuple[Numbers, list[Numbers | None]]:
    """Where the cells are: per column the start and the end in each row, alternating; and which are NULL.

    `heads` holds the starts of the rows' packets and the end of the last one.
    """
    rows = len(heads) - 1
    found = np.empty((columns, 2 * rows), np.int32)
    nulls: list[Numbers | None] = []
    at = heads[:-1] + 4
    try:
        for column in range(columns):
            length = data[at]
            at += 1
            null, length = length_of(data, at, length)
            nulls.append(null)
            found[column, 0::2] = at
            at += length
            found[column, 1::2] = at
    except IndexError:
        raise malformed() from None
    if not np.array_equal(at, heads[1:]):
        raise malformed()
    return found, nulls


def length_of(data: Numbers, at: Numbers, first: Numbers) -> tuple[Numbers | None, Numbers]:
    """The NULLs and the lengths of cells from their first bytes; moves `at` to the start of the cells."""
    if first.max() < NULL:
        return None, first
    null = first == NULL
    length = np.where(null, 0, first).astype(np.int64)
    for mark, count in LENGTHS.items():
        (which,) = np.nonzero(first == mark)
        if len(which):
            parts = [data[at[which] + i].astype(np.uint64) << np.uint64(8 * i) for i in range(count)]
            total = np.bitwise_or.reduce(parts)
            if total.max() > len(data):
                raise malformed()
            length[which] = total
            at[which] += count
    if (first == ERROR).any():
        raise malformed()
    return (null if null.any() else None), length


def text_columns(
    data: Numbers, heads: Numbers, kinds: Sequence[pa.DataType], own: bool = False
) -> list[Array]:
    """The rows' cells as arrays of `kinds` (binary or large_binary); `own`: a single row, not copied."""
    found, nulls = places(data, heads, len(kinds))
    even = pa.array(np.arange(0, 2 * (len(heads) - 1), 2, dtype=np.int32))
    return [
        cells_at(data, place, null, kind, even, own)
        for place, null, kind in zip(found, nulls, kinds, strict=True)
    ]


def cells_at(
    data: Numbers, place: Numbers, null: Numbers | None, kind: pa.DataType, even: Array, own: bool
) -> Array:
    """The cells of one column from their starts and ends. `even` picks the cells, not the gaps between."""
    column = pa.Array.from_buffers(pa.binary(), len(place) - 1, [None, _buffer(place), _buffer(data)])
    if not own:
        column = _take([column, even], _TAKE)
    column = nullable(column, null)
    return column if kind == column.type else column.cast(kind)


def nullable(column: Array, null: Numbers | None) -> Array:
    """The column with its NULLs."""
    if null is None:
        return column
    valid = _buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(column.type, len(column), [valid, *column.buffers()[1:]])


# ---------------------------------------------------------------- the binary protocol

# Bytes after the end of the last row that may be read.
SLACK = 8

PREPARE, EXECUTE, CLOSE = b"\x16", b"\x17", b"\x19"
_UNSIGNED = 0x20
# The server's type numbers: integers by width, a double, dates and times, and types that travel as text.
_INTEGERS = {1: 1, 2: 2, 13: 2, 9: 4, 3: 4, 8: 8}
_DOUBLE, _DATE, _TIMES = 5, 10, (7, 12)
_DECIMALS = {0, 246}
_TEXTS = {0, 15, 16, 245, 246, 247, 248, 249, 250, 251, 252, 253, 254, 255}

# The bytes of a date or time that count, by its length byte: none, a date, with the time, with microseconds.
_MOMENTS = np.zeros(256, np.uint64)
_MOMENTS[4], _MOMENTS[7], _MOMENTS[11] = 0xFF_FFFF_FF00, 0xFFFF_FFFF_FFFF_FF00, 0xFFFF_FFFF_FFFF_FF00
_LENGTHS = np.zeros(256, np.bool_)
_LENGTHS[[0, 4, 7, 11]] = True
# Placeholder for a NULL: 1 January 1970.
_SOME_DAY = np.uint64(1970 << 8 | 1 << 24 | 1 << 32)


@dataclass(frozen=True)
class Number:
    """A cell of fixed width: an integer or a double."""

    dtype: str


@dataclass(frozen=True)
class Moment:
    """A date, or a date with a time of day, which the server prints with this many fractional digits."""

    digits: int
    date: bool = False


@dataclass(frozen=True)
class Digits:
    """A number that travels as text, and its type."""

    type: pa.Decimal128Type


_WHOLE = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_boolean)

Kind = Number | Moment | Digits | pa.DataType


def layout(definitions: Sequence[bytes], wanted: Sequence[pa.DataType]) -> list[Kind] | None:
    """How each column travels, from the server's descriptions and the wanted types; None: only as text."""
    kinds = [_kind(d, w) for d, w in zip(definitions, wanted, strict=True)]
    return [k for k in kinds if k is not None] if None not in kinds else None


def _kind(definition: bytes, wanted: pa.DataType) -> Kind | None:
    # The end has a fixed form: character set, length, type, flags, digits, two filler bytes.
    if len(definition) < 13 or definition[-13] != 12:
        raise malformed()
    kind, flags, digits = struct.unpack_from("<BHB", definition, len(definition) - 6)
    if kind in _DECIMALS and isinstance(wanted, pa.Decimal128Type):
        return Digits(wanted)
    if kind in _TEXTS:
        return gathered(wanted)
    if kind in _INTEGERS and any(test(wanted) for test in _WHOLE):
        return Number(f"<{'u' if flags & _UNSIGNED else 'i'}{_INTEGERS[kind]}")
    if kind == _DOUBLE and pa.types.is_floating(wanted):
        return Number("<f8")
    if kind == _DATE and pa.types.is_date32(wanted):
        return Moment(0, date=True)
    if kind in _TIMES and pa.types.is_timestamp(wanted) and digits <= 6:
        return Moment(digits)
    return None


def execution(statement: bytes) -> bytes:
    """The command that runs a prepared statement without parameters and streams its rows."""
    return EXECUTE + statement + b"\0" + struct.pack("<I", 1)


def smallest(columns: int) -> int:
    """The size in bytes of a row of NULLs: a zero, and a bit per column."""
    return 1 + (columns + 9) // 8


def binary_columns(data: Numbers, heads: Numbers, kinds: Sequence[Kind], own: bool = False) -> list[Array]:
    """The rows' cells as arrays; `heads` and `own` as in `text_columns`. `data` extends SLACK bytes past the rows."""
    if compiled is not None and not own:
        found = compiled.columns(data, heads, [_compiled(kind) for kind in kinds])
        if found is not None:
            return [_array(kind, len(heads) - 1, *parts) for kind, parts in zip(kinds, found, strict=True)]
    rows = len(heads) - 1
    if data[heads[:-1] + 4].any() or (np.diff(heads) - 4 < smallest(len(kinds))).any():
        raise malformed()
    at = heads[:-1] + 5
    width = smallest(len(kinds)) - 1
    bits = [data[at + i] for i in range(width)]
    some = [int(np.bitwise_or.reduce(byte)) for byte in bits]
    at += width
    done: list[Array] = []
    texts: dict[int, tuple[Numbers, Numbers | None, pa.DataType]] = {}
    try:
        for column, kind in enumerate(kinds):
            byte, bit = divmod(column + 2, 8)
            null = (bits[byte] >> bit & 1).astype(np.bool_) if some[byte] >> bit & 1 else None
            if isinstance(kind, Number):
                done.append(_number(data, at, null, kind))
            elif isinstance(kind, Moment):
                done.append(_moment(data, at, null, kind))
            else:
                text = pa.binary() if isinstance(kind, Digits) else kind
                texts[column] = _text(data, at, null), null, text
                done.append(None)
    except IndexError:
        raise malformed() from None
    if not np.array_equal(at, heads[1:]):
        raise malformed()
    even = pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32))
    for column, (place, null, kind) in texts.items():
        done[column] = cells_at(data, place, null, kind, even, own)
    return done


def _compiled(kind: Kind) -> tuple[int, int, int]:
    """The kind as `decoder_fast` knows it."""
    if isinstance(kind, Number):
        return compiled.FIXED, np.dtype(kind.dtype).itemsize, 0
    if isinstance(kind, Moment):
        return (compiled.DATE if kind.date else compiled.TIME), 0, 0
    if isinstance(kind, Digits):
        return compiled.DECIMAL, kind.type.scale, kind.type.precision
    return compiled.TEXT, 0, 0


def _array(
    kind: Kind, rows: int, valid: bytearray | None, values: bytearray, text: bytearray | None
) -> Array:
    """A column from the buffers that `decoder_fast` has filled."""
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(values)]
    if text is not None:
        column = pa.Array.from_buffers(pa.binary(), rows, [*buffers, pa.py_buffer(text)])
        return column if kind == column.type else column.cast(kind)
    return pa.Array.from_buffers(_arrow(kind), rows, buffers)


def _arrow(kind: Kind) -> pa.DataType:
    if isinstance(kind, Number):
        return pa.from_numpy_dtype(np.dtype(kind.dtype))
    if isinstance(kind, Moment):
        return pa.date32() if kind.date else pa.timestamp("us")
    return kind.type if isinstance(kind, Digits) else kind


def _there(at: Numbers, null: Numbers | None) -> Numbers:
    """Where the cells begin; NULLs have no cell, so they get some place inside the buffer."""
    return at if null is None else np.where(null, 0, at)


def _over(data: Numbers, dtype: str) -> Numbers:
    """The number that begins at each byte."""
    size = np.dtype(dtype).itemsize
    view: Numbers = np.ndarray((len(data) - size + 1,), dtype, data, strides=(1,))
    return view


def _number(data: Numbers, at: Numbers, null: Numbers | None, kind: Number) -> Array:
    found = _over(data, kind.dtype)[_there(at, null)]
    at += found.itemsize if null is None else found.itemsize * ~null
    return nullable(pa.array(found), null)


def _text(data: Numbers, at: Numbers, null: Numbers | None) -> Numbers:
    """Where the cells of a column begin and end, alternating; moves `at` past them."""
    length = data[_there(at, null)]
    if null is None:
        at += 1
    else:
        at += ~null
        length[null] = 0
    inner, length = length_of(data, at, length)
    if inner is not None:
        raise malformed()  # NULLs are marked by bits, not here
    place = np.empty(2 * len(at), np.int32)
    place[0::2] = at
    at += length
    place[1::2] = at
    return place


# ---------------------------------------------------------------- dates and times


def _moment(data: Numbers, at: Numbers, null: Numbers | None, kind: Moment) -> Array:
    """Dates or timestamps; if any of them is invalid, such as a zero date, the texts of all."""
    there = _there(at, null)
    length = data[there]
    if null is not None:
        length[null] = 0
    longest = length.max()
    word = _over(data, "<u8")[there]
    if longest != length.min() or longest < 7:
        if not _LENGTHS[length].all():
            raise malformed()
        word &= _MOMENTS[length]
    elif longest not in (7, 11):
        raise malformed()
    if null is not None:
        word[null] = _SOME_DAY
    micros = _micros(data, there, length) if longest == 11 else None
    at += length  # this also moves `there`
    at += 1 if null is None else ~null
    if kind.date and longest > 4:
        raise malformed()
    date = (word >> np.uint64(8)).astype(np.uint32)
    year, month, day = date & 0xFFFF, date >> 16 & 0xFF, date >> 24
    if year.max() > 9999 or month.max() > 12:
        raise malformed()
    first, last = _months()
    index = year * 12 + month
    possible = month.min() and day.min() and (day.max() <= 28 or (day <= last[index]).all())
    if kind.date:
        if not possible:
            return _printed(kind, null, (year, month, day))
        return nullable(pa.array(first[index] + day.view(np.int32)).view(pa.date32()), null)
    clock = (word >> np.uint64(40)).astype(np.uint32)
    hour, minute, second = clock & 0xFF, clock >> 8 & 0xFF, clock >> 16
    if hour.max() > 23 or minute.max() > 59 or second.max() > 59:
        raise malformed()
    if not possible:
        return _printed(kind, null, (year, month, day, hour, minute, second), micros)
    moment = (first[index] + day.view(np.int32)).astype(np.int64)
    moment *= 86_400
    moment += (hour * 60 + minute) * 60 + second
    moment *= 1_000_000
    if micros is not None:
        moment += micros
    return nullable(pa.array(moment).view(pa.timestamp("us")), null)


def _micros(data: Numbers, there: Numbers, length: Numbers) -> Numbers:
    found = _over(data, "<u4")[there + 8 if length.min() == 11 else np.where(length == 11, there + 8, 0)]
    found[length != 11] = 0
    if found.max() > 999_999:
        raise malformed()
    return found


@cache
def _months() -> tuple[Numbers, Numbers]:
    """By year * 12 + month: the day number before its first day, and its length. Year 0 exists in Arrow."""
    starts = np.arange("-001-12", "10000-02", dtype="datetime64[M]").astype("datetime64[D]").astype(np.int32)
    return starts[:-1] - np.int32(1), np.diff(starts).astype(np.uint8)


def _printed(
    kind: Moment, null: Numbers | None, parts: Sequence[Numbers], micros: Numbers | None = None
) -> Array:
    """The dates and times as the server prints them."""
    fraction = micros if micros is not None else np.zeros(len(parts[0]), np.int64)
    texts: list[bytes | None] = []
    for *moment, micro in zip(*(part.tolist() for part in (*parts, fraction)), strict=True):
        text = "{:04}-{:02}-{:02}".format(*moment)
        if not kind.date:
            text += " {:02}:{:02}:{:02}".format(*moment[3:])
        if kind.digits:
            text += f".{micro:06}"[: kind.digits + 1]
        texts.append(text.encode())
    if null is not None:
        texts = [None if n else t for n, t in zip(null.tolist(), texts, strict=True)]
    return pa.array(texts, pa.binary())
