"""One replicated table, as a claim describes it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from floodmark.model.json import Flat

Mode = Literal["upsert", "append", "full"]


_MEMBER = re.compile(r"'((?:[^']|'')*)'")
_ESCAPED = re.compile(r"''|\\(.)")
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r"}


@dataclass(frozen=True)
class Column:
    """One replicated column, as information_schema describes it."""

    name: str
    type: str  # "decimal(18,4) unsigned", "varchar(64)", "enum('a','b')"
    data_type: str  # "decimal", "varchar", "enum", …, lower case
    nullable: bool = True
    characters: int | None = None
    octets: int | None = None
    precision: int | None = None
    scale: int | None = None
    fraction: int | None = None  # sub-second digits of temporal types
    charset: str | None = None
    collation: str | None = None
    default: str | None = None
    extra: str = ""  # "auto_increment", "on update current_timestamp()", "stored generated", …
    # The value, as text, in every row read before the column was added; None: NULL.
    fill: str | None = None
    generated: str | None = None  # the expression of a generated column, "" for any other; None: unknown

    @property
    def unsigned(self) -> bool:
        return "unsigned" in self.type

    @property
    def auto_increment(self) -> bool:
        return "auto_increment" in self.extra.lower()

    @property
    def maintained(self) -> bool:
        """Whether the server sets it to the current time whenever a row changes."""
        return "on update current_timestamp" in self.extra.lower()

    @property
    def members(self) -> tuple[str, ...]:
        """The members of an ENUM or SET, in order; the type has them quoted and with backslashes."""

        def plain(found: re.Match[str]) -> str:
            return _ESCAPES.get(found[1], found[1]) if found[1] else "'"

        return tuple(_ESCAPED.sub(plain, member) for member in _MEMBER.findall(self.type))


@dataclass(frozen=True)
class Cascade:
    """A foreign key through which MySQL changes columns along with their parent, and on which actions."""

    columns: tuple[str, ...]
    parent: str
    rules: tuple[str, ...]  # such as `ON UPDATE CASCADE`


@dataclass(frozen=True)
class SourceTable:
    """The table as MySQL has it."""

    schema: str
    table: str
    columns: tuple[Column, ...]  # the replicated ones
    key_index: str | None = None  # the index behind the key ("PRIMARY")
    cursor_index: str | None = None  # an index that starts with the cursor
    # Which of these two indexes do not deliver rows in order, so that a sort is needed.
    needs_sort: Annotated[tuple[str, ...], Field(alias="crooked")] = ()
    # If columns are excluded: every column of the source table with its type, in order. Otherwise empty.
    layout: tuple[tuple[str, str], ...] = ()
    # Earlier versions stored sentences here. No longer read, but written as an empty list for their sake.
    notes: tuple[()] = field(default=(), init=False)


@dataclass(frozen=True)
class Recipe:
    """How the user wants a table read and where it goes, with defaults filled in."""

    key: tuple[str, ...]
    cursor: str | None
    mode: Mode
    target: str
    where: str | None = None
    zero_dates: Literal["error", "null", "keep"] = "error"
    overflow: Literal["error", "truncate", "null"] = "error"
    # Which values the warehouse can hold (`Capabilities.holds`); None: unknown.
    holds: str | None = None
    dist_key: str | None = None  # for a target created in Redshift; None: AUTO
    sort_key: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()  # as declared in the configuration
    deletes: Literal["ignore", "hard", "soft"] | None = None  # None: unknown
    # The unit of an integer cursor that holds Unix time.
    unix: Literal["s", "ms", "us", "ns"] | None = None
    # What tells which rows have changed; None: the cursor, or nothing in mode full.
    changes: Literal["binlog"] | None = None


@dataclass(frozen=True)
class Lineage:
    """The columns' history since the log began; `with_lineage` carries it from claim to claim."""

    carried: bool = False
    renamed: tuple[tuple[str, str], ...] = ()  # old and new name, in chronological order
    dropped: tuple[Column, ...] = ()
    owed: tuple[str, ...] = ()  # columns for which earlier rows must be reread
    owed_parts: tuple[str, ...] = ()  # other parts of the recipe for which they must be

    @property
    def owes(self) -> bool:
        return bool(self.owed or self.owed_parts)


@dataclass(frozen=True)
class Table(Flat):
    """One replicated table, as a claim describes it."""

    PARTS = ("source", "recipe", "lineage")
    STORED = (
        "schema", "table", "columns", "key", "cursor", "mode", "target", "where", "key_index", "cursor_index", "crooked",
        "zero_dates", "overflow", "holds", "layout", "notes", "dist_key", "sort_key", "renames", "carried", "renamed",
        "dropped", "owed", "owed_parts", "deletes", "unix",
    )  # fmt: skip
    WHERE_USED = ("changes",)

    source: SourceTable
    recipe: Recipe
    lineage: Lineage = Lineage()

    @property
    def name(self) -> str:
        return f"{self.source.schema}.{self.source.table}"

    # Shortcuts that nearly every step uses.

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.source.columns

    @property
    def key(self) -> tuple[str, ...]:
        return self.recipe.key

    @property
    def cursor(self) -> str | None:
        return self.recipe.cursor

    @property
    def mode(self) -> Mode:
        return self.recipe.mode

    @property
    def target(self) -> str:
        return self.recipe.target

    @property
    def follows(self) -> bool:
        """Whether its rows are read by key, as the binary log names them. Without a key it is read whole (mode full)."""
        return self.recipe.changes == "binlog" and self.mode != "full"

    @property
    def order(self) -> tuple[str, ...]:
        """The columns of a position: the cursor, then the rest of the key. None if there is no cursor."""
        if self.cursor is None:
            return ()
        return (self.cursor, *(k for k in self.key if k != self.cursor))

    def column(self, name: str) -> Column:
        return next(c for c in self.columns if c.name == name)

    @property
    def fingerprint(self) -> str:
        """Identifies the format of this table's data files."""
        shape: list[Any] = [[c.name, c.type, c.charset, c.nullable] for c in self.columns]
        shape.append([list(self.key), self.recipe.zero_dates, self.recipe.overflow])
        return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]
