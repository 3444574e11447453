"""The events of one dump of the binary log, read off the socket in bounded memory.

Every event is in its place: each begins where the one before ended, and its checksum is right, as its file's
Format_description demands. Anything else raises; nothing but the row events of tables in `skip` is left out, and those are
counted. The compiled `keys_fast`, if it is there, takes ordinary events from the buffer; whatever it leaves is judged here.
"""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterator
from typing import Any

from floodmark.source.binlog.events import (
    ARTIFICIAL,
    CHECKSUM,
    FORMAT_DESCRIPTION,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_2,
    ROTATE,
    ROWS,
    TABLE_MAP,
    DamagedEvent,
    FormatDescription,
    LogEvent,
    format_description,
    rotate,
)  # fmt: skip
from floodmark.source.rows import packets as wire
from floodmark.source.rows.packets import END, ERROR, FULL, length_at, malformed

compiled: Any
try:
    from floodmark.source.binlog import keys_fast

    compiled = keys_fast
except ImportError:  # installed without a compiler
    compiled = None

# Size of the receive buffer; a larger event gets a buffer of its own.
BUFFER = 1 << 20
# Most bytes to receive at once: they are parsed while they are in the processor's cache.
RECEIVE = 256 << 10
# What CRC-32 makes of any bytes with their own CRC-32 behind them.
_RESIDUE = 0x2144DF1C
_make = tuple.__new__


