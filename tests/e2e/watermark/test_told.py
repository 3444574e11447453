"""What people see: failed attempts, running syncs, rows counted once, tables that the source no longer shows."""

from __future__ import annotations

from typing import Any

import pytest

from floodmark.log.claim import claim
from floodmark.log.log import Log
from floodmark.model.errors import ConfigError, TransientError
from floodmark.setup.services.databases import DatabaseServer
from floodmark.store.store import Store
from tests.conftest import Workspace
from tests.support.open_transactions import ORDERS_IN_MICROSECONDS, old_rows

AWAY = "mysql://nobody:x@127.0.0.1:1"


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(ORDERS_IN_MICROSECONDS, old_rows(30))
    return workspace


def name(workspace: Workspace, table: str = "orders") -> str:
    return workspace.full_name(table)


def shown(workspace: Workspace, *fields: str, table: str = "orders") -> Any:
    document = workspace.pipeline.watermark_get(name(workspace, table))
    return tuple(document[f] for f in fields)


COUNTS = ("mysql_rows_extracted", "mysql_rows_reread", "redshift_rows_loaded", "redshift_rows_reloaded")
FAILURE = ("mysql_status", "last_error")


def away(workspace: Workspace) -> None:
    """From now on MySQL can't be reached."""
    workspace.write(source={"url": f"{AWAY}/{workspace.database.name}"})


def back(workspace: Workspace) -> None:
    workspace.write(source={"url": workspace.database.url})


# failed attempts, and current activity


def test_a_failed_connection_to_mysql_is_shown_until_the_next_success(orders: Workspace) -> None:
    assert shown(orders, *FAILURE, "last_check_time") == ("pending", None, None)
    away(orders)
    with pytest.raises(TransientError):
        orders.sync("orders")
    # There is no log yet that a copy could be of, and none is begun by a failure.
    status, error, looked = shown(orders, *FAILURE, "last_check_time")
    assert status == "failed" and "127.0.0.1" in error and looked is None
    assert orders.pipeline.watermark_list()["tables"] == []
    back(orders)
    table = orders.synced("orders")
    assert table["watermark"]["activity"]["state"] == "idle" and table["watermark"]["last_check_time"]
    status, error, first = shown(orders, *FAILURE, "last_check_time")
    assert (status, error) == ("success", None) and first == table["watermark"]["last_check_time"]

    away(orders)
    for names in (["orders"], []):
        with pytest.raises(TransientError):
            orders.sync(*names)
        status, error, at, looked = shown(orders, *FAILURE, "last_error_time", "last_check_time")
        assert status == "failed" and "127.0.0.1" in error and at > first and looked == first
    back(orders)
    assert orders.synced("orders")["commits"] == []  # nothing to do is a success too
    status, error, looked = shown(orders, *FAILURE, "last_check_time")
    assert (status, error) == ("success", None) and looked > first


def test_a_failed_plan_is_shown_but_a_table_held_by_another_run_is_not_a_failure(
    orders: Workspace,
) -> None:
    orders.synced("orders")
    orders.write(tables={name(orders): {"cursor": "nothing"}})
    assert orders.sync("orders").exit_code == 2
    status, error = shown(orders, *FAILURE)
    assert status == "failed" and "nothing" in error
    orders.write(tables=None)
    orders.synced("orders")

    log = Log(Store(orders.pipeline.config.store), name(orders))
    taken = claim(log, log.read(), run="20250819_153000_live", purpose="sync")
    away(orders)
    with taken.lease:
        with pytest.raises(TransientError):
            orders.sync("orders")
        status, error, activity = shown(orders, *FAILURE, "activity")
        assert (status, error) == ("success", None)
        assert (activity["state"], activity["run"]) == ("running", "20250819_153000_live")
        assert activity["host"] and activity["pid"] and activity["since"]
    assert shown(orders, "activity")[0]["state"] == "idle"


# counts


