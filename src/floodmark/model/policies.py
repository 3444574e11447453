"""Which of a table's policies (`overflow`, `zero_dates`) applies to a column, and findings about values they changed. Pure.

A policy never changes a value silently: every run counts the values it changed in each column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from floodmark.model.run import Finding
from floodmark.model.table import Table
from floodmark.model.times import TEMPORAL
from floodmark.model.types import Field


def tells_rows_apart(field: Field, table: Table) -> bool:
    """Whether rows are merged by this field: if a policy made two keys equal, two rows would become one."""
    return field.column in table.key and table.mode != "full"


def when_too_long(field: Field, table: Table) -> Literal["error", "truncate", "null"]:
    """What happens to values that are too long for the warehouse: keys are never changed, documents never cut."""
    policy = table.recipe.overflow
    # A truncated document is no longer a document.
    if tells_rows_apart(field, table) or (policy == "truncate" and field.document):
        return "error"
    return policy


def changed_values(table: Table | None, changed: Mapping[str, int]) -> list[Finding]:
    """One finding for each column in which the run changed values."""
    if table is None:
        return []
    found = []
    for name in sorted(changed):
        policy, became = _policy(table, name)
        count = changed[name]
        values = "1 value was" if count == 1 else f"{count:,} values were"
        detail = f"column {name}: {values} {became} ({policy})"
        more = {"column": name, "values": count, "policy": policy}
        found.append(Finding("changed_values", table.name, detail, more))
    return found


def _policy(table: Table, column: str) -> tuple[str, str]:
    """The policy that applies to a column, and what it does to the values."""
    if table.column(column).data_type in TEMPORAL:
        kept = f", with the exact text in {column}__raw" if table.recipe.zero_dates == "keep" else ""
        return f"zero_dates: {table.recipe.zero_dates}", f"not a valid date: NULL{kept}"
    became = "NULL" if table.recipe.overflow == "null" else "truncated"
    return f"overflow: {table.recipe.overflow}", f"too large for the warehouse: {became}"
