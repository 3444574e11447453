"""How far a table may be read: what is still open, late, without a place in the order, set back or interrupted."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from typing import Any

import MySQLdb
import pytest

from floodmark import sync as pipeline
from floodmark.config import SourceSpec, load
from floodmark.errors import TransientError
from floodmark.mysql.bounds import trust
from floodmark.mysql.connect import Session
from floodmark.planview import plan
from floodmark.report import SyncOptions, new_run
from floodmark.testing.services import MariaDB
from tests.conftest import Silent, Workspace

ORDERS = """CREATE TABLE orders (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(40),
  update_at DATETIME{digits} NOT NULL DEFAULT CURRENT_TIMESTAMP{digits} ON UPDATE CURRENT_TIMESTAMP{digits},
  KEY (update_at))"""
# The same, kept current by the application and not by the server.
BY_HAND = """CREATE TABLE orders (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(40), update_at DATETIME, KEY (update_at))"""
OLD = (
    "INSERT INTO orders (note, update_at) SELECT 'old', '2025-03-01' + INTERVAL seq MINUTE FROM seq_1_to_{n}"
)


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(ORDERS.format(digits="(6)"))
    return workspace


@contextmanager
def transaction(workspace: Workspace, *statements: str) -> Iterator[Any]:
    """A connection whose transaction has run the statements and stays open."""
    link = workspace.database.connect()
    try:
        for statement in statements:
            link.cursor().execute(statement)
        yield link
    finally:
        link.close()


@contextmanager
def running(workspace: Workspace, *statements: str) -> Iterator[tuple[Any, int]]:
    """A connection, and its number, that runs the last statement aside; leaving waits for that to end."""
    link = workspace.database.connect()
    *first, last = statements
    for statement in first:
        link.cursor().execute(statement)

    def run() -> None:
        with suppress(MySQLdb.OperationalError):
            link.cursor().execute(last)

    number = link.thread_id()
    aside = threading.Thread(target=run)
    aside.start()
    time.sleep(0.1)
    try:
        yield link, number
    except BaseException:
        workspace.execute(f"KILL {number}")  # what it waits for may never come
        raise
    finally:
        aside.join()


def equal(workspace: Workspace, rows: int) -> None:
    found = workspace.compare("orders")
    assert found.equal, found.differences
    assert found.source_rows == rows


def notes(table: dict[str, Any]) -> str:
    return "\n".join(table["notes"])


# ---------------------------------------------------------------- what is still open


@pytest.mark.parametrize("digits", ["", "(6)"])
def test_a_transaction_that_was_open_at_planning_holds_back_what_came_after_it(
    workspace: Workspace, digits: str
) -> None:
    workspace.execute(ORDERS.format(digits=digits), OLD.format(n=3))
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


def test_a_transaction_that_is_rolled_back_holds_back_no_longer(orders: Workspace) -> None:
    with transaction(orders, "INSERT INTO orders (note) VALUES ('undone')") as undone:
        time.sleep(1.1)
        orders.execute("INSERT INTO orders (note) VALUES ('kept')")
        assert orders.synced("orders")["rows_extracted"] == 0
        undone.rollback()
        assert orders.synced("orders")["rows_extracted"] == 1
    equal(orders, 1)


def test_a_statement_that_waits_for_a_metadata_lock_holds_back_what_came_after_it(orders: Workspace) -> None:
    orders.execute("CREATE TABLE other (a INT)", "INSERT INTO other VALUES (1)")
    with (
        transaction(orders, "LOCK TABLES other WRITE") as lock,
        running(orders, "SET autocommit = 1", "INSERT INTO orders (note) SELECT 'waited' FROM other"),
    ):
        orders.execute("INSERT INTO orders (note) VALUES ('quick')")
        table = orders.synced("orders")
        assert table["rows_extracted"] == 0
        assert "newer rows wait for the statement of connection" in notes(table)
        lock.cursor().execute("UNLOCK TABLES")
    orders.synced("orders")
    equal(orders, 2)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO orders (note) SELECT 'waited' FROM other",
        "UPDATE orders SET note = (SELECT 'waited' FROM other) WHERE id = 2",  # the number of rows stays
    ],
    ids=["insert", "update"],
)
def test_a_transaction_whose_statement_waited_before_it_began_holds_back_by_its_rows(
    orders: Workspace, statement: str
) -> None:
    """Its NOW() is older than trx_started, by as long as it waited, and nothing but its rows shows it."""
    orders.execute("CREATE TABLE other (a INT)", "INSERT INTO other VALUES (1)", OLD.format(n=3))
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


def test_a_statement_counts_from_the_beginning_of_its_tick(workspace: Workspace) -> None:
    workspace.execute(
        ORDERS.format(digits=""),
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


def test_a_prepared_transaction_that_its_connection_has_left_holds_back(orders: Workspace) -> None:
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
        assert orders.synced("orders")["rows_extracted"] == 0
    finally:
        with closing(orders.database.connect(autocommit=True)) as link:
            link.cursor().execute("XA COMMIT 'x'")
    orders.synced("orders")
    equal(orders, 2)


def test_whoever_only_reads_holds_nothing_back(orders: Workspace) -> None:
    orders.execute(OLD.format(n=2))
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
import sys, time, MySQLdb
link = MySQLdb.connect(host=sys.argv[1], port=int(sys.argv[2]), user=sys.argv[3], passwd=sys.argv[4], autocommit=True)
cursor = link.cursor()
while True:
    cursor.execute("SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_rows_modified > 0")
    print(cursor.fetchall()[0][0], flush=True)
    time.sleep(0.01)
"""


