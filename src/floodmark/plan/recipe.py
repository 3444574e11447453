"""The recipe behind a target's rows: how it has changed since they were read, and what to do about it. Pure.

Each part that differs gets one decision: nothing to do (proven), read all earlier rows again, or refuse and
name the command that resolves it. Doing nothing is never the default. A part that an older description did
not record counts as unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from floodmark.model.errors import ConfigError, DataError, FloodmarkError
from floodmark.model.lineage import (
    Known,
    current,
    happened,
    one_collation,
    parts_to_reread,
    rewritten,
    same_where,
    with_lineage,
)
from floodmark.model.table import Column, Table
from floodmark.model.types import comparison

Do = Literal["nothing", "reread", "reconcile", "refuse"]
Part = Literal[
    "mode",
    "changes",
    "key",
    "cursor",
    "where",
    "columns",
    "order",
    "zero_dates",
    "overflow",
    "deletes",
    "target",
]

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_DONE = {
    "nothing": "nothing to read again",
    "reread": "all rows are read again, once",
    "reconcile": "source and target are compared, and what differs is repaired",
    "refuse": "refused",
}


@dataclass(frozen=True)
class RecipeChange:
    """A part of the recipe that has changed, and what to do about it."""

    part: Part
    do: Do
    said: str  # what has changed
    hint: str = ""  # for a refusal

    def as_json(self) -> dict[str, str]:
        return {"part": self.part, "decision": self.do, "detail": self.said}

    def __str__(self) -> str:
        return f"{self.said}: {_DONE[self.do]}"


def changes(
    before: Table,
    now: Table,
    *,
    full_by_choice: bool = True,
    chosen: bool = False,
    reloads: bool = False,
    known: Sequence[Known] = (),
) -> tuple[RecipeChange, ...]:
    """What has changed since rows were last read, each part with its decision.

    `full_by_choice`: mode `full` is configured, not the fallback of a table that lost its cursor. `chosen`:
    the configuration names a cursor or a mode. `reloads`: all files are about to be loaded again, into
    whichever target. `known`: rows read earlier, as they are now.
    """
    found = [*_target(before, now, reloads), *_deletes(before, now)]
    # Without a cursor, whoever no longer follows the binary log has chosen to read the table whole.
    full_by_choice |= before.follows and not now.recipe.changes
    if before.mode == now.mode == "full" or (now.mode == "full" and full_by_choice):
        found += [RecipeChange(c.part, "nothing", c.said) for c in _incremental(before, now)]
        if before.mode != "full":
            found.append(RecipeChange("mode", "nothing", f"mode changed from {before.mode} to full"))
        return tuple(found)
    if before.mode == "full":
        said = f"{now.name} was read whole, and {_reads(now)}"
        return (*found, RecipeChange("mode", "reread", said))
    if now.mode == "full":
        return (*found, _cursor(before, now, chosen))
    return (*found, *_incremental(before, now, chosen, known))


def refusal(found: Sequence[RecipeChange], table: Table) -> FloodmarkError | None:
    """Why the table can't be read any further; None if it can."""
    for change in found:
        if change.do == "refuse":
            kind = ConfigError if change.part == "target" else DataError
            return kind(change.said, hint=change.hint, table=table.name)
    return None


def begins_whole(before: Table, now: Table) -> bool:
    """Whether a table that starts over must replace the target's rows, because old and new don't mix."""
    if now.mode == "full":
        return False
    if before.mode == "full" or (not now.key and with_lineage(before, now).lineage.owed):
        return True
    return any(c.do == "refuse" and c.part != "target" for c in changes(before, now))


def unfit(before: Table | None, now: Table) -> FloodmarkError | None:
    """Why rows read from a new position would not fit the target's rows; None if they do."""
    if before is None or now.mode == "full":
        return None
    if before.mode == "full":
        return DataError(
            f"{now.name} was read whole so far; it {_reads(now)} with the next sync",
            hint=f"run floodmark sync -t {now.name} first",
            table=now.name,
        )
    return refusal([c for c in changes(before, now) if c.part == "key"], now)


def go_on(before: Table) -> str:
    """The command after which all rows are read again and replace the old ones."""
    reset = f"floodmark watermark reset -t {before.name}{_force(before)}"
    return f"read the table again, replacing the old rows: {reset}"


def _force(before: Table) -> str:
    """The option that a reset requires where rows could be duplicated if they didn't replace the old ones."""
    return " --force" if not before.key and before.mode == "append" else ""


# ---------------------------------------------------------------- the parts


def _target(before: Table, now: Table, reloads: bool) -> Iterator[RecipeChange]:
    if before.target == now.target:
        return
    said = f"{now.name} was loaded into {before.target} so far, but its target is now {now.target}"
    if reloads:
        yield RecipeChange("target", "nothing", said)
        return
    reset = f"floodmark watermark reset -t {now.name} --redshift-only{_force(before)}"
    yield RecipeChange("target", "refuse", said, f"change the target back, or fill the new one: {reset}")


def _deletes(before: Table, now: Table) -> Iterator[RecipeChange]:
    # The next search for deletes compares all keys, whatever was done before.
    was, is_ = before.recipe.deletes, now.recipe.deletes
    if was is not None and is_ is not None and was != is_:
        yield RecipeChange("deletes", "nothing", f"deletes changed from {was} to {is_}")


