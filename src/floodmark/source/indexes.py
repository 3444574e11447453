"""A table's indexes, and what each can serve as: the key, or a path along the cursor's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.model.notes import Note, Unfit
from floodmark.model.table import Column
from floodmark.model.types import comparison
from floodmark.source.session import Session
from floodmark.source.sql import NUMBERED, text

LONGEST_KEY = 3072  # bytes in a B-tree of InnoDB


@dataclass(frozen=True)
class Index:
    """One index that the optimizer may use, its columns in order."""

    name: str
    unique: bool
    columns: tuple[str, ...]
    whole: bool  # no part is an expression or a column prefix
    ordered: bool  # a B-tree; a hash (MEMORY tables) finds single rows, but no ranges
    descending: tuple[bool, ...] = ()  # per column; empty if the server doesn't say

    def runs(self, primary: Index | None) -> list[tuple[str, bool]]:
        """The columns that order its entries, and whether each descends: InnoDB appends the primary key."""
        parts = [self, *([primary] if primary is not None and primary.whole else [])]
        found: dict[str, bool] = {}
        for part in parts:
            down = part.descending or (False,) * len(part.columns)
            for name, descends in zip(part.columns, down, strict=True):
                found.setdefault(name, descends)
        return list(found.items())


def indexes(session: Session, schema: str, table: str) -> list[Index]:
    """The table's indexes, primary key first. Ignored and invisible ones can't be used and are left out."""
    switches = session.once(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema'"
        " AND TABLE_NAME = 'STATISTICS' AND COLUMN_NAME IN ('IGNORED', 'IS_VISIBLE')"
    )
    usable = {b"IGNORED": " AND IGNORED = 'NO'", b"IS_VISIBLE": " AND IS_VISIBLE = 'YES'"}
    rows = session.rows(
        "SELECT INDEX_NAME, NON_UNIQUE, COLUMN_NAME, SUB_PART, INDEX_TYPE, COLLATION FROM information_schema.STATISTICS"
        f" WHERE TABLE_SCHEMA = {text(schema)} AND TABLE_NAME = {text(table)}"
        f"{''.join(usable[(name or b'').upper()] for (name,) in switches)}"
        " ORDER BY INDEX_NAME <> 'PRIMARY', NON_UNIQUE, INDEX_NAME, SEQ_IN_INDEX"
    )
    parts: dict[str, list[tuple[bytes | None, ...]]] = {}
    for row in rows:
        parts.setdefault((row[0] or b"").decode(), []).append(row)
    return [
        Index(
            name,
            unique=found[0][1] == b"0",
            columns=tuple((r[2] or b"").decode() for r in found),
            whole=all(r[3] is None and r[2] is not None for r in found),
            ordered=found[0][4] == b"BTREE",
            descending=tuple(r[5] == b"D" for r in found),
        )
        for name, found in parts.items()
    ]


def cursor_index(found: Sequence[Index], order: Sequence[str]) -> str | None:
    """The index to read along: one in exactly this order, else the one that follows it furthest; shortest."""
    usable = [i for i in found if order and i.ordered and i.whole and i.columns[0] == order[0]]
    if not usable:
        return None
    return min(
        usable,
        key=lambda i: (not _straight(found, i, order), -_common(i.columns, order), len(i.columns)),
    ).name


def needs_sorting(found: Sequence[Index], name: str | None, order: Sequence[Column]) -> bool:
    """Whether MySQL must sort to get this order from the index: for (a DESC, b), or an ENUM's number."""
    index = next((i for i in found if i.name == name), None)
    if index is None:
        return False
    # Such a column is ordered by an expression; see `sql.expression`.
    return any(c.data_type in NUMBERED for c in order) or not _straight(found, index, [c.name for c in order])


def _straight(found: Sequence[Index], index: Index, order: Sequence[str]) -> bool:
    """Whether the index, read in one direction, yields rows in this order."""
    primary = next((i for i in found if i.name == "PRIMARY"), None)
    along = index.runs(primary)[: len(order)]
    return [name for name, _ in along] == list(order) and len({down for _, down in along}) == 1


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


class Keys:
    """Which columns can tell a table's rows apart."""

    def __init__(self, columns: Sequence[Column], found: Sequence[Index]) -> None:
        self._columns = {c.name: c for c in columns}
        self._unique = [i for i in found if i.unique and i.whole and (i.ordered or self._short(i))]
        self._rest = [i for i in found if i not in self._unique]

    def _short(self, index: Index) -> bool:
        """Whether a B-tree could hold the index; MariaDB hashes unique columns that are too long for one."""
        return sum(self._columns[name].octets or 0 for name in index.columns) <= LONGEST_KEY

    def unfit(self, column: Column) -> Unfit | None:
        """Why the column can't be part of a key, if so."""
        if column.nullable:
            return "nullable"
        if column.data_type in ("float", "double"):
            return "inexact"
        return "unknown_collation" if comparison(column) == "unknown" else None

    def discovered(self, notes: list[Note]) -> tuple[tuple[str, ...], str | None]:
        """The primary key, or else the shortest unique key, with its index; () if none is fit."""
        for index in sorted(self._unique, key=lambda i: (i.name != "PRIMARY", not i.ordered, len(i.columns))):
            columns = [self._columns[c] for c in index.columns]
            wrong = next(((c, unfit) for c in columns if (unfit := self.unfit(c))), None)
            if wrong is None:
                return index.columns, index.name if index.ordered else None
            notes.append(Note("unfit_index", wrong[0], index=index.name, unfit=wrong[1]))
        in_part = [i.name for i in self._rest if i.unique and not i.whole]
        notes += [Note("unfit_index", index=name, unfit="in_part") for name in in_part]
        return (), None

    def configured(self, key: tuple[str, ...], notes: list[Note]) -> tuple[tuple[str, ...], str | None]:
        """The user's key, in the order of the unique index over the same columns if there is one."""
        for index in self._unique:
            if set(index.columns) == set(key):
                return index.columns, index.name if index.ordered else None
        if not any(set(i.columns) <= set(key) for i in self._unique):
            notes.append(Note("no_unique_index", columns=key))
        leading = next(
            (i for i in self._rest if i.whole and i.ordered and i.columns[: len(key)] == key), None
        )
        return key, leading.name if leading else None
