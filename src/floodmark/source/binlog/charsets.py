"""Text of the server's character sets as UTF-8, exactly as the server converts it, or not at all. Pure.

Python's codecs were compared with MySQL 9.7 and MariaDB 10.11 byte for byte (`tests/e2e/binlog/test_charsets.py`). A
character for which they differ is in doubt, and so is one that Python does not know: only the server can convert it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from floodmark.model.changes import DoesNotFit

Numbers = np.ndarray[Any, np.dtype[Any]]
pc: Any = pyarrow.compute
_buffer: Any = pa.py_buffer  # the stubs don't accept numpy arrays as buffers

_UTF8 = frozenset({"utf8", "utf8mb3", "utf8mb4"})
_CODECS = {
    "ascii": "ascii", "latin1": "cp1252", "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13",
    "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257", "cp850": "cp850", "cp852": "cp852",
    "cp866": "cp866", "koi8r": "koi8-r", "koi8u": "koi8-u", "greek": "iso8859-7", "hebrew": "iso8859-8",
    "macce": "mac-latin2", "macroman": "mac-roman", "hp8": "hp-roman8", "tis620": "tis-620", "gbk": "gbk",
    "gb2312": "gb2312", "gb18030": "gb18030", "big5": "big5", "sjis": "shift_jis", "cp932": "cp932", "ujis": "euc_jp",
    "eucjpms": "euc_jp", "euckr": "cp949", "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}  # fmt: skip
# Characters that Python and the servers convert differently, as either of them has them.
_DOUBTFUL = {
    "big5": "\u2574\uffe3\u02cd\uff0f\uff3c", "cp1256": "\u0679\u0688\u06a9\u0691\u06ba\u06be\u06c1\u06d2",
    "cp866": "\u2116\u207f\u00a4\u00b2", "gb18030": "\u1e3f\ue7c7", "greek": "\u2018\u2019\u02bd\u02bc\u20ac\u20af\u037a",
    "hebrew": "\u203e\u00af", "koi8u": "\u2022\u2219",
    "eucjpms": "\u301c\u2016\u2212\u00a2\u00a3\u00ac~\u00a6\uff5e\u2225\uff0d\uffe0\uffe1\uffe2\uffe4",
}  # fmt: skip
# MySQL's latin1 is cp1252, with control characters where that has none.
_CONTROLS = {0xDC00 + byte: byte for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}
# What the servers have in place of Python's characters: a backslash goes into the log as the wide one.
_OTHERS: dict[str, dict[int, int]] = {"sjis": {0xFF3C: 0x5C}, "ujis": {0xFF3C: 0x5C}, "latin1": _CONTROLS}
# Python decodes two codes to one character, and the servers only one of them.
_TWICE = frozenset({"big5"})
# In these, bytes below 0x80 are not ASCII, or not always.
_WIDE = frozenset({"ucs2", "utf16", "utf16le", "utf32"})
# Offsets and bytes of texts → the texts, and which of them only the server can convert.
Converter = Callable[[Numbers, bytearray], tuple[Any, Numbers]]


def converter(charset: str, *, strip: bool) -> Converter:
    """How texts are converted; `strip`: without the spaces at their end. DoesNotFit if only the server can."""
    codec = "utf-8" if charset in _UTF8 else _CODECS.get(charset)
    if codec is None:
        raise DoesNotFit(f"text of character set {charset or 'unknown'} can only be converted by the server")
    doubtful = frozenset(_DOUBTFUL.get(charset, ""))
    others = _OTHERS.get(charset)
    errors = "surrogateescape" if charset == "latin1" else "strict"

    def one(value: bytes) -> str | None:
        try:
            text = value.decode(codec, errors)
        except UnicodeDecodeError:
            return None
        if others:
            text = text.translate(others)
        if doubtful and not doubtful.isdisjoint(text):
            return None
        if charset in _TWICE and text.encode(codec) != value:
            return None
        # UCS-2 has no pairs: to the server, each half of one is a character of its own.
        return None if charset == "ucs2" and 2 * len(text) != len(value) else text

    def convert(ends: Numbers, values: bytearray) -> tuple[Any, Numbers]:
        offsets = np.concatenate((np.zeros(1, np.int64), ends))
        found: Any = pa.Array.from_buffers(
            pa.large_binary(), len(ends), [None, _buffer(offsets), _buffer(values)]
        )
        bad = np.zeros(len(ends), np.bool_)
        texts = None
        if codec == "utf-8" or (charset not in _WIDE and values.isascii()):
            with suppress(pa.ArrowInvalid):
                texts = found.cast(pa.large_string())
        if texts is None:
            converted = [one(value) for value in found.to_pylist()]
            bad = np.array([text is None for text in converted], np.bool_)
            texts = pa.array(["" if text is None else text for text in converted], pa.large_string())
        return (pc.utf8_rtrim(texts, " ") if strip else texts), bad

    return convert
