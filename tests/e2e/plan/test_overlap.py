"""What is read again because the bound can't be trusted: no PROCESS privilege, a replica, an application's cursor."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from floodmark.config.load import SourceSpec
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source import ranges as edges
from floodmark.source.server import trust_in
from floodmark.source.session import Session
from tests.conftest import Database, Workspace
from tests.support.open_transactions import (
    ORDERS_BY_HAND,
    ORDERS_IN_MICROSECONDS,
    equal,
    notes,
    old_rows,
    transaction,
)

pytestmark = pytest.mark.source


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(ORDERS_IN_MICROSECONDS)
    return workspace


@pytest.fixture
def blind(orders: Workspace, server: DatabaseServer) -> Workspace:
    """A workspace whose user does not see what is open."""
    server.create_user("blind", "secret", f"SELECT ON {orders.database.name}.*")
    orders.write(source={"url": server.url(orders.database.name, "blind", "secret")})
    return orders


def test_without_the_process_privilege_the_last_ten_minutes_are_read_again_outside_the_limit(
    blind: Workspace,
) -> None:
    blind.execute(old_rows(4))
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


@pytest.mark.both_servers
@pytest.mark.parametrize("way", ["--read-only=1", "--innodb-read-only=1"])
def test_a_read_only_server_is_not_trusted(new_server: type[DatabaseServer], way: str) -> None:
    with new_server(args=[way]) as server:
        spec = SourceSpec(server.host, server.port, server.user, server.password)
        with Session(spec) as session:
            assert trust_in(session).replica


def test_an_overlap_that_has_not_changed_is_not_read_again(blind: Workspace) -> None:
    blind.execute(old_rows(30))
    blind.synced("orders")
    assert blind.synced("orders")["rows_reread"] == 10
    quiet = blind.synced("orders")
    assert (quiet["rows_reread"], quiet["commits"]) == (0, [])
    # One more row, far from the newest: that stretch is read again.
    blind.execute("INSERT INTO orders (note, update_at) VALUES ('late', '2025-03-01 00:25:30')")
    assert blind.synced("orders")["rows_reread"] == 11
    equal(blind, 31)


def test_an_overlap_hashed_differently_by_an_earlier_version_is_read_once_more(
    blind: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind.execute(old_rows(30))
    with monkeypatch.context() as earlier:
        earlier.setattr(edges, "_STRONG", "CRC32({})")
        blind.synced("orders")
        assert [blind.synced("orders")["rows_reread"] for _ in range(2)] == [10, 0]
    blind.execute("INSERT INTO orders (note, update_at) VALUES ('late', '2025-03-01 00:25:30')")
    assert [blind.synced("orders")["rows_reread"] for _ in range(2)] == [11, 0]
    equal(blind, 31)


def test_a_row_that_changes_again_within_its_clock_tick_is_read_again(blind: Workspace) -> None:
    """Its place stays the same; the server can't tell us that the second change was still open."""
    blind.execute("INSERT INTO orders (note) VALUES ('a'), ('b')")
    for _ in range(4):
        last = blind.synced("orders")
    assert last["commits"] == []
    blind.execute("UPDATE orders SET note = 'c', update_at = update_at WHERE id = 1")
    assert blind.synced("orders")["rows_reread"] == 2
    equal(blind, 2)


def test_a_cursor_written_by_the_application_gets_a_ten_minute_overlap(workspace: Workspace) -> None:
    workspace.execute(ORDERS_BY_HAND, old_rows(60))
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
    blind.execute(old_rows(30))
    blind.synced("orders")
    blind.execute("INSERT INTO orders (note) VALUES ('new')")
    table = blind.synced("orders")
    assert (table["rows_extracted"], table["rows_reread"]) == (1, 0)
    assert "read again" not in notes(table)


def test_without_a_key_a_note_says_what_cannot_be_read_again(blind: Workspace) -> None:
    name = blind.full_name("logged")
    blind.execute(
        "CREATE TABLE logged (n INT, at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, KEY (at))",
        "INSERT INTO logged VALUES (1, '2025-03-01')",
    )
    blind.write(tables={name: {"mode": "append", "cursor": "at"}})
    said = notes(blind.synced("logged"))
    assert "without a key nothing can be read again" in said and "PROCESS" in said
    blind.write(tables={name: {"mode": "append", "cursor": "at", "overlap_seconds": 0}})
    assert "without a key" not in notes(blind.synced("logged"))


PLUGINS = Path(__file__).parents[3] / ".venv/mariadb/usr/lib/mysql/plugin"


@pytest.mark.mariadb_only
@pytest.mark.skipif(not (PLUGINS / "ha_federatedx.so").exists(), reason=f"no ha_federatedx.so in {PLUGINS}")
def test_a_transaction_of_an_engine_that_is_not_seen_is_read_again_or_refused(
    make_workspace: Callable[..., Workspace], new_server: type[DatabaseServer]
) -> None:
    """FederatedX: the rows and their transactions are those of another server."""
    keyless = "(n INT, at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, KEY (at))"
    there = [ORDERS_IN_MICROSECONDS, f"CREATE TABLE logged {keyless}"]
    args = [f"--plugin-dir={PLUGINS.resolve()}", "--plugin-load-add=ha_federatedx"]
    with new_server() as remote, new_server(args=args) as local:
        for server in (remote, local):
            server.execute("CREATE DATABASE shop")
        remote.execute(*there, database="shop")
        to = f"mysql://{remote.user}:{remote.password}@{remote.host}:{remote.port}/shop"
        for create, name in zip(there, ("orders", "logged"), strict=True):
            local.execute(f"{create} ENGINE=FEDERATED CONNECTION='{to}/{name}'", database="shop")
        orders = make_workspace(Database(local, "shop"), store={"url": "./lake"})
        read_by = {"mode": "upsert", "key": ["id"], "cursor": "update_at"}
        orders.write(tables={"shop.orders": read_by, "shop.logged": {"mode": "append", "cursor": "at"}})
        with transaction(orders, "INSERT INTO orders (note) VALUES ('slow')") as slow:
            time.sleep(0.1)
            orders.execute("INSERT INTO orders (note) VALUES ('quick')")
            first = orders.synced("orders")
            assert first["rows_extracted"] == 1 and "engine is FEDERATED" in notes(first)
            slow.commit()
        assert orders.synced("orders")["rows_reread"] == 2
        equal(orders, 2)
        refused = orders.sync("logged")
        assert refused.exit_code == 6 and "engine FEDERATED" in str(refused.tables[0].error)
