"""What the tables and tasks of one run share of the source: its connections, and what they have found out about it.

One throttle limits connections, and pauses while the server is busy. It can't deadlock a run: nothing waits long for a
connection unless a task is running, and a pause that takes too long ends the run like an unreachable service.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from weakref import WeakSet

from floodmark.config.load import PauseWhen, SourceSpec
from floodmark.host.threads import RecentAnswers, StoppableCondition
from floodmark.model.errors import ConfigError, Interrupted, TransientError
from floodmark.model.open_work import OpenWork, Sight, Trust
from floodmark.model.table import Table
from floodmark.model.text import duration
from floodmark.source import identity, open_work, time_zones
from floodmark.source.server import first_server, replica_lag, threads_running, trust_in
from floodmark.source.session import Session

# Seconds between checks whether the server is busy.
LOOK_EVERY = 1.0
# A server that has been busy for this long won't recover because we wait.
LONGEST_PAUSE = 600.0
# Seconds that a query to the source waits for tasks to free a connection; then it proceeds anyway.
PATIENCE = 30.0
# Read timeout of those queries in seconds. Counts and bounds of a large unindexed table take a while; a dead server is
# noticed sooner.
READ_PATIENCE = 300
# Seconds after its log-in for which a session may serve other tables. A session that is used for longer would stay
# with a server that has been replaced meanwhile, which new ones would not reach any more.
KEPT = 5.0


class Throttle:
    """The connections of one run to one source. All methods may be called from any thread."""

    def __init__(self, source: SourceSpec, said: Callable[[str], None] = lambda text: None) -> None:
        self._source = source
        self._said = said
        self._change = StoppableCondition()
        self._tasks = self._sessions = self._asking = 0
        self._mine = Counter[int]()  # sessions by thread
        self._recent = RecentAnswers(shares_errors=False)
        self._paused: float | None = None  # start of the pause
        self._open: WeakSet[Session] = WeakSet()
        self._idle: list[Session] = []  # sessions without work
        self._timer: threading.Timer | None = None  # set while there are some
        self._looks: dict[str, SharedLooks] = {}
        self._interrupted = False

    # sessions

    @contextmanager
    def session(self, purpose: str) -> Iterator[Session]:
        """A connection for queries: one that another table has done with, or a new one.

        A log-in costs as much as dozens of questions. Kept sessions count towards the limit, and give way to tasks.
        """
        with self.room():
            kept = self.kept()
            with lent(kept.use_for(purpose) if kept else self._opened(purpose), self.keep) as session:
                yield session

    @contextmanager
    def sessions(self, purpose: str, count: int) -> Iterator[list[Session]]:
        """Several new connections, which count as soon as there is room for all of them."""
        with self.room(count), ExitStack() as ends:
            self.drop_kept()
            yield [ends.enter_context(self._opened(purpose)) for _ in range(count)]

    def looks(self, session: Session) -> SharedLooks:
        """What the run's tables have found out about the session's server: an address may lead to several."""
        server = first_server(session)
        with self._change:
            return self._looks.setdefault(server, SharedLooks())

    def interrupt(self) -> None:
        """Aborts all queries, and those of sessions to come."""
        self._interrupted = True
        with self._change:
            asking = list(self._open)
        for session in asking:
            session.abort()

    def _opened(self, purpose: str) -> Session:
        session = Session(self._source, purpose=purpose, read_timeout=READ_PATIENCE)
        with self._change:
            self._open.add(session)
        if self._interrupted:
            session.abort()
        return session

    @contextmanager
    def room(self, count: int = 1) -> Iterator[None]:
        """Room for connections of the driver's own.

        A thread that already has one gets more at once: otherwise it would wait for itself.
        """
        thread = threading.get_ident()
        with self._change:
            self._asking += count
            if not self._mine[thread]:
                room = self._source.max_connections - count
                self._change.wait_for(lambda: self._tasks + self._sessions <= room, PATIENCE)
            self._asking -= count
            self._sessions += count
            self._mine[thread] += count
        try:
            yield
        finally:
            with self._change:
                self._sessions -= count
                self._mine[thread] -= count
                self._change.notify_all()

    def keep(self, session: Session) -> bool:
        """Keeps the session of a thread that is about to leave its room, for another one; False if it must be closed."""
        with self._change:
            room = self._tasks + self._sessions + len(self._idle) <= self._source.max_connections
            if not room or not usable(session):
                return False
            self._idle.append(session)
            if self._timer is None:
                self._look_later()
        return True

    def kept(self) -> Session | None:
        """A kept session that still works, for a thread that has room for a connection."""
        while True:
            with self._change:
                if not self._idle:
                    return None
                session = self._idle.pop()
            if usable(session):
                return session
            session.close()

    def drop_kept(self, most: int = 0) -> None:
        """Closes kept sessions that can't be used any more, and those above `most` or for which there is no room."""
        with self._change:
            room = min(most, max(0, self._source.max_connections - self._tasks - self._sessions))
            good = [session for session in self._idle if usable(session)]
            kept = good[-room:] if room else []
            dropped, self._idle = [session for session in self._idle if session not in kept], kept
        for session in dropped:
            session.close()

    def _look_later(self) -> None:
        self._timer = threading.Timer(KEPT, self._drop_old)
        self._timer.daemon = True
        self._timer.start()

    def _drop_old(self) -> None:
        self.drop_kept(sys.maxsize)
        with self._change:
            self._timer = None
            if self._idle:
                self._look_later()

    # tasks

    @contextmanager
    def task(self, cores: int | None, stopped: Callable[[], bool], attempts: int = 1) -> Iterator[None]:
        """Room for one more slice in Spark; waits until there is some, and while the source is busy.

        `cores` is the maximum number of concurrent tasks, None if unknown. `attempts` at the slice may run side
        by side, each with a connection. Raises Interrupted when stopped.
        """
        if self._source.pause_when is not None:
            self.drop_kept()  # the look at the server's load needs a connection, too
        self._wait_until_calm(stopped)
        began = time.monotonic()
        with self._change:
            # Without a task running, the driver's sessions may be waiting for this very one.
            self._change.until(
                lambda: (
                    self._room_for_task(cores, attempts)
                    or (self._tasks == 0 and time.monotonic() - began > PATIENCE)
                ),
                stopped,
            )
            self._tasks += attempts
        self.drop_kept(sys.maxsize)
        try:
            yield
        finally:
            with self._change:
                self._tasks -= attempts
                self._change.notify_all()

    def _room_for_task(self, cores: int | None, attempts: int) -> bool:
        if cores is not None and self._tasks >= cores:
            return True  # a task that only queues inside Spark has no connection
        # The driver's queries go first: a plan that waits holds up a whole table.
        return self._tasks + self._sessions + self._asking + attempts <= self._source.max_connections

    # pauses

    def _wait_until_calm(self, stopped: Callable[[], bool]) -> None:
        """Returns once the source is not busy, as defined by `pause_when`."""
        when = self._source.pause_when
        # One check at a time serves all tasks.
        while when is not None and (
            busy := self._recent.ask("busy", LOOK_EVERY / 2, lambda: self._look(when))
        ):
            if stopped():
                raise Interrupted("stopped")
            if self._paused is not None and time.monotonic() - self._paused > LONGEST_PAUSE:
                raise TransientError(
                    f"the source has been busy for {duration(LONGEST_PAUSE)}: {busy}",
                    hint="run again later: nothing is lost; or raise source.pause_when",
                )
            time.sleep(LOOK_EVERY)

    def _look(self, when: PauseWhen) -> str:
        """Why the source counts as busy now; empty if it doesn't."""
        busy = ""
        # If the server is down, the task itself finds out and is retried.
        with suppress(TransientError), Session(self._source, purpose="check the load") as session:
            busy = self._busy(session, when)
        if busy and self._paused is None:
            self._paused = time.monotonic()
            self._said(f"paused: {busy}")
        elif not busy and self._paused is not None:
            self._said(f"resuming after a pause of {duration(time.monotonic() - self._paused)}")
            self._paused = None
        return busy

    def _busy(self, session: Session, when: PauseWhen) -> str:
        if when.threads_running is not None:
            running = threads_running(session)
            if running > when.threads_running:
                return f"{running} threads are running on the source, more than {when.threads_running}"
        if when.replica_lag is not None:
            try:
                lag = replica_lag(session)
            except ConfigError as error:
                raise ConfigError(
                    f"source.pause_when.replica_lag: {error.message}",
                    hint="GRANT REPLICATION CLIENT (MySQL) or REPLICA MONITOR (MariaDB) ON *.* to the source's user",
                ) from error
            if lag is not None and lag > when.replica_lag:
                behind, most = duration(lag), duration(when.replica_lag)
                return f"the source is a replica that is {behind} behind, more than {most}"
        return ""


@contextmanager
def lent(session: Session, keep: Callable[[Session], bool]) -> Iterator[Session]:
    """A session for a block of queries; at the end it is closed, unless there was no error and `keep` keeps it."""
    with ExitStack() as ends:
        ends.callback(session.close)
        yield session
        if keep(session):
            ends.pop_all()


def usable(session: Session) -> bool:
    """Whether another table may use a session."""
    return time.monotonic() - session.opened < KEPT and session.at_rest


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
        return bool(self._recent.ask("ids", math.inf, lambda: identity.tells_ids(session.spec, table)))

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
