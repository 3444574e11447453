"""The type mapping: MySQL column → SELECT expression → Arrow (the file) → the type that a warehouse has its own name for.

Every value that MySQL can hold arrives exactly or is refused; nothing is rounded, shifted or truncated here.
The file types are the strict dialect that Redshift's COPY accepts: signed integers of the declared width,
decimals of the declared precision, timestamps in UTC microseconds (wall clocks written as if UTC), no
fixed-length binary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from floodmark.model.errors import ConfigError
from floodmark.model.names import apart, marked, target_name
from floodmark.model.table import Column, Table

# A column that exists only in files: compares keys the way MySQL does.
KEY_FIELD = "_floodmark_key"
# The last column of files whose rows merge by key: of two rows with the same key, the higher was read later.
READ_FIELD = "_floodmark_read"

UTC = pa.timestamp("us", "UTC")
# The types of text and bytes, whose values have different lengths.
LONG = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())

# A batch of longer values may exceed two gigabytes, and needs 64-bit offsets.
LONGEST_IN_BATCH = 4 * 65_535

_INTEGERS = {  # signed, unsigned
    "tinyint": ("int16", "int16"),
    "smallint": ("int16", "int32"),
    "mediumint": ("int32", "int32"),
    "int": ("int32", "int64"),
    "bigint": ("int64", "decimal"),
    "year": ("int16", "int16"),
}
_WIDTHS: dict[str, pa.DataType] = {
    "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(), "decimal": pa.decimal128(20, 0),
}  # fmt: skip
_TYPES = {
    pa.int16(): "int16", pa.int32(): "int32", pa.int64(): "int64", pa.bool_(): "flag", pa.float32(): "float",
    pa.float64(): "double", pa.date32(): "date",
}  # fmt: skip
_BLOBS = {"tinyblob": 255, "blob": 65_535, "mediumblob": 2**24 - 1, "longblob": 2**32 - 1}
_TEXTS = {"tinytext": 255, "text": 65_535, "mediumtext": 2**24 - 1, "longtext": 2**32 - 1}
_CHARS = {"char", "varchar"}
_ADDRESSES = {"uuid": 36, "inet4": 15, "inet6": 45}
# MySQL 8 and newer return a geographic point as latitude, longitude unless given this option for the order of
# well-known binary, x = longitude. Only they execute the comment; older versions and MariaDB don't have the
# option, and store that order anyway.
_LONG_LAT = "/*!80011 , 'axis-order=long-lat' */"
GEOMETRIES = {
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geometrycollection", "geomcollection",
}  # fmt: skip
# Maximum bytes per character in UTF-8. MySQL's latin1 is cp1252, whose euro sign takes three.
_UTF8_BYTES = {"ascii": 1, "utf8mb4": 4, "utf16": 4, "utf16le": 4, "utf32": 4, "gb18030": 4}

# Collations whose WEIGHT_STRING does not match their equality, found by testing all collations of MariaDB
# 10.11 and MySQL 9.7: MySQL compares euckr byte by byte, and its weights for tis620 end at a NUL.
_UNWEIGHABLE = re.compile(
    r"big5_.*_ci|cp1250_czech_cs|euckr_korean_(nopad_)?ci|tis620_thai_(nopad_)?ci|.*_nopad_ai_cs"
    r"|.*vietnamese_nopad_as_ci"
)


@dataclass(frozen=True)
class Field:
    """One column of the file. A MySQL column may have two: `c` and `c__raw`, or a geometry and its `c__srid`."""

    name: str  # in the file
    column: str  # the MySQL column; for the key field, the first key column
    select: str
    arrow: pa.DataType
    wall_clock: bool = False  # DATETIME: written as if UTC, stored without a zone
    file_only: bool = False
    raw: bool = False  # the exact text of an impossible date, else NULL
    max_bytes: int = 0  # of text and binary: the longest possible value
    written: int = 0  # of another type's values that are written as text: the most bytes
    document: bool = False  # JSON, which a warehouse may parse
    target: str = ""  # its name in the target

    @property
    def is_text(self) -> bool:
        return self.arrow in (pa.string(), pa.large_string())

    @property
    def type(self) -> tuple[str, *tuple[int, ...]]:
        """Its type, in words that each warehouse has a name for: `Capabilities.types`."""
        if self.file_only:
            return ("weight",)
        if pa.types.is_decimal(self.arrow):
            return "decimal", self.arrow.precision, self.arrow.scale
        if pa.types.is_timestamp(self.arrow):
            return ("moment" if self.wall_clock else "instant",)
        if self.arrow in _TYPES:
            return (_TYPES[self.arrow],)
        if self.document:
            return ("document",)
        return "text" if self.is_text else "bytes", max(self.max_bytes, self.written, 1)


def quote(name: str) -> str:
    """The name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def fields(table: Table) -> tuple[Field, ...]:
    """The columns of the table's files, in order; names are unique in the files and in the target."""
    found: list[Field] = []
    source = {column.name.lower() for column in table.columns}

    def free(name: str) -> str:
        return marked(name) if name.lower() in source else name

    for column in table.columns:
        field = field_of(column)
        if column.name in table.key:
            field = replace(field, select=member_text(column) or field.select)
        found.append(field)
        if column.data_type in GEOMETRIES:
            srid = f"ST_SRID({quote(column.name)})"
            name = free(f"{column.name}__srid")
            found.append(Field(name, column.name, srid, pa.int32()))
        if table.recipe.zero_dates == "keep" and is_moment(field):
            name = free(f"{column.name}__raw")
            found.append(Field(name, column.name, field.select, pa.string(), raw=True, written=26))
    if table.mode == "upsert" and (expression := key_expression(table)) is not None:
        # MySQL's longest key has 768 characters. Most have 2 to 8 bytes of weights, some ligatures over 100
        # (18 elements, 3 levels).
        found.append(
            Field(free(KEY_FIELD), table.key[0], expression, pa.binary(), file_only=True, max_bytes=8192)
        )
    return _named(found)


