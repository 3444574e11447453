"""The stand-in with faults on demand, and how it starts and stops."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import redshift_connector
from redshift_connector.error import InterfaceError

from floodmark.setup.services.s3 import SeaweedFS
from tests.support.redshift import RedshiftStandIn
from tests.support.redshift.postgres import program
from tests.support.standin_sessions import (
    Client,
    Connect,
    Lake,
    detail,
    ids,
    lose,
)


def test_a_commit_whose_socket_drops_has_happened_or_not(redshift: RedshiftStandIn, connect: Connect) -> None:
    check = connect(autocommit=True)
    check("CREATE TABLE t (a INT)")
    for value, arm in ((1, redshift.faults.drop_before_commit), (2, redshift.faults.drop_after_commit)):
        client = connect()
        client(f"INSERT INTO t VALUES ({value})")
        arm()
        lose(client, client.link.commit)
        assert redshift.faults.armed == 0
    assert check("SELECT a FROM t") == [[2]]


def test_a_dropped_session_may_hold_its_locks_for_a_while(
    redshift: RedshiftStandIn, connect: Connect
) -> None:
    client, other = connect(), connect()
    client("CREATE TABLE t (a INT)")
    client.link.commit()
    client("LOCK t")
    redshift.faults.drop_at(match="insert", linger=0.6)
    lose(client, lambda: client("INSERT INTO t VALUES (1)"))
    started = time.monotonic()
    other("LOCK t")
    assert 0.3 < time.monotonic() - started < 5
    assert other("SELECT count(*) FROM t") == [[0]]


def test_the_session_ends_at_the_kth_statement(redshift: RedshiftStandIn, connect: Connect) -> None:
    client = connect(autocommit=True)
    client("CREATE TABLE t (a INT)")
    redshift.faults.drop_at(3)
    client("INSERT INTO t VALUES (1)")
    client("INSERT INTO t VALUES (2)")
    lose(client, lambda: client("INSERT INTO t VALUES (3)"))
    redshift.faults.drop_at(1, match="insert", after=True)
    again = connect(autocommit=True)
    lose(again, lambda: again("INSERT INTO t VALUES (4)"))
    assert redshift.execute(f"SELECT a FROM {client.schema}.t ORDER BY a") == [(1,), (2,), (4,)]


def test_conflicts_and_failed_copies_come_as_often_as_configured(
    redshift: RedshiftStandIn, client: Client, lake: Lake
) -> None:
    client("CREATE TABLE t (c BIGINT)")
    client.link.commit()
    redshift.faults.conflicts(2)
    for _ in range(2):
        client("INSERT INTO t VALUES (1)")
        assert client.refused("COMMIT")["M"] == "1023"
        assert not client.link.in_transaction
    client("INSERT INTO t VALUES (1)")
    client.link.commit()
    error = {
        "filename": "s3://lake/x",
        "colname": "c",
        "line_number": 7,
        "err_code": 1204,
        "err_reason": "too long",
    }
    redshift.faults.fail_copy("out of luck", load_error=error)
    copy = lake.copy("t", ids(2))
    assert "out of luck" in detail(client.refused(copy))
    assert client("SELECT line_number FROM sys_load_error_detail WHERE session_id = pg_backend_pid()") == [
        [7]
    ]
    client(copy)
    assert client("SELECT c FROM t ORDER BY c") == [[1], [2]]


def test_a_stalled_session_hangs_until_its_backend_is_ended(
    redshift: RedshiftStandIn, connect: Connect
) -> None:
    client, other = connect(), connect(autocommit=True)
    ((pid,),) = client("SELECT pg_backend_pid()")
    redshift.faults.stall(match="select 2")
    lost = threading.Thread(target=lambda: lose(client, lambda: client("SELECT 2")))
    lost.start()
    time.sleep(0.2)
    assert lost.is_alive() and other("SELECT 1") == [[1]]
    other(f"SELECT pg_terminate_backend({pid})")
    lost.join(5)
    assert not lost.is_alive()


def test_answers_can_be_delayed_from_another_process(redshift: RedshiftStandIn, connect: Connect) -> None:
    client = connect(autocommit=True)
    client("""SET floodmark.fault TO '{"fault": "delay", "seconds": 0.3, "match": "select"}'""")
    started = time.monotonic()
    client("SELECT 1")
    assert time.monotonic() - started >= 0.3
    assert "no such fault" in client.refused("SET floodmark.fault TO 'explode'")["M"]
    redshift.pause()
    threading.Timer(0.3, redshift.resume).start()
    started = time.monotonic()
    client("SELECT 1")
    assert time.monotonic() - started >= 0.2


def test_a_commit_that_is_held_keeps_its_locks_and_looks_idle(
    redshift: RedshiftStandIn, connect: Connect
) -> None:
    client, other = connect(), connect(autocommit=True)
    client("CREATE TABLE t (a INT)")
    client.link.commit()
    client("LOCK t")
    ((pid,),) = client("SELECT pg_backend_pid()")
    redshift.faults.delay_commit(0.6)
    started = time.monotonic()
    commit = threading.Thread(target=client.link.commit)
    commit.start()
    time.sleep(0.1)
    held = "SELECT count(*) FROM svv_transactions WHERE granted AND lock_mode = 'AccessExclusiveLock'"
    assert other(f"{held} AND pid = {pid}") == [[1]]
    states = other(f"SELECT DISTINCT trim(status) FROM sys_query_history WHERE session_id = {pid}")
    assert states == [["success"]]
    other("SELECT count(*) FROM t")  # waits for the lock
    assert 0.5 < time.monotonic() - started < 5
    commit.join(5)


def test_a_running_statement_can_be_cancelled(redshift: RedshiftStandIn, connect: Connect) -> None:
    holder, waiter = connect(), connect()
    holder("CREATE TABLE t (a INT)")
    holder.link.commit()
    holder("LOCK t")
    waiter("SELECT 1")

    def cancel() -> None:
        with socket.create_connection((redshift.host, redshift.port)) as link:
            link.sendall(struct.pack("!ii", 16, 80877102) + waiter.link._backend_key_data)
            link.recv(1)

    threading.Timer(0.2, cancel).start()
    assert waiter.refused("LOCK t")["C"] == "57014"
    assert waiter("SELECT 1") == [[1]]


def test_psql_can_connect_too(redshift: RedshiftStandIn, lake: Lake) -> None:
    """Several statements in one message of the simple protocol, a COPY among them."""
    sql = f"BEGIN; CREATE TEMP TABLE t (c BIGINT, d VARBYTE(2)); {lake.copy('t (c)', ids(1, 2))}; SELECT sum(c) FROM t; SELECT x"
    url = redshift.url().replace("redshift://", "postgresql://") + "?sslmode=disable"
    done = subprocess.run([program("psql"), "-XAtq", url, "-c", sql], capture_output=True, text=True)
    assert done.returncode == 1
    assert "2 record(s) loaded successfully" in done.stderr and 'column "x" does not exist' in done.stderr
    assert "3" in done.stdout.split()


PARENT = """
import sys, time
from floodmark.config.load import StoreSpec
from tests.support.redshift import RedshiftStandIn
from tests.support.redshift.postgres import program
server = RedshiftStandIn(StoreSpec("s3://lake", "http://127.0.0.1:1"))
server.start()
print(server.folder, server.pid, flush=True)
time.sleep(100)
"""


def test_it_ends_with_its_parent_and_leaves_no_file() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as told:
        folder, pid = told.readline().split()
    assert Path(folder, "data").exists() and Path("/proc", pid).exists()
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (Path(folder).exists() or Path("/proc", pid).exists()):
        time.sleep(0.05)
    assert not Path(folder).exists()
    assert not Path("/proc", pid).exists()


def test_a_dead_cluster_comes_back_with_what_was_committed(
    seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with RedshiftStandIn(seaweed, tls=True) as server:
        options = server.options(sslmode="verify-full")
        with pytest.raises(InterfaceError, match="communication error"):
            redshift_connector.connect(**options)
        monkeypatch.setenv("SSL_CERT_FILE", str(server.ca))
        client = Client(redshift_connector.connect(**options), "public")
        client("CREATE TABLE t (a VARCHAR(3))")
        client.link.commit()
        client("INSERT INTO t VALUES ('x')")
        server.kill()
        lose(client, client.link.commit)
        server.start()
        client = Client(redshift_connector.connect(**options), "public")
        assert client("SELECT count(*) FROM t") == [[0]]
        client.link.close()
        folder = server.folder
    assert not folder.exists()
