"""What the next sync would follow in the source's binary log, by table. Reads the log, and writes nothing.

Rows are only counted: no key or value is decoded, so that tables need not be described. Everything is read here, without
Spark.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from floodmark.config.load import Config
from floodmark.log.log import Log
from floodmark.model import results
from floodmark.model.changes import SOURCE_LOG, LogEnd, LogPlace
from floodmark.model.errors import ConfigError
from floodmark.model.events import Emit, StageBegan, StageEnded, Underway
from floodmark.model.text import counted
from floodmark.model.times import parse_moment, stamp, timestamp
from floodmark.model.typed import Moment
from floodmark.source.binlog.dump import LogEvents, place_at
from floodmark.source.binlog.end import FIRST, LogFile, LogGone, log_end, log_files, log_identity
from floodmark.source.binlog.fitness import fitness, log_facts
from floodmark.source.binlog.walk import Stretch, Walk
from floodmark.source.describe import list_tables, resolve
from floodmark.source.server import trust_in
from floodmark.source.session import Session
from floodmark.store.store import Store
from floodmark.sync.changes import SHORT, size_of

_FILE = re.compile(r"([^\s:/]+\.\d{6,})(?::(\d+))?")

BeginBy = Literal["log", "newest_file", "given", "since"]


@dataclass(frozen=True)
class LogRequest:
    """Which part of the log to show, and of which tables, as the user wants it."""

    tables: tuple[str, ...] = ()
    all_tables: bool = False
    begin: LogPlace | None = None
    since: float | None = None  # Unix time
    until: LogPlace | float | None = None


@dataclass(frozen=True)
class _Scope:
    """The tables to show: these, or all of these schemas; all, if neither is given."""

    tables: frozenset[str]
    schemas: frozenset[str]

    def __call__(self, name: str) -> bool:
        if self.tables:
            return name in self.tables
        return not self.schemas or name.partition(".")[0] in self.schemas


def place(text: str) -> LogPlace:
    """Parses FILE or FILE:POSITION; ValueError if it is neither."""
    found = _FILE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not FILE or FILE:POSITION, as in binlog.000042:157")
    return LogPlace(found[1], max(FIRST, int(found[2] or FIRST)))


def place_or_moment(text: str) -> LogPlace | float:
    """Parses FILE[:POSITION], or a timestamp in UTC as Unix time."""
    return place(text) if _FILE.fullmatch(text) else moment(text)


def moment(text: str) -> float:
    """Parses a timestamp in UTC as Unix time."""
    return parse_moment(timestamp(text)).timestamp()


def look(config: Config, wanted: LogRequest, emit: Emit) -> results.ChangesResult:
    """What the log says, from where the source's log of changes ends or from the given place on."""
    began = time.monotonic()
    with Session(config.source, purpose="changes") as session:
        facts = log_facts(session, trust_in(session), lambda: Session(config.source, purpose="changes"))
        scope = _scope(config, session, wanted)
        fitness(facts, scope.schemas).require()
        files, identity = log_files(session), log_identity(session)
        known = [name for name in list_tables(session, None) if scope(name)]
        end = log_end(session)
    reader = _Reader(config, files, identity.server)
    begin, by = reader.begin(wanted)
    if isinstance(wanted.until, LogPlace) and wanted.until.number < end.place.number:
        end = LogEnd(wanted.until)
    if begin.number > end.place.number:
        raise ConfigError(
            f"{begin} lies behind {end.place}, where the binary log can be read to",
            hint="begin further ahead: --from, --since",
        )
    before = reader.before if by == "log" else None
    until = wanted.until if isinstance(wanted.until, float) else math.inf
    since = wanted.since if wanted.since is not None else -math.inf
    walk = Walk(
        begin,
        end,
        dict.fromkeys(known),
        lambda name, keys: "",
        before=before,
        also=scope,
        within=(since, until),
    )
    reader.read(walk, emit)
    stretch = walk.stretch()
    return _result(stretch, begin, by, end, files, since, time.monotonic() - began)


def _scope(config: Config, session: Session, wanted: LogRequest) -> _Scope:
    """The tables that were named, those of the schemas of the configured ones, or all."""
    if wanted.tables:
        names = [resolve(session, name, config.source.database) for name in wanted.tables]
        return _Scope(frozenset(names), frozenset(name.partition(".")[0] for name in names))
    schemas = {name.partition(".")[0] for name in config.tables if "." in name}
    if config.source.database:
        schemas.add(config.source.database)
    return _Scope(frozenset(), frozenset() if wanted.all_tables else frozenset(schemas))


