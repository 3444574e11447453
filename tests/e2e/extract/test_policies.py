"""Values that a warehouse can't hold, and impossible dates: refused by name, or changed as configured and counted."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Any

import pytest

from floodmark.config.load import TableOptions
from floodmark.model.warehouse import REDSHIFT
from floodmark.source.describe import discover_with_notes
from floodmark.source.read import check_lengths
from floodmark.source.session import Session
from tests.conftest import Workspace
from tests.support.redshift import RedshiftStandIn

pytestmark = pytest.mark.source

MOST = 65_535
AT = "update_at DATETIME NOT NULL DEFAULT '2025-03-01', KEY (update_at)"


@pytest.fixture
def long(redshift_workspace: Workspace) -> Workspace:
    """Texts around the limit, whose last character that fits would be half of one."""
    redshift_workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, body MEDIUMTEXT, other LONGTEXT, {AT})",
        f"INSERT INTO t (id, body) VALUES (1, REPEAT('x', {MOST})), (2, CONCAT(REPEAT('x', {MOST - 1}), 'é')),"
        f" (3, REPEAT('😀', 16384)), (4, NULL)",
    )
    return redshift_workspace


def configured(workspace: Workspace, **policies: str) -> None:
    workspace.write(tables={workspace.full_name("t"): {"overlap_seconds": 0, **policies}})


def asked(workspace: Workspace, redshift: RedshiftStandIn, sql: str) -> list[tuple[Any, ...]]:
    return [
        tuple(row) for row in redshift.execute(sql.format(t=f"{workspace.config['warehouse']['schema']}.t"))
    ]


def refused(workspace: Workspace) -> dict[str, Any]:
    (table,) = workspace.sync("t").as_json()["tables"]
    assert table["exit_code"] == 6 and table["rows_loaded"] == table["files_written"] == 0
    assert table["watermark"]["s3_file_count"] == 0
    return dict(table["error"])


def changed(table: dict[str, Any]) -> dict[str, tuple[int, str]]:
    found = [f for f in table["findings"] if f["kind"] == "changed_values"]
    return {f["column"]: (f["values"], f["policy"]) for f in found}


def test_text_that_redshift_cannot_hold_is_refused_with_key_and_column(
    long: Workspace, redshift: RedshiftStandIn
) -> None:
    error = refused(long)
    assert "column body: a value of 65,536 bytes, but the warehouse holds at most 65,535" in error["message"]
    assert "in the row with id = 2" in error["message"] and "overflow: truncate or null" in error["hint"]
    schema = long.config["warehouse"]["schema"]
    assert (
        redshift.execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' AND tablename = 't'")
        == []
    )


def test_text_is_cut_at_a_whole_character_and_counted(long: Workspace, redshift: RedshiftStandIn) -> None:
    configured(long, overflow="truncate")
    (found,) = long.synced("t")["findings"]
    assert found["kind"] == "changed_values"
    assert "column body: 2 values were too large for the warehouse: truncated" in found["detail"]
    rows = asked(long, redshift, "SELECT id, body FROM {t} ORDER BY id")
    assert [(key, body and len(body.encode())) for key, body in rows] == [
        (1, MOST), (2, MOST - 1), (3, MOST - 3), (4, None),
    ]  # fmt: skip
    assert rows[1][1] == "x" * (MOST - 1) and rows[2][1] == "😀" * 16383
    long.execute(f"UPDATE t SET other = REPEAT('y', {MOST + 9}), update_at = '2025-03-02' WHERE id = 4")
    assert changed(long.synced("t")) == {"other": (1, "overflow: truncate")}  # of this run only
    assert changed(long.synced("t")) == {}


def test_text_becomes_null_and_is_counted(long: Workspace, redshift: RedshiftStandIn) -> None:
    configured(long, overflow="null")
    assert changed(long.synced("t")) == {"body": (2, "overflow: null")}
    assert asked(long, redshift, "SELECT id, body IS NULL FROM {t} ORDER BY id") == [
        (1, False), (2, True), (3, True), (4, True),
    ]  # fmt: skip


def test_a_character_that_redshift_does_not_know_follows_the_policy(
    redshift_workspace: Workspace, redshift: RedshiftStandIn
) -> None:
    workspace = redshift_workspace
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), {AT})",
        "INSERT INTO t (id, name) VALUES (1, 'plain'), (2, 'a\\0b\\0')",
    )
    error = refused(workspace)
    assert "column name: text with the character U+0000" in error["message"] and "id = 2" in error["message"]
    configured(workspace, overflow="truncate")
    assert changed(workspace.synced("t")) == {"name": (1, "overflow: truncate")}
    assert asked(workspace, redshift, "SELECT id, name FROM {t} ORDER BY id") == [(1, "plain"), (2, "ab")]
    configured(workspace, overflow="null")
    workspace.execute("UPDATE t SET update_at = '2025-03-02' WHERE id = 2")
    assert changed(workspace.synced("t")) == {"name": (1, "overflow: null")}
    assert asked(workspace, redshift, "SELECT name FROM {t} WHERE id = 2") == [(None,)]


def test_a_key_is_never_changed_by_a_policy(redshift_workspace: Workspace) -> None:
    redshift_workspace.execute(
        f"CREATE TABLE t (code VARCHAR(20) PRIMARY KEY, {AT})", "INSERT INTO t (code) VALUES ('a\\0')"
    )
    configured(redshift_workspace, overflow="null")
    assert "part of the key" in refused(redshift_workspace)["hint"]


def test_duckdb_holds_what_redshift_cannot(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, body MEDIUMTEXT, {AT})",
        f"INSERT INTO t (id, body) VALUES (1, CONCAT(REPEAT('x', {MOST}), 'é')), (2, 'a\\0b')",
    )
    configured(workspace, overflow="truncate")
    assert changed(workspace.synced("t")) == {}
    assert workspace.query("SELECT body FROM t ORDER BY id") == [("x" * MOST + "é",), ("a\0b",)]


def test_decimals_of_19_and_more_than_38_digits_arrive_exactly(
    redshift_workspace: Workspace, redshift: RedshiftStandIn
) -> None:
    nines = "9" * 19  # more than the eight bytes in which Redshift keeps a DECIMAL(19)
    redshift_workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, d DECIMAL(19,0), e DECIMAL(19,19), f DECIMAL(65,30), {AT})",
        f"INSERT INTO t (id, d, e, f) VALUES (1, -{nines}, 0.{nines}, -{'9' * 35}.{'9' * 30}), (2, {nines}, 0, 0)",
    )
    assert changed(redshift_workspace.synced("t")) == {}
    assert asked(redshift_workspace, redshift, "SELECT CAST(d AS VARCHAR), CAST(e AS VARCHAR), f FROM {t} ORDER BY id") == [
        (f"-{nines}", f"0.{nines}", f"-{'9' * 35}.{'9' * 30}"), (nines, "0." + "0" * 19, "0." + "0" * 30),
    ]  # fmt: skip


@pytest.mark.parametrize("warehouse", ["duckdb", "redshift"])
def test_zero_dates_follow_the_policy_and_are_counted(
    warehouse: str, request: pytest.FixtureRequest, redshift: RedshiftStandIn
) -> None:
    workspace: Workspace = request.getfixturevalue(
        "workspace" if warehouse == "duckdb" else "redshift_workspace"
    )
    workspace.execute(
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        f"CREATE TABLE t (id INT PRIMARY KEY, d DATE, w DATETIME(3), {AT})",
        "INSERT INTO t (id, d, w) VALUES (1, '2025-01-01', '2025-02-30 01:02:03.004'), (2, '0000-00-00', 0), (3, NULL, NULL)",
    )
    error = refused(workspace)
    assert "the impossible date" in error["message"] and "in the row with id = " in error["message"]
    columns = "SELECT CAST(d AS VARCHAR), CAST(w AS VARCHAR)"

    def rows(columns: str) -> list[tuple[Any, ...]]:
        sql = f"{columns} FROM {{t}} ORDER BY id"
        return (
            workspace.query(sql.format(t="t")) if warehouse == "duckdb" else asked(workspace, redshift, sql)
        )

    configured(workspace, zero_dates="null")
    assert changed(workspace.synced("t")) == {"d": (1, "zero_dates: null"), "w": (2, "zero_dates: null")}
    assert rows(columns) == [("2025-01-01", None), (None, None), (None, None)]
    configured(workspace, zero_dates="keep")
    workspace.execute("SET sql_mode = 'ALLOW_INVALID_DATES'", "UPDATE t SET update_at = '2025-03-02'")
    assert changed(workspace.synced("t")) == {"d": (1, "zero_dates: keep"), "w": (2, "zero_dates: keep")}
    assert rows(f"{columns}, d__raw, w__raw") == [
        ("2025-01-01", None, None, "2025-02-30 01:02:03.004"),
        (None, None, "0000-00-00", "0000-00-00 00:00:00.000"),
        (None, None, None, None),
    ]


@pytest.mark.mysql_only  # MariaDB's JSON is text, which large strings make no longer
def test_documents_that_were_too_long_arrive_once_the_cluster_accepts_them(
    redshift_workspace: Workspace, redshift: RedshiftStandIn
) -> None:
    workspace, user, secret = redshift_workspace, f"u_{secrets.token_hex(4)}", "Ordinary1"
    schema = workspace.config["warehouse"]["schema"]
    redshift.create_user(user, secret, "TEMP ON DATABASE dev", "CREATE ON DATABASE dev")
    redshift.execute(
        f"ALTER ROLE {user} SET floodmark.large_strings TO 'on'",
        f"CREATE SCHEMA {schema} AUTHORIZATION {user}",
    )
    workspace.write(warehouse={"url": redshift.url(user, secret)})
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, doc JSON, {AT})",
        f"INSERT INTO t (id, doc) VALUES (1, CONCAT('{{\"n\": \"', REPEAT('x', {MOST}), '\"}}')), (2, '{{}}')",
    )
    configured(workspace, overflow="null")
    assert changed(workspace.synced("t")) == {"doc": (1, "overflow: null")}
    there = "SELECT count(*) FROM {t} WHERE doc IS NOT NULL"
    assert asked(workspace, redshift, there) == [(1,)]
    workspace.write(warehouse={"large_strings": True})
    assert [c["part"] for c in workspace.run("plan", "-t", "t", "--json").ok().json["recipe"]] == ["overflow"]
    assert workspace.synced("t")["rows_reread"] == 2
    assert asked(workspace, redshift, there) == [(2,)]
    assert workspace.synced("t")["rows_reread"] == 0


def test_a_document_that_is_too_long_is_found_before_a_large_table_is_read(
    redshift_workspace: Workspace,
) -> None:
    workspace = redshift_workspace
    workspace.write(defaults={"slice_rows": 100, "start": None})
    workspace.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, doc JSON, update_at DATETIME(6), KEY (update_at))",
        "INSERT INTO t SELECT seq, JSON_OBJECT('a', REPEAT('ü', IF(seq = 900, 33000, 3))), '2025-03-01' FROM seq_1_to_1000",
    )
    (table,) = workspace.sync("t").as_json()["tables"]
    assert table["exit_code"] == 6 and table["commits"] == [] and table["files_written"] == 0
    assert "column doc: a value of 66," in table["error"]["message"]
    assert "overflow" in table["error"]["hint"]
    workspace.write(defaults={"overflow": "null"})
    assert workspace.synced("t")["rows_loaded"] == 1000


def test_the_search_for_overlong_values_has_a_time_limit(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, doc JSON, at DATETIME, KEY (at))",
        "INSERT INTO t VALUES (1, '[]', '2025-03-01')",
    )
    with Session(workspace.settings.source) as session:
        name = workspace.full_name("t")
        table = discover_with_notes(session, name, TableOptions(), workspace.database.name).table
        slow = replace(table, recipe=replace(table.recipe, where="SLEEP(60) = 0"))
        began = time.monotonic()
        check_lengths(session, slow, None, REDSHIFT)
        assert time.monotonic() - began < 30
        assert session.rows("SELECT 1") == [(b"1",)]
