"""`where`: a row that an update moves out of it leaves the target with that sync."""

from __future__ import annotations

from typing import Any

import pytest

from floodmark.watermark.validate import watermark_validate
from tests.conftest import Workspace
from tests.support.held_sync import commits, without_batches
from tests.support.orders import create_orders, fill_orders
from tests.support.redshift import RedshiftStandIn

pytestmark = pytest.mark.source

ORDERS = create_orders("amount INT NOT NULL DEFAULT 0, status VARCHAR(10)", "TIMESTAMP(6)")


def filled(workspace: Workspace, rows: int = 20, **options: Any) -> None:
    """A table of which every second row matches, synced."""
    workspace.write(tables={"orders": {"where": "status = 'shipped'", **options}})
    workspace.execute(
        ORDERS, fill_orders(rows, "(seq DIV 4) SECOND", id="seq", status="IF(seq % 2, 'new', 'shipped')")
    )
    workspace.synced("orders")


def target(workspace: Workspace, condition: str = "TRUE") -> list[int]:
    return [row[0] for row in workspace.query(f"SELECT id FROM orders WHERE {condition} ORDER BY id")]


def source(workspace: Workspace) -> list[int]:
    rows = workspace.execute("SELECT id FROM orders WHERE status = 'shipped' ORDER BY id")
    return [row[0] for row in rows]


def kinds(workspace: Workspace) -> list[str]:
    return [c["kind"] for c in commits(workspace)]


def test_a_row_that_leaves_the_where_leaves_the_target_and_comes_back_with_the_next_update(
    workspace: Workspace,
) -> None:
    filled(workspace)
    workspace.execute(
        "UPDATE orders SET status = 'new' WHERE id = 2", "UPDATE orders SET status = NULL WHERE id = 4"
    )
    done = workspace.synced("orders")
    assert (done["rows_extracted"], done["rows_deleted"]) == (0, 2)
    assert "2 rows no longer matching `where`: deleted" in done["notes"]
    assert target(workspace) == source(workspace)
    *_, key_commit, batch = commits(workspace)
    assert (key_commit["kind"], key_commit["load_as"], batch["kind"]) == ("deletes", "delete", "batch")
    assert [f["rows"] for f in key_commit["files"]] == [2]
    assert workspace.synced("orders")["commits"] == [], "nothing is left to read"
    workspace.execute("UPDATE orders SET status = 'shipped' WHERE id = 2")
    assert workspace.synced("orders")["rows_extracted"] == 1
    assert target(workspace) == source(workspace)
    assert workspace.verified("orders")["ok"]
    found = watermark_validate(workspace.settings, run="20250101_000000_test")
    assert found["ok"], found


@pytest.mark.parametrize("leaves", [2, 20])
def test_a_new_column_arrives_though_the_only_changed_row_leaves_the_where(
    workspace: Workspace, leaves: int
) -> None:
    """Also if that row was the one at the watermark."""
    filled(workspace)
    workspace.execute(
        "ALTER TABLE orders ADD COLUMN z INT DEFAULT 3",
        f"UPDATE orders SET status = 'new' WHERE id = {leaves}",
    )
    done = workspace.synced("orders")
    assert "z is new: earlier rows get 3 in it." in done["notes"]
    assert target(workspace, "z = 3") == target(workspace) == source(workspace)


def test_only_keys_that_the_target_has_are_deleted_and_a_first_sync_asks_for_none(
    workspace: Workspace,
) -> None:
    filled(workspace)
    assert "deletes" not in kinds(workspace)
    workspace.execute(
        "INSERT INTO orders (id, status) VALUES (100, 'new'), (101, 'new'), (102, 'shipped')",
        "UPDATE orders SET status = 'lost' WHERE id IN (1, 3)",
    )
    done = workspace.synced("orders")
    assert (done["rows_extracted"], done["rows_deleted"]) == (1, 0)
    assert "deletes" not in kinds(workspace) and target(workspace) == source(workspace)


