"""Keys that the source no longer has are weighed without their rows."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from floodmark.config.load import TableOptions
from floodmark.model.position import Key
from floodmark.model.table import Table
from floodmark.model.types import KEY_FIELD, fields
from floodmark.source import sql
from floodmark.source.describe import discover
from floodmark.source.ranges import key_weights
from floodmark.source.read import Batches
from floodmark.source.session import Session
from tests.support.every_key import (
    COLLATIONS,
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


def test_a_zero_filled_key_is_weighed_with_its_zeros(database: Any) -> None:
    database.execute(
        f"CREATE TABLE t (k VARCHAR(9), z INT(5) ZEROFILL, d DECIMAL(7,2) ZEROFILL, n_ INT, {AT}, PRIMARY KEY (k, z, d))",
        "INSERT INTO t (k, z, d, n_) VALUES ('a', 5, 1.5, 1), ('a', 123456, 99999.99, 2)",
    )
    with session(database) as s:
        table = discover(s, "t", TableOptions(cursor="update_at"), database.name)
        assert key_weights(s, table, keys_of(s, table)) == [row[KEY_FIELD] for row in rows_of(s, table)]