def test_a_list_of_transactions_that_is_asked_for_all_the_time_and_so_grows_old_is_not_believed(
    orders: Workspace,
) -> None:
    orders.execute(OLD.format(n=2))
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
def test_rows_committed_right_before_a_run_are_in_it(workspace: Workspace, digits: str) -> None:
    workspace.execute(ORDERS.format(digits=digits), OLD.format(n=2))
    for n in range(2):
        workspace.execute("INSERT INTO orders (note) VALUES ('just now')")
        assert workspace.synced("orders")["rows_extracted"] == (3, 1)[n]
    equal(workspace, 4)


def test_a_second_is_read_only_when_it_is_over(workspace: Workspace) -> None:
    """Rows change back and forth in the key's order: those of one second come below one that was read."""
    workspace.execute(ORDERS.format(digits=""), OLD.format(n=300))
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


# ---------------------------------------------------------------- where the bound can't be trusted


@pytest.fixture
def blind(orders: Workspace, mariadb: MariaDB) -> Workspace:
    """A workspace whose user does not see what is open."""
    mariadb.create_user("blind", "secret", f"SELECT ON {orders.database.name}.*")
    orders.write(source={"url": mariadb.url(orders.database.name, "blind", "secret")})
    return orders


def test_without_the_process_privilege_the_last_ten_minutes_are_read_again_outside_the_limit(
    blind: Workspace,
) -> None:
    blind.execute(OLD.format(n=4))
    with transaction(blind, "INSERT INTO orders (note) VALUES ('slow')") as slow:
        time.sleep(0.1)
        blind.execute("INSERT INTO orders (note) VALUES ('quick')")
        first = blind.synced("orders")
        assert "PROCESS" in notes(first)
        assert (first["rows_extracted"], first["rows_reread"]) == (5, 0)
        slow.commit()
    blind.execute("INSERT INTO orders (note) VALUES ('new'), ('newer')")
    second = blind.synced("orders", limit=1)
    assert (second["rows_extracted"], second["rows_reread"]) == (1, 2)
    third = blind.synced("orders")
    assert third["rows_extracted"] == 1
    equal(blind, 8)


def test_a_replica_is_not_trusted() -> None:
    with MariaDB(args=["--read-only=1"]) as server:
        spec = SourceSpec(server.host, server.port, server.user, server.password)
        with Session(spec) as session:
            assert any("replica" in reason for reason in trust(session).reasons)


def test_an_overlap_that_has_not_changed_is_not_read_again(blind: Workspace) -> None:
    blind.execute(OLD.format(n=30))
    blind.synced("orders")
    assert blind.synced("orders")["rows_reread"] == 10
    quiet = blind.synced("orders")
    assert (quiet["rows_reread"], quiet["commits"]) == (0, [])
    # One more row, far from the newest: that stretch is read again.
    blind.execute("INSERT INTO orders (note, update_at) VALUES ('late', '2025-03-01 00:25:30')")
    assert blind.synced("orders")["rows_reread"] == 11
    equal(blind, 31)


