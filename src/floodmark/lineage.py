"""What became of a table's columns since its log began, carried from one claim's description to the next. Pure.

Nothing that a column's rows still need is forgotten by it: what earlier rows have in a column that came later, which
columns are gone, under which names they were known, and for which of them earlier rows have yet to be read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from floodmark.errors import DataError
from floodmark.model import Column, Table


def current(name: str, renames: Sequence[tuple[str, str]]) -> str:
    """A column's name after some renames, one after the other."""
    for old, new in renames:
        if name == old:
            name = new
    return name


def carried(before: Table | None, now: Table, *, anew: bool = False) -> Table:
    """The table as it is now, with what the description before it knew.

    `anew`: no row was read yet, or all will be, so that none lacks anything. Columns that came or changed are owed to
    earlier rows until somebody has found out what those have in them.
    """
    if now.carried:
        return now
    if before is None:
        return replace(now, carried=True)
    happened = _happened(before, now)
    old = {current(c.name, happened).lower(): c for c in before.columns}
    here = {c.name.lower() for c in now.columns}
    owed = {current(name, happened).lower() for name in before.owed}
    owed |= {c.name.lower() for c in now.columns if _lost_digits(old.get(c.name.lower()), c)}
    cursor = None if before.cursor is None else current(before.cursor, happened)
    return replace(
        now,
        carried=True,
        unix=before.unix if cursor == now.cursor else None,
        columns=tuple(
            replace(c, fill=old[c.name.lower()].fill) if c.name.lower() in old else c for c in now.columns
        ),
        renamed=(*before.renamed, *happened),
        dropped=tuple(
            replace(c, name=current(c.name, happened))
            for c in (*before.dropped, *before.columns)
            if current(c.name, happened).lower() not in here
        ),
        owed=()
        if anew or now.mode == "full"
        else tuple(c.name for c in now.columns if c.name.lower() in owed or c.name.lower() not in old),
    )


def came_back(before: Table, name: str) -> bool:
    """Whether a column of that name was there once: the target may hold what it had then."""
    return name.lower() in {dropped.name.lower() for dropped in before.dropped}


def _happened(before: Table, now: Table) -> tuple[tuple[str, str], ...]:
    """The declared renames that the source has made since: the old name is gone, the new one is there."""
    old = {c.name.lower(): c.name for c in before.columns}
    new = {c.name.lower(): c.name for c in now.columns}
    return tuple(
        (old[was.lower()], new[is_.lower()])
        for was, is_ in now.renames
        if was.lower() in old and was.lower() not in new and is_.lower() in new and is_.lower() not in old
    )


def _lost_digits(before: Column | None, now: Column) -> bool:
    """Whether MySQL has rounded every row's value when it changed the type."""
    if before is None:
        return False
    fraction = before.fraction is not None and now.fraction is not None and now.fraction < before.fraction
    return fraction or (before.scale is not None and now.scale is not None and now.scale < before.scale)


def check_reading(before: Table, now: Table, *, configured: bool) -> None:
    """Refuse a key or an order of reading that the position and the target's rows were not made with.

    `configured`: the mode is the configuration's own choice. A whole copy needs neither key nor position.
    """
    if now.mode == "full" and (configured or before.mode == "full"):
        return
    happened = _happened(before, now)
    anew = f"or empty {now.target} and begin anew: floodmark watermark reset -t {now.name}"
    cursor = None if before.cursor is None else current(before.cursor, happened)
    key = tuple(current(k, happened) for k in before.key)
    if now.mode == "full" or _other((cursor or "",), (now.cursor or "",)):
        is_ = f"by {now.cursor}" if now.cursor else "whole"
        raise DataError(
            f"{now.name} was read by {before.cursor} until now, and would be read {is_}: its source has changed",
            hint=f"set `cursor` or `mode` for it, {anew}",
            table=now.name,
        )
    if key and _other(key, now.key):
        raise DataError(
            f"the key of {now.name} was ({', '.join(before.key)}) and is ({', '.join(now.key) or 'none'}) now; "
            f"the rows of {now.target} were merged by the old one",
            hint=f"set `key: [{', '.join(before.key)}]` if it still tells rows apart, {anew}",
            table=now.name,
        )


def _other(one: Sequence[str], two: Sequence[str]) -> bool:
    return [name.lower() for name in one] != [name.lower() for name in two]


def told(before: Table, now: Table) -> tuple[str, ...]:
    """What has happened to the columns, in words; of new ones, see `floodmark.reread`."""
    notes = [
        f"{old} is called {new} now: the column of {now.target} gets that name, too."
        for old, new in now.renamed[len(before.renamed) :]
    ]
    known = {c.name.lower() for c in before.dropped}
    notes += [
        f"{c.name} is gone from the source: it stays in {now.target}, and rows that come now have NULL in it."
        for c in now.dropped
        if c.name.lower() not in known
    ]
    return tuple(notes)
