"""A server's binary log for tests: which server has one, its events, and the keys that it says have changed."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from floodmark.config.load import SourceSpec
from floodmark.model.changes import KeyDescription, TableMap
from floodmark.model.table import Table
from floodmark.source.binlog import events
from floodmark.source.binlog.events import LogEvent
from floodmark.source.binlog.keys import KeyRows
from floodmark.source.binlog.stream import EventStream
from floodmark.source.rows import packets as wire
from floodmark.source.session import Session, as_text

LOGGED = {
    "mysql": ("--log-bin=bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON"),
    "mariadb": ("--log-bin=bin", "--binlog-format=ROW"),
}
_SET = (
    "SET @source_binlog_checksum = @@global.binlog_checksum, @master_binlog_checksum = @@global.binlog_checksum,"
    " @mariadb_slave_capability = 4"
)


def spec_of(server: Any, database: str | None = None) -> SourceSpec:
    return SourceSpec(server.host, server.port, server.user, server.password, database)


def end_of(server: Any) -> tuple[str, int]:
    """Where the log ends."""
    with Session(spec_of(server)) as session:
        mysql = b"maria" not in (session.rows("SELECT VERSION()")[0][0] or b"").lower()
        row = session.rows("SHOW BINARY LOG STATUS" if mysql else "SHOW MASTER STATUS")[0]
    return as_text(row[0]), int(row[1] or 0)


def dumped(session: Session, file: str, position: int, flags: int = 0) -> EventStream:
    """The events from a place on, to the end of the log."""
    session.rows(_SET)
    wire.send(session._link, b"\x12" + struct.pack("<IHI", position, flags, 0) + file.encode())
    return EventStream(session._link, file, position, 60)


def flat(stream: Iterator[LogEvent]) -> Iterator[LogEvent]:
    """The events with those of compressed transactions."""
    for event in stream:
        yield event
        if event.kind == events.PAYLOAD:
            yield from events.payload(event.body)


def description(table: Table) -> KeyDescription:
    columns = table.source.layout or tuple((c.name, c.type) for c in table.columns)
    return KeyDescription(table.name, columns, tuple(table.column(k) for k in table.key))


def keys_in(
    server: Any, place: tuple[str, int], described: Mapping[str, KeyDescription]
) -> dict[str, list[tuple[int, pa.RecordBatch]]]:
    """By table: the type of each row event since that place, and the keys in it."""
    found: dict[str, list[tuple[int, pa.RecordBatch]]] = defaultdict(list)
    shapes: dict[int, TableMap] = {}
    with Session(spec_of(server)) as session:
        for event in flat(iter(dumped(session, *place))):
            if event.kind == events.TABLE_MAP:
                number, shape = events.table_map(event.body)
                shapes[number] = shape
            elif event.kind in events.ROWS:
                shape = shapes[events.table_id(event.body)]
                if shape.name in described:
                    rows = KeyRows(described[shape.name], shape)
                    rows.add(event.kind, event.body)
                    found[shape.name].append((event.kind, rows.taken()))
    return found
