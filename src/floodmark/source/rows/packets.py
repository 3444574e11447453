"""The packets of MySQL's protocol: commands, errors, and whole answers to statements with a small result.

Planning asks a few dozen questions per table, most of them for a single row. The driver builds objects for
every column's description, which costs more than the question; here only the cells become objects, and the
columns' names if someone wants them. Packets must be in order, and only the server's end packet is an end.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
Cells = tuple[bytes | None, ...]

# Flag in the server's greeting: it supports TLS.
CLIENT_SSL = 0x0800
# First byte of a packet with a text query.
QUERY = b"\3"
# A packet of this length continues in the next one.
FULL = 0xFFFFFF
# First bytes of packets that are not rows; a row begins like that only if it is longer than FULL.
OK, END, ERROR = 0x00, 0xFE, 0xFF
# An end packet is shorter than this; a row that begins like one is longer.
_ENDS_BELOW = 9
# First byte of a cell: its length, NULL, or one of the marks before a length of so many bytes.
NULL, LENGTHS = 0xFB, {0xFC: 2, 0xFD: 3, 0xFE: 8}

# Most bytes of a small result to receive at once.
RECEIVE = 64 << 10
# A result this large is not a small one: it would be held in memory as a whole.
LARGEST = 1 << 30

_MORE_RESULTS = 0x0008
_LENGTH = struct.Struct("<I")


class MySQLError(Exception):
    """A code and a text: the server's own, or 2000 to 2999 for what happened to the connection."""


class NotTrusted(MySQLError):
    """The server's certificate is not accepted."""

    other_host = False  # whether the certificate belongs to another host


class StatementRefused(MySQLError):
    """The server's error came in place of a result, or of its rest: the connection is still usable."""


def lost() -> MySQLError:
    """The server stopped sending before the end, or sent nothing for too long."""
    return MySQLError(2013, "Lost connection to server during query")


def too_large() -> MySQLError:
    """A row is longer than any server may send."""
    return MySQLError(2020, "Got packet bigger than 'max_allowed_packet' bytes")


def malformed() -> MySQLError:
    """A packet can't be read."""
    return MySQLError(2027, "Malformed packet")


def refusal(packet: bytes) -> MySQLError:
    """The error in an error packet."""
    if len(packet) < 3:
        return malformed()
    code = int.from_bytes(packet[1:3], "little")
    text = packet[9:] if packet[3:4] == b"#" else packet[3:]
    return MySQLError(code, text.decode(errors="replace"))


def send(link: socket.socket, command: bytes) -> None:
    """Sends a command in packets, of which only the last is shorter than the maximum."""
    pieces = [command[at : at + FULL] for at in range(0, len(command) + 1, FULL)]
    heads = (_LENGTH.pack(len(piece) | (n & 0xFF) << 24) for n, piece in enumerate(pieces))
    try:
        link.sendall(b"".join(head + piece for head, piece in zip(heads, pieces, strict=True)))
    except OSError as error:
        raise lost() from error


def received(receive: Callable[[T], R], into: T) -> R:
    """What a socket's function receives; raises if the connection has ended."""
    try:
        got = receive(into)
    except OSError as error:
        raise lost() from error
    if not got:
        raise lost()
    return got


def length_at(buffer: bytes | bytearray, at: int) -> int:
    """The length of the packet that begins here, without its four-byte header."""
    return int(_LENGTH.unpack_from(buffer, at)[0]) & FULL


def columns_in(packet: bytes) -> tuple[int, bool]:
    """How many columns the result has, and whether their descriptions follow, from its first packet."""
    count, at = (packet[0], 1) if packet and packet[0] < NULL else (0, 0)
    if packet[:1] == b"\xfc" and len(packet) >= 3:
        count, at = packet[1] | packet[2] << 8, 3
    # One more byte from MariaDB says whether they follow: not if it already sent the same when preparing the
    # statement.
    if not count or packet[at:] not in (b"", b"\0", b"\1"):
        raise malformed()
    return count, packet[at:] != b"\0"


def warnings_in(packet: bytes, classic: bool) -> int:
    """The number of warnings, from the packet that ends a result; raises if it is an error packet.

    `classic`: an end packet proper; otherwise it has the form of an OK packet.
    """
    if packet[0] == ERROR:
        raise refusal(packet)
    try:
        if classic:
            warnings, status = struct.unpack("<HH", packet[1:])
        else:
            at = 1
            for _ in range(2):  # rows changed, last id
                at += 1 + LENGTHS.get(packet[at], 0)
            status, warnings = struct.unpack_from("<HH", packet, at)
    except (IndexError, struct.error):
        raise malformed() from None
    if status & _MORE_RESULTS:
        raise malformed()
    return int(warnings)


# ---------------------------------------------------------------- small results


@dataclass
class SmallResult:
    """A result: its rows as bytes, the number of warnings, the packets that describe its columns."""

    rows: list[Cells] = field(default_factory=list)
    warnings: int = 0
    described: list[bytes] = field(default_factory=list)

    def names(self) -> list[str]:
        """The columns' names."""
        return [_name(packet).decode(errors="replace") for packet in self.described]


def ask(link: socket.socket, statement: bytes) -> SmallResult:
    """Sends a statement and reads its whole answer; raises MySQLError.

    Unless that is StatementRefused, the connection must not be used again: the rest of an answer may still arrive.
    """
    send(link, QUERY + statement)
    packets = _Packets(link)
    first = packets.next()
    if first[0] == OK:
        packets.end()
        return SmallResult(warnings=warnings_in(first, classic=False))
    columns, follows = columns_in(first)
    if not follows:
        raise malformed()
    result = SmallResult(described=[packets.next() for _ in range(columns)])
    if not _is_end(packets.next()):
        raise malformed()
    while not _is_end(packet := packets.next()):
        cells, end = _texts(packet, columns)
        if end != len(packet):  # they must fill it exactly
            raise malformed()
        result.rows.append(tuple(cells))
    packets.end()
    result.warnings = warnings_in(packet, classic=True)
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
                raise StatementRefused(*refusal(found).args)
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
            raise refusal(packet) if packet[:1] == b"\xff" else malformed()
        self._number += 1
        return packet

    def _receive(self) -> None:
        """Appends what has arrived to the unread rest."""
        data = received(self._link.recv, RECEIVE)
        self._received += len(data)
        if self._received > LARGEST:
            raise too_large()
        self._buffer = self._buffer[self._at :] + data
        self._at = 0


def _texts(packet: bytes, count: int) -> tuple[list[bytes | None], int]:
    """So many texts from the beginning of a packet, and where the last one ends, perhaps beyond the packet."""
    found: list[bytes | None] = []
    at, size = 0, len(packet)
    for _ in range(count):
        if at >= size:
            raise malformed()
        length = packet[at]
        at += 1
        if length >= NULL:
            if length == NULL:
                found.append(None)
                continue
            more = LENGTHS.get(length)
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
