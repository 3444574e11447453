"""Switches for what goes wrong: dropped sockets, lost answers, delays, stalls, errors on demand.

A fault is armed for a number of statements that match a pattern (by default, any) and is disarmed after them.
Safe to use from any thread; sessions call `next` before each statement.
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from tests.support.redshift.errors import ISOLATION, spectrum_error
from tests.support.redshift.wire import SqlError

Action = Literal["drop", "drop_after", "delay", "stall", "error"]
_COMMIT = r"\s*(commit|end)\b"


@dataclass
class Fault:
    """One thing that goes wrong, `times` times, with matching statements."""

    action: Action
    match: str | None = None
    times: int = 1
    skip: int = 0  # matching statements to let through first
    seconds: float = 0.0  # length of a delay, or how long the backend outlives a dropped socket
    error: SqlError | None = None
    load_error: dict[str, object] | None = None

    def fits(self, sql: str) -> bool:
        return self.match is None or re.match(self.match, sql, re.I | re.S) is not None


@dataclass
class Faults:
    """The faults of one stand-in, and the statements it has seen."""

    statements: deque[str] = field(default_factory=lambda: deque(maxlen=10_000))
    lag_seconds: float = 0.0  # of the SYS and STL views
    utilities: bool = False  # whether SYS_QUERY_HISTORY shows COMMIT and the like
    _armed: list[Fault] = field(default_factory=list)
    _denied_urls: list[str] = field(default_factory=list)
    _denied_roles: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _going: threading.Event = field(default_factory=threading.Event)
    _era: int = 0

    def __post_init__(self) -> None:
        self._going.set()

    def arm(self, fault: Fault) -> None:
        with self._lock:
            self._armed.append(fault)

    def drop_before_commit(self, times: int = 1, linger: float = 0.0) -> None:
        """Drop the socket when COMMIT arrives: the transaction is rolled back, after `linger` seconds."""
        self.arm(Fault("drop", _COMMIT, times, seconds=linger))

    def drop_after_commit(self, times: int = 1) -> None:
        """Commit, then drop the socket instead of answering."""
        self.arm(Fault("drop_after", _COMMIT, times))

    def drop_at(self, k: int = 1, match: str | None = None, linger: float = 0.0, after: bool = False) -> None:
        """Drop the socket at the k-th matching statement from now on (in any session), before or after it."""
        self.arm(Fault("drop_after" if after else "drop", match, 1, k - 1, linger))

    def delay(self, seconds: float, match: str | None = None, times: int = 1) -> None:
        """Answer late."""
        self.arm(Fault("delay", match, times, seconds=seconds))

    def delay_commit(self, seconds: float, times: int = 1) -> None:
        """Hold back a COMMIT; the session keeps its locks. The history shows it only after `show_utilities`."""
        self.arm(Fault("delay", _COMMIT, times, seconds=seconds))

    def conflicts(self, times: int = 1, match: str = _COMMIT) -> None:
        """Error 1023, as if it conflicted with other transactions."""
        detail = ISOLATION.format(table=100_001, a=1023, b=1024, pid=4711)
        self.arm(Fault("error", match, times, error=SqlError("XX000", "1023", detail)))

    def fail(self, match: str, code: str, message: str, detail: str | None = None, times: int = 1) -> None:
        """Any error, for matching statements."""
        self.arm(Fault("error", match, times, error=SqlError(code, message, detail)))

    def fail_copy(
        self,
        context: str = "S3 Query Exception (Fetch)",
        *,
        code: int = 15001,
        times: int = 1,
        load_error: dict[str, object] | None = None,
    ) -> None:
        """A COPY that fails; `load_error` becomes a row of STL_LOAD_ERRORS and SYS_LOAD_ERROR_DETAIL."""
        error = spectrum_error(code, context)
        self.arm(Fault("error", r"\s*copy\b", times, error=error, load_error=load_error))

    def deny_s3(self, prefix: str) -> None:
        """S3 answers COPY with AccessDenied for URLs with this prefix (`s3://bucket/key`), until `clear`."""
        with self._lock:
            self._denied_urls.append(prefix)

    def deny_role(self, role: str) -> None:
        """IAM lets nobody assume this role, until `clear`."""
        with self._lock:
            self._denied_roles.append(role)

    def denies(self, *, url: str = "", role: str = "") -> bool:
        """Whether COPY is denied an object or a role."""
        with self._lock:
            return (bool(url) and url.startswith(tuple(self._denied_urls))) or role in self._denied_roles

    def lag(self, seconds: float) -> None:
        """Delay the rows of the SYS and STL views by this much, until `clear`."""
        self.lag_seconds = seconds

    def show_utilities(self) -> None:
        """Show BEGIN, COMMIT, SET and the like in SYS_QUERY_HISTORY until `clear`; AWS documents some or all."""
        self.utilities = True

    def stall(self, match: str | None = None, times: int = 1) -> None:
        """Half-open: the session hangs at a statement and keeps its locks, until `clear` or its backend ends."""
        self.arm(Fault("stall", match, times))

    def clear(self) -> None:
        """Disarm everything, and resume delayed and stalled sessions."""
        with self._lock:
            self._armed.clear()
            self._denied_urls.clear()
            self._denied_roles.clear()
            self.lag_seconds, self.utilities = 0.0, False
            self._era += 1
        self._going.set()

    def pause(self) -> None:
        """Make every session hang at its next statement, and new ones before their first."""
        self._going.clear()

    def resume(self) -> None:
        self._going.set()

    @property
    def paused(self) -> bool:
        return not self._going.is_set()

    @property
    def era(self) -> int:
        """Grows with each `clear`."""
        return self._era

    @property
    def armed(self) -> int:
        """How many faults are still armed."""
        with self._lock:
            return len(self._armed)

    def next(self, sql: str) -> list[Fault]:
        """The faults that strike this statement; each is used up once."""
        due: list[Fault] = []
        with self._lock:
            self.statements.append(sql)
            for fault in list(self._armed):
                if not fault.fits(sql):
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                due.append(fault)
                fault.times -= 1
                if fault.times <= 0:
                    self._armed.remove(fault)
        return due

    def command(self, words: str) -> None:
        """A switch as text, for other processes: `SET floodmark.fault TO '{"fault": "delay", "seconds": 2}'`."""
        try:
            options = json.loads(words) if words.lstrip().startswith("{") else {"fault": words.strip()}
            name = options.pop("fault")
            if name not in _COMMANDS:
                raise KeyError(name)
            getattr(self, name)(**options)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            known = ", ".join(sorted(_COMMANDS))
            raise SqlError("22023", f"no such fault: {words} ({error}); there are: {known}") from None


_COMMANDS = frozenset({"drop_before_commit", "drop_after_commit", "drop_at", "delay", "delay_commit", "conflicts", "fail", "fail_copy",
                       "deny_s3", "deny_role", "lag", "show_utilities", "stall", "clear", "pause", "resume"})  # fmt: skip
