"""The load on the source: never more connections than allowed, and a pause while the server is busy or far behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from floodmark.model.errors import TransientError
from floodmark.model.events import Event, Noted
from floodmark.model.run import SyncOptions, SyncReport, new_run
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source import connections as throttle
from floodmark.sync.run import sync
from tests.conftest import Database, Silent, Workspace
from tests.support.held_sync import until
from tests.support.orders import create_orders, fill_orders
from tests.support.replicas import Pair, replicated

pytestmark = pytest.mark.source


class Told(Silent):
    """Watches a run, and keeps what was said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Noted):
            self.notes.append(event.text)


def run(workspace: Workspace, told: Told) -> SyncReport:
    config = workspace.settings
    return sync(config, ["orders"], False, SyncOptions(), told, new_run(), workspace.spark())


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(), fill_orders(400))
    workspace.write(defaults={"slice_rows": 50})
    return workspace


class Busy:
    """So many connections that run something on the server."""

    def __init__(self, database: Database, threads: int) -> None:
        links = [database.connect() for _ in range(threads)]
        self._numbers = [link.thread_id() for link in links]
        self._threads = [threading.Thread(target=self._sleep, args=(link,)) for link in links]
        self._database = database

    def _sleep(self, link: Any) -> None:
        try:
            link.cursor().execute("SELECT SLEEP(600)")
        except Exception:
            return

    def __enter__(self) -> Busy:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for number, thread in zip(self._numbers, self._threads, strict=True):
            self._database.execute(f"KILL {number}")
            thread.join(10)


def test_a_sync_waits_for_a_busy_server_and_says_so(orders: Workspace) -> None:
    orders.write(source={"pause_when": {"threads_running": 10}})
    told, reports = Told(), list[SyncReport]()
    with Busy(orders.database, 15):
        aside = threading.Thread(target=lambda: reports.append(run(orders, told)))
        aside.start()
        until(lambda: any("paused: " in note for note in told.notes), 60)
        time.sleep(2)
        assert not reports
    aside.join(60)
    assert reports and reports[0].ok, reports[0].tables[0].error
    assert sum("paused: " in note and "more than 10" in note for note in told.notes) == 1
    assert sum("resuming after a pause of" in note for note in told.notes) == 1
    assert orders.compare("orders").equal


def test_a_server_that_stays_busy_is_exit_code_4(orders: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "LONGEST_PAUSE", 2.0)
    orders.write(source={"pause_when": {"threads_running": 10}})
    with Busy(orders.database, 15):
        report = run(orders, Told())
    assert report.exit_code == TransientError.code
    assert "busy" in str(report.tables[0].error)
    orders.synced("orders")  # nothing is lost, and nothing held
    assert orders.compare("orders").equal


@pytest.mark.parametrize("limit", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_run_over_several_tables_never_has_more_connections_than_allowed(
    workspace: Workspace, limit: int
) -> None:
    names = [f"t{i}" for i in range(4)]
    for name in names:
        workspace.execute(create_orders(name=name), fill_orders(200, name=name))
    user = f"limited{limit}"
    workspace.database.server.create_user(user, "limited-pw", "SELECT ON *.*", "PROCESS ON *.*")
    url = workspace.database.server.url(workspace.database.name, user, "limited-pw")
    workspace.write(source={"url": url, "max_connections": limit}, defaults={"slice_rows": 20})
    stop, seen = threading.Event(), [0]

    def watch() -> None:
        with closing(workspace.database.connect(autocommit=True)) as link:
            cursor = link.cursor()
            while not stop.is_set():
                cursor.execute(f"SELECT COUNT(*) FROM information_schema.processlist WHERE USER = '{user}'")
                seen.append(int(cursor.fetchone()[0]))
                time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    report = workspace.sync(*names)
    stop.set()
    watcher.join()
    assert report.ok, [t.error for t in report.tables]
    assert sum(t.rows_loaded for t in report.tables) == 800
    # A server may still list a connection for a moment after its client has closed it.
    over = [n for n in seen if n > limit]
    assert max(seen) >= 1 and len(over) <= len(seen) * 0.02, (max(seen), len(over), len(seen))


def test_a_sync_waits_for_a_replica_that_is_behind(
    new_server: type[DatabaseServer], make_workspace: Callable[..., Workspace]
) -> None:
    with replicated(new_server) as pair:
        waited_for(pair, make_workspace)


def waited_for(pair: Pair, make_workspace: Callable[..., Workspace]) -> None:
    primary, second = pair.primary, pair.replica
    primary.execute("CREATE DATABASE shop")
    primary.execute(create_orders(), fill_orders(400), database="shop")
    pair.caught_up("SELECT COUNT(*) FROM shop.orders")
    workspace = make_workspace(Database(second, "shop"), store={"url": "./lake"})
    workspace.write(source={"pause_when": {"replica_lag": "2s"}})
    told, reports = Told(), list[SyncReport]()
    # The replica's own thread waits for this lock, and falls behind.
    with closing(second.connect("shop")) as link:
        link.cursor().execute("LOCK TABLES orders READ")
        primary.execute("UPDATE orders SET note = 'late' WHERE id = 7", database="shop")
        aside = threading.Thread(target=lambda: reports.append(run(workspace, told)))
        time.sleep(4)
        aside.start()
        until(lambda: any("is a replica that is" in note for note in told.notes), 60)
        assert not reports
    aside.join(60)
    assert reports and reports[0].ok, reports[0].tables[0].error
    workspace.synced("orders")
    assert workspace.compare("orders").equal
