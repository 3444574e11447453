"""Tables written in one line, whichever part of a table a field belongs to."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from floodmark.model.table import Column, Lineage, Mode, Recipe, SourceTable, Table


def described(
    schema: str,
    table: str,
    columns: tuple[Column, ...],
    key: tuple[str, ...],
    cursor: str | None,
    mode: Mode,
    target: str,
    **more: Any,
) -> Table:
    """A table with these fields, spread over its parts."""
    found = Table(SourceTable(schema, table, columns), Recipe(key, cursor, mode, target), Lineage())
    return changed(found, **more)


def changed(table: Table, /, **more: Any) -> Table:
    """The table with some fields replaced, each in its part."""
    for part in Table.PARTS:
        value = getattr(table, part)
        own = {f.name: more.pop(f.name) for f in fields(value) if f.name in more}
        table = replace(table, **{part: replace(value, **own)})
    assert not more, f"no part of a table has {', '.join(more)}"
    return table
