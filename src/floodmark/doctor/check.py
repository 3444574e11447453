"""One check and its outcome, and lanes of checks that run side by side, each within its time.

A lane is an iterator that yields checks as they are made. What a lane has found when its time is over counts, and
that it did not end is a failure of its own; so whoever waits is answered, whatever service stays silent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from floodmark.errors import FloodmarkError

Status = Literal["ok", "warning", "failure", "skipped"]
STATUSES: tuple[Status, ...] = ("ok", "warning", "failure", "skipped")
# Held while a DuckDB file is open: a process opens it in one way at a time, to read or to write.
EMBEDDED = threading.Lock()


@dataclass(frozen=True)
class Check:
    """What was looked at, how it was found, and what to do about it."""

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
    """The checks of one service, said in its name; of one table when it is named."""

    name: str
    table: str | None = None

    def ok(self, name: str, detail: str) -> Check:
        return Check(self.name, name, "ok", detail, None, self.table)

    def warning(self, name: str, detail: str, hint: str | None = None) -> Check:
        return Check(self.name, name, "warning", detail, hint, self.table)

    def failure(self, name: str, detail: str, hint: str | None = None) -> Check:
        return Check(self.name, name, "failure", detail, hint, self.table)

    def failed(self, name: str, error: FloodmarkError) -> Check:
        """The failure that an error is, in the error's own words."""
        return self.failure(name, " ".join(error.message.split()), error.hint)

    def skipped(self, names: str | Sequence[str], because: str) -> list[Check]:
        """Checks that could not be made because of an earlier one."""
        listed = [names] if isinstance(names, str) else names
        return [Check(self.name, name, "skipped", because, None, self.table) for name in listed]


class Lane:
    """Checks that are made one after the other, in a thread of their own."""

    def __init__(self, section: str, checks: Iterable[Check], seconds: float) -> None:
        self._section = section
        self._until = time.monotonic() + seconds
        self._seconds = seconds
        self._found: list[Check] = []
        self._bug: BaseException | None = None
        # A daemon: a driver that waits for a silent service can't be stopped, only left behind.
        self._thread = threading.Thread(
            target=self._run, args=(checks,), name=f"check {section}", daemon=True
        )
        self._thread.start()

    def _run(self, checks: Iterable[Check]) -> None:
        try:
            for check in checks:
                self._found.append(check)
        except FloodmarkError as error:
            self._found.append(Section(self._section).failed("answer", error))
        except BaseException as error:
            self._bug = error

    def wait(self) -> list[Check]:
        """What was found, once the lane has ended or its time is over; a bug in a check is raised here."""
        self._thread.join(max(0.0, self._until - time.monotonic()))
        found = list(self._found)
        if self._bug is not None:
            raise self._bug
        if self._thread.is_alive():
            section = found[-1].section if found else self._section
            after = f" (the last answer was to: {found[-1].name})" if found else ""
            found.append(
                Section(section).failure(
                    "time",
                    f"no end within {self._seconds:g} s{after}",
                    "the service is silent or very slow: look at it, at the network and at firewalls between",
                )
            )
        return found


def at_once(lanes: Iterable[tuple[str, Iterable[Check], float]]) -> Iterator[list[Check]]:
    """The checks of each lane in order, as soon as it has ended; all of them are begun at once."""
    begun = [Lane(*lane) for lane in lanes]
    for lane in begun:
        yield lane.wait()
