"""The basis for comparing source and warehouse: a canonical form for every column, key ranges, digests. Pure.

Either both sides hand out their rows as Arrow columns, which are hashed as they are (`row_hash`); or each prints
a row as the same text and hashes it in place, and only counts, sums and hashes cross the network. A form says
how a column is printed, and a `Dialect` how one server prints it, so that MySQL, DuckDB and Redshift agree byte
for byte; `source/canonical.py` and `load/canonical.py` write the queries.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as a_field
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute

from floodmark.model.errors import DataError
from floodmark.model.position import Key, Position, Value
from floodmark.model.table import Column, Table
from floodmark.model.types import TWIN, Field, fields, is_moment
from floodmark.model.warehouse import Capabilities

pc: Any = pyarrow.compute

# number, decimal: digits. flag: 0 or 1. float: the eight bytes in hex.
# day, moment, instant: YYYY-MM-DD[ HH:MM:SS.ffffff]. text: its UTF-8 bytes. bytes: hex.
# digest: the hash of long text or bytes. pieces: the hash of every 32,000 bytes.
Print = Literal[
    "number", "decimal", "flag", "float", "day", "moment", "instant", "text", "bytes", "text digest",
    "bytes digest", "pieces",
]  # fmt: skip

# Hexadecimal digits of SHA-256 in a hash: few enough that a list of keys fits into one Data API statement.
DIGITS = 32
# Values up to this many bytes are printed as they are; longer ones as their hash.
PRINTED = 1024
# Redshift's text ends at 65,535 bytes, so a row is hashed in groups of columns that stay below that.
GROUP = 48_000
# Redshift hashes only text, and the hex digits of this many bytes still fit into one. Bytes beyond the last
# piece are compared only by their number.
PIECE = 32_000
MOST_PIECES = 8
FLAT = 16  # texts joined without parentheses

# A key as both servers print it.
Printed = tuple[str | None, ...]


@dataclass(frozen=True)
class Form:
    """One column of the target, and how its values are printed."""

    field: Field
    column: Column
    print: Print
    policy: bool = False  # whether the table's policies may have changed a value
    limit: int | None = None  # the bytes that the warehouse can hold, if a value may exceed them
    nul: bool = True  # whether the warehouse can hold U+0000

    @property
    def width(self) -> int:
        """The maximum number of bytes in a printed value."""
        match self.print:
            case "text":
                return self.field.max_bytes + 7 if self.field.max_bytes else 128
            case "bytes":
                return 2 * self.field.max_bytes + 1
            case "pieces":
                return 33 * MOST_PIECES + 12
        return 48

    @property
    def pieces(self) -> int:
        return min(MOST_PIECES, -(-self.field.max_bytes // PIECE))


def _print(field: Field, can: Capabilities, short: bool) -> Print:
    kind = field.arrow
    if pa.types.is_boolean(kind):
        return "flag"
    if pa.types.is_integer(kind):
        return "number"
    if pa.types.is_decimal(kind):
        return "decimal" if kind.scale else "number"
    if pa.types.is_floating(kind):
        return "float"
    if pa.types.is_date(kind):
        return "day"
    if pa.types.is_timestamp(kind):
        return "moment" if field.wall_clock else "instant"
    if field.is_text:
        return "text" if short else "text digest"
    if short:
        return "bytes"
    return "bytes digest" if can.hashes_bytes else "pieces"


def forms(table: Table, can: Capabilities, parsed: Collection[str] = ()) -> tuple[Form, ...]:
    """The columns that can be compared; not parsed JSON, because the warehouse keeps its meaning, not its text.

    `parsed`: the target's columns that hold parsed JSON, whatever the source's type.
    """
    found = []
    for field in fields(table):
        if field.file_only or not field.target or can.parses(field) or field.target in parsed:
            continue
        column, keyed = table.column(field.column), field.name in table.key
        changed = (is_moment(field) or field.raw) and table.recipe.zero_dates != "error"
        policy = (changed or table.recipe.overflow != "error") and not (keyed and table.mode != "full")
        short = field.max_bytes <= PRINTED or keyed  # keys are always printed in full
        nul = can.nul or not (policy and field.is_text and column.charset)
        limit = can.exceeded(field) if policy else None
        found.append(Form(field, column, _print(field, can, short), policy, limit, nul))
    return tuple(found)


def groups(chosen: Sequence[Form]) -> tuple[tuple[Form, ...], ...]:
    """The columns in groups, each short enough for one text."""
    made: list[list[Form]] = [[]]
    width = 0
    for one in chosen:
        if made[-1] and width + one.width + 1 > GROUP:
            made.append([])
            width = 0
        made[-1].append(one)
        width += one.width + 1
    return tuple(tuple(group) for group in made)


def concatenated(texts: Sequence[str], between: str) -> str:
    """The texts with another between them, as a balanced tree: warehouses limit how deep an expression may nest."""
    glue = f" || '{between}' || " if between else " || "
    if len(texts) <= FLAT:
        return glue.join(texts)
    halves = (texts[: len(texts) // 2], texts[len(texts) // 2 :])
    return glue.join(f"({concatenated(half, between)})" for half in halves)


@dataclass(frozen=True)
class Dialect:
    """How one server prints values and hashes rows, in its SQL; `{}` stands for a value or a text."""

    prints: Mapping[str, str]  # values of each kind as text, if not as they are
    sized: str  # a text behind its length in bytes and a colon
    size: str  # a binary value's length in bytes, as text
    cut: str  # so many of its bytes, from a place on
    hash: str  # of a text, or of bytes where the server can
    number: str  # the first 60 bits of a hash, as a number
    # Texts, none of which is NULL, with a text between them.
    joined: Callable[[Sequence[str], str], str] = concatenated
    bare: bool = False  # whether DECIMAL(n,n) prints 0.5 as .5

    def printed(self, form: Form, value: str) -> str:
        """The value as its canonical text; NULL stays NULL."""
        match form.print:
            case "text digest" | "bytes digest":
                return self.hash.format(value)
            case "pieces":
                cuts = (self.cut.format(value, i * PIECE + 1, PIECE) for i in range(form.pieces))
                hashed = [self.hash.format(self.prints["bytes"].format(cut)) for cut in cuts]
                return self.joined([self.size.format(value), *hashed], "")
        return self.prints.get(form.print, "{}").format(value)

    def element(self, form: Form, printed: str) -> str:
        """A printed value as part of the row's text: NULL differs from every value, and no text ends its part early."""
        return f"COALESCE({self.sized.format(printed) if form.print == 'text' else printed}, 'N')"

    def hashed(self, chosen: Sequence[Form], element: Callable[[Form], str]) -> str:
        """The hash of the columns' text; if one text can't hold them all, the hash of its parts' hashes."""
        made = [self.hash.format(self.joined([element(f) for f in group], ",")) for group in groups(chosen)]
        return made[0] if len(made) == 1 else self.hash.format(self.joined(made, ""))


