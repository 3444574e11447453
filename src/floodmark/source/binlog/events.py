"""The events of the binary log: what their types are called, and what the ones that we need say. Pure.

A type that is not named here is unknown, and whoever meets one stops: an event is never skipped because nobody
has heard of it. Bodies are as `stream.LogEvent` has them, without header and checksum. One that can't be read
raises `DamagedEvent`, whatever its bytes are.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa

from floodmark.model.changes import LogPlace, TableMap, UnknownEvent
from floodmark.model.errors import DataError

# Type codes.
QUERY, STOP, ROTATE, XID, FORMAT_DESCRIPTION, TABLE_MAP = 2, 3, 4, 16, 15, 19
INCIDENT, HEARTBEAT, IGNORABLE, ROWS_QUERY, GTID, ANONYMOUS, PREVIOUS_GTIDS = 26, 27, 28, 29, 33, 34, 35
TRANSACTION_CONTEXT, VIEW_CHANGE, XA_PREPARE, PARTIAL_UPDATE, PAYLOAD, HEARTBEAT_2 = 36, 37, 38, 39, 40, 41
GTID_TAGGED = 42
# MariaDB's.
ANNOTATE, BINLOG_CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION, QUERY_COMPRESSED = (
    160,
    161,
    162,
    163,
    164,
    165,
)

# Row events: version 1, version 2, MariaDB's compressed ones.
INSERTS = frozenset({23, 30, 166, 169})
UPDATES = frozenset({24, 31, PARTIAL_UPDATE, 167, 170})
DELETES = frozenset({25, 32, 168, 171})
ROWS = INSERTS | UPDATES | DELETES
COMPRESSED_ROWS = frozenset(range(166, 172))
_VERSION_1 = frozenset({23, 24, 25, 166, 167, 168})
# Nothing in the tables depends on them.
HARMLESS = frozenset(
    {
        STOP, HEARTBEAT, HEARTBEAT_2, IGNORABLE, ROWS_QUERY, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE,
        ANNOTATE, BINLOG_CHECKPOINT, GTID_LIST, START_ENCRYPTION,
    }
)  # fmt: skip

# Flags of an event's header.
ARTIFICIAL, IGNORABLE_FLAG = 0x20, 0x80

HEADER = struct.Struct("<IBIIIH")  # timestamp, type, server, size, end, flags
CHECKSUM = 4


class DamagedEvent(DataError):
    """An event can't be read, or is not the one that was written."""


class LogEvent(NamedTuple):
    """One event. The body is valid until the next event is taken."""

    kind: int
    timestamp: int
    flags: int
    place: int  # where it begins in its file, in 64 bits; for artificial events the place of the dump
    size: int  # in the file, with header and checksum; 0 for artificial events and those within a payload
    body: memoryview
    server: int  # the id of the server that wrote it

    @property
    def ignorable(self) -> bool:
        """Whether the server says that those who don't know its type may ignore it."""
        return bool(self.flags & IGNORABLE_FLAG)


@dataclass(frozen=True)
class FormatDescription:
    """How the events of a file are written."""

    version: int
    created: int  # the timestamp of the event: the one that it holds is zero in all but a server's first file
    checksum: bool
    server: str  # the server's version

    @property
    def mariadb(self) -> bool:
        return "mariadb" in self.server.lower()


class Gtid(NamedTuple):
    """The beginning of a transaction."""

    text: str  # `uuid:7`, `uuid:tag:7`, MariaDB's `0-1-7`; empty for an anonymous one
    commit: float | None = None  # when it was committed, in UTC seconds: MySQL's immediate_commit_timestamp
    standalone: bool = False  # MariaDB: one statement, which no COMMIT follows
    ddl: bool = False  # MariaDB
    prepared: str | None = None  # MariaDB: the XA transaction that it prepares
    completed: str | None = None  # MariaDB: the XA transaction that it commits or rolls back


