"""What of the work that is open on a server holds a table back, and what is proven not to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from floodmark.config.load import SourceSpec
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source import open_work
from floodmark.source.server import trust_in
from floodmark.source.session import Session
from tests.conftest import PATIENT, Workspace, fresh_database
from tests.support.open_transactions import (
    ORDERS_IN_MICROSECONDS,
    equal,
    notes,
    old_rows,
    running,
    transaction,
)

PARTITIONS = 1000
WAITING = "newer rows wait for the"


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(ORDERS_IN_MICROSECONDS, "CREATE TABLE lg (id INT PRIMARY KEY, note VARCHAR(40))")
    workspace.execute("INSERT INTO lg VALUES (1, 'a')")
    return workspace


def reader(workspace: Workspace, *grants: str) -> None:
    """The workspace's source is read by a user who has no more than these grants."""
    server, name = workspace.database.server, workspace.database.name
    server.create_user("reader", "reader-secret", f"SELECT ON `{name}`.*", *grants)
    workspace.write(source={"url": server.url(name, "reader", "reader-secret")})


@pytest.mark.both_servers
def test_a_statement_loading_table_definitions_is_seen_by_every_look(
    new_server: type[DatabaseServer],
) -> None:
    """Its NOW() is fixed, and for long nothing but the process list shows that it will write."""
    looks = 0
    with new_server(args=["--table-open-cache=400"]) as server:
        server.execute(
            "CREATE DATABASE d",
            "CREATE TABLE d.stamps (id INT PRIMARY KEY, at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))",
            f"CREATE TABLE d.big (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS {PARTITIONS}",
        )
        for number in range(8):
            server.restart()  # nothing is cached
            looks += _blindly_written(server, number)
            # On a busy machine it takes more rounds to look so often.
            if not PATIENT and number and looks > 3:
                break
    assert looks > 3


def _blindly_written(server: DatabaseServer, number: int) -> int:
    """Looks while a row is being written; how many of the looks fell into that time."""
    spec = SourceSpec(server.host, server.port, server.user, server.password, "d")
    isolation = ("REPEATABLE READ", "READ COMMITTED")[number % 2]
    slow = (
        f"INSERT INTO stamps (id) SELECT {number} FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM big WHERE id > 5)"
    )
    written = threading.Event()
    with closing(Session(spec)) as session, closing(server.connect("d", autocommit=True)) as link:
        link.cursor().execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
        sight = trust_in(session).sight

        def write() -> None:
            link.cursor().execute(slow)
            written.set()

        writing = threading.Thread(target=write)
        seen = []
        with server.starved():
            writing.start()
            while not written.is_set():
                clock = open_work.now(session)
                found = open_work.all_open_work(session, sight)
                if not session.rows(f"SELECT 1 FROM stamps WHERE id = {number}"):
                    seen.append((clock, min([clock, *(h.start for h in found)])))
            writing.join()
        [(cell,)] = session.rows(f"SELECT UNIX_TIMESTAMP(at) FROM stamps WHERE id = {number}")
    at = float(cell or 0)
    during = [bound for clock, bound in seen if clock > at]
    assert all(bound <= at for bound in during)
    return len(during)


@pytest.mark.both_servers
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE lg JOIN orders ON orders.id = lg.id SET orders.note = 'joined'",
        "INSERT INTO lg VALUES (2, write_an_order())",
    ],
    ids=["join", "function"],
)
def test_a_statement_waiting_for_another_table_holds_this_one_back_without_showing_a_lock(
    orders: Workspace, statement: str
) -> None:
    orders.execute(
        old_rows(2),
        "CREATE FUNCTION write_an_order() RETURNS INT DETERMINISTIC MODIFIES SQL DATA"
        " BEGIN INSERT INTO orders (note) VALUES ('by function'); RETURN 1; END",
    )
    assert orders.synced("orders")["rows_extracted"] == 2
    with (
        transaction(orders, "LOCK TABLES lg WRITE") as lock,
        running(orders, "SET autocommit = 1", statement),
    ):
        orders.execute("INSERT INTO orders (note) VALUES ('quick')")
        assert f"{WAITING} statement of connection" in notes(orders.synced("orders"))
        lock.cursor().execute("UNLOCK TABLES")
    orders.synced("orders")
    found = orders.compare("orders")
    assert found.equal, found.differences


