"""What users do with a table that follows the binary log, besides syncing it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.setup.services.databases import DatabaseServer
from floodmark.spark.context import Spark
from tests.conftest import BOTH, NO_MYSQL, SERVERS, Floodmark, Workspace, fresh_database, new_workspace
from tests.support.followed_log import LOGGED


@pytest.fixture(scope="module", params=BOTH)
def logged(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """A server that writes a binary log."""
    if request.param == "mysql" and NO_MYSQL:
        pytest.skip(NO_MYSQL)
    with SERVERS[request.param](args=LOGGED[request.param], buffer_pool="64M") as server:
        yield server


@pytest.fixture
def shop(
    logged: DatabaseServer, tmp_path: Path, floodmark: Floodmark, spark: Callable[[], Spark]
) -> Iterator[Workspace]:
    """Two tables without any cursor column, copied once."""
    with fresh_database(logged) as database:
        workspace = new_workspace(tmp_path, database, floodmark, spark, store={"url": "./lake"})
        workspace.write(defaults={"changes": "binlog"})
        workspace.execute(
            "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40), price DECIMAL(9,2))",
            "CREATE TABLE tags (name VARCHAR(20) PRIMARY KEY, n INT) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
            "INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)",
            "INSERT INTO tags VALUES ('abc', 1), ('def', 2)",
        )
        workspace.synced("orders")
        workspace.synced("tags")
        yield workspace


def change(shop: Workspace) -> None:
    """One row of each kind of difference, and a key that is spelled differently."""
    shop.execute(
        "INSERT INTO orders VALUES (4, 'd', 4)",
        "UPDATE orders SET price = 20 WHERE id = 2",
        "DELETE FROM orders WHERE id = 1",
        "UPDATE tags SET name = 'ABC', n = 10 WHERE name = 'abc'",
    )


def command(shop: Workspace, *arguments: str, code: int = 0) -> Any:
    """What a command prints as JSON."""
    done = shop.run("--json", *arguments)
    assert done.code == code, (done.stdout, done.stderr)
    return json.loads(done.stdout)


# ---------------------------------------------------------------- verify


def test_rows_that_have_changed_since_are_no_differences(shop: Workspace) -> None:
    change(shop)
    orders, tags = shop.verified("orders"), shop.verified("tags")
    assert (orders["ok"], orders["rows_changed"], orders["rows_source"]) == (True, 3, 1)
    assert (tags["ok"], tags["rows_changed"]) == (True, 1)


def test_keys_that_another_table_s_sync_has_found_count_as_changed_too(shop: Workspace) -> None:
    change(shop)
    shop.synced("tags")
    orders = shop.verified("orders")
    assert (orders["ok"], orders["rows_changed"]) == (True, 3)


def test_a_row_that_differs_without_a_change_is_still_reported_and_repaired(shop: Workspace) -> None:
    shop.execute("SET sql_log_bin = 0; UPDATE orders SET note = 'unlogged' WHERE id = 3")
    change(shop)
    found = shop.verified("orders")
    assert (found["ok"], found["different"], found["missing"], found["extra"]) == (False, 1, 0, 0)
    repaired = shop.verified("orders", repair=True)
    assert (repaired["ok"], repaired["repaired"]) == (True, 1)
    shop.synced("orders")
    assert shop.compare("orders").equal
