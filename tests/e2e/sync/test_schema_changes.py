"""A source whose columns change between syncs, followed into every warehouse."""

from __future__ import annotations

import re
from typing import Any

import pytest

from floodmark.cli.plan import plan_lines
from floodmark.load.preview import look_briefly
from floodmark.log.log import Log
from floodmark.model.events import Event, Noted
from floodmark.model.run import SyncOptions, new_run
from floodmark.store.store import Store
from floodmark.sync.preview import plan
from floodmark.sync.run import sync
from tests.conftest import Silent, Workspace
from tests.support.followed_orders import BOTH, ROWS, Orders, notes
from tests.support.orders import create_orders, fill_orders

pytestmark = pytest.mark.source

KEEP = "update_at = update_at"  # what an application does that changes a row and not its cursor


def test_a_constant_default_fills_existing_rows(orders: Orders) -> None:
    orders.sync()
    orders.execute(
        "ALTER TABLE orders ADD COLUMN flag INT NOT NULL DEFAULT -7, ADD COLUMN tag VARCHAR(20) DEFAULT 'it''s \\\\',"
        " ADD COLUMN day DATE NOT NULL DEFAULT '2025-02-03', ADD COLUMN price DECIMAL(9,3) DEFAULT 1.5,"
        " ADD COLUMN seen TIMESTAMP NOT NULL DEFAULT '2025-01-01 00:00:01', ADD COLUMN blank VARCHAR(9) NOT NULL,"
        " ADD COLUMN nothing INT"
    )
    added = [statement for statement in orders.plan()["ddl"] if "ADD COLUMN" in statement]
    assert len(added) == 7 and '"flag" INTEGER DEFAULT -7' in added[0]
    report = orders.sync()
    # No row had to be read again but the last one's second, which brings the columns.
    assert report["rows_extracted"] == 0 and 0 < report["rows_reread"] <= 400
    assert "flag is new: earlier rows get -7 in it" in notes(report)
    assert orders.differences() == ()
    orders.execute("UPDATE orders SET flag = 1, tag = NULL WHERE id % 5 = 0")
    orders.sync()
    assert orders.differences() == ()
    assert orders.sync()["commits"] == []


def test_a_dropped_target_column_is_reported_and_the_hint_repairs_it(orders: Orders) -> None:
    orders.sync()
    orders.run(f"ALTER TABLE {orders.target} DROP COLUMN note")
    orders.execute("UPDATE orders SET amount = amount + 1 WHERE id = 7")
    assert "column note of orders is gone" in orders.plan()["refused"]["message"]
    table = orders.refused()
    assert table["exit_code"] == 6 and table["rows_extracted"] == 0
    statement = re.search(r"ALTER TABLE [^,]+", table["error"]["hint"])
    assert statement is not None
    orders.run(statement[0])
    orders.sync()
    assert orders.workspace.verified("orders", repair=True)["ok"]
    assert orders.differences() == ()


def test_a_column_added_to_the_target_is_not_mistaken_for_the_sources(orders: Orders) -> None:
    orders.sync()
    orders.run(f"ALTER TABLE {orders.target} ADD COLUMN extra INT DEFAULT 7")
    orders.execute("ALTER TABLE orders ADD COLUMN extra INT")
    assert "column extra of orders was not created by Floodmark" in orders.plan()["refused"]["message"]
    assert orders.refused()["exit_code"] == 6
    orders.run(f"ALTER TABLE {orders.target} RENAME COLUMN extra TO theirs")
    orders.sync()
    assert orders.differences() == ()


