"""One table from its first sync to its repair, on both servers; and what only MySQL's tables have."""

from __future__ import annotations

import duckdb
import pytest

from tests.conftest import Workspace
from tests.support.orders import create_orders, fill_orders
from tests.support.table_shapes import same

COLUMNS = "code VARCHAR(20) NOT NULL, amount DECIMAL(12,2), ratio DOUBLE, body TEXT, paid BIT(1), day DATE"
ROWS = fill_orders(
    500,
    "seq SECOND",
    code="CONCAT('c', seq)",
    amount="seq / 4",
    ratio="seq / 7e0",
    body="REPEAT('ü', seq % 50)",
    paid="seq % 2",
    day="'2025-01-01' + INTERVAL seq DAY",
)
PRINTED = "id, code, amount, body, day, update_at"


@pytest.mark.both_servers
def test_a_table_is_synced_changed_damaged_found_and_repaired(workspace: Workspace) -> None:
    workspace.write(tables={"orders": {"deletes": "hard", "deletes_every": "0s"}})
    workspace.execute(create_orders(COLUMNS, "DATETIME(6)"), ROWS)
    workspace.synced("orders")
    assert same(workspace, "orders", PRINTED)
    workspace.execute(
        "INSERT INTO orders (code, amount) VALUES ('new', 1), ('newer', NULL)",
        "UPDATE orders SET amount = -amount, body = NULL WHERE id % 50 = 0",
        "UPDATE orders SET id = 9000 WHERE id = 7",
        "DELETE FROM orders WHERE id BETWEEN 20 AND 25",
    )
    workspace.synced("orders")
    assert same(workspace, "orders", PRINTED)
    assert workspace.verified("orders")["ok"]
    with duckdb.connect(str(workspace.warehouse)) as link:
        link.execute("UPDATE orders SET ratio = nextafter(ratio, 1e9) WHERE id = 100")
        link.execute("DELETE FROM orders WHERE id = 101")
        link.execute("INSERT INTO orders SELECT * REPLACE (77777 AS id) FROM orders WHERE id = 102")
    assert not workspace.verified("orders")["ok"]
    assert workspace.verified("orders", repair=True)["ok"]
    assert workspace.verified("orders")["ok"]
    assert same(workspace, "orders", PRINTED)


@pytest.mark.mysql_only
def test_an_invisible_primary_key_is_the_key(workspace: Workspace) -> None:
    workspace.execute(
        "SET sql_generate_invisible_primary_key = ON",
        "CREATE TABLE t (n INT, update_at DATETIME NOT NULL DEFAULT '2025-03-01')",
        "INSERT INTO t (n) VALUES (1), (1), (2)",
    )
    workspace.synced("t")
    workspace.execute("UPDATE t SET n = 9, update_at = '2025-03-02' WHERE my_row_id = 2")
    assert workspace.synced("t")["rows_extracted"] == 1
    assert same(workspace, "t", "my_row_id, n")


@pytest.mark.mysql_only
def test_default_expressions_and_functional_indexes_do_no_harm(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, u CHAR(36) DEFAULT (UUID()), j JSON DEFAULT (JSON_ARRAY(1)), s VARCHAR(20),"
        " v INT AS (id * 2) VIRTUAL, hidden INT INVISIBLE DEFAULT 7, update_at DATETIME NOT NULL DEFAULT '2025-03-01',"
        " KEY ((LOWER(s))), UNIQUE KEY ((id + 1)), KEY ((YEAR(update_at)), update_at))",
        "INSERT INTO t (id, s) VALUES (1, 'A'), (2, NULL)",
    )
    workspace.synced("t")
    workspace.execute("UPDATE t SET s = 'b', update_at = '2025-03-02' WHERE id = 1")
    assert workspace.synced("t")["rows_extracted"] == 1
    assert same(workspace, "t", "id, u, j, s, v, hidden")


@pytest.mark.mysql_only
def test_columns_added_and_dropped_instantly_are_followed(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, gone INT, update_at DATETIME NOT NULL DEFAULT '2025-03-01')",
        "INSERT INTO t (id) VALUES (1), (2)",
    )
    workspace.synced("t")
    workspace.execute(
        "ALTER TABLE t ADD COLUMN first_of_all INT NOT NULL DEFAULT 5 AFTER id, ALGORITHM=INSTANT",
        "ALTER TABLE t DROP COLUMN gone, ALGORITHM=INSTANT",
        "INSERT INTO t (id, first_of_all, update_at) VALUES (3, 6, '2025-03-02')",
    )
    workspace.synced("t")
    assert same(workspace, "t", "id, first_of_all")


@pytest.mark.mysql_only
def test_keys_without_padding_that_differ_in_trailing_spaces_stay_distinct(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY, n INT, update_at DATETIME NOT NULL)",
        "INSERT INTO t VALUES ('a', 1, '2025-03-01'), ('a ', 2, '2025-03-01'), ('é', 3, '2025-03-01')",
    )
    workspace.synced("t")
    workspace.execute(
        "UPDATE t SET n = 20, update_at = '2025-03-02' WHERE n = 2",
        "UPDATE t SET k = 'E', update_at = '2025-03-02' WHERE n = 3",
    )
    workspace.synced("t")
    assert same(workspace, "t", "hex(k), n")
