"""`plan`: what the next sync would do, in the words of its reasons, without Spark and without a trace."""

from __future__ import annotations

import pytest

from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.conftest import Workspace
from tests.support.orders import create_orders, fill_orders

pytestmark = pytest.mark.source


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    """A thousand orders and slices of a hundred rows."""
    workspace.execute(create_orders(), fill_orders(1000))
    workspace.write(defaults={"slice_rows": 100})
    return workspace


def test_a_first_plan_shows_rows_files_strategy_and_reason(orders: Workspace) -> None:
    document = orders.run("plan", "-t", "orders", "--json").ok().json
    assert document["files"] >= document["window"]["slices"] > 1
    assert document["strategy"] == "intra-table"
    assert "of the table, so it is read along the key" in document["reason"]
    text = orders.run("plan", "-t", "orders").ok().stdout
    assert "Because   the window is at least" in text
    assert f"in {document['files']} files" in text


def test_the_reason_of_a_small_window_is_the_cursors_index(orders: Workspace) -> None:
    orders.synced("orders")
    orders.execute("UPDATE orders SET amount = amount + 1 WHERE id <= 21")
    document = orders.run("plan", "-t", "orders", "--json").ok().json
    assert document["window"]["rows"] == 3
    assert document["reason"] == "all rows fit into one slice (100)"


def test_an_idle_table_has_nothing_to_do_and_no_files(orders: Workspace) -> None:
    orders.synced("orders")
    document = orders.run("plan", "-t", "orders", "--json").ok().json
    assert document["nothing_to_do"] and document["files"] == 0
    assert document["reason"] == "there are no new rows"


def test_only_columns_subject_to_a_policy_are_marked(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, n INT, d DATE, big DECIMAL(65,2), h TIME, secret TEXT, "
        "update_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, KEY (update_at))"
    )
    workspace.write(defaults={"zero_dates": "null", "exclude": ["secret"]})
    document = workspace.run("plan", "-t", "t", "--json").ok().json
    assert {c["column"]: c["mark"] for c in document["columns"]} == {
        "id": None, "n": None, "d": "zero dates: null", "big": "as text: more than 38 digits",
        "h": "as text: up to 838 hours", "update_at": "zero dates: null",
    }  # fmt: skip
    assert document["excluded"] == ["secret"]


def test_a_plan_writes_nothing_to_the_store_and_creates_no_warehouse(orders: Workspace) -> None:
    orders.run("plan", "-t", "orders").ok()
    assert list(Store(orders.settings.store).list("")) == []
    assert not orders.warehouse.exists()


def test_a_sync_reports_its_lag_before_and_after(orders: Workspace) -> None:
    orders.synced("orders")
    orders.execute("UPDATE orders SET amount = 1, update_at = NOW() - INTERVAL 1 MINUTE WHERE id = 7")
    orders.execute("UPDATE orders SET amount = 1, update_at = update_at + INTERVAL 1 SECOND WHERE id = 8")
    table = orders.synced("orders")
    assert table["lag_before"]["seconds"] > 0
    assert table["lag_after"]["seconds"] == 0


def test_a_plan_shows_the_statements_that_a_load_would_run_first(orders: Workspace) -> None:
    document = orders.run("plan", "-t", "orders", "--json").ok().json
    assert [s.split("(")[0].split('"')[0] for s in document["ddl"]] == ["CREATE TABLE "]
    orders.synced("orders")
    assert orders.run("plan", "-t", "orders", "--json").ok().json["ddl"] == []
    orders.execute("ALTER TABLE orders ADD COLUMN colour VARCHAR(9)")
    (statement,) = orders.run("plan", "-t", "orders", "--json").ok().json["ddl"]
    assert "ADD COLUMN" in statement and "colour" in statement
    assert statement in orders.run("plan", "-t", "orders").ok().stdout


def test_a_plan_refuses_a_change_that_could_lose_values_and_shows_the_statement(orders: Workspace) -> None:
    orders.synced("orders")
    orders.execute("UPDATE orders SET note = NULL", "ALTER TABLE orders MODIFY note DATE")
    result = orders.run("plan", "-t", "orders")
    assert result.code == 6
    assert "column note" in result.stderr and "ALTER TABLE" in result.stderr
    assert "Columns" in result.stdout


def test_a_plan_counts_the_pending_files(orders: Workspace) -> None:
    orders.synced("orders", backup_only=True)
    document = orders.run("plan", "-t", "orders", "--json").ok().json
    assert document["pending"]["rows"] == 1000
    assert document["pending"]["files"] > 1


def test_an_unreachable_warehouse_does_not_hide_the_plan(
    orders: Workspace, seaweed: SeaweedFS, prefix: str
) -> None:
    away = {"url": "redshift://a:b@127.0.0.1:1/dev", "iam_role": "arn:aws:iam::1:role/r"}
    orders.write(store=seaweed.store(prefix), warehouse=away)
    result = orders.run("plan", "-t", "orders").ok()
    assert "Warehouse not reachable" in result.stdout
    assert "Columns" in result.stdout
