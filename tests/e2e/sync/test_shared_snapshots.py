"""Large tables in mode full, read by several connections: the target always holds one moment of the source."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from floodmark.setup.services.databases import DatabaseServer
from floodmark.source.session import LABEL
from floodmark.spark import meeting
from floodmark.spark.context import Spark
from floodmark.sync import shared_snapshot
from tests.conftest import BOTH, NO_MYSQL, PATIENT, SERVERS, Workspace, lasting_workspace
from tests.support import transfers
from tests.support.held_sync import Gate, batches, commits, connected, until
from tests.support.table_shapes import configured, same

SLICE = 250
SYNCS = 20 if PATIENT else 2
# Transfers a second, and connections that make them.
RATES: list[tuple[float | None, int]] = [(10.0, 2), (100.0, 4), *([(None, 8)] if PATIENT else [])]
WHOLE = f"SELECT {transfers.halves()} FROM accounts"
READING = f"SELECT ID FROM information_schema.processlist WHERE INFO LIKE '{LABEL}extract%SLEEP%'"

Read = Callable[[], list[int]]


@pytest.fixture(scope="module", params=BOTH)
def logged(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """A server that writes a binary log."""
    if request.param == "mysql" and NO_MYSQL:
        pytest.skip(NO_MYSQL)
    with SERVERS[request.param](args=transfers.LOGGED[request.param]) as server:
        yield server


@pytest.fixture
def accounts(logged: DatabaseServer, tmp_path: Path, spark: Callable[[], Spark]) -> Iterator[Workspace]:
    """A table of transfers in eight slices, in mode full."""
    with lasting_workspace(tmp_path, logged, spark, store={"url": "./lake"}) as workspace:
        transfers.create(logged, workspace.database.name)
        configured(workspace, "accounts", mode="full", slice_rows=SLICE)
        yield workspace


@pytest.fixture
def connections(caplog: pytest.LogCaptureFixture) -> Read:
    """With how many connections each snapshot was read that several could have read."""
    caplog.set_level(logging.DEBUG, "floodmark")

    def read() -> list[int]:
        fields = [getattr(record, "fields", {}) for record in caplog.records]
        return [each["connections"] for each in fields if "connections" in each]

    return read


def test_a_snapshot_is_one_moment_at_every_write_rate(accounts: Workspace, connections: Read) -> None:
    for rate, threads in RATES:
        before = len(connections())
        with transfers.writing(
            accounts.database.server, accounts.database.name, rate=rate, threads=threads
        ) as writers:
            for _ in range(SYNCS):
                accounts.synced("accounts")
                [seen] = accounts.query(WHOLE)
                assert transfers.one_moment(seen), f"a mixture: {seen} at {rate} transfers a second"
        taken = connections()[before:]
        print(
            f"{accounts.database.server.name}, {rate} a second, {writers.total} commits: {taken} connections"
        )
        assert len(taken) == SYNCS
    assert 2 in connections(), "no snapshot was ever read by two connections"
    accounts.synced("accounts")
    assert same(accounts, "accounts") and len(batches(accounts, "accounts")[-1]["slices"]) > 1


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first task waits a quarter of a minute for the second one, as for a large table; for a small one, a second.

    On a busy machine the second needs longer than that, and the first reads everything alone.
    """
    monkeypatch.setattr(shared_snapshot, "RATE", 1)


@contextmanager
def reading_twice(accounts: Workspace) -> Iterator[tuple[Gate, Future[Any]]]:
    """A snapshot that two connections are reading, held at a gate."""
    with Gate(accounts, 10) as gate, ThreadPoolExecutor(1) as pool:
        configured(accounts, "accounts", mode="full", slice_rows=SLICE, where=gate.where)
        gate.close()
        running = pool.submit(accounts.synced, "accounts")
        until(lambda: len(accounts.execute(READING)) == 2)
        yield gate, running


def test_a_lost_session_begins_the_whole_snapshot_anew(
    accounts: Workspace, connections: Read, unhurried: None
) -> None:
    execute = accounts.execute
    with reading_twice(accounts) as (gate, running):
        # From now on, a slice that one of the old snapshots reads would show.
        execute("UPDATE accounts SET moves = moves + 1")
        [(one,), _] = execute(READING)
        execute(f"KILL {one}")
        until(lambda: one not in [thread for (thread,) in execute(READING)])
        gate.open()
        report = running.result(120)
    assert connections() == [2], "the second snapshot was read by two connections as well"
    assert same(accounts, "accounts") and not report["notes"]
    [batch] = batches(accounts, "accounts")
    assert sum(file["rows"] for file in batch["files"]) == 2 * transfers.ROWS


def test_a_worker_that_is_frozen_ends_the_snapshot_and_is_killed(
    accounts: Workspace, connections: Read, unhurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine keeps the connection to the driver alive, and Spark waits for it: only its silence shows it."""
    monkeypatch.setattr(meeting, "SIGN_EVERY", 0.3)
    monkeypatch.setattr(meeting, "SILENCE", 6.0)
    with reading_twice(accounts) as (gate, running):
        [(host,), _] = accounts.execute(READING.replace("SELECT ID", "SELECT HOST"))
        frozen = connected(int(host.rpartition(":")[2]))
        os.kill(frozen.pid, signal.SIGSTOP)
        gate.open()
        try:
            report = running.result(120)
            until(lambda: not frozen.alive)  # Spark has killed it
        finally:
            if frozen.alive:
                os.kill(frozen.pid, signal.SIGCONT)
    assert connections() == [2], (
        "the second snapshot was read by two connections: nobody waits for the frozen one"
    )
    assert same(accounts, "accounts") and not report["notes"]


def test_a_source_without_a_binary_log_is_read_with_one_connection_and_a_note(
    workspace: Workspace, connections: Read
) -> None:
    transfers.create(workspace.database.server, workspace.database.name)
    configured(workspace, "accounts", mode="full", slice_rows=SLICE)
    report = workspace.synced("accounts")
    assert same(workspace, "accounts") and connections() == []
    assert any("one connection: the source writes no binary log" in note for note in report["notes"])
    assert [c["slices"] for c in commits(workspace, "accounts") if c["kind"] == "batch"] == [[0]]
