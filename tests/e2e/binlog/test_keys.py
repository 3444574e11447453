"""Keys of every type, as both servers log them in every form: what the log says is what the row reader selects."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from floodmark.config.load import TableOptions
from floodmark.model.table import Table
from floodmark.model.types import field_of
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source.binlog import events
from floodmark.source.binlog.keys import Incomplete
from floodmark.source.describe import discover
from floodmark.source.read import Batches
from floodmark.source.session import Session
from tests.conftest import SERVERS
from tests.support.binlog import LOGGED, description, dumped, end_of, keys_in, spec_of
from tests.support.every_type import ZOO, Kind

pytestmark = pytest.mark.both_servers

# These can't be part of a key.
KEYLESS = ("c_json", "c_point", "c_geometry", "c_vector")
PREFIXED = ("TEXT", "BLOB")
LONG = 40  # only a prefix of longer values is in the key


@pytest.fixture(scope="module", params=list(SERVERS))
def logged(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    kind = request.param
    with SERVERS[kind](args=LOGGED[kind]) as server:
        server.execute("CREATE DATABASE d")
        yield server


def keyed(kind: str) -> dict[str, Kind]:
    return {name: one for name, one in ZOO[kind].items() if name not in KEYLESS}


def literals(one: Kind, seed: int, count: int = 12) -> list[str]:
    made = [*one.values, *(one.draw(random.Random(f"{seed}{n}")) for n in range(count))]
    return [value for value in made if "repeat" not in value]


def create(server: DatabaseServer, name: str, one: Kind) -> None:
    part = "k(40)" if one.type.endswith(PREFIXED) else "k"
    type_ = one.type.removesuffix(" NULL")
    server.execute(
        f"CREATE TABLE {name} (a INT NULL, k {type_} NOT NULL, v VARCHAR(99) NULL, b LONGBLOB NULL, PRIMARY KEY ({part}))",
        database="d",
    )


def described(server: DatabaseServer, name: str) -> Table:
    with Session(spec_of(server, "d")) as session:
        table = discover(session, name, TableOptions(), "d")
    return replace(table, recipe=replace(table.recipe, key=("k",)))


def selected(server: DatabaseServer, table: Table) -> pa.Table:
    """The keys as the row reader reads them."""
    chosen = [field_of(column) for column in map(table.column, table.key)]
    with Session(spec_of(server, "d")) as session:
        query = f"SELECT {', '.join(f.select for f in chosen)} FROM {table.source.table}"
        batches = list(Batches(session, table, query, chosen=chosen))
    return pa.Table.from_batches(batches)


def same(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema == expected.schema
    order: Any = [(name, "ascending") for name in found.column_names]
    assert found.sort_by(order).equals(expected.sort_by(order))


def forms(server: DatabaseServer) -> Iterator[list[str]]:
    """The statements that choose the form of the log, all of them."""
    mysql = server.name == "mysql"
    compression = "binlog_transaction_compression" if mysql else "GLOBAL log_bin_compress"
    short = [] if mysql else ["SET GLOBAL log_bin_compress_min_len = 10"]
    for image, metadata, compressed in product(
        ("FULL", "MINIMAL", "NOBLOB"), ("MINIMAL", "FULL"), ("OFF", "ON")
    ):
        yield [
            *short,
            f"SET binlog_row_image = {image}",
            f"SET GLOBAL binlog_row_metadata = {metadata}",
            f"SET {compression} = {compressed}",
            "SET sql_mode = '', time_zone = '+00:00'",
        ]


def changed(server: DatabaseServer, setup: list[str], tables: dict[str, Kind]) -> dict[str, Any]:
    """Fills the tables, changes and deletes all rows; returns the keys that they had."""
    had = {}
    for name, one in tables.items():
        rows = ", ".join(f"(1, {value}, 'x', 'y')" for value in literals(one, 1))
        server.execute(*setup, f"INSERT IGNORE INTO {name} VALUES {rows}", database="d")
        had[name] = selected(server, described(server, name))
        server.execute(*setup, f"UPDATE {name} SET v = 'z'", database="d")
        server.execute(*setup, f"DELETE FROM {name}", database="d")
    return had


@pytest.mark.parametrize("old_times", [False, True])
def test_keys_of_every_type_are_those_that_the_reader_selects(
    logged: DatabaseServer, old_times: bool
) -> None:
    if old_times and logged.name == "mysql":
        pytest.skip("MySQL has one format of times")
    tables = keyed(logged.name)
    if old_times:
        tables = {
            f"o{n}": one
            for n, one in tables.items()
            if n in ("c_datetime0", "c_timestamp0", "c_time0", "c_date")
        }
        logged.execute("SET GLOBAL mysql56_temporal_format = OFF")
    for name, one in tables.items():
        create(logged, name, one)
    if old_times:
        logged.execute("SET GLOBAL mysql56_temporal_format = ON")
    keys = {f"d.{name}": description(described(logged, name)) for name in tables}
    for setup in forms(logged):
        place = end_of(logged)
        had = changed(logged, setup, tables)
        found = keys_in(logged, place, keys)
        for name in tables:
            held = found[f"d.{name}"]
            for kinds in (events.INSERTS, events.UPDATES, events.DELETES):
                taken = pa.Table.from_batches([batch for kind, batch in held if kind in kinds])
                same(taken, had[name])


def run(server: DatabaseServer, *statements: str) -> list[Any]:
    return server.execute(*statements, database="d")


def logged_keys(
    server: DatabaseServer, table: str, *statements: str, key: tuple[str, ...] = ("k",)
) -> list[tuple[Any, ...]]:
    """The keys that the log holds of what the statements do."""
    with Session(spec_of(server, "d")) as session:
        found = discover(session, table, TableOptions(key=key), "d")
    place = end_of(server)
    run(server, *statements)
    batches = keys_in(server, place, {f"d.{table}": description(found)})[f"d.{table}"]
    return [tuple(row.values()) for _, batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("image", ["FULL", "MINIMAL", "NOBLOB"])
def test_a_changed_key_is_logged_as_two(logged: DatabaseServer, image: str) -> None:
    run(logged, "CREATE OR REPLACE TABLE two (k INT, v INT, t TEXT, n INT, PRIMARY KEY (k, n))" if logged.name == "mariadb"
        else "CREATE TABLE IF NOT EXISTS two (k INT, v INT, t TEXT, n INT, PRIMARY KEY (k, n))")  # fmt: skip
    run(logged, "DELETE FROM two", "INSERT INTO two VALUES (1, 1, 'a', 1), (2, 2, 'b', 2)")
    changes = [
        "UPDATE two SET n = 7 WHERE k = 1",
        "UPDATE two SET v = 7 WHERE k = 2",
        "DELETE FROM two WHERE k = 1",
    ]
    found = logged_keys(logged, "two", f"SET binlog_row_image = {image}", *changes, key=("k", "n"))
    assert found == [(1, 1), (1, 7), (2, 2), (1, 7)]


def test_a_key_that_a_minimal_image_lacks_is_said(logged: DatabaseServer) -> None:
    run(logged, "CREATE TABLE lacking (id INT PRIMARY KEY, k INT NOT NULL DEFAULT 5, v INT, UNIQUE (k))")
    minimal = "SET binlog_row_image = MINIMAL"
    for change in (
        "INSERT INTO lacking (id) VALUES (1)",
        "UPDATE lacking SET k = 6",
        "UPDATE lacking SET v = 6",
        "DELETE FROM lacking",
    ):
        with pytest.raises(Incomplete, match="column k"):
            logged_keys(logged, "lacking", minimal, change)


def test_columns_that_are_generated_or_hidden_are_where_the_description_has_them(
    logged: DatabaseServer,
) -> None:
    run(logged, "CREATE TABLE made (a INT, v INT AS (a + 1) VIRTUAL, s INT AS (a + 2) STORED, h INT INVISIBLE DEFAULT 3,"
        " k VARCHAR(9) NOT NULL, t VARCHAR(9), PRIMARY KEY (k))")  # fmt: skip
    if logged.name == "mysql":
        run(logged, "ALTER TABLE made ADD KEY ((LOWER(t))), ADD KEY ((a + 7))")
    for image in ("FULL", "MINIMAL", "NOBLOB"):
        found = logged_keys(
            logged, "made", f"SET binlog_row_image = {image}", "INSERT INTO made (a, k, t) VALUES (1, 'one', 'T')",
            "UPDATE made SET a = 2", "UPDATE made SET k = 'two'", "DELETE FROM made",
        )  # fmt: skip
        assert found == [("one",), ("one",), ("one",), ("two",), ("two",)]


def test_a_primary_key_that_mysql_generates_is_a_key(logged: DatabaseServer) -> None:
    if logged.name != "mysql":
        pytest.skip("MySQL's")
    run(logged, "SET sql_generate_invisible_primary_key = ON", "CREATE TABLE keyless (v INT)")
    found = logged_keys(
        logged,
        "keyless",
        "INSERT INTO keyless VALUES (7), (8)",
        "DELETE FROM keyless WHERE v = 7",
        key=("my_row_id",),
    )
    assert found == [(1,), (2,), (1,)]


def test_changes_within_json_hold_the_key(logged: DatabaseServer) -> None:
    if logged.name != "mysql":
        pytest.skip("MySQL's")
    run(logged, "CREATE TABLE documents (j JSON, j2 JSON, k INT PRIMARY KEY, j3 JSON)")
    document = "JSON_OBJECT('a', REPEAT('x', 100), 'b', 1, 'c', 2)"
    run(
        logged,
        f"INSERT INTO documents VALUES {', '.join(f'({document}, {document}, {n}, {document})' for n in range(20))}",
    )
    place = end_of(logged)
    for image in ("FULL", "MINIMAL"):
        found = logged_keys(
            logged, "documents", "SET binlog_row_value_options = PARTIAL_JSON", f"SET binlog_row_image = {image}",
            "UPDATE documents SET j = JSON_SET(j, '$.b', 5), j3 = JSON_REMOVE(j3, '$.c') WHERE k < 7",
            "UPDATE documents SET j2 = JSON_REPLACE(j2, '$.a', 'y'), k = k + 100 WHERE k = 8",
            "UPDATE documents SET j2 = '{}', k = k - 100 WHERE k = 108",
        )  # fmt: skip
        assert found == [*((n,) for n in range(7)), (8,), (108,), (108,), (8,)]
        run(logged, f"UPDATE documents SET j = {document}, j2 = {document}, j3 = {document}")
    with Session(spec_of(logged)) as session:
        assert events.PARTIAL_UPDATE in [event.kind for event in dumped(session, *place)]


def test_versions_that_mariadb_keeps_are_no_other_keys(logged: DatabaseServer) -> None:
    if logged.name != "mariadb":
        pytest.skip("MariaDB's")
    run(logged, "CREATE TABLE versioned (k INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING")
    found = logged_keys(
        logged,
        "versioned",
        "INSERT INTO versioned VALUES (1, 1), (2, 2)",
        "UPDATE versioned SET v = 3 WHERE k = 1",
        "DELETE FROM versioned WHERE k = 2",
    )
    assert set(found) == {(1,), (2,)}


def test_a_large_transaction_is_decompressed_piece_by_piece(logged: DatabaseServer) -> None:
    setup = [s for s in list(forms(logged))[1] if "row_image" not in s]
    run(logged, "CREATE TABLE large (k INT PRIMARY KEY, v LONGTEXT)")
    run(logged, *setup, "SET GLOBAL max_allowed_packet = 1 << 30" if logged.name == "mariadb" else "DO 1")
    place = end_of(logged)
    run(
        logged,
        *setup,
        "INSERT INTO large SELECT seq, REPEAT('x', 1000000) FROM seq_1_to_40",
        "INSERT INTO large VALUES (99, REPEAT('y', 20000000))",
    )
    kinds = set()
    with Session(spec_of(logged)) as session:
        for event in dumped(session, *place):
            kinds.add(event.kind)
            assert len(event.body) < 21 << 20
    assert kinds & {events.PAYLOAD, *events.COMPRESSED_ROWS}
    assert logged_keys(logged, "large", "DELETE FROM large WHERE k = 99") == [(99,)]
    described_ = {"d.large": description(replace(described(logged, "large")))}
    found = [
        row["k"] for _, batch in keys_in(logged, place, described_)["d.large"] for row in batch.to_pylist()
    ]
    assert found == [*range(1, 41), 99, 99]


def test_the_log_goes_on_in_the_next_file(logged: DatabaseServer) -> None:
    run(logged, "CREATE TABLE along (k INT PRIMARY KEY)")
    place = end_of(logged)
    switch = ["FLUSH BINARY LOGS"]
    run(
        logged,
        "INSERT INTO along VALUES (1)",
        *switch,
        "SET GLOBAL binlog_checksum = NONE",
        "INSERT INTO along VALUES (2)",
    )
    run(logged, "SET GLOBAL binlog_checksum = CRC32", "INSERT INTO along VALUES (3)")
    with Session(spec_of(logged)) as session:
        stream = dumped(session, *place)
        files = [stream.file for _ in stream]
        assert stream.ended and (stream.file, stream.place) == end_of(logged)
    assert len(dict.fromkeys(files)) == 4
    table = replace(described(logged, "along"))
    found = [
        row["k"]
        for _, batch in keys_in(logged, place, {"d.along": description(table)})["d.along"]
        for row in batch.to_pylist()
    ]
    assert found == [1, 2, 3]
