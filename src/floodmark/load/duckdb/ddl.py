"""The target's shape in DuckDB: how it is created, and how it is adapted when the files change. Pure.

All of it runs inside the load's transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from floodmark.load.columns import (
    Change,
    TargetColumn,
    Wanted,
    adding,
    differences,
    parsed,
    plain,
    renamings,
)
from floodmark.load.protocol import quote
from floodmark.model.errors import DataError
from floodmark.model.names import OURS, marked


def literal(type_: str, value: str | None) -> str:
    """A value of the type as an SQL literal."""
    if value is None:
        return "NULL"
    return value if plain(type_, value) else "'" + value.replace("'", "''") + "'"


def relaxing(table: str, column: str) -> str:
    """The statement that makes a column nullable."""
    return f"ALTER TABLE {table} ALTER COLUMN {quote(column)} DROP NOT NULL"


def changes(
    schema: str,
    target: str,
    wanted: Sequence[Wanted],
    found: Sequence[TargetColumn] | None,
    renames: Sequence[tuple[str, str]] = (),
    zstd: Collection[str] = (),
    known: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Change, ...]:
    """The changes after which rows with the wanted columns go into the target.

    `zstd`: the columns that a new table packs with it, instead of as DuckDB chooses. `known`: see
    `differences`.
    """
    table = quote(schema, target)

    def widening(name: str, type_: str) -> str:
        text = any(c.name == name and parsed(c.type)[0] == "VARCHAR" for c in found or ())
        # A cast would read a backslash as the start of a hex escape.
        using = f" USING encode({quote(name)})" if text and parsed(type_)[0] == "BLOB" else ""
        return f"ALTER TABLE {table} ALTER COLUMN {quote(name)} TYPE {type_}{using}"

    if found is None:
        packed = dict.fromkeys(zstd, " USING COMPRESSION zstd")
        columns = ", ".join(f"{quote(w.name)} {w.type}{packed.get(w.name, '')}" for w in wanted)
        return (Change("create", (f"CREATE TABLE {table} ({columns})",)),)
    made = list(renamings(table, found, renames))
    for d in differences(
        target,
        table,
        wanted,
        found,
        renames=renames,
        known=known,
        widening=widening,
        relaxing=lambda name: relaxing(table, name),
    ):
        if d.kind == "widen":
            was = d.was.name if d.was else d.name
            made.append(Change("widen", (widening(d.name, d.type),), column=was))
        elif d.fill is None:
            made.append(Change("add", (adding(table, d.name, d.type),)))
        else:
            # Only existing rows get the default; later rows whose file lacks the column are another matter.
            add = f"{adding(table, d.name, d.type)} DEFAULT {literal(d.type, d.fill)}"
            made.append(
                Change("add", (add, f"ALTER TABLE {table} ALTER COLUMN {quote(d.name)} DROP DEFAULT"))
            )
    return tuple(made)


@dataclass(frozen=True)
class Held:
    """What others have put on a table: it can keep DuckDB from altering columns, and may reject rows."""

    columns: frozenset[str] = frozenset()  # in a PRIMARY KEY, UNIQUE or CHECK: their types can't change
    indexes: tuple[str, ...] = ()  # while there are any, no column can be renamed or retyped


def check_alterable(schema: str, target: str, changes: Sequence[Change], held: Held) -> None:
    """Refuse, with the statements to run, changes that DuckDB would refuse in the middle of a load."""
    altered = [change for change in changes if change.kind in ("rename", "widen")]
    if altered and held.indexes:
        drops = "; ".join(f"DROP INDEX {quote(schema, name)}" for name in held.indexes)
        raise DataError(
            f"column {altered[0].column} of {target} must be altered, but DuckDB can't alter columns of a table with an index",
            hint=f"drop the index, and create it again after the next sync; run: {drops}",
        )
    for change in altered:
        if change.kind == "widen" and change.column.lower() in held.columns:
            raise DataError(
                f"column {change.column} of {target} must become wider, but DuckDB can't alter a column in a PRIMARY KEY, "
                "UNIQUE or CHECK",
                hint=f"to rebuild the table without constraints, run: {_freed(schema, target)}",
            )


def _freed(schema: str, target: str) -> str:
    """The statements that rebuild a table without its constraints, which DuckDB can't drop."""
    table, copy = quote(schema, target), quote(schema, marked(f"{OURS}copy_{target}"))
    return (
        f"BEGIN; CREATE TABLE {copy} AS FROM {table}; DROP TABLE {table}; "
        f"ALTER TABLE {copy} RENAME TO {quote(target)}; COMMIT"
    )


def refused_rows(schema: str, target: str, found: Sequence[TargetColumn], held: Held, said: str) -> DataError:
    """The error for rows that violate a constraint of the target, with the statements to run."""
    table = quote(schema, target)
    free = [f"DROP INDEX {quote(schema, name)}" for name in held.indexes]
    free += [relaxing(table, c.name) for c in found if not c.nullable]
    return DataError(
        f"{target} has a constraint that Floodmark did not create, and the source's rows violate it: {said}",
        hint=f"to remove it, run: {_freed(schema, target) if held.columns else '; '.join(free)}",
    )
