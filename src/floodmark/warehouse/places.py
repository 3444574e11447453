"""Where the rows of a file go in the target, and what they get in columns that the file does not have. Pure.

Files are described as they were written; their rows go where the newest description says. So a column that was
renamed is one column for old files and new ones, and rows that were read before a column was added get what the
source has given them, whether they load before or after.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from floodmark.lineage import current
from floodmark.model import Table
from floodmark.names import DERIVED, target_name
from floodmark.types import Field, fields, is_moment


@dataclass(frozen=True)
class Constant:
    """What rows get in a column of the target that their files don't have."""

    target: str
    redshift: str = ""
    duckdb: str = ""
    value: str | None = None


def placed(table: Table, newest: Table) -> tuple[Field, ...]:
    """The fields of a table's files, each with the name that its column has in the target by now."""
    since = newest.renamed[len(table.renamed) :]
    found = fields(table)
    if not since:
        return found
    later = replace(
        table,
        columns=tuple(replace(c, name=current(c.name, since)) for c in table.columns),
        key=tuple(current(k, since) for k in table.key),
    )
    return tuple(replace(f, target=g.target) for f, g in zip(found, fields(later), strict=True))


def constants(table: Table, newest: Table) -> tuple[Constant, ...]:
    """What the rows of a table's files get in columns that they don't have."""
    since = newest.renamed[len(table.renamed) :]
    have = {current(c.name, since).lower() for c in table.columns}
    gone = {current(c.name, since).lower() for c in table.dropped} - have
    found = [Constant(target_name(name)) for name in sorted(gone)]
    for field, fill in _filled(newest):
        if field.column.lower() not in have | gone:
            found.append(Constant(field.target, field.redshift, field.duckdb, fill))
    return tuple(found)


def may_be_null(table: Table) -> frozenset[str]:
    """The target's columns in which rows may have no value."""
    dates = table.zero_dates != "error"
    return frozenset(
        f.target
        for f in fields(table)
        if not f.file_only and (table.column(f.column).nullable or f.raw or (dates and is_moment(f)))
    )


def fills(newest: Table) -> dict[str, str]:
    """What a column of the target is filled with when it is added, by its name there."""
    return {field.target: fill for field, fill in _filled(newest)}


def _filled(newest: Table) -> list[tuple[Field, str]]:
    """The columns that came later than the first rows, also those that are gone again, and what those rows got."""
    ever = replace(newest, columns=(*newest.columns, *newest.dropped))
    found = [(f, ever.column(f.column).fill) for f in fields(ever) if f.name == f.column]
    return [(field, fill) for field, fill in found if fill is not None]


def target_renames(newest: Table) -> tuple[tuple[str, str], ...]:
    """The renames as the target's columns are called, further columns of a source column included."""
    return tuple(
        (target_name(old + more, derived=bool(more)), target_name(new + more, derived=bool(more)))
        for old, new in newest.renamed
        for more in ("", *DERIVED)
    )
