"""Wrong clocks for single processes, with libfaketime: fetched once into .venv/faketime, never installed.

Commands under a wrong clock are forked from a separate process that was started with libfaketime. It reads the offset
from a file on every call, so the time can jump while a command runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

from .bench import Bench
from .services import ROOT, Services
from .spawn import Running, Spawner

FOLDER = ROOT / ".venv" / "faketime"
NAME = "libfaketimeMT.so.1"
# With the monotonic clock left alone, libfaketime up to 0.9.10 fails every sleep on it with EINVAL (its issue 426),
# and that is how Python 3.11 and newer sleep. This library, loaded first, sleeps without libfaketime.
SLEEPS = """\
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{ return syscall(SYS_clock_nanosleep, clock, flags, until, left) == 0 ? 0 : errno; }
"""


class Clock:
    """A clock that can be set, for the commands of a bench."""

    def __init__(self, services: Services, library: Path) -> None:
        self._file = services.scratch / "clock"
        self.set(0)
        sleeps = services.scratch / "sleeps.so"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-o", sleeps, "-xc", "-"], input=SLEEPS, text=True, check=True
        )
        env = {
            "LD_PRELOAD": f"{sleeps}:{library}",
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self.spawner = Spawner(services.scratch / "clocked", env)

    def set(self, seconds: int) -> None:
        """Set the offset from the right time, in seconds; atomic, so no reader sees half a write."""
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{seconds:+d}\n")
        draft.replace(self._file)

    @contextmanager
    def restless(self, dice: Random, most: int = 3600) -> Iterator[None]:
        """Make the clock jump many times a second, by up to `most` seconds, until the context ends."""
        over = threading.Event()

        def jump() -> None:
            while not over.wait(dice.uniform(0.02, 0.1)):
                self.set(dice.choice([-most, -30, -1, 0, 1, 30, most]))

        jumping = threading.Thread(target=jump, daemon=True)
        jumping.start()
        try:
            yield
        finally:
            over.set()
            jumping.join()
            self.set(0)

    @contextmanager
    def wrong(self, bench: Bench, seconds: int) -> Iterator[None]:
        """Run the bench's commands under this clock."""
        self.set(seconds)
        right, bench.spawner = bench.spawner, self.spawner
        try:
            yield
        finally:
            bench.spawner = right

    def stopped(self, bench: Bench, running: Running) -> bool:
        """Waits until a command has stopped; False if it ended first."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not self.spawner.ended(running):
            with suppress(OSError):
                if Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                    return True
            time.sleep(0.01)
        return False

    def go_on(self, running: Running) -> None:
        with suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGCONT)


def clock(services: Services) -> Clock | None:
    """The clock of a laboratory run; None if libfaketime is unavailable."""
    if ("clock", "") not in services.kept:
        library = _library()
        made = Clock(services, library) if library else None
        if made is not None:
            made.spawner.scratch.mkdir(exist_ok=True)
            services.keep_open(made.spawner)
        services.kept["clock", ""] = made
    found: Clock | None = services.kept["clock", ""]
    return found


def _library() -> Path | None:
    """The path of libfaketime; if missing, its package is downloaded and unpacked, not installed."""
    for folder in (FOLDER, Path("/usr/lib")):
        for found in sorted(folder.glob(f"**/faketime/{NAME}")):
            return found
    with tempfile.TemporaryDirectory() as place, suppress(OSError, subprocess.SubprocessError):
        options: dict[str, Any] = {"cwd": place, "capture_output": True, "timeout": 60, "check": True}
        subprocess.run(["apt-get", "download", "libfaketime"], **options)
        (package,) = Path(place).glob("libfaketime_*.deb")
        subprocess.run(["dpkg", "-x", str(package), str(FOLDER)], **options)
        return next(iter(sorted(FOLDER.glob(f"**/faketime/{NAME}"))), None)
    return None
