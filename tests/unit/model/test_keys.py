"""Printed keys as MySQL's values, and keys that no MySQL column can have."""

from __future__ import annotations

import pytest

from floodmark.model.canonical import Scope, forms, key_of
from floodmark.model.errors import DataError
from floodmark.model.table import Column
from floodmark.model.warehouse import DUCKDB
from tests.support.described import described

ENUM = Column("k", r"enum('a\\b','x\ny','q''r','nul\0','cr\r','end\\','')", "enum", nullable=False)
SET = Column("k", r"set('a\\b','c','d''e')", "set", nullable=False)


def one(column: Column) -> Scope:
    return Scope(table := described("s", "t", (column,), ("k",), None, "full", "t"), forms(table, DUCKDB))


def test_members_are_as_rows_have_them_not_as_the_type_shows_them() -> None:
    assert ENUM.members == ("a\\b", "x\ny", "q'r", "nul\0", "cr\r", "end\\", "")
    assert key_of(one(ENUM), ["a\\b"]) == (1,) and key_of(one(ENUM), [""]) == (7,)
    assert key_of(one(SET), ["a\\b,d'e"]) == (5,) and key_of(one(SET), [""]) == (0,)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (ENUM, "a"),
        (SET, "c,z"),
        (Column("k", "date", "date"), "infinity"),
        (Column("k", "date", "date"), "-43-03-15"),
        (Column("k", "datetime(6)", "datetime", fraction=6), "12345-01-01 00:00:00.000000"),
        (Column("k", "timestamp(6)", "timestamp", fraction=6), "-infinity"),
    ],
)
def test_a_key_that_its_column_cannot_hold_is_refused(column: Column, text: str) -> None:
    with pytest.raises(DataError, match=rf"a row with {text} in the key column k"):
        key_of(one(column), [text])
