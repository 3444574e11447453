"""PostgreSQL's wire protocol, version 3: frames, the few messages that the stand-in writes itself, errors.

Knows nothing about SQL. A `Channel` reads whole messages only; the end of the stream raises `Gone`, even in the
middle of a message.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress

PROTOCOL = 196_608
SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80_877_103, 80_877_104, 80_877_102
Fields = dict[str, str]


class Gone(Exception):
    """The other side has closed the connection."""


class SqlError(Exception):
    """An error as the server reports it: fields by their letter (C code, M message, D detail, H hint)."""

    infos: tuple[str, ...] = ()  # notices that come before it

    def __init__(self, code: str, message: str, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{code} {message}" + (f": {detail}" if detail else ""))
        given = {"S": "ERROR", "V": "ERROR", "C": code, "M": message, "D": detail, "H": hint}
        self.fields: Fields = {letter: value for letter, value in given.items() if value is not None}

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> SqlError:
        """The error that these fields describe."""
        error = cls(fields.get("C", "XX000"), fields.get("M", ""), fields.get("D"), fields.get("H"))
        error.fields = dict(fields)
        return error

    @property
    def code(self) -> str:
        return self.fields["C"]


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def split(body: bytes, count: int) -> tuple[list[str], bytes]:
    """The first `count` strings of a message's body, and the rest."""
    found: list[str] = []
    for _ in range(count):
        value, _, body = body.partition(b"\0")
        found.append(value.decode(errors="replace"))
    return found, body


def fields_of(body: bytes) -> Fields:
    """The fields of an ErrorResponse or a NoticeResponse."""
    parts = (part for part in body.split(b"\0") if part)
    return {chr(part[0]): part[1:].decode(errors="replace") for part in parts}


def fields_as(kind: bytes, fields: Mapping[str, str]) -> bytes:
    """An ErrorResponse (`E`) or a NoticeResponse (`N`)."""
    return message(kind, b"".join(letter.encode() + text(value) for letter, value in fields.items()) + b"\0")


def info(words: str) -> bytes:
    """A notice at the level that Redshift uses for loads."""
    return fields_as(b"N", {"S": "INFO", "V": "INFO", "C": "00000", "M": words})


def complete(tag: str) -> bytes:
    return message(b"C", text(tag))


def startup(parameters: Mapping[str, str]) -> bytes:
    pairs = b"".join(text(name) + text(value) for name, value in parameters.items()) + b"\0"
    return struct.pack("!ii", len(pairs) + 8, PROTOCOL) + pairs


def cells_of(body: bytes) -> list[bytes | None]:
    """The values of a DataRow."""
    (count,) = struct.unpack_from("!h", body)
    cells: list[bytes | None] = []
    at = 2
    for _ in range(count):
        (size,) = struct.unpack_from("!i", body, at)
        at += 4
        cells.append(None if size < 0 else body[at : at + size])
        at += max(size, 0)
    return cells


def row(cells: Iterable[bytes | None]) -> bytes:
    """A DataRow."""
    values = [
        struct.pack("!i", -1) if cell is None else struct.pack("!i", len(cell)) + cell for cell in cells
    ]
    return message(b"D", struct.pack("!h", len(values)) + b"".join(values))


class Channel:
    """One side of a conversation: messages in, bytes out."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        try:
            self.link.sendall(data)
        except OSError as error:
            raise Gone(str(error)) from None

    def exactly(self, count: int) -> bytes:
        """The next `count` bytes; waits for all of them."""
        while len(self._buffer) < count:
            try:
                chunk = self.link.recv(262_144)
            except OSError as error:
                raise Gone(str(error)) from None
            if not chunk:
                raise Gone("end of stream")
            self._buffer += chunk
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def receive(self) -> tuple[bytes, bytes]:
        """The next message: its kind and its body."""
        head = self.exactly(5)
        return head[:1], self.exactly(int(struct.unpack("!i", head[1:])[0]) - 4)

    def opening(self) -> tuple[int, bytes]:
        """The first message of a conversation, which has no kind: its code and the rest."""
        size, code = struct.unpack("!ii", self.exactly(8))
        return int(code), self.exactly(int(size) - 8)

    def waiting(self, seconds: float) -> bool:
        """Whether data or the end of the stream arrives within the given time."""
        if self._buffer or (isinstance(self.link, ssl.SSLSocket) and self.link.pending()):
            return True
        return either(self, None, seconds) is self

    def close(self) -> None:
        with suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)
        self.link.close()


def either(first: Channel, second: Channel | None, seconds: float | None) -> Channel | None:
    """The channel that has something to read, preferring the first; None when the time is up."""
    both = [first] if second is None else [first, second]
    for channel in both:
        if channel._buffer or (isinstance(channel.link, ssl.SSLSocket) and channel.link.pending()):
            return channel
    try:
        ready, _, _ = select.select([channel.link for channel in both], [], [], seconds)
    except (OSError, ValueError) as error:
        raise Gone(str(error)) from None
    return next((channel for channel in both if channel.link in ready), None)
