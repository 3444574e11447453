"""SQL for the source, as pure text: names, literals, keyset predicates and the SELECT of a slice.

Every predicate is written so that MySQL can use an index range: `c >= x AND (c > x OR (c = x AND k > y))`; a
row constructor `(c, k) > (x, y)` would scan. No value can end its literal: text and binary are hex literals,
and numbers are checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from floodmark.model.position import Key, Position, Value
from floodmark.model.table import Column, Table
from floodmark.model.types import Field, fields
from floodmark.model.types import quote as quote  # part of this module, too
from floodmark.model.window import Slice

NUMERIC = {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year"}
BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
# Types whose text order is not their index order: a position holds their numeric value.
NUMBERED = {"enum", "set", "bit"}

# Keys per query. Each is an index range to the optimizer; from 1,000 on, MariaDB turns a list into a join.
KEYS_AT_ONCE = 500

_NUMBER = re.compile(r"-?\d+(\.\d+)?\Z")


def integer(column: Column) -> bool:
    """Whether the column holds whole numbers that the server's own counter doesn't write."""
    return column.data_type in NUMERIC - {"decimal", "year"} and not column.auto_increment


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
    if len(table.key) == 1 and keys and all(key[0] is not None for key in keys):
        column = table.column(table.key[0])
        values = ", ".join(literal(column, value) for (value,) in keys if value is not None)
        return f"{expression(column)} IN ({values})"
    return " OR ".join(f"({_equals(table, key)})" for key in keys) or "FALSE"


def _equals(table: Table, key: Key) -> str:
    pairs = [(table.column(name), value) for name, value in zip(table.key, key, strict=True)]
    return " AND ".join(
        f"{expression(c)} {'IS NULL' if value is None else f'= {literal(c, value)}'}" for c, value in pairs
    )


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


def _range(table: Table, piece: Slice) -> list[str]:
    """The conditions of a slice, whether or not a row matches `where`."""
    if piece.kind == "keys":
        return [any_of(table, piece.keys)]
    if piece.kind == "loose":
        return [loose(table, piece.beyond, piece.zero)]
    if piece.by == "key":
        inside = between(table, table.key, piece.after, piece.upto)
        return [*inside, *between(table, table.order, piece.low, piece.high)]
    return between(table, table.order, piece.after, piece.upto) if piece.by == "cursor" else []


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


def selects(table: Table, piece: Slice) -> list[str]:
    """The SELECTs of a slice: one, or as many as its keys need."""
    if piece.kind != "keys":
        return [select(table, piece)]
    return [select(table, replace(piece, keys=tuple(some))) for some in chunks(piece.keys)]


def chunks(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    """The keys, in portions of one query each."""
    for i in range(0, len(keys), KEYS_AT_ONCE):
        yield keys[i : i + KEYS_AT_ONCE]


def select(table: Table, piece: Slice) -> str:
    """The whole SELECT of a slice, with columns in the order of the file."""
    chosen = ", ".join(f.select for f in fields(table))
    return query(table, chosen, _range(table, piece), index_of(table, piece))


def outside(table: Table, piece: Slice, chosen: Sequence[Field]) -> str:
    """The SELECT of some fields of a slice's rows for which `where` is false or NULL."""
    found = [*_range(table, piece), f"{matches(table)} IS NOT TRUE"]
    return query(table, ", ".join(f.select for f in chosen), found, index_of(table, piece), every=True)


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
