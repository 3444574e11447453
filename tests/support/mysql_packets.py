"""What a MySQL server sends, built by hand: packets, cells, whole answers."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from floodmark.source.rows.packets import FULL

Row = tuple[bytes | None, ...]
EOF = struct.pack("<BHH", 0xFE, 0, 2)
DEFINITION = b"\3def\0\0\0\1c\0\x0c\x3f\0\0\0\0\0\xfc\0\0\0\0\0"
ROWS: list[Row] = [
    (b"1", b"x", None),
    (None, None, None),
    (b"", b"", b""),
    (b"y" * 250, b"z" * 251, b"\xfe\xff\0"),
    (b"2", b"w" * 65_535, b"v" * 65_536),
    (b"3", b"\0", b"\xff" * 70_000),
]


def cell(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 0xFB:
        return bytes([size]) + value
    if size < 1 << 16:
        return b"\xfc" + struct.pack("<H", size) + value
    if size < 1 << 24:
        return b"\xfd" + struct.pack("<I", size)[:3] + value
    return b"\xfe" + struct.pack("<Q", size) + value


def packets(payloads: Sequence[bytes], first: int = 1) -> bytes:
    """The payloads on the wire: each preceded by its length and number, long ones split."""
    sent, number = bytearray(), first
    for payload in payloads:
        while True:
            piece, payload = payload[:FULL], payload[FULL:]
            sent += struct.pack("<I", len(piece))[:3] + bytes([number & 0xFF]) + piece
            number += 1
            if len(piece) < FULL:
                break
    return bytes(sent)


def answer(
    rows: Sequence[Row], columns: int, *, end: bytes = EOF, classic: bool = True, count: bytes | None = None
) -> bytes:
    """A whole answer; without `classic` there is no EOF packet after the column descriptions."""
    head = [bytes([columns]) if count is None else count, *[DEFINITION] * columns]
    body = [b"".join(map(cell, row)) for row in rows]
    return packets([*head, *([EOF] if classic else []), *body, end])


def row(*cells: bytes | None) -> bytes:
    bits = sum(1 << (i + 2) for i, c in enumerate(cells) if c is None)
    return b"\0" + bits.to_bytes((len(cells) + 9) // 8, "little") + b"".join(c or b"" for c in cells)


def moment(value: str | None, micros: bool = True) -> bytes:
    """A timestamp as servers send it: trailing zero parts are omitted."""
    if value is None:
        return b""
    date, _, time = value.partition(" ")
    y, m, d = map(int, date.split("-"))
    clock, _, fraction = time.partition(".")
    h, i, s = map(int, clock.split(":")) if clock else (0, 0, 0)
    sent = struct.pack("<HBBBBBI", y, m, d, h, i, s, int(fraction.ljust(6, "0")) if fraction else 0)
    used = 11 if sent[7:].strip(b"\0") else 7 if sent[4:7].strip(b"\0") else 4 if sent.strip(b"\0") else 0
    return bytes([used]) + sent[:used]