def test_a_column_added_between_a_claim_and_its_load_is_not_mistaken_for_the_sources(
    orders: Orders,
) -> None:
    orders.sync()
    orders.execute("ALTER TABLE orders ADD COLUMN flag INT NOT NULL DEFAULT 7")
    orders.sync(backup_only=True)  # the claim describes flag; no load has made it yet
    orders.run(f"ALTER TABLE {orders.target} ADD COLUMN flag INT")
    assert "column flag of orders was not created by Floodmark" in orders.plan()["refused"]["message"]
    table = orders.refused()
    assert (
        table["exit_code"] == 6
        and "column flag of orders was not created by Floodmark" in table["error"]["message"]
    )
    assert orders.ask("count(*)", "flag IS NOT NULL") == [(0,)]
    assert f"floodmark verify -t {table['table']} --repair" in table["error"]["hint"]
    assert orders.workspace.verified("orders", repair=True)["ok"]
    assert orders.differences() == ()
    assert orders.sync()["commits"] == []


def test_a_column_added_before_a_load_can_be_dropped_as_the_hint_says(orders: Orders) -> None:
    orders.workspace.write(defaults={"renames": {"note": "remark"}})
    orders.sync()
    orders.execute(
        "ALTER TABLE orders ADD COLUMN flag INT NOT NULL DEFAULT 7, CHANGE note remark VARCHAR(40)"
    )
    orders.sync(backup_only=True)
    orders.run(f"ALTER TABLE {orders.target} ADD COLUMN flag INT")
    orders.run(f"ALTER TABLE {orders.target} ADD COLUMN remark VARCHAR(160)")
    for name in ("remark", "flag"):
        table = orders.refused()
        assert table["exit_code"] == 6 and f"column {name} of" in table["error"]["message"]
        orders.run(f"ALTER TABLE {orders.target} DROP COLUMN {name}")
    orders.sync()
    assert orders.differences() == ()


def test_columns_added_beforehand_with_the_sources_values_are_adopted(orders: Orders) -> None:
    orders.sync()
    orders.run(f"ALTER TABLE {orders.target} ADD COLUMN flag INT")
    orders.run(f"ALTER TABLE {orders.target} ADD COLUMN token VARCHAR(144)")
    orders.run(f"ALTER TABLE {orders.target} ADD COLUMN level INT DEFAULT 3")
    orders.execute(
        "ALTER TABLE orders ADD COLUMN flag INT, ADD COLUMN token CHAR(36), ADD COLUMN level INT NOT NULL DEFAULT 3",
        f"UPDATE orders SET token = UUID(), {KEEP} WHERE id % 2 = 0",
    )
    assert orders.plan()["refused"] is None
    assert orders.sync()["rows_reread"] == ROWS
    assert orders.differences() == ()


def test_a_partial_reload_recognises_its_own_columns(orders: Orders) -> None:
    orders.sync(limit=1000)
    orders.execute("ALTER TABLE orders ADD COLUMN flag INT NOT NULL DEFAULT 3")
    orders.sync()
    orders.execute("UPDATE orders SET flag = 4 WHERE id % 5 = 0")
    orders.sync()
    name = f"{orders.workspace.database.name}.orders"
    orders.workspace.run("watermark", "reset", "-t", name, "--redshift-only").ok()
    assert orders.sync(load_only=True, limit=500)["rows_loaded"] <= 1000  # of files without flag
    orders.execute("UPDATE orders SET flag = 5 WHERE id % 7 = 0")
    orders.sync()
    assert orders.differences() == ()


def test_a_column_created_by_a_concurrent_run_is_recognised(orders: Orders) -> None:
    orders.sync()
    config = orders.workspace.settings
    log = Log(Store(config.store), f"{orders.workspace.database.name}.orders")
    before = log.read()
    orders.execute(
        "ALTER TABLE orders ADD COLUMN flag INT NOT NULL DEFAULT 7",
        f"UPDATE orders SET flag = 8, {KEEP} WHERE id < 99",
    )
    other: list[dict[str, Any]] = []

    class Meanwhile(Silent):
        """After the plan is reported and before anything is claimed, another run comes and goes."""

        def __call__(self, event: Event) -> None:
            if isinstance(event, Noted) and "flag" in event.text and not other:
                other.append(orders.sync())

    options = SyncOptions()
    report = sync(
        config, [log.table_name], False, options, Meanwhile(), new_run(), spark=orders.workspace.spark()
    )
    assert report.ok, report.tables[0].error
    assert other[0]["rows_reread"] == ROWS and report.tables[0].rows_reread == 0
    assert orders.differences() == ()
    # The same for commands that only read.
    now = log.read().table
    assert now is not None
    found = look_briefly(config.warehouse, log, before, now, None)
    assert found.refused is None and "another run is changing the table" in str(found.unknown)


