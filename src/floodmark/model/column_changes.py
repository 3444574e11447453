"""Column changes between two descriptions of a table, as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from floodmark.model.lineage import current, renamed_since, source_columns
from floodmark.model.table import Table


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
