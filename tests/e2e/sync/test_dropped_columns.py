"""Columns that a source no longer gives: their values stay in the target, whatever is read again, and nobody is surprised."""

from __future__ import annotations

from typing import Any

import pytest

from floodmark.log.log import Log
from floodmark.model.events import Event, Noted
from floodmark.model.run import SyncOptions, new_run
from floodmark.store.store import Store
from floodmark.sync.run import sync
from tests.conftest import Silent
from tests.support.followed_orders import Orders, notes

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


def test_a_column_that_is_excluded_later_keeps_its_history_and_is_not_said_to_be_gone(orders: Orders) -> None:
    customers(orders)
    orders.workspace.write(tables={"orders": {"exclude": ["phone"]}})
    report = orders.sync()
    assert "phone is excluded now: orders keeps the column and its values" in notes(report)
    assert "gone" not in notes(report) and report["rows_reread"] <= 1
    goes_on(orders)


@pytest.mark.parametrize(
    ("change", "taker"),
    [
        ("DROP COLUMN phone", None),
        ("DROP COLUMN fax, RENAME COLUMN phone TO fax", "fax"),
        ("RENAME COLUMN phone TO mobile", "mobile"),
    ],
)
def test_an_excluded_column_that_is_gone_stops_nothing_unless_another_may_be_it_now(
    orders: Orders, change: str, taker: str | None
) -> None:
    orders.execute(
        "DROP TABLE orders",
        "CREATE TABLE orders (id INT PRIMARY KEY, phone VARCHAR(20), fax VARCHAR(20), update_at DATETIME(6) NOT NULL"
        " DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (update_at))",
        "INSERT INTO orders SELECT seq, CONCAT('p', seq), CONCAT('f', seq), '2025-03-01' + INTERVAL seq SECOND "
        "FROM seq_1_to_50",
    )
    orders.workspace.write(tables={"orders": {"exclude": ["phone"]}})
    orders.sync()
    orders.execute(f"ALTER TABLE orders {change}", "INSERT INTO orders (id) VALUES (51)")
    if taker is None:
        for _ in range(2):
            assert "`exclude` has phone" in notes(orders.sync())
    else:
        refused = orders.refused()
        assert refused["exit_code"] == 2 and f"or it is {taker} now" in refused["error"]["message"]
        assert "exclude its new name" in refused["error"]["hint"]
        orders.workspace.write(tables={"orders": {"exclude": [taker]}})
        orders.sync()
    assert orders.ask("count(*)", "fax LIKE 'f%'") == [(50,)] and "mobile" not in orders.columns()


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
        def __call__(self, event: Event) -> None:
            if isinstance(event, Noted):
                heard.append((event.table, event.text, log.read().n))

    before = log.read().n
    done = sync(config, [name], False, SyncOptions(), Listens(), new_run(), spark=orders.workspace.spark())
    assert done.ok and done.tables[0].rows_reread == MANY
    # Without the table's name a note is printed at once, not with the result; and nothing was claimed yet.
    assert ("", f"{name}: {said}", before) in heard
