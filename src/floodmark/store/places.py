"""Additional places for copies of what the store holds (`store.copies_to`), written in the background.

Nothing waits for a place that is slow or down: pending writes stay in memory, the newest job per key, and the
end of a command gives them a moment. Whatever was not written by then is written with the next change.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from floodmark.model.errors import FloodmarkError, TransientError, bug

if TYPE_CHECKING:
    from floodmark.store.store import Store

T = TypeVar("T")

log = logging.getLogger("floodmark")

WRITERS = 4
# Seconds that a command waits at its end for its places, and for the answer to a query it could do without.
GRACE = 1.5


class Place:
    """One additional place. Safe to share between threads."""

    def __init__(self, store: Store, with_log: bool) -> None:
        self.store = store
        self.label = store.spec.url  # the name shown to people
        self.with_log = with_log
        # Cached answers: per table, the commit that the copy there shows and its digest; whether the place belongs to this
        # pipeline; and whether that is recorded there.
        self.reached: dict[str, tuple[int, str]] = {}
        self.ours = False
        self.introduced = False
        self.failed: str | None = None
        self._changed = threading.Condition()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._busy: set[str] = set()
        self._writers = 0

    def later(self, key: str, job: Callable[[], None]) -> None:
        """Runs the job in the background; replaces a job with the same key that has not begun."""
        with self._changed:
            self._waiting[key] = job
            if self._writers < WRITERS:
                self._writers += 1
                threading.Thread(target=self._work, name="copies", daemon=True).start()

    def finish(self, until: float) -> None:
        """Waits until everything is written, something fails, or time is up; reports what is left undone."""
        with self._changed:
            self._changed.wait_for(self._settled, max(0.0, until - time.monotonic()))
            left = len(self._waiting) + len(self._busy)
        if left and self.failed is None:
            self.complain("it took too long")

    def ask(self, question: Callable[[Place], T], *, patient: bool = False) -> T:
        """The place's answer; unless `patient`, within a short time, and a place that has failed is not queried again."""
        if patient:
            return question(self)
        if self.failed is not None:
            raise TransientError(f"{self.label}: {self.failed}")
        answers: list[T] = []
        errors: list[FloodmarkError] = []

        def put() -> None:
            try:
                answers.append(question(self))
            except FloodmarkError as error:
                errors.append(error)

        asking = threading.Thread(target=put, name="copies", daemon=True)
        asking.start()
        asking.join(GRACE)
        if answers:
            return answers[0]
        why = errors[0].message if errors else f"no answer within {GRACE:g} s"
        self.complain(why, "read")
        raise TransientError(f"{self.label}: {why}")

    def complain(self, why: str, what: str = "written") -> None:
        """Reports, once per command, that the place can't be used now."""
        level = logging.WARNING if self.failed is None else logging.INFO
        self.failed = why
        log.log(level, "copies_to %s could not be %s: %s", self.label, what, why, extra={"step": "publish"})

    def _settled(self) -> bool:
        return self.failed is not None or not (self._waiting or self._busy)

    def _work(self) -> None:
        while True:
            with self._changed:
                key = next((k for k in self._waiting if k not in self._busy), None)
                if key is None:
                    self._writers -= 1
                    self._changed.notify_all()
                    return
                job = self._waiting.pop(key)
                self._busy.add(key)
            try:
                job()
            except FloodmarkError as error:
                self.complain(error.message)
            except Exception as error:  # even an unforeseen error must be reported
                self.complain(bug(error).message)
            with self._changed:
                self._busy.discard(key)
                self._changed.notify_all()


def finish(places: Iterable[Place], seconds: float = GRACE) -> None:
    """Gives the places a moment to finish pending writes."""
    until = time.monotonic() + seconds
    for place in places:
        place.finish(until)
