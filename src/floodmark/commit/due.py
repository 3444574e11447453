"""A publication that may wait: one that follows within two seconds overtakes it, and saves its requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from floodmark.commit.fold import State
from floodmark.model.ledger import LedgerRow
from floodmark.model.run import Stage

# Seconds that a publication may wait.
SOON = 2.0
# Seconds after which its process must have been paused: another run may have taken the table meanwhile.
LATE = 10.0


@dataclass(frozen=True)
class Publication:
    """What is to be published."""

    state: State
    ledger: Iterable[LedgerRow] | None
    succeeded: frozenset[Stage]
    at: float  # by the wall clock, which goes on while a machine sleeps

    @property
    def late(self) -> bool:
        return abs(time.time() - self.at) > LATE


class Due:
    """At most one publication that waits. Not thread-safe: the caller's lock guards it."""

    def __init__(self) -> None:
        self.waiting: Publication | None = None
        self._timer: threading.Timer | None = None

    def put(
        self,
        state: State,
        ledger: Iterable[LedgerRow] | None,
        succeeded: Collection[Stage],
        overdue: Callable[[], None],
    ) -> None:
        """Lets a publication wait, for no longer than the one that it replaces; then calls `overdue`, in a thread."""
        before = self.waiting.succeeded if self.waiting else frozenset[Stage]()
        self.waiting = Publication(state, ledger, before.union(succeeded), time.time())
        if self._timer is None:
            self._timer = threading.Timer(SOON, overdue)
            self._timer.daemon = True
            self._timer.start()

    def take(self) -> Publication | None:
        """What waits; from now on, nothing does."""
        found, self.waiting = self.waiting, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return found
