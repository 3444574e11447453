"""Whatever dies during a sync, the next run continues from what was committed, and every row arrives once."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from floodmark.load.duckdb.warehouse import DuckDB
from floodmark.load.protocol import LoadOutcome
from floodmark.model.ledger import Ledger
from tests.conftest import Workspace
from tests.support.command_server import Command
from tests.support.held_sync import Gate, all_gone, batches, commits, descendants, lease, orphans, rows, until
from tests.support.orders import create_orders, fill_orders

ROWS = 2000
SLICE = 250
# Ids are multiples of 7: the first two of eight slices lie below the gate.
BELOW = 2 * SLICE * 7


@pytest.fixture
def orders(workspace: Workspace) -> Iterator[Workspace]:
    """A table of eight slices, of which those behind the first two wait at the gate when it is closed."""
    workspace.execute(create_orders(), fill_orders(ROWS))
    yield workspace


@pytest.fixture
def gate(orders: Workspace) -> Iterator[Gate]:
    with Gate(orders, BELOW) as gate:
        table = {"where": gate.where, "slice_rows": SLICE}
        orders.write(tables={orders.full_name("orders"): table})
        yield gate


def started(orders: Workspace, gate: Gate | None = None) -> Command:
    """A sync that has claimed the table, slice by slice; the gate is closed before its first slice."""
    process = orders.run.start("sync", "-t", "orders", "-s", "sequential")
    until(lambda: len(commits(orders)) >= 2 or process.poll() is not None)
    if gate is not None:
        gate.close()
    return process


def arrives_once(orders: Workspace) -> None:
    assert orders.query("SELECT count(*), count(DISTINCT id) FROM orders") == [(ROWS, ROWS)]
    comparison = orders.compare("orders")
    assert comparison.equal, comparison.differences


def goes_on(orders: Workspace, dead: str) -> None:
    """The next run reads only what the dead one had not committed; what that left behind are orphans."""
    committed = rows(batches(orders))
    table = orders.synced("orders")
    assert table["rows_extracted"] == ROWS - committed
    assert all(f"/{dead}/" in path for path in orphans(orders))
    arrives_once(orders)
    assert orders.synced("orders")["commits"] == []


def test_a_sync_killed_right_after_its_claim_loses_nothing(orders: Workspace, gate: Gate) -> None:
    process = started(orders)
    family = descendants(process.pid)
    process.kill()
    assert all_gone(family)
    assert [c["kind"] for c in commits(orders)] == ["open", "claim"]
    goes_on(orders, commits(orders)[-1]["run"])


def test_a_sync_killed_with_slices_under_way_loses_nothing(orders: Workspace, gate: Gate) -> None:
    process = started(orders, gate)
    until(lambda: len(batches(orders)) == 2, 90)
    family = descendants(process.pid)
    assert {"java"} < {p.name for p in family}  # and Python workers that wait at the gate
    process.kill()
    assert all_gone(family)
    gate.open()
    goes_on(orders, commits(orders)[-1]["run"])


def test_a_sync_killed_between_a_commit_and_its_load_loses_nothing(orders: Workspace, gate: Gate) -> None:
    process = started(orders, gate)
    with duckdb.connect(orders.warehouse):  # the load waits for its lock
        until(lambda: len(batches(orders)) == 2)
        process.kill()
        process.wait()
    gate.open()
    assert orders.query("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'orders'") == [(0,)]
    goes_on(orders, commits(orders)[-1]["run"])


def test_the_continuing_run_counts_what_it_loads_while_planning_its_second_window(
    orders: Workspace, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks at the warehouse before each window, and the first one's load may commit right after the second look."""
    process = started(orders, gate)
    until(lambda: len(batches(orders)) == 2, 90)
    process.kill()
    process.wait()
    gate.open()
    orders.execute("INSERT INTO orders (id, amount, note) VALUES (900001, 1, 'since')")
    looked, committed = threading.Event(), threading.Event()
    looks: list[Ledger] = []

    ledger, load = DuckDB.ledger, DuckDB.load

    def look(*args: Any) -> Ledger:
        looks.append(ledger(*args))
        if len(looks) == 2:
            looked.set()
            committed.wait(30)
            time.sleep(0.2)  # until the loader has taken note
        return looks[-1]

    def loading(*args: Any) -> LoadOutcome:
        looked.wait(30)
        done = load(*args)
        committed.set()
        return done

    monkeypatch.setattr(DuckDB, "ledger", look)
    monkeypatch.setattr(DuckDB, "load", loading)
    table = orders.synced("orders")
    assert looked.is_set() and committed.is_set()
    assert table["watermark"]["redshift_rows_loaded"] == ROWS + 1


