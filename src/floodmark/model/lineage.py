"""The history of a table's columns since its log began, carried from claim to claim. Pure.

It keeps everything that later runs still need: what earlier rows hold in a column added later, which columns
are gone, their former names, and for which of them earlier rows have yet to be reread. ALTER TABLE changes
values without touching the cursor, so only changes of a definition that are known to be harmless are trusted;
a property missing from an older description is unknown, and by itself is no reason to reread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from floodmark.model.origin import Witness
from floodmark.model.table import Column, Lineage, Table
from floodmark.model.times import TEMPORAL
from floodmark.model.types import fields, quote
from floodmark.model.witnesses import Cells, CurrentRow, mark

# Changes of `zero_dates` that leave values alone: `error` admits no zero dates, and a raw text stays.
_HARMLESS = (("error", "null"), ("error", "keep"), ("keep", "null"))

# A row that was read, and the rows that have its key now.
Known = tuple[Witness, Sequence[CurrentRow]]

# Types that can be converted into each other without changing values, by `definitions`.
_KINDS = (
    {"tinyint", "smallint", "mediumint", "int", "bigint"},
    {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"},
    {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"},
    {"datetime", "timestamp"},
    {"float", "double"},
)


def current(name: str, renames: Sequence[tuple[str, str]]) -> str:
    """A column's name after applying renames in order."""
    for old, new in renames:
        if name == old:
            name = new
    return name


def with_lineage(
    before: Table | None, now: Table, *, from_start: bool = False, known: Sequence[Known] = ()
) -> Table:
    """The table as it is now, with the history from the previous description.

    `from_start`: no row was read yet, or all will be, so that none lacks anything. Otherwise, added or changed
    columns and other parts of the recipe are owed: earlier rows must be reread, or shown to be right already.
    `known`: see `parts_to_reread`.
    """
    if now.lineage.carried:
        return now
    if before is None:
        return replace(now, lineage=replace(now.lineage, carried=True))
    since = happened(before, now)
    old = {current(c.name, since).lower(): c for c in before.columns}
    here = {c.name.lower() for c in now.columns}
    owed = {current(name, since).lower() for name in before.lineage.owed}
    owed |= {
        c.name.lower() for c in now.columns if c.name.lower() in old and rewritten(old[c.name.lower()], c)
    }
    columns = tuple(
        replace(c, fill=old[c.name.lower()].fill) if c.name.lower() in old else c for c in now.columns
    )
    cursor = None if before.cursor is None else current(before.cursor, since)
    unix = before.recipe.unix if cursor == now.cursor else None
    lineage = Lineage(
        carried=True,
        renamed=(*before.lineage.renamed, *since),
        dropped=tuple(
            replace(c, name=current(c.name, since))
            for c in (*before.lineage.dropped, *before.columns)
            if current(c.name, since).lower() not in here
        ),
    )
    if not from_start and "full" not in (before.mode, now.mode):
        parts = (*before.lineage.owed_parts, *parts_to_reread(before, now, known))
        lineage = replace(
            lineage,
            owed=tuple(c.name for c in now.columns if c.name.lower() in owed or c.name.lower() not in old),
            owed_parts=tuple(dict.fromkeys(parts)),
        )
    return Table(
        replace(now.source, columns=columns),
        replace(now.recipe, unix=unix, holds=now.recipe.holds or before.recipe.holds),
        lineage,
    )


def parts_to_reread(before: Table, now: Table, known: Sequence[Known] = ()) -> tuple[str, ...]:
    """The parts of the recipe, other than columns, whose change may affect any row read before.

    `known`: rows that were read, as they are now. They can show whether a column has taken over another one's
    name.
    """
    found = {
        # A newly added condition only leaves rows out: those that are merged by key then leave the target.
        "where": (before.recipe.where is not None or now.mode == "upsert")
        and (not same_where(before, now) or condition_rewritten(before, now)),
        # Without a key, the target may hold several versions of a row; merging by key keeps the last one.
        "key": bool(now.key and not before.key),
        # Without a key a reread would be refused, and most dropped columns really are just dropped.
        "order": _name_taken(before, now, known) if now.key else _reordered(before, now),
        "zero_dates": before.recipe.zero_dates != now.recipe.zero_dates
        and any(c.data_type in TEMPORAL for c in now.columns)
        and (before.recipe.zero_dates, now.recipe.zero_dates) not in _HARMLESS,
        # No value was ever changed under `error`, or in a warehouse that holds every value.
        "overflow": before.recipe.overflow != "error"
        and before.recipe.holds != "any"
        and (before.recipe.overflow != now.recipe.overflow or other_room(before, now)),
    }
    return tuple(part for part, changed in found.items() if changed)


