"""Keys that the source no longer has: looked up by key, weighed without their rows, written as files of keys."""

from __future__ import annotations

import io
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.config.load import StoreSpec, TableOptions
from floodmark.extract.files import key_table, write_keys
from floodmark.load.files import key_fields
from floodmark.model.position import Key
from floodmark.model.table import Table
from floodmark.model.types import KEY_FIELD, fields
from floodmark.source import sql
from floodmark.source.describe import discover
from floodmark.source.ranges import absent_keys, key_weights
from floodmark.source.read import Batches
from floodmark.source.session import Session
from floodmark.store.store import Store
from tests.support.every_key import (
    COLLATIONS,
    KEYS,
    literal,
    session,
    values,
)

pytestmark = pytest.mark.source

MYSQLS = ["utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs", "utf8mb4_ja_0900_as_cs_ks", "gb18030_chinese_ci"]
AT = "update_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP"


def keys_of(s: Session, table: Table) -> list[Key]:
    """All keys, in the order in which `rows_of` gives the rows."""
    columns = [table.column(name) for name in table.key]
    found = s.rows(f"SELECT {sql.position_columns(table, table.key)} FROM {sql.source(table)} ORDER BY n_")
    return [
        tuple(None if cell is None else sql.value_of(c, cell) for c, cell in zip(columns, row, strict=True))
        for row in found
    ]


def rows_of(s: Session, table: Table) -> list[dict[str, Any]]:
    chosen = ", ".join(f.select for f in fields(table))
    query = f"SELECT {chosen} FROM {sql.source(table)} ORDER BY n_"
    return pa.Table.from_batches(list(Batches(s, table, query))).to_pylist()


def key_file(
    folder: Path, table: Table, keys: list[Key], weighed: list[bytes | None]
) -> list[dict[str, Any]]:
    store = Store(StoreSpec(url=str(folder / "lake")))
    (file,) = write_keys(store, table, key_table(table, keys, weighed), run="r", claim=3, log="l")
    data = store.get(file.path)
    assert data is not None and file.rows == len(keys) and file.bytes == len(data)
    found = pq.read_table(io.BytesIO(data))
    assert found.schema.names == [f.name for f in key_fields(table, fields(table))]
    return found.to_pylist()


@pytest.mark.parametrize("name", KEYS["mysql"] | KEYS["mariadb"])
def test_deleted_keys_of_every_type_are_found_and_written_like_their_rows(
    database: Any, tmp_path: Path, name: str
) -> None:
    if name not in KEYS[database.server.name]:
        pytest.skip(f"{database.server.name} has no such type or collation")
    columns, _, draw = KEYS[database.server.name][name]
    chosen = random.Random(5)
    key = ", ".join(part.split()[0] for part in columns.split(", ") if part[0] != "'")
    lines = [f"({', '.join(draw(chosen))}, {i}, NOW())" for i in range(90)]
    database.execute(
        "SET sql_mode = ''",
        f"CREATE TABLE t ({columns}, n_ INT, {AT}, PRIMARY KEY ({key}), KEY (update_at))",
        f"INSERT IGNORE INTO t VALUES {', '.join(lines)}",
    )
    with session(database) as s:
        table = discover(s, "t", TableOptions(cursor="update_at", mode="upsert"), database.name)
        keys, rows = keys_of(s, table), rows_of(s, table)
        weighed = key_weights(s, table, keys)
        assert absent_keys(s, table, keys) == []
        if KEY_FIELD in rows[0]:
            assert weighed == [row[KEY_FIELD] for row in rows]
        names = [f.name for f in key_fields(table, fields(table))]
        assert key_file(tmp_path, table, keys, weighed) == [{n: row[n] for n in names} for row in rows]
        database.execute("DELETE FROM t WHERE n_ % 3 = 1")
        assert absent_keys(s, table, keys) == [
            k for k, row in zip(keys, rows, strict=True) if row["n_"] % 3 == 1
        ]


@pytest.mark.parametrize("collation", [*COLLATIONS, *MYSQLS])
def test_a_keys_weight_is_the_same_without_its_row(database: Any, collation: str) -> None:
    charset = collation.partition("_")[0]
    if database.server.name == "mysql" and re.search("nopad|uca1400|_w2", collation):
        pytest.skip("only MariaDB has it")
    if database.server.name == "mariadb" and collation in MYSQLS:
        pytest.skip("only MySQL has it")
    database.execute(
        f"CREATE TABLE t (k VARCHAR(20) CHARSET {charset} COLLATE {collation} NOT NULL, d DATETIME(3) NOT NULL,"
        f" n_ INT NOT NULL, {AT})",
        "SET sql_mode = ''",
        "INSERT IGNORE INTO t (k, d, n_) VALUES "
        + ", ".join(f"({literal(v, charset)}, '2025-01-01', {i})" for i, v in enumerate(values(4, 120))),
    )
    with session(database) as s:
        for key in (("k",), ("n_", "d", "k")):
            table = discover(s, "t", TableOptions(key=key, cursor="update_at"), database.name)
            assert key_weights(s, table, keys_of(s, table)) == [row[KEY_FIELD] for row in rows_of(s, table)]


def test_a_zero_filled_key_has_no_weight_without_its_row(database: Any) -> None:
    database.execute(
        f"CREATE TABLE t (k VARCHAR(9), z INT(5) ZEROFILL, n_ INT, {AT}, PRIMARY KEY (k, z))",
        "INSERT INTO t (k, z, n_) VALUES ('a', 5, 1)",
    )
    with session(database) as s:
        table = discover(s, "t", TableOptions(cursor="update_at"), database.name)
        assert key_weights(s, table, keys_of(s, table)) == [None]  # its text is 00005
        assert absent_keys(s, table, [("a", 5), ("a", 6)]) == [("a", 6)]


def test_a_key_that_is_only_spelled_differently_is_not_deleted(database: Any) -> None:
    database.execute(
        f"CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, n_ INT, {AT})",
        "INSERT INTO t (k, n_) VALUES ('ABC', 1), ('x ', 2), ('y', 3)",
    )
    with session(database) as s:
        table = discover(s, "t", TableOptions(cursor="update_at"), database.name)
        assert absent_keys(s, table, [("abc",), ("x",), ("Y",), ("z",), ("ab",)]) == [("z",), ("ab",)]


def test_rows_that_no_longer_match_the_where_count_as_deleted(database: Any) -> None:
    database.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, n_ INT, status INT, {AT})",
        "INSERT INTO t (id, n_, status) SELECT seq, seq, seq % 3 FROM seq_1_to_2000",
    )
    with session(database) as s:
        options = TableOptions(cursor="update_at", where="status <> 2 -- not those")
        table = discover(s, "t", options, database.name)
        keys: list[Key] = [(i,) for i in range(1, 2011)]
        expected = [(i,) for i in range(1, 2011) if i > 2000 or i % 3 == 2]
        assert absent_keys(s, table, keys) == expected
