"""Changes and deletes from the binary log into Redshift's stand-in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from floodmark.setup.services.compare import compare
from floodmark.setup.services.databases import DatabaseServer
from tests.conftest import Database, Workspace, fresh_database
from tests.support.redshift import RedshiftStandIn


@pytest.fixture
def database(logged: DatabaseServer) -> Iterator[Database]:
    with fresh_database(logged) as made:
        yield made


def test_changes_deletes_and_key_changes_arrive_in_redshift(
    redshift_workspace: Workspace, redshift: RedshiftStandIn
) -> None:
    shop = redshift_workspace
    target = shop.config["warehouse"]["schema"]

    def equal(table: str, key: str) -> bool:
        return compare(shop.database.server, shop.full_name(table), redshift, f"{target}.{table}", key).equal

    shop.write(defaults={"changes": "binlog"})
    shop.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40), price DECIMAL(9,2))",
        "CREATE TABLE tags (name VARCHAR(20) PRIMARY KEY, n INT) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)",
        "INSERT INTO tags VALUES ('abc', 1), ('def', 2)",
    )
    assert shop.sync("orders", "tags").ok
    shop.execute(
        "INSERT INTO orders VALUES (4, 'd', 4)",
        "UPDATE orders SET price = 20 WHERE id = 2",
        "UPDATE orders SET id = 30 WHERE id = 3",
        "DELETE FROM orders WHERE id = 1",
        "UPDATE tags SET name = 'ABC' WHERE name = 'abc'",
        "DELETE FROM tags WHERE name = 'def'",
    )
    assert [shop.verified(table)["rows_changed"] for table in ("orders", "tags")] == [5, 2]
    report = shop.sync("orders", "tags", verify_data=True)
    assert report.ok, report
    assert equal("orders", "id") and equal("tags", "n")
    assert not any(one.commits for one in shop.sync("orders", "tags").tables)
    shop.execute("TRUNCATE TABLE orders", "INSERT INTO orders VALUES (30, 'c', 3), (31, 'new', 1)")
    assert shop.sync("orders").ok
    assert equal("orders", "id")
