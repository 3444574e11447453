"""The keys that row events hold, as the row reader would have them.

Nothing but the key's columns is decoded; others are skipped by their length. Where the log can't tell a key (a row image
without it, a text that only the server can convert), `Incomplete` is raised, once, and the rest is kept; where a
table's description is not the one that its rows were written under, `DoesNotFit`. A key is never guessed.

The compiled `keys_fast`, if it is there, gathers the cells of well-formed rows; whatever it leaves is judged here.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from floodmark.model.changes import DoesNotFit, KeyDescription, TableMap
from floodmark.model.table import Column
from floodmark.model.types import GEOMETRIES, field_of, member_text
from floodmark.source.binlog.charsets import converter
from floodmark.source.binlog.events import (
    DELETES,
    INSERTS,
    PARTIAL_UPDATE,
    UPDATES,
    DamagedEvent,
    packed,
    rows_part,
)

compiled: Any
try:
    from floodmark.source.binlog import keys_fast

    compiled = keys_fast
except ImportError:  # installed without a compiler
    compiled = None

Numbers = np.ndarray[Any, np.dtype[Any]]
Array = Any
_Bytes = bytes  # KeyRows has a property of this name
pc: Any = pyarrow.compute
_buffer: Any = pa.py_buffer  # the stubs don't accept numpy arrays as buffers


class RowCounts(NamedTuple):
    """How many rows an event has changed."""

    inserts: int
    updates: int
    deletes: int


class Incomplete(Exception):
    """Some keys can't be told from the log; the text says why. All others were taken."""

    def __init__(self, why: str, counts: RowCounts | None = None) -> None:
        super().__init__(why)
        self.counts = counts or RowCounts(0, 0, 0)


