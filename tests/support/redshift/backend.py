"""The PostgreSQL side: one connection to the private server, as a session's backend or for tests to look inside.

Every call leaves the connection ready for the next one, whatever the server answered, and `status` is the
transaction state that the server reported: I idle, T in a transaction, E in a failed one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

from tests.support.redshift import wire
from tests.support.redshift.wire import Channel, Gone, SqlError, fields_of, message

OWNER = "rdsdb"  # Redshift's name for its internal user; no client may log in as it
SOCKET_PORT = 5432
Cells = list[bytes | None]


class Backend(Channel):
    """A connection to the private PostgreSQL."""

    def __init__(self, folder: Path, parameters: Mapping[str, str]) -> None:
        link = socket.socket(socket.AF_UNIX)
        link.connect(str(folder / f".s.PGSQL.{SOCKET_PORT}"))
        super().__init__(link)
        self.status = b"I"
        self.key = b""
        self.notice: Callable[[bytes], None] = lambda notice: None
        self.send(wire.startup(parameters))

    @classmethod
    def own(cls, folder: Path, database: str) -> Self:
        """A connection as the server's owner."""
        backend = cls(folder, {"user": OWNER, "database": database})
        kind, error = b"", None
        while kind != b"Z":
            kind, body = backend.receive()
            if kind == b"E":
                error = SqlError.of(fields_of(body))
                break
        if error is not None:
            backend.close()
            raise error
        return backend

    @property
    def pid(self) -> int:
        return int.from_bytes(self.key[:4], "big")

    def until(self, ends: bytes, take: Callable[[bytes, bytes], None]) -> bytes:
        """Pass messages to `take` up to and including one whose kind is among `ends`; notices go to `notice`."""
        while True:
            kind, body = self.receive()
            if kind == b"Z":
                self.status = body
            if kind in (b"N", b"A", b"S"):
                self.notice(message(kind, body))
                continue
            take(kind, body)
            if kind in ends:
                return kind

    def query(self, sql: str) -> list[Cells]:
        """Run statements with the simple protocol; returns the rows of the last one, as text."""
        rows, _, _ = self.run(sql)
        return rows

    def run(self, sql: str) -> tuple[list[Cells], list[int], str]:
        """The same, with the column types and the command tag."""
        rows: list[Cells] = []
        types: list[int] = []
        tags: list[str] = []
        errors: list[SqlError] = []

        def take(kind: bytes, body: bytes) -> None:
            if kind == b"T":
                rows.clear()
                types[:] = [kind for _, kind in columns(body)]
            elif kind == b"D":
                rows.append(wire.cells_of(body))
            elif kind == b"C":
                tags.append(body[:-1].decode())
            elif kind == b"E":
                errors.append(SqlError.of(fields_of(body)))
            elif kind == b"G":  # a COPY FROM STDIN that slipped through
                self.send(message(b"f", wire.text("no data")))

        self.send(message(b"Q", wire.text(sql)))
        self.until(b"Z", take)
        if errors:
            raise errors[0]
        return rows, types, tags[-1] if tags else ""

    def aside(self, sql: str) -> None:
        """Run a statement without disturbing the unnamed statement and portal, as the simple protocol would."""
        errors: list[SqlError] = []

        def take(kind: bytes, body: bytes) -> None:
            if kind == b"E":
                errors.append(SqlError.of(fields_of(body)))

        name = wire.text("floodmark_aside")
        self.send(
            message(b"P", name + wire.text(sql) + b"\0\0")
            + message(b"B", name + name + bytes(6))
            + message(b"E", name + bytes(4))
            + message(b"C", b"P" + name)
            + message(b"C", b"S" + name)
            + message(b"S")
        )
        self.until(b"Z", take)
        if errors:
            raise errors[0]

    def copy(self, sql: str, chunks: Iterable[bytes]) -> int:
        """COPY … FROM STDIN; returns the row count. An exception from `chunks` ends the COPY and propagates."""
        errors: list[SqlError] = []
        counts: list[int] = []

        def take(kind: bytes, body: bytes) -> None:
            if kind == b"E":
                errors.append(SqlError.of(fields_of(body)))
            elif kind == b"C":
                counts.append(int(body[:-1].split()[-1]))

        self.send(message(b"Q", wire.text(sql)))
        if self.until(b"GZ", take) == b"Z":
            raise errors[0]
        try:
            for chunk in chunks:
                self.send(message(b"d", chunk))
                if self.waiting(0):  # it has given up, or was terminated
                    break
            self.send(message(b"c"))
        except Gone:
            raise
        except Exception:
            self.send(message(b"f", wire.text("given up")))
            self.until(b"Z", take)
            raise
        self.until(b"Z", take)
        if errors:
            raise errors[0]
        return counts[0]


def columns(description: bytes) -> list[tuple[str, int]]:
    """Names and type ids of a RowDescription."""
    count = int.from_bytes(description[:2], "big")
    rest = description[2:]
    found = []
    for _ in range(count):
        (name,), rest = wire.split(rest, 1)
        found.append((name, int.from_bytes(rest[6:10], "big")))
        rest = rest[18:]
    return found


def python(cell: bytes | None, kind: int) -> Any:
    """A text value as a Python object; types without a counterpart stay text."""
    if cell is None:
        return None
    value = cell.decode()
    if kind in _READERS:
        try:
            return _READERS[kind](value)
        except ValueError:  # infinity, a year beyond 9999
            return value
    return value


_READERS: dict[int, Callable[[str], Any]] = {
    16: lambda value: value == "t",
    17: lambda value: bytes.fromhex(value[2:]),
    20: int, 21: int, 23: int, 26: int,
    700: float, 701: float, 1700: Decimal,
    1082: date.fromisoformat, 1114: datetime.fromisoformat, 1184: datetime.fromisoformat,
    3802: json.loads,
}  # fmt: skip
