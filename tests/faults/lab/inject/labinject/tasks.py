"""What can happen to a Spark task: its worker dies, it fails a few times, it runs twice, it runs out of memory.

Attempts are counted in a file, across all workers; a fault strikes the first few attempts of the tasks it applies to.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from labinject.plan import PLAN


def struck(run: Callable[[Iterable[int]], Any], rows: Iterable[int], title: str) -> Any:
    """Run a task with the fault that the plan has for it."""
    fault: dict[str, Any] | None = PLAN.raw.get("task")
    if fault is None or not title.startswith("extract"):
        return run(rows)
    counted = "any" if fault.get("once") else title
    kind = str(fault["kind"]) if _attempt(str(fault["file"]), counted) <= fault["times"] else ""
    if kind == "fails":
        raise RuntimeError("the laboratory lets this task fail")
    if kind == "killed at its start":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "killed in mid-slice":
        threading.Thread(target=_killed, args=(float(fault["after"]),), daemon=True).start()
        with _slow():
            return run(rows)
    if kind == "executor lost in mid-slice":
        threading.Thread(target=_lose, args=(float(fault["after"]), 1), daemon=True).start()
        with _slow():
            return run(rows)
    if kind == "slow":
        with _slow():
            return run(rows)
    if kind == "runs twice":
        run(rows)
    if kind == "runs on":  # an abandoned attempt that does not know it
        plan = dict(PLAN.raw)
        threading.Thread(target=_again, args=(run, plan), daemon=True).start()
    if kind == "has no memory":
        with _little_memory(int(fault["bytes"])):
            return run(rows)
    done = run(rows)
    if kind == "killed at its end":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "executor lost at its end":
        _lose(0.0, 1)
    if kind == "machine lost":
        _lose(0.0, 2)
    return done


def _attempt(path: str, title: str) -> int:
    """The number of this attempt at a task."""
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = sum(line == f"{title}\n" for line in file) + 1
        file.write(f"{title}\n")
    return number


def _killed(after: float) -> None:
    time.sleep(after)
    os.kill(os.getpid(), signal.SIGKILL)


def _lose(after: float, jvms: int) -> None:
    """kill -9 the JVMs above this worker: the executor and, with 2, the cluster's worker that started it."""
    time.sleep(after)
    found: list[int] = []
    pid = os.getpid()
    while pid > 1 and len(found) < jvms:
        with open(f"/proc/{pid}/stat") as file:
            name, _, rest = file.read().partition("(")[2].rpartition(")")
        if name == "java":
            found.append(pid)
        pid = int(rest.split()[1])
    for one in reversed(found):
        os.kill(one, signal.SIGKILL)
    time.sleep(60)


@contextmanager
def _slow() -> Iterator[None]:
    """Delay handing the file to the store, so that the kill comes first."""
    from floodmark.extract import files as extract

    files: Any = extract.DataFiles
    right = files.close

    def close(self: Any) -> None:
        time.sleep(5)
        right(self)

    files.close = close
    try:
        yield
    finally:
        files.close = right


def _again(run: Callable[[Iterable[int]], Any], plan: dict[str, Any]) -> None:
    time.sleep(0.3)
    run([])


@contextmanager
def _little_memory(size: int) -> Iterator[None]:
    """Let this process allocate only `size` more bytes."""
    with open("/proc/self/statm") as file:
        have = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (have + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