def condition_rewritten(before: Table, now: Table) -> bool:
    """Whether a column used only by `where` may have new values: rows may match now without a new cursor."""
    if now.recipe.where is None:
        return False
    # Through a generated column, the condition may depend on a column that it does not name.
    text = "\n".join([now.recipe.where, *(c.generated or "" for c in now.columns)])
    was, read = dict(_layout(before, happened(before, now))), {c.name.lower() for c in now.columns}
    return any(
        rewritten(described(name, was[name]), described(name, type_))
        for name, type_ in _layout(now)
        if name in was and name not in read and _mentions(text, name)
    )


def _mentions(text: str, name: str) -> bool:
    return bool(re.search(rf"(?<!\w){re.escape(name.replace('`', '``'))}(?!\w)", text, re.IGNORECASE))


def other_room(before: Table, now: Table) -> bool:
    """Whether the warehouse can now hold other values of these columns, so that `overflow` treats them differently."""
    if None in (before.recipe.holds, now.recipe.holds) or before.recipe.holds == now.recipe.holds:
        return False
    found = [f for f in fields(now) if not f.file_only]
    if now.recipe.holds == "any":
        return any(f.max_bytes for f in found)
    # Large strings affect only the length of JSON documents, which `truncate` refuses to change, as `error` does.
    return before.recipe.overflow == "null" and any(f.document for f in found)


def same_where(before: Table, now: Table) -> bool:
    """Whether both read the same rows, judging by the text of their conditions."""
    return _condition(before) == _condition(now)


def _condition(table: Table) -> str:
    """The `where`. Without a key no sync reads rows without a cursor, so `cursor IS NOT NULL` counts as empty."""
    return "" if not table.key and only_asks_for_a_cursor(table) else (table.recipe.where or "").strip()


def only_asks_for_a_cursor(table: Table) -> bool:
    """Whether the `where` is just `cursor IS NOT NULL`."""
    if table.recipe.where is None or table.cursor is None:
        return False
    name = f"(?:{re.escape(table.cursor)}|{re.escape(quote(table.cursor))})"
    return bool(re.fullmatch(rf"\s*{name}\s+is\s+not\s+null\s*", table.recipe.where, re.IGNORECASE))


def _reordered(before: Table, now: Table) -> bool:
    """Whether the column order has changed: two columns may have swapped names."""
    was = [name for name, _ in _layout(before, happened(before, now))]
    is_ = [name for name, _ in _layout(now)]
    return [name for name in was if name in is_] != [name for name in is_ if name in was]


def suspects(before: Table, now: Table) -> dict[str, str]:
    """The source's columns, as lower-case names and types, that may go by another one's name now.

    Those that it no longer shows, excluded ones included; all of them if their order has changed.
    """
    here = set() if _reordered(before, now) else source_columns(now)
    return {name: type_ for name, type_ in _layout(before, happened(before, now)) if name not in here}


def _layout(table: Table, since: Sequence[tuple[str, str]] = ()) -> list[tuple[str, str]]:
    """The source table's columns in order, as far as known: names after the renames, and types."""
    every = table.source.layout or tuple((c.name, c.type) for c in table.columns)
    return [(current(name, since).lower(), type_) for name, type_ in every]


def came_back(before: Table, name: str) -> bool:
    """Whether a column of that name existed before: the target may still hold its old values."""
    return name.lower() in {dropped.name.lower() for dropped in before.lineage.dropped}


def happened(before: Table, now: Table) -> tuple[tuple[str, str], ...]:
    """The declared renames that have happened in the source since: the old name is gone, the new one exists.

    Not if the new name existed before: the target still has that column, so the renamed one is reread as a
    new one.
    """
    old = {c.name.lower(): c.name for c in before.columns}
    new = {c.name.lower(): c.name for c in now.columns}
    return tuple(
        (old[was.lower()], new[is_.lower()])
        for was, is_ in now.recipe.renames
        if was.lower() in old
        and was.lower() not in new
        and is_.lower() in new
        and is_.lower() not in old
        and not came_back(before, is_)
    )


