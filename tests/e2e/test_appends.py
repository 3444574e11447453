"""Tables that only grow: by their id, or without a key by configuration."""

from __future__ import annotations

import pytest

from tests.conftest import Workspace
from tests.shapes import configured, refused, same

pytestmark = pytest.mark.source


def test_an_auto_increment_table_is_appended_by_its_id(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, note TEXT)",
        "INSERT INTO t SELECT seq * 1000, seq FROM seq_1_to_500",
    )
    configured(workspace, "t", slice_rows=120)
    assert workspace.synced("t")["rows_extracted"] == 500
    workspace.execute(
        "INSERT INTO t (note) VALUES ('next'), ('more')", "UPDATE t SET note = 'unseen' WHERE id = 1000"
    )
    assert workspace.synced("t")["rows_extracted"] == 2
    assert workspace.query("SELECT count(*), max(id), count(*) FILTER (note = 'unseen') FROM t") == [
        (502, 500002, 0)
    ]


def test_ids_beyond_the_signed_range_are_appended_too(workspace: Workspace) -> None:
    top = 2**64 - 10
    workspace.execute(
        "CREATE TABLE t (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, n INT)",
        f"INSERT INTO t VALUES ({2**63 - 1}, 1), ({2**63}, 2), ({top}, 3)",
    )
    table = workspace.synced("t")
    assert table["watermark"]["last_mysql_data_id"] == [top]
    workspace.execute("INSERT INTO t (n) VALUES (4)")
    assert workspace.synced("t")["rows_extracted"] == 1
    assert same(workspace, "t")


def test_a_keyless_table_is_appended_by_configuration_twins_included(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (at DATETIME(3) NOT NULL, n INT, KEY (at))",
        "INSERT INTO t SELECT '2025-03-01' + INTERVAL seq DIV 10 SECOND, seq % 2 FROM seq_1_to_400",
    )
    configured(workspace, "t", mode="append", cursor="at", slice_rows=100)
    assert workspace.synced("t")["rows_extracted"] == 400
    assert workspace.synced("t")["rows_extracted"] == 0
    workspace.execute("INSERT INTO t VALUES ('2025-04-01', 5), ('2025-04-01', 5)")
    assert workspace.synced("t")["rows_extracted"] == 2
    assert same(workspace, "t")


def test_a_limit_on_a_keyless_append_never_parts_rows_of_one_moment(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (at DATETIME NOT NULL, n INT, KEY (at))",
        "INSERT INTO t SELECT '2025-03-01' + INTERVAL seq DIV 10 SECOND, seq FROM seq_0_to_99",
    )
    configured(workspace, "t", mode="append", cursor="at")
    counts = [workspace.synced("t", limit=25)["rows_extracted"] for _ in range(6)]
    assert counts == [20, 20, 20, 20, 20, 0]
    assert same(workspace, "t")
    error = refused(make_tied(workspace), "tied", limit=25)
    assert error["code"] == 2 and "larger --limit" in error["hint"]


def make_tied(workspace: Workspace) -> Workspace:
    workspace.execute(
        "CREATE TABLE tied (at DATETIME NOT NULL, KEY (at))",
        "INSERT INTO tied SELECT '2025-03-01' FROM seq_1_to_50",
    )
    configured(workspace, "tied", mode="append", cursor="at")
    return workspace