class Query(NamedTuple):
    """A statement, in the character set of the client that sent it."""

    schema: str
    text: bytes
    error: int


def _damaged(what: str) -> DamagedEvent:
    return DamagedEvent(
        f"the binary log has {what} that can't be read",
        hint="run the command again; if it says the same, see `mysqlbinlog --verify-binlog-checksum`",
    )


def packed(body: memoryview | bytes, at: int) -> tuple[int, int]:
    """A packed integer and where it ends."""
    first = body[at]
    if first < 0xFB:
        return first, at + 1
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(first)
    if width is None or at + 1 + width > len(body):
        raise IndexError
    return int.from_bytes(body[at + 1 : at + 1 + width], "little"), at + 1 + width


def _piece(body: memoryview | bytes, at: int, size: int) -> bytes:
    """So many bytes; IndexError if there are fewer."""
    if size < 0 or at + size > len(body):
        raise IndexError
    return bytes(body[at : at + size])


# ---------------------------------------------------------------- files

# The bytes before the variable part, by type: what `rows_begin` and the functions below rely on.
_POST_HEADERS = {QUERY: 13, TABLE_MAP: 8, **{k: 8 if k in _VERSION_1 else 10 for k in ROWS}}


def format_description(event: LogEvent) -> FormatDescription:
    """How the events after this one are written; UnknownEvent if we can't read them."""
    body = event.body
    try:
        (version,) = struct.unpack_from("<H", body)
        server = _piece(body, 2, 50).rstrip(b"\0").decode("latin-1")
        header, lengths, algorithm = body[56], body[57:-1], body[-1]
    except (IndexError, struct.error):
        raise _damaged("a Format_description") from None
    other = [k for k, n in _POST_HEADERS.items() if k <= len(lengths) and lengths[k - 1] not in (0, n)]
    if version != 4 or header != HEADER.size or other or algorithm > 1:
        raise UnknownEvent(
            f"the binary log of {server} is written in a form that this version does not know",
            hint="upgrade floodmark, or follow a server of a version that it supports",
        )
    return FormatDescription(version, event.timestamp, algorithm == 1, server)


def rotate(body: memoryview) -> LogPlace:
    """Where the log goes on."""
    if len(body) < 9:
        raise _damaged("a Rotate event")
    name = bytes(body[8:]).decode("utf-8", "replace")
    if not name.rpartition(".")[2].isdecimal():
        raise _damaged("a Rotate event")
    return LogPlace(name, int.from_bytes(body[:8], "little"))


# ---------------------------------------------------------------- transactions


_NUMBER, _MARIADB, _STATEMENT = struct.Struct("<q"), struct.Struct("<QIB"), struct.Struct("<BHH")


@lru_cache(maxsize=64)
def _uuid(data: bytes) -> str:
    return str(UUID(bytes=data))


def gtid(event: LogEvent) -> Gtid:
    """The transaction that begins here, from an event of any of the four types."""
    body = event.body
    try:
        if event.kind == MARIADB_GTID:
            return _mariadb_gtid(event)
        if event.kind == GTID_TAGGED:
            return _tagged(body)
        (number,) = _NUMBER.unpack_from(body, 17)
        text = "" if event.kind == ANONYMOUS else f"{_uuid(bytes(body[1:17]))}:{number}"
        # Before 5.7 the event ended here; before 8.0 it had no time of commit.
        commit = None
        if len(body) >= 49 and body[25] == 2:
            commit = (int.from_bytes(body[42:49], "little") & (1 << 55) - 1) / 1e6
        return Gtid(text, commit)
    except (IndexError, struct.error, ValueError):
        raise _damaged("a GTID event") from None