def test_reread_rows_are_counted_separately_in_both_stages(orders: Workspace) -> None:
    orders.write(defaults={"overlap_seconds": 600})
    orders.synced("orders")
    assert shown(orders, *COUNTS) == (30, 0, 30, 0)
    again = orders.synced("orders")
    assert (again["rows_extracted"], again["rows_reread"]) == (0, 10)
    assert shown(orders, *COUNTS) == (30, 10, 30, 10)
    said = orders.run("watermark", "get", "-t", "orders").ok().stdout
    assert said.count("30 rows, and 10 read again") == 2


def test_a_warehouse_that_vanished_is_filled_again_with_a_note(orders: Workspace) -> None:
    first = orders.synced("orders")
    assert "missing from the warehouse" not in str(first["notes"])
    orders.warehouse.unlink()
    again = orders.synced("orders")
    assert "1 file loaded earlier is missing from the warehouse" in str(again["notes"])
    assert again["rows_loaded"] == first["rows_loaded"] and orders.compare("orders").equal
    assert "missing from the warehouse" not in str(orders.synced("orders")["notes"])


def test_a_manual_load_of_superseded_files_counts_no_more_than_was_extracted(orders: Workspace) -> None:
    orders.synced("orders", limit=20, backup_only=True)
    orders.pipeline.watermark_reset(name(orders))
    orders.synced("orders")
    before = shown(orders, *COUNTS)
    assert before == (30, 0, 30, 0)
    orders.pipeline.watermark_set(name(orders), timestamp="2025-03-01 00:00:00")
    table = orders.synced("orders", load_only=True)
    assert "Found 1 files, filtered to 1 files for loading" in table["notes"]
    assert any("1 later file will load again" in note for note in table["notes"])
    assert (table["files_loaded"], table["rows_loaded"]) == (1, 20)
    assert shown(orders, *COUNTS) == before
    assert orders.pipeline.watermark_validate(name(orders))["ok"]
    # The same files load once more: what is announced is what comes.
    document = orders.pipeline.watermark_reset(name(orders), redshift_only=True)
    assert (document["files_to_load"], document["files_to_load_by_hand"]) == (1, 2)
    assert orders.synced("orders", load_only=True)["files_loaded"] == 2
    assert shown(orders, *COUNTS) == before and orders.compare("orders").equal


# tables that the source no longer shows


def test_a_user_who_sees_no_table_gets_exit_code_2(workspace: Workspace, server: DatabaseServer) -> None:
    server.create_user("nothing", "secret", "PROCESS ON *.*")
    workspace.write(source={"url": server.url(workspace.database.name, "nothing", "secret")})
    for empty in (workspace.database.url, server.url(None, "nothing", "secret")):
        workspace.write(source={"url": empty})
        with pytest.raises(ConfigError, match="sees no table"):
            workspace.sync()


def test_a_table_that_the_source_no_longer_shows_is_named_until_it_is_retired(orders: Workspace) -> None:
    orders.execute("CREATE TABLE others (id INT AUTO_INCREMENT PRIMARY KEY)", "INSERT INTO others VALUES (1)")
    assert orders.sync().ok
    orders.execute("RENAME TABLE others TO elsewhere")
    report = orders.sync()
    assert report.exit_code == 2
    (lost,) = [t for t in report.tables if t.error]
    assert lost.table == name(orders, "others") and lost.error is not None
    assert "no longer shows" in lost.error.message and "watermark retire" in str(lost.error.hint)
    assert {t.table for t in report.tables if t.error is None} == {name(orders), name(orders, "elsewhere")}
    assert shown(orders, "mysql_status", table="others") == ("failed",)

    said = orders.run("watermark", "retire", "-t", "others").ok().stdout
    assert "retired" in said and f"To undo: floodmark sync -t {name(orders, 'others')}" in said
    assert orders.sync().ok
    assert shown(orders, "retired", "mysql_status", "redshift_rows_loaded", table="others") == (
        True,
        "success",
        1,
    )
    assert orders.query("SELECT count(*) FROM others") == [(1,)]
    with pytest.raises(ConfigError, match="never synced"):
        orders.pipeline.watermark_retire("nothing")
    # Even when it exists again, only a sync by name brings it back.
    orders.execute("RENAME TABLE elsewhere TO others", "INSERT INTO others VALUES (2)")
    orders.pipeline.watermark_retire("elsewhere")
    assert [t.table for t in orders.sync().tables] == [name(orders)]
    assert orders.synced("others")["rows_extracted"] == 1
    assert {t.table for t in orders.sync().tables} == {name(orders), name(orders, "others")}


