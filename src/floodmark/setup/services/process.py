"""A private server process: its folder, its ports, and how it ends.

A `ServerProcess` belongs to the process that created it and never outlives it (see `reaper`). It listens on 127.0.0.1
only, on ports below the kernel's ephemeral range, so that no outgoing connection can take one first.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from floodmark.host.process import child_environment
from floodmark.host.retry import Retries
from floodmark.model.errors import ConfigError, TransientError
from floodmark.setup.services import reaper

HOST = "127.0.0.1"
_PORTS = range(12_000, 31_000)
_dice = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Free ports; all are held while choosing, so that they differ."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            probe = held.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind((HOST, _dice.choice(_PORTS)))
                found.append(int(probe.getsockname()[1]))
    return found


def binary(names: tuple[str, ...], hint: str) -> str:
    """The path of a program, next to this Python or on the PATH (Debian keeps servers in /usr/sbin)."""
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"))
    for name in names:
        found = shutil.which(name, path=places)
        if found:
            return found
    raise ConfigError(f"{names[0]} is not installed", hint=hint)


class ServerProcess:
    """One server process in a temporary folder; a context manager that starts and removes it."""

    name = "server"
    grace = 20.0  # seconds for an orderly stop
    patience = 1.0  # factor on the time that a start may take

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"floodmark-{self.name}-"))
        self._keeper: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        return int((self.folder / "pid").read_text())

    @property
    def running(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    def launch(
        self,
        command: list[str],
        ready: Callable[[], bool],
        seconds: float,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start the command under a reaper and wait until `ready` returns true."""
        if self.running:
            raise ConfigError(f"{self.name} is already running")
        (self.folder / "pid").unlink(missing_ok=True)
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__, str(os.getpid()), str(self.folder), *command],
            stdin=subprocess.DEVNULL,
            env=child_environment(env),
            start_new_session=True,  # Ctrl-C reaches only the parent, which then stops the server
        )
        seconds *= self.patience
        for _ in Retries(pause=0.02, factor=1, seconds=seconds):
            if ready():
                return
            if not self.running:
                raise TransientError(f"{self.name} ended while starting: {self.last_words()}")
        self.kill()
        raise TransientError(f"{self.name} did not answer within {seconds:.0f} s: {self.last_words()}")

    def last_words(self) -> str:
        """The last line of the server's log that looks like an error."""
        try:
            lines = (self.folder / "log").read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        errors = [line for line in lines if "error" in line.lower() and "Aborting" not in line]
        return (errors or lines or ["(its log is empty)"])[-1]

    def stop(self) -> None:
        """Shut the server down cleanly; its folder stays, and `start` picks it up again."""
        if self._keeper is None:
            return
        self._keeper.terminate()
        try:
            self._keeper.wait(self.grace)
        except subprocess.TimeoutExpired:
            self.kill()
        self._keeper = None

    def restart(self) -> None:
        """Stop and start again on the same port and folder."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """kill -9 the server; its folder stays, and `start` recovers from it."""
        if self._keeper is None:
            return
        self._signal(signal.SIGKILL)
        self._keeper.wait()
        self._keeper = None

    def pause(self) -> None:
        """Stall the server: its connections stay open and nothing answers (SIGSTOP)."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End a `pause`."""
        self._signal(signal.SIGCONT)

    @contextmanager
    def starved(self) -> Iterator[None]:
        """Give the server a seventh of its CPU time."""
        end = threading.Event()

        def stop_and_go() -> None:
            while not end.is_set():
                self.pause()
                time.sleep(0.06)
                self.resume()
                time.sleep(0.01)

        starving = threading.Thread(target=stop_and_go, daemon=True)
        starving.start()
        try:
            yield
        finally:
            end.set()
            starving.join()

    def _signal(self, number: signal.Signals) -> None:
        if not self.running:  # its process id may have been reused
            return
        try:
            os.kill(self.pid, number)
        except (ProcessLookupError, FileNotFoundError):
            if number is signal.SIGKILL and self._keeper is not None:
                self._keeper.kill()  # no server yet, only the reaper

    def remove(self) -> None:
        """Kill the server and remove everything it left."""
        self.kill()
        reaper.remove(self.folder)
