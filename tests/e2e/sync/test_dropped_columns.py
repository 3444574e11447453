"""Columns that a source no longer gives: their values stay in the target, whatever is read again, and nobody is surprised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pytest

from floodmark.commit.log import Log
from floodmark.model.run import SyncOptions, new_run
from floodmark.services.store.store import Store
from floodmark.sync.run import sync
from tests.conftest import Result, Silent, Workspace
from tests.support.followed_orders import BOTH, Orders, notes

pytestmark = pytest.mark.source

MANY = 1000
# More columns than a claim keeps checksums of, so that nothing proves that no other column has taken the name.
TEXTS = ", ".join(f"t{i} VARCHAR(20)" for i in range(6))


def customers(orders: Orders) -> None:
    """A thousand rows with a phone each."""
    orders.execute(
        "DROP TABLE orders",
        f"CREATE TABLE orders (id INT PRIMARY KEY, {TEXTS}, phone VARCHAR(20), update_at DATETIME(6) NOT NULL"
        " DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (update_at))",
        "INSERT INTO orders (id, t1, phone, update_at) SELECT seq, CONCAT('t', seq), CONCAT('+', seq), "
        f"'2025-03-01' + INTERVAL seq SECOND FROM seq_1_to_{MANY}",
    )
    orders.sync()


def phones(orders: Orders) -> list[tuple[Any, ...]]:
    """The rows that don't have their phone."""
    return orders.ask("id, phone", "phone IS NULL OR phone <> CONCAT('+', CAST(id AS VARCHAR(9)))")


def goes_on(orders: Orders) -> None:
    """Rows that change keep their phone, new ones have none, and `verify` finds nothing."""
    orders.execute(
        "UPDATE orders SET t1 = 'new' WHERE id % 10 = 0", "INSERT INTO orders (id) VALUES (5001), (5002)"
    )
    orders.sync()
    assert phones(orders) == [(5001, None), (5002, None)]
    assert orders.ask("count(*)", "t1 = 'new'") == [(MANY // 10,)]
    assert orders.workspace.verified("orders")["findings"] == []


@BOTH
def test_a_dropped_column_keeps_its_history_even_if_all_rows_are_read_again(orders: Orders) -> None:
    customers(orders)
    orders.execute("ALTER TABLE orders DROP COLUMN phone")
    report = orders.sync()
    assert report["rows_reread"] == MANY
    assert (
        "phone is gone from the source: orders keeps the column and its values; new rows get NULL in it"
        in notes(report)
    )
    assert phones(orders) == []
    goes_on(orders)


@BOTH
def test_a_column_that_is_excluded_later_keeps_its_history_and_is_not_said_to_be_gone(orders: Orders) -> None:
    customers(orders)
    orders.workspace.write(tables={"orders": {"exclude": ["phone"]}})
    report = orders.sync()
    assert "phone is excluded now: orders keeps the column and its values" in notes(report)
    assert "gone" not in notes(report) and report["rows_reread"] <= 1
    goes_on(orders)


def test_columns_that_are_renamed_and_reordered_keep_what_the_old_ones_held(orders: Orders) -> None:
    customers(orders)
    orders.execute("ALTER TABLE orders CHANGE phone mobile VARCHAR(20) FIRST, MODIFY t5 VARCHAR(20) AFTER id")
    assert orders.sync()["rows_reread"] == MANY
    assert phones(orders) == [] and orders.ask("count(*)", "mobile = phone") == [(MANY,)]
    goes_on(orders)
    orders.workspace.write(tables={"orders": {"renames": {"mobile": "cell"}}})
    orders.execute("ALTER TABLE orders RENAME COLUMN mobile TO cell")
    assert orders.sync()["rows_reread"] <= 2 and "mobile" not in orders.columns()
    assert orders.ask("count(*)", "cell = phone") == [(MANY,)]


def test_a_reread_that_nobody_asked_for_says_before_it_begins_why_and_how_many_rows(orders: Orders) -> None:
    customers(orders)
    orders.execute("ALTER TABLE orders DROP COLUMN phone")
    said = (
        "columns may have taken each other's names: about 1,000 rows are read again, once, and merged into orders by key. "
        "Columns of the target that the source does not have keep their values."
    )
    planned = orders.plan()
    assert said in planned["notes"] and planned["read_again"] == [{"kind": "columns", "rows": MANY}]
    assert said in orders.sync(dry_run=True)["notes"]
    config, name = orders.workspace.settings, orders.workspace.full_name("orders")
    log, heard = Log(Store(config.store), name), []

    class Listens(Silent):
        def note(self, table: str, text: str) -> None:
            heard.append((table, text, log.read().n))

    before = log.read().n
    done = sync(config, [name], False, SyncOptions(), Listens(), new_run(), spark=orders.workspace.spark())
    assert done.ok and done.tables[0].rows_reread == MANY
    # Without the table's name a note is printed at once, not with the result; and nothing was claimed yet.
    assert ("", f"{name}: {said}", before) in heard


def test_nothing_is_written_before_somebody_has_agreed_to_a_change(
    workspace: Workspace, command: Callable[..., Result]
) -> None:
    workspace.write(defaults={"schema_changes": "ask", "overlap_seconds": 0})
    workspace.execute(
        "CREATE TABLE asked (id INT PRIMARY KEY, a VARCHAR(9), phone VARCHAR(9), at DATETIME(6) NOT NULL"
        " DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (at))",
        "INSERT INTO asked (id, a, phone) SELECT seq, -seq, seq FROM seq_1_to_50",
    )
    workspace.synced("asked")
    name = workspace.full_name("asked")
    log = Log(Store(workspace.settings.store), name)
    before = log.read().n
    workspace.execute(
        "ALTER TABLE asked DROP phone, ADD b INT DEFAULT 7", "INSERT INTO asked (id) VALUES (99)"
    )
    planned = workspace.run("plan", "-t", "asked")
    assert planned.code == 6 and "b is new: earlier rows get 7 in it" in planned.stdout
    (refused,) = workspace.sync("asked").as_json()["tables"]
    assert refused["exit_code"] == 6
    assert "b was added (int" in refused["error"]["message"]
    assert refused["error"]["message"].endswith("; phone was dropped (varchar(9))")
    assert refused["error"]["hint"].endswith(f"to go on: floodmark sync -t {name} --force")
    with duckdb.connect(str(workspace.warehouse)) as link:
        link.execute("UPDATE asked SET a = 'wrong' WHERE id = 3")
    repaired = command(workspace, "verify", "-t", "asked", "--repair")
    assert repaired.code == 6 and "phone was dropped" in repaired.stderr
    assert log.read().n == before
    assert workspace.query("SELECT count(*) FROM asked") == [(50,)]
    workspace.synced("asked", force=True)
    assert command(workspace, "verify", "-t", "asked", "--repair").code == 0
    assert workspace.query("SELECT phone, b FROM asked WHERE id IN (7, 99) ORDER BY id") == [
        ("7", 7),
        (None, 7),
    ]
    workspace.execute("INSERT INTO asked (id) VALUES (100)")
    assert workspace.synced("asked")["rows_extracted"] == 1
    assert workspace.synced("asked")["commits"] == []
    workspace.write(tables={"asked": {"where": "id <> 3"}})
    (refused,) = workspace.sync("asked").as_json()["tables"]
    assert refused["exit_code"] == 6 and "`where` has changed" in refused["error"]["message"]
    workspace.write(tables={"asked": {"schema_changes": "follow"}})
    workspace.synced("asked")
