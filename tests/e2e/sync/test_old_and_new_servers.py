"""The oldest and the newest servers that can be had: a newcomer's path, with every type that the server knows."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest
import yaml

from floodmark.config.load import TableOptions
from floodmark.setup.services.compare import compare
from floodmark.setup.services.databases import DatabaseServer, missing
from floodmark.source import ranges as edges
from floodmark.source.describe import discover
from floodmark.source.session import version
from tests.conftest import Database, Floodmark, fresh_database
from tests.support import every_key as keys
from tests.support.every_type import ZOO, Kind
from tests.support.old_and_new import NewMariaDB, OldMySQL
from tests.support.orders import NOTE, create_orders

pytestmark = pytest.mark.long
FETCH = Path(__file__).parents[3] / "scripts" / "fetch-server"
PASSWORD = "p@ss/w;rd"
ROWS = 2000
AT = "update_at DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3)"
# What only newer servers have: MariaDB's moments after 2038, and vectors.
LATER = ("'2038-01-19 03:14:08'", "'2106-02-07 06:28:15'")
VECTOR = "VEC_FromText('[0.5, -1, 3e10]')"
NEW = {"c_vector": Kind("VECTOR(3)", (VECTOR,), "BLOB", "BYTE_ARRAY", lambda _: VECTOR)}


@pytest.fixture(scope="module", params=[OldMySQL, NewMariaDB], ids=lambda kind: kind.name)
def kept(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """The server, fetched when it is not there."""
    name = request.param.name
    subprocess.run([FETCH, name], check=False, capture_output=True)
    if reason := missing(name):
        pytest.skip(reason)
    with request.param() as server:
        yield server


@pytest.fixture
def shop(kept: DatabaseServer) -> Iterator[Database]:
    with fresh_database(kept) as database:
        yield database


def known(shop: Database) -> dict[str, Kind]:
    """The types of the zoo that the server has, with the values that it takes."""
    found = {}
    link = shop.connect(autocommit=True)
    cursor = link.cursor()
    cursor.execute("SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'")

    def accepted(statement: str) -> bool:
        try:
            cursor.execute(statement)
        except pymysql.Error:
            return False
        return True

    kinds = ZOO["mysql" if isinstance(shop.server, OldMySQL) else "mariadb"]
    for name, kind in {**kinds, **NEW}.items():
        if accepted(f"CREATE TABLE tried (c {kind.type})"):
            later = LATER if name.startswith("c_timestamp") else ()
            values = tuple(v for v in (*kind.values, *later) if accepted(f"INSERT INTO tried VALUES ({v})"))
            found[name] = replace(kind, values=values)
            cursor.execute("DROP TABLE tried")
    link.close()
    return found


def fill(shop: Database) -> None:
    """A table read along a descending index, one without any, one whose key has weights, and one of all types."""
    zoo = known(shop)
    shop.execute(
        create_orders(NOTE, "DATETIME(3)", index="update_at DESC"),
        f"CREATE TABLE plain (id INT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(40), {AT})",
        f"CREATE TABLE names (name VARCHAR(40), b BIT(64), n INT, {AT},"
        " PRIMARY KEY (name, b), KEY (update_at))",
        f"CREATE TABLE zoo (id INT PRIMARY KEY, {', '.join(f'{n} {k.type}' for n, k in zoo.items())}, {AT})",
    )
    lines = ", ".join(f"('n {i}', '2025-03-01' + INTERVAL {i % 400} SECOND)" for i in range(ROWS))
    names = ", ".join(f"('Ä{i}', {2**64 - 1 - i}, {i}, '2025-03-01')" for i in range(50))
    shop.execute(
        f"INSERT INTO orders (note, update_at) VALUES {lines}",
        f"INSERT INTO plain (note, update_at) VALUES {lines}",
        f"INSERT INTO names VALUES {names}",
    )
    chosen = random.Random(5)
    height = max(len(k.values) for k in zoo.values())
    rows = [[k.values[i] if i < len(k.values) else "NULL" for k in zoo.values()] for i in range(height)]
    rows += [[k.draw(chosen) for k in zoo.values()] for _ in range(20)]
    cells = ", ".join(f"({i}, {', '.join(row)})" for i, row in enumerate(rows))
    strict = "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'"
    shop.execute(strict, f"INSERT INTO zoo (id, {', '.join(zoo)}) VALUES {cells}")


def test_a_first_sync_ends_with_equal_rows(shop: Database, floodmark: Floodmark, tmp_path: Path) -> None:
    fill(shop)
    shop.server.create_user("reader", PASSWORD, f"SELECT ON {shop.name}.*", "PROCESS ON *.*")
    floodmark("init", "--source", shop.server.url(shop.name, "reader", PASSWORD)).ok()
    file = tmp_path / "floodmark.yaml"
    config = yaml.safe_load(file.read_text())
    config["defaults"] = {
        **config.get("defaults", {}),
        "slice_rows": 300,
        "settle_seconds": 0.2,
        "overflow": "truncate",
    }
    file.write_text(yaml.safe_dump(config))
    env = {"MYSQL_PASSWORD": PASSWORD}
    floodmark("doctor", env=env).ok()
    first = floodmark("sync", "--all", "--json", env=env).ok().json
    counts = {t["table"].partition(".")[2]: t["rows_loaded"] for t in first["tables"]}
    assert (counts["orders"], counts["plain"], counts["names"]) == (ROWS, ROWS, 50)
    shop.execute(
        "UPDATE orders SET note = 'changed' WHERE id % 3 = 0",
        "UPDATE plain SET note = 'changed' WHERE id % 3 = 0",
        "UPDATE names SET n = n + 1 WHERE n % 2 = 0",
        "INSERT INTO orders (note) VALUES ('new')",
    )
    second = floodmark("sync", "--all", "--strategy", "sequential", "--json", env=env).ok().json
    counts = {t["table"].partition(".")[2]: t["rows_loaded"] for t in second["tables"]}
    assert (counts["orders"], counts["plain"], counts["names"]) == (667, 666, 25)
    names = [f"{shop.name}.{table}" for table in ("orders", "plain", "names", "zoo")]
    verified = (
        floodmark("verify", *(word for name in names for word in ("-t", name)), "--json", env=env).ok().json
    )
    assert all(t["rows_source"] == t["rows_warehouse"] > 0 for t in verified["tables"])
    assert sorted(t["table"] for t in verified["tables"]) == sorted(names)
    (warehouse,) = tmp_path.glob("*.duckdb")
    for table in ("orders", "plain"):
        assert compare(shop.server, f"{shop.name}.{table}", warehouse).equal


def test_slice_edges_without_an_index_are_exact(shop: Database) -> None:
    shop.execute(
        f"CREATE TABLE plain (id INT AUTO_INCREMENT PRIMARY KEY, {AT})",
        "INSERT INTO plain (update_at) VALUES "
        + ", ".join(f"('2025-03-01' + INTERVAL {i % 400} SECOND)" for i in range(ROWS)),
    )
    with keys.session(shop) as session:
        assert version(session).windows == isinstance(shop.server, NewMariaDB)
        table = discover(session, "plain", TableOptions(), shop.name)
        everything = sorted(
            (f"2025-03-01 00:{i % 400 // 60:02}:{i % 400 % 60:02}.000000", i + 1) for i in range(ROWS)
        )
        assert edges.walk(session, table, table.order, None, None, 700) == tuple(everything[699::700])
        assert edges.walk(session, table, table.order, everything[9], None, 100) == tuple(
            everything[109::100]
        )
