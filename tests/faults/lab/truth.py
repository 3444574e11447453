"""Reads source, store and warehouse directly: over its own MySQL connection, as raw JSON and Parquet, with DuckDB.

None of the product's code is used here, so that a bug there can't hide itself.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from hashlib import sha256
from typing import Any

import duckdb
import pyarrow.parquet as pq

from .bench import Bench

Row = dict[str, Any]
# (cursor, key); compared as Python compares tuples.
Place = tuple[Any, ...]


@dataclass(frozen=True)
class Source:
    """A table of the source, as the laboratory made it."""

    database: str
    table: str
    key: str | None = "id"
    cursor: str | None = "update_at"
    extra: frozenset[Any] = field(default_factory=frozenset)  # keys that were deliberately deleted there
    where: str = "TRUE"  # which rows are wanted,
    without: frozenset[str] = field(default_factory=frozenset)  # and which columns are not
    target: str | None = None  # where they go, if not to a table of the same name

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def into(self) -> str:
        return self.target or self.table


@dataclass(frozen=True)
class RawCommit:
    """One commit as stored."""

    n: int
    body: dict[str, Any]
    digest: str

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def rows(self) -> int:
        return sum(f["rows"] for f in self.body["files"])


def counted(data: Iterable[RawCommit]) -> tuple[int, int]:
    """Rows of windows, and rows read outside of them; keys count as neither, and a snapshot restarts the count."""
    rows = again = 0
    for c in data:
        if c.body["load_as"] == "replace":
            rows, again = c.rows, 0
        elif c.kind == "batch" and c.body["window_id"]:
            rows += c.rows
        elif c.kind == "batch":
            again += c.rows
    return rows, again


@dataclass(frozen=True)
class Loaded:
    """One row of the ledger."""

    log: str
    epoch: int
    n: int
    digest: str
    rows: int


def plain(value: Any) -> Any:
    """A value normalized for comparison: no time zones, no numbers as text, no trailing zeros."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, Decimal):
        return value.normalize()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return value


def place(cells: list[Any] | tuple[Any, ...] | None) -> Place | None:
    """A position from the log as a place comparable with rows."""
    if cells is None:
        return None
    return tuple(datetime.fromisoformat(c) if isinstance(c, str) and "-" in c else c for c in cells)


def source_rows(bench: Bench, source: Source) -> list[Row]:
    """The source's current rows."""
    link = bench.services.server.connect(source.database)
    try:
        cursor = link.cursor()
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT * FROM `{source.table}` WHERE {source.where}")
        names = [column[0].lower() for column in cursor.description]
        rows = [dict(zip(names, map(plain, row), strict=True)) for row in cursor.fetchall()]
        return [{n: v for n, v in row.items() if n not in source.without} for row in rows]
    finally:
        link.close()


def commits(bench: Bench, table: str) -> list[RawCommit]:
    """The table's log, ordered by object name."""
    found = []
    for path in bench.objects(f"commits/{table}/"):
        data = bench.get(path) or b""
        body = json.loads(data)
        digest = body.get("stands_for") or sha256(data).hexdigest()
        found.append(RawCommit(int(path.rpartition("/")[2].removesuffix(".json")), body, digest))
    return found


def file_rows(bench: Bench, path: str) -> tuple[list[Row], str] | None:
    """The rows of a data file and its checksum; None if it does not exist."""
    data = bench.get(path)
    return None if data is None else (_rows(data), sha256(data).hexdigest())


@lru_cache(maxsize=512)
def _rows(data: bytes) -> list[Row]:
    """Cached, because experiments start from copies and read the same files over and over."""
    rows = pq.read_table(io.BytesIO(data), use_threads=False).to_pylist()
    return [{name.lower(): plain(value) for name, value in row.items()} for row in rows]


def _ask(bench: Bench, sql: str) -> list[Row] | None:
    """The rows of a warehouse query; None if what it queries does not exist."""
    if bench.stack == "redshift":
        return _ask_redshift(bench, sql)
    if not bench.warehouse.exists():
        return None
    with duckdb.connect(str(bench.warehouse), read_only=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        try:
            return list(connection.sql(sql).to_arrow_table().to_pylist())
        except duckdb.CatalogException:
            return None


def _ask_redshift(bench: Bench, sql: str) -> list[Row] | None:
    server = bench.services.redshift
    table = sql.rpartition("FROM ")[2].strip().strip('"')
    names = [
        str(row[0])
        for row in server.execute(
            "SELECT column_name::text FROM information_schema.columns "
            f"WHERE table_schema = '{bench.schema}' AND table_name = '{table}' ORDER BY ordinal_position"
        )
    ]
    if not names:
        return None
    chosen = ", ".join(f'"{name}"' for name in names)
    rows = server.execute(f'SELECT {chosen} FROM {bench.schema}."{table}"')
    return [dict(zip(names, row, strict=True)) for row in rows]


def warehouse_columns(bench: Bench, target: str) -> set[str]:
    """The target's columns; none if it does not exist."""
    schema = bench.schema if bench.stack == "redshift" else "main"
    asked = (
        "SELECT column_name::varchar AS name FROM information_schema.columns "
        f"WHERE table_schema = '{schema}' AND table_name = '{target}'"
    )
    if bench.stack == "redshift":
        return {str(row[0]) for row in bench.services.redshift.execute(asked)}
    return {str(row["name"]) for row in _ask(bench, asked) or ()}


def warehouse_rows(bench: Bench, target: str) -> list[Row]:
    """The target's rows; none if it does not exist."""
    found = _ask(bench, f'SELECT * FROM "{target}"') or []
    return [{name.lower(): plain(value) for name, value in row.items()} for row in found]


def ledger(bench: Bench, table: str) -> list[Loaded]:
    """What the warehouse has loaded of a table, across all logs and epochs."""
    rows = _ask(bench, "SELECT * FROM floodmark_ledger") or []
    found = [
        Loaded(r["log_id"], r["epoch"], r["n"], r["digest"], r["rows"])
        for r in rows
        if r["source_table"] == table
    ]
    return sorted(found, key=lambda r: (r.epoch, r.n))


def tamper(bench: Bench) -> None:
    """Change the target by hand: remove some rows, alter others."""
    with duckdb.connect(str(bench.warehouse)) as connection:
        connection.execute("DELETE FROM orders WHERE id % 4 = 0")
        connection.execute("UPDATE orders SET note = 'by hand' WHERE id % 9 = 0")
