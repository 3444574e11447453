"""What source and warehouse are compared by: a canonical form for every column, parts of a key, digests. Pure.

Both sides print a row as the same text and hash it where it lies; only counts, sums and hashes travel. A form says
how a column is printed, so that MySQL, DuckDB and Redshift agree byte for byte; `mysql/canonical.py` and
`warehouse/canonical.py` say it in their SQL.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pyarrow as pa

from floodmark.model import Column, Key, Position, Table, Value
from floodmark.types import Field, fields, is_moment

# number, decimal: digits. flag: 0 or 1. float: the eight bytes, in hex. day, moment, instant: YYYY-MM-DD[ HH:MM:SS.ffffff].
# text: its bytes in UTF-8; bytes: hex. digest: the hash of long text or bytes; pieces: of each 32,000 bytes.
Print = Literal[
    "number", "decimal", "flag", "float", "day", "moment", "instant", "text", "bytes", "text digest",
    "bytes digest", "pieces",
]  # fmt: skip

# A hash is so many hexadecimal digits of SHA-256: lists of keys fit into one statement of the Data API.
DIGITS = 32
# Values of up to so many bytes are printed; the hash of longer ones is.
PRINTED = 1024
# Redshift's texts end at 65,535 bytes: a row is hashed in groups of columns that stay below.
GROUP = 48_000
# Redshift hashes text only, and hex digits of so many bytes still are one. What lies beyond the last piece is
# compared by its length.
PIECE = 32_000
MOST_PIECES = 8


@dataclass(frozen=True)
class Form:
    """One column of the target and how its values are printed."""

    field: Field
    column: Column
    print: Print
    policy: bool = False  # whether the table's policies may have changed a value
    limit: int | None = None  # the bytes that the warehouse can hold, where a value may pass them
    nul: bool = True  # whether the warehouse can hold U+0000

    @property
    def width(self) -> int:
        """The most bytes of the printed value."""
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


def form(field: Field, column: Column, *, redshift: bool, policy: bool, keyed: bool) -> Form:
    """How a field is printed; `redshift`: in a warehouse with Redshift's limits. Keys are always printed whole."""
    kind = field.arrow
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    limit = None
    if redshift and policy:
        limit = 65_535 if text else 16_777_216
        limit = limit if field.max_bytes > limit else None
    short = field.max_bytes <= PRINTED or keyed
    nul = not (redshift and policy and text and column.charset)
    return Form(field, column, _print(field, redshift, text, short), policy, limit, nul)


def _print(field: Field, redshift: bool, text: bool, short: bool) -> Print:
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
    if text:
        return "text" if short else "text digest"
    if short:
        return "bytes"
    return "pieces" if redshift else "bytes digest"


def forms(table: Table, *, redshift: bool) -> tuple[Form, ...]:
    """The columns that can be compared. Parsed JSON can't: Redshift keeps its meaning, not its text."""
    found = []
    for field in fields(table):
        column = table.column(field.column)
        if field.file_only or not field.target or (redshift and field.redshift == "SUPER"):
            continue
        keyed = field.name in table.key
        changed = (is_moment(field) or field.raw) and table.zero_dates != "error"
        policy = (changed or table.overflow != "error") and not (keyed and table.mode != "full")
        found.append(form(field, column, redshift=redshift, policy=policy, keyed=keyed))
    return tuple(found)


def groups(chosen: Sequence[Form]) -> tuple[tuple[Form, ...], ...]:
    """The columns in portions, each short enough to be one text."""
    made: list[list[Form]] = [[]]
    width = 0
    for one in chosen:
        if made[-1] and width + one.width + 1 > GROUP:
            made.append([])
            width = 0
        made[-1].append(one)
        width += one.width + 1
    return tuple(tuple(group) for group in made)


# ---------------------------------------------------------------- parts of a key, and what is known of them


@dataclass(frozen=True)
class Span:
    """Keys behind `after` and up to `upto`; an absent end is open."""

    after: Position | None = None
    upto: Position | None = None


@dataclass(frozen=True)
class Digest:
    """Some rows: how many, and the sum of their hashes."""

    rows: int = 0
    sum: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, self.sum + other.sum)


@dataclass(frozen=True)
class Part:
    """A range of the source's rows as one look has seen it."""

    span: Span
    digest: Digest
    beyond: tuple[
        str, ...
    ] = ()  # hashed keys of rows that have changed since the watermark, as far as listed
    left_out: int = 0  # how many of them there are

    @property
    def crowded(self) -> bool:
        """More have changed than were listed."""
        return self.left_out > len(self.beyond)


Place = Literal["in", "beyond", "before"]


class Entry(NamedTuple):
    """One row: its printed key, its hash, and, where they were asked for, its printed columns. There may be millions."""

    key: tuple[str | None, ...]
    hash: str
    columns: tuple[str, ...] = ()
    place: Place = "in"  # the scope; of the source's rows


@dataclass(frozen=True)
class Scope:
    """What is compared of a table: these columns, of rows behind `low` and up to `high` in the change order."""

    table: Table
    forms: tuple[Form, ...]
    order: tuple[Form, ...] = ()  # of the change order's columns
    low: Position | None = None
    high: Position | None = None  # None: every row (a table without a cursor)
    skipped: tuple[
        tuple[Position | None, Position], ...
    ] = ()  # behind the one, up to the other: not compared
    recent: bool = False  # few rows at the end of the change order: read along the cursor's index

    @property
    def index(self) -> str | None:
        """The index of the source that leads to the rows."""
        return self.table.cursor_index if self.recent else self.table.key_index

    @property
    def keys(self) -> tuple[Form, ...]:
        by_name = {f.field.name: f for f in self.forms if f.field.name == f.field.column}
        return tuple(by_name[name] for name in self.table.key)

    @property
    def ordered(self) -> bool:
        """Whether the warehouse orders keys as MySQL does, so that ranges of one are ranges of the other."""
        orders = ("number", "decimal", "day", "moment", "instant")
        return all(
            f.print in orders and f.column.data_type != "bit" and not f.column.nullable for f in self.keys
        )


_MEMBER = re.compile(r"'((?:[^']|'')*)'")


def key_of(scope: Scope, printed: Sequence[str | None]) -> Key:
    """A printed key in MySQL's own terms."""
    return tuple(_value(f, text) for f, text in zip(scope.keys, printed, strict=True))


def _value(one: Form, text: str | None) -> Value | None:
    column = one.column
    if text is None:
        return None
    if column.data_type in ("enum", "set"):
        members = [m.replace("''", "'") for m in _MEMBER.findall(column.type)]
        if column.data_type == "enum":
            return members.index(text) + 1 if text in members else 0
        return sum(1 << members.index(v) for v in text.split(",")) if text else 0
    match one.print:
        case "number" | "flag":
            # A DECIMAL without a scale stays a text, as in a position.
            return text if column.data_type == "decimal" else int(text)
        case "float":
            return repr(struct.unpack("<d", bytes.fromhex(text))[0])
        case "bytes":
            return "0x" + text.lower()
    return text
