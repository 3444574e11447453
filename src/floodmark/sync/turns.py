"""How many tables of a run are worked on at once. One that only waits for Spark makes room for another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from floodmark.model.errors import Interrupted

T = TypeVar("T")

# Seconds between checks whether the run has been stopped.
LOOK_EVERY = 0.5


class Turns:
    """The turns of the tables of one run. All methods may be called from any thread."""

    def __init__(self, at_once: int) -> None:
        self._free = threading.Semaphore(at_once)
        self._over = threading.Event()

    def taking(self, run: Callable[[], T]) -> Callable[[], T]:
        """The run of a table, as soon as it has a turn; raises Interrupted if there are no more."""

        def in_turn() -> T:
            with self._free:
                if self._over.is_set():
                    raise Interrupted("stopped")
                return run()

        return in_turn

    def end(self) -> None:
        """No other table begins."""
        self._over.set()

    @contextmanager
    def stepping_aside(self) -> Iterator[None]:
        """Lets another table have this one's turn meanwhile; then waits for the next, unless the run has been stopped."""
        self._free.release()
        try:
            yield
        finally:
            while not self._free.acquire(timeout=LOOK_EVERY) and not self._over.is_set():
                pass