def test_rows_that_differ_in_a_new_column_are_read_again_once(orders: Orders) -> None:
    orders.sync()
    orders.execute(
        "ALTER TABLE orders ADD COLUMN token CHAR(36), ADD COLUMN flag INT NOT NULL DEFAULT 5,"
        " ADD COLUMN twice DECIMAL(14,2) AS (amount * 2) STORED",
        f"UPDATE orders SET token = UUID(), {KEEP}",
        "INSERT INTO orders (amount) VALUES (1)",
    )
    report = orders.sync()
    assert (report["rows_extracted"], report["rows_reread"]) == (1, ROWS)
    said = "token, twice are new, and earlier rows differ in them: about 2,000 rows are read again, once"
    assert said in notes(report)
    assert orders.differences() == ()
    assert orders.sync()["commits"] == []


def test_an_interrupted_reread_continues_with_the_remaining_slices(orders: Orders) -> None:
    orders.sync()
    orders.execute(
        "SET sql_mode = ''",
        "ALTER TABLE orders ADD COLUMN day DATE",
        f"UPDATE orders SET day = '2025-01-01' + INTERVAL id DAY, {KEEP}",
        f"UPDATE orders SET day = '0000-00-00', {KEEP} WHERE id = 7 * 1800",
    )
    failed = orders.refused(strategy="sequential")
    assert failed["exit_code"] == 6 and "day" in failed["error"]["message"] and failed["rows_reread"] == 1500
    orders.execute(f"UPDATE orders SET day = NULL, {KEEP} WHERE id = 7 * 1800")
    assert orders.sync(strategy="sequential")["rows_reread"] == 500
    assert orders.differences() == ()
    assert orders.sync()["commits"] == []


def test_files_from_before_and_after_a_change_load_in_order(orders: Orders) -> None:
    orders.sync(limit=500)
    orders.sync(limit=500, backup_only=True)
    orders.execute(
        "ALTER TABLE orders ADD COLUMN flag INT NOT NULL DEFAULT 3, MODIFY note VARCHAR(90), ADD COLUMN free INT",
        "UPDATE orders SET free = id, note = REPEAT('x', 90) WHERE id % 3 = 0",
    )
    orders.sync(backup_only=True)
    assert orders.columns() == ["id", "amount", "note", "update_at"]
    orders.sync(load_only=True)
    assert orders.differences() == ()


def test_a_reload_of_all_files_gives_the_same_rows(orders: Orders) -> None:
    orders.sync()
    orders.execute(
        "ALTER TABLE orders ADD COLUMN flag INT NOT NULL DEFAULT 3, CHANGE note remark VARCHAR(40)"
    )
    orders.workspace.write(defaults={"renames": {"note": "remark"}})
    orders.sync()
    orders.execute("ALTER TABLE orders DROP COLUMN flag", "INSERT INTO orders (amount) VALUES (1)")
    orders.sync()
    before = orders.ask("id, amount, remark, flag")
    assert before[-1][3] is None
    name = orders.workspace.full_name("orders")
    orders.workspace.run("watermark", "reset", "-t", name, "--redshift-only").ok()
    orders.sync(load_only=True)
    assert orders.ask("id, amount, remark, flag") == before
    assert "note" not in orders.columns()
    assert orders.differences() == ()


