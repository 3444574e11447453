"""Keys without their rows: which of them the source no longer has, and their MySQL weights.

Equality is MySQL's own, in the key's collation: a key that differs only in case counts as present.
"""

from __future__ import annotations

from collections.abc import Sequence

from floodmark.model.position import Key
from floodmark.model.table import Column, Table
from floodmark.model.types import comparison, key_expression
from floodmark.source import sql
from floodmark.source.session import Session


def gone(session: Session, table: Table, keys: Sequence[Key]) -> list[Key]:
    """The keys for which the source has no row, or none that matches the table's `where`."""
    missing: list[Key] = []
    for some in sql.chunks(keys):
        found = _found(session, table, some)
        absent = [key for key in some if key not in found]
        if found <= set(some):
            missing += absent
            continue
        # Some rows' keys read differently ('ABC' for 'abc', '1.50' for '1.5'): query one by one to see which
        # is which.
        missing += [key for key in absent if not _found(session, table, [key])]
    return missing


def _found(session: Session, table: Table, keys: Sequence[Key]) -> set[Key]:
    """The keys of matching rows, as the source spells them."""
    rows = session.rows(
        f"SELECT {sql.position_columns(table, table.key)} FROM {sql.source(table, table.source.key_index)}"
        f"{sql.filtered(table, [sql.any_of(table, keys)])}"
    )
    columns = [table.column(name) for name in table.key]
    return {
        tuple(
            None if cell is None else sql.value_of(column, cell)
            for column, cell in zip(columns, row, strict=True)
        )
        for row in rows
    }


# ---------------------------------------------------------------- weights of keys whose rows are gone


def weights(session: Session, table: Table, keys: Sequence[Key]) -> list[bytes | None]:
    """What `_floodmark_key` would be for rows with these keys; None if that can't be known without the rows.

    The values are cast to the columns' types, so that the data files' expression gives them the same weights.
    """
    expression = key_expression(table) if table.mode == "upsert" else None
    typed = [_type(table.column(name)) for name in table.key]
    if expression is None or None in typed:
        return [None] * len(keys)
    found: list[bytes | None] = []
    for some in sql.chunks(keys):
        rows = " UNION ALL ".join(_row(table, i, key) for i, key in enumerate(some))
        answers = session.rows(f"SELECT floodmark_n, {expression} FROM ({rows}) AS floodmark_keys")
        by_number = {int(n or 0): weight for n, weight in answers}
        found += [by_number[i] for i in range(len(some))]
    return found


def _row(table: Table, number: int, key: Key) -> str:
    cells = []
    for name, value in zip(table.key, key, strict=True):
        column = table.column(name)
        given = "NULL" if value is None else sql.literal(column, value)
        cells.append(f"{(_type(column) or '{}').format(given)} AS {sql.quote(name)}")
    return f"SELECT {number} AS floodmark_n, {', '.join(cells)}"


def _type(column: Column) -> str | None:
    """The expression that casts a literal to the column's type; None if not known here."""
    kind = column.data_type
    if comparison(column) == "weights":
        return f"CONVERT({{}} USING {column.charset}) COLLATE {column.collation}"
    if "zerofill" in column.type:
        return None  # its text has leading zeros that no literal has
    if kind in sql.NUMBERED or (kind == "bigint" and column.unsigned):
        # In a UNION with smaller numbers, MySQL takes a bare number above 2^63 for a DECIMAL, or truncates
        # it.
        return "CAST({} AS UNSIGNED)"
    if kind == "year":
        return "LPAD({}, 4, '0')"
    if kind in sql.BINARY or (kind in sql.NUMERIC and kind != "decimal"):
        return "{}"
    if kind == "decimal":
        return f"CAST({{}} AS DECIMAL({column.precision},{column.scale}))"
    if kind in ("datetime", "timestamp"):
        return f"CAST({{}} AS DATETIME({column.fraction or 0}))"
    return "CAST({} AS DATE)" if kind == "date" else None
