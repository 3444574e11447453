"""Ctrl-C and SIGTERM: the first raises `Interrupted` in the main thread, another ends the process at once.

Libraries in between may swallow or wrap the exception; `Signals.code` remembers that it was a signal. If the
main thread is blocked inside a driver and does not notice the signal, a watcher ends the process.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any, Self

from floodmark.model.errors import Interrupted

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
# `timeout` and some shells deliver one stop twice; a person's second Ctrl-C comes later than this.
_TWICE = 0.3
# The main thread notices a signal at once, unless it waits inside a driver for a service that does not answer.
_DEAF = 2.0


# What a sync leaves behind wherever it is stopped.
KEPT = "committed rows are kept, and the next run continues from there"


def interrupted(code: int, left: str = "") -> Interrupted:
    """The error for a stop by signal; `left`: what the command leaves behind."""
    name = "SIGTERM" if code == CODES[signal.SIGTERM] else "Ctrl-C"
    return Interrupted(f"interrupted by {name}" + (f"; {left}" if left else ""), code=code)


def import_aside(*modules: str) -> None:
    """Imports modules in another thread, while Spark's start imports others.

    A signal that ended an import in the main thread could leave Python's import lock taken, for ever.
    """
    importing = threading.Thread(target=lambda: [*map(import_module, modules)], name="imports", daemon=True)
    importing.start()
    importing.join()


class Signals:
    """The handlers of SIGINT and SIGTERM while a command runs; `last_words` is called if the command can't report it itself.

    `left` tells what the command leaves behind when it is stopped now.
    """

    def __init__(self, last_words: Callable[[Interrupted], object], left: Callable[[], str]) -> None:
        self.code: int | None = None
        self._last_words = last_words
        self._left = left
        self._heard = threading.Event()
        self._at = 0.0
        self._before: dict[int, Any] = {}
        self._wake: socket.socket | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in CODES:
                self._before[number] = signal.signal(number, self._received)
            self._wake, ours = socket.socketpair()
            self._wake.setblocking(False)
            signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(ours,), name="signals", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._wake is not None:
            signal.set_wakeup_fd(-1)
            self._wake.close()

    def _watch(self, wake: socket.socket) -> None:
        """Python wakes this thread for a signal at once, the main thread only between two of its own steps."""
        with wake:
            while number := wake.recv(1):
                code = CODES.get(signal.Signals(number[0]))
                if code is not None and not self._heard.wait(_DEAF):
                    self._last_words(interrupted(code, self._left()))
                    os._exit(code)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._heard.set()
        if self.code is None:
            self.code, self._at = CODES[signal.Signals(number)], time.monotonic()
            raise interrupted(self.code, self._left())
        if time.monotonic() - self._at < _TWICE:
            return
        if sys.stderr is not None and sys.stderr.isatty():
            os.write(2, b"\x1b[?25h\n")  # progress bars hide the cursor
        os._exit(CODES[signal.Signals(number)])
