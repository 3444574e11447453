"""The target's columns against the files': where rows go, what to create, add or widen, and what to refuse. Pure.

Rows go into the target by name. A change is made only if it loses nothing; any other is refused, with the
statement that an operator could run. Types are compared by meaning, however the warehouse spells them.

Files are described as they were written; their rows go where the newest description says. So a renamed column
is one column for old files and new ones, and rows read before a column was added get the value that the
source gave them, whether they load before or after. In any other column that the files lack, a row that the
target already has keeps its value: whoever dropped or excluded a column did not mean its history.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from floodmark.load.protocol import quote
from floodmark.model.errors import DataError
from floodmark.model.lineage import current
from floodmark.model.names import DELETED, DERIVED, target_name
from floodmark.model.table import Table
from floodmark.model.types import Field, fields, is_moment
from floodmark.model.warehouse import Capabilities


@dataclass(frozen=True)
class TargetColumn:
    """A column of the target, as the warehouse's catalog describes it."""

    name: str
    type: str
    nullable: bool = True
    default: str | None = None
    dist_key: bool = False  # Redshift distributes rows by it


class WantedColumn(NamedTuple):
    """A column that rows go into, and what existing rows get in it if it has to be added."""

    name: str
    type: str
    fill: str | None = None


def wanted_columns(
    fields: Sequence[Field], can: Capabilities, newest: Table | None = None
) -> list[WantedColumn]:
    """The target's columns for some fields; `newest`: tells what existing rows get in those that have to be added."""
    filled = fills(newest) if newest is not None else {}
    return [WantedColumn(f.target, can.type_of(f), filled.get(f.target)) for f in fields if not f.file_only]


@dataclass(frozen=True)
class TargetChange:
    """One change that makes the target fit: its statements, in order."""

    kind: Literal["create", "rename", "add", "widen"]
    statements: tuple[str, ...]
    outside: bool = False  # runs by itself, before the load's transaction
    instead: tuple[str, ...] = ()  # runs inside the transaction if the warehouse refuses that
    column: str = ""  # of an existing column: its present name
    after: tuple[str, ...] = ()  # each runs by itself after the load, successful or not

    @property
    def statement(self) -> str:
        return "; ".join(self.statements)

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "statement": "; ".join((*self.statements, *self.after))}


@dataclass(frozen=True)
class Difference:
    """A column that the target lacks, or that is too narrow."""

    kind: Literal["add", "widen"]
    name: str  # after the renames
    type: str
    was: TargetColumn | None = None  # as it is now
    fill: str | None = None


_ALIASES = {
    "INT2": "SMALLINT", "INT": "INTEGER", "INT4": "INTEGER", "INT8": "BIGINT", "NUMERIC": "DECIMAL",
    "REAL": "FLOAT", "FLOAT4": "FLOAT", "FLOAT8": "DOUBLE", "DOUBLE PRECISION": "DOUBLE", "BOOL": "BOOLEAN",
    "CHARACTER VARYING": "VARCHAR", "TEXT": "VARCHAR", "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE",
    "TIMESTAMP WITHOUT TIME ZONE": "TIMESTAMP", "BYTEA": "BLOB", "VARBYTE": "BLOB", "BINARY VARYING": "BLOB",
}  # fmt: skip
_DIGITS = {"SMALLINT": 5, "INTEGER": 10, "BIGINT": 19}  # decimal digits that hold every value


def parsed(type_: str) -> tuple[str, tuple[int, ...]]:
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
    """Whether two spellings mean the same type."""
    return parsed(one) == parsed(other)


def fits(narrow: str, wide: str) -> bool:
    """Whether a column of the second type holds every value of the first, exactly."""
    (a, sizes_a), (b, sizes_b) = parsed(narrow), parsed(wide)
    if a in _DIGITS and b in _DIGITS:
        return _DIGITS[a] <= _DIGITS[b]
    if a in _DIGITS and b == "DECIMAL" and len(sizes_b) == 2:
        return sizes_b[0] - sizes_b[1] >= _DIGITS[a]
    if a == b == "DECIMAL" and len(sizes_a) == len(sizes_b) == 2:
        return sizes_b[1] >= sizes_a[1] and sizes_b[0] - sizes_b[1] >= sizes_a[0] - sizes_a[1]
    if a == b and a in ("VARCHAR", "BLOB"):  # no length means the maximum
        return not sizes_b or (bool(sizes_a) and sizes_a[0] <= sizes_b[0])
    if (a, b) == ("FLOAT", "DOUBLE"):
        return True
    return (a, sizes_a) == (b, sizes_b)


