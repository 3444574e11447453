"""The target's shape in DuckDB: how it is created, and how it is made to fit files that have changed. Pure.

All of it is done inside the load's transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from floodmark.warehouse import quote
from floodmark.warehouse.columns import Change, TargetColumn, Wanted, differences, plain, renamed


def literal(type_: str, value: str | None) -> str:
    """A value of the type inside a statement."""
    if value is None:
        return "NULL"
    return value if plain(type_, value) else "'" + value.replace("'", "''") + "'"


def renamings(
    schema: str, target: str, found: Sequence[TargetColumn], renames: Sequence[tuple[str, str]]
) -> tuple[Change, ...]:
    """The columns that have another name by now."""
    return tuple(
        Change(
            "rename", (f"ALTER TABLE {quote(schema, target)} RENAME COLUMN {quote(c.name)} TO {quote(name)}",)
        )
        for c, name in renamed(found, renames)
        if c.name != name
    )


def changes(
    schema: str,
    target: str,
    wanted: Sequence[Wanted],
    found: Sequence[TargetColumn] | None,
    renames: Sequence[tuple[str, str]] = (),
    zstd: Collection[str] = (),
    known: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Change, ...]:
    """What has to be done so that rows with the wanted columns go into the target.

    `zstd`: the columns that a new table packs that way, instead of as DuckDB sees fit. `known`: see `differences`.
    """
    table = quote(schema, target)

    def widening(name: str, type_: str) -> str:
        return f"ALTER TABLE {table} ALTER COLUMN {quote(name)} TYPE {type_}"

    def adding(name: str, type_: str) -> str:
        return f"ALTER TABLE {table} ADD COLUMN {quote(name)} {type_}"

    def relaxing(name: str) -> str:
        return f"ALTER TABLE {table} ALTER COLUMN {quote(name)} DROP NOT NULL"

    if found is None:
        packed = dict.fromkeys(zstd, " USING COMPRESSION zstd")
        columns = ", ".join(f"{quote(w.name)} {w.type}{packed.get(w.name, '')}" for w in wanted)
        return (Change("create", (f"CREATE TABLE {table} ({columns})",)),)
    made = list(renamings(schema, target, found, renames))
    for d in differences(
        target,
        wanted,
        found,
        renames=renames,
        known=known,
        widening=widening,
        relaxing=relaxing,
        adding=adding,
    ):
        if d.kind == "widen":
            made.append(Change("widen", (widening(d.name, d.type),)))
        elif d.fill is None:
            made.append(Change("add", (adding(d.name, d.type),)))
        else:
            # The default is for the rows that are there; a later row whose file lacks the column is another matter.
            add = f"{adding(d.name, d.type)} DEFAULT {literal(d.type, d.fill)}"
            made.append(
                Change("add", (add, f"ALTER TABLE {table} ALTER COLUMN {quote(d.name)} DROP DEFAULT"))
            )
    return tuple(made)
