"""Tables without a key: reading or loading their rows again would duplicate them in the target."""

from __future__ import annotations

from floodmark.commit.fold import State
from floodmark.model.errors import ConfigError
from floodmark.model.table import Table


def would_duplicate(table: Table, state: State) -> bool:
    """Whether reading or loading rows a second time would duplicate them in the target."""
    return state.has_data and table.mode == "append" and not table.key


def duplicates(table: Table) -> ConfigError:
    return ConfigError(
        f"{table.name} has no key: rows that are read or loaded again would be duplicated",
        hint=f"empty {table.target} first, then repeat the command with --force",
        table=table.name,
    )