def wider(one: str, other: str) -> str | None:
    """The decimal type that holds every value of both, if there is one."""
    digits = []
    for kind, sizes in (parsed(one), parsed(other)):
        if kind in _DIGITS:
            sizes = (_DIGITS[kind], 0)
        if kind not in (*_DIGITS, "DECIMAL") or len(sizes) != 2:
            return None
        digits.append((sizes[0] - sizes[1], sizes[1]))
    scale = max(s for _, s in digits)
    precision = max(whole for whole, _ in digits) + scale
    return f"DECIMAL({precision},{scale})" if precision <= 38 and scale <= 37 else None


def renamed(
    found: Sequence[TargetColumn], renames: Sequence[tuple[str, str]]
) -> tuple[tuple[TargetColumn, str], ...]:
    """The columns, each with its name after the renames; a rename to a name that is taken is skipped."""
    names = [column.name for column in found]
    for old, new in renames:
        folded = [name.lower() for name in names]
        if old != new and old in folded and new not in folded:
            names[folded.index(old)] = new
    return tuple(zip(found, names, strict=True))


def renamings(
    where: str, found: Sequence[TargetColumn], renames: Sequence[tuple[str, str]]
) -> tuple[TargetChange, ...]:
    """Renames for the columns that have a new name by now; `where`: their table, quoted."""
    return tuple(
        TargetChange(
            "rename",
            (f"ALTER TABLE {where} RENAME COLUMN {quote(column.name)} TO {quote(name)}",),
            column=column.name,
        )
        for column, name in renamed(found, renames)
        if column.name != name
    )


def adding(where: str, name: str, type_: str) -> str:
    """The statement that adds a column to a table; `where`: the table, quoted."""
    return f"ALTER TABLE {where} ADD COLUMN {quote(name)} {type_}"


def differences(
    target: str,
    where: str,
    wanted: Sequence[WantedColumn],
    found: Sequence[TargetColumn],
    *,
    renames: Sequence[tuple[str, str]] = (),
    known: Mapping[str, str] = MappingProxyType({}),
    widening: Callable[[str, str], str],
    relaxing: Callable[[str], str],
) -> tuple[Difference, ...]:
    """What the target lacks for rows with the wanted columns to go into it by name.

    Columns that the files lack are left alone: they get their default, or NULL. Anything that could lose
    values is a DataError with the warehouse's statement for it (`widening` a column, `relaxing` its NOT NULL).
    `where`: the target, quoted. `known`: the columns, with their types, as the last load left them.
    """
    named = renamed(found, renames)
    made: list[Difference] = []
    have = {name.lower(): column for column, name in named}
    spelled = {name.lower(): name for _, name in named}
    for name, type_, fill in wanted:
        column = have.get(name)
        if column is None and name in known:
            raise DataError(
                f"column {name} of {target} is gone from the warehouse, but the source still has it: "
                "existing rows have lost their values",
                hint=f"leave it out permanently with `exclude`; or add it again: {adding(where, name, type_)}, "
                "and fill it: floodmark verify --repair",
            )
        if column is None:
            made.append(Difference("add", name, type_, fill=fill))
        elif not fits(type_, column.type):
            if name in known and not fits(known[name], column.type):
                raise DataError(
                    f"column {column.name} of {target} was {known[name]} after the last load and is now {column.type}: "
                    "values of existing rows may have been truncated",
                    hint=f"run: {widening(column.name, type_)}, then: floodmark verify --repair",
                )
            if not fits(column.type, type_):
                type_ = wider(column.type, type_) or type_
            if not fits(column.type, type_):
                raise DataError(
                    f"column {column.name} of {target} is {column.type} in the warehouse and {type_} in the source",
                    hint=f"values could be lost; if all of them fit, run: {widening(column.name, type_)}",
                )
            made.append(Difference("widen", spelled[name], type_, column))
    names = {name for name, _, _ in wanted}
    for column, name in named:
        if name.lower() not in names and not column.nullable and column.default is None:
            raise DataError(
                f"column {column.name} of {target} is NOT NULL without a default, but the source does not have it",
                hint=f"run: {relaxing(column.name)}",
            )
    return tuple(made)


