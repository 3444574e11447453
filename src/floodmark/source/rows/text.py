"""Decodes packets of MySQL's text protocol into Arrow columns; only buffers, no object per cell.

Packet lengths are followed row by row, the cells' places are found column by column over all rows of a block,
and Arrow copies the cells out of the buffer. The cells of a row must fill its packet exactly. That check also
keeps every place inside the buffer.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute

# The compiled decoder; missing if there was no compiler, or Floodmark runs from a zip.
compiled: Any
try:
    from floodmark.source.rows import decoder_fast as _rows

    compiled = _rows
except ImportError:
    compiled = None

T = TypeVar("T")
R = TypeVar("R")
Array: TypeAlias = Any
Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# Flag in the server's greeting: it supports TLS.
CLIENT_SSL = 0x0800
# First byte of a packet with a text query.
QUERY = b"\3"
# A packet of this length continues in the next one.
FULL = 0xFFFFFF
# First bytes of packets that are not rows; a row begins like that only if it is longer than FULL.
END, ERROR = 0xFE, 0xFF

# First byte of a cell: its length, or one of these marks, followed by the length if there is one.
_NULL, _TWO, _THREE, _EIGHT = 0xFB, 0xFC, 0xFD, 0xFE
_MORE_RESULTS = 0x0008
_LENGTH = struct.Struct("<I")
_buffer: Any = pa.py_buffer  # the stubs don't accept numpy arrays as buffers
_take = pyarrow.compute.get_function("take").call
_TAKE = pyarrow.compute.TakeOptions(boundscheck=False)


class MySQLError(Exception):
    """A code and a text: the server's own, or 2000 to 2999 for what happened to the connection."""


class NotTrusted(MySQLError):
    """The server's certificate is not accepted."""

    other_host = False  # whether the certificate belongs to another host


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


def packets(command: bytes) -> bytes:
    """A command as it travels: in packets, of which only the last is shorter than the maximum."""
    pieces = [command[at : at + FULL] for at in range(0, len(command) + 1, FULL)]
    heads = (struct.pack("<I", len(p) | (n & 0xFF) << 24) for n, p in enumerate(pieces))
    return b"".join(head + piece for head, piece in zip(heads, pieces, strict=True))


def send(link: socket.socket, command: bytes) -> None:
    """Sends a command."""
    try:
        link.sendall(packets(command))
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


def gathered(wanted: pa.DataType) -> pa.DataType:
    """The type in which to gather cells that will become this type."""
    large = pa.types.is_large_string(wanted) or pa.types.is_large_binary(wanted)
    return pa.large_binary() if large else pa.binary()


def columns_in(packet: bytes) -> tuple[int, bool]:
    """How many columns the result has, and whether their descriptions follow, from its first packet."""
    count, at = (packet[0], 1) if packet and packet[0] < _NULL else (0, 0)
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
            at = _after_number(packet, _after_number(packet, 1))
            status, warnings = struct.unpack_from("<HH", packet, at)
    except (IndexError, struct.error):
        raise malformed() from None
    if status & _MORE_RESULTS:
        raise malformed()
    return int(warnings)


def _after_number(packet: bytes, at: int) -> int:
    """Where the number that begins here ends."""
    return at + {_TWO: 3, _THREE: 4, _EIGHT: 9}.get(packet[at], 1)


def length_at(buffer: bytes | bytearray, at: int) -> int:
    """The length of the packet that begins here, without its four-byte header."""
    return int(_LENGTH.unpack_from(buffer, at)[0]) & FULL


def follow(buffer: bytearray, heads: Numbers, count: int, end: int) -> int:
    """Extends the `count` packet starts in `heads` over all complete packets, as far as there is room.

    Returns the new number of starts.
    """
    if compiled is not None:
        return int(compiled.follow(buffer, heads, count, end))
    at, last, room, length = int(heads[count - 1]), end - 4, len(heads) - count, _LENGTH.unpack_from
    found: list[int] = []
    add = found.append
    while at <= last and len(found) < room:
        at += 4 + (length(buffer, at)[0] & FULL)
        add(at)
    if at > end:
        found.pop()
    heads[count : count + len(found)] = found
    return count + len(found)


def places(data: Numbers, heads: Numbers, columns: int) -> tuple[Numbers, list[Numbers | None]]:
    """Where the cells are: per column the start and the end in each row, alternating; and which are NULL.

    `heads` holds the starts of the rows' packets and the end of the last one.
    """
    rows = len(heads) - 1
    found = np.empty((columns, 2 * rows), np.int32)
    nulls: list[Numbers | None] = []
    at = heads[:-1] + 4
    try:
        for column in range(columns):
            length = data[at]
            at += 1
            null, length = length_of(data, at, length)
            nulls.append(null)
            found[column, 0::2] = at
            at += length
            found[column, 1::2] = at
    except IndexError:
        raise malformed() from None
    if not np.array_equal(at, heads[1:]):
        raise malformed()
    return found, nulls


def length_of(data: Numbers, at: Numbers, first: Numbers) -> tuple[Numbers | None, Numbers]:
    """The NULLs and the lengths of cells from their first bytes; moves `at` to the start of the cells."""
    if first.max() < _NULL:
        return None, first
    null = first == _NULL
    length = np.where(null, 0, first).astype(np.int64)
    for mark, count in ((_TWO, 2), (_THREE, 3), (_EIGHT, 8)):
        (which,) = np.nonzero(first == mark)
        if len(which):
            parts = [data[at[which] + i].astype(np.uint64) << np.uint64(8 * i) for i in range(count)]
            total = np.bitwise_or.reduce(parts)
            if total.max() > len(data):
                raise malformed()
            length[which] = total
            at[which] += count
    if (first == ERROR).any():
        raise malformed()
    return (null if null.any() else None), length


def columns_of(data: Numbers, heads: Numbers, kinds: Sequence[pa.DataType], own: bool = False) -> list[Array]:
    """The rows' cells as arrays of `kinds` (binary or large_binary); `own`: a single row, not copied."""
    found, nulls = places(data, heads, len(kinds))
    even = pa.array(np.arange(0, 2 * (len(heads) - 1), 2, dtype=np.int32))
    return [
        cells(data, place, null, kind, even, own)
        for place, null, kind in zip(found, nulls, kinds, strict=True)
    ]


def cells(
    data: Numbers, place: Numbers, null: Numbers | None, kind: pa.DataType, even: Array, own: bool
) -> Array:
    """The cells of one column from their starts and ends. `even` picks the cells, not the gaps between."""
    column = pa.Array.from_buffers(pa.binary(), len(place) - 1, [None, _buffer(place), _buffer(data)])
    if not own:
        column = _take([column, even], _TAKE)
    column = nullable(column, null)
    return column if kind == column.type else column.cast(kind)


def nullable(column: Array, null: Numbers | None) -> Array:
    """The column with its NULLs."""
    if null is None:
        return column
    valid = _buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(column.type, len(column), [valid, *column.buffers()[1:]])