# ---------------------------------------------------------------- key ranges and their digests


@dataclass(frozen=True)
class Span:
    """Keys greater than `after` and up to `upto`; None leaves that end open."""

    after: Position | None = None
    upto: Position | None = None


_MODULUS = 1 << 128


@dataclass(frozen=True)
class Digest:
    """A set of rows: how many, and the sum of their hashes, modulo 2**128."""

    rows: int = 0
    sum: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, (self.sum + other.sum) % _MODULUS)


# Loose rows have no place in the change order, and are compared as well: every sync reads them.
Membership = Literal["in", "loose", "beyond", "before"]


class Entry(NamedTuple):
    """One row: its printed key, its hash and, if requested, its printed columns. There may be millions."""

    key: tuple[str | None, ...]
    hash: str
    columns: tuple[str, ...] = ()
    place: Membership = "in"  # relative to the scope; only for the source's rows

    @property
    def compared(self) -> bool:
        return self.place in ("in", "loose")


@dataclass(frozen=True)
class Scope:
    """What to compare of a table: these columns, of rows after `low` and up to `high` in the change order."""

    table: Table
    forms: tuple[Form, ...]
    order: tuple[Form, ...] = ()  # the columns of the change order
    low: Position | None = None
    high: Position | None = None  # None: every row (a table without a cursor)
    future: Value | None = None  # rows with a cursor from here on are in the scope, too; None: there are none
    # Ranges that are not compared: after the first position, up to the second.
    skipped: tuple[tuple[Position | None, Position], ...] = ()
    recent: bool = False  # few rows at the end of the change order: use the cursor's index
    # The key of the hashes, if rows are fetched and hashed; None: each server hashes its rows.
    hash_key: bytes | None = a_field(default=None, repr=False)

    @property
    def index(self) -> str | None:
        """The source's index to use for finding the rows."""
        return self.table.source.cursor_index if self.recent else self.table.source.key_index

    @cached_property  # asked for each of many rows
    def keys(self) -> tuple[Form, ...]:
        by_name = {f.field.name: f for f in self.forms if f.field.name == f.field.column}
        return tuple(by_name[name] for name in self.table.key)

    @property
    def ordered(self) -> bool:
        """Whether the warehouse orders keys as MySQL does, so that both see the same key ranges."""
        orders = ("number", "decimal", "day", "moment", "instant")
        return all(
            f.print in orders and f.column.data_type != "bit" and not f.column.nullable for f in self.keys
        )