def _named(found: list[Field]) -> tuple[Field, ...]:
    """The same fields with their names in the target."""
    taken: dict[str, None] = {}
    done: list[Field] = []
    for field in found:
        if not field.file_only:
            derived = field.name != field.column
            name = f"{field.column}{'__raw' if field.raw else '__srid'}" if derived else field.name
            wished = target_name(name, derived=derived)
            field = replace(field, target=apart(name, wished, taken))
            taken[field.target] = None
        done.append(field)
    return tuple(done)


def file_schema(table: Table) -> pa.Schema:
    """The schema of the table's files. All columns are nullable, as COPY requires."""
    return schema_of(fields(table))


def schema_of(chosen: Sequence[Field]) -> pa.Schema:
    """The same of some fields."""
    return pa.schema([pa.field(f.name, f.arrow) for f in chosen])


def is_moment(field: Field) -> bool:
    """Whether the field holds dates or timestamps, which MySQL allows to be impossible."""
    return bool(pa.types.is_date32(field.arrow) or pa.types.is_timestamp(field.arrow))


def field_of(column: Column) -> Field:
    name, kind = quote(column.name), column.data_type

    def plain(arrow: pa.DataType, select: str = name, **more: Any) -> Field:
        return Field(column.name, column.name, select, arrow, **more)

    if kind in _INTEGERS:
        return plain(_WIDTHS[_INTEGERS[kind][column.unsigned]])
    if kind == "bit":
        number = f"CAST({name} AS UNSIGNED)"
        bits = column.precision or 64
        if bits == 1:
            return plain(pa.bool_(), number)
        return plain(_WIDTHS["int64" if bits < 64 else "decimal"], number)
    if kind == "decimal":
        precision, scale = column.precision or 10, column.scale or 0
        if precision == 19:  # Redshift stores 19 digits in eight bytes, which can't hold 19 nines
            precision = 20
        if precision <= 38 and scale <= 37:
            return plain(pa.decimal128(precision, scale))
        return plain(pa.string(), written=precision + 3)
    if kind == "float":
        # The text protocol prints only six digits of a FLOAT, but all of a DOUBLE.
        return plain(pa.float32(), f"{name}*1e0")
    if kind == "double":
        return plain(pa.float64())
    if kind == "date":
        return plain(pa.date32())
    if kind == "datetime":
        return plain(UTC, wall_clock=True)
    if kind == "timestamp":
        return plain(UTC)
    if kind == "time":  # up to 838:59:59, more than any warehouse's TIME
        return plain(pa.string(), written=18)
    if kind in _ADDRESSES:
        return plain(pa.string(), written=_ADDRESSES[kind])
    if kind == "json":  # Oracle's own type; MariaDB's JSON is LONGTEXT
        return replace(_text(column, 2**32 - 1, f"CAST({name} AS CHAR)"), document=True)
    if kind in _CHARS or kind in ("enum", "set"):
        return _text(column, (column.characters or 0) * _UTF8_BYTES.get(column.charset or "", 3), name)
    if kind in _TEXTS:
        bytes_ = column.octets or _TEXTS[kind]
        return _text(column, bytes_ if (column.charset or "").startswith("utf8") else bytes_ * 3, name)
    if kind in ("binary", "varbinary", "vector"):
        return _binary(column, column.octets or 65_535, name)
    if kind in _BLOBS:
        return _binary(column, _BLOBS[kind], name)
    if kind in GEOMETRIES:
        return _binary(column, 2**32 - 1, f"ST_AsBinary({name} {_LONG_LAT})")
    raise ConfigError(
        f"column {column.name} has type {column.type}, which can't be replicated",
        hint=f"exclude it: `exclude: [{column.name}]`",
    )


def _text(column: Column, max_bytes: int, select: str) -> Field:
    arrow = pa.string() if max_bytes <= LONGEST_IN_BATCH else pa.large_string()
    return Field(column.name, column.name, select, arrow, max_bytes=max_bytes)


