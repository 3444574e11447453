"""Where a file's rows go in the target, and what they get in columns that the file lacks. Pure.

Files are described as they were written; their rows go where the newest description says. So a renamed column
is one column for old files and new ones, and rows read before a column was added get the value that the
source gave them, whether they load before or after. In any other column that the files lack, a row that the
target already has keeps its value: whoever dropped or excluded a column did not mean its history.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from floodmark.model.lineage import current
from floodmark.model.names import DELETED, DERIVED, target_name
from floodmark.model.table import Table
from floodmark.model.types import Field, fields, is_moment


@dataclass(frozen=True)
class Constant:
    """What rows get in a column of the target that their files lack; NULL only if they are new there."""

    target: str
    redshift: str = ""
    duckdb: str = ""
    value: str | None = None


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
            found.append(Constant(field.target, field.redshift, field.duckdb, fill))
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
