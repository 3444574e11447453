"""Column changes between two descriptions of a table, as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from floodmark.model.table import Table


@dataclass(frozen=True)
class ColumnChange:
    """One column that was added, dropped or changed, with its type before and after."""

    kind: Literal["added", "dropped", "changed"]
    column: str
    before: str | None = None
    after: str | None = None

    def __str__(self) -> str:
        match self.kind:
            case "added":
                return f"{self.column} was added ({self.after})"
            case "dropped":
                return f"{self.column} was dropped ({self.before})"
            case "changed":
                return f"{self.column} changed from {self.before} to {self.after}"


def column_changes(before: Table | None, after: Table | None) -> tuple[ColumnChange, ...]:
    """The columns that differ, ignoring case in names; none if the table was not described before."""
    if before is None or after is None or before is after:
        return ()
    old = {c.name.lower(): c for c in before.columns}
    new = {c.name.lower(): c for c in after.columns}
    found = [
        ColumnChange("changed", c.name, old[name].type, c.type)
        for name, c in new.items()
        if name in old and old[name].type != c.type
    ]
    found += [ColumnChange("added", c.name, after=c.type) for name, c in new.items() if name not in old]
    found += [ColumnChange("dropped", c.name, before=c.type) for name, c in old.items() if name not in new]
    return tuple(found)
