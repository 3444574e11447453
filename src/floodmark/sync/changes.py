"""One read of the source's binary log: from where the source's log of changes ends to what a SELECT can see now.

Short stretches are read here, long ones as Spark tasks, one for each file; then one commit says what they found. The log
is claimed once there is something to write. A run that is stopped leaves files that no commit names, at worst.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise

from floodmark.clean.changes import clean_changes, due
from floodmark.clean.remove import SLACK
from floodmark.extract.changes import LogJob, LogRead
from floodmark.log import source_log
from floodmark.log.claim import HeldTable
from floodmark.log.fold import Damaged, State
from floodmark.log.following import lowest
from floodmark.log.log import Log, tables
from floodmark.model.changes import (
    FollowedChanges,
    FollowedTo,
    KeyDescription,
    LogEnd,
    LogIdentity,
    LogPlace,
    TableChanges,
)
from floodmark.model.commit import DataFile
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.events import Underway
from floodmark.model.origin import several_servers
from floodmark.model.times import ago, parse_moment
from floodmark.services import Services
from floodmark.source.binlog.dump import created as created_at
from floodmark.source.binlog.dump import start_of_following
from floodmark.source.binlog.end import (
    FIRST,
    LogFile,
    LogGone,
    file_of,
    log_end,
    log_files,
    log_identity,
)
from floodmark.source.binlog.fitness import fitness, log_facts
from floodmark.source.binlog.gtid import GtidSet, plus_gtids
from floodmark.source.binlog.walk import joined, plus
from floodmark.source.describe import discover
from floodmark.source.identity import session_on
from floodmark.source.server import first_server
from floodmark.source.session import Session

# Bytes of the log that the driver reads itself: Spark takes longer to start.
SHORT = 16 << 20
# A read that has found nothing is committed once so many bytes or seconds lie behind the last commit.
QUIET_BYTES, QUIET_SECONDS = 64 << 20, 600.0
# What the log of changes is called in progress.
LOG = "binary log"


class Overtaken(Exception):
    """Another run has read the log meanwhile."""


def follow_log(services: Services, names: Sequence[str]) -> State:
    """Reads what is new in the binary log for these tables and all others that follow it, and commits it.

    Returns the state of the source's log of changes, by which each table knows what it has not followed yet.
    """
    held = source_log.source_log(services.store, services.run)
    try:
        while True:
            try:
                return _Attempt(services, held, names).go()
            except Overtaken:
                held.release()
    finally:
        held.release()


def clean_log(services: Services) -> None:
    """Removes the key files that every table has followed, if that is due."""
    held = source_log.source_log(services.store, services.run)
    state = source_log.read(held)
    cleaned = state.source.cleaned_at if state.source is not None else None
    if state.source is None or (cleaned and parse_moment(cleaned) > ago(datetime.now(UTC), SLACK)):
        return
    followed = {name: Log(services.store, name).read().follows_from for name in state.source.tables}
    if due(state, followed, datetime.now(UTC)) is None:
        return
    try:
        if source_log.hold(held, lambda now: now.digest == state.digest, seconds=0.0):
            clean_changes(held, followed, datetime.now(UTC))
    finally:
        held.release()


def stretches(files: Sequence[LogFile], begin: LogPlace, end: LogEnd) -> tuple[tuple[LogPlace, LogEnd], ...]:
    """The stretches to read side by side: one for each file. LogGone if the first one is gone."""
    places = [LogPlace(file.name, FIRST) for file in files]
    between = [place for place in places if begin.number < place.number <= end.place.number]
    if not any(place.file == begin.file for place in places):
        raise LogGone(
            f"the source's log has no file {begin.file} any more: it was purged or reset",
            hint="keep the log for longer than the time between two syncs (binlog_expire_logs_seconds)",
        )
    edges = [begin, *(place for place in between if place != end.place), end.place]
    return tuple((a, replace(end, place=b)) for a, b in pairwise(edges))


def size_of(files: Sequence[LogFile], begin: LogPlace, end: LogPlace) -> int:
    """The bytes of the log between two places."""
    sizes = {LogPlace(file.name, 0).number[0]: file.size for file in files}
    first, last = begin.number[0], end.number[0]
    whole = sum(size for number, size in sizes.items() if first <= number < last)
    return whole + end.position - begin.position


def went_back(begin: LogPlace, before: LogEnd, end: LogEnd) -> bool:
    """Whether a server's log ends before the place that was read to, or lacks transactions of then: it was reset."""
    if before.visible and end.visible is not None:
        lacks = not GtidSet.parse(end.visible).contains(before.visible)
    else:
        lacks = False
    return lacks or end.place.number < begin.number


@dataclass(frozen=True)
class LogNow:
    """The source's log as it is now."""

    identity: LogIdentity
    end: LogEnd
    files: tuple[LogFile, ...]
    sync_binlog: int


@dataclass(frozen=True)
class LogFound:
    """What a read has found."""

    followed: FollowedChanges
    end: LogEnd
    created: Mapping[str, int]  # when files were begun
    files: tuple[DataFile, ...] = ()


