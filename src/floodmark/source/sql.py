"""SQL for the source, as pure text: names, literals, keyset predicates and the SELECT of a slice.

Every predicate is written so that MySQL can use an index range: `c >= x AND (c > x OR (c = x AND k > y))`; a
row constructor `(c, k) > (x, y)` would scan. No value can end its literal: text and binary are hex literals,
and numbers are checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TypeVar

import pyarrow as pa

from floodmark.model.keys import WHOLE, keys_of, runs
from floodmark.model.position import Key, Position, Value
from floodmark.model.table import Column, Table
from floodmark.model.types import Field, fields
from floodmark.model.types import quote as quote  # part of this module, too
from floodmark.model.window import Slice

NUMERIC = {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year"}
BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
# Types whose text order is not their index order: a position holds their numeric value.
NUMBERED = {"enum", "set", "bit"}

T = TypeVar("T")

# Keys per query, and per list: from 1,000 on, MariaDB turns a list into a join, whose column may compare differently.
KEYS_AT_ONCE = 4500
LISTED = 900
# Conditions joined by OR in a query: each row is compared with one after the other, while a list is searched.
TERMS = 400

_NUMBER = re.compile(r"-?\d+(\.\d+)?\Z")


def integer(column: Column) -> bool:
    """Whether the column holds whole numbers that the server's own counter doesn't write."""
    return column.data_type in WHOLE and not column.auto_increment


def source(table: Table, index: str | None = None) -> str:
    """The FROM item, with a forced index so that the optimizer reads in the order of the slice's cut."""
    name = f"{quote(table.source.schema)}.{quote(table.source.table)}"
    return f"{name} FORCE INDEX ({quote(index)})" if index else name


def expression(column: Column) -> str:
    """The expression by which the column is compared and ordered."""
    name = quote(column.name)
    # Not c+0, which is signed (MariaDB) or a DOUBLE: a SET has 64 bits. A cast warns if the highest bit is
    # set.
    return f"({name} | 0)" if column.data_type in NUMBERED else name


def literal(column: Column, value: Value) -> str:
    """The value as a literal that compares with the column in the column's own terms."""
    if isinstance(value, int) or column.data_type in NUMERIC:
        if not _NUMBER.match(str(value)):
            raise ValueError(f"not a number: {value!r}")
        return str(value)
    if column.data_type in BINARY:
        return f"X'{bytes.fromhex(value.removeprefix('0x')).hex()}'"
    return text(value)


def text(value: str) -> str:
    """A text literal for MySQL, whatever its content and the session's settings."""
    return f"_utf8mb4 X'{value.encode().hex()}'" if value else "''"


def after(table: Table, columns: Sequence[str], position: Position) -> str:
    """Rows after the position; a prefix means after every row that shares it."""
    return _beyond(table, columns, position, ">", ">")


def upto(table: Table, columns: Sequence[str], position: Position) -> str:
    """Rows at or before the position; a prefix includes every row that shares it."""
    return _beyond(table, columns, position, "<", "<=")


def _beyond(table: Table, columns: Sequence[str], position: Position, side: str, last: str) -> str:
    """Rows on one side of the position, in the form for which MySQL uses the index; `last` compares the last column."""
    column = table.column(columns[0])
    name, value = expression(column), literal(column, position[0])
    if len(position) == 1:
        return f"{name} {last} {value}"
    rest = _beyond(table, columns[1:], position[1:], side, last)
    return f"{name} {side}= {value} AND ({name} {side} {value} OR ({name} = {value} AND {rest}))"


def between(table: Table, columns: Sequence[str], low: Position | None, high: Position | None) -> list[str]:
    """The conditions of (low, high]; a missing end is open. A low end alone still excludes NULL cursors."""
    ends = [after(table, columns, low)] if low is not None else []
    return ends if high is None else [*ends, upto(table, columns, high)]


def loose(table: Table, beyond: Value | None, zero: bool = False) -> str:
    """Rows without a place in the order: a NULL cursor, one of 0000-00-00, or one in the future."""
    assert table.cursor is not None
    column = table.column(table.cursor)
    conditions = []
    if column.nullable:
        conditions.append(f"{quote(column.name)} IS NULL")
    if zero:
        conditions.append(f"{quote(column.name)} = 0")
    if beyond is not None:
        conditions.append(f"{quote(column.name)} >= {literal(column, beyond)}")
    return "(" + " OR ".join(conditions or ["FALSE"]) + ")"


