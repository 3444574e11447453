"""Whether a column may now go by another column's name. Pure.

After `DROP price, CHANGE price_new price` only `price_new` seems to be gone, yet `price` has other values. A
column's position proves nothing, since ALTER can put it anywhere, so once a column is gone every other one is
suspect; if the order has changed, any two may have swapped names, and their types with them. The checksums of known rows decide; if they can't, a column of the same kind is suspicion enough. The
key and the cursor need no check: whole rows would have moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from floodmark.model.definitions import described
from floodmark.model.origin import Witness
from floodmark.model.table import Column, Table
from floodmark.model.witnesses import Answer, Cells, mark

# A row that was read, and the rows that have its key now.
Known = tuple[Witness, Sequence[Answer]]

# Types that can be converted into each other without changing values, by `definitions`.
_KINDS = (
    {"tinyint", "smallint", "mediumint", "int", "bigint"},
    {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"},
    {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"},
    {"datetime", "timestamp"},
    {"float", "double"},
)


def name_taken(
    old: Mapping[str, Column],
    now: Table,
    suspects: Mapping[str, str],
    known: Sequence[Known] = (),
    *,
    reordered: bool = False,
) -> bool:
    """Whether one of the suspects (earlier columns, with types) may have taken the name of a column still read.

    `old` holds the columns that were read, by their current names in lower case, which the suspects have too.
    `reordered`: a suspect may be of any kind, so no column is above suspicion without a known value.
    """
    places = {name.lower() for name in (*now.key, *now.order)}
    in_place = _in_place(known)
    others = {name: type_ for name, type_ in suspects.items() if name not in places}
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
    """Whether the column may be a different one now; `in_place`: old and new cells of rows that did not move."""
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
