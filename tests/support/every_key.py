"""Keys of every kind and in every collation, for tests that cut, merge and weigh them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from floodmark.config.load import SourceSpec
from floodmark.source.session import Session

Row = tuple[str, ...]
LETTERS = "abcdefghijklmnopqrstuvwxyzäöüß 0123456789😀"


def word(r: random.Random, letters: str = LETTERS) -> str:
    text = "".join(r.choice(letters) for _ in range(r.randint(1, 8)))
    return f"_utf8mb4 x'{text.encode().hex()}'"


MEMBERS = ", ".join(f"'m{63 - i}'" for i in range(64))
# By name: the columns, how both sides print the key, and a generator of random keys.
SHARED: dict[str, tuple[str, str, Callable[[random.Random], Row]]] = {
    "k_composite": (
        "a TINYINT, e ENUM('zebra','apple','mango',''), d DATE, b BINARY(3)", "a, e, d, hex(b)",
        lambda r: (str(r.randint(-2, 2)), r.choice(["'zebra'", "'apple'", "'mango'", "''"]),
                   f"'2025-01-{r.randint(1, 31):02}'", f"x'{r.randbytes(3).hex()}'")),
    "k_names": ("tenant VARCHAR(9), name CHAR(9) COLLATE utf8mb4_bin", "hex(tenant), hex(name)",
              lambda r: (word(r, "aAäbB"), word(r, "xXyY"))),
    "k_members": (f"s SET({MEMBERS})", "s", lambda r: (str(r.getrandbits(64)),)),
    "k_bits": ("b BIT(64)", "b", lambda r: (str(r.getrandbits(64)),)),
    "k_mixed": (f"s SET({MEMBERS}), c VARCHAR(20)", "s, hex(c)", lambda r: (str(r.getrandbits(64)), word(r))),
    "k_flags": ("c VARCHAR(9), b BIT(64), n BIGINT UNSIGNED", "hex(c), b, n",
              lambda r: (word(r), str(r.getrandbits(64)), str(r.getrandbits(64)))),
    "k_years": ("c VARCHAR(9), y YEAR", "hex(c), y", lambda r: (word(r), str(r.choice([0, 1901, 2025])))),
    "k_general": ("c VARCHAR(20) COLLATE utf8mb4_general_ci", "hex(c)", lambda r: (word(r),)),
    "k_gbk": ("c VARCHAR(20) CHARSET gbk", "hex(c)", lambda r: (word(r, "ab深圳市乙"),)),
    "k_binary16": ("b BINARY(16)", "hex(b)", lambda r: (f"x'{r.randbytes(r.randint(14, 16)).hex()}'",)),
    "k_varbinary": ("b VARBINARY(8)", "hex(b)", lambda r: (f"x'{bytes(r.choice([0, 32, 97, 255]) for _ in range(r.randint(0, 8))).hex()}'",)),
    "k_decimal": ("n DECIMAL(38,10)", "n", lambda r: (f"{r.randint(-10**27, 10**27)}.{r.randrange(10**10):010}",)),
    "k_wide": ("n DECIMAL(65,0)", "n", lambda r: (str(r.choice([-1, 1]) * r.getrandbits(215)),)),
    "k_unsigned": ("n BIGINT UNSIGNED", "n", lambda r: (str(2**63 - 50 + r.getrandbits(r.randint(1, 62))),)),
    "k_time": ("t TIME(3)", "t", lambda r: (f"'{r.choice(['', '-'])}{r.randrange(838):02}:{r.randrange(60):02}:00.{r.randrange(1000):03}'",)),
    "k_moment": ("t DATETIME(6)", "t", lambda r: (f"'2024-01-01' + INTERVAL {r.getrandbits(50)} MICROSECOND",)),
}  # fmt: skip
KEYS = {  # by the kind of server
    "mysql": {
        **SHARED,
        "k_0900_ai_ci": ("c VARCHAR(20) COLLATE utf8mb4_0900_ai_ci", "hex(c)", lambda r: (word(r, "aAäbB "),)),
        "k_0900_as_cs": ("c VARCHAR(20) COLLATE utf8mb4_0900_as_cs", "hex(c)", lambda r: (word(r, "aAäbB "),)),
        "k_0900_bin": ("c VARCHAR(20) COLLATE utf8mb4_0900_bin", "hex(c)", lambda r: (word(r, "aAäbB "),)),
        "k_japanese": ("c VARCHAR(20) COLLATE utf8mb4_ja_0900_as_cs", "hex(c)", lambda r: (word(r, "あアｱばハ々株 "),)),
        "k_chinese": ("c VARCHAR(20) COLLATE utf8mb4_zh_0900_as_cs", "hex(c)", lambda r: (word(r, "ab深圳市乙 "),)),
        "k_gb18030": ("c VARCHAR(20) CHARSET gb18030", "hex(c)", lambda r: (word(r, "ab深圳市乙ıIſS😀"),)),
    },
    "mariadb": {
        **SHARED,
        "k_uuid": ("u UUID", "u", lambda r: (f"'{UUID(int=r.getrandbits(128), version=r.choice([1, 4]))}'",)),
    },
}  # fmt: skip

# Case, accents, padding of several kinds, ignorable characters, expansions, contractions, two weights per character.
PIECES = [
    *"aAäÄsSßeéÉzZ0", "e\u0301", "ch", "Ch", "dž", "ﬀ", " ", "\u00a0", "\u3000", "\t", "\x00", "\u200b", "\u00ad", "中",
    "国", "😀", "😁", "ﷺ", "ｱ", "ア", "あ", "ァ", "は", "バ", "ー", "ıI", "ſs", "갂", "갵",
]  # fmt: skip
ENDS = ["", "", " ", "  ", "\u00a0", "\t", "\x00", "\u200b"]

COLLATIONS = [
    "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_unicode_520_ci", "utf8mb4_bin", "utf8mb4_czech_ci",
    "utf8mb4_german2_ci", "utf8mb3_general_ci", "latin1_swedish_ci", "latin1_german2_ci", "latin1_bin",
    "ascii_general_ci", "gbk_chinese_ci", "sjis_japanese_ci", "cp932_japanese_ci", "eucjpms_japanese_ci",
    "utf16_unicode_ci", "ucs2_general_ci", "utf32_bin", "latin2_czech_cs", "hebrew_general_ci",
]  # fmt: skip
MARIADB_COLLATIONS = [
    "utf8mb4_general_nopad_ci", "utf8mb4_unicode_nopad_ci", "utf8mb4_thai_520_w2", "utf8mb4_uca1400_ai_ci",
    "utf8mb4_uca1400_as_ci", "utf8mb4_uca1400_as_cs", "utf8mb4_uca1400_ai_cs", "utf8mb4_uca1400_nopad_as_cs",
]  # fmt: skip
MYSQL_COLLATIONS = [
    "utf8mb4_0900_ai_ci", "utf8mb4_0900_as_ci", "utf8mb4_0900_as_cs", "utf8mb4_0900_bin", "utf8mb4_ja_0900_as_cs",
    "utf8mb4_ja_0900_as_cs_ks", "utf8mb4_zh_0900_as_cs", "gb18030_chinese_ci", "gb18030_unicode_520_ci",
]  # fmt: skip


def session(database: Any) -> Session:
    server = database.server
    return Session(SourceSpec(server.host, server.port, server.user, server.password, database.name))


def values(seed: int, count: int) -> list[str]:
    chosen = random.Random(seed)
    made = {""}
    while len(made) < count:
        length = chosen.choice([0, 1, 1, 2, 2, 3])
        made.add("".join(chosen.choice(PIECES) for _ in range(length)) + chosen.choice(ENDS))
    return sorted(made)


def literal(value: str, charset: str) -> str:
    return f"CONVERT(_utf8mb4 X'{value.encode().hex()}' USING {charset})" if value else "''"
