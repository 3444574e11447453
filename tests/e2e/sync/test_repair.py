"""`verify --repair`: what differs is read again, what is extra is deleted, and then both sides agree."""

from __future__ import annotations

import os
import signal
from typing import Any

import duckdb
import pytest

from floodmark.model.errors import ConfigError, DataError
from floodmark.model.run import SyncOptions, new_run
from floodmark.services import Services
from floodmark.sync.table import Repaired, repair_table
from floodmark.sync.work import Work
from floodmark.watermark.validate import watermark_validate
from tests.conftest import Silent, Workspace
from tests.support.held_sync import commits, until
from tests.support.orders import NOTE, create_orders, fill_orders

ORDERS = create_orders(f"{NOTE}, price DOUBLE", "TIMESTAMP(6)")
FILL = fill_orders(
    3000, "(seq DIV 40) SECOND", id="seq * 3", note="IF(seq % 9, CONCAT('n', seq), '')", price="seq / 7"
)


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(ORDERS, FILL)
    workspace.synced("orders")
    return workspace


def repair(workspace: Workspace, table: str = "orders", **options: Any) -> Repaired:
    config = workspace.settings
    with Services(config, Silent(), new_run(), workspace.spark()) as services:
        work = Work(services, SyncOptions(**options))
        return repair_table(work.table(workspace.full_name(table)))


def plant(workspace: Workspace, *statements: str) -> None:
    with duckdb.connect(str(workspace.warehouse)) as connection:
        for statement in statements:
            connection.execute(statement)


def planted(workspace: Workspace) -> None:
    """Seven rows that are not as they should be."""
    plant(
        workspace,
        "DELETE FROM orders WHERE id IN (300, 303)",
        "INSERT INTO orders SELECT id + 1, note, price, update_at FROM orders WHERE id IN (600, 603)",
        "UPDATE orders SET note = NULL WHERE id = 27",
        "UPDATE orders SET price = nextafter(price, 1e9) WHERE id = 900",
        "UPDATE orders SET update_at = update_at + INTERVAL 1 MICROSECOND WHERE id = 903",
    )


def same(workspace: Workspace, table: str = "orders", columns: str = "id, note, price, {}") -> bool:
    """Whether both sides have the same rows, independently of the pipeline."""
    ours = columns.format("CAST(UNIX_TIMESTAMP(update_at) * 1000000 AS SIGNED)")
    mysql = workspace.execute(f"SELECT {ours} FROM {table}")
    stored = workspace.query(f"SELECT {columns.format('epoch_us(update_at)')} FROM {table}")
    return sorted(map(repr, mysql)) == sorted(map(repr, stored))


def no_findings(workspace: Workspace, *but: str) -> None:
    found = watermark_validate(workspace.settings, run="20250101_000000_test")
    assert [f for t in found["tables"] for f in t["findings"] if f["kind"] not in but] == []


def test_planted_differences_are_repaired_and_nothing_else_is_touched(orders: Workspace) -> None:
    before = commits(orders)
    planted(orders)
    done = repair(orders)
    assert (len(done.before.missing), len(done.before.extra), len(done.before.different)) == (2, 2, 3)
    assert not done.after and done.rows == 7
    assert same(orders)
    new = commits(orders)[len(before) :]
    assert [(c["kind"], c["load_as"]) for c in new[1:]] == [("deletes", "delete"), ("batch", "merge")]
    assert (new[0]["kind"], new[0]["purpose"], new[2]["window_id"]) == ("claim", "repair", None)
    assert sum(f["rows"] for f in new[2]["files"]) == 5, "only those rows were read again"
    again = orders.synced("orders")
    assert (again["rows_extracted"], again["commits"]) == (0, []), "no position has moved"
    no_findings(orders)


def test_a_repair_that_finds_nothing_claims_and_writes_nothing(orders: Workspace) -> None:
    before = commits(orders)
    assert repair(orders).rows == 0
    assert commits(orders) == before


def test_extra_rows_are_marked_where_deletes_are_soft(orders: Workspace) -> None:
    orders.write(tables={"orders": {"deletes": "soft"}})
    planted(orders)
    done = repair(orders)
    assert not done.after and done.report.rows_deleted == 2
    assert orders.query("SELECT id FROM orders WHERE _deleted_at IS NOT NULL ORDER BY id") == [(601,), (604,)]


def test_a_duplicate_row_is_reduced_to_one(orders: Workspace) -> None:
    plant(orders, "INSERT INTO orders SELECT * FROM orders WHERE id = 300")
    done = repair(orders)
    assert done.before and not done.after
    assert same(orders)


def test_many_missing_rows_are_read_again_by_several_tasks(orders: Workspace) -> None:
    plant(orders, "DELETE FROM orders WHERE id > 3000")
    done = repair(orders)
    assert not done.after and done.report.rows_reread == 2000
    assert same(orders)


def test_a_repair_does_not_follow_an_emptied_source_without_force(orders: Workspace) -> None:
    orders.execute("DELETE FROM orders")
    with pytest.raises(DataError, match="3,000 of the 3,000 rows"):
        repair(orders)
    assert orders.query("SELECT count(*) FROM orders") == [(3000,)]
    assert not repair(orders, force=True).after
    assert orders.query("SELECT count(*) FROM orders") == [(0,)]
    no_findings(orders)


def test_a_repair_does_not_follow_a_source_that_was_set_back(orders: Workspace) -> None:
    orders.execute("CREATE TABLE old LIKE orders", "INSERT INTO old SELECT * FROM orders WHERE id <= 8000")
    orders.execute(
        "DROP TABLE orders", "ALTER TABLE old RENAME orders", "ALTER TABLE orders AUTO_INCREMENT = 8001"
    )
    with pytest.raises(DataError, match="set back"):
        repair(orders)
    assert orders.query("SELECT count(*) FROM orders") == [(3000,)]