def any_of(table: Table, keys: Sequence[Key]) -> str:
    """The condition that a row has one of the keys."""
    return _either([term for term, _ in _terms(table, keys)])


def _either(terms: Sequence[str]) -> str:
    return " OR ".join(f"({term})" for term in terms) or "FALSE"


def _terms(table: Table, keys: Sequence[Key]) -> Iterator[tuple[str, int]]:
    """The conditions of which a row with one of the keys meets one, and of how many keys each is.

    Adjacent keys that differ only in their last column share a list.
    """
    *columns, last = [table.column(name) for name in table.key]
    for first, alike in groupby(keys, key=lambda key: key[:-1]):
        same = [_equals(column, value) for column, value in zip(columns, first, strict=True)]
        values = [key[-1] for key in alike]
        if None in values:
            yield " AND ".join([*same, _equals(last, None)]), 1
        literals = [literal(last, value) for value in values if value is not None]
        for some in chunks(literals, LISTED):
            yield " AND ".join([*same, f"{expression(last)} IN ({', '.join(some)})"]), len(some)


def _equals(column: Column, value: Value | None) -> str:
    return f"{expression(column)} {'IS NULL' if value is None else f'= {literal(column, value)}'}"


def _portions(table: Table, keys: pa.Table) -> Iterator[str]:
    """The conditions that find the rows with distinct keys, statement by statement, and perhaps rows between them."""
    rest, at = [keys.slice(0, 0)], 0
    for begin, end in runs(table, keys):
        column = table.column(table.key[0])
        first, last = (literal(column, key[0] or 0) for key in keys_of(table, keys.take([begin, end - 1])))
        yield f"{quote(column.name)} BETWEEN {first} AND {last}"
        rest.append(keys.slice(at, begin - at))
        at = end
    terms: list[str] = []
    held = 0
    for term, count in _terms(table, keys_of(table, pa.concat_tables([*rest, keys.slice(at)]))):
        if terms and (held + count > KEYS_AT_ONCE or len(terms) == TERMS):
            yield _either(terms)
            terms, held = [], 0
        terms.append(term)
        held += count
    if terms:
        yield _either(terms)


def matches(table: Table) -> str:
    """The user's `where`, as one condition; empty if there is none."""
    # The parenthesis goes on its own line, so that a comment at the end of the user's text can't swallow it.
    return f"({table.recipe.where}\n)" if table.recipe.where else ""


# Text, quoted names and comments; a quoted name may be a function's.
_QUOTED = re.compile(
    r"""(?P<name>`(?:[^`]|``)*`)|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|/\*.*?\*/|(?:--\s|\#)[^\n]*""",
    re.DOTALL,
)
_CALL = re.compile(r"(\w+)\s*\(")
_CLOCKS = {
    "now", "curdate", "curtime", "sysdate", "current_date", "current_time", "current_timestamp", "localtime",
    "localtimestamp", "utc_date", "utc_time", "utc_timestamp", "unix_timestamp",
}  # fmt: skip
_CHANCE = {
    "rand", "uuid", "uuid_short", "connection_id", "user", "current_user", "session_user", "system_user"
}  # fmt: skip


def calls(condition: str) -> set[str]:
    """The names, in lower case, that a condition may call as functions."""
    return {name.lower() for name in _CALL.findall(_bare(condition))}


def unsteady(condition: str) -> tuple[str, ...]:
    """What makes a condition true or false without a change of the row: clocks, subqueries, variables."""
    bare, found = _bare(condition).lower(), []
    words = set(re.findall(r"(?<![\w.@`])\w+", bare))
    called = calls(condition)
    for name in sorted(_CLOCKS | _CHANCE):
        without_row = name != "unix_timestamp" or re.search(r"unix_timestamp\s*\(\s*\)", bare)
        bare_word = name in words and name.startswith(("current_", "local", "utc_"))
        if without_row and (name in called or bare_word):
            found.append(name.upper())
    if "select" in words:
        found.append("a subquery")
    if "@" in bare:
        found.append("a variable")
    if re.search(r"\w\s*\.\s*`?\w+\s*\(", bare):
        found.append("a stored function")
    return tuple(found)