def renamed_since(before: Table, now: Table) -> tuple[tuple[str, str], ...]:
    """The renames recorded since the earlier description."""
    return now.lineage.renamed[len(before.lineage.renamed) :]


def dropped_since(before: Table, now: Table) -> tuple[Column, ...]:
    """The dropped columns recorded since the earlier description."""
    known = {c.name.lower() for c in before.lineage.dropped}
    return tuple(c for c in now.lineage.dropped if c.name.lower() not in known)


def source_columns(table: Table) -> set[str]:
    """The source table's columns, excluded ones included, in lower case."""
    return {name for name, _ in _layout(table)}


def said_columns(before: Table, now: Table) -> tuple[str, ...]:
    """What becomes of renamed, dropped and excluded columns; for new ones see `floodmark.plan.reread`."""
    target, here = now.target, source_columns(now)
    if now.mode == "full" and not now.key:
        fate = "but no values: without a key, nothing tells which row of a new copy they belong to"
    else:
        fate = "and its values; new rows get NULL in it"
    return (
        *(
            f"{old} was renamed to {new}: the column in {target} is renamed too."
            for old, new in renamed_since(before, now)
        ),
        *(
            f"{c.name} is {'excluded now' if c.name.lower() in here else 'gone from the source'}: "
            f"{target} keeps the column {fate}."
            for c in dropped_since(before, now)
        ),
    )


# ---------------------------------------------------------------- names taken by other columns

# After `DROP price, CHANGE price_new price` only `price_new` seems to be gone, yet `price` has other values. A column's
# position proves nothing, since ALTER can put it anywhere, so once a column is gone every other one is suspect; if the
# order has changed, any two may have swapped names, and their types with them. The checksums of known rows decide; if
# they can't, a column of the same kind is suspicion enough. The key and the cursor need no check: whole rows would have
# moved.


def _name_taken(before: Table, now: Table, known: Sequence[Known]) -> bool:
    """Whether one of the suspects may have taken the name of a column still read."""
    since, reordered = happened(before, now), _reordered(before, now)
    old = {current(c.name, since).lower(): c for c in before.columns}
    places = {name.lower() for name in (*now.key, *now.order)}
    in_place = _in_place(known)
    others = {name: type_ for name, type_ in suspects(before, now).items() if name not in places}
    return bool(others) and any(
        _taken(old[column.name.lower()], column, old, others, in_place, reordered)
        for column in now.columns
        if column.name.lower() in old.keys() - places
    )


def heirs(
    old: Mapping[str, Column], now: Table, name: str, type_: str, known: Sequence[Known] = ()
) -> tuple[str, ...]:
    """The columns that may be one that is gone and was never read; not those in which a known row has kept its value."""
    in_place, lost = _in_place(known), described(name, type_)
    places = {place.lower() for place in (*now.key, *now.order)}
    return tuple(
        column.name
        for column in now.columns
        if column.name.lower() not in places
        and _alike(column, lost)
        and not _stayed(old.get(column.name.lower()), column, in_place)
    )


def _stayed(was: Column | None, column: Column, in_place: Sequence[tuple[Cells, Cells]]) -> bool:
    if was is None:
        return False
    cells = [(old[mark(was)], new[mark(column)]) for old, new in _comparable(was, column, in_place)]
    return all(old == new for old, new in cells) and any(old is not None for old, _ in cells)


def _in_place(known: Sequence[Known]) -> list[tuple[Cells, Cells]]:
    """Old and new cells of the rows that did not move."""
    return [(dict(witness.cells), row.cells) for witness, rows in known for row in rows if row.cursor == 0]


def _comparable(
    was: Column, column: Column, in_place: Sequence[tuple[Cells, Cells]]
) -> list[tuple[Cells, Cells]]:
    """Those of the rows that have comparable checksums of the column, old and new."""
    telling = in_place if _same_texts(was, column) else ()
    return [(old, new) for old, new in telling if mark(was) in old and mark(column) in new]