def relaxing(where: str, column: str) -> str:
    """The statement that makes a column nullable."""
    return f"ALTER TABLE {where} ALTER COLUMN {quote(column)} DROP NOT NULL"


def literal(type_: str, value: str | None) -> str:
    """A value of the type as an SQL literal."""
    if value is None:
        return "NULL"
    return value if plain(type_, value) else "'" + value.replace("'", "''") + "'"


def changes(
    where: str,
    target: str,
    wanted: Sequence[WantedColumn],
    found: Sequence[TargetColumn] | None,
    renames: Sequence[tuple[str, str]] = (),
    known: Mapping[str, str] = MappingProxyType({}),
    *,
    encode: str = "encode({})",
    packed: Mapping[str, str] = MappingProxyType({}),
) -> tuple[TargetChange, ...]:
    """The changes after which rows with the wanted columns go into a target whose columns' types can be altered.

    `where` and `known`: see `differences`. `encode`: text as bytes; `packed`: how a new table stores some columns.
    """

    def widening(name: str, type_: str) -> str:
        text = any(c.name == name and parsed(c.type)[0] == "VARCHAR" for c in found or ())
        # A cast would read a backslash as the start of an escape.
        using = f" USING {encode.format(quote(name))}" if text and parsed(type_)[0] == "BLOB" else ""
        return f"ALTER TABLE {where} ALTER COLUMN {quote(name)} TYPE {type_}{using}"

    if found is None:
        columns = ", ".join(f"{quote(w.name)} {w.type}{packed.get(w.name, '')}" for w in wanted)
        return (TargetChange("create", (f"CREATE TABLE {where} ({columns})",)),)
    made = list(renamings(where, found, renames))
    relax = partial(relaxing, where)
    for d in differences(
        target, where, wanted, found, renames=renames, known=known, widening=widening, relaxing=relax
    ):
        if d.kind == "widen":
            was = d.was.name if d.was else d.name
            made.append(TargetChange("widen", (widening(d.name, d.type),), column=was))
        elif d.fill is None:
            made.append(TargetChange("add", (adding(where, d.name, d.type),)))
        else:
            # Only existing rows get the default; later rows whose file lacks the column are another matter.
            add = f"{adding(where, d.name, d.type)} DEFAULT {literal(d.type, d.fill)}"
            drop = f"ALTER TABLE {where} ALTER COLUMN {quote(d.name)} DROP DEFAULT"
            made.append(TargetChange("add", (add, drop)))
    return tuple(made)


def check_strangers(
    target: str,
    found: Sequence[TargetColumn],
    wanted: Sequence[WantedColumn],
    arrived: tuple[Collection[str], Sequence[tuple[str, str]]],
    any_row: Callable[[str], bool],
    *,
    described: str | None = None,
) -> None:
    """Refuse a column that is new at the source if others have made one of that name in the target.

    Existing rows would keep the others' values. `arrived`: the columns and renames that no load has followed
    yet. A column that already holds the source's value in every row is as good as one of ours; `any_row`
    tells whether any row of the target meets a condition. `described`: the table's name, once a claim has
    described it with those columns: it can then be compared and repaired.
    """
    new, renames = arrived
    there = {column.name.lower(): column for column in found}
    taken = [name for old, name in renames if {old, name} <= there.keys()]
    taken += [
        w.name for w in wanted if w.name in new and w.name in there and any_row(_unlike(there[w.name], w))
    ]
    for name in taken:
        otherwise = (
            f"exclude the source's: `exclude: [{name}]`"
            if described is None
            else f"put the source's values into it: floodmark verify -t {described} --repair"
        )
        raise DataError(
            f"column {name} of {target} was not created by Floodmark, and the source now has one of that name: "
            "existing rows would keep their values",
            hint=f"drop or rename the target's column, or {otherwise}",
        )


def _unlike(column: TargetColumn, wanted: WantedColumn) -> str:
    """The condition that a row lacks the value that it should have in a column that was added later."""
    name = quote(column.name)
    if wanted.fill is None:
        return f"{name} IS NOT NULL"
    if plain(wanted.type, wanted.fill) and plain(column.type, wanted.fill):
        return f"{name} IS NULL OR {name} <> {wanted.fill}"
    return "TRUE"  # warehouses differ in when two texts or times are equal


