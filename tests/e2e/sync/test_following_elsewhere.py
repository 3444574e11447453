"""Tables that follow the binary log of one server, and then another one: a replica, late or promoted, or several at one address."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from floodmark.setup.services.databases import DatabaseServer
from tests.conftest import Database, Workspace
from tests.support.balancer import Balancer
from tests.support.replicas import Pair, replicated

pytestmark = pytest.mark.both_servers

ASK = "SELECT COUNT(*), SUM(CRC32(note)), SUM(id) FROM shop.orders"


@pytest.fixture
def pair(new_server: type[DatabaseServer]) -> Iterator[Pair]:
    """Both with a table."""
    with replicated(new_server) as pair:
        pair.primary.execute("CREATE DATABASE shop")
        grants = [f"{g} ON *.*" for g in ("PROCESS", "SELECT", "REPLICATION SLAVE", "REPLICATION CLIENT")]
        pair.primary.create_user("reads", "reads-pw", *grants)
        pair.primary.execute("CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40))", database="shop")
        pair.primary.execute("CREATE TABLE idle (id INT PRIMARY KEY, note VARCHAR(40))", database="shop")
        pair.primary.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b'), (3, 'c')", database="shop")
        pair.primary.execute("INSERT INTO idle VALUES (1, 'a')", database="shop")
        pair.caught_up(ASK)
        yield pair


@pytest.fixture
def shop(pair: Pair, make_workspace: Callable[..., Workspace]) -> Workspace:
    """A workspace that reads the primary."""
    workspace = make_workspace(Database(pair.primary, "shop"), store={"url": "./lake"})
    workspace.write(defaults={"changes": "binlog"})
    reads(workspace, pair.primary)
    assert workspace.sync("orders", "idle").ok
    return workspace


def reads(workspace: Workspace, server: DatabaseServer, port: int | None = None) -> None:
    url = server.url("shop", "reads", "reads-pw")
    workspace.write(source={"url": url if port is None else url.replace(str(server.port), str(port))})


def change(server: DatabaseServer, note: str) -> None:
    """An update, a delete and an insert."""
    server.execute(f"UPDATE orders SET note = '{note}' WHERE id = 3", database="shop")
    server.execute("DELETE FROM orders ORDER BY id LIMIT 1", database="shop")
    server.execute(f"INSERT INTO orders SELECT MAX(id) + 1, '{note}' FROM orders", database="shop")


def synced(workspace: Workspace) -> str:
    """The notes of a sync that must succeed."""
    report = workspace.sync("orders", "idle")
    errors = [one.error for one in report.tables if one.error is not None]
    if errors:
        raise errors[0]
    return " ".join(note for one in report.tables for note in one.notes)


def equal(workspace: Workspace, server: DatabaseServer) -> bool:
    found = workspace.query("SELECT id, note FROM orders ORDER BY id")
    wanted = server.execute("SELECT id, note FROM shop.orders ORDER BY id")
    return [tuple(map(str, row)) for row in found] == [tuple(map(str, row)) for row in wanted]


def test_a_replica_that_has_what_was_followed_is_followed_from_there(pair: Pair, shop: Workspace) -> None:
    change(pair.primary, "read")
    synced(shop)
    change(pair.primary, "not read yet")
    pair.caught_up(ASK)
    pair.replica.execute(pair.word("STOP REPLICA"))
    change(pair.replica, "promoted")
    reads(shop, pair.replica)
    assert "compared" not in synced(shop)
    assert equal(shop, pair.replica)
    change(pair.replica, "later")
    assert "compared" not in synced(shop)
    assert equal(shop, pair.replica)


def test_a_replica_that_is_behind_is_refused_until_it_has_caught_up(pair: Pair, shop: Workspace) -> None:
    pair.replica.execute(pair.word("STOP REPLICA"))
    change(pair.primary, "ahead")
    synced(shop)
    before = shop.query("SELECT * FROM orders ORDER BY id")
    reads(shop, pair.replica)
    report = shop.sync("orders", "idle")
    assert report.exit_code == 6
    for one in report.tables:
        assert "lacks transactions that were already read" in str(one.error)
    assert shop.query("SELECT * FROM orders ORDER BY id") == before
    pair.replica.execute(pair.word("START REPLICA"))
    change(pair.primary, "late")
    pair.caught_up(ASK)
    assert "compared" not in synced(shop)
    assert equal(shop, pair.primary)


def test_servers_that_take_turns_at_one_address_never_lose_a_row(pair: Pair, shop: Workspace) -> None:
    with Balancer([pair.primary, pair.replica], lambda n: n % 2) as balancer:
        reads(shop, pair.primary, balancer.port)
        for number in range(4):
            change(pair.primary, f"turn {number}")
            report = shop.sync("orders", "idle")
            assert report.exit_code in (0, 4, 6)
        pair.replica.execute(pair.word("STOP REPLICA"))
        change(pair.primary, "alone")
        for _ in range(3):
            report = shop.sync("orders", "idle")
            if report.ok:
                assert equal(shop, pair.primary)
    pair.replica.execute(pair.word("START REPLICA"))
    pair.caught_up(ASK)
    reads(shop, pair.primary)
    synced(shop)
    assert equal(shop, pair.primary)
