"""What tests of syncs share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from floodmark.setup.services.databases import DatabaseServer
from floodmark.spark.context import Spark
from tests.conftest import Floodmark, Workspace, fresh_database, new_workspace
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


@pytest.fixture
def shop(
    logged: DatabaseServer, tmp_path: Path, floodmark: Floodmark, spark: Callable[[], Spark]
) -> Iterator[Workspace]:
    """Two tables without any cursor column that follow the binary log, copied once."""
    with fresh_database(logged) as database:
        workspace = new_workspace(tmp_path, database, floodmark, spark, store={"url": "./lake"})
        workspace.write(defaults={"changes": "binlog"})
        workspace.execute(
            "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40), price DECIMAL(9,2))",
            "CREATE TABLE tags (name VARCHAR(20) PRIMARY KEY, n INT) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
            "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)",
            "INSERT INTO tags VALUES ('abc', 1), ('def', 2)",
        )
        for table in ("orders", "tags"):
            workspace.synced(table)
        yield workspace
