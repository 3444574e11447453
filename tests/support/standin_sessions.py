"""Helpers for tests of the stand-in for Redshift: a session of the real driver, and files to COPY."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from redshift_connector.error import Error as DriverError

from floodmark.load.redshift.merge import role_clause
from floodmark.load.redshift.steps import Problem, failure_of
from floodmark.store.store import Store


@dataclass
class Client:
    """A session of the real driver, in its own schema."""

    link: Any
    schema: str
    note: Callable[[dict[str, str | None]], None] = lambda refusal: None  # of refusals, for a report

    def __call__(self, sql: str, *values: object) -> list[list[Any]]:
        cursor = self.link.cursor()
        cursor.execute(sql, values or None)
        return [list(row) for row in cursor.fetchall()] if cursor.description else []

    def refused(self, sql: str) -> dict[str, str]:
        """Run a statement that must fail, and roll back; returns its error."""
        with pytest.raises(DriverError) as caught:
            self(sql)
        self.link.rollback()
        error = dict(caught.value.args[0])
        kind = type(failure_of(Problem(error["M"], error.get("D", ""), error["C"])).error).__name__
        self.note({"sqlstate": error["C"], "text": error["M"], "read_as": kind, "sql": sql[:200]})
        return error


Connect = Callable[..., Client]


@dataclass
class Lake:
    """Files on the S3 server, and COPY statements for them."""

    store: Store
    role: str

    def put(self, table: pa.Table | bytes, name: str = "", **options: Any) -> tuple[str, int]:
        """Store a Parquet file; returns its url and size."""
        if isinstance(table, pa.Table):
            buffer = io.BytesIO()
            pq.write_table(table, buffer, **options)
            table = buffer.getvalue()
        path = f"{name or secrets.token_hex(4)}.parquet"
        self.store.put(path, table)
        return self.store.uri(path), len(table)

    def manifest(self, *entries: dict[str, Any] | tuple[str, int]) -> str:
        listed = [
            e if isinstance(e, dict) else {"url": e[0], "mandatory": True, "meta": {"content_length": e[1]}}
            for e in entries
        ]
        path = f"{secrets.token_hex(4)}.manifest"
        self.store.put(path, json.dumps({"entries": listed}).encode())
        return self.store.uri(path)

    def copy(self, target: str, *tables: pa.Table, options: str = "", **write: Any) -> str:
        """The statement that loads some tables."""
        return self.of(target, self.manifest(*(self.put(table, **write) for table in tables)), options)

    def of(self, target: str, manifest: str, options: str = "") -> str:
        return (
            f"COPY {target} FROM '{manifest}' {role_clause(self.role)} MANIFEST FORMAT AS PARQUET {options}"
        )


def column(kind: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"c": pa.array(values, kind)})


def ids(*values: int) -> pa.Table:
    return column(pa.int64(), *values)


def detail(error: dict[str, str]) -> str:
    assert (error["C"], error["M"]) == ("XX000", "Spectrum Scan Error")
    return error["D"]


# ---------------------------------------------------------------- faults


def lose(client: Client, act: Callable[[], object]) -> None:
    with pytest.raises((DriverError, OSError), match=r"closed|reset|Broken"):
        act()
