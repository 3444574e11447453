"""What all tables of one run see of the source's open work, looked up once for many of them.

InnoDB renews its list of transactions only when nobody has read it for 0.1 s, so tables that each looked for themselves
would keep each other waiting, and in a crowd never see a fresh one. A look serves whoever asked before it began: it is
then as late as one's own would be, and later is always safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from floodmark.mysql import bounds, open_work
from floodmark.mysql.bounds import Trust
from floodmark.mysql.connect import Session
from floodmark.mysql.open_work import Holder, Sight

# InnoDB's list of transactions is renewed when it has not been read for 0.1 s.
RENEWED = 0.105
# For so long a server counts as what it said to be: a replica, a member of a cluster.
TRUSTED = 5.0


class Looks:
    """The looks of one run at one source. All methods may be called from any thread."""

    def __init__(self, look: Callable[[Session, Sight], list[Holder]] = open_work.holders) -> None:
        self._look = look
        self._change = threading.Condition()
        self._begun = 0  # looks so far
        self._seen = 0  # the newest that has been answered
        self._looking = False
        self._found: list[Holder] = []
        self._read = float("-inf")
        self._asking = threading.Lock()
        self._trust: Trust | None = None
        self._asked = float("-inf")
        self._zones: tuple[str, ...] | None = None
        self._zones_asked = float("-inf")

    def trust(self, session: Session) -> Trust:
        """Whether the server tells of every transaction that can still commit; asked once for all tables."""
        with self._asking:
            if self._trust is None or time.monotonic() - self._asked > TRUSTED:
                self._asked = time.monotonic()
                self._trust = bounds.trust(session)
            return self._trust

    def zones(self, session: Session) -> tuple[str, ...]:
        """The time zones of sessions that may write, where they are not the server's and it shows them; asked likewise."""
        with self._asking:
            if time.monotonic() - self._zones_asked > TRUSTED:
                self._zones_asked = time.monotonic()
                self._zones = bounds.zones_beside(session)
            return self._zones or ()

    def holders(self, session: Session, sight: Sight) -> list[Holder]:
        """Every transaction and statement that may still commit a row, oldest first, as of this call or later."""
        with self._change:
            wanted = (
                self._begun + 1
            )  # what is being looked at now may have begun before the caller's other questions
            while self._looking and self._seen < wanted:
                self._change.wait()
            if self._seen >= wanted:
                return self._found
            self._looking = True
        found: list[Holder] | None = None
        number = 0
        try:
            if sight.process and (pause := self._read + RENEWED - time.monotonic()) > 0:
                time.sleep(pause)
            with self._change:
                self._begun += 1
                number = self._begun
            found = self._look(session, sight)
            return found
        finally:
            with self._change:
                self._looking, self._read = False, time.monotonic()
                if found is not None:
                    self._seen, self._found = number, found
                self._change.notify_all()
