"""When Spark starts: during waits that are necessary anyway, and not at all if there is nothing to read."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from floodmark.log.claim import claim
from floodmark.log.log import Log
from floodmark.model.run import SyncOptions, new_run
from floodmark.store.store import Store
from floodmark.sync.run import sync
from tests.conftest import Silent, Workspace
from tests.support.held_sync import commits, descendants, until
from tests.support.orders import create_orders, fill_orders

pytestmark = pytest.mark.source


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    """A table that has been synced once, and settles slowly."""
    workspace.execute(create_orders(), fill_orders(100))
    workspace.synced("orders")
    workspace.write(defaults={"settle_seconds": 5})
    return workspace


def by_hand(orders: Workspace) -> None:
    """Lets the application write the cursor: then the whole settling time is waited for."""
    orders.execute("ALTER TABLE orders MODIFY update_at DATETIME NOT NULL")


def test_spark_starts_while_fresh_rows_settle_and_the_wait_is_shown(orders: Workspace) -> None:
    by_hand(orders)
    orders.execute("UPDATE orders SET note = 'new', update_at = NOW() WHERE id <= 70")
    before = len(commits(orders))
    process = orders.run.start("sync", "-t", "orders")
    until(
        lambda: process.poll() is not None or any(p.name == "java" for p in descendants(process.pid)),
        pause=0.05,
    )
    assert len(commits(orders)) == before  # the table is not even claimed
    _, said = process.communicate(60)
    assert process.returncode == 0
    assert said.splitlines().count("starting Spark") == 1
    assert orders.compare("orders").equal


def test_a_run_that_cannot_get_the_table_starts_no_spark(orders: Workspace) -> None:
    orders.execute("UPDATE orders SET note = 'new' WHERE id <= 70")
    config = orders.settings
    log = Log(Store(config.store), orders.full_name("orders"))
    held = claim(log, log.read(), run="another", purpose="sync")
    with held.lease:
        names = set()
        process = orders.run.start("sync", "-t", "orders", "--json")
        while process.poll() is None:
            names |= {p.name for p in descendants(process.pid)}
            time.sleep(0.05)
    assert (process.returncode, "java" in names) == (3, False)


def test_rows_that_an_old_transaction_holds_back_start_no_spark(orders: Workspace) -> None:
    orders.write(defaults={"settle_seconds": 0.5})
    link = orders.database.connect()
    link.cursor().execute("UPDATE orders SET note = 'open' WHERE id = 7")
    time.sleep(2)
    orders.execute("UPDATE orders SET note = 'new' WHERE id = 14")
    names = set()
    process = orders.run.start("sync", "-t", "orders", "--json")
    while process.poll() is None:
        names |= {p.name for p in descendants(process.pid)}
        time.sleep(0.05)
    link.close()
    assert (process.returncode, "java" in names) == (0, False)


def test_a_sync_waits_no_longer_than_a_row_needs_to_settle(orders: Workspace) -> None:
    """The settling time counts from the newest row, not from the run's start."""
    by_hand(orders)
    orders.execute("UPDATE orders SET note = 'new', update_at = NOW() WHERE id <= 70")
    time.sleep(4)  # of five, and up to one for the second to end
    orders.spark()
    began = time.monotonic()
    table = orders.synced("orders")
    assert table["rows_extracted"] == 10
    assert time.monotonic() - began < 5


def test_rows_are_final_without_settling_if_no_transaction_is_open(orders: Workspace) -> None:
    orders.write(defaults={"settle_seconds": 600})  # nobody would wait for that
    orders.execute("UPDATE orders SET note = 'new' WHERE id <= 70")
    assert orders.synced("orders")["rows_extracted"] == 10
    assert orders.compare("orders").equal


def test_a_sync_waits_for_a_transaction_that_ends_within_the_settling_time(orders: Workspace) -> None:
    orders.write(defaults={"settle_seconds": 8})
    orders.spark()
    link = orders.database.connect()
    link.cursor().execute("UPDATE orders SET note = 'late' WHERE id = 7")
    orders.execute("UPDATE orders SET note = 'new' WHERE id = 14")
    ends = threading.Timer(3, link.commit)  # later than rows are final where nothing is open
    ends.start()
    try:
        assert orders.synced("orders")["rows_extracted"] == 2
    finally:
        ends.join()
        link.close()
    assert orders.compare("orders").equal


def test_a_load_reads_the_ledger_once_before_and_not_after(
    orders: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from floodmark.load.duckdb.warehouse import DuckDB
    from floodmark.model.ledger import Part

    asked: list[str] = []
    real = DuckDB.ledger

    def ledger(self: DuckDB, log: str, target: str, part: Part | None = None) -> object:
        asked.append(target)
        return real(self, log, target, part)

    monkeypatch.setattr(DuckDB, "ledger", ledger)
    orders.write(defaults={"settle_seconds": 0.1})
    orders.execute("UPDATE orders SET note = 'new' WHERE id <= 70")
    report = sync(
        orders.settings, [orders.full_name("orders")], False, SyncOptions(),
        Silent(), new_run(), orders.spark(),
    )  # fmt: skip
    assert report.ok and report.tables[0].rows_loaded == 10
    assert asked == ["orders"]
    assert orders.compare("orders").equal


@pytest.mark.parametrize("after", [0.0, 0.1, 0.5])
def test_a_first_sync_that_is_interrupted_while_spark_starts_ends_at_once_and_leaves_nothing(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: float
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    workspace.execute(create_orders(), fill_orders(100))
    process = workspace.run.start("sync", "-t", "orders")
    until(lambda: any(p.name == "java" for p in descendants(process.pid)), pause=0.005)
    time.sleep(after)
    started = [p.pid for p in descendants(process.pid)]
    process.send_signal(signal.SIGINT)
    process.communicate(10)
    assert process.returncode == 130
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in started)
    assert not list(tmp_path.glob("floodmark-spark-*"))
