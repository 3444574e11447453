"""Results as Redshift sends them: VARBYTE as hex, SUPER without whitespace, names at full length."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support.redshift import wire

BYTEA, JSONB, VARCHAR, SUPER = 17, 3802, 1043, 4000
_BLANKS = re.compile(rb'("(?:[^"\\]|\\.)*")|[ \n]+')


@dataclass(frozen=True)
class Shape:
    """The columns of a result to rewrite, and how."""

    bytes: frozenset[int] = frozenset()
    supers: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.bytes or self.supers)


def description(body: bytes, names: Mapping[str, str]) -> tuple[bytes, Shape]:
    """A RowDescription's body with Redshift's types and names."""
    count = int.from_bytes(body[:2], "big")
    rest, parts = body[2:], [body[:2]]
    hexed, supers = set(), set()
    for number in range(count):
        (name,), rest = wire.split(rest, 1)
        head, (kind, size), tail = rest[:6], struct.unpack("!ih", rest[6:12]), rest[12:18]
        if kind == BYTEA:
            kind, size = VARCHAR, -1
            hexed.add(number)
        elif kind == JSONB:
            kind, size = SUPER, -1
            supers.add(number)
        parts += [wire.text(names.get(name, name)), head, struct.pack("!ih", kind, size), tail]
        rest = rest[18:]
    return b"".join(parts), Shape(frozenset(hexed), frozenset(supers))


def data_row(body: bytes, shape: Shape, formats: Sequence[int]) -> bytes:
    """A DataRow with the shape's cells rewritten; `formats` as in Bind (none: all text, one: for all)."""
    cells = wire.cells_of(body)
    for number in shape.bytes | shape.supers:
        cell = cells[number]
        if cell is None:
            continue
        binary = bool(formats) and formats[0 if len(formats) == 1 else number] == 1
        if number in shape.bytes:
            cells[number] = cell.hex().encode() if binary else cell[2:]
        else:
            cells[number] = _BLANKS.sub(lambda match: match[1] or b"", cell[1:] if binary else cell)
    return wire.row(cells)


def bind(body: bytes, types: Sequence[int]) -> tuple[str, str, bytes, list[int]]:
    """A Bind: portal, statement, the body with hex for VARBYTE as PostgreSQL wants it, the results' formats."""
    (portal, statement), rest = wire.split(body, 2)
    head = body[: len(body) - len(rest)]
    (count,) = struct.unpack_from("!H", rest)
    formats = struct.unpack_from(f"!{count}h", rest, 2)
    at = 2 + 2 * count
    head += rest[: at + 2]
    (values,) = struct.unpack_from("!H", rest, at)
    at += 2
    parts = [head]
    for number in range(values):
        (size,) = struct.unpack_from("!i", rest, at)
        value = rest[at + 4 : at + 4 + max(size, 0)]
        at += 4 + max(size, 0)
        binary = bool(formats) and formats[0 if len(formats) == 1 else number] == 1
        if size >= 0 and not binary and number < len(types) and types[number] == BYTEA:
            value = b"\\x" + value.removeprefix(b"\\x")
            size = len(value)
        parts += [struct.pack("!i", size), value]
    parts.append(rest[at:])
    (wanted,) = struct.unpack_from("!H", rest, at)
    return portal, statement, b"".join(parts), list(struct.unpack_from(f"!{wanted}h", rest, at + 2))
