"""Every type from MySQL into Redshift's stand-in, value for value, through COPY's strict reading of the files.

The columns and values are those of tests/support/every_type.py; what they must be comes from MySQL in a query of its own.
"""

from __future__ import annotations

import json
import random
import secrets
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from floodmark.setup.services.s3 import SeaweedFS
from floodmark.spark.context import Spark
from tests.conftest import SOURCE, Workspace, lasting_workspace
from tests.support.every_type import (
    BIT_MY,
    DATE_MY,
    HEX,
    TIME_MY,
    ZOO,
    Kind,
)
from tests.support.redshift import RedshiftStandIn

ROWS = 300
# How Redshift prints a value as text, by how MySQL does.
ASKED = {
    DATE_MY: "to_char({c}, 'YYYY-MM-DD BC')",
    TIME_MY: "to_char({c}, 'YYYY-MM-DD HH24:MI:SS.US BC')",
    BIT_MY: "CAST({c} AS VARCHAR)",
}
LONG = ("c_mediumtext", "c_longtext")  # whose longest values Redshift can't hold


def literals(name: str, kind: Kind) -> list[str]:
    """The awkward values that Redshift can hold: no U+0000, no text over 65,535 bytes."""
    kept = [v for v in kind.values if not (name in LONG and v.startswith("repeat"))]
    return [v for v in kept if "00" not in _text_of(v)]


def _text_of(literal: str) -> str:
    """The hex digits of a text literal in pairs that are U+0000, else nothing."""
    if not literal.startswith("CONVERT(x'"):
        return ""
    digits = literal[10 : literal.index("'", 10)]
    return "00" if b"\0" in bytes.fromhex(digits) else ""


@dataclass(frozen=True)
class Synced:
    workspace: Workspace
    server: RedshiftStandIn
    schema: str
    kinds: dict[str, Kind]  # the columns that the source has
    drawn: dict[str, list[str]]

    def source(self, expression: str) -> list[str | None]:
        rows = self.workspace.execute(
            "SET time_zone = '+00:00', sql_mode = ''", f"SELECT {expression} FROM zoo ORDER BY id"
        )
        return [v.decode() if isinstance(v, bytes) else v if v is None else str(v) for (v,) in rows]

    def warehouse(self, expression: str) -> list[Any]:
        return [v for (v,) in self.server.execute(f"SELECT {expression} FROM {self.schema}.zoo ORDER BY id")]


@pytest.fixture(scope="module", params=SOURCE)
def synced(
    request: pytest.FixtureRequest,
    seaweed: SeaweedFS,
    redshift: RedshiftStandIn,
    spark: Callable[[], Spark],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Synced]:
    redshift.faults.clear()
    source, kinds = request.getfixturevalue(request.param), ZOO[request.param]
    name = f"t_{secrets.token_hex(4)}"
    warehouse = {
        "url": redshift.url(),
        "schema": name,
        "iam_role": redshift.role,
        "tls": {"mode": "disabled"},
    }
    sections = {"store": seaweed.store(name), "warehouse": warehouse}
    chance = random.Random(4)
    drawn = {}
    for column, kind in kinds.items():
        awkward = literals(column, kind)
        while len(awkward) < ROWS:
            value = kind.draw(chance)
            awkward += [value if "00" not in _text_of(value) else "NULL"]
        drawn[column] = awkward
    columns = ", ".join(f"{column} {kind.type}" for column, kind in kinds.items())
    rows = zip(*drawn.values(), strict=True)
    with lasting_workspace(tmp_path_factory.mktemp("types"), source, spark, **sections) as workspace:
        workspace.execute(
            f"CREATE TABLE zoo (id INT PRIMARY KEY, update_at DATETIME NOT NULL DEFAULT '2025-05-05', {columns})",
            "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'",
            *(f"INSERT INTO zoo VALUES ({i}, '2025-05-05', {', '.join(row)})" for i, row in enumerate(rows)),
        )
        table = workspace.synced("zoo")
        assert table["rows_loaded"] == ROWS and table["findings"] == []
        yield Synced(workspace, redshift, name, kinds, drawn)


def _parsed(text: str) -> Any:
    """A JSON value, however its numbers beyond 64 bits are written."""
    return json.loads(text, parse_int=lambda digits: float(digits) if len(digits) > 20 else int(digits))


@pytest.mark.parametrize(
    ("synced", "name"),
    [(server, name) for server in SOURCE for name in ZOO[server]],
    indirect=["synced"],
    scope="module",
)
def test_every_value_arrives_as_mysql_has_it(synced: Synced, name: str) -> None:
    kind = synced.kinds[name]
    if kind.bits:
        expected = [None if v == "NULL" else struct.pack(kind.bits, float(v)) for v in synced.drawn[name]]
        arrived = [None if v is None else struct.pack(kind.bits, v) for v in synced.warehouse(name)]
        assert arrived == expected
    elif kind.warehouse == "BLOB":
        assert [v and v.upper() for v in synced.warehouse(f"encode({name}, 'hex')")] == synced.source(
            kind.asked.format(c=name)
        )
    elif kind.told == HEX:
        printed = synced.source(f"CONVERT({name} USING utf8mb4)")
        if kind.type == "JSON" and synced.workspace.database.server.name == "mysql":
            # MariaDB's is a text; this is a SUPER, without its blanks and the null of JSON.
            arrived = [_parsed(json.dumps(v)) for v in synced.warehouse(name)]
            assert arrived == [_parsed(v or "null") for v in printed]
        else:
            assert synced.warehouse(name) == printed
    elif kind.warehouse == "BOOLEAN":
        assert synced.warehouse(f"CAST(CAST({name} AS INTEGER) AS VARCHAR)") == synced.source(
            kind.asked.format(c=name)
        )
    else:
        told = ASKED.get(kind.asked, "CAST({c} AS VARCHAR)")
        printed = synced.source(kind.asked.format(c=name))
        if kind.asked in (DATE_MY, TIME_MY):  # MySQL's year 0 is 1 BC
            printed = [v and (f"0001{v[4:]} BC" if v.startswith("0000") else f"{v} AD") for v in printed]
        assert synced.warehouse(told.format(c=name)) == printed
