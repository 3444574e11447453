"""The stand-in's transactions and users: isolation, locks, sessions that are ended, rights."""

from __future__ import annotations

import threading
import time

import pytest
import redshift_connector
from redshift_connector.error import Error as DriverError
from redshift_connector.error import InterfaceError, ProgrammingError

from floodmark.setup.services.s3 import SeaweedFS
from tests.support.redshift import RedshiftStandIn
from tests.support.standin_sessions import Client, Connect


def test_snapshot_isolation_admits_both_loaders_unless_they_lock_first(connect: Connect) -> None:
    one, two = connect(), connect()
    one("CREATE TABLE ledger (n INT)")
    one.link.commit()
    assert one("SELECT trim(isolation_level) FROM stv_db_isolation_level") == [["Snapshot Isolation"]]
    one.link.rollback()
    two("BEGIN ISOLATION LEVEL SERIALIZABLE")  # accepted and ignored
    assert one("SELECT count(*) FROM ledger") == two("SELECT count(*) FROM ledger") == [[0]]
    one("INSERT INTO ledger VALUES (1)")
    waiting = threading.Thread(target=lambda: two("INSERT INTO ledger VALUES (1)"))
    waiting.start()  # one writer to a table at a time
    time.sleep(0.2)
    assert waiting.is_alive()
    one.link.commit()
    waiting.join(5)
    two.link.commit()
    assert one("SELECT count(*) FROM ledger") == [[2]]
    one.link.rollback()

    seen = []
    one("LOCK ledger")

    def second() -> None:
        two("LOCK ledger")
        seen.extend(two("SELECT count(*) FROM ledger"))
        two.link.commit()

    waiting = threading.Thread(target=second)
    waiting.start()
    time.sleep(0.2)
    one("INSERT INTO ledger VALUES (2)")
    one.link.commit()
    waiting.join(5)
    assert seen == [[3]]


def test_two_writers_of_one_row_get_1023(connect: Connect) -> None:
    one, two = connect(), connect()
    one("CREATE TABLE t (a INT)")
    one("INSERT INTO t VALUES (1)")
    one.link.commit()
    two("SELECT * FROM t")
    one("UPDATE t SET a = 2")
    one.link.commit()
    error = two.refused("UPDATE t SET a = 3")
    assert (error["C"], error["M"]) == ("XX000", "1023")
    assert error["D"].startswith("Serializable isolation violation on table - ")


def test_serializable_isolation_ends_one_of_two_in_a_cycle(seaweed: SeaweedFS) -> None:
    with RedshiftStandIn(seaweed, isolation="serializable") as server:
        one, two = (Client(redshift_connector.connect(**server.options()), "public") for _ in range(2))
        one("CREATE TABLE ledger (n INT)")
        one.link.commit()
        assert one("SELECT trim(isolation_level) FROM stv_db_isolation_level") == [["Serializable"]]
        one.link.commit()
        for loader in (one, two):
            assert loader("SELECT count(*) FROM ledger") == [[0]]
        one("INSERT INTO ledger VALUES (1)")
        one.link.commit()
        with pytest.raises(DriverError, match="'M': '1023'"):
            two("INSERT INTO ledger VALUES (1)")
            two.link.commit()
        assert server.execute("SELECT count(*) FROM ledger") == [(1,)]


def test_a_session_that_holds_a_lock_is_visible_and_can_be_ended(connect: Connect) -> None:
    holder, waiter, third = connect(), connect(), connect(autocommit=True)
    holder("CREATE TABLE t (a INT)")
    holder.link.commit()
    holder("LOCK t")
    ((pid, user),) = holder("SELECT pg_backend_pid(), current_user")
    waiter("SET statement_timeout TO 300")
    error = waiter.refused("LOCK t")
    assert error["C"] == "57014" and error["M"].endswith("canceled on user's request")
    found = third(
        "SELECT pid, txn_owner, lock_mode FROM svv_transactions WHERE granted AND relation = 't'::regclass"
    )
    assert found == [[pid, user, "AccessExclusiveLock"]]
    assert third(f"SELECT pg_terminate_backend({pid})") == [[True]]
    waiter("LOCK t")
    with pytest.raises(InterfaceError, match="server socket closed"):
        holder("SELECT 1")


def test_an_ordinary_user_sees_only_their_own_sessions(redshift: RedshiftStandIn, connect: Connect) -> None:
    master = connect(autocommit=True)
    redshift.create_user("loader", "Loader-1", f"CREATE, USAGE ON SCHEMA {master.schema}")
    loader = connect(user="loader", password="Loader-1")
    master("CREATE TABLE t (a INT)")
    loader("CREATE TABLE u (a INT)")
    loader("INSERT INTO u VALUES (1)")
    loader.link.commit()
    assert loader.refused("SELECT * FROM t")["C"] == "42501"
    users = loader("SELECT DISTINCT user_id FROM sys_query_history")
    assert len(users) == 1
    with pytest.raises(ProgrammingError, match="28P01"):
        connect(user="loader", password="wrong")
    with pytest.raises(ProgrammingError, match="3D000"):
        connect(database="nowhere")
