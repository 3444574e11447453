"""What became of a table's columns since its log began, carried from one claim's description to the next. Pure.

Nothing that a column's rows still need is forgotten by it: what earlier rows have in a column that came later, which
columns are gone, under which names they were known, and for which of them earlier rows have yet to be read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from floodmark.definitions import rewritten
from floodmark.model import Table

_MOMENTS = ("date", "datetime", "timestamp")
# Changes of `zero_dates` that leave values as they are: under `error` there were none to change, and a raw text stays.
_HARMLESS = (("error", "null"), ("error", "keep"), ("keep", "null"))


def current(name: str, renames: Sequence[tuple[str, str]]) -> str:
    """A column's name after some renames, one after the other."""
    for old, new in renames:
        if name == old:
            name = new
    return name


def carried(before: Table | None, now: Table, *, anew: bool = False) -> Table:
    """The table as it is now, with what the description before it knew.

    `anew`: no row was read yet, or all will be, so that none lacks anything. Columns that came or changed are owed to
    earlier rows until somebody has found out what those have in them; so are other parts of the recipe.
    """
    if now.carried:
        return now
    if before is None:
        return replace(now, carried=True)
    since = happened(before, now)
    old = {current(c.name, since).lower(): c for c in before.columns}
    here = {c.name.lower() for c in now.columns}
    owed = {current(name, since).lower() for name in before.owed}
    owed |= {
        c.name.lower() for c in now.columns if c.name.lower() in old and rewritten(old[c.name.lower()], c)
    }
    nothing_owed = anew or "full" in (before.mode, now.mode)
    cursor = None if before.cursor is None else current(before.cursor, since)
    return replace(
        now,
        carried=True,
        unix=before.unix if cursor == now.cursor else None,
        columns=tuple(
            replace(c, fill=old[c.name.lower()].fill) if c.name.lower() in old else c for c in now.columns
        ),
        renamed=(*before.renamed, *since),
        dropped=tuple(
            replace(c, name=current(c.name, since))
            for c in (*before.dropped, *before.columns)
            if current(c.name, since).lower() not in here
        ),
        owed=()
        if nothing_owed
        else tuple(c.name for c in now.columns if c.name.lower() in owed or c.name.lower() not in old),
        owed_parts=()
        if nothing_owed
        else tuple(dict.fromkeys((*before.owed_parts, *parts_to_reread(before, now)))),
    )


def parts_to_reread(before: Table, now: Table) -> tuple[str, ...]:
    """The parts of the recipe, other than columns, whose change may be about any row that was read before."""
    found = {
        # A condition that was not there before only leaves rows out.
        "where": before.where is not None and not same_where(before, now),
        # Rows of a table without a key may be there in several versions; merged by the key, the last one stays.
        "key": bool(now.key and not before.key),
        "order": _reordered(before, now),
        "zero_dates": before.zero_dates != now.zero_dates
        and any(c.data_type in _MOMENTS for c in now.columns)
        and (before.zero_dates, now.zero_dates) not in _HARMLESS,
        # Under `error` no value was ever changed.
        "overflow": before.overflow not in ("error", now.overflow),
    }
    return tuple(part for part, changed in found.items() if changed)


def same_where(before: Table, now: Table) -> bool:
    return (before.where or "").strip() == (now.where or "").strip()


def _reordered(before: Table, now: Table) -> bool:
    """Whether columns stand in another order: two of one type may have changed their names."""
    since = happened(before, now)
    was = [current(c.name, since).lower() for c in before.columns]
    is_ = [c.name.lower() for c in now.columns]
    return [name for name in was if name in is_] != [name for name in is_ if name in was]


def came_back(before: Table, name: str) -> bool:
    """Whether a column of that name was there once: the target may hold what it had then."""
    return name.lower() in {dropped.name.lower() for dropped in before.dropped}


def happened(before: Table, now: Table) -> tuple[tuple[str, str], ...]:
    """The declared renames that the source has made since: the old name is gone, the new one is there."""
    old = {c.name.lower(): c.name for c in before.columns}
    new = {c.name.lower(): c.name for c in now.columns}
    return tuple(
        (old[was.lower()], new[is_.lower()])
        for was, is_ in now.renames
        if was.lower() in old and was.lower() not in new and is_.lower() in new and is_.lower() not in old
    )


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