def test_a_row_that_changes_once_more_within_its_tick_is_read_again(blind: Workspace) -> None:
    """Its place stays the same; the server can't tell us that the second change was still open."""
    blind.execute("INSERT INTO orders (note) VALUES ('a'), ('b')")
    for _ in range(4):
        last = blind.synced("orders")
    assert last["commits"] == []
    blind.execute("UPDATE orders SET note = 'c', update_at = update_at WHERE id = 1")
    assert blind.synced("orders")["rows_reread"] == 2
    equal(blind, 2)


def test_a_cursor_that_the_application_writes_is_followed_ten_minutes_back(workspace: Workspace) -> None:
    workspace.execute(BY_HAND, OLD.format(n=60))
    assert "written by the application" in notes(workspace.synced("orders"))
    workspace.execute("INSERT INTO orders (note, update_at) VALUES ('late', '2025-03-01 00:51:00')")
    assert workspace.synced("orders")["rows_reread"] == 11
    equal(workspace, 61)
    # What comes later still is beyond the promise, unless the configuration says otherwise.
    workspace.execute("INSERT INTO orders (note, update_at) VALUES ('very late', '2025-03-01 00:20:00')")
    assert workspace.synced("orders")["rows_reread"] == 0
    workspace.write(defaults={"overlap_seconds": 3600})
    workspace.synced("orders")
    equal(workspace, 62)


def test_overlap_seconds_0_reads_nothing_again(blind: Workspace) -> None:
    blind.write(defaults={"overlap_seconds": 0})
    blind.execute(OLD.format(n=30))
    blind.synced("orders")
    blind.execute("INSERT INTO orders (note) VALUES ('new')")
    table = blind.synced("orders")
    assert (table["rows_extracted"], table["rows_reread"]) == (1, 0)
    assert "read again" not in notes(table)


# ---------------------------------------------------------------- ids


def test_an_id_waits_until_every_smaller_one_can_no_longer_come(workspace: Workspace) -> None:
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


# ---------------------------------------------------------------- without a place in the order


def test_null_and_future_cursors_are_read_by_every_sync_and_move_nothing(workspace: Workspace) -> None:
    workspace.write(defaults={"overlap_seconds": 0})
    workspace.execute(
        BY_HAND,
        OLD.format(n=3),
        "INSERT INTO orders (note, update_at) VALUES ('none', NULL), ('far', '2099-01-01'), ('none', NULL)",
    )
    table = workspace.synced("orders")
    assert (table["rows_extracted"], table["rows_reread"]) == (3, 3)
    assert "3 rows with a NULL cursor or one in the future" in notes(table)
    assert table["watermark"]["last_mysql_data_timestamp"] == "2025-03-01T00:03:00.000000"
    equal(workspace, 6)
    # Corrected to now, and changed without a cursor: both arrive, and the later read wins.
    workspace.execute(
        "UPDATE orders SET note = 'corrected', update_at = NOW() WHERE note = 'far'",
        "UPDATE orders SET note = 'still none' WHERE id = 4",
    )
    table = workspace.synced("orders")
    assert (table["rows_extracted"], table["rows_reread"]) == (1, 2)
    equal(workspace, 6)


def test_a_cursor_without_an_index_is_read_all_the_same(workspace: Workspace) -> None:
    workspace.execute(ORDERS.format(digits="").replace(",\n  KEY (update_at)", ""), OLD.format(n=2000))
    workspace.write(defaults={"slice_rows": 300})
    table = workspace.synced("orders", strategy="intra-table")
    assert table["rows_extracted"] == 2000
    assert "No index begins with update_at" in notes(table)
    workspace.execute("UPDATE orders SET note = 'new' WHERE id % 4 = 1")
    assert workspace.synced("orders", limit=130)["rows_extracted"] == 130
    assert workspace.synced("orders", strategy="sequential")["rows_extracted"] == 370
    equal(workspace, 2000)


def test_rows_at_or_before_the_start_are_counted_and_left_out(workspace: Workspace) -> None:
    workspace.execute(ORDERS.format(digits=""), OLD.format(n=30))
    workspace.write(defaults={"start": "2025-03-01 00:12:00"})
    assert plan(load(workspace.folder / "floodmark.yaml"), "orders", SyncOptions()).plan.before_start == 12
    table = workspace.synced("orders")
    assert table["rows_extracted"] == 18
    assert "12 rows at or before" in notes(table)
    assert "rows at or before" not in notes(workspace.synced("orders"))


# ---------------------------------------------------------------- set back