def _binary(column: Column, max_bytes: int, select: str) -> Field:
    arrow = pa.binary() if max_bytes <= LONGEST_IN_BATCH else pa.large_binary()
    return Field(column.name, column.name, select, arrow, max_bytes=max_bytes)


# ---------------------------------------------------------------- keys as MySQL compares them

Comparison = Literal["bytes", "weights", "unknown"]


def comparison(column: Column) -> Comparison:
    """How MySQL decides that two values of a key column are equal: by bytes, by weights, or unknown.

    Even a binary collation treats 'a' and 'a ' as equal, unless it is a NO PAD collation.
    """
    if column.data_type in ("enum", "set") or column.collation is None:
        return "bytes"
    name = column.collation
    if name == "binary" or name.endswith(("_nopad_bin", "_0900_bin")):
        return "bytes"
    return "unknown" if column.data_type not in _CHARS or _UNWEIGHABLE.fullmatch(name) else "weights"


# What the text of such a value begins with: a character that is none.
TWIN = "\uffff"


def member_text(column: Column) -> str | None:
    """The text of a key's ENUM or SET, with a mark on values that read like another one; None: it needs none.

    The invalid value 0 of an ENUM reads like its member ''. A SET that begins with '' reads as if it were without it.
    Servers that are not strict allow a member twice.
    """
    if column.data_type not in ("enum", "set"):
        return None
    members, name = column.members, quote(column.name)
    number = f"({name} | 0)"
    # A type shows characters beyond the server's catalogue as question marks.
    twice = [i for i, member in enumerate(members) if member in members[:i] and "?" not in member]
    if column.data_type == "enum":
        twins = [str(n) for n in (*([0] if "" in members else []), *(i + 1 for i in twice))]
        which = [f"{number} IN ({', '.join(twins)})"] if twins else []
    else:
        which = [f"{number} & {1 << i} <> 0" for i in twice]
        first = [1 << i for i, member in enumerate(members) if not member]
        which += [f"{number} & {2 * bit - 1} = {bit}" for bit in first]
    found = f"CONCAT(_utf8mb4 X'{TWIN.encode().hex()}', {number})"
    return f"IF({' OR '.join(which)}, {found}, CONVERT({name} USING utf8mb4))" if which else None


def key_expression(table: Table) -> str | None:
    """An expression whose bytes are equal exactly if MySQL finds two keys equal; None: the key itself will do."""
    columns = [table.column(name) for name in table.key]
    if not any(comparison(c) == "weights" for c in columns):
        return None
    parts = [_weights(c) if comparison(c) == "weights" else _plain_part(c) for c in columns]
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[str]) -> str:
    """One byte string, each part prefixed with its length, so that ('a', 'bc') and ('ab', 'c') differ."""
    return "CONCAT(" + ", ".join(f"LPAD(LENGTH({p}), 5, '0'), {p}" for p in parts) + ")"


def _plain_part(column: Column) -> str:
    name = quote(column.name)
    if column.data_type in ("enum", "set", "bit"):
        # CAST(… AS UNSIGNED) would warn if the highest bit of a SET is set.
        return f"CAST(({name} | 0) AS BINARY)"
    return f"CAST({name} AS BINARY)"


def _weights(column: Column) -> str:
    """The value's weights in its collation, without those of trailing spaces if the collation pads."""
    name, collation = quote(column.name), column.collation or ""
    if "_nopad_" in collation or "_0900_" in collation:
        return f"WEIGHT_STRING({name})"
    space = f"CONVERT(' ' USING {column.charset}) COLLATE {collation}"

    # RTRIM would leave a no-break space, which Unicode collations also ignore as padding. WEIGHT_STRING(c AS
    # CHAR(n)) cuts off the weights after the n-th, and many characters have two.
    def trimmed(level: str = "", of: str = name) -> str:
        return f"TRIM(TRAILING WEIGHT_STRING({space}{level}) FROM WEIGHT_STRING({of}{level}))"

    if collation.endswith("_w2") or ("uca1400" in collation and not collation.endswith("_ai_ci")):
        return _joined([trimmed(f" LEVEL {level}") for level in (1, 2, 3)])
    # Here ı has the weights of I, and ſ those of S, yet they differ: also weigh them as other letters.
    if collation == "gb18030_chinese_ci":
        return _joined([trimmed(), trimmed(of=_told_apart(name, column.charset or "", collation))])
    return trimmed()


def _told_apart(name: str, charset: str, collation: str) -> str:
    """The value with ı and ſ replaced by letters that differ from I and S."""
    for letter, other in (("ı", "a"), ("ſ", "b")):
        found = f"CONVERT(_utf8mb4 X'{letter.encode().hex()}' USING {charset}) COLLATE {collation}"
        name = f"REPLACE({name}, {found}, '{other}')"
    return name
