"""`sync --every`: cycles on a Spark that stays warm, services and JVMs that come and go, and the end by a signal."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.services import Services
from floodmark.setup.services.databases import MariaDB
from floodmark.setup.services.s3 import SeaweedFS
from tests.conftest import Database, Workspace
from tests.support.held_sync import Process, all_gone, descendants, lease, until
from tests.support.orders import create_orders, fill_orders

CHANGE = "UPDATE orders SET note = CONCAT('changed ', id, ' ', NOW()) WHERE id % 10 = 0"


class Resident:
    """A running `sync --every`, and the lines that it has printed so far."""

    def __init__(self, workspace: Workspace, *args: str) -> None:
        self.process = workspace.run.start("sync", *args)
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, to), daemon=True)
            for stream, to in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, to: list[str]) -> None:
        for line in stream:
            to.append(line.rstrip("\n"))

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def until(self, true: Callable[[], Any], seconds: float = 60) -> Any:
        """Waits for something to come true while the process lives."""
        return until(lambda: self._alive() and true(), seconds, pause=0.1)

    def _alive(self) -> bool:
        assert self.process.poll() is None, "\n".join([*self.lines, *self.errors])
        return True

    def cycles(self, more: int) -> None:
        seen = len(self.lines)
        self.until(lambda: len(self.lines) >= seen + more)

    def failed(self, since: int) -> None:
        """Waits for a failure among the lines from `since` on."""
        self.until(lambda: any("failed, " in line for line in self.errors[since:]))

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(20)
        for reader in self._readers:
            reader.join(10)
        return code

    @property
    def jvms(self) -> list[Process]:
        return [p for p in descendants(self.process.pid) if p.name == "java"]


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(), fill_orders(400))
    return workspace


@pytest.fixture
def own(make_workspace: Callable[..., Workspace]) -> Iterator[tuple[Workspace, MariaDB, SeaweedFS]]:
    """A workspace on servers that may be restarted."""
    with MariaDB() as server, SeaweedFS() as s3:
        server.execute("CREATE DATABASE shop DEFAULT CHARSET=utf8mb4")
        made = make_workspace(Database(server, "shop"), store=s3.store("resident"))
        made.execute(create_orders(), fill_orders(400))
        yield made, server, s3


def loaded(workspace: Workspace, sql: str) -> int:
    """A number from the warehouse, 0 while it is not there or is being written to."""
    import duckdb

    try:
        return int(workspace.query(sql)[0][0])
    except duckdb.Error:
        return 0


def test_every_cycle_brings_what_is_new_on_one_warm_spark_and_sigterm_ends_it(orders: Workspace) -> None:
    orders.execute("CREATE TABLE levels (n INT)", "INSERT INTO levels VALUES (0)")
    resident = Resident(orders, "-t", "orders", "-t", "levels", "--every", "1s", "--json")
    resident.until(lambda: resident.documents and resident.documents[0]["tables"])
    (first,) = resident.jvms
    for n in (1, 2):
        orders.execute(CHANGE, f"INSERT INTO levels VALUES ({n})")
        resident.until(lambda: resident.documents[-1]["tables"])
        resident.cycles(2)
    resident.until(lambda: not resident.documents[-1]["tables"])  # on a busy machine, both may have had work
    assert resident.jvms == [first]
    snapshots = orders.folder / "lake" / "data" / orders.full_name("levels")
    assert len([*snapshots.rglob("*.parquet")]) == 1, "the next snapshot's load removes the one before"
    assert [d["cycle"] for d in resident.documents] == list(range(1, len(resident.documents) + 1))
    idle = next(d for d in resident.documents if not d["tables"])
    assert (idle["ok"], idle["tables_idle"], idle["error"]) == (True, 2, None)
    assert json.loads(lease(orders).read_text())["released"] is True
    everything = [*descendants(resident.process.pid)]
    assert resident.stop() == 143
    assert all_gone(everything)
    assert resident.documents[-1]["error"]["code"] == 143
    assert resident.errors == [f"floodmark: {resident.documents[-1]['error']['message']}"]
    assert orders.compare("orders").equal
    assert orders.query("SELECT n FROM levels ORDER BY n") == [(0,), (1,), (2,)]
    runs = {d["run"] for d in resident.documents[:-1]}
    assert len(runs) == len(resident.documents) - 1
    left = {p.stem: json.loads(p.read_bytes()) for p in (orders.folder / "lake" / "runs").iterdir()}
    stopped = {
        run for run, report in left.items() if report.get("error")
    }  # SIGTERM may come in the middle of a cycle
    assert len(stopped) <= 1
    assert left.keys() - stopped < runs  # idle cycles leave nothing behind


@pytest.mark.long  # test_crashes.py interrupts a sync in mid-slice, the test above ends a resident one by a signal
def test_ctrl_c_in_mid_cycle_ends_it_and_the_next_run_continues(orders: Workspace) -> None:
    orders.write(tables={orders.full_name("orders"): {"where": "SLEEP(0.01) = 0"}})
    resident = Resident(orders, "-t", "orders", "--every", "5m")
    resident.until(lambda: asking(orders))
    everything = [*descendants(resident.process.pid)]
    assert resident.stop(signal.SIGINT) == 130
    assert all_gone(everything)
    orders.write(tables={orders.full_name("orders"): {}})
    orders.synced("orders")
    assert orders.compare("orders").equal


def asking(workspace: Workspace) -> list[tuple[Any, ...]]:
    return workspace.execute(
        "SELECT id FROM information_schema.processlist WHERE info LIKE '%floodmark: extract%SLEEP(%'"
        " AND id <> CONNECTION_ID()"
    )


def test_restarts_of_mysql_and_s3_and_a_mistake_cost_a_line_and_no_row(
    own: tuple[Workspace, MariaDB, SeaweedFS],
) -> None:
    workspace, server, s3 = own
    resident = Resident(workspace, "-t", "orders", "--every", "1s")

    def arrived(ask: str) -> None:
        resident.until(lambda: loaded(workspace, ask) == 400)

    arrived("SELECT COUNT(*) FROM orders")
    for service in (server, s3):
        since = len(resident.errors)
        service.stop()
        resident.failed(since)
        service.start()
        workspace.execute(f"UPDATE orders SET note = '{type(service).__name__}'")
        arrived(f"SELECT COUNT(*) FROM orders WHERE note = '{type(service).__name__}'")
    failed = [line for line in resident.errors if "failed, " in line]
    assert failed and all("failed, exit code 4: " in line for line in failed), failed
    resident.until(lambda: sum(" recovered: " in line for line in resident.errors) >= 2)
    # A mistake ends it only at its start.
    workspace.execute("RENAME TABLE orders TO kept")
    resident.until(lambda: any("exit code 2" in line for line in resident.errors))
    workspace.execute("RENAME TABLE kept TO orders", CHANGE)
    seen = len(resident.lines)
    resident.until(lambda: any("40 loaded" in line for line in resident.lines[seen:]))
    assert resident.stop() == 143
    assert workspace.compare("orders").equal


@pytest.mark.long
def test_a_killed_jvm_is_restarted(orders: Workspace) -> None:
    resident = Resident(orders, "-t", "orders", "--every", "1s")
    resident.until(lambda: loaded(orders, "SELECT COUNT(*) FROM orders") == 400)
    (jvm,) = resident.jvms
    subprocess.run(["kill", "-9", str(jvm.pid)], check=True)
    assert all_gone([jvm])
    orders.execute("UPDATE orders SET note = 'after'")
    resident.until(lambda: loaded(orders, "SELECT COUNT(*) FROM orders WHERE note = 'after'") == 400)
    (new,) = resident.jvms
    assert new.pid != jvm.pid
    assert resident.stop() == 143
    assert orders.compare("orders").equal


def test_a_mistake_at_the_start_ends_it(orders: Workspace) -> None:
    ended = orders.run("sync", "-t", "no_such_table", "--every", "1s")
    last = ended.stderr.splitlines()[-1]
    assert ended.code == 2 and "exit code 2" in last and "no_such_table" in last


def test_options_of_a_single_sync_cannot_be_repeated(orders: Workspace, tmp_path: Path) -> None:
    for args in (["--dry-run"], ["--since", "2025-01-01"], ["--force"]):
        done = orders.run("sync", "-t", "orders", "--every", "1s", *args)
        assert (done.code, "can't be combined" in done.stderr) == (2, True)


def test_a_cycle_leaves_no_reference_cycles(orders: Workspace) -> None:
    """What a run shares holds connections: they end with the run, not some cycles later."""
    orders.spark()
    gc.collect()
    gc.disable()
    try:
        for changed in (400, 40, 0):
            assert orders.synced("orders")["rows_loaded"] == changed
            assert not [kept for kept in gc.get_objects() if isinstance(kept, Services)]
            if changed == 400:
                orders.execute(CHANGE)
    finally:
        gc.enable()
