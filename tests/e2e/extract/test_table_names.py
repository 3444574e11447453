"""Tables of any name, and two of them that would have one target."""

from __future__ import annotations

import secrets

import pytest

from floodmark.setup.services.databases import DatabaseServer
from tests.conftest import Workspace
from tests.support.table_shapes import AT, refused

pytestmark = pytest.mark.source

TABLES = ["o`d 'q\" %s", "dot.ted", "深圳/..", "select", "..", "-t", "*?[a]", "c:\\x#1;--"]
PLAIN = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_$.-%")


def test_tables_of_any_name_are_found_stored_and_loaded(workspace: Workspace, server: DatabaseServer) -> None:
    other = f"x.`%'\"深 {secrets.token_hex(3)}"
    quoted = "`" + other.replace("`", "``") + "`"
    workspace.execute(f"CREATE DATABASE {quoted}")
    try:
        made = [f"{quoted}.`{name.replace('`', '``')}`" for name in TABLES]
        for n, table in enumerate(made):
            workspace.execute(
                f"CREATE TABLE {table} (id INT PRIMARY KEY, k VARCHAR(9) NOT NULL, {AT}, UNIQUE (k))",
                f"INSERT INTO {table} (id, k) VALUES ({n}, 'a'), ({n + 100}, 'b')",
            )
        workspace.write(source={"url": server.url(other)}, defaults={"key": ["k"]})
        report = workspace.sync()
        assert report.ok and len(report.tables) == len(TABLES), report.as_json()
        workspace.execute(
            *(f"UPDATE {table} SET k = 'A', update_at = '2025-03-02' WHERE k = 'a'" for table in made)
        )
        # Each by its own name too.
        report = workspace.sync(*(f"{other}.{name}" for name in TABLES))
        assert report.ok and {t.rows_extracted for t in report.tables} == {1}
        for n, name in enumerate(TABLES):
            target = '"' + name.replace('"', '""') + '"'
            assert workspace.query(f"SELECT id, k FROM {target} ORDER BY id") == [(n, "A"), (n + 100, "b")]
        kept = [p.name for p in (workspace.folder / "lake" / "commits").iterdir()]
        assert len(kept) == len(TABLES) and all(set(name) <= PLAIN for name in kept)
    finally:
        workspace.execute(f"DROP DATABASE {quoted}")


def test_two_tables_with_one_target_are_refused_until_one_sets_target(workspace: Workspace) -> None:
    name = workspace.database.name
    for n, table in enumerate(("Orders", "orders")):
        workspace.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, {AT})", f"INSERT INTO {table} (id) VALUES ({n})"
        )
    report = workspace.sync("Orders", "orders")
    errors = {t["table"]: t["error"] for t in report.as_json()["tables"]}
    assert report.exit_code == 2
    for table in (f"{name}.Orders", f"{name}.orders"):
        # Both, and before anything is read: neither has the target by chance.
        assert "have the same target orders" in errors[table]["message"]
        assert errors[table]["hint"] == f"set tables.{table}.target in the configuration"
    assert not (workspace.folder / "lake" / "data").exists()
    workspace.write(tables={f"{name}.Orders": {"target": "Orders_upper"}})
    report = workspace.sync("Orders", "orders")
    assert report.ok, report.as_json()
    assert workspace.query("SELECT id FROM orders_upper") == [(0,)]
    assert workspace.query("SELECT id FROM orders") == [(1,)]


def test_a_target_that_another_table_fills_is_refused_in_a_later_run_too(workspace: Workspace) -> None:
    for n, table in enumerate(("Orders", "orders")):
        workspace.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, {AT})", f"INSERT INTO {table} (id) VALUES ({n})"
        )
    workspace.synced("Orders")
    error = refused(workspace, "orders")
    assert error["code"] == 2 and "target" in error["hint"]
    assert workspace.query("SELECT id FROM orders") == [(0,)]


def test_a_table_named_like_one_of_ours_is_refused_unread_until_it_sets_target(
    workspace: Workspace,
) -> None:
    name = workspace.database.name
    tables = ("codes", "Floodmark_keys_codes", "floodmark_ledger")
    for n, table in enumerate(tables):
        workspace.execute(
            f"CREATE TABLE {table} (k VARCHAR(9) PRIMARY KEY, n INT, {AT})",
            f"INSERT INTO {table} (k, n) VALUES ('a', {n})",
        )
    report = workspace.sync()
    found = {t["table"]: t for t in report.as_json()["tables"]}
    assert report.exit_code == 2 and found[f"{name}.codes"]["ok"]
    for table in tables[1:]:
        error = found[f"{name}.{table}"]["error"]
        assert error["code"] == 2 and "reserved for Floodmark's own tables" in error["message"]
        assert error["hint"] == f"set tables.{name}.{table}.target in the configuration"
    assert [p.name for p in (workspace.folder / "lake" / "commits").iterdir()] == [f"{name}.codes"]
    workspace.write(tables={f"{name}.{table}": {"target": f"our_{table}"} for table in tables[1:]})
    assert workspace.sync(*tables[1:]).ok
    assert workspace.query("SELECT k, n FROM our_floodmark_keys_codes") == [("a", 1)]
    assert workspace.query("SELECT k, n FROM codes") == [("a", 0)]
