"""STUB until the branch dump is merged."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from floodmark.model.changes import LogPlace
from floodmark.source.rows.packets import StatementRefused
from floodmark.source.session import Session


class Event(NamedTuple):
    kind: int
    timestamp: int


def dump(session: Session, start: LogPlace, seconds: int = 60) -> Iterator[Event]:
    session.rows(
        "SET @master_binlog_checksum=@@global.binlog_checksum, @source_binlog_checksum=@@global.binlog_checksum, @mariadb_slave_capability=4"
    )
    link = session._link
    body = struct.pack("<BIHI", 0x12, start.position, 1, 0) + start.file.encode()
    link.sendall(len(body).to_bytes(3, "little") + b"\0" + body)

    def exact(n):
        got = b""
        while len(got) < n:
            part = link.recv(n - len(got))
            assert part
            got += part
        return got

    while True:
        head = exact(4)
        data = exact(int.from_bytes(head[:3], "little"))
        if data[0] == 0xFF:
            raise StatementRefused(int.from_bytes(data[1:3], "little"), data[9:].decode())
        if data[0] == 0xFE:
            return
        ts, kind = struct.unpack_from("<IB", data, 1)
        yield Event(kind, ts)
