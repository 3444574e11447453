"""A real replica as the source: rows that arrive late are found, and a promoted one is read on without a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from floodmark.config.load import SourceSpec
from floodmark.model.open_work import Trust
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source.server import trust_in
from floodmark.source.session import Session
from tests.conftest import Database, Workspace
from tests.support.orders import NOTE, create_orders
from tests.support.replicas import Pair, replicated

pytestmark = pytest.mark.source

COUNT = "SELECT COUNT(*), SUM(CRC32(note)) FROM shop.orders"


def insert(server: DatabaseServer, note: str, rows: int = 5) -> None:
    server.execute(f"INSERT INTO orders (note) SELECT '{note}' FROM seq_1_to_{rows}", database="shop")


@pytest.fixture(params=[pytest.param("--read-only=0", marks=pytest.mark.long), "--read-only=1"])
def pair(request: pytest.FixtureRequest, new_server: type[DatabaseServer]) -> Iterator[Pair]:
    """Both with a table; a replica may have been left writable."""
    with replicated(new_server, request.param) as pair:
        if new_server.name == "mysql" and request.param.endswith("1"):
            pair.replica.execute("SET GLOBAL super_read_only = ON")
        pair.primary.execute("CREATE DATABASE shop")
        pair.primary.execute(create_orders(NOTE, "DATETIME(6)"), database="shop")
        for name, grants in {"asks": ["REPLICATION CLIENT"], "sees": []}.items():
            grants = [f"{g} ON *.*" for g in ("PROCESS", "SELECT", *grants)]
            if new_server.name == "mariadb" and name == "asks":
                grants.append("REPLICA MONITOR ON *.*")
            pair.primary.create_user(name, "asks-pw", *grants)
        insert(pair.primary, "first")
        pair.caught_up(COUNT)
        yield pair


@pytest.fixture
def behind(pair: Pair, make_workspace: Callable[..., Workspace]) -> Workspace:
    """A workspace that reads the replica."""
    workspace = make_workspace(Database(pair.replica, "shop"), store={"url": "./lake"})
    workspace.write(source={"url": pair.replica.url("shop", "asks", "asks-pw")})
    return workspace


def trusted(server: DatabaseServer, user: str) -> Trust:
    with Session(SourceSpec(server.host, server.port, user, "asks-pw")) as session:
        return trust_in(session)


def test_rows_that_reach_a_replica_late_are_found_by_a_later_sync(pair: Pair, behind: Workspace) -> None:
    assert behind.synced("orders")["rows_loaded"] == 5
    for part in ("SQL_THREAD", ""):
        pair.replica.execute(pair.word(f"STOP REPLICA {part}"))
        assert trusted(pair.replica, "asks").replica
        insert(pair.primary, f"late {part}")
        assert behind.sync("orders").ok
        insert(pair.primary, f"later {part}")
        pair.replica.execute(pair.word(f"START REPLICA {part}"))
        pair.caught_up(COUNT)
        # The newest row is read, then one with an earlier cursor arrives.
        assert trusted(pair.replica, "asks").replica and trusted(pair.replica, "sees").replica
        assert behind.synced("orders")["rows_loaded"] >= 10
        assert behind.compare("orders").equal
    assert trusted(pair.primary, "asks").complete


def test_an_old_row_that_a_stopped_replica_receives_late_is_found(pair: Pair, behind: Workspace) -> None:
    """Two writers of the primary: the one that committed first has the later cursor."""
    behind.synced("orders")
    slow = pair.primary.connect("shop")
    slow.cursor().execute("INSERT INTO orders (note) VALUES ('slow')")
    insert(pair.primary, "quick")
    pair.caught_up(COUNT)
    pair.replica.execute(pair.word("STOP REPLICA"))
    behind.synced("orders")
    slow.commit()
    slow.close()
    behind.synced("orders")
    pair.replica.execute(pair.word("START REPLICA"))
    pair.caught_up(COUNT)
    behind.synced("orders")
    assert behind.compare("orders").equal


def delayed(pair: Pair, seconds: int) -> None:
    """Let the replica apply what comes so many seconds later."""
    pair.replica.execute(pair.word("STOP REPLICA"))
    if pair.replica.name == "mysql":
        pair.replica.execute(f"CHANGE REPLICATION SOURCE TO SOURCE_DELAY = {seconds}")
    else:
        pair.replica.execute(f"CHANGE MASTER TO MASTER_DELAY = {seconds}")
    pair.replica.execute(pair.word("START REPLICA"))


def test_a_lagging_replica_is_retried_and_once_promoted_read_without_loss(
    pair: Pair, make_workspace: Callable[..., Workspace]
) -> None:
    workspace = make_workspace(Database(pair.primary, "shop"), store={"url": "./lake"})
    workspace.write(source={"url": pair.primary.url("shop", "asks", "asks-pw")})
    assert workspace.synced("orders")["rows_loaded"] == 5
    insert(pair.primary, "before")
    pair.caught_up(COUNT)
    delayed(pair, 3600)
    insert(pair.primary, "ahead")
    workspace.synced("orders")
    workspace.write(source={"url": pair.replica.url("shop", "asks", "asks-pw")})
    report = workspace.sync("orders")
    assert report.exit_code == 4 and "is behind what was read before" in str(report.tables[0].error)
    workspace.write(source={"url": pair.primary.url("shop", "asks", "asks-pw")})
    delayed(pair, 0)
    insert(pair.primary, "not yet read")
    pair.caught_up(COUNT)
    pair.primary.kill()
    new = pair.replica
    new.execute(pair.word("STOP REPLICA"), pair.word("RESET REPLICA ALL"))
    if new.name == "mysql":
        new.execute("SET GLOBAL super_read_only = OFF")
    new.execute("SET GLOBAL read_only = OFF")
    insert(new, "after")
    workspace.database = Database(new, "shop")
    workspace.write(source={"url": new.url("shop", "asks", "asks-pw")})
    table = workspace.synced("orders")
    assert table["rows_loaded"] == 10 and trusted(new, "asks").complete
    assert workspace.verified("orders")["ok"]
    assert workspace.compare("orders").equal


@pytest.mark.long
def test_syncs_may_alternate_between_replicas_a_lagging_one_is_retried_and_refused_once_promoted(
    pair: Pair, make_workspace: Callable[..., Workspace]
) -> None:
    workspace = make_workspace(Database(pair.primary, "shop"), store={"url": "./lake"})

    def code(server: DatabaseServer) -> int:
        workspace.write(source={"url": server.url("shop", "asks", "asks-pw")})
        return workspace.sync("orders").exit_code

    assert code(pair.primary) == 0
    for turn in range(2):
        insert(pair.primary, f"turn {turn}")
        pair.caught_up(COUNT)
        assert code(pair.replica) == 0 and code(pair.primary) == 0
        assert workspace.compare("orders").equal
    delayed(pair, 3600)
    insert(pair.primary, "ahead")
    pair.primary.execute("UPDATE shop.orders SET note = 'changed' WHERE id IN (1, 2, 3)")
    assert code(pair.primary) == 0 and code(pair.replica) == 4
    new = pair.replica
    new.execute(pair.word("STOP REPLICA"), pair.word("RESET REPLICA ALL"))
    if new.name == "mysql":
        new.execute("SET GLOBAL super_read_only = OFF")
    new.execute("SET GLOBAL read_only = OFF")
    # Rows at the watermark are changed again, ids are given again.
    new.execute("UPDATE shop.orders SET note = 'after' WHERE id IN (1, 2, 3)")
    insert(new, "after")
    assert code(new) == 6 and code(pair.primary) == 0
    workspace.run("watermark", "accept", "-t", "orders").ok()
    assert code(new) == 0
    assert workspace.verified("orders", repair=True)["ok"]
    workspace.database = Database(new, "shop")
    assert workspace.compare("orders").equal
