"""The source's open work as all tables of one run see it: one look serves many of them.

InnoDB renews its list of transactions only after 0.1 s without a read, so tables that each looked for
themselves would keep one another waiting, and many of them would never see a fresh list. A look serves every
caller that asked before it began: it is then as late as the caller's own would be, and later is always safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from floodmark.model.table import Table
from floodmark.services.mysql import open_work, sources, time_zones
from floodmark.services.mysql.open_work import OpenWork, Sight
from floodmark.services.mysql.session import Session
from floodmark.services.mysql.trust import Trust, trust_in

# InnoDB renews its list of transactions once it has not been read for 0.1 s.
RENEWED = 0.105
# Seconds for which a server's role (a replica, a member of a cluster) is cached.
TRUSTED = 5.0


class SharedLooks:
    """One run's looks at one server. All methods may be called from any thread."""

    def __init__(self, look: Callable[[Session, Sight], list[OpenWork]] = open_work.all_open_work) -> None:
        self._look = look
        self._change = threading.Condition()
        self._begun = 0  # looks so far
        self._seen = 0  # the newest look that has been answered
        self._looking = False
        self._found: list[OpenWork] = []
        self._read = float("-inf")
        self._asking = threading.Lock()
        self._trust: Trust | None = None
        self._asked = float("-inf")
        self._ids: bool | None = None
        self._zones: tuple[str, ...] | None = None
        self._zones_asked = float("-inf")

    def trust(self, session: Session) -> Trust:
        """Whether the server shows every transaction that can still commit; queried once for all tables."""
        with self._asking:
            if self._trust is None or time.monotonic() - self._asked > TRUSTED:
                self._asked = time.monotonic()
                self._trust = trust_in(session)
            return self._trust

    def ids(self, session: Session, table: Table) -> bool:
        """Whether the server tells tables' ids; queried once for all tables, as it may cost a few seconds."""
        with self._asking:
            if self._ids is None:
                self._ids = sources.tells_ids(session.spec, table)
            return bool(self._ids)

    def zones(self, session: Session) -> tuple[str, ...]:
        """Time zones of writing sessions, if shown and not the server's; queried once for all tables."""
        with self._asking:
            if time.monotonic() - self._zones_asked > TRUSTED:
                self._zones_asked = time.monotonic()
                self._zones = time_zones.zones_beside(session)
            return self._zones or ()

    def holders(self, session: Session, sight: Sight) -> list[OpenWork]:
        """All transactions and statements that may still commit a row, oldest first, as of now or later."""
        with self._change:
            wanted = (
                self._begun + 1
            )  # a look already under way may have begun before the caller's other queries
            while self._looking and self._seen < wanted:
                self._change.wait()
            if self._seen >= wanted:
                return self._found
            self._looking = True
        found: list[OpenWork] | None = None
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
