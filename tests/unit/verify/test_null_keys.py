"""Rows of the warehouse whose key is NULL, which no source row has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floodmark.load import canonical
from floodmark.model.canonical import Span
from floodmark.model.table import Column, Table
from floodmark.verify.warehouse import WarehouseRows
from tests.support.described import described
from tests.unit.verify.test_sides import ID, SMALL, filled, scope, text

PAIR = described(
    "s",
    "t",
    (ID, Column("part", "date", "date", nullable=False), text("name")),
    ("id", "part"),
    None,
    "full",
    "t",
)
NULL_KEYS: dict[str, tuple[Table, list[Any], list[tuple[str, ...]]]] = {
    "one column": (SMALL, [(9,), (59,)], [("NULL", "'x'")]),
    "two columns": (
        PAIR,
        [(9, "2024-01-01"), (10, "2024-01-01"), (59, "2024-01-01")],
        [("NULL", "NULL", "'x'"), ("NULL", "'2024-01-01'", "'x'"), ("10", "NULL", "'x'"), ("59", "NULL", "'y'")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", NULL_KEYS)
def test_a_null_in_a_key_is_summed_listed_and_looked_up_in_the_same_range(tmp_path: Path, kind: str) -> None:
    """The target's columns accept NULL, whatever the source declares."""
    table, cuts, odd = NULL_KEYS[kind]
    day = ("'2023-01-01'",) * (len(table.key) - 1)
    good = [(str(n), *day, f"'n{n}'") for n in range(100)]
    warehouse = filled(tmp_path / "w.duckdb", table, [*good, *odd])
    seen = scope(table)
    spans = [Span(a, b) for a, b in zip((None, *cuts), (*cuts, None), strict=True)]
    there = WarehouseRows(warehouse, seen)
    digests = list(there.sums(spans)[0].values())
    listed = [there.rows([span]) for span in spans]
    assert [d.rows for d in digests] == [rows.compared.num_rows for rows in listed]
    assert sum(d.rows for d in digests) == 100 + len(odd)
    for i, span in enumerate(spans):
        [only] = there.sums([span])[0].values()
        assert only == digests[i]
        texts = warehouse.ask("t", lambda place, span=span: canonical.entries(place, seen, [span]))  # type: ignore[misc]
        assert texts is not None and len(texts) == digests[i].rows
    keys = [key for rows in listed for key in rows.keys(seen) if None in key]
    assert len(keys) == len(odd)
    found = warehouse.ask("t", lambda place: canonical.rows(place, seen, [*keys, listed[0].keys(seen)[0]]))
    assert len(found or ()) == len(odd) + 1
    assert len(warehouse.ask("t", lambda place: canonical.rows(place, seen, keys)) or ()) == len(odd)
