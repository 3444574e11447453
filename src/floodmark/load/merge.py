"""How rows of files take the place of a target's rows, by key: one program for every warehouse. Pure: statements out.

Keys are compared by their bytes, or by MySQL's weights where a collation considers different bytes equal; a table
beside the target has the weight of each key in it. What the target has in columns that the files lack goes from the
old row to the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from floodmark.load.files import key_fields
from floodmark.load.protocol import DELETED_AT, quote
from floodmark.model.names import OUR_TABLES, OURS
from floodmark.model.table import Table
from floodmark.model.types import KEY_FIELD, Field

STAGE = f"{OUR_TABLES}stage"
KEPT = f"{OUR_TABLES}kept"


@dataclass(frozen=True)
class Do:
    """A statement; `rows`: how many it must change, checked where the warehouse reports it."""

    sql: str
    rows: int | None = None
    together: bool = False  # with those of the statement before it
    # How long it may wait for others' locks; None: as long as any statement of a load may take.
    seconds: float | None = None


@dataclass(frozen=True)
class Heap:
    """A table that holds the files' rows."""

    name: str  # the qualifier of its columns
    path: str  # the table, in statements


STAGED = Heap(STAGE, quote(STAGE))


@dataclass(frozen=True, kw_only=True)
class Put:
    """A target, and the files whose rows go into it; a warehouse's own kind says what it writes differently."""

    table: Table
    schema: str  # as the warehouse knows it, like the names of both tables
    target: str
    side: str  # the table beside it: MySQL's weight of a text key -> the key as stored
    fields: tuple[Field, ...]  # of the files, in their order
    constants: tuple[tuple[str, str], ...] = ()  # columns that the files lack, and what rows get in them
    kept: tuple[str, ...] = ()  # columns that the files lack, in which existing rows keep their values
    filled: bool = False  # whether the target has rows
    side_filled: bool = False

    weight: ClassVar[str] = (
        KEY_FIELD  # the column of the table beside the target that has the weight, or stands for it
    )

    @property
    def columns(self) -> tuple[Field, ...]:
        """The fields that the target has too."""
        return tuple(field for field in self.fields if not field.file_only)

    @property
    def keys(self) -> tuple[Field, ...]:
        return key_fields(self.table, self.columns)

    @property
    def weighed(self) -> bool:
        """Whether keys are compared by MySQL's weights instead of their bytes."""
        return any(field.file_only for field in self.fields)

    @property
    def into(self) -> str:
        return quote(self.schema, self.target)

    @property
    def beside(self) -> str:
        return quote(self.schema, self.side)

    @property
    def staged(self) -> Heap:
        """The files' rows, in columns named as the target's."""
        return STAGED

    @property
    def weights(self) -> Heap:
        """The keys of these rows with `weight`."""
        return self.staged

    @property
    def identity(self) -> list[str]:
        """The columns of both by which a row is found again."""
        return [self.weight] if self.weighed else [field.target for field in self.keys]

    def equal(self, field: Field, one: str, other: str) -> str:
        """The condition that two values of a key's column are the same; NULLs in a key equal each other."""
        nullable = self.table.column(field.column).nullable
        return f"{one} {'IS NOT DISTINCT FROM' if nullable else '='} {other}"

    def same(self, other: str) -> str:
        """The condition that a staged row and a row of another table agree in `identity`."""
        pairs = ((quote(STAGE, name), quote(other, name)) for name in self.identity)
        return " AND ".join(f"{one} IS NOT DISTINCT FROM {other}" for one, other in pairs)

    def value(self, field: Field) -> str:
        """A staged value as the target takes it."""
        return quote(STAGE, field.target)

    def one_each(self, columns: str, rows: str) -> str:
        """The query for one of the rows for each `identity`."""
        by = ", ".join(quote(name) for name in self.identity)
        return f"SELECT DISTINCT ON ({by}) {columns} FROM ({rows}) AS pairs"

    def without(self, other: str) -> str:
        """The staged rows that have no row in another table, as an item of FROM."""
        missing = f"{quote(other, self.identity[0])} IS NULL"
        return f"{self.staged.path} LEFT JOIN {quote(other)} ON {self.same(other)} WHERE {missing}"


def match(spec: Put, one: str, other: str) -> str:
    """The condition that rows of two tables have the same key, byte by byte."""
    return " AND ".join(
        spec.equal(field, quote(one, field.target), quote(other, field.target)) for field in spec.keys
    )


