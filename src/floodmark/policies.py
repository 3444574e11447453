"""What the policies of a table (`overflow`, `zero_dates`) have done to its values, said in findings. Pure.

A policy never changes a value without a word: every run counts what it has changed, column by column.
"""

from __future__ import annotations

from collections.abc import Mapping

from floodmark.model import Finding, Table

_DATES = ("date", "datetime", "timestamp")


def changed_values(table: Table | None, changed: Mapping[str, int]) -> list[Finding]:
    """One finding for each column of which a run has changed values."""
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
    """The policy that a column's values come under, and what it makes of them."""
    if table.column(column).data_type in _DATES:
        kept = table.zero_dates == "keep"
        became = f"no date: NULL, with the exact text in {column}__raw" if kept else "no date, and made NULL"
        return f"zero_dates: {table.zero_dates}", became
    became = "made NULL" if table.overflow == "null" else "cut"
    return f"overflow: {table.overflow}", f"more than the warehouse holds, and {became}"
