"""Strategies, limits and slices: however a table is cut, the same rows arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floodmark.model.origin import SourceId, Sources, exchanged
from floodmark.sync import deletes
from tests.conftest import Workspace
from tests.support.orders import create_orders, fill_orders


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(), fill_orders(3000))
    return workspace


@pytest.mark.parametrize(
    "strategy",
    ["auto", "sequential", pytest.param("inter-table", marks=pytest.mark.long), "intra-table"],
)
def test_limit_50_and_3_chunks_are_exactly_150_rows_in_position_order(
    orders: Workspace, strategy: str
) -> None:
    table = orders.synced("orders", strategy=strategy, limit=50, max_chunks=3)
    assert (table["rows_extracted"], table["rows_loaded"]) == (150, 150)
    expected = orders.execute("SELECT id FROM orders ORDER BY update_at, id LIMIT 150")
    assert orders.query("SELECT id FROM orders ORDER BY update_at, id") == expected
    # The next run continues after them.
    assert orders.synced("orders", strategy=strategy, limit=50)["rows_extracted"] == 50
    assert orders.query("SELECT count(*), count(DISTINCT id) FROM orders") == [(200, 200)]


def test_a_limit_holds_for_both_attempts_if_something_else_was_read_in_the_first(
    orders: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, checked = Sources.check, list[str]()

    def changed_once(self: Sources, table: str, found: SourceId) -> None:
        checked.append(table)
        if len(checked) == 2:
            raise exchanged()
        check(self, table, found)

    with monkeypatch.context() as patch:
        patch.setattr(Sources, "check", changed_once)
        table = orders.synced("orders", strategy="sequential", limit=50, max_chunks=3)
    assert len(checked) > 2 and table["rows_extracted"] == 150

    orders.write(tables={"orders": {"deletes": "hard"}})
    look, looks = deletes.look, list[int]()

    def after_a_change(*args: Any) -> deletes.Swept | None:
        looks.append(1)
        if len(looks) == 1:
            raise exchanged()
        return look(*args)

    monkeypatch.setattr(deletes, "look", after_a_change)
    table = orders.synced("orders", since="2020-01-01", limit=20)
    assert (len(looks), table["rows_extracted"], table["rows_reread"]) == (2, 0, 20)
    looks.clear()
    assert orders.synced("orders", limit=30)["rows_extracted"] == 30 and len(looks) == 2


@pytest.mark.parametrize("rows", [3000, pytest.param(1500, marks=pytest.mark.long), 430, 190])
def test_1_2_7_and_16_slices_give_identical_content(orders: Workspace, rows: int) -> None:
    orders.write(defaults={"slice_rows": rows})
    table = orders.synced("orders", strategy="intra-table")
    assert table["rows_extracted"] == 3000
    assert orders.compare("orders").equal


@pytest.mark.parametrize("strategy", ["sequential", "intra-table"])
def test_an_increment_is_read_once_and_merged(orders: Workspace, strategy: str) -> None:
    orders.write(defaults={"slice_rows": 500})
    orders.synced("orders", strategy=strategy)
    orders.execute(
        "UPDATE orders SET note = 'changed' WHERE id % 5 = 0", "INSERT INTO orders (amount) VALUES (1), (2)"
    )
    table = orders.synced("orders", strategy=strategy)
    assert table["rows_extracted"] == 602
    assert orders.compare("orders").equal


def test_the_watermark_moves_with_each_commit_of_a_sequential_run(orders: Workspace) -> None:
    table = orders.synced("orders", strategy="sequential", limit=100, max_chunks=4)
    assert len(table["commits"]) == 4
    assert table["watermark"]["last_mysql_data_id"] == [400 * 7]
    assert table["watermark"]["mysql_rows_extracted"] == 400


def test_a_sync_with_nothing_to_do_claims_nothing_and_writes_only_its_status(orders: Workspace) -> None:
    orders.synced("orders")

    def seen() -> list[tuple[Path, int]]:
        return sorted((p, p.stat().st_mtime_ns) for p in (orders.folder / "lake").rglob("*") if p.is_file())

    before = seen()
    table = orders.synced("orders")
    assert (table["rows_extracted"], table["commits"], table["rows_loaded"]) == (0, [], 0)
    changed = [path for path, _ in {*seen()} ^ {*before}]
    assert {path.parent.relative_to(orders.folder / "lake").as_posix() for path in changed} == {
        "status/tables"
    }


def test_since_rereads_a_range_and_the_watermark_does_not_move(orders: Workspace) -> None:
    before = orders.synced("orders")["watermark"]
    orders.execute("UPDATE orders SET note = 'silent', update_at = update_at WHERE id = 3500")
    table = orders.synced("orders", since="2025-03-01 00:00:00", until="2025-03-01 00:00:02")
    in_stretch = "update_at > '2025-03-01 00:00:00' AND update_at <= '2025-03-01 00:00:02'"
    assert table["rows_reread"] == orders.execute(f"SELECT COUNT(*) FROM orders WHERE {in_stretch}")[0][0]
    assert table["watermark"]["last_mysql_data_id"] == before["last_mysql_data_id"]
    assert orders.query("SELECT note FROM orders WHERE id = 3500") == orders.execute(
        "SELECT note FROM orders WHERE id = 3500"
    )


def test_several_tables_at_once_each_arrive_whole(orders: Workspace) -> None:
    for n in range(3):
        orders.execute(
            f"CREATE TABLE extra{n} LIKE orders",
            f"INSERT INTO extra{n} SELECT * FROM orders WHERE id % 3 = {n}",
        )
    report = orders.sync()
    assert report.ok and {t.table.partition(".")[2] for t in report.tables} == {
        "orders",
        "extra0",
        "extra1",
        "extra2",
    }
    for name in ("orders", "extra0", "extra1", "extra2"):
        assert orders.compare(name).equal


def test_where_and_exclude_shape_what_arrives(orders: Workspace) -> None:
    name = orders.full_name("orders")
    orders.write(
        tables={name: {"where": "amount < 10 -- cheap ones", "exclude": ["note"], "target": "cheap"}}
    )
    assert orders.synced("orders")["rows_extracted"] == 999
    assert orders.query("SELECT count(*), max(amount) < 10 FROM cheap") == [(999, True)]
    columns = orders.query(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'cheap' ORDER BY 1"
    )
    assert columns == [("amount",), ("id",), ("update_at",)]
