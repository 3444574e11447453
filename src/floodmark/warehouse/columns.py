"""The target's columns against the files': what to create, add or widen, and what to refuse. Pure.

Rows go into the target by name. A change is made only when it loses nothing; the rest is refused with the statement
that a person could run. Types are compared by meaning, so that a warehouse's own spelling of them does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from floodmark.errors import DataError
from floodmark.warehouse import quote


@dataclass(frozen=True)
class TargetColumn:
    """A column of the target, as the warehouse's catalog has it."""

    name: str
    type: str
    nullable: bool = True
    default: str | None = None


@dataclass(frozen=True)
class Change:
    """One statement that makes the target fit."""

    kind: Literal["create", "add", "widen"]
    statement: str


@dataclass(frozen=True)
class Difference:
    """A column that the target lacks, or that is too narrow."""

    kind: Literal["add", "widen"]
    name: str
    type: str
    was: str | None = None


_ALIASES = {
    "INT2": "SMALLINT", "INT": "INTEGER", "INT4": "INTEGER", "INT8": "BIGINT", "NUMERIC": "DECIMAL",
    "REAL": "FLOAT", "FLOAT4": "FLOAT", "FLOAT8": "DOUBLE", "DOUBLE PRECISION": "DOUBLE", "BOOL": "BOOLEAN",
    "CHARACTER VARYING": "VARCHAR", "TEXT": "VARCHAR", "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP WITHOUT TIME ZONE": "TIMESTAMP", "BYTEA": "BLOB", "VARBYTE": "BLOB", "BINARY VARYING": "BLOB",
}  # fmt: skip
_DIGITS = {"SMALLINT": 5, "INTEGER": 10, "BIGINT": 19}  # decimal digits that hold every value


def _parsed(type_: str) -> tuple[str, tuple[int, ...]]:
    """`character varying(255)` as ("VARCHAR", (255,))."""
    match = re.fullmatch(r"([A-Z0-9_ ]+?)\s*(?:\(([\d, ]+)\))?", type_.strip().upper())
    if match is None:
        return type_.upper(), ()
    name = re.sub(r"\s+", " ", match[1])
    numbers = tuple(int(part) for part in match[2].split(",")) if match[2] else ()
    if _ALIASES.get(name, name) == "DECIMAL" and len(numbers) == 1:
        numbers = (*numbers, 0)
    return _ALIASES.get(name, name), numbers


def same(one: str, other: str) -> bool:
    """Whether two spellings mean one type."""
    return _parsed(one) == _parsed(other)


def fits(narrow: str, wide: str) -> bool:
    """Whether a column of the second type holds every value of the first, exactly."""
    (a, sizes_a), (b, sizes_b) = _parsed(narrow), _parsed(wide)
    if a in _DIGITS and b in _DIGITS:
        return _DIGITS[a] <= _DIGITS[b]
    if a in _DIGITS and b == "DECIMAL" and len(sizes_b) == 2:
        return sizes_b[0] - sizes_b[1] >= _DIGITS[a]
    if a == b == "DECIMAL" and len(sizes_a) == len(sizes_b) == 2:
        return sizes_b[1] >= sizes_a[1] and sizes_b[0] - sizes_b[1] >= sizes_a[0] - sizes_a[1]
    if a == b and a in ("VARCHAR", "BLOB"):  # a length that isn't said is the largest
        return not sizes_b or (bool(sizes_a) and sizes_a[0] <= sizes_b[0])
    if (a, b) == ("FLOAT", "DOUBLE"):
        return True
    return (a, sizes_a) == (b, sizes_b)


def differences(
    target: str,
    wanted: Sequence[tuple[str, str]],
    found: Sequence[TargetColumn],
    *,
    widening: Callable[[str, str], str],
    relaxing: Callable[[str], str],
) -> tuple[Difference, ...]:
    """What the target lacks so that rows with the wanted columns (name, type) go into it by name.

    Columns that the files don't have are left alone: they get their default, or NULL. What could lose values is a
    DataError with the statement of the warehouse that would do it (`widening` a column, `relaxing` its NOT NULL).
    """
    made: list[Difference] = []
    have = {column.name.lower(): column for column in found}
    for name, type_ in wanted:
        column = have.get(name)
        if column is None:
            made.append(Difference("add", name, type_))
        elif not fits(type_, column.type):
            if not fits(column.type, type_):
                raise DataError(
                    f"column {name} of {target} is {column.type} in the warehouse and {type_} in the files",
                    hint=f"values could be lost; when they are not, run: {widening(column.name, type_)}",
                )
            made.append(Difference("widen", column.name, type_, column.type))
    names = {name for name, _ in wanted}
    for column in found:
        if column.name.lower() not in names and not column.nullable and column.default is None:
            raise DataError(
                f"column {column.name} of {target} is NOT NULL without a default, and the files don't have it",
                hint=f"run: {relaxing(column.name)}",
            )
    return tuple(made)


def changes(
    schema: str, target: str, wanted: Sequence[tuple[str, str]], found: Sequence[TargetColumn] | None
) -> tuple[Change, ...]:
    """What has to be done so that rows with the wanted columns (name, type) go into the target, in DuckDB's words."""
    table = quote(schema, target)

    def widening(name: str, type_: str) -> str:
        return f"ALTER TABLE {table} ALTER COLUMN {quote(name)} TYPE {type_}"

    def relaxing(name: str) -> str:
        return f"ALTER TABLE {table} ALTER COLUMN {quote(name)} DROP NOT NULL"

    if found is None:
        columns = ", ".join(f"{quote(name)} {type_}" for name, type_ in wanted)
        return (Change("create", f"CREATE TABLE {table} ({columns})"),)
    return tuple(
        Change("add", f"ALTER TABLE {table} ADD COLUMN {quote(d.name)} {d.type}")
        if d.kind == "add"
        else Change("widen", widening(d.name, d.type))
        for d in differences(target, wanted, found, widening=widening, relaxing=relaxing)
    )
