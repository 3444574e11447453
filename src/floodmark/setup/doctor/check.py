"""A check and its outcome, and lanes of checks that run in parallel, each within a time limit.

A lane is an iterator that yields checks as they are made. When its time is up, what it has found so far counts, and
not finishing is a failure of its own. So `doctor` always ends, however silent a service is.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from floodmark.model.errors import FloodmarkError, TlsError
from floodmark.model.text import size

Status = Literal["ok", "warning", "failure", "skipped"]
STATUSES: tuple[Status, ...] = ("ok", "warning", "failure", "skipped")
# Bytes on a disk.
LITTLE_SPACE = 1 << 30


@dataclass(frozen=True)
class Check:
    """What was checked, the result, and what to do about it."""

    section: str
    name: str
    status: Status
    detail: str
    hint: str | None = None
    table: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Section:
    """The checks of one service, or of one table."""

    name: str
    table: str | None = None

    def ok(self, name: str, detail: str) -> Check:
        return Check(self.name, name, "ok", detail, None, self.table)

    def warning(self, name: str, detail: str, hint: str | None = None) -> Check:
        return Check(self.name, name, "warning", detail, hint, self.table)

    def failure(self, name: str, detail: str, hint: str | None = None) -> Check:
        return Check(self.name, name, "failure", detail, hint, self.table)

    def failed(self, name: str, error: FloodmarkError) -> Check:
        """An error as a failed check, in the error's own words."""
        return self.failure(name, " ".join(error.message.split()), error.hint)

    def space(self, name: str, folder: Path, shown: str, hint: str) -> Check:
        """The free space of a folder's disk."""
        free = shutil.disk_usage(folder).free
        if free < LITTLE_SPACE:
            return self.warning(name, f"{shown}: only {size(free)} free", hint)
        return self.ok(name, f"{shown}, {size(free)} free")

    def in_order(self, steps: Iterable[Check], names: Sequence[str]) -> Generator[Check, None, str | None]:
        """The checks up to the first failure, whose name it returns; of `names`, those not made are skipped."""
        made: list[str] = []
        for check in steps:
            yield check
            made.append(check.name)
            if check.status == "failure":
                yield from self.skipped([name for name in names if name not in made], f"see {check.name}")
                return check.name
        return None

    def log_in_failed(self, error: FloodmarkError) -> Check:
        """A connection that could not be opened."""
        return self.failed("TLS" if isinstance(error, TlsError) else "log-in", error)

    def skipped(self, names: str | Sequence[str], because: str) -> list[Check]:
        """Checks that could not be made because of an earlier one."""
        listed = [names] if isinstance(names, str) else names
        return [Check(self.name, name, "skipped", because, None, self.table) for name in listed]


def _begun(section: str, checks: Iterable[Check], seconds: float) -> Callable[[], list[Check]]:
    """Runs a lane in a thread: a function that waits for what it finds in time, and raises a bug in a check."""
    until, made, bugs = time.monotonic() + seconds, list[Check](), list[BaseException]()

    def run() -> None:
        try:
            for check in checks:
                made.append(check)  # seen at once by whoever stops waiting
        except FloodmarkError as error:
            made.append(Section(section).failed("answer", error))
        except BaseException as error:
            bugs.append(error)

    # A daemon: a driver that waits for a silent service can't be stopped, only abandoned.
    thread = threading.Thread(target=run, name=f"check {section}", daemon=True)
    thread.start()

    def wait() -> list[Check]:
        thread.join(max(0.0, until - time.monotonic()))
        found = list(made)
        for bug in bugs:
            raise bug
        if thread.is_alive():
            after = f" (last answer: {found[-1].name})" if found else ""
            late = Section(found[-1].section if found else section).failure(
                "time",
                f"did not finish within {seconds:g} s{after}",
                "the service is silent or very slow: check it, the network, and any firewalls in between",
            )
            found.append(late)
        return found

    return wait


def at_once(lanes: Iterable[tuple[str, Iterable[Check], float]]) -> Iterator[list[Check]]:
    """The checks of each lane in order, as soon as it has ended; all lanes start at once."""
    waits = [_begun(*lane) for lane in lanes]
    for wait in waits:
        yield wait()
