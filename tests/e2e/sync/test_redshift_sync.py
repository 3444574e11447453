"""From MySQL into Redshift's stand-in, by the whole pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from floodmark.setup.services.compare import compare
from tests.conftest import Workspace
from tests.support.orders import create_orders, fill_orders
from tests.support.redshift import RedshiftStandIn


@pytest.fixture
def orders(redshift_workspace: Workspace) -> Workspace:
    redshift_workspace.execute(create_orders(), fill_orders(2000))
    redshift_workspace.write(defaults={"dist_key": "id", "sort_key": ["update_at"], "slice_rows": 500})
    return redshift_workspace


def schema(workspace: Workspace) -> str:
    return str(workspace.config["warehouse"]["schema"])


def equal(workspace: Workspace, redshift: RedshiftStandIn) -> bool:
    name = workspace.full_name("orders")
    return compare(workspace.database.server, name, redshift, f"{schema(workspace)}.orders").equal


def loaded(report: dict[str, Any]) -> tuple[int, str]:
    return report["rows_loaded"], report["watermark"]["redshift_status"]


def test_rows_changes_and_a_new_column_arrive(orders: Workspace, redshift: RedshiftStandIn) -> None:
    assert loaded(orders.synced("orders")) == (2000, "success")
    assert equal(orders, redshift)
    orders.execute(
        "UPDATE orders SET note = 'changed' WHERE id % 5 = 0",
        "ALTER TABLE orders ADD COLUMN extra VARCHAR(255), MODIFY note VARCHAR(200)",
        "INSERT INTO orders (amount, note, extra) VALUES (1, REPEAT('😀', 200), REPEAT('😀', 255))",
    )
    orders.synced("orders")
    assert equal(orders, redshift)
    assert orders.synced("orders")["rows_loaded"] == 0


def test_the_next_run_makes_up_for_a_failed_load(orders: Workspace, redshift: RedshiftStandIn) -> None:
    redshift.faults.fail(r"\s*copy\b", "42501", "permission denied", times=1)
    report = orders.sync("orders").as_json()["tables"][0]
    assert (report["exit_code"], report["rows_extracted"]) == (2, 2000)
    assert report["watermark"]["redshift_status"] == "failed"
    assert orders.synced("orders", load_only=True)["rows_loaded"] == 2000
    assert equal(orders, redshift)


def test_deletes_leave_redshift_or_are_marked_there_and_a_reload_brings_nothing_back(
    orders: Workspace, redshift: RedshiftStandIn
) -> None:
    def ids(where: str) -> list[int]:
        found = redshift.execute(f"SELECT id FROM {schema(orders)}.orders WHERE {where} ORDER BY id")
        return [row[0] for row in found]

    orders.write(tables={"orders": {"deletes": "hard", "deletes_every": "0s"}})
    orders.synced("orders")
    orders.execute("DELETE FROM orders WHERE id % 100 = 0")
    assert orders.synced("orders")["rows_deleted"] == 20
    assert equal(orders, redshift)
    orders.write(tables={"orders": {"deletes": "soft", "deletes_every": "0s"}})
    orders.execute("DELETE FROM orders WHERE id IN (7, 14, 21)")
    assert orders.synced("orders")["rows_deleted"] == 3
    orders.execute("INSERT INTO orders (id, amount) VALUES (14, 1)")
    assert orders.synced("orders")["rows_deleted"] == 0
    assert ids("_deleted_at IS NOT NULL") == [7, 21] and len(ids("1 = 1")) == 1980
    before = ids("_deleted_at IS NULL")
    orders.run("watermark", "reset", "-t", "orders", "--redshift-only").ok()
    orders.synced("orders", load_only=True)
    assert ids("_deleted_at IS NULL") == before and ids("_deleted_at IS NOT NULL") == [7, 21]
