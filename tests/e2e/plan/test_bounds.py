"""How far a table may be read: what is still open holds back what came after it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import datetime

import pytest

from floodmark.model.errors import TransientError
from floodmark.model.open_work import OpenWork, Sight
from floodmark.source import open_work, time_zones
from floodmark.source.session import Session
from tests.conftest import Workspace
from tests.support.open_transactions import (
    ORDERS,
    ORDERS_IN_MICROSECONDS,
    equal,
    notes,
    old_rows,
    running,
    transaction,
)
from tests.support.orders import NOTE, create_orders

pytestmark = pytest.mark.source  # what the servers list of open work differs: tests of that have both


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(ORDERS_IN_MICROSECONDS)
    return workspace


@pytest.mark.both_servers
@pytest.mark.parametrize("digits", ["", "(6)"])
def test_a_transaction_open_during_planning_holds_back_later_rows(workspace: Workspace, digits: str) -> None:
    workspace.execute(create_orders(NOTE, f"DATETIME{digits}"), old_rows(3))
    with transaction(workspace, "INSERT INTO orders (note) VALUES ('slow')") as slow:
        time.sleep(2.1)
        workspace.execute("INSERT INTO orders (note) VALUES ('quick')")
        table = workspace.synced("orders")
        assert workspace.query("SELECT DISTINCT note FROM orders") == [("old",)]
        assert f"newer rows wait for the transaction of connection {slow.thread_id()} (root@" in notes(table)
        assert "INSERT" not in notes(table) and "slow" not in notes(table)
        slow.commit()
    assert workspace.synced("orders")["rows_extracted"] == 2
    equal(workspace, 5)


@pytest.mark.both_servers
@pytest.mark.parametrize("digits", ["", "(6)"])
def test_rows_that_are_open_while_a_sync_finds_nothing_new_are_read_once_they_are_committed(
    workspace: Workspace, digits: str
) -> None:
    workspace.execute(create_orders(NOTE, f"DATETIME{digits}"), old_rows(3))
    assert workspace.synced("orders")["rows_extracted"] == 3
    with transaction(workspace, "INSERT INTO orders (note) VALUES ('slow')") as slow:
        time.sleep(1.1)
        assert workspace.synced("orders")["rows_extracted"] == 0
        workspace.execute("INSERT INTO orders (note) VALUES ('quick')")
        assert workspace.synced("orders")["rows_extracted"] == 0  # held back
        slow.commit()
    assert workspace.synced("orders")["rows_extracted"] == 2
    equal(workspace, 5)


@pytest.mark.both_servers
def test_a_rolled_back_transaction_holds_nothing_back(orders: Workspace) -> None:
    with transaction(orders, "INSERT INTO orders (note) VALUES ('undone')") as undone:
        time.sleep(1.1)
        orders.execute("INSERT INTO orders (note) VALUES ('kept')")
        assert orders.sync("orders").exit_code == 4
        assert orders.sync("orders", since="2025-01-01", until="2099-01-01").exit_code == 4
        undone.rollback()
        assert orders.synced("orders")["rows_extracted"] == 1
    equal(orders, 1)


@pytest.mark.both_servers
def test_a_statement_waiting_for_a_metadata_lock_holds_back_later_rows(orders: Workspace) -> None:
    orders.execute("CREATE TABLE other (a INT)", "INSERT INTO other VALUES (1)")
    with (
        transaction(orders, "LOCK TABLES other WRITE") as lock,
        running(orders, "SET autocommit = 1", "INSERT INTO orders (note) SELECT 'waited' FROM other"),
    ):
        orders.execute("INSERT INTO orders (note) VALUES ('quick')")
        report = orders.sync("orders")
        assert report.exit_code == 4
        assert "all rows wait for the statement of connection" in str(report.tables[0].error)
        lock.cursor().execute("UNLOCK TABLES")
    orders.synced("orders")
    equal(orders, 2)


@pytest.mark.both_servers
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO orders (note) SELECT 'waited' FROM other",
        "UPDATE orders SET note = (SELECT 'waited' FROM other) WHERE id = 2",  # the number of rows stays
    ],
    ids=["insert", "update"],
)
def test_a_transaction_whose_statement_waited_before_it_began_holds_back_from_its_lowest_row(
    orders: Workspace, statement: str
) -> None:
    """Its NOW() is older than trx_started, by as long as it waited, and nothing but its rows shows it."""
    orders.execute("CREATE TABLE other (a INT)", "INSERT INTO other VALUES (1)", old_rows(3))
    orders.synced("orders")
    orders.execute("UPDATE orders SET note = 'moved' WHERE id = 2")
    with transaction(orders, "LOCK TABLES other WRITE") as lock:
        with running(orders, "BEGIN", statement) as (link, _):
            orders.execute("INSERT INTO orders (note) VALUES ('quick')")
            time.sleep(2.2)
            lock.cursor().execute("UNLOCK TABLES")
        with closing(link):
            assert "newer rows wait for the transaction of connection" in notes(orders.synced("orders"))
            link.commit()
    orders.synced("orders")
    found = orders.compare("orders")
    assert found.equal, found.differences


def test_a_statement_counts_from_the_start_of_its_clock_tick(workspace: Workspace) -> None:
    workspace.execute(
        ORDERS,
        "INSERT INTO orders (id, note, update_at) VALUES (9, 'old', '2025-03-01')",
    )
    slow = "INSERT INTO orders (id, note) SELECT 1, IF(GET_LOCK('gate', 60), 'slow', '')"
    with transaction(workspace, "SELECT GET_LOCK('gate', 0)") as gate:
        time.sleep(1.3 - datetime.now().microsecond / 1e6)
        # It begins at .3 of a second, and its cursor has the whole second, as that of the row beside it.
        with running(workspace, "SET autocommit = 1", slow) as (link, _):
            workspace.execute("INSERT INTO orders (note) VALUES ('quick')")
            workspace.synced("orders")
            gate.cursor().execute("SELECT RELEASE_LOCK('gate')")
        link.close()
    workspace.synced("orders")
    equal(workspace, 3)


def test_a_statement_that_is_over_a_moment_later_holds_nothing_back(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, a connection that is logging in looks like a statement of some seconds."""
    workspace.execute(
        ORDERS, old_rows(2), "INSERT INTO orders (update_at) VALUES (NOW() - INTERVAL 30 SECOND)"
    )
    looks: list[float] = []
    shown = open_work._statements

    def statements(session: Session, sight: Sight) -> list[OpenWork]:
        looks.append(open_work.now(session))
        brief = [OpenWork(looks[0] - 60, 10**9 + len(looks), "", "app@here")] if len(looks) <= 2 else []
        return [*brief, *shown(session, sight)]

    monkeypatch.setattr(open_work, "_statements", statements)
    assert workspace.synced("orders")["rows_extracted"] == 3
    assert len(looks) == 3