def _tagged(body: memoryview) -> Gtid:
    """A GTID with a tag: MySQL's serialization of numbered fields, of which we need the first seven."""
    version, at = _varlen(body, 0)
    size, at = _varlen(body, at)
    _, at = _varlen(body, at)
    if version != 1 or size != len(body):
        raise ValueError
    uuid, number, tag, commit = b"", 0, "", None
    while at < len(body):
        field, at = _varlen(body, at)
        if field == 0:  # flags
            _, at = _varlen(body, at)
        elif field == 1:
            parts = []
            for _ in range(16):
                value, at = _varlen(body, at)
                parts.append(value)
            uuid = bytes(parts)
        elif field == 2:
            number, at = _varlen(body, at, signed=True)
        elif field == 3:
            length, at = _varlen(body, at)
            tag = _piece(body, at, length).decode("ascii")
            at += length
        elif field in (4, 5):  # last_committed, sequence_number
            _, at = _varlen(body, at, signed=True)
        elif field == 6:
            commit, at = _varlen(body, at)
            break
        else:
            raise ValueError
    if len(uuid) != 16 or number <= 0:
        raise ValueError
    text = f"{_uuid(uuid)}:{tag}:{number}" if tag else f"{_uuid(uuid)}:{number}"
    return Gtid(text, None if commit is None else commit / 1e6)


def _varlen(body: memoryview, at: int, signed: bool = False) -> tuple[int, int]:
    """An integer whose first byte ends in as many one bits as bytes follow it."""
    first = body[at]
    more = (~first & first + 1).bit_length() - 1  # the number of trailing ones
    if at + 1 + more > len(body):
        raise IndexError
    whole = int.from_bytes(body[at : at + 1 + more], "little")
    value = whole >> more + 1 if more < 8 else whole >> 8
    if signed:
        value = ~(value >> 1) if value & 1 else value >> 1
    return value, at + 1 + more


_STANDALONE, _GROUP, _DDL, _PREPARED, _COMPLETED = 0x01, 0x02, 0x20, 0x40, 0x80


def _mariadb_gtid(event: LogEvent) -> Gtid:
    body = event.body
    number, domain, flags = _MARIADB.unpack_from(body)
    at = 13
    xid = None
    if flags & (_PREPARED | _COMPLETED):
        at += 8 if flags & _GROUP else 0
        form, first, second = struct.unpack_from("<iBB", body, at)
        data = _piece(body, at + 6, first + second)
        xid = xid_text(form, data[:first], data[first:])
    return Gtid(
        f"{domain}-{event.server}-{number}", None, bool(flags & _STANDALONE), bool(flags & _DDL),
        xid if flags & _PREPARED else None, xid if flags & _COMPLETED else None,
    )  # fmt: skip


def xid_text(form: int, first: bytes, second: bytes) -> str:
    """An XA transaction's name, as the servers write it into `XA COMMIT` in the log: X'61',X'62',1."""
    return f"X'{first.hex()}',X'{second.hex()}',{form}"


def xa_prepare(body: memoryview) -> tuple[str, bool]:
    """Which XA transaction is prepared here, and whether it is committed with that (ONE PHASE)."""
    try:
        one_phase, form, first, second = struct.unpack_from("<BiII", body)
        data = _piece(body, 13, first + second)
    except (IndexError, struct.error):
        raise _damaged("an XA_PREPARE event") from None
    return xid_text(form, data[:first], data[first:]), bool(one_phase)


def query(event: LogEvent) -> Query:
    """The statement of a Query event, compressed or not."""
    body = event.body
    try:
        schema, error, variables = _STATEMENT.unpack_from(body, 8)
        at = 13 + variables
        name = _piece(body, at, schema)
        at += schema
        if body[at]:
            raise IndexError
        text = body[at + 1 :]
        plain = _inflated(text) if event.kind == QUERY_COMPRESSED else bytes(text)
    except (IndexError, struct.error, zlib.error):
        raise _damaged("a Query event") from None
    return Query(name.decode("utf-8", "replace"), plain, error)


