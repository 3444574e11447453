"""`_floodmark_key`: its bytes are equal exactly when MySQL finds two keys equal."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from floodmark.config import SourceSpec, TableOptions
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import discover
from floodmark.mysql.read import record_batches
from floodmark.types import KEY_FIELD, fields

# Case, accents, padding of several kinds, ignorable characters, expansions, contractions, two weights per character.
PIECES = [
    *"aAäÄsSßeéÉzZ0", "e\u0301", "ch", "Ch", "dž", "ﬀ", " ", "\u00a0", "\u3000", "\t", "\x00", "\u200b", "\u00ad", "中",
    "国", "😀", "😁", "ﷺ", "ｱ", "ア",
]  # fmt: skip
ENDS = ["", "", " ", "  ", "\u00a0", "\t", "\x00", "\u200b"]

COLLATIONS = [
    "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_unicode_520_ci", "utf8mb4_bin", "utf8mb4_general_nopad_ci",
    "utf8mb4_unicode_nopad_ci", "utf8mb4_czech_ci", "utf8mb4_german2_ci", "utf8mb4_thai_520_w2", "utf8mb3_general_ci",
    "utf8mb4_uca1400_ai_ci", "utf8mb4_uca1400_as_ci", "utf8mb4_uca1400_as_cs", "utf8mb4_uca1400_ai_cs",
    "utf8mb4_uca1400_nopad_as_cs", "latin1_swedish_ci", "latin1_german2_ci", "latin1_bin", "ascii_general_ci",
    "gbk_chinese_ci", "sjis_japanese_ci", "cp932_japanese_ci", "eucjpms_japanese_ci", "utf16_unicode_ci",
    "ucs2_general_ci", "utf32_bin", "latin2_czech_cs", "tis620_thai_ci", "hebrew_general_ci",
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


@pytest.mark.parametrize("collation", COLLATIONS)
def test_keys_are_equal_exactly_when_mysql_says_so(database: Any, collation: str) -> None:
    charset = collation.partition("_")[0]
    database.execute(
        f"CREATE TABLE t (k VARCHAR(20) CHARSET {charset} COLLATE {collation} NOT NULL, i INT NOT NULL,"
        " update_at DATETIME(6) NOT NULL)",
        "SET sql_mode = ''",
        "INSERT IGNORE INTO t VALUES "
        + ", ".join(f"({literal(v, charset)}, {i}, NOW())" for i, v in enumerate(values(3, 250))),
    )
    with session(database) as s:
        table = discover(s, "t", TableOptions(key=("k",), cursor="update_at"), database.name)
        names = [f.name for f in fields(table)]
        assert names[-1] == KEY_FIELD
        chosen = ", ".join(f.select for f in fields(table))
        rows = pa.Table.from_batches(list(record_batches(s, table, f"SELECT {chosen} FROM t"))).to_pylist()
    mysql = {
        tuple(row) for row in database.execute("SELECT a.i, b.i FROM t a JOIN t b ON a.k = b.k AND a.i < b.i")
    }
    groups: dict[bytes, list[int]] = {}
    for row in sorted(rows, key=lambda r: r["i"]):
        groups.setdefault(row[KEY_FIELD], []).append(row["i"])
    ours = {(a, b) for group in groups.values() for n, a in enumerate(group) for b in group[n + 1 :]}
    assert ours == mysql


def test_the_parts_of_a_composite_key_stay_apart(database: Any) -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("A", "BC"), ("", "abc"), ("abc", ""), ("a ", "bc "), ("00001a", "b")]
    database.execute(
        "CREATE TABLE t (a VARCHAR(9) NOT NULL, b VARCHAR(9) COLLATE utf8mb4_uca1400_as_cs NOT NULL, n INT NOT NULL,"
        " e ENUM('x','y') NOT NULL, d DATETIME(3) NOT NULL, v VARBINARY(4) NOT NULL, i INT AUTO_INCREMENT, KEY (i))",
        *(
            f"INSERT INTO t (a, b, n, e, d, v) VALUES ('{a}', '{b}', {n}, '{e}', '2020-01-01', x'{v}')"
            for a, b in pairs
            for n in (1, 12)
            for e in "xy"
            for v in ("", "00")
        ),
    )
    key = ("a", "b", "n", "e", "d", "v")
    with session(database) as s:
        table = discover(s, "t", TableOptions(key=key, cursor="d", mode="upsert"), database.name)
        chosen = ", ".join(f.select for f in fields(table))
        rows = pa.Table.from_batches(
            list(record_batches(s, table, f"SELECT {chosen} FROM t ORDER BY i"))
        ).to_pylist()
    equal = " AND ".join(f"a.{c} = b.{c}" for c in key)
    mysql = {
        tuple(row) for row in database.execute(f"SELECT a.i, b.i FROM t a JOIN t b ON {equal} AND a.i < b.i")
    }
    assert mysql
    ours = {
        (one["i"], other["i"])
        for one in rows
        for other in rows
        if one["i"] < other["i"] and one[KEY_FIELD] == other[KEY_FIELD]
    }
    assert ours == mysql
