"""Servers in the world's time zones: no row is lost, and none waits for hours."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from floodmark.setup.services.databases import DatabaseServer, clocks_go_back
from tests.conftest import Database, Workspace

pytestmark = pytest.mark.source

CREATE = """CREATE TABLE {name} (
  id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(20),
  update_at {type} NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, KEY (update_at))"""

# The tables, and their writers' zone: the server's, or a configured one.
WRITERS = {"clock": None, "moment": None, "in_utc": "+00:00", "in_tokyo": "+09:00"}
ZONES = {"in_utc": "UTC", "in_tokyo": "Asia/Tokyo"}


def prepared(server: DatabaseServer, make_workspace: Callable[..., Workspace]) -> Workspace:
    server.execute(
        "CREATE DATABASE d",
        *(
            CREATE.format(name=f"d.{name}", type="TIMESTAMP" if name == "moment" else "DATETIME")
            for name in WRITERS
        ),
    )
    tables = {f"d.{name}": {"cursor_timezone": zone} for name, zone in ZONES.items()}
    return make_workspace(Database(server, "d"), store={"url": "./lake"}, tables=tables)


def writer(workspace: Workspace, zone: str | None) -> Any:
    link = workspace.database.connect()
    if zone:
        link.cursor().execute(f"SET time_zone = '{zone}'")
    return link


def write(links: dict[str, Any], note: str) -> None:
    """One row into each table, left to be committed."""
    for name, link in links.items():
        link.cursor().execute(f"INSERT INTO {name} (note) VALUES ('{note}')")


def commit(links: dict[str, Any]) -> None:
    for link in links.values():
        link.commit()


def extracted(workspace: Workspace) -> dict[str, int]:
    """The rows that a sync of all tables reads, none of them as one from the future."""
    report = workspace.sync(*WRITERS)
    assert report.ok, [t.error for t in report.tables]
    # In the server's own zone, sessions that are west of it are followed back.
    assert all(t.rows_reread == 0 for t in report.tables if t.table != "d.clock")
    print(*(f"{t.table}: {note}" for t in report.tables for note in t.notes), sep="\n")  # who held rows back
    return {t.table.partition(".")[2]: t.rows_extracted for t in report.tables}


def each(rows: int) -> dict[str, int]:
    return dict.fromkeys(WRITERS, rows)


@pytest.mark.parametrize(
    "zones",
    [
        pytest.param({"system_time_zone": "Asia/Shanghai"}, marks=pytest.mark.long),
        pytest.param({"system_time_zone": "America/Los_Angeles"}, marks=pytest.mark.long),
        {"system_time_zone": "America/Los_Angeles", "default_time_zone": "+08:00"},
    ],
    ids=["shanghai", "los-angeles", "a default that is not the system's"],
)
def test_rows_arrive_at_once_and_open_transactions_hold_back_only_later_rows(
    zones: dict[str, str], make_workspace: Callable[..., Workspace], new_server: type[DatabaseServer]
) -> None:
    with new_server(**zones) as server:
        workspace = prepared(server, make_workspace)
        slow = {name: writer(workspace, zone) for name, zone in WRITERS.items()}
        quick = {name: writer(workspace, zone) for name, zone in WRITERS.items()}
        write(quick, "before")
        commit(quick)
        assert extracted(workspace) == each(1)
        write(quick, "before too")
        commit(quick)
        time.sleep(2.1)
        write(slow, "slow")
        time.sleep(1.1)
        write(quick, "quick")
        commit(quick)
        assert extracted(workspace) == each(1)  # those from before the transactions, and not those from after
        commit(slow)
        assert extracted(workspace) == each(2)
        for name in WRITERS:
            found = workspace.compare(name)
            assert found.equal, found.differences


def soon(server: DatabaseServer) -> datetime:
    """Restart the server so that its clocks go back in a few seconds; the moment."""
    for seconds in (6, 15, 60):
        moment = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
        server.stop()
        server.system_time_zone = clocks_go_back(moment)
        server.start()
        if datetime.now(UTC) < moment - timedelta(seconds=2.5):
            return moment
    raise AssertionError("the machine is too slow for this test")


def test_on_the_night_when_the_clocks_go_back_no_row_is_lost_and_none_waits_for_an_hour(
    make_workspace: Callable[..., Workspace], new_server: type[DatabaseServer]
) -> None:
    with new_server(system_time_zone=clocks_go_back(datetime.now(UTC) + timedelta(hours=12))) as server:
        workspace = prepared(server, make_workspace)
        links = {name: writer(workspace, zone) for name, zone in WRITERS.items()}
        write(links, "first pass")
        commit(links)
        assert extracted(workspace) == each(1)
        moment = soon(server)
        links = {name: writer(workspace, zone) for name, zone in WRITERS.items()}
        time.sleep((moment - datetime.now(UTC)).total_seconds() - 1.5)
        write(links, "right before")
        commit(links)
        write(links, "across")  # these transactions stay open while the clocks go back
        time.sleep(3)
        with closing(workspace.database.connect(autocommit=True)) as others:
            for name in ("clock", "moment"):
                others.cursor().execute(f"INSERT INTO {name} (note) VALUES ('second pass')")
                others.cursor().execute(f"UPDATE {name} SET note = 'changed' WHERE id = 1")
            assert workspace.sync(*WRITERS).ok
            commit(links)
            # Nothing is open any more: one sync brings everything, though its cursors are an hour old or new.
            report = workspace.sync(*WRITERS)
            assert report.ok
            for name in WRITERS:
                found = workspace.compare(name)
                held = [(t.table, t.held_back_by, t.complete_at) for t in report.tables]
                assert found.equal, (name, found.differences, held)
            reread = {t.table.partition(".")[2]: t.rows_reread for t in report.tables}
            assert reread["clock"] > 0 and reread["moment"] == reread["in_utc"] == reread["in_tokyo"] == 0
            # A row that is written again at a wall clock that was shown before keeps its place in the order.
            others.cursor().execute("UPDATE clock SET note = 'again', update_at = update_at WHERE id = 2")
            assert workspace.sync("clock").ok
            assert workspace.compare("clock").equal
            # Nor is the source taken for one that was set back when no row is left at the watermark.
            others.cursor().execute("UPDATE clock SET note = 'all of them'")
        assert workspace.sync("clock").exit_code == 0
        assert workspace.compare("clock").equal
