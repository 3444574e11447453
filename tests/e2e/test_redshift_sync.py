"""From MySQL into Redshift's stand-in, by the whole pipeline."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

from floodmark.testing.compare import compare
from floodmark.testing.redshift import RedshiftStandIn
from tests.conftest import Workspace
from tests.stage import FILL, ORDERS


@pytest.fixture
def orders(s3_workspace: Workspace, redshift: RedshiftStandIn) -> Workspace:
    """A workspace whose warehouse is a schema of its own in the stand-in."""
    redshift.faults.clear()
    s3_workspace.execute(ORDERS, FILL.format(n=2000))
    warehouse = {
        "url": redshift.url(),
        "schema": f"t_{secrets.token_hex(4)}",
        "iam_role": redshift.role,
        "tls": {"mode": "disabled"},
    }
    s3_workspace.write(
        warehouse=warehouse,
        defaults={"dist_key": "id", "sort_key": ["update_at"], "slice_rows": 500},
    )
    return s3_workspace


def schema(workspace: Workspace) -> str:
    return str(workspace.config["warehouse"]["schema"])


def equal(workspace: Workspace, redshift: RedshiftStandIn) -> bool:
    name = f"{workspace.database.name}.orders"
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


def test_a_load_that_failed_is_made_up_for_by_the_next_run(
    orders: Workspace, redshift: RedshiftStandIn
) -> None:
    redshift.faults.fail(r"\s*copy\b", "42501", "permission denied", times=1)
    report = orders.sync("orders").as_json()["tables"][0]
    assert (report["exit_code"], report["rows_extracted"]) == (2, 2000)
    assert report["watermark"]["redshift_status"] == "failed"
    assert orders.synced("orders", load_only=True)["rows_loaded"] == 2000
    assert equal(orders, redshift)


def test_text_that_redshift_can_not_hold_is_refused_with_key_and_column(orders: Workspace) -> None:
    orders.execute(
        "ALTER TABLE orders ADD COLUMN body MEDIUMTEXT",
        "UPDATE orders SET body = REPEAT('x', 65536) WHERE id = 70",
    )
    report = orders.sync("orders").as_json()["tables"][0]
    assert report["exit_code"] == 6
    assert "body" in report["error"]["message"] and "70" in report["error"]["message"]