class KeyRows:
    """The keys that a table's row events hold, gathered column by column as the row reader would have them."""

    def __init__(self, described: KeyDescription, shape: TableMap) -> None:
        """Raises DoesNotFit unless the description is the one that the rows were written under."""
        self._shape = shape
        self._ordinals = _ordinals(described, shape)
        self._columns = [_Cells(c, shape, n) for c, n in zip(described.key, self._ordinals, strict=True)]
        self._schema = pa.schema([(c.name, field_of(c).arrow) for c in described.key])
        self._json = (sum(kind == _JSON for kind in shape.types) + 7) // 8
        self._plans: dict[tuple[int, int, _Bytes | None, _Bytes | None], _Plan] = {}
        self._cells = self._empty()
        self._count = 0
        self._ready: pa.RecordBatch | None = None  # taken, but refused once

    @property
    def bytes(self) -> int:
        """The size of what is held."""
        return sum(len(values) + len(ends or b"") for values, ends in self._cells)

    def _empty(self) -> list[tuple[bytearray, bytearray | None]]:
        return [(bytearray(), bytearray() if column.prefixed else None) for column in self._columns]

    def add(self, kind: int, body: memoryview) -> RowCounts:
        """Takes the keys of a row event: of an update both, unless they are equal byte for byte.

        Raises Incomplete, after having taken the others, if it does not hold all of them.
        """
        columns, before, after, rows = rows_part(kind, body)
        plan = self._plans.get((kind, columns, before, after))
        if plan is None:
            plan = self._plans[kind, columns, before, after] = self._plan(kind, columns, before, after)
        what, slot, lacks = plan
        found = compiled.gather(rows, *what, self._cells) if compiled is not None else None
        count, keys, nulls = gathered(rows, *what, self._cells) if found is None else found
        self._count += keys
        counts = (
            RowCounts(count, 0, 0)
            if not slot
            else RowCounts(0, count, 0)
            if slot == 1
            else RowCounts(0, 0, count)
        )
        if lacks is not None:  # even if it has no rows: a row without a column takes no bytes
            raise Incomplete(f"a row event does not hold column {lacks} of the key", counts)
        if nulls:
            raise Incomplete("a key has a NULL", counts)
        return counts

    def _plan(self, kind: int, columns: int, before: _Bytes | None, after: _Bytes | None) -> _Plan:
        if columns != len(self._shape.types):
            raise DamagedEvent("the binary log has a row event that differs from its Table_map")
        steps: list[_Bytes | None] = []
        wanted: list[bool] = []
        seen: set[int] = set()
        lacks = None
        for image in (before, after):
            if image is None:
                steps.append(None)
                wanted.append(False)
                continue
            present = [n for n in range(columns) if image[n >> 3] >> (n & 7) & 1]
            seen |= set(present)  # what the after image lacks has not changed since the before image
            missing = [n for n in self._ordinals if n not in seen]
            if missing:
                lacks = self._columns[self._ordinals.index(missing[0])].column.name
            wanted.append(not missing)
            steps.append(b"".join(self._step(n) for n in present))
        slot = next(n for n, kinds in enumerate((INSERTS, UPDATES, DELETES)) if kind in kinds)
        partial = self._json if kind == PARTIAL_UPDATE else -1
        return _Plan((steps[0], steps[1], wanted[0], wanted[1], partial), slot, lacks)

    def _step(self, number: int) -> _Bytes:
        prefixed, width = cell_form(self._shape, number)
        key = self._ordinals.index(number) if number in self._ordinals else -1
        return _STEP.pack(prefixed, width, key)

    def taken(self) -> pa.RecordBatch:
        """What was gathered, and forgets it.

        Raises Incomplete, once, if some of the keys can't be told or no file could hold them: taken again, the others.
        """
        if self._ready is None:
            cells, count = self._cells, self._count
            self._cells, self._count = self._empty(), 0
            found = [c.values(count, *held) for c, held in zip(self._columns, cells, strict=True)]
            arrays = [array for array, _, _ in found]
            self._ready = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            bad = np.logical_or.reduce([unfit for _, unfit, _ in found])
            if bad.any():
                self._ready = self._ready.filter(pa.array(~bad))
                column, why = next(
                    (c.column.name, why)
                    for c, (_, unfit, why) in zip(self._columns, found, strict=True)
                    if unfit.any()
                )
                raise Incomplete(f"a key's column {column} has {why}")
        batch, self._ready = self._ready, None
        return batch


class _Plan(NamedTuple):
    """What to do with row events of one type that have the same columns in their images."""

    # For each column in the images: prefixed, width, its number in the key or -1. Whether the keys before and after
    # can be told. How many bytes say which JSON columns are changes.
    what: tuple[bytes | None, bytes | None, bool, bool, int]
    slot: int  # 0: inserts, 1: updates, 2: deletes
    lacks: str | None  # a column of the key that an image lacks


_STEP = struct.Struct("<iii")
_UNSET = (0, -1)


def gathered(
    rows: memoryview | bytes,
    before: bytes | None,
    after: bytes | None,
    old: bool,
    new: bool,
    partial: int,
    cells: Sequence[tuple[bytearray, bytearray | None]],
) -> tuple[int, int, int]:
    """Appends the cells of the rows' keys; returns the numbers of rows, of keys, and of keys left out because of a NULL.

    `partial`: how many bytes say which JSON columns are changes; -1: the event has none.
    """
    found: list[list[tuple[int, int]]] = []
    count = nulls = at = 0
    try:
        while at < len(rows):
            begin = at
            first = [_UNSET] * len(cells)
            if before is not None:
                at = _image(rows, at, before, first)
            second = list(first)
            if after is not None:
                if partial >= 0:
                    options, at = packed(rows, at)
                    if options > 1:
                        raise IndexError
                    at += options * partial
                at = _image(rows, at, after, second)
            if at == begin:  # a row without a column: nobody knows how many there are
                raise IndexError
            count += 1
            keys = []
            if old:
                keys.append(first)
            if new and not (old and _same(rows, first, second)):
                keys.append(second)
            for key in keys:
                if _UNSET in key:
                    nulls += 1
                else:
                    found.append(key)
    except IndexError:
        raise DamagedEvent("the binary log has a row event that can't be read") from None
    for key in found:
        for (values, ends), (start, size) in zip(cells, key, strict=True):
            values += rows[start : start + size]
            if ends is not None:
                ends += len(values).to_bytes(8, "little")
    return count, len(found), nulls