def _inflated(data: memoryview) -> bytes:
    """What MariaDB's compression holds: a byte, the length with the highest byte first, a zlib stream."""
    first = data[0]
    width = first & 0x07
    if first & 0xF8 != 0x80 or not 1 <= width <= 4:
        raise IndexError
    size = int.from_bytes(_piece(data, 1, width), "big")
    stream = zlib.decompressobj()
    found = stream.decompress(data[1 + width :], size + 1)
    if len(found) != size or not stream.eof:
        raise IndexError
    return found


# ---------------------------------------------------------------- tables

# How many bytes of metadata a column's type has, and those of them that have their highest byte first.
_METADATA = {
    4: 1, 5: 1, 15: 2, 16: 2, 17: 1, 18: 1, 19: 1, 20: 3, 140: 1, 141: 2, 242: 1, 245: 1, 246: 2, 247: 2, 248: 2, 249: 1,
    250: 1, 251: 1, 252: 1, 253: 2, 254: 2, 255: 1,
}  # fmt: skip
_WITHOUT_METADATA = frozenset({0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14})
_HIGH_FIRST = frozenset({246, 247, 248, 253, 254})
# Those that SIGNEDNESS has a bit for.
_NUMERIC = frozenset({1, 2, 3, 4, 5, 8, 9, 0, 246, 13})
_SIGNEDNESS, _NAMES, _KEY, _KEY_WITH_PREFIX = 1, 4, 8, 9


def table_id(body: memoryview) -> int:
    """The number by which row events name the table, of a Table_map or a row event."""
    if len(body) < 8:
        raise _damaged("a row event")
    return int.from_bytes(body[:6], "little")


def table_map(body: memoryview) -> tuple[int, TableMap]:
    """The table's number and layout. The same layout is the same object."""
    return table_id(body), _layout(bytes(body[8:]))