def _relaid(changes: TableChanges | None) -> bool:
    """Whether a table's layout may be another one after these changes."""
    return changes is not None and bool(changes.statements or {"ddl", "unlisted"} & {*changes.reconcile})


def _unheard(followed: FollowedChanges, names: Sequence[str]) -> FollowedChanges:
    """What a read has found, in which nobody looked for the rows of these tables."""
    marks = {
        name: plus(followed.tables.get(name, TableChanges()), TableChanges(reconcile=("unlisted",)))
        for name in names
    }
    return replace(followed, tables={**followed.tables, **marks}) if marks else followed


class _Attempt:
    """One attempt, on the state of the source's log at its beginning."""

    def __init__(self, services: Services, held: HeldTable, names: Sequence[str]) -> None:
        self.services, self.held = services, held
        self.state = source_log.read(held)
        listened = self.state.source.tables if self.state.source is not None else ()
        still = (name for name in listened if services.config.options(name).changes == "binlog")
        self.names = list(dict.fromkeys((*names, *still)))
        # Tables whose descriptions are lost, so that their rows were not looked for.
        self.unheard: list[str] = []
        self.began = time.monotonic()
        self.server = ""  # the one whose log is read, as `server_of` has it

    def go(self) -> State:
        source = self.state.source
        with self.services.session("changes") as session:
            now = self._now(session)
        if source is None:
            return self._begin(now)
        found = self._read(now)
        followed = _unheard(found.followed, self.unheard)
        new = [name for name in self.names if name not in source.tables]
        left = [name for name in source.tables if name not in self.names]
        # Where nothing tells what has happened, any layout may have changed.
        again = [
            name
            for name in source.tables
            if name not in left and (followed.reconcile or _relaid(followed.tables.get(name)))
        ]
        descriptions = self._described([*new, *again], now.identity)
        # A table that can't be described is listed anew once it can be: its rows may not be read by an old layout.
        shown = {one.name for one in descriptions}
        left += [name for name in again if name not in shown]
        if not (descriptions or left) and self._quiet(followed, now):
            end = replace(source.end, held_back_by=found.end.held_back_by)
            return replace(self.state, source=replace(source, end=end))
        self._claim()
        return source_log.append(
            self.held,
            followed,
            found.end,
            replace(now.identity, created=found.created.get(followed.next_start.file, 0)),
            files=found.files,
            described=descriptions,
            left=left,
            seconds=time.monotonic() - self.began,
        )

    def _begin(self, now: LogNow) -> State:
        """Begins the log: now, or if the log before is lost, at the lowest place that a table has followed it to."""
        self._claim()
        options, stored = self.services.config.options, self.services.store
        before = dict[str, FollowedTo]()
        for name in tables(stored):
            with suppress(Damaged):  # its own run will say so
                state = Log(stored, name, repairs=False).read() if options(name).changes == "binlog" else None
                if state is not None and state.follows_from is not None and not state.retired:
                    before[name] = state.follows_from
        there = {file.name for file in now.files}
        named = [each for each in before.values() if each.place.file in there]
        low = lowest(named, now.identity.server)
        names = list(dict.fromkeys((*self.names, *before)))
        if low is None or low.place.number > now.end.place.number:
            begin = self._start(now)
            return source_log.listen(self.held, self._described(names, now.identity), begin=begin)
        taken = low.gtid if now.end.visible is not None else None
        begin = LogEnd(low.place, taken, low.gtid), low.identity
        source_log.listen(self.held, self._described(names, now.identity), begin=begin)
        # To an end of after the descriptions: a change of a table before them must be in what is read by them.
        return _Attempt(self.services, self.held, self.names).go()

    def _now(self, session: Session) -> LogNow:
        trust = self.services.looks(session).trust(session)
        facts = log_facts(session, trust)
        fitness(facts, {name.partition(".")[0] for name in self.names}).require()
        source, identity, self.server = self.state.source, log_identity(session), first_server(session)
        known = source is not None and source.identity.server == identity.server
        end = log_end(session, before=source.end if source is not None and known else None)
        synced = int(facts.settings.variables.get("sync_binlog") or 1)
        return LogNow(identity, end, log_files(session), synced)

    def _claim(self) -> int:
        """Claims the log as we read it, and returns the number of the claim; raises Overtaken."""
        if self.held.lease is None:
            before = self.state.digest
            if not source_log.hold(self.held, lambda state: state.digest == before):
                raise Overtaken
        claim = self.held.state.claim
        assert claim is not None
        return claim.n

    def _quiet(self, followed: FollowedChanges, now: LogNow) -> bool:
        """Whether a read has found nothing that must be committed now."""
        source = self.state.source
        assert source is not None and self.state.updated_at is not None
        if source.identity.server != now.identity.server:
            return False  # the tables are to be read on the server whose log this is now
        if followed.tables or followed.reconcile or followed.prepared != tuple(x.xa for x in source.prepared):
            return False
        age = (datetime.now(UTC) - parse_moment(self.state.updated_at)).total_seconds()
        return followed.next_start == source.next_start or (
            followed.bytes < QUIET_BYTES and 0 <= age < QUIET_SECONDS
        )

    # ---------------------------------------------------------------- reading

    def _read(self, now: LogNow) -> LogFound:
        """What lies between the last read and the present end; if the log doesn't have it any more, that it is lost."""
        source = self.state.source
        assert source is not None
        begin, before = source.next_start, source.end
        same = source.identity.server == now.identity.server
        known = source.identity.created if same else 0
        reads, created = None, dict[str, int]()
        if not (same and went_back(begin, before, now.end)):
            with suppress(LogGone):
                begin = begin if same else self._elsewhere(now, before)
                reads = self._read_between(now, begin, before)
            created = dict(pair for read in reads or () for pair in read.stretch.created)
            if not reads and now.end.visible is None:  # nothing is new, or numbering has begun again
                created = {begin.file: created_at(self._session, now.end.place.file)}
        if reads is None or (known and created.get(begin.file, known) != known):
            start, identity = self._start(now)
            lost = FollowedChanges(start.place, start.place, reconcile=("lost",))
            return LogFound(lost, start, {start.place.file: identity.created})
        end = now.end
        if not reads:
            prepared = tuple(each.xa for each in source.prepared)
            end = replace(end, gtid=end.gtid or before.gtid)
            return LogFound(FollowedChanges(begin, begin, prepared=prepared), end, {begin.file: known})
        followed = joined(
            [read.stretch for read in reads],
            now.end,
            before=before,
            prepared=[each.xa for each in source.prepared],
            sync_binlog=now.sync_binlog,
        )
        if (
            end.gtid is None and before.gtid is not None
        ):  # MariaDB: adding them up is cheaper than its own answer
            end = replace(end, gtid=plus_gtids(before.gtid, followed.gtids))
        return LogFound(followed, end, created, tuple(file for read in reads for file in read.files))

    def _elsewhere(self, now: LogNow, before: LogEnd) -> LogPlace:
        """Where to go on at another server than the one that was read last."""
        if before.gtid is None:
            raise DataError(
                "source.url leads to another server than before, and without GTIDs its binary log can't be continued",
                hint="if that is intended: floodmark watermark accept, which compares all tables",
            )
        with self._on(now.identity) as session:
            return file_of(session, before.gtid)

    def _read_between(self, now: LogNow, begin: LogPlace, before: LogEnd) -> list[LogRead]:
        """The stretches between two places, in their order."""
        services, spec = self.services, self.services.config
        parts = stretches(now.files, begin, now.end)
        if size_of(now.files, begin, now.end.place) <= SHORT:
            parts = ((begin, now.end),) if begin.number < now.end.place.number else ()
        else:
            self._claim()  # tasks write by themselves
        source = self.state.source
        same = source is not None and source.identity.server == now.identity.server
        names = tuple(source.tables if source else ())
        listened = source_log.descriptions(self.held.log, self.state, names)
        self.unheard = [name for name in names if name not in listened]
        jobs = [
            LogJob(
                spec.source, spec.store, number, start, upto, listened, services.run, self.held.state.n,
                self.state.log, now.identity.server, before.visible or (None if same else before.gtid),
            )
            for number, (start, upto) in enumerate(parts)
        ]  # fmt: skip
        if len(jobs) <= 1 and self.held.lease is None:
            return [job.read(self._session, self._told, self._claim) for job in jobs]
        with closing(services.submit(jobs, LOG, self._told)) as results:
            return sorted(results, key=lambda read: read.number)

    def _told(self, size: int) -> None:
        self.services.emit(Underway("", "extract", size))

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """A connection for a dump, which Ctrl-C ends."""
        with session_on(self.server, self._opened) as session:
            yield session

    @contextmanager
    def _opened(self) -> Iterator[Session]:
        with self.services.throttle.sessions("changes", 1) as [session]:
            yield session

    @contextmanager
    def _on(self, identity: LogIdentity) -> Iterator[Session]:
        """A session on the server whose log is read."""
        with self.services.session("changes") as session:
            if log_identity(session).server != identity.server:
                raise several_servers(
                    [first_server(session)], ", and the binary log that is read is another's"
                )
            yield session

    def _start(self, now: LogNow) -> tuple[LogEnd, LogIdentity]:
        """Where following begins: everything that was logged before can be seen. And the log's identity there."""
        start, identity = start_of_following(self._session)
        if identity.server != now.identity.server:
            raise several_servers([identity.server], ", and the binary log that is read is another's")
        return start, identity

    # ---------------------------------------------------------------- tables

    def _described(self, names: Sequence[str], identity: LogIdentity) -> list[KeyDescription]:
        """How the tables' row events are decoded from now on; without those that are gone."""
        config, found = self.services.config, []
        for name in names:
            with self._on(identity) as session:
                try:
                    table = discover(session, name, config.options(name), config.source.database)
                    found.append(KeyDescription.of(table))
                except (ConfigError, DataError):  # its own plan will say so
                    continue
        return found