@pytest.mark.both_servers
def test_a_detached_prepared_transaction_holds_rows_back(orders: Workspace) -> None:
    with transaction(
        orders,
        "XA START 'x'",
        "INSERT INTO orders (note) VALUES ('prepared')",
        "XA END 'x'",
        "XA PREPARE 'x'",
    ):
        pass
    time.sleep(1.1)
    orders.execute("INSERT INTO orders (note) VALUES ('quick')")
    try:
        assert orders.sync("orders").exit_code == 4
    finally:
        with closing(orders.database.connect(autocommit=True)) as link:
            link.cursor().execute("XA COMMIT 'x'")
    orders.synced("orders")
    equal(orders, 2)


@pytest.mark.both_servers
def test_read_only_sessions_hold_nothing_back(orders: Workspace) -> None:
    orders.execute(old_rows(2))
    slow = "SELECT SLEEP(60) FROM orders LIMIT 1"
    with (
        transaction(orders, "START TRANSACTION WITH CONSISTENT SNAPSHOT", "SELECT * FROM orders"),
        running(orders, "SET autocommit = 1", slow) as (_, one),
        running(orders, "START TRANSACTION READ ONLY", slow) as (_, two),
        running(orders, "SET autocommit = 1", f"/* floodmark: extract */ {slow}") as (_, three),
    ):
        orders.execute("INSERT INTO orders (note) VALUES ('new')")
        table = orders.synced("orders")
        assert table["rows_extracted"] == 3
        assert "wait for" not in notes(table)
        for number in (one, two, three):
            orders.execute(f"KILL {number}")


POLL = """
import sys, time, pymysql
link = pymysql.connect(host=sys.argv[1], port=int(sys.argv[2]), user=sys.argv[3], password=sys.argv[4], autocommit=True)
cursor = link.cursor()
while True:
    cursor.execute("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_rows_modified > 0")
    print(cursor.fetchall()[0][0], flush=True)
    time.sleep(0.01)
"""


@pytest.mark.both_servers
def test_a_stale_transaction_list_is_not_trusted(
    orders: Workspace,
) -> None:
    orders.execute(old_rows(2))
    orders.synced("orders")
    server = orders.database.server
    who = [server.host, str(server.port), server.user, server.password]
    with subprocess.Popen([sys.executable, "-c", POLL, *who], stdout=subprocess.PIPE, text=True) as poll:
        try:
            assert poll.stdout is not None
            assert poll.stdout.readline() == "0\n"
            with transaction(orders, "INSERT INTO orders (note) VALUES ('slow')") as slow:
                time.sleep(1.2)
                orders.execute("INSERT INTO orders (note) VALUES ('quick')")
                threading.Timer(1.5, poll.kill).start()
                assert orders.synced("orders")["rows_extracted"] == 0
                slow.commit()
        finally:
            poll.kill()
    orders.synced("orders")
    equal(orders, 4)


@pytest.mark.parametrize("digits", ["", "(6)"])
def test_rows_committed_right_before_a_run_are_read(workspace: Workspace, digits: str) -> None:
    workspace.execute(create_orders(NOTE, f"DATETIME{digits}"), old_rows(2))
    for n in range(2):
        workspace.execute("INSERT INTO orders (note) VALUES ('just now')")
        assert workspace.synced("orders")["rows_extracted"] == (3, 1)[n]
    equal(workspace, 4)


