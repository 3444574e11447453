"""`_floodmark_key`: its bytes are equal exactly when MySQL finds two keys equal."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from floodmark.config import TableOptions
from floodmark.mysql.discover import discover
from floodmark.mysql.read import record_batches
from floodmark.types import KEY_FIELD, fields
from tests.keys import COLLATIONS, literal, session, values


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
