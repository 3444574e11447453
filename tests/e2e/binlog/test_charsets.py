"""Every character of every character set: converted as the server converts it, or left to the server."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from floodmark.model.changes import DoesNotFit
from floodmark.source.binlog.charsets import converter
from tests.conftest import PATIENT

pytestmark = pytest.mark.both_servers

# Of Unicode's characters beyond two bytes, every so manieth.
STEP = 97


def sequences(charset: str) -> list[bytes]:
    """All sequences of one and two bytes, those of EUC's three, and such as its codec makes of other characters."""
    made = [bytes([a]) for a in range(256)] + [bytes([a, b]) for a in range(256) for b in range(256)]
    made += [bytes([0x8F, a, b]) for a in range(0xA1, 0xFF, 3) for b in range(0xA1, 0xFF)]
    codec = {"gb18030": "gb18030", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}.get(
        charset
    )
    if codec:
        points = [*range(0x80, 0xD800, 7), *range(0xE000, 0x10000, 7), *range(0x10000, 0x110000, STEP)]
        made += [chr(point).encode(codec) for point in points]
    return list(dict.fromkeys(made))


def by_server(database: Any, charset: str, values: list[bytes]) -> list[bytes | None]:
    """What the server makes of them; None for those that can't be stored."""
    found = f"CONVERT(v USING {charset})"
    rows = database.execute(
        f"SELECT HEX({found}) = HEX(v), CAST(CONVERT({found} USING utf8mb4) AS BINARY) FROM s ORDER BY n"
    )
    return [text if valid else None for valid, text in rows]


def test_text_is_what_the_server_converts_or_left_to_it(database: Any) -> None:
    charsets = [row[0] for row in database.execute("SHOW CHARACTER SET")]
    values = list(
        dict.fromkeys(
            value for charset in ("", "gb18030", "utf16", "utf16le", "utf32") for value in sequences(charset)
        )
    )
    if not PATIENT:
        values = [value for value in values if len(value) == 1 or random.Random(value).random() < 1 / 16]
    database.execute("CREATE TABLE s (n INT PRIMARY KEY, v VARBINARY(4))")
    for at in range(0, len(values), 20_000):
        rows = ", ".join(f"({at + n}, x'{v.hex()}')" for n, v in enumerate(values[at : at + 20_000]))
        database.execute(f"INSERT INTO s VALUES {rows}")
    ends = np.cumsum([len(value) for value in values])
    left = {}
    for charset in charsets:
        if charset in ("binary", "utf8mb4"):
            continue
        try:
            convert = converter(charset, strip=False)
        except DoesNotFit:
            left[charset] = -1
            continue
        texts, bad = convert(ends, bytearray(b"".join(values)))
        expected = by_server(database, charset, values)
        wrong = [
            (charset, value, text, told)
            for value, text, unsure, told in zip(
                values, texts.to_pylist(), bad.tolist(), expected, strict=True
            )
            if told is not None and not unsure and text.encode() != told
        ]
        assert not wrong[:5]
        left[charset] = sum(
            unsure for unsure, told in zip(bad.tolist(), expected, strict=True) if told is not None
        )
    # Those of which nothing is in doubt, and those that nobody converts but the server.
    assert {c for c in left if left[c] == 0} >= {
        "latin1",
        "latin2",
        "latin5",
        "cp850",
        "koi8r",
        "utf16",
        "utf32",
    }
    assert {c for c in left if left[c] < 0} == {"armscii8", "dec8", "geostd8", "keybcs2", "swe7"}
