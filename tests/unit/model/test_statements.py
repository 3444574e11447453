"""Statements in the log: enough to explain a run, and no row's text."""

from __future__ import annotations

import pytest

from floodmark.model.log_lines import place
from floodmark.model.statements import masked


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("SELECT  a\n FROM t WHERE name = 'Jane''s' AND b = 7", "SELECT a FROM t WHERE name = '…' AND b = 7"),
        (r"SELECT 1 WHERE a = 'it\'s' AND b = 'secret'", "SELECT 1 WHERE a = '…' AND b = '…'"),
        ("a > '2025-01-01 00:00:00.000000'", "a > '2025-01-01 00:00:00.000000'"),
        ("a > _utf8mb4 X'323032352d30312d3031'", "a > '2025-01-01'"),
        ("a = _utf8mb4 X'4a616e65' OR a = 0x4a616e65", "a = '…' OR a = 0x…"),
        ("id IN (1, 2, 3, 4, 5, 6, 7, 8, 9)", "id IN (1, 2, 3, 4, …)"),
        ("SET sql_mode = ''", "SET sql_mode = ''"),
    ],
)
def test_a_statement_shows_times_and_numbers_and_no_other_text(sql: str, shown: str) -> None:
    assert masked(sql, escapes=True) == shown


def test_a_backslash_is_no_escape_in_a_warehouse_s_text() -> None:
    assert masked(r"a = 'c:\' AND b = 'secret'", escapes=False) == "a = '…' AND b = '…'"


def test_a_long_statement_is_cut() -> None:
    text = masked("SELECT " + "column, " * 1000, escapes=True)
    assert len(text) < 1100 and text.endswith("characters)")


def test_a_position_reads_as_one() -> None:
    assert place(("2025-01-01", 7), "the start") == "2025-01-01 (id 7)"
    assert place(None, "the start") == "the start"