def test_pending_files_are_loaded_before_anything_is_compared(orders: Workspace) -> None:
    orders.execute("UPDATE orders SET note = 'new' WHERE id <= 30")
    orders.synced("orders", backup_only=True)
    done = repair(orders)
    assert not done.before and not done.after
    assert same(orders)


def test_text_keys_are_repaired_as_their_collation_compares_them(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE codes (code VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT, update_at TIMESTAMP(6) "
        "NOT NULL DEFAULT CURRENT_TIMESTAMP(6), KEY (update_at))",
        "INSERT INTO codes (code, n) SELECT CONCAT('Größe ', seq), seq FROM seq_1_to_300",
    )
    workspace.synced("codes")
    workspace.execute("UPDATE codes SET code = UPPER(code) WHERE n = 5", "DELETE FROM codes WHERE n = 7")
    plant(workspace, "DELETE FROM codes WHERE n = 9", "UPDATE codes SET n = 0 WHERE n = 11")
    assert not repair(workspace, "codes").after
    assert same(workspace, "codes", "code, n, {}")


def test_a_repair_of_a_full_copy_takes_a_new_snapshot(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE pairs (a INT, b INT)", "INSERT INTO pairs SELECT seq, 1 FROM seq_1_to_200"
    )
    workspace.synced("pairs")
    plant(workspace, "UPDATE pairs SET b = 2 WHERE a = 7")
    done = repair(workspace, "pairs")
    assert done.before and not done.after
    assert workspace.query("SELECT DISTINCT b FROM pairs") == [(1,)]


def test_a_table_without_a_key_is_not_repaired_row_by_row(workspace: Workspace) -> None:
    workspace.write(tables={"events": {"mode": "append", "cursor": "at"}})
    workspace.execute(
        "CREATE TABLE events (at DATETIME NOT NULL, n INT)",
        "INSERT INTO events SELECT '2025-03-01' + INTERVAL seq SECOND, seq FROM seq_1_to_100",
    )
    workspace.synced("events")
    plant(workspace, "UPDATE events SET n = 0 WHERE n = 50")
    with pytest.raises(ConfigError, match="without a key"):
        repair(workspace, "events")


def test_a_repair_that_is_killed_after_its_commit_is_finished_by_the_next_sync(orders: Workspace) -> None:
    planted(orders)
    before = len(commits(orders))
    process = orders.run.start("verify", "-t", "orders", "--repair")
    until(lambda: len(commits(orders)) >= before + 2 or process.poll() is not None, 120)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = [c["kind"] for c in commits(orders)[before:]]
    assert done[:2] == ["claim", "deletes"]
    orders.synced("orders")
    if "batch" in done:
        assert same(orders)
    left = repair(orders)
    assert not left.before.extra and not left.after
    assert same(orders)
    no_findings(orders, "orphan")  # files of rows that it had no time to commit


@pytest.mark.parametrize("what", ["an extra row", "a missing row"])
def test_a_repair_after_a_column_was_added_leaves_that_column_to_the_next_sync(
    orders: Workspace, what: str
) -> None:
    if what == "an extra row":
        orders.execute("DELETE FROM orders WHERE id = 33")
    else:
        plant(orders, "DELETE FROM orders WHERE id = 33")
    orders.execute("ALTER TABLE orders ADD COLUMN extra INT NOT NULL DEFAULT 7")
    done = repair(orders)
    assert done.before and not done.after
    orders.synced("orders")
    assert same(orders, columns="id, note, price, extra, {}")


@pytest.mark.long
def test_the_command_says_what_it_repaired(orders: Workspace) -> None:
    planted(orders)
    assert orders.run("verify", "-t", "orders").code == 7
    result = orders.run("verify", "-t", "orders", "--repair").ok()
    assert "repaired 7 rows" in result.stdout
    document = orders.run("verify", "-t", "orders", "--repair", "--json").ok().json
    assert document["ok"] and document["tables"][0]["repaired"] == 0


def test_rows_deleted_in_the_warehouse_stop_loads_until_restored_or_accepted(
    orders: Workspace,
) -> None:
    plant(orders, "DELETE FROM orders WHERE id <= 30")
    orders.execute("UPDATE orders SET note = 'new' WHERE id = 900")
    for _ in range(2):
        (refused,) = orders.sync("orders").tables
        assert refused.error is not None and refused.exit_code == 6
        assert "has 2,990 rows, but the last load left 3,000" in refused.error.message
    assert not repair(orders).after and same(orders)
    orders.execute("UPDATE orders SET note = 'newer' WHERE id = 900")
    orders.synced("orders")
    plant(orders, "DELETE FROM orders WHERE id <= 30")  # old rows that nobody wants any more
    orders.execute("UPDATE orders SET note = 'newest' WHERE id = 900")
    orders.synced("orders", force=True)
    orders.execute("UPDATE orders SET note = 'and so on' WHERE id = 900")
    orders.synced("orders")
    assert orders.query("SELECT count(*) FROM orders") == [(2990,)]


def test_a_search_for_deletes_restores_rows_deleted_in_the_warehouse_and_loads_continue(
    orders: Workspace,
) -> None:
    orders.write(tables={orders.full_name("orders"): {"deletes": "hard", "deletes_every": "0s"}})
    plant(orders, "DELETE FROM orders WHERE id <= 30")
    assert "missing from the target, though unchanged at the source" in str(orders.synced("orders")["notes"])
    orders.execute("UPDATE orders SET note = 'new' WHERE id = 900")
    orders.synced("orders")
    assert same(orders)
