"""The bytes of a binary log for tests: those recorded from both servers, and events made by hand."""

from __future__ import annotations

import socket
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from floodmark.source.binlog.stream import EventStream

RECORDED = Path(__file__).parent.parent / "unit/source/binlog"
_HEADER = struct.Struct("<IBIIIH")
FULL = 0xFFFFFF


def recorded(kind: str) -> list[bytes]:
    """A dump as the server sent it: one packet after the other, without their lengths and numbers."""
    return [bytes.fromhex(line) for line in (RECORDED / f"{kind}.hex").read_text().split()]


def packets(contents: Iterable[bytes]) -> bytes:
    """The packets with their lengths and numbers; those of 16 MB and more in several."""
    made, number = [], 1
    for content in contents:
        for at in range(0, len(content) + 1, FULL):
            piece = content[at : at + FULL]
            made.append(struct.pack("<I", len(piece) | (number & 0xFF) << 24) + piece)
            number += 1
    return b"".join(made)


def event(
    kind: int, body: bytes, begin: int, *, flags: int = 0, server: int = 1, end: int | None = None
) -> bytes:
    """An event that begins at a place of its file, with its checksum, as the content of a packet."""
    size = _HEADER.size + len(body) + 4
    log_end = begin + size if end is None else end
    head = _HEADER.pack(1_700_000_000, kind, server, size, log_end & 0xFFFFFFFF, flags)
    return b"\0" + head + body + struct.pack("<I", zlib.crc32(head + body))


def following(events: Sequence[tuple[int, bytes]], begin: int = 4, file: str = "bin.000001") -> list[bytes]:
    """Events that follow one another in MySQL's log, after what a dump begins with and before its end."""
    format_ = recorded("mysql")[1][1:]
    made = [event(4, struct.pack("<Q", begin) + file.encode(), 0, flags=0x20, end=0)]
    body = format_[_HEADER.size : -4]
    at = begin
    made.append(event(15, body, begin, end=None if begin == 4 else 0))
    at += len(made[-1]) - 1 if begin == 4 else 0
    for kind, content in events:
        made.append(event(kind, content, at))
        at += len(made[-1]) - 1
    return [*made, b"\xfe\0\0\0\0"]


@contextmanager
def streamed(data: bytes, position: int = 4, buffer: int = 1 << 16) -> Iterator[EventStream]:
    """A stream of what a server sends before it hangs up."""
    ours, theirs = socket.socketpair()

    def sent() -> None:
        with suppress(OSError):  # the reader may have seen enough
            theirs.sendall(data)
        theirs.close()

    thread = threading.Thread(target=sent)
    thread.start()
    if len(data) < 1 << 15:  # it fits what the system holds
        thread.join()
    try:
        yield EventStream(ours, "bin.000001", position, 20, buffer)
    finally:
        ours.close()
        thread.join()
