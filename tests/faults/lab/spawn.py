"""Starts the real command hundreds of times without importing it hundreds of times.

A separate process imports the product once, opens nothing, and forks: each child becomes the command, with its own
arguments, folder, environment, output files and plan of faults, runs `floodmark.cli.main.main` and exits normally.
It can be killed and stopped like any other process. `Spawner` is the laboratory's side.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

HERE = Path(__file__).parent
INJECT = HERE / "inject"
# The niceness of timed commands, so that the time is the product's and not spent waiting behind others.
MEASURED = -15


@dataclass
class Running:
    """A running command."""

    id: int
    pid: int
    out: Path
    err: Path
    started: float
    exit: int | None = None  # as in subprocess: negative for a signal
    ended: float = 0.0
    cpu: float = 0.0
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int | None  # None: it ran out of time and was killed
    stdout: str
    stderr: str
    seconds: float
    args: tuple[str, ...] = ()
    cpu: float = 0.0  # CPU seconds, including children that it waited for

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass
class Spawner:
    """The laboratory's side: starts commands, waits for them, kills them."""

    pids: ClassVar[set[str]] = set()  # of all commands ever started
    scratch: Path
    env: dict[str, str] = field(default_factory=dict)  # in addition to the laboratory's own
    _running: dict[int, Running] = field(default_factory=dict)
    _next: int = 0

    def __enter__(self) -> Spawner:
        mine, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.env},
        )
        theirs.close()
        self._socket, self._buffer = mine, b""
        return self

    def __exit__(self, *error: object) -> None:
        for running in list(self._running.values()):
            self.kill(running)
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def start(
        self, args: tuple[str, ...], cwd: Path, env: dict[str, str], whole: bool = False, calm: bool = False
    ) -> Running:
        """Start a command without waiting. `whole`: let Python shut down fully; `calm`: its time is measured."""
        self._next += 1
        out, err = self.scratch / f"out-{self._next}", self.scratch / f"err-{self._next}"
        asked = {
            "id": self._next,
            "args": args,
            "cwd": str(cwd),
            "env": env,
            "out": str(out),
            "err": str(err),
            "whole": whole,
            "calm": calm,
        }
        self._socket.sendall(json.dumps(asked).encode() + b"\n")
        running = Running(self._next, 0, out, err, time.monotonic(), args=args)
        self._running[self._next] = running
        while running.pid == 0:
            self._hear(10)
        self.pids.add(str(running.pid))
        return running

    def wait(self, running: Running, seconds: float) -> Ended:
        """Wait for a command to end; it is killed when its time is up."""
        deadline = running.started + seconds
        hung = False
        while running.exit is None:
            left = deadline - time.monotonic()
            if left <= 0:
                hung = True
                self.kill(running)
            self._hear(max(0.0, left))
        del self._running[running.id]
        out, err = running.out.read_text(errors="replace"), running.err.read_text(errors="replace")
        running.out.unlink()
        running.err.unlink()
        seconds = running.ended - running.started
        return Ended(None if hung else running.exit, out, err, seconds, running.args, running.cpu)

    def ended(self, running: Running) -> bool:
        self._hear(0)
        return running.exit is not None

    def kill(self, running: Running) -> None:
        """kill -9; works on a stopped command, too."""
        try:
            os.kill(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        while running.exit is None:
            self._hear(1)

    def _hear(self, seconds: float) -> None:
        ready, _, _ = select.select([self._socket], [], [], min(seconds, 5))
        if not ready:
            return
        got = self._socket.recv(65536)
        if not got:
            raise RuntimeError("the spawner has ended")
        *lines, self._buffer = (self._buffer + got).split(b"\n")
        for line in lines:
            told = json.loads(line)
            running = self._running.get(told["id"])
            if running is None:
                continue
            if "pid" in told:
                running.pid = told["pid"]
            else:
                running.exit, running.cpu, running.ended = told["exit"], told["cpu"], time.monotonic()


# ---------------------------------------------------------------- the other side


def _serve(link: socket.socket) -> dict[str, Any] | None:
    """Fork on request. Returns in the child, with the request; in the parent, when everything is over."""
    children: dict[int, int] = {}
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    buffer = b""
    while True:
        ready, _, _ = select.select([link.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        for pid, status, cpu in _reaped():
            code = os.waitstatus_to_exitcode(status)
            link.sendall(json.dumps({"id": children.pop(pid), "exit": code, "cpu": cpu}).encode() + b"\n")
        if link.fileno() not in ready:
            continue
        got = link.recv(65536)
        if not got:
            return None
        *lines, buffer = (buffer + got).split(b"\n")
        for line in lines:
            asked = json.loads(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(woken)
                os.close(waker)
                link.close()
                return dict(asked)
            children[pid] = asked["id"]
            link.sendall(json.dumps({"id": asked["id"], "pid": pid}).encode() + b"\n")


def _reaped() -> list[tuple[int, int, float]]:
    found: list[tuple[int, int, float]] = []
    while True:
        try:
            pid, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, status, used.ru_utime + used.ru_stime))


def _become(asked: dict[str, Any]) -> None:
    """Turn this process into the command."""
    from floodmark.setup.services import reaper

    reaper.die_with_parent()
    os.setsid()
    if asked["calm"]:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, MEASURED)
    for name, flags, number in (
        (os.devnull, os.O_RDONLY, 0),
        (asked["out"], os.O_WRONLY | os.O_CREAT, 1),
        (asked["err"], os.O_WRONLY | os.O_CREAT, 2),
    ):
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(asked["cwd"])
    os.environ.update(asked["env"])
    sys.argv = ["floodmark", *asked["args"]]
    atexit.register(gc.unfreeze)  # otherwise native modules report what is left at exit as leaks
    if "LAB_PLAN" in asked["env"]:
        import labinject

        labinject.arm(asked["env"]["LAB_PLAN"])


def _end(code: int) -> None:
    """Do what Python does at exit, except for tearing down modules: that costs more than the command itself."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit.unregister(gc.unfreeze)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _import_everything() -> None:
    """Import what a command would import; none of it opens a file or a socket or starts a thread."""
    import importlib
    import pkgutil

    import floodmark

    for module in pkgutil.walk_packages(floodmark.__path__, "floodmark."):
        if not module.name.startswith(
            (
                "floodmark.setup.services",
                "floodmark.setup.demo",
                "floodmark.__main__",
                "floodmark.airflow",
                "floodmark.dagster",
            )
        ):
            importlib.import_module(module.name)
    layers = [f"labinject.{name}" for name in ("store", "warehouse", "spark", "hurry", "broken")]
    for name in ("pyspark", "pyspark.java_gateway", "floodmark.setup.services.reaper", *layers):
        importlib.import_module(name)
    from floodmark.log.document import Checkpoint
    from floodmark.log.lease import LeaseNote
    from floodmark.model.commit import read_commit
    from floodmark.model.json import adapter

    for kind in (Checkpoint, LeaseNote):
        adapter(kind)  # takes half of a short command's time
    with suppress(ValueError):
        read_commit(b"")
    gc.freeze()


if __name__ == "__main__":
    sys.path[0] = str(INJECT)  # not the laboratory's folder: its modules have common names
    for name in [n for n in os.environ if n.startswith(("FLOODMARK_", "AWS_", "LAB_"))]:
        del os.environ[name]
    _import_everything()
    wanted = _serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted is not None:
        _become(wanted)
        from floodmark.cli.main import main

        ended = main()
        if wanted["whole"]:
            sys.exit(ended)
        _end(ended)
