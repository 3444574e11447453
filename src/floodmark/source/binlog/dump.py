"""The binary log off the server: one dump, and the events from one place to another over as many dumps as it takes.

A dump has no replica's id, so that any number of them run side by side and end where the log ends. That may be before
a place which the server shows already: then another one begins where it ended, for a bounded time.
"""

from __future__ import annotations

import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise

from floodmark.config.load import SourceSpec
from floodmark.model.changes import LogEnd, LogIdentity, LogPlace
from floodmark.model.errors import ConfigError, DataError, FloodmarkError, TransientError
from floodmark.source.binlog.end import FIRST, LogGone, log_files, log_identity, log_start, no_log
from floodmark.source.binlog.events import (
    FORMAT_DESCRIPTION,
    GTID,
    GTID_TAGGED,
    MARIADB_GTID,
    ROTATE,
    FormatDescription,
    LogEvent,
    gtid,
    rotate,
)
from floodmark.source.binlog.stream import EventStream
from floodmark.source.errors import translated
from floodmark.source.rows.packets import MySQLError
from floodmark.source.session import Session

# Opens a session for a dump, which ends with it.
Connect = Callable[[], AbstractContextManager[Session]]

# Seconds that the server may be silent.
SILENCE = 60
# Seconds that the log may end before the end that was given; the pauses between two dumps grow to PAUSE.
PATIENCE = 60.0
PAUSE = 1.0

_COMMAND = struct.Struct("<BIHI")  # COM_BINLOG_DUMP: position, flags, the replica's id
_DUMP = 0x12
# Positions have 32 bits there. Only a transaction that large makes a file larger, and another file follows at once.
_LARGEST = 1 << 32
# A file ends with an event of this size at most, which names the next one.
_ROTATES = 1024
# Checksums as the log has them; MariaDB's own events as they are.
_AS_LOGGED = (
    "SET @source_binlog_checksum = @@GLOBAL.binlog_checksum, @master_binlog_checksum = @@GLOBAL.binlog_checksum,"
    " @mariadb_slave_capability = 4"
)
# The server's error for all that goes wrong with the log.
_FATAL = 1236


def dump(session: Session, start: LogPlace, seconds: int = SILENCE) -> EventStream:
    """The events from a place that lies between two of them to the log's present end.

    The session can't be asked anything any more, and is closed by the caller. An error of the stream becomes ours by
    `dump_error`.
    """
    if start.position >= _LARGEST:
        start = _after(session, start)
    session.rows(_AS_LOGGED)
    link = session.send(_COMMAND.pack(_DUMP, start.position, 0, 0) + start.file.encode())
    return EventStream(link, start.file, start.position, seconds)


def _after(session: Session, start: LogPlace) -> LogPlace:
    """The beginning of the next file, if there is nothing else behind a place too far back to be asked for."""
    files = log_files(session)
    for file, following in pairwise(files):
        if file.name == start.file and file.size - start.position <= _ROTATES:
            return LogPlace(following.name, FIRST)
    raise TransientError(
        f"{start.file} is larger than 4 GiB, and can't be read from {start.position:,} on",
        hint="FLUSH BINARY LOGS, then run again",
    )


def dump_error(error: MySQLError, spec: SourceSpec, start: LogPlace, read: bool) -> FloodmarkError:
    """What the error of a dump means; `read`: whether it came after at least one event of the file."""
    ours = translated(error, spec)
    code, text = (*error.args, "")[:2]
    if code != _FATAL:
        return ours
    text = str(text).lower()
    if "is not open" in text:
        return no_log()
    if "could not find" in text:  # the first file, or the next one
        return LogGone(
            f"the source's log has no file {start.file} any more: it was purged or reset",
            hint="keep the log for longer than the time between two syncs (binlog_expire_logs_seconds)",
        )
    if "checksum" in text:
        return ConfigError(
            ours.message, hint="SET GLOBAL binlog_checksum = CRC32 on the source, then run again"
        )
    if "server_uuid" in text or "server_id" in text:
        return TransientError(ours.message, hint="run again: nothing is lost")
    if "memory" in text:
        return TransientError(ours.message, hint="the source is short of memory: run again later")
    # Inside an event, anything may be found: lengths, too, so that it may say that an event is too large.
    if "> file size" in text or "impossible position" in text or not read:
        return LogGone(
            f"the source's log has no event at {start}: it was reset, or is another server's ({ours.message})",
            hint="if the source was replaced or restored on purpose: floodmark watermark accept",
        )
    if "max_allowed_packet" in text:
        return ConfigError(ours.message, hint="raise max_allowed_packet on the source (1G is the most)")
    return DataError(
        f"the source can't read its own log: {ours.message}",
        hint="see the source's error log: the file is damaged, or its disk is full",
    )