@pytest.mark.mysql_only
def test_a_transaction_writing_elsewhere_holds_this_table_back_only_if_locks_are_not_visible(
    orders: Workspace,
) -> None:
    orders.execute(old_rows(2))
    with transaction(orders, "UPDATE lg SET note = 'open'"):
        time.sleep(1.1)
        orders.execute("INSERT INTO orders (note) VALUES ('quick')")
        reader(orders, "PROCESS ON *.*")
        assert orders.synced("orders")["rows_extracted"] == 2
        reader(orders, "PROCESS ON *.*", "SELECT ON performance_schema.*")
        assert orders.synced("orders")["rows_extracted"] == 1
    equal(orders, 3)


@pytest.mark.mysql_only
@pytest.mark.parametrize(
    "written",
    [
        "UPDATE lg SET note = 'fires a trigger'",
        "SELECT write_an_order()",
        "DELETE FROM parents WHERE id = 1",
    ],
    ids=["trigger", "function in a select", "cascade"],
)
def test_a_transaction_that_wrote_through_a_trigger_function_or_cascade_holds_rows_back(
    orders: Workspace, written: str
) -> None:
    orders.execute(
        "CREATE TABLE parents (id BIGINT PRIMARY KEY)",
        "INSERT INTO parents VALUES (1), (8), (9)",
        "ALTER TABLE orders ADD COLUMN parent BIGINT, ADD FOREIGN KEY (parent) REFERENCES parents (id) ON DELETE SET NULL",
        "INSERT INTO orders (note, parent, update_at) VALUES"
        " ('child', 1, '2025-03-01'), ('child', 8, '2025-03-01'), ('child', 9, '2025-03-01')",
        "CREATE TRIGGER onwards AFTER UPDATE ON lg FOR EACH ROW INSERT INTO orders (note) VALUES ('by trigger')",
        "CREATE FUNCTION write_an_order() RETURNS INT DETERMINISTIC MODIFIES SQL DATA"
        " BEGIN INSERT INTO orders (note) VALUES ('by function'); RETURN 1; END",
    )
    with transaction(orders, written) as link:
        time.sleep(1.1)
        orders.execute("INSERT INTO orders (note, parent) VALUES ('quick', 9)")
        assert f"{WAITING} transaction of connection" in notes(orders.synced("orders"))
        link.commit()
    orders.synced("orders")
    found = orders.query("SELECT count(*) FROM orders")
    assert found == orders.execute("SELECT count(*) FROM orders")


@pytest.mark.mysql_only
def test_a_long_report_is_recognised_by_its_locks_and_named_if_locks_are_not_visible(
    orders: Workspace,
) -> None:
    orders.execute(old_rows(2))
    report = "SELECT SLEEP(60) FROM orders LIMIT 1"
    committed = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    with (
        running(orders, "SET autocommit = 1", committed, report) as (_, one),
        running(orders, "SET autocommit = 0", report) as (_, two),
        running(orders, "SET autocommit = 0", f"PREPARE r FROM '{report}'", "EXECUTE r") as (_, three),
    ):
        time.sleep(1.1)
        orders.execute("INSERT INTO orders (note) VALUES ('new')")
        reader(orders, "PROCESS ON *.*")
        said = notes(orders.synced("orders"))
        assert f"statement of connection {one} (root@" in said and "perhaps only reading" in said
        reader(orders, "PROCESS ON *.*", "SELECT ON performance_schema.*")
        table = orders.synced("orders")
        assert table["rows_extracted"] == 1 and "wait for" not in notes(table)
        for number in (one, two, three):
            orders.execute(f"KILL {number}")
    equal(orders, 3)