def _image(rows: memoryview | bytes, at: int, steps: bytes, key: list[tuple[int, int]]) -> int:
    """Notes where the key's cells are; returns where the image ends."""
    bits = at
    at += (len(steps) // _STEP.size + 7) // 8
    if at > len(rows):
        raise IndexError
    for n, (prefixed, size, number) in enumerate(_STEP.iter_unpack(steps)):
        if rows[bits + (n >> 3)] >> (n & 7) & 1:
            if number >= 0:
                key[number] = _UNSET
            continue
        if prefixed:
            width, at = size, at + size
            if at > len(rows):
                raise IndexError
            size = int.from_bytes(rows[at - width : at], "little")
        if number >= 0:
            key[number] = at, size
        at += size
        if at > len(rows):
            raise IndexError
    return at


def _same(rows: memoryview | bytes, first: list[tuple[int, int]], second: list[tuple[int, int]]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(a[1] == b[1] and rows[a[0] : a[0] + a[1]] == rows[b[0] : b[0] + b[1]] for a, b in pairs)


# ---------------------------------------------------------------- how cells are laid out

_FIXED = {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 6: 0, 7: 4, 8: 8, 9: 3, 10: 3, 11: 3, 12: 8, 13: 1, 14: 3}
_TIMESTAMP, _DATE, _TIME, _DATETIME, _YEAR, _NEWDATE, _VARCHAR, _BIT = 7, 10, 11, 12, 13, 14, 15, 16
_TIMESTAMP_2, _DATETIME_2, _TIME_2, _BLOB_COMPRESSED, _VARCHAR_COMPRESSED = 17, 18, 19, 140, 141
_VECTOR, _JSON, _DECIMAL, _ENUM, _SET, _STRING, _GEOMETRY = 242, 245, 246, 247, 248, 254, 255
_BLOBS = frozenset({_BLOB_COMPRESSED, _VECTOR, _JSON, 249, 250, 251, 252, _GEOMETRY})
_TIMES = {_TIMESTAMP_2: 4, _DATETIME_2: 5, _TIME_2: 3}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def real_type(shape: TableMap, number: int) -> tuple[int, int]:
    """The type and the length of a column, which for a STRING are mixed: an ENUM or SET is one, and a long CHAR."""
    kind, meta = shape.types[number], shape.metadata[number]
    if kind != _STRING:
        return kind, meta
    high, low = meta >> 8, meta & 0xFF
    if high & 0x30 != 0x30:
        return high | 0x30, low | (high & 0x30 ^ 0x30) << 4
    return high, low


def cell_form(shape: TableMap, number: int) -> tuple[bool, int]:
    """Whether a column's cells have their length before them, and in how many bytes; else their size."""
    kind, meta = real_type(shape, number)
    if kind in _FIXED:
        return False, _FIXED[kind]
    if kind in (_VARCHAR, _VARCHAR_COMPRESSED, _STRING):
        return True, 1 if meta < 256 else 2
    if kind in _BLOBS and 1 <= meta <= 4:
        return True, meta
    if kind in (_ENUM, _SET) and 1 <= meta <= 8:
        return False, meta
    if kind == _BIT:
        return False, (meta >> 8) + bool(meta & 0xFF)
    if kind in _TIMES and meta <= 6:
        return False, _TIMES[kind] + (meta + 1) // 2
    if kind == _DECIMAL and meta & 0xFF <= meta >> 8 <= 65:
        return False, sum(size for size, _ in _groups(meta >> 8, meta & 0xFF))
    raise DoesNotFit(f"column {number + 1} is of type {kind} ({meta}) in the log")


def _groups(precision: int, scale: int) -> list[tuple[int, int]]:
    """The groups of digits of a DECIMAL: their bytes and how many digits."""
    whole, fraction = precision - scale, scale
    groups = [(_DIGIT_BYTES[whole % 9], whole % 9)] + [(4, 9)] * (whole // 9)
    groups += [(4, 9)] * (fraction // 9) + [(_DIGIT_BYTES[fraction % 9], fraction % 9)]
    return [group for group in groups if group[0]]


# ---------------------------------------------------------------- whether the description fits

_TYPE = re.compile(r"([a-z0-9_]+)(?:\((\d+)(?:,(\d+))?\))?")
_INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 9, "int": 3, "bigint": 8}
_BLOB_BYTES = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_LENGTHS = {f"{size}{kind}": width for kind in ("blob", "text") for size, width in _BLOB_BYTES.items()}
_ADDRESSES = {"uuid": 16, "inet6": 16, "inet4": 4}


def _ordinals(described: KeyDescription, shape: TableMap) -> list[int]:
    """Where the key's columns are; DoesNotFit unless it is certain."""
    types = dict(described.columns)
    if shape.names is not None:
        if missing := [c.name for c in described.key if c.name not in shape.names]:
            raise DoesNotFit(f"the log's rows have no column {missing[0]}")
        ordinals = [shape.names.index(c.name) for c in described.key]
    elif len(described.columns) != len(shape.types) - _hidden(described, shape):
        raise DoesNotFit(
            f"{len(described.columns)} columns are described, the log's rows have {len(shape.types)}"
        )
    else:
        ordinals = list(described.ordinals)
        for number, (name, type_) in enumerate(described.columns):
            if not _fits(type_, *real_type(shape, number)):
                raise DoesNotFit(
                    f"column {name} is described as {type_}, the log has type {shape.types[number]}"
                )
    for column, number in zip(described.key, ordinals, strict=True):
        kind, meta = real_type(shape, number)
        # Names that differ by more than case are no names of one column on any server.
        if types.get(column.name) != column.type or not _fits(column.type, kind, meta):
            raise DoesNotFit(f"column {column.name} is described as {column.type}, the log has type {kind}")
        if column.data_type in ("char", "varchar") and column.octets is not None and meta != column.octets:
            raise DoesNotFit(f"column {column.name} has {column.octets} bytes, in the log {meta}")
        if (
            shape.unsigned is not None
            and column.data_type in _INTEGERS
            and shape.unsigned[number] != column.unsigned
        ):
            raise DoesNotFit(
                f"column {column.name} is described as {column.type}, but its sign differs in the log"
            )
    for number in range(len(shape.types)):
        cell_form(shape, number)
    return ordinals


def _hidden(described: KeyDescription, shape: TableMap) -> int:
    """How many columns nobody sees: MariaDB's SYSTEM VERSIONING adds two of TIMESTAMP(6) behind all others."""
    versioned = shape.types[-2:] == bytes((_TIMESTAMP_2, _TIMESTAMP_2)) and shape.metadata[-2:] == (6, 6)
    return 2 if versioned and len(shape.types) == len(described.columns) + 2 else 0


def _fits(type_: str, kind: int, meta: int) -> bool:
    """Whether rows of a column described like that are logged like this."""
    found = _TYPE.match(type_)
    if found is None:
        return False
    word, first, second = found[1], int(found[2] or -1), int(found[3] or 0)
    if word in _INTEGERS:
        return kind == _INTEGERS[word]
    if word in ("float", "double"):
        return (kind, meta) == ((4, 4) if word == "float" else (5, 8))
    if word == "decimal":
        return kind == _DECIMAL and meta == first << 8 | second
    if word == "bit":
        return kind == _BIT and (meta >> 8) * 8 + (meta & 0xFF) == first
    if word == "year":
        return kind == _YEAR and first != 2
    if word == "date":
        return kind in (_DATE, _NEWDATE)
    if word in ("datetime", "timestamp", "time"):
        new, old = {"datetime": (18, 12), "timestamp": (17, 7), "time": (19, 11)}[word]
        # Fractions in MariaDB's old format are not told from none by the log.
        return (kind, meta) == (new, max(first, 0)) or (kind == old and first <= 0)
    if word in ("char", "varchar"):
        same = kind == _STRING if word == "char" else kind in (_VARCHAR, _VARCHAR_COMPRESSED)
        return same and (meta == 0 if first == 0 else meta % first == 0 and 1 <= meta // first <= 4)
    if word in ("binary", "varbinary"):
        return kind in ((_STRING,) if word == "binary" else (_VARCHAR, _VARCHAR_COMPRESSED)) and meta == first
    if word in _LENGTHS:
        return kind in (252, _BLOB_COMPRESSED) and meta == _LENGTHS[word]
    if word in ("enum", "set"):
        return kind == (_ENUM if word == "enum" else _SET)
    if word in _ADDRESSES:
        return (kind, meta) == (_STRING, _ADDRESSES[word])
    if word == "json":
        return kind == _JSON
    if word == "vector":  # MariaDB's is a VARBINARY
        return kind in (_VECTOR, _VARCHAR)
    return word in GEOMETRIES and kind == _GEOMETRY


# ---------------------------------------------------------------- values

# An array, which of its values can't be given, and why.
_Values = tuple[Array, Numbers, str]
_IMPOSSIBLE = "an impossible date"
_DAMAGED = "a value that its type does not have"


class _Cells:
    """A column of the key: how its cells become values."""

    def __init__(self, column: Column, shape: TableMap, number: int) -> None:
        self.column = column
        self.prefixed, self._width = cell_form(shape, number)
        self._kind, self._meta = real_type(shape, number)
        self._arrow = field_of(column).arrow
        self._decode = self._decoder()

    def values(self, count: int, values: bytearray, ends: bytearray | None) -> _Values:
        """The values of so many cells."""
        if ends is not None:
            return self._decode(np.frombuffer(ends, "<i8"), values)
        return self._decode(np.frombuffer(values, np.uint8).reshape(count, self._width))

    def _decoder(self) -> Callable[..., _Values]:
        name = self.column.data_type
        if name in _INTEGERS:
            return self._integers
        if name in _ADDRESSES:
            return self._addresses
        if name in ("char", "varchar") or name.endswith("text"):
            self._convert = converter(self.column.charset or "", strip=name == "char")
            return self._texts
        if name in ("binary", "varbinary") or name in _LENGTHS:
            return self._bytes
        if name in ("enum", "set"):
            return self._members
        simple = {
            "float": self._floats, "double": self._floats, "decimal": self._decimals, "bit": self._bits,
            "year": self._years, "date": self._dates, "datetime": self._datetimes, "timestamp": self._timestamps,
            "time": self._times,
        }  # fmt: skip
        if name not in simple:
            raise DoesNotFit(
                f"column {self.column.name} of type {self.column.type} can't be decoded as part of a key"
            )
        return simple[name]

    def _cast(self, values: Numbers, bad: Numbers | None = None, why: str = "") -> _Values:
        bad = np.zeros(len(values), np.bool_) if bad is None else bad
        array: Any = pa.array(values)
        if pa.types.is_decimal(self._arrow):  # of integers: BIGINT UNSIGNED and BIT(64)
            return _decimal(values, np.zeros(len(values), values.dtype), self._arrow), bad, why
        return array.cast(self._arrow), bad, why

    def _integers(self, cells: Numbers) -> _Values:
        found = _little(cells)
        if not self.column.unsigned:
            unused = 64 - 8 * self._width
            found = (found << np.uint64(unused)).view(np.int64) >> unused
        return self._cast(found)

    def _floats(self, cells: Numbers) -> _Values:
        return self._cast(np.ascontiguousarray(cells).view(f"<f{self._width}")[:, 0])

    def _bits(self, cells: Numbers) -> _Values:
        found = _big(cells)
        bits = (self._meta >> 8) * 8 + (self._meta & 0xFF)
        bad = found >> np.uint64(bits) != 0 if bits < 64 else None
        if pa.types.is_boolean(self._arrow):
            return pa.array(found != 0), np.zeros(len(found), np.bool_) if bad is None else bad, _DAMAGED
        if bits < 64:
            found = found.view(np.int64)
        return self._cast(found, bad, _DAMAGED)

    def _years(self, cells: Numbers) -> _Values:
        year = cells[:, 0].astype(np.int16)
        return self._cast(np.where(year == 0, year, year + 1900).astype(np.int16))

    def _decimals(self, cells: Numbers) -> _Values:
        precision, scale = self._meta >> 8, self._meta & 0xFF
        cells = cells.copy()
        negative = cells[:, 0] & 0x80 == 0
        cells[negative] ^= 0xFF
        cells[:, 0] ^= 0x80
        bad = np.zeros(len(cells), np.bool_)
        parts, at = [], 0
        for size, digits in _groups(precision, scale):
            part = _big(cells[:, at : at + size])
            bad |= part >= 10**digits
            parts.append((part.astype(np.int64), digits))
            at += size
        if precision <= 18:
            whole = np.zeros(len(cells), np.int64)
            for part, digits in parts:
                whole = whole * 10**digits + part
            whole[negative] *= -1
            whole[bad] = 0
            return _decimal(whole, whole >> 63, self._arrow), bad, _DAMAGED
        total: Numbers = np.zeros(len(cells), object)
        for part, digits in parts:
            total = total * 10**digits + part.astype(object)
        total[negative] *= -1
        total[bad] = 0
        if pa.types.is_decimal(self._arrow):
            mask = (1 << 64) - 1
            low = np.array([value & mask for value in total], np.uint64)
            high = np.array([value >> 64 for value in total], np.int64)
            return _decimal(low, high, self._arrow), bad, _DAMAGED
        pad = precision - scale if "zerofill" in self.column.type else 1
        return pa.array([_printed(value, scale, pad) for value in total], self._arrow), bad, _DAMAGED

    def _dates(self, cells: Numbers) -> _Values:
        packed_ = _little(cells).astype(np.int64)
        days, bad = _days(packed_ >> 9, packed_ >> 5 & 15, packed_ & 31)
        return pa.array(days.astype(np.int32)).view(pa.date32()), bad, _IMPOSSIBLE

    def _datetimes(self, cells: Numbers) -> _Values:
        if self._kind == _DATETIME:
            day, clock = np.divmod(_little(cells).view(np.int64), 1_000_000)
            date = day // 10_000, day // 100 % 100, day % 100
            parts = clock // 10_000, clock // 100 % 100, clock % 100
            micros = np.zeros(len(cells), np.int64)
        else:
            whole = _big(cells[:, :5]).view(np.int64) - 0x80_0000_0000
            micros = _fraction(cells[:, 5:], self._meta)
            month, day = whole >> 22, whole >> 17 & 31
            date = month // 13, month % 13, day
            parts = whole >> 12 & 31, whole >> 6 & 63, whole & 63
        days, bad = _days(*date)
        hours, minutes, seconds = parts
        bad |= (hours > 23) | (minutes > 59) | (seconds > 59) | (micros > 999_999)
        return self._moments(((days * 24 + hours) * 60 + minutes) * 60 + seconds, micros, bad)

    def _timestamps(self, cells: Numbers) -> _Values:
        if self._kind == _TIMESTAMP:
            seconds, micros = _little(cells).view(np.int64), np.zeros(len(cells), np.int64)
        else:
            seconds, micros = _big(cells[:, :4]).view(np.int64), _fraction(cells[:, 4:], self._meta)
        return self._moments(seconds, micros, (seconds | micros == 0) | (micros > 999_999))

    def _moments(self, seconds: Numbers, micros: Numbers, bad: Numbers) -> _Values:
        found = np.where(bad, 0, seconds * 1_000_000 + micros)
        return pa.array(found).view(self._arrow), bad, _IMPOSSIBLE

    def _times(self, cells: Numbers) -> _Values:
        if self._kind == _TIME:
            digits = 0
            whole = (_little(cells) << np.uint64(40)).view(np.int64) >> 40
            size, micros = np.abs(whole), np.zeros(len(cells), np.int64)
            hours, minutes, seconds = size // 10_000, size // 100 % 100, size % 100
        else:
            digits = self._meta
            bits = 8 * (self._width - 3)
            whole = _big(cells).view(np.int64) - (0x80_0000 << bits)
            size = np.abs(whole)
            micros = (size & (1 << bits) - 1) * _MICROS[(digits + 1) // 2]
            clock = size >> bits
            hours, minutes, seconds = clock >> 12 & 1023, clock >> 6 & 63, clock & 63
        bad = (hours > 838) | (minutes > 59) | (seconds > 59) | (micros > 999_999)
        rows = zip(*(part.tolist() for part in (whole < 0, hours, minutes, seconds, micros)), strict=True)
        texts = []
        for negative, *clock_, micro in rows:
            text = ("-" if negative else "") + "{:02}:{:02}:{:02}".format(*clock_)
            texts.append(text + f".{micro:06}"[: digits + 1] if digits else text)
        return pa.array(texts, self._arrow), bad, _DAMAGED

    def _members(self, cells: Numbers) -> _Values:
        column = self.column
        numbers, places = np.unique(_little(cells), return_inverse=True)
        members = column.members
        marked = _marked(column)
        texts, bad = [], []
        for number in numbers.tolist():
            if column.data_type == "enum":
                chosen = [members[number - 1]] if 0 < number <= len(members) else []
                wrong = number > len(members)
            else:
                chosen = [member for bit, member in enumerate(members) if number >> bit & 1]
                wrong = bool(number >> len(members))
            # A type shows characters beyond the server's catalogue as question marks.
            bad.append(wrong or marked(number) or any("?" in member for member in chosen))
            texts.append(",".join(chosen))
        found: Any = pa.array(texts, self._arrow).take(places.reshape(-1))
        return found, np.array(bad, np.bool_)[places.reshape(-1)], "a member that its text does not tell"

    def _bytes(self, ends: Numbers, values: bytearray) -> _Values:
        bad = np.zeros(len(ends), np.bool_)
        if self.column.data_type == "binary":  # the log drops zeros at the end
            texts = [v.ljust(self._meta, b"\0") for v in _pieces(ends, values)]
            return pa.array(texts, self._arrow), bad, ""
        return _strings(ends, values, pa.binary()).cast(self._arrow), bad, ""

    def _addresses(self, ends: Numbers, values: bytearray) -> _Values:
        show = {"uuid": _uuid, "inet6": _inet6, "inet4": _inet4}[self.column.data_type]
        texts = [show(v.ljust(self._meta, b"\0")) for v in _pieces(ends, values)]
        return pa.array(texts, self._arrow), np.zeros(len(ends), np.bool_), ""

    def _texts(self, ends: Numbers, values: bytearray) -> _Values:
        array, bad = self._convert(ends, values)
        return array.cast(self._arrow), bad, f"text of {self.column.charset} that only the server can convert"


def _marked(column: Column) -> Callable[[int], bool]:
    """Whether a member's number reads like another one's, which the row reader refuses: see `member_text`."""
    members = column.members
    twice = [i for i, member in enumerate(members) if member in members[:i]]
    if member_text(column) is None:
        return lambda number: False
    if column.data_type == "enum":
        return lambda number: number - 1 in twice or (not number and "" in members)
    first = [1 << i for i, member in enumerate(members) if not member]
    return lambda number: (
        any(number >> i & 1 for i in twice) or any(number & 2 * bit - 1 == bit for bit in first)
    )


def _little(cells: Numbers) -> Numbers:
    """Numbers with the lowest byte first, of any width up to eight."""
    whole = np.zeros((len(cells), 8), np.uint8)
    whole[:, : cells.shape[1]] = cells
    return whole.view("<u8")[:, 0]


def _big(cells: Numbers) -> Numbers:
    return _little(cells[:, ::-1])


_MICROS = (1, 10_000, 100, 1)  # of one unit, by the bytes of a fraction


def _fraction(cells: Numbers, digits: int) -> Numbers:
    return _big(cells).view(np.int64) * _MICROS[(digits + 1) // 2]


def _days(year: Numbers, month: Numbers, day: Numbers) -> tuple[Numbers, Numbers]:
    """Days since 1970, and which dates don't exist."""
    bad = (year > 9999) | (year < 0) | (month < 1) | (month > 12) | (day < 1)
    index = np.where(bad, 0, (year * 12 + month - 1))
    months = index.astype("datetime64[M]") - np.timedelta64(1970 * 12, "M")
    first = months.astype("datetime64[D]").astype(np.int64)
    after = (months + np.timedelta64(1, "M")).astype("datetime64[D]").astype(np.int64)
    bad |= day > after - first
    return np.where(bad, 0, first + day - 1), bad


def _decimal(low: Numbers, high: Numbers, arrow: pa.DataType) -> Array:
    """Decimals from the halves of their 128-bit numbers."""
    both = np.stack((low.view(np.uint64), high.view(np.uint64)), axis=1)
    return pa.Array.from_buffers(arrow, len(low), [None, _buffer(both)])


def _printed(value: int, scale: int, whole: int) -> str:
    """A decimal as the server prints it, with at least so many digits before the point."""
    text = str(abs(value)).rjust(scale + whole, "0")
    text = f"{text[:-scale]}.{text[-scale:]}" if scale else text
    return f"-{text}" if value < 0 else text


def _pieces(ends: Numbers, values: bytearray) -> list[bytes]:
    return [bytes(values[a:b]) for a, b in itertools.pairwise([0, *ends.tolist()])]


def _strings(ends: Numbers, values: bytearray, arrow: pa.DataType) -> Array:
    """Texts or bytes from where they end."""
    offsets = np.concatenate((np.zeros(1, np.int64), ends))
    large = pa.large_binary() if pa.types.is_binary(arrow) else pa.large_string()
    found: Any = pa.Array.from_buffers(large, len(ends), [None, _buffer(offsets), _buffer(values)])
    return found.cast(arrow)


def _uuid(value: bytes) -> str:
    text = value.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _inet4(value: bytes) -> str:
    return ".".join(map(str, value))


def _inet6(value: bytes) -> str:
    """As MariaDB writes it: the longest stretch of zeros is left out, even of one group; IPv4 in its own notation."""
    words = struct.unpack(">8H", value)
    gap, length = -1, 0
    at = 0
    while at < 8:
        end = at
        while end < 8 and not words[end]:
            end += 1
        if end - at > length:
            gap, length = at, end - at
        at = end + 1
    if gap == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF)):
        return ("::" if length == 6 else "::ffff:") + _inet4(value[12:])
    shown = [f"{word:x}" for word in words]
    if gap < 0:
        return ":".join(shown)
    return ":".join(shown[:gap]) + "::" + ":".join(shown[gap + length :])
