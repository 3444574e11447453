"""The source's open work as all tables of one run see it: one look serves many of them.

InnoDB renews its list of transactions only after 0.1 s without a read, so tables that each looked for
themselves would keep one another waiting, and many of them would never see a fresh list. A look serves every
caller that asked before it began: it is then as late as the caller's own would be, and later is always safe.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from floodmark.host.threads import RecentAnswers
from floodmark.model.table import Table
from floodmark.source import open_work, sources, time_zones
from floodmark.source.open_work import OpenWork, Sight
from floodmark.source.session import Session
from floodmark.source.trust import Trust, trust_in

# InnoDB renews its list of transactions once it has not been read for 0.1 s.
RENEWED = 0.105
# Seconds for which a server's role (a replica, a member of a cluster) is cached.
TRUSTED = 5.0


class SharedLooks:
    """One run's looks at one server. All methods may be called from any thread."""

    def __init__(self, look: Callable[[Session, Sight], list[OpenWork]] = open_work.all_open_work) -> None:
        self._look = look
        self._looked = float("-inf")
        self._recent = RecentAnswers(shares_errors=False)  # an error may be of one table's session

    def trust(self, session: Session) -> Trust:
        """Whether the server shows every transaction that can still commit; queried once for all tables."""
        return self._recent.ask("trust", TRUSTED, lambda: trust_in(session))

    def ids(self, session: Session, table: Table) -> bool:
        """Whether the server tells tables' ids; queried once for all tables, as it may cost a few seconds."""
        return bool(self._recent.ask("ids", math.inf, lambda: sources.tells_ids(session.spec, table)))

    def zones(self, session: Session) -> tuple[str, ...]:
        """Time zones of writing sessions, if shown and not the server's; queried once for all tables."""
        return self._recent.ask("zones", TRUSTED, lambda: time_zones.zones_beside(session) or ())

    def holders(self, session: Session, sight: Sight) -> list[OpenWork]:
        """All transactions and statements that may still commit a row, oldest first, as of now or later."""

        def renewed() -> None:
            if sight.process:
                time.sleep(max(0.0, self._looked + RENEWED - time.monotonic()))

        def look() -> list[OpenWork]:
            try:
                return self._look(session, sight)
            finally:
                self._looked = time.monotonic()

        # A look already under way may have begun before the caller's other queries.
        return self._recent.ask("open work", 0.0, look, renewed)
