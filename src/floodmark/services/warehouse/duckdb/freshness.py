"""`floodmark_freshness` in a DuckDB file: one statement for all targets of a run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from floodmark.services.warehouse.duckdb.file import Connection
from floodmark.services.warehouse.duckdb.ledger import kind_of
from floodmark.services.warehouse.freshness import COLUMNS, FRESHNESS, Freshness
from floodmark.services.warehouse.protocol import quote

_TYPES = (
    "target VARCHAR PRIMARY KEY, source_table VARCHAR, as_of TIMESTAMP, checked_at TIMESTAMP, "
    "watermark VARCHAR, commit_n BIGINT, run VARCHAR"
)


def write(con: Connection, schema: str, rows: Sequence[Freshness]) -> None:
    """Inserts or advances the rows."""
    if kind_of(con, schema, FRESHNESS) is None:
        con.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}")
        con.execute(f"CREATE TABLE IF NOT EXISTS {quote(schema, FRESHNESS)} ({_TYPES})")
    places = ", ".join(f"({', '.join('?' for _ in COLUMNS)})" for _ in rows)
    changed = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name != "target")
    con.execute(
        f"INSERT INTO {quote(schema, FRESHNESS)} ({', '.join(COLUMNS)}) VALUES {places} ON CONFLICT (target) "
        f"DO UPDATE SET {changed} WHERE excluded.as_of >= as_of",
        [value for row in rows for value in _values(row)],
    )


def _values(row: Freshness) -> list[object]:
    found = [getattr(row, name) for name in COLUMNS]
    return [one.astimezone(UTC).replace(tzinfo=None) if isinstance(one, datetime) else one for one in found]