def test_a_second_is_read_only_once_it_has_passed(workspace: Workspace) -> None:
    """Rows change back and forth in the key's order: those of one second come below one that was read."""
    workspace.execute(ORDERS, old_rows(300))
    stop = threading.Event()
    link = workspace.database.connect(autocommit=True)

    def change() -> None:
        while not stop.is_set():
            for key in range(300, 0, -7):
                link.cursor().execute(f"UPDATE orders SET note = UUID() WHERE id = {key}")
                time.sleep(0.002)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(3):
            workspace.synced("orders")
    finally:
        stop.set()
        changing.join()
        link.close()
    workspace.synced("orders")
    equal(workspace, 300)


def test_a_time_zone_change_during_planning_is_noticed(orders: Workspace) -> None:
    """A bound in the one zone and a newest row in the other would pass over rows, for good."""
    with closing(Session(orders.settings.source)) as session:
        zoned = time_zones.ZoneClock(session, "server")
        changed = "time zone changed to -07:00 while it was being read"
        before = zoned.offsets([0])
        try:
            orders.execute("SET GLOBAL time_zone = '-07:00'")
            with pytest.raises(TransientError, match=changed):
                zoned.now()
            with pytest.raises(TransientError, match=changed):
                zoned.offsets([900])
            assert time_zones.ZoneClock(session, "server").offsets([0]) == [-7 * 3600]
        finally:
            orders.execute("SET GLOBAL time_zone = 'SYSTEM'")
        assert zoned.now() and zoned.offsets([0]) == before


# ---------------------------------------------------------------- ids


@pytest.mark.both_servers
def test_an_id_is_held_back_while_a_smaller_one_can_still_commit(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE log (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(9))")
    workspace.execute("INSERT INTO log (note) VALUES ('a'), ('b')")
    assert workspace.synced("log")["rows_extracted"] == 2
    with transaction(workspace, "INSERT INTO log (note) VALUES ('slow')") as slow:
        workspace.execute("INSERT INTO log (note) VALUES ('quick')")
        table = workspace.synced("log")
        assert table["rows_extracted"] == 0
        assert f"newer rows wait for the transaction of connection {slow.thread_id()}" in notes(table)
        slow.commit()
    assert workspace.synced("log")["rows_extracted"] == 2
    # A statement that runs may have its id already and show no row yet: the run waits for it, for a while.
    with running(workspace, "SET autocommit = 1", "INSERT INTO log SELECT 7, IF(SLEEP(1.5), '', 'slow')"):
        workspace.execute("INSERT INTO log VALUES (8, 'quick')")
        assert workspace.synced("log")["rows_extracted"] == 2
    assert workspace.query("SELECT count(*), count(DISTINCT id) FROM log") == [(6, 6)]
    assert workspace.compare("log").equal


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync by id waits for half a second for what is open, not for three."""
    monkeypatch.setattr("floodmark.plan.bound.ID_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
def test_a_first_sync_by_id_reads_what_nobody_can_insert_below_and_fails_if_that_is_nothing(
    workspace: Workspace,
) -> None:
    workspace.execute("CREATE TABLE log (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(9))")
    workspace.execute("INSERT INTO log (id, note) VALUES (2, 'b'), (3, 'c')")
    with transaction(workspace, "INSERT INTO log (note) VALUES ('slow')") as slow:
        report = workspace.sync("log")
        [table] = report.tables
        assert (report.exit_code, table.rows_extracted) == (4, 0)
        who = f"transaction of connection {slow.thread_id()}"
        assert f"all rows wait for the {who}" in str(table.error) and who in table.held_back_by[0]
        assert table.watermark is not None and table.watermark["mysql_status"] == "failed"
        # The open transaction may take any id that is free; from now on, none below 4.
        workspace.execute("INSERT INTO log VALUES (1, 'a'), (7, 'g')")
        held = workspace.synced("log")
        assert held["rows_extracted"] == 3 and who in held["held_back_by"][0]
        slow.cursor().execute("INSERT INTO log VALUES (6, 'f')")
        assert workspace.synced("log")["rows_extracted"] == 0  # something was loaded before
        slow.commit()
    assert workspace.synced("log")["rows_extracted"] == 3
    assert workspace.compare("log").equal


@pytest.mark.usefixtures("impatient")
def test_a_first_sync_by_id_waits_for_an_open_transaction_that_has_picked_an_id_below_the_first(
    workspace: Workspace,
) -> None:
    workspace.execute("CREATE TABLE log (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(9))")
    workspace.execute("INSERT INTO log (note) VALUES ('a'), ('b')")
    with transaction(workspace, "INSERT INTO log VALUES (-1, 'picked')") as slow:
        assert workspace.sync("log").exit_code == 4
        slow.commit()
    assert workspace.synced("log")["rows_extracted"] == 3
    assert workspace.compare("log").equal


def test_an_empty_table_is_done_whatever_is_open(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE log (id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(9))")
    with transaction(workspace, "INSERT INTO log (note) VALUES ('slow')"):
        assert workspace.synced("log")["rows_extracted"] == 0
