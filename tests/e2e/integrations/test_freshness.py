"""`warehouse.freshness` in whole runs: every sync advances it, also one that finds nothing; off unless it is wanted."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import duckdb

from tests.conftest import Workspace
from tests.support.orders import NOTE, create_orders, fill_orders


def noted(workspace: Workspace) -> tuple[Any, ...]:
    (row,) = workspace.query("SELECT target, as_of, commit_n FROM floodmark_freshness")
    return row


def test_syncs_advance_the_freshness_of_a_target_and_dbt_gets_a_file(workspace: Workspace) -> None:
    workspace.execute(create_orders(NOTE), fill_orders(20, "seq MINUTE", note="'n'"))
    workspace.synced("orders")
    assert workspace.query("SELECT 1 FROM duckdb_tables() WHERE table_name = 'floodmark_freshness'") == []

    workspace.write(warehouse={"freshness": True})
    workspace.synced("orders")  # finds nothing
    target, first, _ = noted(workspace)
    assert target == "orders" and isinstance(first, datetime)
    workspace.synced("orders", backup_only=True)
    assert noted(workspace)[1] == first  # loads nothing, says nothing
    workspace.synced("orders")
    assert noted(workspace)[1] > first

    printed = workspace.run("dbt", "sources").ok().stdout
    assert "loaded_at_query: select max(as_of)" in printed and "name: orders" in printed
    done = workspace.run("dbt", "sources", "-o", "sources.yml", "--json").ok()
    assert done.json["file"] == "sources.yml" and (workspace.folder / "sources.yml").read_text() == printed


def test_a_warehouse_that_can_not_be_updated_fails_no_sync(workspace: Workspace) -> None:
    workspace.execute(create_orders(NOTE), fill_orders(20, "seq MINUTE", note="'n'"))
    workspace.write(warehouse={"freshness": True})
    workspace.synced("orders")
    with duckdb.connect(str(workspace.warehouse)) as link:
        link.execute("DROP TABLE floodmark_freshness")
        link.execute("CREATE VIEW floodmark_freshness AS SELECT 1 AS target")
    workspace.synced("orders")
