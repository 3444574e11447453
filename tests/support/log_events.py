"""Events of a binary log, made by hand: their bodies are as servers write them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from uuid import UUID

from floodmark.model.changes import KeyDescription, LogPlace
from floodmark.model.table import Column
from floodmark.source.binlog import events as log
from floodmark.source.binlog.events import LogEvent

SERVER = "11111111-2222-3333-4444-555555555555"
INT, ID = Column("id", "int", "int", nullable=False), 3


def described(name: str, *others: str) -> KeyDescription:
    """A table with the key `id INT` and other INT columns."""
    return KeyDescription(name, (("id", "int"), *((other, "int") for other in others)), (INT,))


def event(kind: int, body: bytes = b"", flags: int = 0, timestamp: int = 1_700_000_000) -> LogEvent:
    return LogEvent(
        kind, timestamp, flags, 0, len(body) + log.HEADER.size + log.CHECKSUM, memoryview(body), 1
    )


def gtid(number: int, commit: float = 1_700_000_000.5) -> LogEvent:
    moment = int(commit * 1e6).to_bytes(7, "little")
    body = b"\0" + UUID(SERVER).bytes + struct.pack("<q", number) + b"\2" + bytes(16) + moment
    return event(log.GTID, body)


def anonymous() -> LogEvent:
    return event(log.ANONYMOUS, b"\0" + bytes(24))


def mariadb_gtid(number: int, flags: int = 0, rest: bytes = b"") -> LogEvent:
    return event(log.MARIADB_GTID, struct.pack("<QIB", number, 0, flags) + rest + bytes(6))


def query(text: str, schema: str = "shop") -> LogEvent:
    name = schema.encode()
    return event(log.QUERY, struct.pack("<IIBHH", 1, 0, len(name), 0, 0) + name + b"\0" + text.encode())


def xid() -> LogEvent:
    return event(log.XID, bytes(8))


def table_map(number: int, name: str, *names: str, columns: int = 1, kind: int = ID) -> LogEvent:
    """A table of INT columns, or of others without metadata; with `names` as binlog_row_metadata=FULL has it."""
    schema, table = (part.encode() for part in name.split("."))
    columns = len(names) or columns
    body = number.to_bytes(6, "little") + b"\1\0"
    body += bytes([len(schema)]) + schema + b"\0" + bytes([len(table)]) + table + b"\0"
    body += bytes([columns]) + bytes([kind]) * columns + b"\0" + bytes((columns + 7) // 8)
    if names:
        listed = b"".join(bytes([len(each)]) + each.encode() for each in names)
        body += bytes([4, len(listed)]) + listed + bytes([8, 1, names.index("id") if "id" in names else 0])
    return event(log.TABLE_MAP, body)


def rows(kind: int, number: int, *values: tuple[int, ...]) -> LogEvent:
    """Row images of INT columns, version 2; an update has a pair of images for each row."""
    width = len(values[0])
    full = bytes([(1 << width) - 1])
    body = number.to_bytes(6, "little") + b"\1\0" + b"\2\0" + bytes([width]) + full
    body += full if kind == 31 else b""
    for one in values:
        body += b"\0" + b"".join(struct.pack("<i", value) for value in one)
    return event(kind, body)


def insert(number: int, *values: int) -> LogEvent:
    return rows(30, number, *((value,) for value in values))


def update(number: int, *pairs: tuple[int, int]) -> LogEvent:
    return rows(31, number, *((value,) for pair in pairs for value in pair))


def delete(number: int, *values: int) -> LogEvent:
    return rows(32, number, *((value,) for value in values))


def xa_prepare(name: bytes, one_phase: bool = False) -> LogEvent:
    return event(log.XA_PREPARE, struct.pack("<BiII", one_phase, 1, len(name), 0) + name)


def payload(inner: Iterable[LogEvent]) -> LogEvent:
    """A transaction as one event, not compressed."""
    body = b"".join(
        log.HEADER.pack(e.timestamp, e.kind, 1, len(e.body) + log.HEADER.size, 0, 0) + bytes(e.body)
        for e in inner
    )
    size = b"\xfc" + len(body).to_bytes(2, "little")
    return event(log.PAYLOAD, b"\2\3\xfc\xff\0" + b"\1\3" + size + b"\0" + body)


def rotate(file: str, artificial: bool = False) -> LogEvent:
    made = event(log.ROTATE, (4).to_bytes(8, "little") + file.encode())
    return made._replace(size=0, flags=log.ARTIFICIAL) if artificial else made


def placed(*events: LogEvent | Iterable[LogEvent], start: int = 4) -> Iterator[LogEvent]:
    """The events one behind the other, each at its place in the file; an artificial Rotate begins a file."""
    at = start
    for each in events:
        for one in [each] if isinstance(each, LogEvent) else each:
            if one.kind == log.ROTATE and not one.size:
                at = 4
            yield one._replace(place=at)
            at += one.size


def transaction(number: int, *events: LogEvent) -> list[LogEvent]:
    return [gtid(number), query("BEGIN"), *events, xid()]


def place_after(*events: LogEvent | Iterable[LogEvent], file: str = "binlog.000001") -> LogPlace:
    """Where a file ends that has these events."""
    *_, last = placed(*events)
    return LogPlace(file, last.place + last.size)
