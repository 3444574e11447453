"""The answer to a query for many rows, read directly from the connection's socket, bypassing the driver.

The driver makes an object of every cell, which costs more than everything else. It reads nothing between its
own queries, so we can send a query and take its answer off the socket, plain or TLS alike. The query is
prepared first, so that numbers and times arrive in binary; if that isn't possible, the answer comes in the
text protocol. Packets must be in order, and only the server's end packet is an end: a lost connection, a
stall or a stray byte raises an error.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from floodmark.source.rows import decoder
from floodmark.source.rows import packets as wire
from floodmark.source.rows.decoder import Array
from floodmark.source.rows.packets import END, FULL, length_at, malformed

# Size of the receive buffer; a row that does not fit gets a buffer of its own.
BUFFER = 4 << 20
# Most bytes to receive at once: they are parsed while they are in the processor's cache.
RECEIVE = 256 << 10
# The longest row that a server can send.
LONGEST = 1 << 30


class RowStream:
    """The answer to a query, as blocks of columns.

    Nobody else may read from the socket until the end; then the connection is free again.
    """

    def __init__(
        self, link: socket.socket, wanted: Sequence[pa.DataType], seconds: int, buffer: int = BUFFER
    ) -> None:
        """`wanted` is the target type of each column; `seconds` is how long the server may be silent."""
        self.warnings = 0
        self._link, self._wanted = link, wanted
        self._kinds: list[decoder.Kind] | None = None  # of a prepared statement
        self._statement = b""
        self._stray: int | None = None  # number of a packet that may precede the answer
        link.settimeout(seconds or None)
        self._size = buffer
        self._buffer = bytearray(buffer + decoder.SLACK)
        self._view = memoryview(self._buffer)
        self._data = np.frombuffer(self._buffer, np.uint8)
        self._at = self._end = 0  # the unread part of the buffer
        self._number = 1  # of the next packet
        self.ended = self._classic = False  # whether all of it has arrived

    def ask(self, query: bytes) -> None:
        """Sends the query and waits for the first row, or for the server's error."""
        if b"?" in query or not self._prepared(query):
            wire.send(self._link, wire.QUERY + query)
        self.begin()

    def _prepared(self, query: bytes) -> bool:
        """Prepares the query and starts it; returns whether that worked.

        A query that can't be prepared, or has columns that are not exact in this protocol, is left to the
        text protocol.
        """
        wire.send(self._link, decoder.PREPARE + query)
        packet = self._packet()
        if packet[:1] == b"\xff":
            self._number = 1
            return False
        if len(packet) < 9 or packet[0]:
            raise malformed()
        self._statement, columns = packet[1:5], packet[5] | packet[6] << 8
        if columns != len(self._wanted) or packet[7:9] != b"\0\0":
            raise malformed()
        self._kinds = decoder.layout([self._packet() for _ in range(columns)], self._wanted)
        # An end packet may follow, unless both sides have agreed to omit it. The next packet will tell.
        self._stray, self._number = self._number & 0xFF, 1
        if self._kinds is None:
            wire.send(self._link, decoder.CLOSE + self._statement)
            return False
        wire.send(self._link, decoder.execution(self._statement))
        return True

    def begin(self) -> None:
        """Waits for the first row of the answer, or for the server's error."""
        packet = self._packet()
        if packet[:1] == b"\xff":
            raise wire.StatementRefused(*wire.refusal(packet).args)
        columns, described = wire.columns_in(packet)
        if columns != len(self._wanted):
            raise malformed()
        definitions = [self._packet() for _ in range(columns)] if described else []
        prepared = self._kinds is not None
        if prepared and described:  # the newest description counts: the table may have been replaced
            self._kinds = decoder.layout(definitions, self._wanted)
        if (prepared or not described) and self._kinds is None:
            raise malformed()
        self._wait_for_packet()
        # After the descriptions comes an end packet, unless both sides have agreed to omit it.
        self._classic = length_at(self._buffer, 0) == 5 and self._buffer[4] == END
        if self._classic:
            self._packet()

    def fetch_row(self, most: int) -> list[Array]:
        """The columns of up to `most` rows; empty after a clean end."""
        if self.ended:
            return []
        self._to_front()
        heads, count = np.zeros(most + 1, np.int64), 1
        while True:
            count = decoder.follow(self._buffer, heads, count, self._end)
            if count > most or self._is_end(heads[:count]):
                break
            if count == 1 and self._end >= 4 and 4 + length_at(self._buffer, 0) > self._size:
                return self._large()
            if self._end == self._size:
                break
            self._receive()
        return self._block(heads[:count])

    def _block(self, at: decoder.Numbers) -> list[Array]:
        numbers = self._data[at[:-1] + 3]
        if not np.array_equal(numbers, (np.arange(len(numbers)) + self._number).astype(np.uint8)):
            raise malformed()
        self._number = (self._number + len(numbers)) & 0xFF
        self._at = int(at[-1])
        if self._is_end(at):
            self.warnings = wire.warnings_in(bytes(self._view[at[-2] + 4 : at[-1]]), self._classic)
            self.ended = True
            if self._statement and self._kinds and not self.warnings:  # closing it would clear the warnings
                wire.send(self._link, decoder.CLOSE + self._statement)
            at = at[:-1]
        if len(at) == 1:
            return []
        return self._columns(self._data, at)

    def _columns(self, data: decoder.Numbers, at: decoder.Numbers, own: bool = False) -> list[Array]:
        """The columns of the rows that begin at these places. Raises if one is an end, or too short."""
        if self._kinds is not None:
            return decoder.binary_columns(data, at, self._kinds, own)
        first, sizes = data[at[:-1] + 4], np.diff(at) - 4
        if (not own and (first >= END).any()) or (sizes < len(self._wanted)).any():
            raise malformed()
        return decoder.text_columns(data[: at[-1]], at, [decoder.gathered(w) for w in self._wanted], own)

    def _is_end(self, heads: decoder.Numbers) -> bool:
        """Whether the last complete packet is not a row; no row that fits the buffer begins like that."""
        last = heads[-2] if len(heads) > 1 else heads[-1]
        return bool(heads[-1] == self._end and heads[-1] - last > 4 and self._buffer[last + 4] >= END)

    # ---------------------------------------------------------------- single packets

    def _packet(self) -> bytes:
        """The next packet, which must be small."""
        self._wait_for_packet()
        end = 4 + length_at(self._buffer, 0)
        packet = bytes(self._view[4:end])
        if end > self._end:
            raise malformed()
        if self._stray is not None:
            stray, self._stray = self._stray, None
            if self._buffer[3] == stray and len(packet) == 5 and packet[0] == END:
                self._at = end
                return self._packet()
        # A server's last message before it hangs up is out of sequence.
        if self._buffer[3] != self._number & 0xFF and packet[:1] != b"\xff":
            raise malformed()
        self._number += 1
        self._at = end
        return packet

    def _wait_for_packet(self) -> None:
        """Waits until the next packet has arrived, or fills the buffer."""
        self._to_front()
        while self._end < 4 or self._end < min(4 + length_at(self._buffer, 0), self._size):
            self._receive()

    # ---------------------------------------------------------------- rows that don't fit

    def _large(self) -> list[Array]:
        """One row larger than the buffer, perhaps in several packets, in a buffer of its own."""
        row = bytearray(4)
        length = FULL
        while length == FULL:
            while self._end < 4:
                self._receive()
            length = length_at(self._buffer, 0)
            if self._buffer[3] != self._number & 0xFF:
                raise malformed()
            if len(row) + length > LONGEST:
                raise wire.too_large()
            self._number = (self._number + 1) & 0xFF
            self._append(row, length)
        at = np.array([0, len(row)], np.int64)
        row += bytes(decoder.SLACK)
        return self._columns(np.frombuffer(row, np.uint8), at, own=True)

    def _append(self, row: bytearray, length: int) -> None:
        """Appends the front packet's body: bytes from the buffer, then from the socket without a copy."""
        self._at = min(4 + length, self._end)
        row += self._view[4 : self._at]
        at = len(row)
        row.extend(bytes(4 + length - self._at))
        view = memoryview(row)
        while at < len(row):
            at += wire.received(self._link.recv_into, view[at:])
        self._to_front()

    # ---------------------------------------------------------------- bytes

    def _to_front(self) -> None:
        if self._at:
            rest = bytes(self._view[self._at : self._end])
            self._view[: len(rest)] = rest
            self._at, self._end = 0, len(rest)

    def _receive(self) -> None:
        view = self._view[self._end : min(self._end + RECEIVE, self._size)]
        self._end += wire.received(self._link.recv_into, view)