def _bare(condition: str) -> str:
    """A condition without its texts and comments."""
    return _QUOTED.sub(lambda m: "`" + re.sub(r"\W", "_", m["name"][1:-1]) if m["name"] else " ", condition)


def _ranges(table: Table, piece: Slice) -> Iterator[list[str]]:
    """The conditions of a slice, whether or not a row matches `where`: once, or for as many queries as its keys need."""
    if piece.keys is not None:
        yield from ([some] for some in _portions(table, piece.keys))
    elif piece.kind == "loose":
        yield [loose(table, piece.beyond, piece.zero)]
    elif piece.by == "key":
        inside = between(table, table.key, piece.after, piece.upto)
        yield [*inside, *between(table, table.order, piece.low, piece.high)]
    else:
        yield between(table, table.order, piece.after, piece.upto) if piece.by == "cursor" else []


def where(found: Sequence[str]) -> str:
    return " WHERE " + " AND ".join(f"({c})" for c in found) if found else ""


def filtered(table: Table, found: Sequence[str]) -> str:
    """The same for rows that match the table's `where`, too."""
    return where([*found, matches(table)] if table.recipe.where else found)


def query(
    table: Table,
    chosen: str,
    conditions: Sequence[str] = (),
    index: str | None = None,
    *,
    order: str = "",
    most: int | None = None,
    skip: int | None = None,
    every: bool = False,
) -> str:
    """The SELECT of rows that meet the conditions, and match the table's `where` unless it is about `every` row."""
    text = f"SELECT {chosen} FROM {source(table, index)}"
    text += where(conditions) if every else filtered(table, conditions)
    text += f" ORDER BY {order}" if order else ""
    text += f" LIMIT {int(most)}" if most is not None else ""
    return text + (f" OFFSET {int(skip)}" if skip is not None else "")


def index_of(table: Table, piece: Slice) -> str | None:
    """The index along which the slice is read."""
    if piece.by == "key" or piece.kind == "keys":
        return table.source.key_index
    return table.source.cursor_index if piece.by == "cursor" and piece.kind != "loose" else None


def chunks(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """The items, in portions of at most so many."""
    for i in range(0, len(items), most):
        yield items[i : i + most]


def selects(table: Table, piece: Slice) -> list[str]:
    """The SELECTs of a slice, with columns in the order of the file: one, or as many as its keys need."""
    chosen, index = ", ".join(f.select for f in fields(table)), index_of(table, piece)
    return [query(table, chosen, found, index) for found in _ranges(table, piece)]


def outside(table: Table, piece: Slice, chosen: Sequence[Field]) -> list[str]:
    """The SELECTs of some fields of a slice's rows for which `where` is false or NULL."""
    columns, index = ", ".join(f.select for f in chosen), index_of(table, piece)
    false = f"{matches(table)} IS NOT TRUE"
    return [query(table, columns, [*found, false], index, every=True) for found in _ranges(table, piece)]


def ordering(table: Table, columns: Sequence[str], direction: str = "ASC") -> str:
    return ", ".join(f"{expression(table.column(c))} {direction}" for c in columns)


def position_columns(table: Table, columns: Sequence[str]) -> str:
    return ", ".join(expression(table.column(c)) for c in columns)


def value_of(column: Column, cell: bytes) -> Value:
    """A cell of an order column as a position holds it."""
    if column.data_type in NUMBERED or column.data_type in NUMERIC - {"decimal"}:
        return int(cell)
    if column.data_type in BINARY:
        return "0x" + cell.hex()
    text = cell.decode()
    if column.data_type in ("datetime", "timestamp"):
        whole, _, fraction = text.partition(".")
        return f"{whole}.{fraction:0<6}"
    return text


def position_of(table: Table, columns: Sequence[str], cells: Sequence[bytes | None]) -> Position:
    """The position given by a row of `position_columns`."""
    return tuple(
        value_of(table.column(c), cell) for c, cell in zip(columns, cells, strict=True) if cell is not None
    )