_DAY = r"\d{4}-\d\d-\d\d"
_MOMENT = re.compile(_DAY + r" \d\d:\d\d:\d\d(\.\d+)?")
_TIMES = {"day": re.compile(_DAY), "moment": _MOMENT, "instant": _MOMENT}


def key_of(scope: Scope, printed: Sequence[str | None]) -> Key:
    """A printed key as MySQL values; DataError if the source's column can't hold such a value."""
    return tuple(_value(f, text) for f, text in zip(scope.keys, printed, strict=True))


def printed(one: Form, values: Any) -> list[str | None]:
    """A key column's values as the servers print them, if these are not the texts already."""
    if pa.types.is_string(values.type):
        return list(values.to_pylist())
    match one.print:
        case "day":
            _finite(one, values.cast(pa.int32()), 2**31 - 1)
            return list(values.cast(pa.string()).to_pylist())
        case "moment" | "instant":
            numbers = values.cast(pa.int64())
            _finite(one, numbers, 2**63 - 1)
            return list(numbers.cast(pa.timestamp("us")).cast(pa.string()).to_pylist())
    return [None if value is None else _text(one, value) for value in values.to_pylist()]


def _finite(one: Form, numbers: Any, infinity: int) -> None:
    """Refuses DuckDB's infinite dates and times, which MySQL has not."""
    for text, number in (("infinity", infinity), ("-infinity", -infinity)):
        if pc.any(pc.equal(numbers, number)).as_py():
            raise _impossible(one, text)


def _impossible(one: Form, text: str) -> DataError:
    """For a row of the target whose key no source row can have: it can't be looked up."""
    return DataError(
        f"the target has a row with {text} in the key column {one.field.target}: no source row can have that",
        hint="delete that row in the warehouse",
    )


def _text(one: Form, value: Any) -> str:
    match one.print:
        case "flag":
            return str(int(value))
        case "number" | "decimal":
            return format(value, "f") if isinstance(value, Decimal) else str(value)
        case "float":
            return struct.pack("<d", value).hex().upper()
        case "bytes":
            return bytes(value).hex().upper()
    return str(value)


def _value(one: Form, text: str | None) -> Value | None:
    column = one.column
    if text is None:
        return None
    if column.data_type in ("enum", "set"):
        return _member(one, text)
    if (form := _TIMES.get(one.print)) is not None and not form.fullmatch(text):
        raise _impossible(one, text)
    match one.print:
        case "number" | "flag":
            # A DECIMAL without a scale stays text, as in a position.
            return text if column.data_type == "decimal" else int(text)
        case "float":
            return repr(struct.unpack("<d", bytes.fromhex(text))[0])
        case "bytes":
            return "0x" + text.lower()
    return text


def _member(one: Form, text: str) -> int:
    """The number of an ENUM's member, or the bits of a SET's; 0: none."""
    column = one.column
    if text.startswith(TWIN):
        raise DataError(
            f"the source has a row with the number {text.removeprefix(TWIN)} in the key column {column.name}, "
            "whose text is that of another value: the warehouse can't tell them apart",
            hint="correct the value at the source",
        )
    if column.data_type == "enum" and text in column.members:
        return column.members.index(text) + 1
    if not text or (column.data_type == "enum" and "?" in column.type):
        return 0  # the type shows characters beyond the server's catalogue as question marks
    chosen = text.split(",")
    if column.data_type == "enum" or any(name not in column.members for name in chosen):
        raise _impossible(one, text)
    return sum(1 << column.members.index(name) for name in chosen)
