"""Helpers for crash tests: a gate in the source that holds a sync in mid-slice, and the processes of a run."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from floodmark.model.errors import DataError
from floodmark.store.store import Store
from tests.conftest import Workspace


class Gate:
    """A condition for a table's `where` that passes rows up to an id, and the others only while the gate is open.

    The column in the lock's name makes MySQL evaluate it for every row.
    """

    def __init__(self, workspace: Workspace, upto: int) -> None:
        self._name = f"gate-{secrets.token_hex(4)}"
        self._link = workspace.database.connect()
        self.where = (
            f"id <= {upto} OR IS_USED_LOCK(CONCAT('{self._name}', LEFT(id, 0))) IS NULL OR SLEEP(0.1) = 0"
        )

    def close(self) -> None:
        self._link.cursor().execute(f"SELECT GET_LOCK('{self._name}', 5)")

    def open(self) -> None:
        self._link.cursor().execute(f"SELECT RELEASE_LOCK('{self._name}')")

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *error: object) -> None:
        self._link.close()  # releases every query that still waits at the gate


def until(true: Callable[[], Any], seconds: float = 30.0, pause: float = 0.02) -> Any:
    """Polls until something is true, and returns it; use a longer `pause` for expensive checks."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"not true within {seconds} s"
        time.sleep(pause)
    return found


@dataclass(frozen=True)
class Process:
    """A process on this machine; its start time tells it from a later one with the same pid."""

    pid: int
    parent: int
    name: str
    started: str

    @property
    def alive(self) -> bool:
        return self in _processes()


def _processes() -> Iterator[Process]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        if fields[0] not in "ZX":
            name = text[text.index("(") + 1 : text.rindex(")")]
            yield Process(int(stat.parent.name), int(fields[1]), name, fields[19])


def connected(port: int) -> Process:
    """The process on this machine whose TCP connection has this local port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    [socket] = [
        f"socket:[{line[9]}]" for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "01"
    ]

    def has(process: Process) -> bool:
        with suppress(OSError):
            return any(os.readlink(fd) == socket for fd in Path(f"/proc/{process.pid}/fd").iterdir())
        return False

    [found] = [process for process in _processes() if has(process)]
    return found


def descendants(pid: int) -> list[Process]:
    """All descendants of a process."""
    seen = list(_processes())
    found: list[Process] = []
    parents = {pid}
    while more := [p for p in seen if p.parent in parents and p not in found]:
        found += more
        parents = {p.pid for p in more}
    return found


def all_gone(processes: list[Process], seconds: float = 8.0) -> bool:
    """Whether the processes end by themselves (an orphan gets a new parent, but is still the same process)."""
    numbers = {(p.pid, p.started) for p in processes}

    def gone() -> bool:
        return not numbers & {(p.pid, p.started) for p in _processes()}

    until(gone, seconds, pause=0.05)
    return True


def commits(workspace: Workspace, table: str = "orders") -> list[dict[str, Any]]:
    """The table's log, in a folder store."""
    folder = workspace.folder / "lake" / "commits" / workspace.full_name(table)
    return [json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]


def batches(workspace: Workspace, table: str = "orders") -> list[dict[str, Any]]:
    return [c for c in commits(workspace, table) if c["kind"] == "batch"]


def rows(found: list[dict[str, Any]]) -> int:
    return sum(file["rows"] for commit in found for file in commit["files"])


def lease(workspace: Workspace) -> Path:
    return workspace.folder / "lake" / "leases" / f"{workspace.database.name}.orders.json"


def orphans(workspace: Workspace) -> set[str]:
    """The data files that no commit names; fails if a commit names a missing one."""
    lake = workspace.folder / "lake"
    there = {str(p.relative_to(lake)) for p in (lake / "data").rglob("*.parquet")}
    named = {file["path"] for commit in batches(workspace) for file in commit["files"]}
    assert named <= there
    return there - named


@contextmanager
def without_batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Syncs that die right before a commit of rows: all that they did before stays."""
    create = Store.create

    def crash(self: Store, path: str, data: bytes) -> bool:
        if path.startswith("commits/") and b'"kind":"batch"' in data:
            raise DataError("gone")
        return create(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "create", crash)
        yield