def by_key(spec: Put, statement: str, more: str = "") -> list[Do]:
    """A statement for the target's rows with the files' keys: by weight, and by bytes.

    Equal bytes are equal keys, and the weights may not cover rows that were there before.
    """
    return [Do(f"{statement} {rows.path} WHERE {where}{more}") for rows, where in _ways(spec)]


def _ways(spec: Put) -> list[tuple[Heap, str]]:
    """The tables in which the keys of the target's rows are found, and the conditions that say so."""
    ways = [(spec.staged, match(spec, spec.target, spec.staged.name))]
    if spec.weighed and spec.side_filled:
        rows = Heap(spec.weights.name, f"{spec.beside}, {spec.weights.path}")
        ways.insert(0, (rows, f"{_same_weight(spec)} AND {match(spec, spec.target, spec.side)}"))
    return ways


def _same_weight(spec: Put) -> str:
    return f"{quote(spec.side, spec.weight)} = {quote(spec.weights.name, spec.weight)}"


def delete(spec: Put, more: str = "") -> list[Do]:
    """Delete the target's rows that have the files' keys."""
    return by_key(spec, f"DELETE FROM {spec.into} USING", more)


def mark(spec: Put, at: str, more: str = "") -> list[Do]:
    """Mark the target's rows that have the files' keys as deleted at this time, unless they are marked already."""
    moment = f"CAST('{at.replace('T', ' ').removesuffix('Z')}' AS TIMESTAMP)"
    there = f" AND {quote(spec.target, DELETED_AT)} IS NULL"
    return by_key(spec, f"UPDATE {spec.into} SET {quote(DELETED_AT)} = {moment} FROM", more + there)


def insert(spec: Put, rows: int | None, more: Sequence[tuple[str, str]] = (), among: str = "") -> Do:
    """Insert staged rows; `more`: further columns of the target, and their values."""
    values = {field.target: spec.value(field) for field in spec.columns} | dict((*spec.constants, *more))
    names = ", ".join(quote(name) for name in values)
    select = ", ".join(values.values())
    return Do(f"INSERT INTO {spec.into} ({names}) SELECT {select} FROM {among or spec.staged.path}", rows)


# ---------------------------------------------------------------- what the files lack


def save_kept(spec: Put, more: str = "") -> Do:
    """Save what the target's rows with the files' keys have in columns that the files lack, a row for each key."""
    values = [f"{quote(spec.target, name)} AS {quote(_kept_as(i))}" for i, name in enumerate(spec.kept)]
    pairs = []
    for rows, where in reversed(_ways(spec)):
        mine = [quote(rows.name, name) for name in spec.identity]
        pairs.append(
            f"SELECT {', '.join([*mine, *values])} FROM {spec.into}, {rows.path} WHERE {where}{more}"
        )
    columns = ", ".join(quote(name) for name in (*spec.identity, *map(_kept_as, range(len(spec.kept)))))
    return Do(f"CREATE TEMP TABLE {quote(KEPT)} AS {spec.one_each(columns, ' UNION ALL '.join(pairs))}")


def insert_with_kept(spec: Put, rows: int | None) -> list[Do]:
    """Insert the staged rows: those of saved keys with what the target had, the others as new rows.

    Two statements, because only a column that an INSERT leaves out gets its default.
    """
    values = [(name, quote(KEPT, _kept_as(i))) for i, name in enumerate(spec.kept)]
    again = f"{spec.staged.path} JOIN {quote(KEPT)} ON {spec.same(KEPT)}"
    new = insert(spec, rows, among=spec.without(KEPT))
    return [insert(spec, None, values, again), Do(new.sql, rows, True), Do(f"DROP TABLE {quote(KEPT)}")]


def _kept_as(i: int) -> str:
    """The name of a saved column, which no staged one has."""
    return f"{OURS}kept_{i}"


# ---------------------------------------------------------------- weights


def store_weights(spec: Put) -> Do:
    """Store each key's weight, so that 'ABC' finds 'abc' later."""
    names = ", ".join(quote(name) for name in (spec.weight, *(field.target for field in spec.keys)))
    return Do(f"INSERT INTO {spec.beside} ({names}) SELECT {names} FROM {spec.weights.path}")


def forget_weights(spec: Put) -> list[Do]:
    """Drop the stored weights of the files' keys, by weight and by bytes (a collation may have changed)."""
    if not (spec.weighed and spec.side_filled):
        return []
    using = f"DELETE FROM {spec.beside} USING {spec.weights.path} WHERE"
    return [Do(f"{using} {_same_weight(spec)}"), Do(f"{using} {match(spec, spec.side, spec.weights.name)}")]