def _taken(
    was: Column,
    column: Column,
    old: Mapping[str, Column],
    others: Mapping[str, str],
    in_place: Sequence[tuple[Cells, Cells]],
    reordered: bool,
) -> bool:
    """Whether the column may be a different one now; `in_place`: old and new cells of rows that did not move.

    `reordered`: a suspect may be of any kind, so no column is above suspicion without a known value.
    """
    before, now = mark(was), mark(column)
    rows = _comparable(was, column, in_place)
    if any(cells[before] != answer[now] for cells, answer in rows):
        return True
    if reordered and all(cells[before] is None for cells, _ in rows):
        return True
    return any(
        name != column.name.lower()
        and _alike(column, described(name, type_))
        and not _told_apart(was, old.get(name), [cells for cells, _ in rows])
        for name, type_ in others.items()
    )


def _told_apart(column: Column, lost: Column | None, rows: Sequence[Cells]) -> bool:
    """Whether, in one of the rows, all with the column unchanged, the other column had a different value.

    A rename affects all rows at once, so one row is enough. NULL does not count: a new column starts with it,
    and may have been filled since without touching the cursor.
    """
    if lost is None or not _same_texts(lost, column):
        return False
    own, other = mark(column), mark(lost)
    return any(cells.get(other) is not None and cells[own] != cells[other] for cells in rows)


def _same_texts(one: Column, other: Column) -> bool:
    """Whether checksums of the two are comparable: a value has the same text in both."""
    return mark(replace(one, name=other.name)) == mark(other)


def _alike(one: Column, other: Column) -> bool:
    both = {one.data_type, other.data_type}
    return len(both) == 1 or any(both <= kind for kind in _KINDS)


@dataclass(frozen=True)
class ColumnChange:
    """One column that differs, with its type before and after; for a rename, its names."""

    kind: Literal["added", "dropped", "changed", "renamed", "excluded", "included"]
    column: str
    before: str | None = None
    after: str | None = None

    def __str__(self) -> str:
        match self.kind:
            case "added" | "dropped":
                return f"{self.column} was {self.kind} ({self.after or self.before})"
            case "changed":
                return f"{self.column} changed from {self.before} to {self.after}"
            case "renamed":
                return f"{self.before} was renamed to {self.after}"
            case "excluded":
                return f"{self.column} is excluded now ({self.before})"
            case "included":
                return f"{self.column} is no longer excluded ({self.after})"


def column_changes(before: Table | None, after: Table | None) -> tuple[ColumnChange, ...]:
    """The columns that differ, ignoring case in names; none if the table was not described before."""
    if before is None or after is None or before is after:
        return ()
    since = renamed_since(before, after)
    old = {current(c.name, since).lower(): c for c in before.columns}
    new = {c.name.lower(): c for c in after.columns}
    unread, skipped = source_columns(before) - old.keys(), source_columns(after) - new.keys()
    found = [ColumnChange("renamed", name, was, name) for was, name in since]
    found += [
        ColumnChange("changed", c.name, old[name].type, c.type)
        for name, c in new.items()
        if name in old and old[name].type != c.type
    ]
    for name, c in new.items():
        if name not in old:
            found.append(ColumnChange("included" if name in unread else "added", c.name, after=c.type))
    for name, c in old.items():
        if name not in new:
            found.append(ColumnChange("excluded" if name in skipped else "dropped", c.name, before=c.type))
    return tuple(found)


_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_ROOM = {  # capacity in bytes: each type holds every value of the smaller ones
    "tinytext": 255, "text": 65_535, "mediumtext": 2**24 - 1, "longtext": 2**32 - 1,
    "tinyblob": 255, "blob": 65_535, "mediumblob": 2**24 - 1, "longblob": 2**32 - 1,
}  # fmt: skip
_GENERATED = re.compile(r"(virtual|stored|persistent) generated|persistent", re.IGNORECASE)
_MEMBER = re.compile(r"'((?:[^']|'')*)'")
# Decimals with more digits are stored as text, where 1.5 and 1.50 differ.
_MOST_DIGITS, _MOST_SCALE = 38, 37


def rewritten(before: Column, now: Column) -> str | None:
    """Why the column's values may have changed, in a few words; None: they are proven unchanged."""
    if _expression_changed(before, now):
        return "its expression has changed"
    if before.nullable and not now.nullable:
        return "it no longer allows NULL"
    if now.auto_increment and not before.auto_increment:
        return "it is now AUTO_INCREMENT"
    if before.charset and now.charset and not _same_charset(before, now):
        return f"its character set changed from {before.charset} to {now.charset}"
    return None if _keeps(before, now) else f"it changed from {before.type} to {now.type}"


