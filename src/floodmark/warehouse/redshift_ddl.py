"""The target's shape in Redshift: how it is created, and how it is made to fit files that have changed. Pure.

What Redshift can do inside a transaction goes into the load's own. A longer VARCHAR it can only make outside one: such
a statement comes before, loses nothing by itself, and after a crash in between the next load simply finds it done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from floodmark.errors import ConfigError, DataError
from floodmark.model import Table
from floodmark.types import MAX_VARCHAR, Field
from floodmark.warehouse import quote
from floodmark.warehouse.columns import Difference, TargetColumn, differences
from floodmark.warehouse.redshift_names import column_names, folded, literal, path
from floodmark.warehouse.redshift_steps import Row

SUPER = "SUPER"
_UNKEYABLE = ("SUPER", "VARBYTE")


@dataclass(frozen=True)
class Shape:
    """What the target needs before rows go in, and which of its columns hold parsed JSON."""

    before: tuple[str, ...] = ()  # each by itself, before the transaction
    inside: tuple[str, ...] = ()  # in the load's transaction
    parsed: frozenset[str] = frozenset()  # columns of the target that are SUPER


def staging_type(field: Field) -> str:
    """The type that takes the file's column as it is; JSON is text until it is parsed."""
    return f"VARCHAR({MAX_VARCHAR})" if field.redshift == SUPER else field.redshift


def columns_query(schema: str, table: str) -> str:
    """The question for a table's columns."""
    return (
        "SELECT column_name, data_type, character_maximum_length, numeric_precision, numeric_scale, is_nullable, "
        f"column_default FROM svv_columns WHERE table_schema = {literal(schema.lower())} "
        f"AND table_name = {literal(table)} ORDER BY ordinal_position"
    )


def found_column(row: Row) -> TargetColumn:
    """A row of the catalog as a column."""
    name, type_, length, precision, scale, nullable, default = row
    sized = str(type_).lower()
    if sized in ("character varying", "character", "binary varying", "varbyte") and length:
        sized += f"({int(length)})"
    elif sized in ("numeric", "decimal") and precision:
        sized += f"({int(precision)},{int(scale or 0)})"
    return TargetColumn(str(name), sized, str(nullable).upper() != "NO", default)


def shape(
    table: Table,
    schema: str,
    target: str,
    fields: Sequence[Field],
    found: Sequence[TargetColumn] | None,
    *,
    side: bool = False,
) -> Shape:
    """How the target comes to take the fields; `side` is a table of ours that needs no keys."""
    names = column_names(fields)
    wanted = [(names[field.name], field.redshift) for field in fields if not field.file_only]
    wanted = [(field.name, field.redshift) for field in fields if field.file_only and side] + wanted
    where = path(schema, target)
    if found is None:
        columns = ", ".join(f"{quote(name)} {type_}" for name, type_ in wanted)
        keys = "" if side else _keys(table, dict(wanted), names)
        parsed = frozenset(name for name, type_ in wanted if type_ == SUPER)
        return Shape(inside=(f"CREATE TABLE {where} ({columns}){keys}",), parsed=parsed)
    have = {column.name.lower(): column.type.upper() for column in found}
    parsed = frozenset(name for name, _ in wanted if have.get(name) == SUPER)
    # Text goes into a SUPER column as JSON, and JSON into a column for the longest text as it is.
    compared = [(name, _compared(type_, have.get(name))) for name, type_ in wanted]
    before: list[str] = []
    inside: list[str] = []
    fixed = _key_names(table, names)
    for difference in differences(
        target,
        compared,
        found,
        widening=lambda name, type_: "; ".join(_replaced(where, name, type_)),
        relaxing=lambda name: (
            f"ALTER TABLE {where} DROP COLUMN {quote(name)} (Redshift can't make it nullable)"
        ),
    ):
        if difference.kind == "add":
            inside.append(f"ALTER TABLE {where} ADD COLUMN {quote(difference.name)} {difference.type}")
        elif _is_text(difference):
            before.append(f"ALTER TABLE {where} ALTER COLUMN {quote(difference.name)} TYPE {difference.type}")
        elif difference.name.lower() in fixed:
            raise DataError(
                f"column {difference.name} of {target} is {difference.was} in the warehouse and {difference.type} in "
                "the files, and Redshift can't replace a DISTKEY or SORTKEY column",
                hint=f"fill a new target, or first run: ALTER TABLE {where} ALTER DISTSTYLE AUTO; "
                f"ALTER TABLE {where} ALTER SORTKEY AUTO; and leave dist_key and sort_key out",
            )
        else:
            inside += _replaced(where, difference.name, difference.type)
    return Shape(tuple(before), tuple(inside), parsed)


def _compared(type_: str, have: str | None) -> str:
    if have == SUPER and (type_.startswith("VARCHAR") or type_ == SUPER):
        return SUPER
    return f"VARCHAR({MAX_VARCHAR})" if type_ == SUPER and have is not None else type_


def _is_text(difference: Difference) -> bool:
    return difference.type.upper().startswith("VARCHAR")


def _replaced(where: str, name: str, type_: str) -> tuple[str, ...]:
    """A column in the place of a narrower one; it becomes the last, which rows that go in by name don't mind."""
    new = quote(folded(f"{name}__wider"))
    return (
        f"ALTER TABLE {where} ADD COLUMN {new} {type_}",
        f"UPDATE {where} SET {new} = {quote(name)}",
        f"ALTER TABLE {where} DROP COLUMN {quote(name)}",
        f"ALTER TABLE {where} RENAME COLUMN {new} TO {quote(name)}",
    )


def _key_names(table: Table, names: Mapping[str, str]) -> frozenset[str]:
    """The target's columns that are DISTKEY or SORTKEY by configuration."""
    asked = {name.lower() for name in (*table.sort_key, *((table.dist_key,) if table.dist_key else ()))}
    return frozenset(name for field, name in names.items() if field.lower() in asked)


def _keys(table: Table, types: Mapping[str, str], names: Mapping[str, str]) -> str:
    """The DISTKEY and SORTKEY clauses of a new table; without them, Redshift chooses (AUTO)."""
    known = {field.lower(): name for field, name in names.items()}

    def named(column: str, option: str) -> str:
        name = known.get(column.lower())
        if name is None:
            raise ConfigError(f"{option} names {column}, which is not a column", hint=f"check `{option}`")
        if types[name].startswith(_UNKEYABLE):
            raise ConfigError(f"{option} names {column}, which is {types[name]}: Redshift takes no such key")
        return quote(name)

    clauses = ""
    if table.dist_key:
        clauses += f" DISTSTYLE KEY DISTKEY ({named(table.dist_key, 'dist_key')})"
    if table.sort_key:
        clauses += f" COMPOUND SORTKEY ({', '.join(named(column, 'sort_key') for column in table.sort_key)})"
    return clauses
