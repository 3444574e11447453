"""What goes wrong around following the binary log: a lost log of changes, another server, a run that dies."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from floodmark.log.log import Log
from floodmark.model.changes import SOURCE_LOG
from floodmark.setup.services.databases import DatabaseServer
from floodmark.spark.context import Spark
from floodmark.store.store import Store
from tests.conftest import (
    PATIENT,
    Floodmark,
    Workspace,
    fresh_database,
    new_workspace,
)
from tests.support.balancer import Balancer
from tests.support.dying_follower import dies
from tests.support.held_sync import until


@pytest.fixture
def shop(
    logged: DatabaseServer, tmp_path: Path, floodmark: Floodmark, spark: Callable[[], Spark]
) -> Iterator[Workspace]:
    """Two tables without any cursor column, copied once."""
    with fresh_database(logged) as database:
        workspace = new_workspace(tmp_path, database, floodmark, spark, store={"url": "./lake"})
        workspace.write(defaults={"changes": "binlog"})
        workspace.execute(
            "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40))",
            "CREATE TABLE items (id INT PRIMARY KEY, note VARCHAR(40))",
            "INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c')",
            "INSERT INTO items VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        )
        notes(workspace)
        yield workspace


def notes(workspace: Workspace, *tables: str) -> str:
    """What a sync, which must succeed, says of the tables."""
    report = workspace.sync(*(tables or ("orders", "items")))
    errors = [one.error for one in report.tables if one.error is not None]
    if errors:
        raise errors[0]
    return " ".join(note for one in report.tables for note in one.notes)


def equal(workspace: Workspace) -> bool:
    return all(workspace.compare(table).equal for table in ("orders", "items"))


def change(workspace: Workspace, table: str, note: str) -> None:
    """An update, a delete and an insert."""
    workspace.execute(
        f"UPDATE {table} SET note = '{note}' WHERE id = (SELECT * FROM (SELECT MAX(id) FROM {table}) m)",
        f"DELETE FROM {table} ORDER BY id LIMIT 1",
        f"INSERT INTO {table} SELECT MAX(id) + 1, '{note}' FROM {table}",
    )


# ---------------------------------------------------------------- a lost log of changes


def test_a_lost_log_of_changes_begins_where_the_tables_have_followed_it(shop: Workspace) -> None:
    """A table that this run leaves out has followed less: the new log has its changes, too."""
    change(shop, "items", "first")
    change(shop, "orders", "first")
    notes(shop, "orders")
    shutil.rmtree(shop.folder / "lake" / "changes")
    change(shop, "orders", "second")
    change(shop, "items", "second")
    assert "compared" not in notes(shop, "orders")
    assert "compared" not in notes(shop, "items")
    assert equal(shop)
    change(shop, "items", "third")
    assert "compared" not in notes(shop)
    assert equal(shop)


def test_columns_that_moved_before_a_lost_log_was_read_again_are_compared(shop: Workspace) -> None:
    """The old rows' keys can't be found by the present description."""
    shop.execute("UPDATE orders SET note = 'x' WHERE id = 1", "INSERT INTO orders VALUES (70, 'y')")
    shutil.rmtree(shop.folder / "lake" / "changes")
    shop.execute("ALTER TABLE orders ADD COLUMN n INT DEFAULT 9 FIRST", "DELETE FROM orders WHERE id = 2")
    change(shop, "items", "second")
    notes(shop)
    notes(shop)
    assert equal(shop)


def test_a_lost_log_of_changes_whose_binary_log_was_purged_is_compared(
    shop: Workspace, logged: DatabaseServer
) -> None:
    change(shop, "orders", "first")
    shutil.rmtree(shop.folder / "lake" / "changes")
    shop.execute("FLUSH BINARY LOGS")

    def purged() -> bool:
        """A server may keep a file for a dump that has just ended."""
        files = shop.execute("SHOW BINARY LOGS")
        shop.execute(f"PURGE BINARY LOGS TO '{files[-1][0]}'")
        return len(files) == 1

    until(purged, pause=0.3)
    change(shop, "items", "second")
    assert "compared" in notes(shop)
    assert equal(shop)


# ---------------------------------------------------------------- what is taken away


def test_what_was_taken_away_is_named_and_once_it_is_back_nothing_is_lost(
    shop: Workspace, logged: DatabaseServer
) -> None:
    mariadb = logged.name == "mariadb"
    asks = "BINLOG MONITOR" if mariadb else "REPLICATION CLIENT"
    rights = ["PROCESS", "SELECT", "REPLICATION SLAVE", asks, *(["SLAVE MONITOR"] if mariadb else [])]
    logged.create_user("app", "app-pw", *(f"{right} ON *.*" for right in rights))
    shop.write(source={"url": logged.url(shop.database.name, "app", "app-pw")})
    for away, back, said in (
        (
            "REVOKE REPLICATION SLAVE ON *.* FROM app",
            "GRANT REPLICATION SLAVE ON *.* TO app",
            "REPLICATION SLAVE",
        ),
        (f"REVOKE {asks} ON *.* FROM app", f"GRANT {asks} ON *.* TO app", "may not see its positions"),
        ("SET GLOBAL binlog_format = MIXED", "SET GLOBAL binlog_format = ROW", "binlog_format is MIXED"),
    ):
        logged.execute(away)
        try:
            change(shop, "orders", said)
            report = shop.sync("orders", "items")
        finally:
            logged.execute(back)
        assert report.exit_code == 2
        for one in report.tables:
            assert said in str(one.error) and "app-pw" not in str(one.error)
        notes(shop)
        assert equal(shop)


def test_statements_of_a_session_that_logs_them_as_such_are_compared(shop: Workspace) -> None:
    with shop.database.connect(autocommit=True) as link:
        for statement in (
            "SET SESSION binlog_format = MIXED", "UPDATE orders SET note = 'mixed'",
            "SET SESSION binlog_format = STATEMENT", "UPDATE items SET note = 'statement'",
        ):  # fmt: skip
            link.cursor().execute(statement)
    assert "compared" in notes(shop)
    assert equal(shop)


def test_only_verify_finds_what_was_not_logged(shop: Workspace) -> None:
    with shop.database.connect(autocommit=True) as link:
        link.cursor().execute("SET sql_log_bin = 0")
        link.cursor().execute("UPDATE orders SET note = 'unlogged' WHERE id = 1")
    notes(shop)
    assert not equal(shop)
    assert shop.verified("orders")["different"]


# ---------------------------------------------------------------- runs that die


@pytest.mark.parametrize("first", [True, False], ids=["of a first copy", "of a changes pass"])
def test_a_run_that_is_killed_at_any_write_loses_nothing(shop: Workspace, first: bool) -> None:
    """Without FLOODMARK_LONG, at a sample of them; before a write and after it."""
    for n in range(2, 400, 3 if PATIENT else 13):
        table = f"copy{n}" if first else "orders"
        if first:
            shop.execute(
                f"CREATE TABLE {table} (id INT PRIMARY KEY, note VARCHAR(9))",
                f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')",
            )
        change(shop, table, f"{n}")
        code, said = dies(shop, n, table)
        notes(shop, table)  # at once: it does not wait for the lease of the dead
        assert shop.compare(table).equal, said
        if code == 0:
            break
    notes(shop)
    assert equal(shop)


def test_runs_of_different_tables_wait_for_each_other(shop: Workspace) -> None:
    for number in range(2 if not PATIENT else 10):
        change(shop, "orders", f"{number}")
        change(shop, "items", f"{number}")
        started = [shop.run.start("sync", "-t", table) for table in ("orders", "items", "orders")]
        codes = [one.wait() for one in started]
        # Two for one table: the one that comes later is told so.
        assert codes[1] == 0 and 0 in (codes[0], codes[2]) and {codes[0], codes[2]} <= {0, 3}
        assert equal(shop)


@pytest.mark.parametrize("command", ["sync", "changes"])
def test_ctrl_c_ends_a_read_of_the_log_at_once(shop: Workspace, logged: DatabaseServer, command: str) -> None:
    change(shop, "orders", "first")
    args = ["sync", "-t", "orders"] if command == "sync" else ["changes", "-t", "orders"]
    with Balancer([logged], lambda n: 0) as balancer:
        url = shop.config["source"]["url"]
        shop.write(
            source={"url": url.replace(str(logged.port), str(balancer.port)), "tls": {"mode": "disabled"}}
        )
        balancer.silent = b"\0\0\0\0bin.0"  # a dump
        process = shop.run.start(*args)
        until(lambda: balancer.unanswered)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert time.monotonic() - began < 3
        assert "Traceback" not in process.stderr.read()
    shop.write(source={"url": url, "tls": None})
    notes(shop)
    assert equal(shop)


def test_a_connection_that_breaks_during_a_dump_is_exit_code_4(
    shop: Workspace, logged: DatabaseServer
) -> None:
    change(shop, "orders", "first")
    with Balancer([logged], lambda n: 0) as balancer:
        url = shop.config["source"]["url"]
        shop.write(
            source={"url": url.replace(str(logged.port), str(balancer.port)), "tls": {"mode": "disabled"}}
        )
        balancer.cuts = b"\0\0\0\0bin.0"  # a dump
        report = shop.sync("orders", "items")
        assert report.exit_code == 4
        assert all("lost" in str(one.error).lower() for one in report.tables)
        balancer.cuts = None
        notes(shop)
    assert equal(shop)


def test_a_server_that_restarts_is_followed_on(shop: Workspace, logged: DatabaseServer) -> None:
    change(shop, "orders", "before")
    logged.restart()
    change(shop, "orders", "after")
    notes(shop)
    assert equal(shop)


def test_a_lost_log_of_changes_comes_back_from_its_copies(shop: Workspace) -> None:
    """Its key files have no copies: a table that had not followed them yet is compared."""
    shop.write(store={"url": "./lake", "copies_to": [{"url": "./beside", "log": True}]})
    for note, tables in (("first", ("orders", "items")), ("second", ("orders",))):
        change(shop, "items", note)
        change(shop, "orders", note)
        notes(shop, *tables)
    before = source_log(shop)
    shop.run("watermark", "drill", "--all").ok()
    shutil.rmtree(shop.folder / "lake" / "changes")
    change(shop, "orders", "third")
    notes(shop)
    assert source_log(shop) == before
    assert equal(shop)


def source_log(shop: Workspace) -> str | None:
    """The log of changes that the store has."""
    return Log(Store(shop.settings.store), SOURCE_LOG).read().log