def described(name: str, type_: str) -> Column:
    """A column known only by the text of its type, such as `decimal(12,2) unsigned`."""
    kind = re.match(r"\w*", type_.lower())
    data_type = kind[0] if kind else ""
    given = re.match(r"\w+\((\d+)(?:,(\d+))?\)", type_)
    first, second = (int(n) if n is not None else None for n in (given.groups() if given else (None, None)))
    return Column(
        name,
        type_,
        data_type,
        characters=first if data_type in ("char", "varchar") else None,
        octets=first if data_type in ("binary", "varbinary") else None,
        precision=first if data_type == "decimal" else None,
        scale=(second or 0) if data_type == "decimal" else None,
        fraction=(first or 0) if data_type in ("datetime", "timestamp", "time") else None,
    )


def one_collation(before: Column, now: Column) -> bool:
    """Whether a column's collation is the same; MySQL and MariaDB have two names for utf8."""
    return _modern(before.collation) == _modern(now.collation)


def _expression_changed(before: Column, now: Column) -> bool:
    if before.generated is not None and now.generated is not None:
        return before.generated != now.generated
    return bool(_GENERATED.search(before.extra)) != bool(_GENERATED.search(now.extra))


def _same_charset(before: Column, now: Column) -> bool:
    was, is_ = _modern(before.charset), _modern(now.charset)
    # Any utf8 text has the same bytes in utf8mb4, however the column was changed.
    return was == is_ or (was, is_) == ("utf8mb3", "utf8mb4")


def _modern(name: str | None) -> str | None:
    return re.sub(r"^utf8(?=_|$)", "utf8mb3", name) if name else None


def _keeps(before: Column, now: Column) -> bool:
    """Whether every value of the first type keeps its value and its text in the second."""
    was, is_ = before.data_type, now.data_type
    if was in _BITS and is_ in _BITS:
        return _range(now)[0] <= _range(before)[0] and _range(before)[1] <= _range(now)[1]
    if was != is_:
        return _larger(before, now)
    match is_:
        case "decimal":
            return _same_number(before, now)
        case "float" | "double":
            return _bare(before) == _bare(now)
        case "datetime" | "timestamp":
            return (before.fraction or 0) <= (now.fraction or 0)
        case "time":
            return (before.fraction or 0) == (now.fraction or 0)
        case "enum" | "set":
            members = _MEMBER.findall(now.type)
            known = _MEMBER.findall(before.type)
            return members[: len(known)] == known
        case "char" | "varchar":
            return (before.characters or 0) <= (now.characters or 0)
        case "varbinary":
            return (before.octets or 0) <= (now.octets or 0)
        case "date" | "year" | "json" | "uuid" | "inet4" | "inet6":
            return True
    return is_ in _ROOM or before.type == now.type


def _range(column: Column) -> tuple[int, int]:
    bits = _BITS[column.data_type]
    return (0, 2**bits - 1) if column.unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _larger(before: Column, now: Column) -> bool:
    """Whether the second type is just a larger variant of the first."""
    if (before.data_type, now.data_type) == ("float", "double"):
        return (_bare(before), _bare(now)) == ("float", "double")
    room = _ROOM.get(now.data_type, 0)
    kinds = (before.data_type[-4:], now.data_type[-4:])
    if before.data_type in _ROOM:
        return kinds[0] == kinds[1] and room >= _ROOM[before.data_type]
    if (before.data_type, kinds[1]) in (("varchar", "text"), ("varbinary", "blob")):
        return room >= (before.octets or 2**32)
    return False


def _same_number(before: Column, now: Column) -> bool:
    if before.type == now.type and (before.precision, before.scale) == (now.precision, now.scale):
        return True
    digits = [(c.precision or 10, c.scale or 0) for c in (before, now)]
    if any(precision > _MOST_DIGITS or scale > _MOST_SCALE for precision, scale in digits):
        return False
    (precision, scale), (more, finer) = digits
    return finer >= scale and more - finer >= precision - scale and (before.unsigned or not now.unsigned)


def _bare(column: Column) -> str:
    return column.type.split()[0] + (" unsigned" if column.unsigned else "")
