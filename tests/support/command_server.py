"""The real command as a process, hundreds of times, without importing it hundreds of times.

A template process imports the product once, opens nothing, and forks. Each child becomes the command, with its own
arguments, folder, environment and output: it runs `floodmark.cli.main.main`, can be killed and stopped, and exits like
any process. `Template` and `Command` are the tests' side; the second half of this module runs in the template.
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
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# They need packages that only an orchestrator's environment has.
ORCHESTRATORS = (
    "floodmark.airflow",
    "floodmark.dagster",
)


class Template:
    """The process that forks; starts with the first command and ends with this process."""

    def __init__(self) -> None:
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, args: tuple[str, ...], cwd: Path, env: Mapping[str, str]) -> Command:
        """Start the command without waiting for it."""
        if self._link is None:
            self._link = self._begin()
        asked = json.dumps({"args": args, "cwd": str(cwd), "env": dict(env)}).encode()
        pipes = [os.pipe() for _ in range(3)]
        socket.send_fds(self._link, [asked], [theirs for _, theirs in pipes])
        for _, theirs in pipes:
            os.close(theirs)
        return Command(*(ours for ours, _ in pipes))

    def _begin(self) -> socket.socket:
        from floodmark.setup.services import reaper

        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # no terminal, as for its children
            start_new_session=True,
            preexec_fn=reaper.die_with_parent,
        )
        theirs.close()
        return ours

    def end(self) -> None:
        if self._link is not None and self._process is not None:
            self._link.close()
            self._process.kill()
            self._process.wait()


class Command:
    """A started command: the part of `subprocess.Popen` that tests use, for a child of the template."""

    def __init__(self, out: int, err: int, told: int) -> None:
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        self._told = os.fdopen(told, "rb", buffering=0)
        self._lock = threading.Lock()
        self.returncode: int | None = None  # negative for a signal
        self.pid = int(self._told.readline())

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("floodmark", timeout or 0)
        return code

    def _ended(self, seconds: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._told], [], [], seconds)[0]:
                said = self._told.readline()
                assert said, "the template has ended"
                self.returncode = int(said)
            return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for it to end; returns everything that it printed."""
        said = ["", ""]

        def read(which: int, stream: Any) -> None:
            said[which] = stream.read()

        began = time.monotonic()
        readers = [
            threading.Thread(target=read, args=(n, stream), daemon=True)
            for n, stream in enumerate((self.stdout, self.stderr))
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if timeout is None else max(0.0, began + timeout - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired("floodmark", timeout or 0)
        self.stdout.close()
        self.stderr.close()
        self.wait(None if timeout is None else max(0.0, began + timeout - time.monotonic()))
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill whatever is left of it and its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.kill()  # it may not lead a group yet
        self.wait(10)
        self._told.close()


# ---------------------------------------------------------------- the template


def _serve(link: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork on request. Returns in the child, with the request; in the template, when everything is over."""
    children: dict[int, int] = {}  # where to report the end of each
    woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([link.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        while children and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            told = children.pop(ended[0])
            _tell(told, os.waitstatus_to_exitcode(ended[1]))
            os.close(told)
        if link.fileno() not in ready:
            continue
        asked, fds, _, _ = socket.recv_fds(link, 1 << 20, 3)
        if not asked:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (woken, waker, fds[2], *children.values()):
                os.close(other)
            link.close()
            return json.loads(asked), fds[:2]
        os.close(fds[0])
        os.close(fds[1])
        children[pid] = fds[2]
        _tell(fds[2], pid)


def _tell(where: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody is waiting any more
        os.write(where, f"{number}\n".encode())


def _become(asked: dict[str, Any], output: list[int]) -> None:
    """Turn this process into the command."""
    from floodmark.setup.services import reaper

    reaper.die_with_parent()
    os.setsid()
    for number, fd in enumerate(output, 1):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    time.tzset()
    del sys.path[0]  # as `python -m floodmark` does
    sys.argv = ["floodmark", *asked["args"]]
    atexit.register(gc.unfreeze)  # otherwise native modules report what is left at exit as leaks


def _import_everything() -> None:
    """Import what a command would import; none of it opens a file or a socket or starts a thread."""
    import importlib
    import pkgutil

    import floodmark

    for module in pkgutil.walk_packages(floodmark.__path__, "floodmark."):
        if not module.name.startswith(
            ("floodmark.setup.services", "floodmark.setup.demo", "floodmark.__main__", *ORCHESTRATORS)
        ):
            importlib.import_module(module.name)
    for name in ("pyspark", "pyspark.java_gateway", "floodmark.setup.services.reaper"):
        importlib.import_module(name)
    from floodmark.log.document import Checkpoint
    from floodmark.log.lease import LeaseNote
    from floodmark.model.commit import Commit
    from floodmark.model.json import adapter

    for kind in (Commit, Checkpoint, LeaseNote):
        adapter(kind)  # takes half of a short command's time
    gc.freeze()


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # not the tests' folder: its modules have common names
    for name in [n for n in os.environ if n.startswith(("FLOODMARK_", "AWS_"))]:
        del os.environ[name]
    _import_everything()
    wanted = _serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted is not None:
        _become(*wanted)
        from floodmark.cli.main import main

        sys.exit(main())
