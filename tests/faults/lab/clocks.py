"""Wrong clocks for single processes, by libfaketime: fetched once into .venv/faketime, never installed.

Commands under a wrong clock are forked from a process of their own that was started with it; the time is read from a
file at every question, so that it can jump while a command runs.
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

from .bench import Bench
from .services import ROOT, Services
from .spawn import Running, Spawner

FOLDER = ROOT / ".venv" / "faketime"
NAME = "libfaketimeMT.so.1"
# libfaketime up to 0.9.10 answers every sleep by the monotonic clock with EINVAL where that clock is left alone (its
# issue 426), and so sleep Python 3.11 and newer. Loaded before it, this sleeps without it.
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
        """So many seconds beside the right time, from now on; never half of it."""
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{seconds:+d}\n")
        draft.replace(self._file)

    @contextmanager
    def restless(self, dice: Random) -> Iterator[None]:
        """It jumps many times a second, by up to an hour, as long as this lasts."""
        over = threading.Event()

        def jump() -> None:
            while not over.wait(dice.uniform(0.02, 0.1)):
                self.set(dice.choice([-3600, -30, -1, 0, 1, 30, 3600]))

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
        """The bench's commands run under this clock."""
        self.set(seconds)
        right, bench.spawner = bench.spawner, self.spawner
        try:
            yield
        finally:
            bench.spawner = right

    def stopped(self, bench: Bench, running: Running) -> bool:
        """Waits until a command has stopped; False when it ended before."""
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
    """The clock of a laboratory run; None where libfaketime is not to be had."""
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
    """libfaketime, wherever it is; fetched as a package and unpacked, not installed, when it is not there."""
    for folder in (FOLDER, Path("/usr/lib")):
        for found in sorted(folder.glob(f"**/faketime/{NAME}")):
            return found
    with tempfile.TemporaryDirectory() as place, suppress(OSError, subprocess.SubprocessError):
        options = {"cwd": place, "capture_output": True, "timeout": 60, "check": True}
        subprocess.run(["apt-get", "download", "libfaketime"], **options)  # type: ignore[call-overload]
        (package,) = Path(place).glob("libfaketime_*.deb")
        subprocess.run(["dpkg", "-x", str(package), str(FOLDER)], **options)  # type: ignore[call-overload]
        return next(iter(sorted(FOLDER.glob(f"**/faketime/{NAME}"))), None)
    return None