def test_rows_are_marked_where_deletes_are_soft_and_only_once(workspace: Workspace) -> None:
    filled(workspace, deletes="soft", overlap_seconds=600)
    workspace.execute("UPDATE orders SET status = 'new' WHERE id IN (2, 4)")
    assert workspace.synced("orders")["rows_deleted"] == 2
    assert target(workspace, "_deleted_at IS NOT NULL") == [2, 4]
    workspace.execute("UPDATE orders SET status = 'shipped' WHERE id = 2")
    assert workspace.synced("orders")["rows_deleted"] == 0, "the overlap shows them again"
    assert target(workspace, "_deleted_at IS NOT NULL") == [4]
    assert workspace.verified("orders")["ok"]


def test_a_limit_counts_rows_that_match_and_rows_in_between_leave(workspace: Workspace) -> None:
    filled(workspace)
    for i, status in ((2, "new"), (4, "new"), (6, "shipped"), (8, "new"), (10, "shipped"), (12, "new")):
        workspace.execute(f"UPDATE orders SET status = '{status}', amount = amount + 1 WHERE id = {i}")
    done = workspace.synced("orders", limit=1)
    assert (done["rows_extracted"], done["rows_deleted"]) == (1, 2)
    assert target(workspace) == sorted({*source(workspace), 8, 12})
    done = workspace.synced("orders", limit=5)
    assert (done["rows_extracted"], done["rows_deleted"]) == (1, 2)
    assert target(workspace) == source(workspace)


def test_since_and_a_changed_where_take_rows_out_of_the_stretch_that_is_read(workspace: Workspace) -> None:
    filled(workspace)
    # The cursor stays: no window has this row.
    workspace.execute("UPDATE orders SET status = 'new', update_at = update_at WHERE id = 2")
    assert workspace.synced("orders")["rows_deleted"] == 0
    assert workspace.synced("orders", since="2020-01-01 00:00:00")["rows_deleted"] == 1
    assert target(workspace) == source(workspace)
    workspace.write(tables={"orders": {"where": "status = 'shipped' AND id > 10"}})
    done = workspace.synced("orders")
    assert done["rows_deleted"] == 4 and target(workspace) == [12, 14, 16, 18, 20]
    assert "Rows of the target that no longer match `where` leave it." in done["notes"]
    assert workspace.verified("orders")["ok"]


