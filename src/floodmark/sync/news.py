"""What the source's log of changes says of the tables that follow it: read once in a run, asked by each of its tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from floodmark.log import source_log
from floodmark.log.fold import State
from floodmark.log.following import Unfollowed, here
from floodmark.log.log import Log
from floodmark.model.changes import SOURCE_LOG, FollowedTo
from floodmark.model.errors import FloodmarkError
from floodmark.plan.followed import TableNews
from floodmark.source.binlog.end import log_end, log_identity, logged_place
from floodmark.source.session import Session
from floodmark.store.store import Store


@dataclass(frozen=True)
class LogNews:
    """The source's log as of one read of the binary log; or why it could not be read, for the tables that need it."""

    log: Log | None = None
    newest: FollowedTo | None = None
    state: State | None = None
    until: float | None = None  # by our clock; what was committed before is in the log
    error: FloodmarkError | None = None
    _heard: dict[tuple[str, FollowedTo], Unfollowed | None] = field(default_factory=dict, compare=False)

    def of(self, table: State, most: int | None = None) -> TableNews | None:
        """What the log says of a table, to a run of at most so many rows; None if it was not read. Raises why it could not be."""
        if self.error is not None:
            raise self.error
        if self.newest is None:
            return None
        stands, name = table.follows_from, table.table_name
        if self.log is None or self.state is None or stands is None:
            return TableNews(self.newest, until=self.until)
        if stands.log == self.newest.log and stands.n > self.newest.n:
            # Another run has read the log since, and the table has followed it further.
            later = self.log.read()
            if later.n >= stands.n:
                return LogNews(self.log, here(later), later, self.until).of(table, most)
        if (name, stands) not in self._heard:  # asked several times by each table
            self._heard[name, stands] = source_log.waiting(self.log, self.state, {name: stands}).get(name)
        pending = self._heard[name, stands]
        if pending is not None and most is not None:
            pending = source_log.waiting_first(self.log, self.state, name, stands, pending, most)
        return TableNews(self.newest, pending, self.until)

    def unread(self, session: Session) -> str | None:
        """That the binary log goes on behind its last read, for those who only look; None: it does not, or nothing was read."""
        source = self.state.source if self.state is not None else None
        end = logged_place(session) if source is not None else None
        if source is None or end is None or end.number <= source.next_start.number:
            return None
        return f"The binary log goes on to {end}: a sync reads it first (`floodmark changes` shows what it says)."


def news_of(store: Store, state: State, until: float | None) -> LogNews:
    """The news in this state of the source's log."""
    return LogNews(Log(store, SOURCE_LOG, repairs=False), here(state), state, until)


def stored_news(store: Store, connect: Callable[[], AbstractContextManager[Session]]) -> LogNews:
    """The news without reading the binary log, for those who only look: as of the last read of it, if there was one."""
    log = Log(store, SOURCE_LOG, repairs=False)
    state = log.read()
    if state.source is not None:
        return news_of(store, state, None)
    with connect() as session:
        identity, end = log_identity(session), log_end(session)
    return LogNews(log, FollowedTo("", 0, "", end.place, identity, gtid=end.gtid), None, time.time())