class EventStream:
    """The events of one dump off the socket: packets joined, checksums checked as each file's Format_description says."""

    def __init__(
        self, link: socket.socket, file: str, position: int, seconds: int, buffer: int = BUFFER
    ) -> None:
        """`file` and `position` are where the dump was asked to begin; `seconds` is how long the server may be silent."""
        self.file = file  # of the event last taken
        self.format: FormatDescription | None = None
        # Numbers of tables whose row events are left out. Looked at after each Table_map: don't change it elsewhere.
        self.skip: set[int] = set()
        self.skipped_events = self.skipped_bytes = 0
        self.ended = False  # whether the server has said so
        self._link = link
        link.settimeout(seconds or None)
        self._buffer = bytearray(buffer)
        self._view = memoryview(self._buffer)
        self._at = self._end = 0  # the unread part of the buffer
        self._number = 1  # of the next packet
        self._place = position  # of the next event

    @property
    def place(self) -> int:
        """Where in its file the next event begins."""
        return self._place

    def __iter__(self) -> Iterator[LogEvent]:
        """The events up to the server's end; raises StatementRefused for its error, MySQLError if it is gone, DamagedEvent."""
        while not self.ended:
            if compiled is not None and self.format is not None:
                yield from self._scanned(self.format)
            event = self._next()
            if event is not None:
                yield event

    def _scanned(self, form: FormatDescription) -> Iterator[LogEvent]:
        """The ordinary events that are in the buffer."""
        while True:
            found: list[LogEvent] = []
            self._at, self._number, self._place, events, size = compiled.scan(
                self._view, self._at, self._end, self._number, self._place, form.checksum, form.mariadb, self.skip, _make,
                LogEvent, found,
            )  # fmt: skip
            self.skipped_events += events
            self.skipped_bytes += size
            if not found:
                return
            yield from found

    def _next(self) -> LogEvent | None:
        """The next event, whatever it is; None if it is left out, or at the end."""
        self._receive_up_to(4)
        length = length_at(self._buffer, self._at)
        if length == FULL or 4 + length > len(self._buffer):
            return self._long()
        self._receive_up_to(4 + length)
        start, end = self._at + 4, self._at + 4 + length
        packet = self._view[start:end]
        if self._buffer[self._at + 3] != self._number:
            # A server's last message before it hangs up is out of sequence.
            raise wire.refusal(bytes(packet)) if length and packet[0] == ERROR else malformed()
        self._at, self._number = end, self._number + 1 & 0xFF
        if not length:
            raise malformed()
        if packet[0] == END and length < 9:
            self.ended = True
            return None
        if packet[0] == ERROR:
            raise wire.StatementRefused(*wire.refusal(bytes(packet)).args)
        if packet[0]:
            raise malformed()
        return self._event(packet[1:], zlib.crc32(packet[1:]))

    def _long(self) -> LogEvent | None:
        """An event that is larger than the buffer, or comes in several packets."""
        self._receive_up_to(4 + 1 + HEADER.size + 8)
        head = bytes(self._view[self._at + 4 : self._at + 4 + 1 + HEADER.size + 8])
        size = HEADER.unpack_from(head, 1)[3]
        if head[0] or size < len(head):
            raise malformed()
        whole = None if self._skips(head[1:]) else bytearray(size)
        checksum, at = 0, -1  # the first byte is not the event's
        for piece in self._pieces():
            data = piece[1:] if at < 0 else piece
            at = max(at, 0)
            if at + len(data) > size:
                raise malformed()
            checksum = zlib.crc32(data, checksum)
            if whole is not None:
                whole[at : at + len(data)] = data
            at += len(data)
        if at != size:
            raise malformed()
        return self._event(memoryview(head[1:] if whole is None else whole), checksum, size)

    def _pieces(self) -> Iterator[memoryview]:
        """The contents of a packet and of those that continue it, as they arrive."""
        length = FULL
        while length == FULL:
            self._receive_up_to(4)
            length = length_at(self._buffer, self._at)
            if self._buffer[self._at + 3] != self._number:
                raise malformed()
            self._at, self._number = self._at + 4, self._number + 1 & 0xFF
            left = length
            while left:
                self._receive_up_to(1)
                piece = self._view[self._at : min(self._end, self._at + left)]
                self._at += len(piece)
                left -= len(piece)
                yield piece

    def _skips(self, data: bytes | memoryview) -> bool:
        """Whether this is a row event of a table that is left out."""
        at = HEADER.size
        return (
            data[4] in ROWS
            and len(data) >= at + 6
            and int.from_bytes(data[at : at + 6], "little") in self.skip
        )

    def _event(self, data: memoryview, checksum: int, size: int | None = None) -> LogEvent | None:
        """The event, once it is proven to be the one that was written here; `checksum` is that of all its bytes."""
        size = len(data) if size is None else size
        if size < HEADER.size:
            raise malformed()
        timestamp, kind, server, told, log_end, flags = HEADER.unpack_from(data)
        if told != size:
            raise malformed()
        heartbeat = kind in (HEARTBEAT, HEARTBEAT_2)
        artificial = not log_end or bool(flags & ARTIFICIAL) or heartbeat
        if kind == FORMAT_DESCRIPTION:
            tail = CHECKSUM  # it always has one
        elif artificial and (kind == ROTATE or heartbeat):  # has one if the server writes them now
            tail = CHECKSUM if checksum == _RESIDUE else 0
        elif self.format is None:
            raise malformed()
        else:
            tail = CHECKSUM if self.format.checksum else 0
        if size < HEADER.size + tail or (tail and checksum != _RESIDUE):
            raise self._damaged("does not have the checksum that it was written with")
        if not artificial:
            self._check_place(kind, size, log_end)
        place = self._place
        self._place += 0 if artificial else size
        if self._skips(data):
            self.skipped_events += 1
            self.skipped_bytes += size
            return None
        body = data[HEADER.size : len(data) - tail]
        event = LogEvent(kind, timestamp, flags, place, 0 if artificial else size, body, server)
        if kind == FORMAT_DESCRIPTION:
            self.format = format_description(event)
        elif kind == ROTATE and artificial:
            self.file, self._place = rotate(body)
        return event

    def _check_place(self, kind: int, size: int, log_end: int) -> None:
        """Raises unless the event ends where it says, in 32 bits."""
        gap = log_end - size - self._place & 0xFFFFFFFF
        if not gap:
            return
        # MariaDB sends no ANNOTATE events, with the texts of statements, unless it is asked for them.
        if self.format is None or not self.format.mariadb or kind != TABLE_MAP or gap >= 1 << 31:
            raise self._damaged(f"ends at {log_end}, so that events are missing before it")
        self._place += gap

    def _damaged(self, what: str) -> DamagedEvent:
        return DamagedEvent(
            f"the event at {self.file}:{self._place} of the binary log {what}",
            hint="run the command again; if it says the same, the file is damaged: see `mysqlbinlog --verify-binlog-checksum`",
        )

    def _receive_up_to(self, size: int) -> None:
        """Receives until so many unread bytes are in the buffer."""
        while self._end - self._at < size:
            if self._at and self._at + size > len(self._buffer):
                rest = self._end - self._at
                self._view[:rest] = self._view[self._at : self._end]
                self._at, self._end = 0, rest
            elif self._at == self._end:
                self._at = self._end = 0
            room = self._view[self._end : self._end + RECEIVE]
            self._end += wire.received(self._link.recv_into, room)
