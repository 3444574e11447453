"""Watches a process and all that it starts: CPU seconds and peak memory, by role.

Linux keeps no account of grandchildren whose parent ignores them, as pyspark's daemon does, so the tree is looked
at ten times a second; a process's last moment of up to 0.1 s is not counted.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
ROLES = ("driver", "jvm", "worker", "other")


@dataclass
class Seen:
    """The last that was seen of one process."""

    role: str
    cpu: float = 0.0
    peak: int = 0


@dataclass
class Usage:
    """What a tree of processes has used."""

    seen: dict[int, Seen] = field(default_factory=dict)

    @property
    def cpu(self) -> float:
        return sum(s.cpu for s in self.seen.values())

    def cpu_of(self, role: str) -> float:
        return sum(s.cpu for s in self.seen.values() if s.role == role)

    def peak(self, role: str) -> int:
        """The largest memory of one process of this role, in bytes."""
        return max((s.peak for s in self.seen.values() if s.role == role), default=0)


class Watch:
    """A context manager around the life of a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.usage = Usage()
        self._root = process.pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Usage:
        self._thread.start()
        return self.usage

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            for pid, stat in _tree(self._root):
                self._note(pid, stat)

    def _note(self, pid: int, stat: list[str]) -> None:
        one = self.usage.seen.setdefault(pid, Seen(""))
        one.role = "driver" if pid == self._root else _role(pid) or one.role
        one.cpu = _cpu(stat)
        one.peak = max(one.peak, _peak(pid))


def tree_cpu() -> float:
    """CPU seconds so far of this process and all below it that are still there."""
    return sum(tree_cpus().values())


def tree_cpus() -> dict[str, float]:
    """The same, by role."""
    found = dict.fromkeys(ROLES, 0.0)
    for pid, stat in _tree(os.getpid()):
        found["driver" if pid == os.getpid() else _role(pid) or "other"] += _cpu(stat)
    return found


def cpu_below(pid: int) -> float:
    """CPU seconds so far of all processes below one that are still there."""
    return sum(_cpu(stat) for below, stat in _tree(pid) if below != pid)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of one process so far."""
    stat = _stat(pid)
    return _cpu(stat) if stat else 0.0


def _tree(root: int) -> Iterator[tuple[int, list[str]]]:
    """A process and all below it that are there now, with their fields."""
    children: dict[int, list[int]] = defaultdict(list)
    stats: dict[int, list[str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))):
            stats[int(entry)] = stat
            children[int(stat[1])].append(int(entry))
    tree = [root]
    for pid in tree:
        tree += children[pid]
        if pid in stats:
            yield pid, stats[pid]


def _cpu(stat: list[str]) -> float:
    return (int(stat[11]) + int(stat[12])) / TICKS


def _stat(pid: int) -> list[str]:
    """The fields after the name: state, ppid, …; utime and stime are the 12th and 13th."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _role(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    if not command:  # it has ended
        return ""
    if b"java" in command.split(b"\0")[0]:
        return "jvm"
    return "worker" if b"floodmark.spark.worker_daemon" in command else "other"


def _peak(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