class _Reader:
    """The source's log as it is read here."""

    def __init__(self, config: Config, files: Sequence[LogFile], server: str) -> None:
        self._config, self._files, self._server = config, files, server
        self.before: str | None = None  # the GTIDs that the source's log of changes has

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with Session(self._config.source, purpose="changes") as session:
            yield session

    def begin(self, wanted: LogRequest) -> tuple[LogPlace, BeginBy]:
        """Where to begin, and by what."""
        newest = LogPlace(self._files[-1].name, FIRST)
        if wanted.begin is not None:
            self._check(wanted.begin)
            return wanted.begin, "given"
        if wanted.since is not None:
            try:
                return place_at(self._session, wanted.since), "since"
            except LogGone:  # it reaches back no further
                return LogPlace(self._files[0].name, FIRST), "since"
        source = Log(Store(self._config.store), SOURCE_LOG).read().source
        if source is None or source.identity.server != self._server:
            return newest, "newest_file"
        self._check(source.next_start)
        self.before = source.end.visible
        return source.next_start, "log"

    def _check(self, begin: LogPlace) -> None:
        """Refuses a file that the server doesn't have."""
        if all(file.name != begin.file for file in self._files):
            first, last = self._files[0].name, self._files[-1].name
            raise ConfigError(
                f"the source's binary log has no file {begin.file}",
                hint=f"it has {first} to {last}: floodmark changes --from {first}",
            )

    def read(self, walk: Walk, emit: Emit) -> None:
        """Takes the walk to its end; a long one tells how far it is."""
        events = LogEvents(self._session, walk.start, walk.end.place, server=self._server)
        size = size_of(self._files, walk.start, walk.end.place)
        if size <= SHORT:
            walk.follow(events, events.skip)
            return
        emit(StageBegan("", "follow", size))
        try:
            walk.follow(events, events.skip, lambda done: emit(Underway("", "follow", done)))
        finally:
            emit(StageEnded("", "follow"))


def _result(
    stretch: Stretch,
    begin: LogPlace,
    by: BeginBy,
    end: LogEnd,
    files: Sequence[LogFile],
    since: float,
    seconds: float,
) -> results.ChangesResult:
    found = stretch.followed
    between = [f for f in files if begin.number[0] <= LogPlace(f.name, 0).number[0] <= end.place.number[0]]
    return results.ChangesResult(
        ok=True,
        begin=results.LogPosition(file=begin.file, position=begin.position),
        begin_by=by,
        end=results.LogPosition(file=end.place.file, position=end.place.position),
        held_back_by=end.held_back_by,
        bytes=found.bytes,
        files=len(between),
        transactions=found.transactions,
        first_commit=_stamp(stretch.first_commit),
        last_commit=_stamp(found.last_commit),
        tables=tuple(
            results.ChangedTable(
                table=name,
                inserts=one.inserts,
                updates=one.updates,
                deletes=one.deletes,
                bytes=one.bytes,
                statements=one.statements,
            )
            for name, one in found.tables.items()
        ),
        statements=stretch.anything,
        prepared=len(found.prepared),
        notes=tuple(_notes(stretch)),
        seconds=round(seconds, 3),
    )


def _stamp(seconds: float | None) -> Moment | None:
    return None if seconds is None else Moment(stamp(datetime.fromtimestamp(seconds, UTC)))


def _notes(stretch: Stretch) -> Iterator[str]:
    """What makes the counts less than the whole truth."""
    if stretch.anything:
        listed = ", ".join(stretch.anything)
        yield f"changes were logged as statements, which don't say which rows they changed: {listed}"
    if (open_xa := len(stretch.followed.prepared)) > 0:
        yield f"{counted(open_xa, 'XA transaction')} prepared and not committed: not counted"
    if any(committed for _, committed in stretch.ended):
        yield "XA transactions were committed whose rows were logged before the beginning: not counted"
    if stretch.left_out is not None:
        yield f"transactions from {stretch.left_out} on are not visible yet: the next sync follows them"
    if "lost" in stretch.followed.reconcile:
        yield "the server says that its log lacks changes (an INCIDENT event)"
    for file in stretch.torn:
        yield f"{file} has no end: the server crashed, and may have lost transactions that it had logged"