def test_a_dropped_column_stays_and_later_rows_have_null_in_it(orders: Orders) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN plain INT DEFAULT 4")
    orders.sync()
    orders.execute("ALTER TABLE orders ADD COLUMN flag INT NOT NULL DEFAULT 3")
    orders.sync()
    orders.execute(
        "ALTER TABLE orders DROP COLUMN flag, DROP COLUMN plain",
        "INSERT INTO orders (id, amount) VALUES (99999, 1)",
    )
    report = orders.sync()
    assert "flag is gone from the source: orders keeps the column" in notes(report)
    assert orders.ask("flag, plain", "id IN (7, 99999)") == [(3, 4), (None, None)]
    orders.execute("INSERT INTO orders (id, amount) VALUES (99998, 1)")
    assert "gone" not in notes(orders.sync())
    # One of that name that comes back is another column.
    orders.execute("ALTER TABLE orders ADD COLUMN plain INT")
    report = orders.sync()
    assert report["rows_reread"] == ROWS + 2
    assert "plain is back, and the target may hold its old values: about" in notes(report)
    assert orders.differences() == ()


def test_a_declared_rename_renames_the_column_and_reads_nothing_again(orders: Orders) -> None:
    orders.workspace.write(defaults={"renames": {"note": "Remark", "id": "order_id"}})
    orders.sync()
    orders.sync(backup_only=True)
    orders.execute("UPDATE orders SET note = 'pending' WHERE id % 70 = 0")
    orders.sync(backup_only=True)
    orders.execute(
        "ALTER TABLE orders CHANGE note Remark VARCHAR(80), CHANGE id order_id BIGINT AUTO_INCREMENT",
        "UPDATE orders SET Remark = REPEAT('y', 80) WHERE order_id % 140 = 0",
    )
    report = orders.sync()
    assert "note was renamed to Remark" in notes(report)
    assert report["rows_extracted"] == ROWS // 20 and report["rows_reread"] == 0
    assert sorted(orders.columns()) == ["amount", "order_id", "remark", "update_at"]
    rows = orders.workspace.execute("SELECT order_id, Remark FROM orders ORDER BY 1")
    assert orders.ask("order_id, remark") == list(rows)


def test_a_rename_that_is_not_declared_is_a_drop_and_an_add(orders: Orders) -> None:
    orders.sync()
    orders.execute("ALTER TABLE orders CHANGE note remark VARCHAR(40)")
    assert orders.sync()["rows_reread"] == ROWS
    assert {"note", "remark"} <= set(orders.columns())
    assert orders.differences() == ()


@BOTH
def test_widened_nullable_and_moved_columns_are_followed(orders: Orders) -> None:
    orders.execute(
        "ALTER TABLE orders ADD COLUMN n INT NOT NULL DEFAULT 1, ADD COLUMN half FLOAT DEFAULT 0.5"
    )
    orders.sync()
    orders.execute(
        "ALTER TABLE orders MODIFY n BIGINT NULL FIRST, MODIFY note VARCHAR(200) AFTER n,"
        " MODIFY amount DECIMAL(16,4) NOT NULL, MODIFY half DOUBLE",
        "UPDATE orders SET n = 1 << 40, note = REPEAT('😀', 200), amount = 123456789012.1234, half = 0.1"
        " WHERE id % 2 = 0",
        "UPDATE orders SET n = NULL WHERE id % 3 = 0",
    )
    orders.sync()
    assert float(orders.ask("half", "id = 14")[0][0]) == 0.1
    orders.execute("ALTER TABLE orders DROP COLUMN half")
    assert orders.differences() == ()


def test_digits_truncated_by_mysql_are_truncated_in_the_target_too(orders: Orders) -> None:
    orders.sync()
    orders.execute("ALTER TABLE orders MODIFY amount DECIMAL(12,1) NOT NULL")
    assert orders.sync()["rows_reread"] == ROWS
    found = dict(orders.ask("id, amount"))
    for id_, amount in orders.workspace.execute("SELECT id, amount FROM orders WHERE id % 11 = 0"):
        assert found[id_] == amount


