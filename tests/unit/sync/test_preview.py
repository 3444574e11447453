"""What `plan` says about a table's columns."""

from __future__ import annotations

from typing import Any

import pytest

from floodmark.model.table import Column
from floodmark.model.warehouse import DUCKDB, LARGE_STRINGS, REDSHIFT, Capabilities
from floodmark.sync.preview import columns
from tests.support.described import described

ID = Column("id", "int", "int", nullable=False)
DOC = Column("doc", "json", "json")
TEXT = Column("body", "longtext", "longtext", charset="utf8mb4")


@pytest.mark.parametrize(
    ("overflow", "doc", "text"),
    [("error", "error", "error"), ("truncate", "error", "truncate"), ("null", "null", "null")],
)
def test_each_column_shows_what_happens_to_values_that_are_too_long(
    overflow: Any, doc: str, text: str
) -> None:
    table = described("s", "t", (ID, DOC, TEXT), ("id",), None, "full", "t", overflow=overflow)

    def marks(can: Capabilities) -> list[str | None]:
        return [one["mark"] for one in columns(table, can)]

    assert marks(REDSHIFT) == [None, f"over 65,535 bytes: {doc}", f"over 65,535 bytes: {text}"]
    assert marks(LARGE_STRINGS) == [None, f"over 16,000,000 bytes: {doc}", f"over 65,535 bytes: {text}"]
    assert marks(DUCKDB) == [None, None, None]


def test_no_policy_applies_to_a_key() -> None:
    day = Column("day", "date", "date", nullable=False)
    table = described(
        "s", "t", (day, TEXT), ("day", "body"), "day", "upsert", "t", zero_dates="null", overflow="null"
    )
    assert [one["mark"] for one in columns(table, REDSHIFT)][:2] == [
        "zero dates: error",
        "over 65,535 bytes: error",
    ]