def test_a_lost_table_is_told_as_a_lost_grant_and_not_as_a_wrong_name(orders: Workspace) -> None:
    orders.write(tables={"orders": {}})
    orders.synced("orders")
    orders.execute(
        "RENAME TABLE orders TO orders2"
    )  # to a user without the right to read it, it looks the same
    for report in (orders.sync("orders"), orders.sync()):
        (lost,) = report.tables
        assert (lost.table, lost.exit_code) == (name(orders), 2) and lost.error is not None
        assert "it was dropped or renamed, or" in lost.error.message
        assert f"GRANT SELECT ON {name(orders)} TO" in str(lost.error.hint)
        assert "did you mean" not in str(lost.error.hint) and "watermark retire" in str(lost.error.hint)
    for command in (("plan", "-t", "orders"), ("doctor", "-t", "orders"), ("doctor",)):
        said = orders.run(*command)
        assert said.code == 2 and "GRANT SELECT ON" in said.stdout + said.stderr


def test_new_tables_are_named_once_unless_the_configuration_lists_or_ignores_them(orders: Workspace) -> None:
    orders.write(tables={"orders": {}, f"{orders.database.name}.log_*": {}})
    assert orders.sync().as_json().get("new_tables") is None
    new = [name(orders, table) for table in ("later", "other")]
    orders.execute(*(f"CREATE TABLE {table} (id INT PRIMARY KEY)" for table in (*new, name(orders, "log_1"))))
    assert orders.sync("orders").new_tables == () == orders.sync("orders", dry_run=True).new_tables
    for dry_run in (True, False):
        report = orders.sync(dry_run=dry_run)
        assert report.ok and list(report.new_tables) == new
        assert name(orders, "log_1") in [t.table for t in report.tables]
    assert orders.sync().new_tables == ()
    checks = orders.run("doctor", "--json").json["checks"]
    (said,) = [check for check in checks if check["name"] == "new_tables"]
    assert (
        f"2 tables of the source are not in `tables`, so they are not copied: {', '.join(new)}"
        in said["detail"]
    )
    orders.execute("CREATE TABLE third (id INT PRIMARY KEY)")
    orders.synced("later")
    assert orders.sync().new_tables == (name(orders, "third"),), "nor the one that was synced by name"
    orders.write(defaults={"new_tables": "ignore"})
    assert not [c for c in orders.run("doctor", "--json").json["checks"] if c["name"] == "new_tables"]


def test_a_table_pattern_without_a_match_is_exit_code_2(
    orders: Workspace,
) -> None:
    here = orders.database.name
    orders.write(tables={"orders": {}, f"{here}.*_log": {"mode": "append"}})
    assert orders.sync().ok, "options for tables that may come some day"
    elsewhere = f"{here}_elsewhere.*"  # whose grants were forgotten, or which is not the URL's database
    orders.write(tables={elsewhere: {"deletes": "hard"}, "oders*": {}})
    report = orders.sync()
    lost = {t.table: t.error.message for t in report.tables if t.error}
    assert report.exit_code == 2 and lost.keys() == {elsewhere, f"{here}.oders*"}
    assert all("sees no table that matches the pattern" in message for message in lost.values())
    assert [t.table for t in report.tables if not t.error] == [name(orders)]
    checks = orders.run("doctor", "--json").json["checks"]
    assert [c["status"] for c in checks if c.get("table") in lost] == ["failure", "failure"]


