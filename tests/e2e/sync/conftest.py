"""What tests of syncs share."""

from __future__ import annotations

import secrets

import pytest

from tests.support.followed_orders import ROWS, Orders
from tests.support.orders import create_orders, fill_orders
from tests.support.redshift import RedshiftStandIn


@pytest.fixture(params=["duckdb", pytest.param("redshift", marks=pytest.mark.long)])
def orders(request: pytest.FixtureRequest) -> Orders:
    if request.param == "duckdb":
        made = Orders(request.getfixturevalue("workspace"), None)
    else:
        server: RedshiftStandIn = request.getfixturevalue("redshift")
        server.faults.clear()
        made = Orders(request.getfixturevalue("s3_workspace"), server)
        warehouse = {"url": server.url(), "schema": f"t_{secrets.token_hex(4)}", "iam_role": server.role}
        made.workspace.write(warehouse={**warehouse, "tls": {"mode": "disabled"}})
    made.workspace.write(defaults={"slice_rows": 500, "overlap_seconds": 0})
    made.execute(create_orders(), fill_orders(ROWS))
    return made