def test_a_crash_between_the_keys_and_the_rows_loses_neither(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(workspace)
    workspace.execute(
        "UPDATE orders SET status = 'new' WHERE id IN (2, 4)", "UPDATE orders SET amount = 7 WHERE id = 6"
    )
    with without_batches(monkeypatch):
        assert workspace.sync("orders").as_json()["tables"][0]["exit_code"] == 6
    assert kinds(workspace)[-1] == "deletes" and target(workspace) == [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]
    done = workspace.synced("orders")
    assert done["rows_extracted"] == 1 and target(workspace) == source(workspace)
    assert workspace.verified("orders")["ok"]


def test_keys_are_all_kept_while_the_target_is_behind(workspace: Workspace) -> None:
    filled(workspace)
    workspace.execute("UPDATE orders SET status = 'shipped' WHERE id = 1")
    workspace.synced("orders", backup_only=True)
    workspace.execute("UPDATE orders SET status = 'new' WHERE id IN (1, 2)")
    workspace.synced("orders")
    assert target(workspace) == source(workspace), "the row that was loaded late left again"


def test_rows_outside_where_without_a_cursor_are_read_once_and_then_only_if_others_join_them(
    workspace: Workspace,
) -> None:
    workspace.write(tables={"orders": {"where": "status = 'shipped'"}})
    workspace.execute(
        create_orders("amount INT NOT NULL DEFAULT 0, status VARCHAR(10)", "TIMESTAMP(6) NULL"),
        fill_orders(20, "seq SECOND", id="seq", status="IF(seq > 10, 'new', 'shipped')"),
        "UPDATE orders SET update_at = NULL WHERE id > 10",
    )
    workspace.synced("orders")
    assert workspace.synced("orders", dry_run=True)["plan"]["read_again"] == [], "nothing will be written"
    assert workspace.synced("orders")["rows_deleted"] == 0
    assert workspace.synced("orders")["commits"] == [] and "deletes" not in kinds(workspace)
    workspace.execute("UPDATE orders SET status = 'new', update_at = NULL WHERE id = 2")
    assert workspace.synced("orders")["rows_deleted"] == 1 and target(workspace) == source(workspace)
    assert workspace.synced("orders")["commits"] == []

    workspace.execute("UPDATE orders SET status = 'new', update_at = NULL WHERE id = 4")
    done = workspace.synced("orders", backup_only=True)
    assert done["commits"] and done["rows_deleted"] == 0, "nobody asked the target"
    assert workspace.synced("orders", backup_only=True)["commits"] == []
    workspace.synced("orders")
    assert target(workspace) == source(workspace)

    # Inside only while --since reads it: then the next sync finds the same rows outside as the last one.
    workspace.execute("UPDATE orders SET status = 'shipped', update_at = '2020-06-01' WHERE id = 4")
    workspace.synced("orders", since="2020-01-01 00:00:00", until="2020-12-31 00:00:00")
    assert 4 in target(workspace)
    workspace.execute("UPDATE orders SET status = 'new', update_at = NULL WHERE id = 4")
    assert workspace.synced("orders")["rows_deleted"] == 1 and target(workspace) == source(workspace)


def test_verify_names_the_where_and_leaves_out_rows_that_the_next_sync_removes(workspace: Workspace) -> None:
    filled(workspace)
    workspace.execute("UPDATE orders SET status = 'new' WHERE id = 2")
    assert workspace.verified("orders")["ok"], "changed since the watermark"
    workspace.synced("orders")
    workspace.execute("UPDATE orders SET status = 'new', update_at = update_at WHERE id = 4")
    (finding,) = workspace.verified("orders")["findings"]
    assert finding["kind"] == "extra_row" and "does not match `where`" in finding["detail"]


def test_doctor_names_a_where_that_changes_without_its_rows(workspace: Workspace) -> None:
    workspace.execute(ORDERS, "CREATE FUNCTION is_open(x INT) RETURNS INT DETERMINISTIC NO SQL RETURN x")
    workspace.write(tables={"orders": {"where": "is_open(id) OR update_at > NOW() - INTERVAL 1 DAY"}})
    said = workspace.run("doctor", "-t", "orders").stdout
    assert "uses NOW" in said and "uses the stored function is_open" in said


def test_text_keys_leave_however_they_are_spelled_and_others_are_not_named(workspace: Workspace) -> None:
    codes(workspace)
    assert workspace.query("SELECT code FROM codes") == [("xyz",)]


def test_the_same_in_redshift(redshift_workspace: Workspace, redshift: RedshiftStandIn) -> None:
    codes(redshift_workspace)
    schema = redshift_workspace.config["warehouse"]["schema"]
    assert redshift.execute(f"SELECT code FROM {schema}.codes") == [("xyz",)]


def codes(workspace: Workspace) -> None:
    """A table whose key is text, and an update that spells one of them anew."""
    workspace.write(tables={"codes": {"where": "live = 1"}})
    workspace.execute(
        "CREATE TABLE codes (code VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, live INT,"
        " updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (updated_at))",
        "INSERT INTO codes (code, live) VALUES ('abc', 1), ('xyz', 1), ('new', 0)",
    )
    workspace.synced("codes")
    workspace.execute(
        "UPDATE codes SET code = 'ABC', live = 0 WHERE code = 'abc'",
        "UPDATE codes SET live = NULL WHERE code = 'new'",
    )
    assert workspace.synced("codes")["rows_deleted"] == 1