@pytest.mark.parametrize("moment", ["inside the transaction", "at its commit"])
def test_a_sync_killed_inside_a_load_loses_nothing(orders: Workspace, moment: str) -> None:
    orders.execute("INSERT INTO orders (amount, note) SELECT seq / 10, REPEAT('x', 40) FROM seq_1_to_60000")
    orders.synced("orders", backup_only=True)
    total = rows(batches(orders))
    # The file is opened for writing by the transaction; what it writes first is the .wal, when it commits.
    opened = orders.warehouse.name if moment == "inside the transaction" else f"{orders.warehouse.name}.wal"
    process = orders.run.start("sync", "-t", "orders", "--redshift-only")
    until(lambda: _writes(process.pid, opened) or process.poll() is not None, pause=0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "the load was over before it could be killed"
    table = orders.synced("orders")
    assert table["rows_extracted"] == 0
    if moment == "inside the transaction":
        assert table["rows_loaded"] == total
    assert orders.query("SELECT count(*), count(DISTINCT id) FROM orders") == [(total, total)]
    assert orders.compare("orders").equal


def _writes(pid: int, name: str) -> bool:
    """Whether a process has a file of that name open for writing."""
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.path.basename(os.readlink(f"/proc/{pid}/fd/{fd}")) == name:
                flags = next(
                    x
                    for x in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines()
                    if x.startswith("flags")
                )
                if int(flags.split()[1], 8) & (os.O_WRONLY | os.O_RDWR):
                    return True
    except OSError:
        return False
    return False


@pytest.mark.long  # the laboratory does it by steps
def test_random_kills_again_and_again_lose_nothing(orders: Workspace) -> None:
    orders.write(defaults={"slice_rows": 100})
    pauses = [random.uniform(0.5, 4.5) for _ in range(3)]
    for n, pause in enumerate(pauses):
        process = orders.run.start("sync", "-t", "orders", "-s", random.choice(["sequential", "intra-table"]))
        time.sleep(pause)
        process.kill()
        process.wait()
        orders.execute(f"UPDATE orders SET note = 'turn {n}' WHERE id % 11 = {n}")
    orders.synced("orders")
    arrives_once(orders)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_a_signal_ends_a_sync_within_seconds_in_good_order(
    orders: Workspace, gate: Gate, number: signal.Signals, code: int
) -> None:
    process = started(orders, gate)
    until(lambda: len(batches(orders)) == 2)
    family = descendants(process.pid)
    process.send_signal(number)
    began = time.monotonic()
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == code
    assert time.monotonic() - began < 6
    assert stdout.startswith(f"{orders.full_name('orders')}: interrupted")
    said = [line for line in stderr.splitlines() if line.startswith("floodmark:") or "rror" in line]
    assert len(said) == 1 and "interrupted" in said[0]
    assert all_gone(family)
    assert json.loads(lease(orders).read_bytes())["released"] is True
    document = json.loads(orders.run("watermark", "get", "-t", "orders", "--json").ok().stdout)
    assert (document["mysql_status"], document["last_error"]) == ("pending", None)
    left = json.loads((lease(orders).parents[1] / f"runs/{commits(orders)[-1]['run']}.json").read_bytes())
    assert (left["ok"], left["error"]["code"], left["tables"][0]["exit_code"]) == (False, code, code)
    gate.open()
    goes_on(orders, commits(orders)[-1]["run"])


def test_a_signal_while_spark_starts_does_not_wait_for_it(orders: Workspace) -> None:
    process = started(orders)
    family = descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 143
    assert time.monotonic() - began < 2.5
    assert "rror" not in stderr and all_gone(family)


@pytest.mark.parametrize("command", ["sync", "plan"])
def test_a_signal_is_noticed_while_the_source_is_busy(orders: Workspace, gate: Gate, command: str) -> None:
    gate.close()  # before the plan: its counting waits at the gate
    process = orders.run.start(command, "-t", "orders", "--json")
    asking = "SELECT COUNT(*) FROM information_schema.processlist WHERE DB = DATABASE() AND INFO LIKE '%gate-%' AND ID <> CONNECTION_ID()"
    until(lambda: orders.execute(asking)[0][0])
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - began < 5
    assert json.loads(stdout)["error"]["code"] == 130
    assert stderr.count("interrupted") == 1 and "Traceback" not in stderr
    assert not commits(orders)


@pytest.mark.parametrize("command", [["sync", "-t", "orders"], ["watermark", "list"]])
def test_a_signal_is_noticed_while_the_store_is_silent(orders: Workspace, command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        keys = {"access_key_id": "key", "secret_access_key": "secret"}
        orders.write(store={"url": "s3://lake/silent", "endpoint": endpoint, **keys})
        process = orders.run.start(*command)
        silent.accept()
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 143
    assert time.monotonic() - began < 8
    assert stdout == "" and len(stderr.splitlines()) == 1 and "interrupted by SIGTERM" in stderr


def test_a_killed_spark_worker_costs_nothing_but_time(orders: Workspace, gate: Gate) -> None:
    process = started(orders, gate)
    until(lambda: len(batches(orders)) == 2)
    worker = _worker_at_the_gate(orders, process.pid)
    os.kill(worker, signal.SIGKILL)
    gate.open()
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    arrives_once(orders)
    # Read by the killed attempt and its successor; committed once.
    assert sorted(s for c in batches(orders) for s in c["slices"]) == list(range(ROWS // SLICE))


def _worker_at_the_gate(orders: Workspace, pid: int) -> int:
    """The Spark worker whose connection waits at the gate."""
    asking = "SELECT HOST FROM information_schema.processlist WHERE INFO LIKE '%floodmark: extract%gate-%' AND ID <> CONNECTION_ID()"
    port = int(until(lambda: orders.execute(asking))[0][0].rpartition(":")[2])
    workers = [p for p in descendants(pid) if p.name.startswith("python")]
    found = [w.pid for w in workers if _has_port(w.pid, port)]
    assert len(found) == 1
    return found[0]


def _has_port(pid: int, port: int) -> bool:
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    with open("/proc/net/tcp") as table:
        lines = [line.split() for line in table.readlines()[1:]]
    return any(line[9] in inodes and int(line[1].partition(":")[2], 16) == port for line in lines)


def test_a_killed_jvm_is_code_4_and_the_next_run_continues(orders: Workspace, gate: Gate) -> None:
    process = started(orders, gate)
    until(lambda: len(batches(orders)) == 2)
    family = descendants(process.pid)
    [jvm] = [p.pid for p in family if p.name == "java"]
    os.kill(jvm, signal.SIGKILL)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 4
    said = [line for line in stderr.splitlines() if line.startswith(("floodmark:", "  "))]
    assert len(said) == 2 and "JVM has ended" in said[0] and "Traceback" not in stderr
    assert all_gone(family)
    gate.open()
    goes_on(orders, commits(orders)[-1]["run"])