@pytest.mark.both_servers
@pytest.mark.parametrize("mode", ["upsert", "full"])
def test_a_column_that_the_user_may_no_longer_read_is_named_until_it_is_excluded(
    orders: Workspace, server: DatabaseServer, mode: str
) -> None:
    schema, table = orders.database.name, name(orders)
    server.create_user(
        "narrow", "secret", f"SELECT (id, note, update_at) ON `{schema}`.orders", "PROCESS ON *.*"
    )
    orders.write(source={"url": server.url(schema, "narrow", "secret")}, tables={table: {"mode": mode}})
    orders.synced("orders")
    orders.execute(
        f"REVOKE SELECT (note) ON `{schema}`.orders FROM narrow@'%'",
        "UPDATE orders SET note = 'new' WHERE id = 3",
    )
    (refused,) = orders.sync("orders").tables
    assert refused.exit_code == 2 and "no longer shows note" in str(refused.error)
    assert orders.query("SELECT count(*) FROM orders WHERE note IS NULL") == [(0,)]
    orders.write(tables={table: {"mode": mode, "exclude": ["note"]}})
    orders.synced("orders")
    # A column that was really dropped is recognized: no other column is hidden.
    orders.write(tables={table: {"mode": mode}})
    orders.execute("ALTER TABLE orders DROP note")
    orders.synced("orders")


def test_an_excluded_column_that_does_not_exist_is_named_and_refused_if_it_looks_like_a_typo(
    orders: Workspace, server: DatabaseServer
) -> None:
    schema, table = orders.database.name, name(orders)
    orders.execute("ALTER TABLE orders ADD COLUMN secret INT")
    server.create_user(
        "partly", "secret", f"SELECT (id, note, update_at) ON `{schema}`.orders", "PROCESS ON *.*"
    )
    orders.write(source={"url": server.url(schema, "partly", "secret")})
    orders.write(tables={table: {"exclude": ["notes"]}})
    for _ in range(2):
        (refused,) = orders.sync("orders").tables
        assert refused.exit_code == 2 and "sees no such column" in str(refused.error)
        assert refused.error is not None and "did you mean note?" in str(refused.error.hint)
        orders.write(tables={table: {"exclude": ["secret"]}})
        assert "secret in `exclude`: not visible" in orders.run("plan", "-t", table).ok().stdout
        orders.synced("orders")
        orders.write(tables={table: {"exclude": ["notes"]}})
    # A user who sees every column gets an answer to any name, before a row is read.
    orders.write(source={"url": server.url(schema)}, tables={table: {"exclude": ["unlike"]}})
    orders.synced("orders")
    orders.execute("DROP TABLE orders", "CREATE TABLE others (id INT AUTO_INCREMENT PRIMARY KEY)")
    orders.write(tables={"others": {"exclude": ["unlike"]}})
    (refused,) = orders.sync("others").tables
    assert refused.exit_code == 2 and "`exclude` has unlike" in str(refused.error)


def test_a_configured_table_that_was_retired_is_not_reported_missing(orders: Workspace) -> None:
    orders.write(tables={"orders": {}, "others": {}})
    orders.execute("CREATE TABLE others (id INT AUTO_INCREMENT PRIMARY KEY)", "INSERT INTO others VALUES (1)")
    assert orders.sync().ok
    orders.execute("DROP TABLE others")
    (lost,) = [t for t in orders.sync().tables if t.error]
    assert lost.error is not None and "watermark retire" in str(lost.error.hint)
    orders.pipeline.watermark_retire("others")
    assert orders.sync().ok
    checks = orders.run("doctor", "--json").json["checks"]
    (gone,) = [c for c in checks if c["section"] == "tables" and "others" in str(c.get("table"))]
    assert gone["status"] == "ok" and "retired" in gone["detail"]
    assert orders.sync("others").exit_code == 2