def restored(workspace: Workspace) -> None:
    """The table as it was before its last row."""
    workspace.execute("CREATE TABLE backup AS SELECT * FROM orders WHERE id < 10", "TRUNCATE orders")
    workspace.execute("INSERT INTO orders SELECT * FROM backup")


def deleted(workspace: Workspace) -> None:
    workspace.execute("DELETE FROM orders WHERE id = 10")


def left_the_where(workspace: Workspace) -> None:
    workspace.execute("UPDATE orders SET note = 'gone' WHERE id = 10")


@pytest.mark.parametrize(("change", "code"), [(restored, 6), (deleted, 0), (left_the_where, 0)])
def test_a_source_that_was_set_back_stops_the_run_and_one_whose_newest_row_is_gone_does_not(
    workspace: Workspace, change: Callable[[Workspace], None], code: int
) -> None:
    name = f"{workspace.database.name}.orders"
    workspace.write(tables={name: {"where": "note <> 'gone'"}})
    workspace.execute(ORDERS.format(digits=""), OLD.format(n=10))
    workspace.synced("orders")
    change(workspace)
    report = workspace.sync("orders")
    assert report.exit_code == code
    if code:
        error = report.tables[0].error
        assert error is not None and "set back" in error.message and "watermark set" in (error.hint or "")


# ---------------------------------------------------------------- interrupted


class Dies(Silent):
    """Ends a run with its n-th result, after the earlier ones have been committed."""

    def __init__(self, results: int) -> None:
        self.left = results

    def advance(self, table: str, stage: str, rows: int, files: int, bytes: int) -> None:
        self.left -= stage == "extract"
        if self.left <= 0:
            raise TransientError("the power is gone")


def interrupted(workspace: Workspace, results: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    """A run that dies with its n-th result; the rows that it has committed."""
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "COMMIT_EVERY", 0)
        report = pipeline.sync(
            load(workspace.folder / "floodmark.yaml"), [f"{workspace.database.name}.orders"], False,
            SyncOptions(**options), Dies(results), new_run(), spark=workspace.spark(),
        )  # fmt: skip
    assert report.exit_code == 4
    return report.tables[0].rows_extracted


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("intra-table", {}),
        ("intra-table", {"strategy": "sequential"}),
        ("intra-table", {"limit": 350, "max_chunks": 2}),
        ("sequential", {"strategy": "intra-table"}),
        ("sequential", {"limit": 700}),
    ],
)
def test_an_interrupted_window_is_finished_without_reading_again_what_was_committed(
    workspace: Workspace, first: str, then: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.execute(ORDERS.format(digits=""), OLD.format(n=4000))
    workspace.write(defaults={"slice_rows": 500})
    done = interrupted(workspace, 4, monkeypatch, strategy=first)
    assert 1000 <= done <= 2000
    # What comes meanwhile is a window of its own.
    workspace.execute("INSERT INTO orders (note) VALUES ('new')")
    table = workspace.synced("orders", **then)
    if then.get("limit"):
        assert table["rows_extracted"] == 700
        assert workspace.synced("orders")["rows_extracted"] == 4001 - done - 700
    else:
        assert table["rows_extracted"] == 4001 - done
    equal(workspace, 4001)


# ---------------------------------------------------------------- slices


def test_sparse_ids_make_no_empty_slices(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.execute(ORDERS.format(digits=""))
    at = "'2025-03-01' + INTERVAL seq SECOND"
    for first in (1, 10**6, 10**12):
        workspace.execute(f"INSERT INTO orders SELECT {first} + seq, 'x', {at} FROM seq_1_to_1000")
    workspace.execute(
        f"INSERT INTO orders VALUES ({9 * 10**18}, 'far', '2025-03-01')", "ANALYZE TABLE orders"
    )
    workspace.write(defaults={"slice_rows": 300})
    monkeypatch.setattr(pipeline, "COMMIT_EVERY", 0)
    table = workspace.synced("orders", strategy="intra-table")
    assert table["rows_extracted"] == 3001
    log = workspace.folder / "lake" / "commits" / f"{workspace.database.name}.orders"
    batches = [
        c for c in map(json.loads, (p.read_text() for p in sorted(log.iterdir()))) if c["kind"] == "batch"
    ]
    sizes = [sum(f["rows"] for f in c["files"]) for c in batches]
    assert len(sizes) >= 8
    assert min(sizes) > 0 and max(sizes) < 1000
    equal(workspace, 3001)