def test_a_change_that_could_lose_values_is_refused_before_anything_is_read(orders: Orders) -> None:
    orders.sync()
    orders.execute(
        "ALTER TABLE orders MODIFY amount VARCHAR(20) NOT NULL, DROP COLUMN note",
        "UPDATE orders SET amount = '4 euros' WHERE id % 2 = 0",
    )
    before = orders.sync(load_only=True)["watermark"]["commit"]
    assert orders.plan()["refused"]["code"] == 6
    refused = orders.refused()
    assert refused["exit_code"] == 6 and refused["watermark"]["commit"] == before
    assert "amount" in refused["error"]["message"]
    statement = refused["error"]["hint"].partition("run: ")[2]
    assert "ALTER TABLE" in statement and "VARCHAR" in statement
    orders.sync(backup_only=True)  # which does not look
    for part in statement.split("; "):
        orders.run(part)
    orders.sync()
    assert orders.differences() == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (id, amount)", "the key of"),
        ("DROP COLUMN update_at", "was read by update_at so far"),
    ],
)
def test_another_key_or_a_lost_cursor_is_refused_until_the_user_decides(
    workspace: Workspace, change: str, words: str
) -> None:
    workspace.execute(create_orders(), fill_orders(100))
    workspace.synced("orders")
    workspace.execute(f"ALTER TABLE orders {change}")
    (refused,) = workspace.sync("orders").as_json()["tables"]
    assert refused["exit_code"] == 6 and words in refused["error"]["message"]
    workspace.write(defaults={"mode": "full"})
    workspace.synced("orders")
    assert workspace.compare("orders").equal


@pytest.mark.parametrize("strategy", ["sequential", "intra-table"])
def test_a_column_added_while_a_window_is_open_arrives(orders: Orders, strategy: str) -> None:
    orders.execute(
        "SET sql_mode = ''",
        "ALTER TABLE orders ADD COLUMN day DATE",
        f"UPDATE orders SET day = '0000-00-00', {KEEP} WHERE id = 7 * 1800",
    )
    assert orders.refused(strategy=strategy)["exit_code"] == 6
    orders.execute(
        f"UPDATE orders SET day = NULL, {KEEP} WHERE id = 7 * 1800",
        "ALTER TABLE orders ADD COLUMN flag INT NOT NULL DEFAULT 8, ADD COLUMN twice DECIMAL(14,2) AS (amount * 2)",
        "UPDATE orders SET flag = 9 WHERE id % 9 = 0",
    )
    orders.sync(strategy=strategy)
    assert orders.differences() == ()


def test_columns_of_any_name_arrive_under_the_name_that_plan_shows(orders: Orders) -> None:
    long = "数" * 63
    names = [
        "190_time",
        "ID2",
        "order",
        "a b",
        "_deleted_at",
        "_floodmark_key",
        "day__raw",
        long + "一",
        long + "二",
    ]
    orders.workspace.write(defaults={"zero_dates": "keep"})
    orders.execute("ALTER TABLE orders ADD COLUMN day DATETIME")
    orders.execute(*(f"ALTER TABLE orders ADD COLUMN `{name}` VARCHAR(20)" for name in names))
    orders.execute("UPDATE orders SET " + ", ".join(f"`{name}` = '{i}'" for i, name in enumerate(names)))
    orders.sync()
    config = orders.workspace.settings
    report = plan(config, orders.workspace.full_name("orders"), SyncOptions(dry_run=True))
    shown = {c["column"]: c["target"] for c in report.result["columns"]}
    assert [shown[name] for name in names[:4]] == ["190_time", "id2", "order", "a b"]
    assert len({shown[name] for name in names}) == len(names)
    assert any(shown["_deleted_at"] in line for line in plan_lines(report))
    if orders.server is None:
        columns = ", ".join(f'"{shown[name]}"' for name in names)
        assert orders.ask(columns, "id = 7") == [tuple(str(i) for i in range(len(names)))]
    orders.execute(
        "ALTER TABLE orders ADD COLUMN `OID` INT DEFAULT 4", "UPDATE orders SET `a b` = 'x' WHERE id < 99"
    )
    orders.sync()
    assert set(shown.values()) - {None} <= set(orders.columns()) or orders.server is not None