@lru_cache(maxsize=1024)
def _layout(body: bytes) -> TableMap:
    try:
        at = 1 + body[0]
        schema = _piece(body, 1, body[0])
        table = _piece(body, at + 2, body[at + 1])
        at += 3 + len(table)
        count, at = packed(body, at)
        types = _piece(body, at, count)
        size, at = packed(body, at + count)
        unknown = next(
            (kind for kind in types if kind not in _METADATA and kind not in _WITHOUT_METADATA), None
        )
        metadata = _metadata(types, _piece(body, at, size)) if unknown is None else ()
        at += size
        nullable = _piece(body, at, (count + 7) // 8)
        at += len(nullable)
        names = key = unsigned = None
        while at < len(body):
            field = body[at]
            length, at = packed(body, at + 1)
            value = _piece(body, at, length)
            at += length
            if field == _SIGNEDNESS:
                unsigned = _signedness(types, value)
            elif field == _NAMES:
                names = tuple(_texts(value))
            elif field == _KEY:
                key = tuple(_numbers(value))
            elif field == _KEY_WITH_PREFIX:
                key = tuple(_numbers(value)[::2])
        if names is not None and len(names) != count:
            raise IndexError
        shape = TableMap(schema.decode(), table.decode(), types, metadata, nullable, names, key, unsigned)
        return replace(shape, unknown=unknown)
    except (IndexError, ValueError):
        raise _damaged("a Table_map event") from None


def _metadata(types: bytes, data: bytes) -> tuple[int, ...]:
    found, at = [], 0
    for kind in types:
        width = _METADATA.get(kind, 0)
        found.append(int.from_bytes(_piece(data, at, width), "big" if kind in _HIGH_FIRST else "little"))
        at += width
    if at != len(data):
        raise IndexError
    return tuple(found)


def _signedness(types: bytes, bits: bytes) -> tuple[bool, ...]:
    """Which columns are unsigned: one bit for each number, the first one highest."""
    found, at = [], 0
    for kind in types:
        if kind not in _NUMERIC:
            found.append(False)
            continue
        found.append(bool(bits[at >> 3] << (at & 7) & 0x80))
        at += 1
    return tuple(found)


def _texts(value: bytes) -> Iterator[str]:
    at = 0
    while at < len(value):
        length, at = packed(value, at)
        yield _piece(value, at, length).decode()
        at += length


def _numbers(value: bytes) -> Sequence[int]:
    found, at = [], 0
    while at < len(value):
        number, at = packed(value, at)
        found.append(number)
    return found


# The number of columns, which of them are in the images before and after (None: there is no such image), and the rows.
RowsPart = tuple[int, bytes | None, bytes | None, memoryview | bytes]


def rows_part(kind: int, body: memoryview) -> RowsPart:
    """A row event without its header, and decompressed."""
    try:
        at = 8 if kind in _VERSION_1 else 8 + (body[8] | body[9] << 8)
        if at == 9 or at > len(body) or (at == 8 and kind not in _VERSION_1):
            raise IndexError
        columns, at = packed(body, at)
        width = (columns + 7) // 8
        middle, end = at + width, at + (2 * width if kind in UPDATES else width)
        if end > len(body):
            raise IndexError
        first, rows = bytes(body[at:middle]), body[end:]
        changed = bytes(body[middle:end]) if kind in UPDATES else None
        before, after = (None, first) if kind in INSERTS else (first, changed)
        return columns, before, after, _inflated(rows) if kind in COMPRESSED_ROWS else rows
    except (IndexError, zlib.error):
        raise _damaged("a row event") from None


# ---------------------------------------------------------------- compressed transactions

_ZSTD, _PLAIN = 0, 255
# So many bytes of a compressed transaction are in memory, or one event if that is larger.
PIECE = 256 << 10


def payload(body: memoryview) -> Iterator[LogEvent]:
    """The events within a compressed transaction, decompressed as they are taken."""
    try:
        at, size, whole, algorithm = 0, None, None, _PLAIN
        while (field := packed(body, at))[0]:
            length, at = packed(body, field[1])
            value = _piece(body, at, length)
            at += length
            if field[0] == 1:
                size, _ = packed(value, 0)
            elif field[0] == 2:
                algorithm, _ = packed(value, 0)
            elif field[0] == 3:
                whole, _ = packed(value, 0)
        at = field[1]
        if size is None or at + size > len(body):
            raise IndexError
    except IndexError:
        raise _damaged("a compressed transaction") from None
    if algorithm not in (_ZSTD, _PLAIN):
        raise UnknownEvent(
            f"the binary log has a transaction with compression {algorithm}, which this version does not know",
            hint="upgrade floodmark, or set binlog_transaction_compression=OFF",
        )
    source = pa.BufferReader(pa.py_buffer(body[at : at + size]))
    stream: Any = pa.CompressedInputStream(source, "zstd") if algorithm == _ZSTD else source
    return _inner(stream, size if whole is None else whole)


def _inner(stream: Any, left: int) -> Iterator[LogEvent]:
    held, at = memoryview(b""), 0
    while True:
        head = held[at : at + HEADER.size]
        wanted = HEADER.size if len(head) < HEADER.size else HEADER.unpack(head)[3]
        if wanted < HEADER.size:
            raise _damaged("a compressed transaction")
        if len(held) - at < wanted:
            held, at = _refilled(stream, held[at:], wanted), 0
            if not held:
                break
            continue
        timestamp, kind, server, size, _, flags = HEADER.unpack(head)
        yield LogEvent(kind, timestamp, flags, 0, 0, held[at + HEADER.size : at + size], server)
        at += size
        left -= size
    if left:  # a stream that was cut off ends like any other
        raise _damaged("a compressed transaction")


def _refilled(stream: Any, rest: memoryview, wanted: int) -> memoryview:
    """The rest with more bytes behind it; empty at the end."""
    parts, size = [bytes(rest)], len(rest)
    while size < wanted:
        try:
            parts.append(stream.read(min(max(wanted - size, PIECE), 16 * PIECE)))
        except OSError:
            raise _damaged("a compressed transaction") from None
        if not parts[-1]:
            if size:
                raise _damaged("a compressed transaction")
            break
        size += len(parts[-1])
    return memoryview(b"".join(parts))
