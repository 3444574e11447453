"""Impossible dates in MySQL: refused, set to NULL, or kept as text in a second column."""

from __future__ import annotations

import pytest

from tests.conftest import Workspace
from tests.support.table_shapes import AT, configured, refused

pytestmark = pytest.mark.source


@pytest.fixture
def dated(workspace: Workspace) -> Workspace:
    workspace.execute(
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        f"CREATE TABLE t (id INT PRIMARY KEY, d DATE, w DATETIME(3), s TIMESTAMP NULL, {AT})",
        "INSERT INTO t (id, d, w, s) VALUES (1, '2025-01-01', '2025-01-01 01:02:03.004', '2025-01-01'),"
        " (2, '0000-00-00', '2025-02-30 01:02:03.004', 0), (3, '2025-00-15', '0000-00-00', NULL), (4, NULL, NULL, NULL)",
    )
    return workspace


def test_zero_dates_error_names_the_column_and_the_row(dated: Workspace) -> None:
    error = refused(dated, "t")
    assert (
        error["code"] == 6 and "in the row with id = 2" in error["message"] and "zero_dates" in error["hint"]
    )
    assert not dated.warehouse.exists() or not dated.query(
        "SELECT 1 FROM duckdb_tables() WHERE table_name = 't'"
    )


def test_zero_dates_null_makes_them_null(dated: Workspace) -> None:
    configured(dated, "t", zero_dates="null")
    dated.synced("t")
    assert dated.query("SELECT id, d IS NULL, w IS NULL, s IS NULL FROM t ORDER BY id") == [
        (1, False, False, False), (2, True, True, True), (3, True, True, True), (4, True, True, True),
    ]  # fmt: skip


def test_zero_dates_keep_stores_the_exact_text_next_to_the_null(dated: Workspace) -> None:
    configured(dated, "t", zero_dates="keep")
    dated.synced("t")
    assert dated.query("SELECT d, w, s FROM t WHERE id > 1") == [(None, None, None)] * 3
    assert dated.query("SELECT d__raw, w__raw, s__raw FROM t ORDER BY id") == [
        (None, None, None), ("0000-00-00", "2025-02-30 01:02:03.004", "0000-00-00 00:00:00"),
        ("2025-00-15", "0000-00-00 00:00:00.000", None), (None, None, None),
    ]  # fmt: skip
    dated.execute("UPDATE t SET d = '2025-05-05', w = NULL, update_at = '2025-03-02' WHERE id = 2")
    dated.synced("t")
    assert dated.query("SELECT CAST(d AS VARCHAR), d__raw, w__raw FROM t WHERE id = 2") == [
        ("2025-05-05", None, None)
    ]


ZERO_CURSORS = """CREATE TABLE t (id INT PRIMARY KEY, n INT, update_at {type} NOT NULL DEFAULT '2025-03-01', KEY (update_at))"""


@pytest.mark.parametrize("kind_of_cursor", ["DATETIME", "TIMESTAMP"])
def test_rows_with_a_zero_cursor_are_read_by_every_sync(workspace: Workspace, kind_of_cursor: str) -> None:
    lax = "SET sql_mode = ''"
    configured(workspace, "t", zero_dates="null")
    workspace.execute(
        lax,
        ZERO_CURSORS.format(type=kind_of_cursor),
        "INSERT INTO t VALUES (1, 1, '2025-03-01'), (2, 1, '0000-00-00')",
    )
    workspace.synced("t")
    workspace.execute(lax, "INSERT INTO t VALUES (3, 1, '0000-00-00')", "UPDATE t SET n = 2 WHERE id = 2")
    assert any("NULL or zero cursor" in note for note in workspace.synced("t")["notes"])
    assert workspace.query("SELECT id, n, update_at IS NULL FROM t ORDER BY id") == [
        (1, 1, False), (2, 2, True), (3, 1, True),
    ]  # fmt: skip
    workspace.execute("SET sql_mode = ''", "UPDATE t SET n = 5 WHERE id = 2")
    assert workspace.verified("t")["rows_left_out"] == 0
    configured(workspace, "t", zero_dates="keep")
    workspace.synced("t")
    assert workspace.query("SELECT id FROM t WHERE update_at__raw LIKE '0000%' ORDER BY id") == [(2,), (3,)]


def test_a_zero_cursor_is_an_error_if_start_is_null(workspace: Workspace) -> None:
    lax = "SET sql_mode = ''"
    configured(workspace, "t", start=None)
    workspace.execute(lax, ZERO_CURSORS.format(type="DATETIME"), "INSERT INTO t VALUES (1, 1, '2025-03-01')")
    workspace.synced("t")
    workspace.execute(lax, "INSERT INTO t VALUES (3, 1, '0000-00-00')")
    error = refused(workspace, "t")
    assert error["code"] == 6 and "zero_dates" in error["hint"]


def test_old_rows_get_their_raw_text_once_keep_is_configured(dated: Workspace) -> None:
    configured(dated, "t", zero_dates="null")
    dated.synced("t")
    configured(dated, "t", zero_dates="keep")
    assert "zero_dates changed from null to keep" in " ".join(dated.synced("t")["notes"])
    assert dated.query("SELECT d__raw FROM t ORDER BY id") == [
        (None,),
        ("0000-00-00",),
        ("2025-00-15",),
        (None,),
    ]
