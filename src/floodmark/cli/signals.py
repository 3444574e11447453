"""Ctrl-C and SIGTERM: the first raises `Interrupted` in the main thread, another ends the process at once.

Libraries in between may swallow or wrap the exception; `Signals.code` remembers that it was a signal.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Self

from floodmark.errors import Interrupted

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
# `timeout` and some shells deliver one stop twice; a person's second Ctrl-C comes later than this.
_TWICE = 0.3


def interrupted(code: int) -> Interrupted:
    """What is said of a stop by signal."""
    name = "SIGTERM" if code == CODES[signal.SIGTERM] else "Ctrl-C"
    said = f"interrupted by {name}; what was committed stays, and the next run goes on from there"
    return Interrupted(said, code=code)


class Signals:
    """The handlers of SIGINT and SIGTERM while a command runs."""

    def __init__(self) -> None:
        self.code: int | None = None
        self._at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in CODES:
                self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.code is None:
            self.code, self._at = CODES[signal.Signals(number)], time.monotonic()
            raise interrupted(self.code)
        if time.monotonic() - self._at < _TWICE:
            return
        if sys.stderr is not None and sys.stderr.isatty():
            os.write(2, b"\x1b[?25h\n")  # progress bars hide the cursor
        os._exit(CODES[signal.Signals(number)])