@pytest.mark.mysql_only
@pytest.mark.parametrize(
    "options",
    [["--performance-schema=OFF"], ["--performance-schema-instrument=wait/lock/metadata/sql/mdl=OFF"]],
    ids=["off", "its instrument off"],
)
def test_without_a_list_of_locks_every_open_transaction_counts_and_nothing_fails(
    new_server: type[DatabaseServer], make_workspace: Callable[..., Workspace], options: list[str]
) -> None:
    with new_server(args=options, buffer_pool="32M") as server, fresh_database(server) as database:
        workspace = make_workspace(database, store={"url": "./lake"})
        workspace.execute(ORDERS_IN_MICROSECONDS, "CREATE TABLE lg (id INT PRIMARY KEY)", old_rows(2))
        with transaction(workspace, "INSERT INTO lg VALUES (1)"):
            time.sleep(1.1)
            workspace.execute("INSERT INTO orders (note) VALUES ('quick')")
            assert workspace.synced("orders")["rows_extracted"] == 2
        assert workspace.synced("orders")["rows_extracted"] == 1


@pytest.mark.both_servers
def test_a_connection_that_is_still_logging_in_holds_nothing_back(orders: Workspace) -> None:
    orders.execute(old_rows(2))
    server = orders.database.server
    with socket.create_connection((server.host, server.port)) as silent:
        silent.recv(4)  # it has greeted us and waits for a name
        time.sleep(1.1)
        orders.execute("INSERT INTO orders (note) VALUES ('quick')")
        table = orders.synced("orders")
    assert table["rows_extracted"] == 3 and "wait for" not in notes(table)


@pytest.mark.both_servers
def test_a_prepared_transaction_holds_back_from_its_lowest_row_even_after_a_crash(
    new_server: type[DatabaseServer],
    make_workspace: Callable[..., Workspace],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After it the server's start passes for the transaction's; its rows are older, by more than a day perhaps."""
    monkeypatch.setattr("floodmark.plan.wait.LOOKED_THROUGH", 2)
    with new_server(buffer_pool="32M") as server:
        server.execute("CREATE DATABASE d")
        with fresh_database(server) as database:
            workspace = make_workspace(database, store={"url": "./lake"})
            workspace.execute(
                ORDERS_IN_MICROSECONDS, "CREATE TABLE lg (id INT PRIMARY KEY, note INT)", old_rows(9)
            )
            # Judging by its row, a statement of two days ago.
            old = "INSERT INTO orders (note, update_at) VALUES ('prepared', NOW(6) - INTERVAL 2 DAY)"
            with transaction(workspace, "XA START 'x'", old, "XA END 'x'", "XA PREPARE 'x'"):
                pass
            workspace.execute("INSERT INTO lg VALUES (1, 1)")
            server.kill()
            server.start()
            time.sleep(1.1)
            workspace.execute("INSERT INTO orders (note) VALUES ('quick')")
            table = workspace.synced("orders")
            assert table["rows_extracted"] == 9
            assert f"{WAITING} prepared (XA) transaction" in notes(table)
            with closing(database.connect(autocommit=True)) as link:
                link.cursor().execute("XA COMMIT 'x'")
            workspace.synced("orders")
            equal(workspace, 11)


@pytest.mark.mysql_only
def test_a_connected_prepared_transaction_counts_as_well_as_a_detached_one(
    orders: Workspace,
) -> None:
    """Its locks are still shown as its connection's, while the other's are nobody's."""
    orders.execute(old_rows(2))
    begun = ("XA START '{0}'", "{1}", "XA END '{0}'", "XA PREPARE '{0}'")
    left, kept = (
        [part.format(name, written) for part in begun]
        for name, written in (
            ("left", "UPDATE lg SET note = 'left'"),
            ("kept", "INSERT INTO orders (note) VALUES ('prepared')"),
        )
    )
    with closing(orders.database.connect(autocommit=True)) as last:
        try:
            with transaction(orders, *left):
                pass
            with transaction(orders, *kept):
                time.sleep(1.1)
                orders.execute("INSERT INTO orders (note) VALUES ('quick')")
                assert orders.synced("orders")["rows_extracted"] == 2
        finally:
            last.cursor().execute("XA COMMIT 'left'")
            last.cursor().execute("XA COMMIT 'kept'")
    orders.synced("orders")
    equal(orders, 4)
