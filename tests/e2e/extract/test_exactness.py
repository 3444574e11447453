"""Every type from MySQL through Parquet into DuckDB, bit for bit: extremes, thousands of random rows, awkward names.

What is expected comes from MySQL in a query of its own (hex digits, casts) or from the literals that were inserted,
never from the pipeline's expressions. The files are held to the strict dialect that Redshift's COPY takes.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from floodmark.model.names import target_name
from floodmark.spark.context import Spark
from tests.conftest import BOTH, PATIENT, Workspace, lasting_workspace
from tests.support.every_type import CLOCK, SHARED, ZOO, Kind

ROWS = 2500 if PATIENT else 1000
# Columns that no INSERT names, and how both sides show them.
GIVEN: dict[str, tuple[str, str]] = {
    "c_virtual": ("BIGINT AS (id * 3000000000) VIRTUAL", "CAST({c} AS CHAR)"),
    "c_stored": ("VARCHAR(60) AS (CONCAT('n', id, '😀')) STORED", "CAST({c} AS CHAR)"),
    "c_invisible": ("INT INVISIBLE DEFAULT 7", "CAST({c} AS CHAR)"),
}


@dataclass(frozen=True)
class Synced:
    """The zoo (awkward values) and the crowd (random ones), replicated."""

    workspace: Workspace
    kinds: dict[str, Kind]  # the columns that its server has
    crowd: dict[str, list[str]]  # the literals, by column
    asking: Any  # open connections to both, for hundreds of small questions
    telling: duckdb.DuckDBPyConnection

    def source(self, table: str, expression: str) -> list[str | None]:
        cursor = self.asking.cursor()
        cursor.execute(f"SELECT {expression} FROM {table} ORDER BY id")
        return [v.decode() if isinstance(v, bytes) else v if v is None else str(v) for (v,) in cursor]

    def warehouse(self, table: str, expression: str) -> list[Any]:
        asked = self.telling.execute(f"SELECT {expression} FROM {table} ORDER BY id")
        return [v for (v,) in asked.fetchall()]

    def files(self, table: str) -> list[Path]:
        return sorted((self.workspace.folder / "lake" / "data").glob(f"*.{table}/*/*.parquet"))


def definitions(kinds: dict[str, Kind]) -> str:
    columns = {**{n: k.type for n, k in kinds.items()}, **{n: t for n, (t, _) in GIVEN.items()}}
    nothing = {f"no{n}": k.type for n, k in kinds.items()}
    return ", ".join(f"{name} {type_}" for name, type_ in {**columns, **nothing}.items())


@pytest.fixture(scope="module", params=BOTH)
def synced(
    request: pytest.FixtureRequest, spark: Callable[[], Spark], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Synced]:
    server, kinds = request.getfixturevalue(request.param), ZOO[request.param]
    table = "CREATE TABLE {} (id INT PRIMARY KEY, update_at DATETIME NOT NULL DEFAULT '2025-05-05', {})"
    strict = "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'"
    names = ", ".join(kinds)
    height = max(len(k.values) for k in kinds.values()) + 1  # the last row is NULL throughout
    zoo = [[k.values[i] if i < len(k.values) else "NULL" for k in kinds.values()] for i in range(height)]
    chosen = random.Random(20250505)
    crowd = {
        n: [k.draw(chosen) if chosen.random() < 0.95 else "NULL" for _ in range(ROWS)]
        for n, k in kinds.items()
    }
    rows = list(zip(*crowd.values(), strict=True))
    with lasting_workspace(tmp_path_factory.mktemp("exactness"), server, spark) as workspace:
        workspace.execute(
            table.format("zoo", definitions(kinds)),
            table.format("crowd", ", ".join(f"{n} {k.type}" for n, k in kinds.items())),
            strict,
            *(f"INSERT INTO zoo (id, {names}) VALUES ({i}, {', '.join(row)})" for i, row in enumerate(zoo)),
            *(
                f"INSERT INTO crowd (id, {names}) VALUES "
                + ", ".join(f"({i}, {', '.join(rows[i])})" for i in range(first, first + 250))
                for first in range(0, ROWS, 250)
            ),
        )
        report = workspace.sync("zoo", "crowd")
        assert report.ok, report.as_json()
        with (
            closing(workspace.database.connect(autocommit=True)) as asking,
            duckdb.connect(str(workspace.warehouse), read_only=True) as telling,
        ):
            asking.cursor().execute("SET time_zone = '+00:00', sql_mode = ''")
            telling.execute("SET TimeZone = 'UTC'")
            yield Synced(workspace, kinds, crowd, asking, telling)


def packed(form: str, values: list[Any]) -> list[bytes | None]:
    return [None if v is None else struct.pack(form, v) for v in values]


@pytest.mark.parametrize("name", [n for n, k in SHARED.items() if not k.bits])
def test_every_value_arrives_as_mysql_has_it(synced: Synced, name: str) -> None:
    assert_arrived(synced, name)


def test_every_value_of_types_that_only_one_server_has_arrives(synced: Synced) -> None:
    for name in synced.kinds.keys() - SHARED.keys():
        assert_arrived(synced, name)


def assert_arrived(synced: Synced, name: str) -> None:
    kind = synced.kinds[name]
    for table in ("zoo", "crowd"):
        expected = synced.source(table, kind.asked.format(c=name))
        assert synced.warehouse(table, kind.told.format(c=name)) == expected
    literals = len(kind.values)
    arrived = synced.warehouse("zoo", kind.told.format(c=name))
    assert None not in arrived[:literals] and set(arrived[literals:]) == {None}


@pytest.mark.parametrize("name", ["c_float", "c_double"])
def test_floats_arrive_with_every_bit(synced: Synced, name: str) -> None:
    kind = synced.kinds[name]
    literals = list(kind.values)
    arrived = synced.warehouse("zoo", name)
    assert packed(kind.bits, arrived[: len(literals)]) == packed(kind.bits, [float(v) for v in literals])
    expected = [None if v == "NULL" else float(v) for v in synced.crowd[name]]
    assert packed(kind.bits, synced.warehouse("crowd", name)) == packed(kind.bits, expected)


@pytest.mark.parametrize("name", list(GIVEN))
def test_generated_and_invisible_columns_arrive_too(synced: Synced, name: str) -> None:
    expected = synced.source("zoo", GIVEN[name][1].format(c=name))
    assert synced.warehouse("zoo", f"CAST({name} AS VARCHAR)") == expected
    assert None not in expected


def test_every_column_has_the_type_that_the_type_table_says(synced: Synced) -> None:
    found = dict(
        synced.workspace.query("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'zoo'")
    )
    expected = {prefix + name: kind.warehouse for name, kind in synced.kinds.items() for prefix in ("", "no")}
    assert {name: found[name] for name in expected} == expected


def test_null_and_texts_that_look_like_null_stay_distinct(synced: Synced) -> None:
    for name in ("c_char", "c_varchar", "c_latin1", "c_utf16", "c_gbk", "c_longtext"):
        got = synced.warehouse("zoo", f"CASE WHEN {name} IS NULL THEN 'is null' ELSE 'text ' || {name} END")
        assert got[:8] == [
            "text ", "text null", "text NULL", "text None", "text NaN", "text nan", "text inf", "text \\N",
        ]  # fmt: skip
        assert got[-1] == "is null"
    blobs = synced.warehouse("zoo", "c_blob")
    assert blobs[:3] == [b"", b"\0", b"\0\0"] and blobs[5] == b"null" and blobs[-1] is None
    assert synced.warehouse("zoo", "c_json")[0] == "null"
    assert synced.warehouse("zoo", "c_enum")[1] == "" and synced.warehouse("zoo", "c_set")[0] == ""


def test_columns_with_only_nulls_arrive(synced: Synced) -> None:
    counts = ", ".join(f"count(noc_{name[2:]})" for name in synced.kinds)
    assert synced.workspace.query(f"SELECT {counts} FROM zoo") == [(0,) * len(synced.kinds)]


@pytest.mark.parametrize("table", ["zoo", "crowd"])
def test_geometries_keep_their_srid(synced: Synced, table: str) -> None:
    for name in ("c_point", "c_geometry"):
        arrived = synced.warehouse(table, f"CAST({name}__srid AS VARCHAR)")
        assert arrived == synced.source(table, f"ST_SRID({name})")
        assert {"4326", None} < set(arrived)


# ---------------------------------------------------------------- the files


def described(column: Any) -> str:
    """A Parquet column as `ZOO` writes it."""
    physical, annotation = column.physical_type, column.converted_type
    if physical == "FIXED_LEN_BYTE_ARRAY":
        physical += f"({column.length})"
    if annotation == "DECIMAL":
        annotation += f"({column.precision},{column.scale})"
    return physical if annotation == "NONE" else f"{physical} {annotation}"


def test_files_have_the_types_that_copy_accepts_in_the_tables_column_order(synced: Synced) -> None:
    (file,) = synced.files("zoo")
    schema = pq.ParquetFile(file).schema
    found = {schema.column(i).name: described(schema.column(i)) for i in range(len(schema))}
    expected = {prefix + name: kind.file for name, kind in synced.kinds.items() for prefix in ("", "no")}
    assert {name: found[name] for name in expected} == expected
    assert found["id"] == "INT32" and found["update_at"] == CLOCK and found["c_point__srid"] == "INT32"
    # By position, so the order counts: the target's, which is MySQL's.
    target = synced.workspace.query(
        "SELECT column_name FROM duckdb_columns() WHERE table_name = 'zoo' ORDER BY column_index"
    )
    mysql = synced.workspace.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'zoo'"
        " ORDER BY ordinal_position"
    )
    columns = [
        name for name in found if not name.startswith("_floodmark_")
    ]  # what only files have comes last
    assert [*found][: len(columns)] == columns
    assert [(name.lower(),) for name in columns] == target
    assert [n for n in columns if not n.endswith("__srid")] == [n for (n,) in mysql]


def test_files_follow_the_strict_dialect(synced: Synced) -> None:
    for path in (*synced.files("zoo"), *synced.files("crowd")):
        data, file = path.read_bytes(), pq.ParquetFile(path)
        for i in range(len(file.schema)):
            column = file.schema.column(i)
            # Every column may be NULL and none is nested; instants are UTC in microseconds, wall clocks too.
            assert (column.max_definition_level, column.max_repetition_level) == (1, 0)
            if column.converted_type == "TIMESTAMP_MICROS":
                assert json.loads(column.logical_type.to_json())["isAdjustedToUTC"] is True
        for group in range(file.metadata.num_row_groups):
            for i in range(len(file.schema)):
                chunk = file.metadata.row_group(group).column(i)
                assert set(chunk.encodings) <= {"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}
                assert chunk.compression in ("ZSTD", "SNAPPY", "GZIP", "UNCOMPRESSED")
                # The header of a page begins with its type: 0 is a data page of version 1, 3 one of version 2.
                assert data[chunk.data_page_offset : chunk.data_page_offset + 2] == b"\x15\x00"


# ---------------------------------------------------------------- names

NAMES = [
    "a`b", 'say "hi"', "it's", "two words", " leading", "select", "from", "Order", "MiXeD", "ÄÖ", "深圳", "İstanbul",
    "straße", "dot.ted", "a.b.c", "%s", "%(x)s", "100%", "back\\slash", "semi;--", "/*", "(paren)", "[1]", "{0}", "#", "$1",
    "1e5", "007", "a,b", "=", "?", ":x", "new\nline", "tab\tstop", "null", "true", "s", "t", "k", "l", "o0", "rowid", "place",
    "filename", "file_index", "file_row_number", "_source_filename", "_floodmark_key", "_deleted_at", "x__raw",
]  # fmt: skip


@pytest.mark.parametrize("key", ["INT", "VARCHAR(20)"])
def test_column_names_may_contain_anything(workspace: Workspace, key: str) -> None:
    names = [n for n in NAMES if n != "_floodmark_key" or key == "INT"]
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    workspace.execute(
        f"CREATE TABLE t (`i``d` {key} PRIMARY KEY, `up date` DATETIME NOT NULL, {', '.join(f'{q} INT' for q in quoted)})",
        *(
            f"INSERT INTO t VALUES ({n}, '2025-05-0{n}', {', '.join(str(n * 100 + i) for i in range(len(names)))})"
            for n in (1, 2)
        ),
    )
    workspace.write(tables={workspace.full_name("t"): {"cursor": "up date"}})
    workspace.synced("t")
    # Twice, so that rows are merged by their key and not only inserted.
    workspace.execute(f"UPDATE t SET {quoted[0]} = -1, `up date` = '2025-06-01' WHERE `i``d` = 1")
    workspace.synced("t")
    wanted = ", ".join('"' + target_name(name).replace('"', '""') + '"' for name in names)
    assert workspace.query(f'SELECT {wanted} FROM t ORDER BY "i`d"') == workspace.execute(
        f"SELECT {', '.join(quoted)} FROM t ORDER BY `i``d`"
    )
