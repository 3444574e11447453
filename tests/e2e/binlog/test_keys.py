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
from floodmark.source.describe import discover
from floodmark.source.read import Batches
from floodmark.source.session import Session
from tests.conftest import SERVERS
from tests.support.binlog import LOGGED, description, end_of, keys_in, spec_of
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
    order = [(name, "ascending") for name in found.column_names]
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
            one = found[f"d.{name}"]
            for kinds in (events.INSERTS, events.UPDATES, events.DELETES):
                taken = pa.Table.from_batches([batch for kind, batch in one if kind in kinds])
                same(taken, had[name])