class LogEvents:
    """The events from one place to another, as one stream: whatever the log ends with in between."""

    def __init__(
        self,
        connect: Connect,
        start: LogPlace,
        end: LogPlace,
        *,
        server: str = "",
        seconds: int = SILENCE,
        patience: float = PATIENCE,
    ) -> None:
        """`connect` opens a session for each dump, on the server with that `LogIdentity.server` if it is given."""
        self.place = start  # behind the event that was taken last
        self.created = 0  # the timestamp of the Format_description of the file that we began in
        self.skip: set[int] = set()  # as EventStream has it
        self._connect, self._end, self._server = connect, end, server
        self._seconds, self._patience = seconds, patience
        self._session: Session | None = None
        self._stream: EventStream | None = None

    @property
    def format(self) -> FormatDescription | None:
        """How the events of the present file are written."""
        return self._stream.format if self._stream is not None else None

    def abort(self) -> None:
        """Aborts the reading, from any thread."""
        if self._session is not None:
            self._session.abort()

    def __iter__(self) -> Iterator[LogEvent]:
        """Ends at the end; with an error if the server doesn't get there within the patience, or never will."""
        until, pause, first = time.monotonic() + self._patience, 0.01, True
        while not self._ended():
            before = self.place
            yield from self._one_dump(first)
            if self._ended():
                return
            if self.place != before:
                until, pause = time.monotonic() + self._patience, 0.01
            elif time.monotonic() > until:
                raise TransientError(
                    f"the source's log ends at {self.place}, before {self._end}",
                    hint="run again; if it stays so, the source lost a part of its log when it crashed",
                )
            first = False
            time.sleep(pause)
            pause = min(2 * pause, PAUSE)

    def _ended(self) -> bool:
        return self.place.number >= self._end.number

    def _one_dump(self, first: bool) -> Iterator[LogEvent]:
        """The events of one dump, up to the end. What later dumps begin with was given before."""
        begun, read = self.place, False
        with self._connect() as session:
            self._session = session
            server = log_identity(session).server
            if self._server not in ("", server):
                raise TransientError(
                    "source.url led to another server while the log was being read",
                    hint="run again; if it keeps happening, let source.url name one server",
                )
            self._server = server
            try:
                self._stream = stream = dump(session, begun, self._seconds)
                stream.skip = self.skip
                for event in stream:
                    if event.kind == FORMAT_DESCRIPTION and not self.created:
                        self.created = event.timestamp
                    if event.size:
                        read = True
                        if LogPlace(self.place.file, event.place).number >= self._end.number:
                            return
                    self.place = _behind(event, self.place)
                    if first or read or stream.file != begun.file:
                        yield event
                    if self._ended():
                        return
                self.place = LogPlace(
                    self.place.file, max(self.place.position, stream.place)
                )  # behind skipped events
            except MySQLError as error:
                raise dump_error(error, session.spec, self.place, read) from error
            finally:
                self._session = None
                session.close()  # the server would send all the rest


def _behind(event: LogEvent, place: LogPlace) -> LogPlace:
    """The place behind an event; a file that has ended goes on in the next one."""
    if event.kind == ROTATE:
        return rotate(event.body)
    return LogPlace(place.file, event.place + event.size) if event.size else place


# ---------------------------------------------------------------- files by time


def start_of_following(connect: Connect) -> tuple[LogEnd, LogIdentity]:
    """Where following begins: everything that was logged before can be seen. And the log's identity there."""
    with connect() as session:
        start, identity = log_start(session), log_identity(session)
    return start, replace(identity, created=created(connect, start.place.file))


def created(connect: Connect, file: str) -> int:
    """When the server created a file, by its Format_description."""
    events = LogEvents(connect, LogPlace(file, FIRST), LogPlace(file, FIRST + 1))
    for _ in events:
        pass
    return events.created


def place_at(connect: Connect, moment: float) -> LogPlace:
    """The beginning of the last file that is not younger than a moment (UTC seconds); LogGone if all are younger."""
    with connect() as session:
        files = log_files(session)
    if not files:
        raise no_log()
    at = bisect_right(files, moment, key=lambda file: begun_at(connect, file.name))
    if not at:
        raise LogGone(
            f"the source's log begins with {files[0].name}, which is younger than that",
            hint="name a later moment",
        )
    return LogPlace(files[at - 1].name, FIRST)


def begun_at(connect: Connect, file: str) -> float:
    """When a file began: the commit of its first transaction, if it has one with a time, else the file's own timestamp.

    The server stamps a file with the beginning of the statement that made it follow the one before, which may have taken
    long.
    """
    first = LogPlace(file, FIRST)
    with connect() as session:
        try:
            stream, created = dump(session, first), 0.0
            for event in stream:
                if event.kind == FORMAT_DESCRIPTION and stream.file == file:
                    created = created or event.timestamp
                elif event.kind in (GTID, GTID_TAGGED):
                    return gtid(event).commit or created
                elif stream.file != file or event.kind == MARIADB_GTID:
                    break
            return created
        except MySQLError as error:
            raise dump_error(error, session.spec, first, read=False) from error
        finally:
            session.close()  # the server would send all the rest