def check_nullable(
    target: str,
    found: Sequence[TargetColumn],
    nullable: Collection[str],
    relaxing: Callable[[TargetColumn], str],
) -> None:
    """Refuse a target that others made if a column is NOT NULL and the source may have NULL there."""
    for column in found:
        if not column.nullable and column.name.lower() in nullable:
            raise DataError(
                f"column {column.name} of {target} is NOT NULL in the warehouse, but can be NULL in the source",
                hint=f"run: {relaxing(column)}",
            )


def plain(type_: str, value: str) -> bool:
    """Whether a value of the type can stand in a statement without quotes."""
    kind, _ = parsed(type_)
    return (kind in _DIGITS or kind == "DECIMAL") and re.fullmatch(r"-?\d+(\.\d+)?", value) is not None


@dataclass(frozen=True)
class Constant:
    """What rows get in a column of the target that their files lack; NULL only if they are new there."""

    target: str
    field: Field | None = None
    value: str | None = None

    def type(self, can: Capabilities) -> str:
        return can.type_of(self.field) if self.field else ""


def placed(table: Table, newest: Table) -> tuple[Field, ...]:
    """The fields of a table's files, each with the current name of its column in the target."""
    since = newest.lineage.renamed[len(table.lineage.renamed) :]
    found = fields(table)
    if not since:
        return found
    later = replace(
        table,
        source=replace(
            table.source, columns=tuple(replace(c, name=current(c.name, since)) for c in table.columns)
        ),
        recipe=replace(table.recipe, key=tuple(current(k, since) for k in table.key)),
    )
    return tuple(replace(f, target=g.target) for f, g in zip(found, fields(later), strict=True))


def constants(table: Table, newest: Table) -> tuple[Constant, ...]:
    """What the rows of a table's files get in columns that the files lack."""
    since = newest.lineage.renamed[len(table.lineage.renamed) :]
    have = {current(c.name, since).lower() for c in table.columns}
    gone = {current(c.name, since).lower() for c in table.lineage.dropped} - have
    found = [Constant(target_name(name)) for name in sorted(gone)]
    for field, fill in _filled(newest):
        if field.column.lower() not in have | gone:
            found.append(Constant(field.target, field, fill))
    return tuple(found)


def left_alone(there: Iterable[str], files: Sequence[Field], given: Iterable[Constant]) -> tuple[str, ...]:
    """Those of the target's columns in which a row that is merged keeps the value that it has.

    A mark of deletion goes when the row is back. A derived column describes the present value of its column.
    """
    ours = {field.target + more for field in files if not field.file_only for more in ("", *DERIVED)}
    ours |= {DELETED, *(c.target for c in given if c.value is not None)}
    return tuple(name for name in there if name.lower() not in ours)


def arrived(shaped: Table | None, newest: Table) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The target's columns that no load can have made yet, and the renames that none has followed.

    `shaped`: the newest description that a load may have followed.
    """
    if shaped is None or newest.mode == "full":
        return (), ()
    since = newest.lineage.renamed[len(shaped.lineage.renamed) :]
    ever = {current(c.name, since).lower() for c in (*shaped.columns, *shaped.lineage.dropped)}
    new = tuple(target_name(c.name) for c in newest.columns if c.name.lower() not in ever)
    return new, tuple((target_name(old), target_name(is_)) for old, is_ in since)


def may_be_null(table: Table) -> frozenset[str]:
    """The target's columns that may hold NULL."""
    dates = table.recipe.zero_dates != "error"
    return frozenset(
        f.target
        for f in fields(table)
        if not f.file_only and (table.column(f.column).nullable or f.raw or (dates and is_moment(f)))
    )


def fills(newest: Table) -> dict[str, str]:
    """What existing rows get in a column of the target when it is added, by its name there."""
    return {field.target: fill for field, fill in _filled(newest)}


def _filled(newest: Table) -> list[tuple[Field, str]]:
    """Columns added after the first rows, including those dropped since, and what those rows got in them."""
    ever = replace(newest, source=replace(newest.source, columns=(*newest.columns, *newest.lineage.dropped)))
    found = [(f, ever.column(f.column).fill) for f in fields(ever) if f.name == f.column]
    return [(field, fill) for field, fill in found if fill is not None]


def target_renames(newest: Table) -> tuple[tuple[str, str], ...]:
    """The renames in the target's column names, derived columns included."""
    return tuple(
        (target_name(old + more, derived=bool(more)), target_name(new + more, derived=bool(more)))
        for old, new in newest.lineage.renamed
        for more in ("", *DERIVED)
    )
