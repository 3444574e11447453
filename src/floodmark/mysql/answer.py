"""The answer to a query, read from the connection's own socket, past the driver.

The driver makes an object of every cell, which costs more than all the rest. It has read nothing of an answer as long
as it was only told to send; so on a plain connection the answer can be taken off the socket here. Packets come in their
order and only the server's own end packet is an end: a cut, a stall and a foreign byte raise what the driver raises.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from floodmark.mysql import wire
from floodmark.mysql.wire import END, FULL, Array, length_at, lost, malformed

# The receive buffer: a row that does not fit gets one of its own.
BUFFER = 4 << 20
# At most so much at once: what is received is parsed while it is in the processor's cache.
RECEIVE = 256 << 10
# The longest row that a server can send.
LONGEST = 1 << 30


class Answer:
    """The answer to the query that was just sent, as blocks of columns; like a result of the driver's.

    Nobody else may read from the socket until the end; after it the connection is free again.
    """

    def __init__(
        self, link: socket.socket, kinds: Sequence[pa.DataType], seconds: int, buffer: int = BUFFER
    ) -> None:
        """`kinds` are binary or large_binary, for each column; `seconds` is how long the server may be silent."""
        self.warnings = 0
        self.refused = False  # in place of a result: the connection is in order
        self._link, self._kinds = link, kinds
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._patience = seconds * 1000 or None
        self._buffer = bytearray(buffer)
        self._view = memoryview(self._buffer)
        self._data = np.frombuffer(self._buffer, np.uint8)
        self._at = self._end = 0  # what is in the buffer and not looked at yet
        self._number = 1  # of the next packet
        self._ended = self._classic = False

    def begin(self) -> None:
        """Waits for the first row, or the error that the server gives instead."""
        packet = self._packet()
        if packet[:1] == b"\xff":
            self.refused = True
            raise wire.refusal(packet)
        if wire.columns_in(packet) != len(self._kinds):
            raise malformed()
        for _ in self._kinds:
            self._packet()
        self._wait_for_packet()
        # Behind the descriptions there is an end packet, or none if both sides have agreed to leave it out.
        self._classic = length_at(self._buffer, 0) == 5 and self._buffer[4] == END
        if self._classic:
            self._packet()

    def fetch_row(self, most: int) -> list[Array]:
        """The columns of up to so many rows; none after the clean end."""
        if self._ended:
            return []
        self._to_front()
        heads = [0]
        while True:
            wire.follow(self._buffer, heads, self._end, most)
            if len(heads) > most or self._is_end(heads):
                break
            if len(heads) == 1 and self._end >= 4 and 4 + length_at(self._buffer, 0) > len(self._buffer):
                return self._large()
            if self._end == len(self._buffer):
                break
            self._receive()
        return self._block(heads)

    def _block(self, heads: list[int]) -> list[Array]:
        at = np.array(heads, np.int64)
        numbers = self._data[at[:-1] + 3]
        if not np.array_equal(numbers, (np.arange(len(numbers)) + self._number).astype(np.uint8)):
            raise malformed()
        self._number = (self._number + len(numbers)) & 0xFF
        self._at = heads[-1]
        if self._is_end(heads):
            self.warnings = wire.warnings_in(bytes(self._view[heads[-2] + 4 : heads[-1]]), self._classic)
            self._ended = True
            at = at[:-1]
        if len(at) == 1:
            return []
        if (np.diff(at) < 4 + len(self._kinds)).any() or (self._data[at[:-1] + 4] >= END).any():
            raise malformed()  # too short for a row; or an end, and more behind it
        return wire.columns_of(self._data[: at[-1]], at, self._kinds)

    def _is_end(self, heads: list[int]) -> bool:
        """Whether the last whole packet is not a row; no row that fits into the buffer begins like that."""
        last = heads[-2] if len(heads) > 1 else heads[-1]
        return heads[-1] == self._end and heads[-1] - last > 4 and self._buffer[last + 4] >= END

    # ---------------------------------------------------------------- single packets

    def _packet(self) -> bytes:
        """The next packet, a small one."""
        self._wait_for_packet()
        end = 4 + length_at(self._buffer, 0)
        packet = bytes(self._view[4:end])
        if end > self._end:
            raise malformed()
        # What a server says before it hangs up has no number in the order.
        if self._buffer[3] != self._number & 0xFF and packet[:1] != b"\xff":
            raise malformed()
        self._number += 1
        self._at = end
        return packet

    def _wait_for_packet(self) -> None:
        """Until the next packet is there, or the buffer is full of it."""
        self._to_front()
        while self._end < 4 or self._end < min(4 + length_at(self._buffer, 0), len(self._buffer)):
            self._receive()

    # ---------------------------------------------------------------- rows that don't fit

    def _large(self) -> list[Array]:
        """One row that is larger than the buffer, perhaps in several packets, in a buffer of its own."""
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
        data = np.frombuffer(row, np.uint8)
        return wire.columns_of(data, np.array([0, len(row)], np.int64), self._kinds, own=True)

    def _append(self, row: bytearray, length: int) -> None:
        """What the packet at the front has: first the bytes in the buffer, then from the socket without a copy."""
        self._at = min(4 + length, self._end)
        row += self._view[4 : self._at]
        at = len(row)
        row.extend(bytes(4 + length - self._at))
        view = memoryview(row)
        while at < len(row):
            at += self._receive_into(view[at:])
        self._to_front()

    # ---------------------------------------------------------------- bytes

    def _to_front(self) -> None:
        if self._at:
            rest = bytes(self._view[self._at : self._end])
            self._view[: len(rest)] = rest
            self._at, self._end = 0, len(rest)

    def _receive(self) -> None:
        self._end += self._receive_into(self._view[self._end : self._end + RECEIVE])

    def _receive_into(self, view: memoryview) -> int:
        while True:
            try:
                got = self._link.recv_into(view, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if not self._poll.poll(self._patience):
                    raise lost() from None
                continue
            except OSError as error:
                raise lost() from error
            if not got:
                raise lost()
            return got
