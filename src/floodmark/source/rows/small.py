"""The whole answer to a statement with a small result, read directly from the connection's socket.

Planning asks a few dozen questions per table, most of them for a single row. The driver builds objects for
every column's description, which costs more than the question; here only the cells become objects, and the
columns' names if someone wants them. As for large results, packets must be in order, and only the server's end
packet is an end.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from floodmark.source.rows import text as wire
from floodmark.source.rows.text import END, ERROR, FULL, QUERY, MySQLError, length_at, malformed

Cells = tuple[bytes | None, ...]

# Most bytes to receive at once.
RECEIVE = 64 << 10
# A result this large is not a small one: it would be held in memory as a whole.
LARGEST = 1 << 30
_OK, _NULL = 0x00, 0xFB
# Bytes of the length that follows the first byte of a longer cell.
_LENGTHS = {0xFC: 2, 0xFD: 3, 0xFE: 8}
# An end packet is shorter than this; a row that begins like one is longer.
_ENDS_BELOW = 9


@dataclass
class Result:
    """A result: its rows as bytes, the number of warnings, the packets that describe its columns."""

    rows: list[Cells] = field(default_factory=list)
    warnings: int = 0
    described: list[bytes] = field(default_factory=list)

    def names(self) -> list[str]:
        """The columns' names."""
        return [_name(packet).decode(errors="replace") for packet in self.described]


class Refused(MySQLError):
    """The server's error came in place of a result, or of its rest: the connection is still usable."""


def ask(link: socket.socket, statement: bytes) -> Result:
    """Sends a statement and reads its whole answer; raises MySQLError.

    Unless that is Refused, the connection must not be used again: the rest of an answer may still arrive.
    """
    wire.send(link, QUERY + statement)
    packets = _Packets(link)
    first = packets.next()
    if first[0] == _OK:
        packets.end()
        return Result(warnings=wire.warnings_in(first, classic=False))
    columns, follows = wire.columns_in(first)
    if not follows:
        raise malformed()
    result = Result(described=[packets.next() for _ in range(columns)])
    if not _is_end(packets.next()):
        raise malformed()
    while not _is_end(packet := packets.next()):
        result.rows.append(_cells(packet, columns))
    packets.end()
    result.warnings = wire.warnings_in(packet, classic=True)
    return result


def _is_end(packet: bytes) -> bool:
    return packet[0] == END and len(packet) < _ENDS_BELOW


class _Packets:
    """The packets of one answer, in order."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._buffer = b""
        self._at = 0
        self._number = 1
        self._received = 0

    def next(self) -> bytes:
        """The next packet; one that is continued is put together. Raises the error in an error packet."""
        found = self._one()
        if len(found) < FULL:
            if not found:
                raise malformed()
            if found[0] == ERROR:
                self.end()
                raise Refused(*wire.refusal(found).args)
            return found
        parts = [found]
        while len(parts[-1]) == FULL:
            parts.append(self._one())
        return b"".join(parts)

    def end(self) -> None:
        """Nothing may follow: the server speaks only when it is asked."""
        if self._at != len(self._buffer):
            raise malformed()

    def _one(self) -> bytes:
        while len(self._buffer) - self._at < 4:
            self._receive()
        length, number = length_at(self._buffer, self._at), self._buffer[self._at + 3]
        while len(self._buffer) - self._at < 4 + length:
            self._receive()
        start = self._at + 4
        self._at = start + length
        packet = self._buffer[start : self._at]
        if number != self._number & 0xFF:
            # A server's last message before it hangs up is out of sequence.
            raise wire.refusal(packet) if packet[:1] == b"\xff" else malformed()
        self._number += 1
        return packet

    def _receive(self) -> None:
        """Appends what has arrived to the unread rest."""
        data = wire.received(self._link.recv, RECEIVE)
        self._received += len(data)
        if self._received > LARGEST:
            raise wire.too_large()
        self._buffer = self._buffer[self._at :] + data
        self._at = 0


def _cells(packet: bytes, columns: int) -> Cells:
    """The cells of a row, which must fill its packet exactly."""
    found, end = _texts(packet, columns)
    if end != len(packet):
        raise malformed()
    return tuple(found)


def _texts(packet: bytes, count: int) -> tuple[list[bytes | None], int]:
    """So many texts from the beginning of a packet, and where the last one ends, perhaps beyond the packet."""
    found: list[bytes | None] = []
    at, size = 0, len(packet)
    for _ in range(count):
        if at >= size:
            raise malformed()
        length = packet[at]
        at += 1
        if length >= _NULL:
            if length == _NULL:
                found.append(None)
                continue
            more = _LENGTHS.get(length)
            if more is None:
                raise malformed()
            length = int.from_bytes(packet[at : at + more], "little")
            at += more
        end = at + length
        found.append(packet[at:end])
        at = end
    return found, at


def _name(packet: bytes) -> bytes:
    """The name in the description of a column: its fifth text, after catalog, schema, table and its alias."""
    texts, end = _texts(packet, 5)
    if None in texts or end > len(packet):
        raise malformed()
    return texts[4] or b""
