"""A publication that may wait: one that follows within two seconds overtakes it, and saves its requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from floodmark.commit.fold import State
from floodmark.model.ledger import LedgerRow
from floodmark.model.run import Stage

# Seconds that a publication may wait.
SOON = 2.0


@dataclass(frozen=True)
class Publication:
    """What is to be published."""

    state: State
    ledger: Iterable[LedgerRow] | None
    succeeded: frozenset[Stage]


class Due:
    """At most one publication that waits. Not thread-safe: the caller's lock guards it."""

    def __init__(self) -> None:
        self._waiting: Publication | None = None
        self._timer: threading.Timer | None = None

    def put(
        self,
        state: State,
        ledger: Iterable[LedgerRow] | None,
        succeeded: Collection[Stage],
        overdue: Callable[[], None],
    ) -> None:
        """Lets a publication wait, for no longer than the one that it replaces; then calls `overdue`, in a thread."""
        before = self._waiting.succeeded if self._waiting else frozenset[Stage]()
        self._waiting = Publication(state, ledger, before.union(succeeded))
        if self._timer is None:
            self._timer = threading.Timer(SOON, overdue)
            self._timer.daemon = True
            self._timer.start()

    def take(self) -> Publication | None:
        """What waits; from now on, nothing does."""
        found, self._waiting = self._waiting, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return found
