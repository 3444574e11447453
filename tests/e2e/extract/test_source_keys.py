"""`_floodmark_key`: its bytes are equal exactly when MySQL finds two keys equal."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from floodmark.config.load import TableOptions
from floodmark.model.table import Column
from floodmark.model.types import KEY_FIELD, comparison, fields
from floodmark.source.describe import discover
from floodmark.source.read import Batches
from tests.support.every_key import (
    COLLATIONS,
    MARIADB_COLLATIONS,
    MYSQL_COLLATIONS,
    literal,
    session,
    values,
)


@pytest.mark.both_servers
@pytest.mark.parametrize("collation", COLLATIONS)
def test_keys_are_equal_exactly_when_mysql_says_so(database: Any, collation: str) -> None:
    assert not told_wrong(database, collation)


@pytest.mark.mariadb_only
@pytest.mark.parametrize("collation", MARIADB_COLLATIONS)
def test_keys_in_mariadbs_collations_are_equal_exactly_when_it_says_so(database: Any, collation: str) -> None:
    assert not told_wrong(database, collation)


@pytest.mark.mysql_only
@pytest.mark.parametrize("collation", MYSQL_COLLATIONS)
def test_keys_in_mysqls_collations_are_equal_exactly_when_it_says_so(database: Any, collation: str) -> None:
    assert not told_wrong(database, collation)


@pytest.mark.long
@pytest.mark.both_servers
def test_keys_in_every_collation_compare_as_the_server_says_or_are_refused(database: Any, kind: str) -> None:
    full = "FULL_COLLATION_NAME" if kind == "mariadb" else "COLLATION_NAME"
    found = database.execute(
        f"SELECT {full}, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
        " WHERE CHARACTER_SET_NAME <> 'binary'"
    )
    weighed = [
        name
        for name, charset in found
        if comparison(Column("k", "varchar(20)", "varchar", charset=charset, collation=name)) != "unknown"
    ]
    assert len(weighed) > 250
    assert [name for name in weighed if told_wrong(database, name)] == []


def told_wrong(database: Any, collation: str) -> set[tuple[int, int]]:
    """The pairs of values that only one side takes for equal: the server, or those who compare `_floodmark_key`."""
    charset = collation.partition("_")[0]
    database.execute(
        "DROP TABLE IF EXISTS t",
        f"CREATE TABLE t (k VARCHAR(20) CHARSET {charset} COLLATE {collation} NOT NULL, i INT NOT NULL,"
        " update_at DATETIME(6) NOT NULL)",
        "SET sql_mode = ''",
        "INSERT IGNORE INTO t VALUES "
        + ", ".join(f"({literal(v, charset)}, {i}, NOW())" for i, v in enumerate(values(3, 250))),
    )
    with session(database) as s:
        table = discover(s, "t", TableOptions(key=("k",), cursor="update_at"), database.name)
        own = comparison(table.column("k")) == "bytes"  # then the key itself is compared
        assert (fields(table)[-1].name == KEY_FIELD) is not own
        chosen = ", ".join(f.select for f in fields(table))
        rows = pa.Table.from_batches(list(Batches(s, table, f"SELECT {chosen} FROM t"))).to_pylist()
    # As an index compares. MySQL's hash join for `=` takes '' and ' ' in latin7 for different; they are one key.
    equal = "a.k >= b.k AND a.k <= b.k"
    mysql = {
        tuple(row) for row in database.execute(f"SELECT a.i, b.i FROM t a JOIN t b ON {equal} AND a.i < b.i")
    }
    groups: dict[object, list[int]] = {}
    for row in sorted(rows, key=lambda r: r["i"]):
        groups.setdefault(row["k" if own else KEY_FIELD], []).append(row["i"])
    ours = {(a, b) for group in groups.values() for n, a in enumerate(group) for b in group[n + 1 :]}
    return ours ^ mysql


@pytest.mark.both_servers
def test_the_parts_of_a_composite_key_stay_distinct(database: Any, kind: str) -> None:
    collation = "utf8mb4_0900_as_cs" if kind == "mysql" else "utf8mb4_uca1400_as_cs"
    pairs = [
        ("a", "bc"),
        ("ab", "c"),
        ("A", "bc"),
        ("A", "BC"),
        ("", "abc"),
        ("abc", ""),
        ("a ", "bc "),
        ("00001a", "b"),
    ]
    database.execute(
        f"CREATE TABLE t (a VARCHAR(9) NOT NULL, b VARCHAR(9) COLLATE {collation} NOT NULL, n INT NOT NULL,"
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
            list(Batches(s, table, f"SELECT {chosen} FROM t ORDER BY i"))
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