def _incremental(
    before: Table, now: Table, chosen: bool = False, known: Sequence[Known] = ()
) -> Iterator[RecipeChange]:
    """All other parts, for a table that is read by a cursor."""
    since = happened(before, now)
    old = {current(c.name, since).lower(): c for c in before.columns}
    key = tuple(current(k, since) for k in before.key)
    cursor = None if before.cursor is None else current(before.cursor, since)
    if now.mode != "full" and before.mode != "full":
        if before.follows != now.follows:
            if before.mode == "append":
                yield _mode(before, now)
            said = f"{now.name} {_read(before)} so far, and {_reads(now)}"
            yield RecipeChange("changes", "reconcile", said)
        elif _other((cursor or "",), (now.cursor or "",)):
            yield _cursor(before, now, chosen)
        elif before.mode != now.mode:
            yield _mode(before, now)
    if key and _other(key, now.key):
        was, is_ = ", ".join(before.key), ", ".join(now.key) or "none"
        said = f"the key of {now.name} changed from ({was}) to ({is_}); the rows of {now.target} were merged by the old one"
        yield _refused("key", said, before, f"set `key: [{was}]` if it still identifies a row")
    for change in (*_parts(before, now, known), *_columns(before, now, old)):
        if now.key or change.do != "reread":
            yield change
        else:
            yield _refused(change.part, f"{change.said}, and without a key rows can't be read again", before)


def _cursor(before: Table, now: Table, chosen: bool) -> RecipeChange:
    is_ = f"by {now.cursor}" if now.cursor else "whole"
    said = f"{now.name} {_read(before)} so far, and would now be read {is_}"
    if chosen:
        return _refused("cursor", said, before)
    return _refused("cursor", f"{said}: its source has changed", before, "set `cursor` or `mode` for it")


def _read(before: Table) -> str:
    return "followed the binary log" if before.follows else f"was read by {before.cursor}"


def _reads(now: Table) -> str:
    return "now follows the binary log" if now.follows else f"is now read by {now.cursor}"


def _mode(before: Table, now: Table) -> RecipeChange:
    said = f"mode changed from {before.mode} to {now.mode}"
    if now.mode == "upsert" and any(comparison(now.column(k)) == "weights" for k in now.key):
        # Append-only rows are told apart by the bytes of their keys.
        said = f"{said}; the rows of {now.target} were not merged by key the way MySQL compares keys"
        return _refused("mode", said, before)
    return RecipeChange("mode", "nothing", said)


def _parts(before: Table, now: Table, known: Sequence[Known]) -> Iterator[RecipeChange]:
    again = parts_to_reread(before, now, known)
    if not same_where(before, now):
        # Without a key, rows that no longer match could not be removed either.
        do: Do = "reread" if "where" in again or not now.key else "nothing"
        yield RecipeChange("where", do, "`where` has changed")
    elif "where" in again:
        yield RecipeChange(
            "where",
            "reread",
            "`where` may match other rows: an excluded column that it uses has changed its type",
        )
    if now.key and not before.key:
        yield _first_key(before, now)
    if "order" in again:
        yield RecipeChange("order", "reread", "columns may have taken each other's names")
    for part in ("zero_dates", "overflow"):
        was, is_ = getattr(before.recipe, part), getattr(now.recipe, part)
        if was != is_:
            yield RecipeChange(
                part, "reread" if part in again else "nothing", f"{part} changed from {was} to {is_}"
            )
        elif part == "overflow" and part in again:
            yield RecipeChange(
                part, "reread", f"the warehouse could hold other values before, with overflow: {was}"
            )


def _first_key(before: Table, now: Table) -> RecipeChange:
    known = {c.name.lower() for c in before.columns}
    said = f"{now.name} had no key, and now has ({', '.join(now.key)})"
    if all(k.lower() in known and comparison(now.column(k)) == "bytes" for k in now.key):
        return RecipeChange("key", "reread", said)
    said += f"; that key does not identify the rows of {now.target}"
    return _refused("key", said, before)


def _columns(before: Table, now: Table, old: dict[str, Column]) -> Iterator[RecipeChange]:
    for column in now.columns:
        was = old.get(column.name.lower())
        if was is None:
            continue  # a new column: `reread` finds out which values rows have in it
        why = rewritten(was, column)
        if column.name in now.key and before.key and now.mode != "full":
            compared = {comparison(was), comparison(column)}
            if compared != {"bytes"} and not one_collation(was, column):
                why = f"its collation changed from {was.collation} to {column.collation}"
            elif column.data_type == "enum" and "" in column.members and "" not in was.members:
                why = why or "it now has the member '', which its invalid value 0 was read as"
            if why:
                said = f"{column.name} is part of the key of {now.name}, and {why}"
                said += f": the rows of {now.target} were merged by the old definition"
                yield _refused("key", said, before, "change it back in the source")
                continue
        if column.name == now.cursor and now.mode != "full" and not same_kind(was, column):
            said = f"{now.name} is read by {column.name}, which changed from {was.type} to {column.type}: "
            said += "the position is no longer valid"
            yield _refused("cursor", said, before, "change it back in the source")
        elif why:
            yield RecipeChange("columns", "reread", f"{column.name} may have other values: {why}")
        elif replace(was, name=column.name, fill=None, generated=None) != replace(column, generated=None):
            yield RecipeChange(
                "columns", "nothing", f"{column.name} has a new definition, with the same values"
            )


def same_kind(was: Column, now: Column) -> bool:
    """Whether a position's value in this column still means the same."""
    return was.data_type == now.data_type or {was.data_type, now.data_type} <= set(_INTEGERS)


def _refused(part: Part, said: str, before: Table, way: str = "change it back") -> RecipeChange:
    return RecipeChange(part, "refuse", said, f"{way}, or {go_on(before)}")


def _other(one: Sequence[str], two: Sequence[str]) -> bool:
    return [name.lower() for name in one] != [name.lower() for name in two]
