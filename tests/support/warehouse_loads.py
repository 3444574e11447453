"""Helpers for tests of warehouses: a log filled by hand, and private warehouses of every kind."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from redshift_connector.core import Connection as DriverConnection

from floodmark.config.load import Iam
from floodmark.load.duckdb.file import Connection
from floodmark.load.duckdb.warehouse import DuckDB
from floodmark.load.protocol import LoadOutcome, LoadRequest, Numbered, Warehouse
from floodmark.load.redshift.data_api import DataApiTransport
from floodmark.load.redshift.socket import SocketTransport
from floodmark.load.redshift.steps import Limits
from floodmark.load.redshift.warehouse import Redshift
from floodmark.model.commit import Batch, DataFile, Deletes, LoadAs, by_key
from floodmark.model.table import Column, Table
from floodmark.model.types import READ_FIELD, file_schema
from floodmark.store.store import Store
from tests.support.described import described
from tests.support.postgres import Postgres, Session
from tests.support.redshift import Fault, RedshiftStandIn
from tests.support.redshift.backend import Backend
from tests.support.redshift.wire import Gone

ID = Column("id", "bigint(20)", "bigint", nullable=False)
NAME = Column(
    "Name", "varchar(20)", "varchar", characters=20, octets=80, charset="utf8mb4", collation="utf8mb4_bin"
)
CODE = replace(NAME, name="code", nullable=False, collation="utf8mb4_general_ci")
SEEN = Column("update_at", "datetime(6)", "datetime", fraction=6)
INT = Column("n", "int(11)", "int")

ORDERS = described("shop", "orders", (ID, NAME, SEEN), ("id",), "update_at", "upsert", "orders")
EVENTS = described("shop", "events", (INT, NAME), (), None, "append", "events")
CODES = described("shop", "codes", (CODE, INT, SEEN), ("code",), "update_at", "upsert", "codes")


def target_by_hand(name: str = "VARCHAR(80)") -> str:
    """The target of ORDERS as somebody else created it; `name` is the type of that column."""
    return f"CREATE TABLE orders (id BIGINT, name {name}, update_at TIMESTAMP)"


def row(id: int, name: str | None = None, at: int | None = 1) -> dict[str, Any]:
    seen = datetime(2025, 1, 1, 0, 0, at, tzinfo=UTC) if at is not None else None
    return {"id": id, "Name": name, "update_at": seen}


def code(text: str, n: int, at: int = 1) -> dict[str, Any]:
    """A row whose key MySQL compares case-insensitively."""
    return {
        "code": text,
        "n": n,
        "update_at": row(0, at=at)["update_at"],
        "_floodmark_key": text.upper().encode(),
    }


class LosesCommit(DuckDB):
    """A DuckDB whose answer to COMMIT is lost, before or after the commit happens."""

    when = "after"

    def _commit(self, con: Connection) -> None:
        if self.when == "after":
            super()._commit(con)
        raise duckdb.IOException("IO Error: the answer was lost")


class LosesCommitAndFile(DuckDB):
    """A DuckDB that can't be reopened after an unanswered COMMIT."""

    def _commit(self, con: Connection) -> None:
        super()._commit(con)
        con.close()
        self.path.write_bytes(b"damaged")
        raise duckdb.IOException("IO Error: the answer was lost")


class DuckPlace:
    """A private DuckDB file, and a way to query it that bypasses our code."""

    kind = "duckdb"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "w.duckdb"

    def open(self) -> Warehouse:
        return DuckDB(self.path, lock_seconds=1.0)

    def losing(self, when: str) -> Warehouse:
        warehouse = LosesCommit(self.path)
        warehouse.when = when
        return warehouse

    def gone_after_commit(self) -> Warehouse:
        return LosesCommitAndFile(self.path)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(self.path) as con:
            return con.execute(sql).fetchall()

    def columns(self, target: str) -> list[tuple[str, str]]:
        return self.run(f"SELECT column_name, column_type FROM (DESCRIBE {target})")

    @property
    def empty(self) -> bool:
        return not self.path.exists()

    @property
    def spec(self) -> dict[str, Any]:
        return {"kind": "duckdb", "schema": "main", "path": str(self.path)}


class RedshiftPlace:
    """A private place in the stand-in; `run` queries it through the driver alone."""

    kind = "redshift"

    def __init__(self, server: RedshiftStandIn, schema: str = "") -> None:
        self.server = server
        self.limits = server.limits
        self.schema = schema or server.new_schema()
        self.run(f"CREATE SCHEMA {self.schema}")

    def open(self, limits: Limits | None = None) -> Redshift:
        self.server.faults.clear()
        return self.faulty(limits)

    def faulty(self, limits: Limits | None = None) -> Redshift:
        """A warehouse that the armed faults affect."""
        return self.through(SocketTransport, limits)

    def through(
        self, kind: type[SocketTransport] = SocketTransport, limits: Limits | None = None, **address: Any
    ) -> Redshift:
        """The same over another kind of connection, or with another address or name."""
        limits = limits or self.limits
        transport = kind(self.server.warehouse_spec(self.schema, **address), limits)
        return Redshift(transport, self.schema, iam_role=self.server.role)

    def losing(self, when: str) -> Warehouse:
        warehouse = self.open()
        if when == "after":
            self.server.faults.drop_after_commit()
        else:
            self.server.faults.drop_before_commit(times=100)
        return warehouse

    def gone_after_commit(self) -> Warehouse:
        warehouse = self.open(replace(self.limits, attempts=2))
        self.server.faults.drop_after_commit()
        self.server.faults.arm(Fault("drop", r"\s*lock\b", times=100, skip=1))
        return warehouse

    def connect(self) -> DriverConnection:
        connection = self.server.connection()
        connection.cursor().execute(f"SET search_path TO {self.schema}")
        return connection

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        connection = self.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(sql)
            return [tuple(found) for found in cursor.fetchall()] if cursor.description else []
        finally:
            connection.close()

    def sent(self, *words: str) -> list[str]:
        """The statements since the start of the test that begin with these words."""
        return [sql for sql in self.server.faults.statements if sql.startswith(words)]

    def columns(self, target: str) -> list[tuple[str, str]]:
        return self.run(f"SELECT \"column\", type FROM pg_table_def WHERE tablename = '{target}'")

    @property
    def empty(self) -> bool:
        return self.run(f"SELECT table_name FROM svv_tables WHERE table_schema = '{self.schema}'") == []

    @property
    def spec(self) -> dict[str, Any]:
        options = self.server.options()
        options.pop("ssl")
        return {"kind": "redshift", "schema": self.schema, "iam_role": self.server.role, **options}


@contextmanager
def own_schema(redshift: RedshiftStandIn) -> Iterator[RedshiftPlace]:
    """A private schema in the stand-in, which has no faults armed before and after."""
    redshift.faults.clear()
    redshift.faults.statements.clear()  # so that `sent` covers only this test
    yield RedshiftPlace(redshift)
    redshift.faults.clear()
    redshift.resume()


class DataApiPlace(RedshiftPlace):
    """The same place through the Data API, with requests validated by botocore's own models."""

    kind = "data_api"

    def __init__(self, server: RedshiftStandIn, schema: str = "") -> None:
        super().__init__(server, schema)
        self.client = server.data_api(self.connect)

    def faulty(self, limits: Limits | None = None) -> Redshift:
        limits = limits or self.limits
        more = {"password": None, "iam": Iam(cluster="c")} if self.server.standin else {}
        spec = self.server.warehouse_spec(self.schema, **more, transport="data_api")
        transport = DataApiTransport(spec, limits, self.client, poll=0.01 if self.server.standin else 0.2)
        return Redshift(transport, self.schema, iam_role=self.server.role)


class LosesPostgresCommit(Postgres):
    """A PostgreSQL whose answer to COMMIT is lost, before or after the commit happens; perhaps for good."""

    when = "after"
    for_good = False

    def _commit(self, session: Session) -> None:
        if self.when == "after":
            super()._commit(session)
        if self.for_good:
            self._connect = self._refused
        session.close()
        raise Gone("the answer was lost")

    def _refused(self) -> Backend:
        raise Gone("the server is gone")


class PostgresPlace:
    """A private schema of PostgreSQL, the warehouse that only tests know."""

    kind = "postgres"

    def __init__(self, folder: Path, database: str, schema: str) -> None:
        self.folder, self.database, self.schema = folder, database, schema

    def connect(self) -> Backend:
        return Backend.own(self.folder, self.database)

    def open(self) -> Warehouse:
        return Postgres(self.connect, self.schema, wait=5.0)

    def losing(self, when: str) -> Warehouse:
        warehouse = LosesPostgresCommit(self.connect, self.schema)
        warehouse.when = when
        return warehouse

    def gone_after_commit(self) -> Warehouse:
        warehouse = LosesPostgresCommit(self.connect, self.schema)
        warehouse.for_good = True
        return warehouse

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        session = Session(self.connect())
        try:
            session.run(f"SET search_path TO {self.schema}")
            return session.query(sql)
        finally:
            session.close()

    def columns(self, target: str) -> list[tuple[str, str]]:
        return self.run(
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = '{target}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )

    @property
    def empty(self) -> bool:
        return self.run(f"SELECT 1 FROM pg_tables WHERE schemaname = '{self.schema}'") == []

    @property
    def spec(self) -> dict[str, Any]:
        return {
            "kind": "postgres",
            "schema": self.schema,
            "host": str(self.folder),
            "database": self.database,
        }


Place = DuckPlace | RedshiftPlace | PostgresPlace


@dataclass
class Fill:
    """A log filled by hand, and its loads."""

    place: Place
    store: Store
    table: Table = ORDERS
    log: str = "log-1"
    pipeline: str = "pipe-1"
    epoch: int = 0
    n: int = 0
    made: list[Numbered] = field(default_factory=list)
    warehouse: Warehouse | None = None
    dictionary: bool = True  # whether files are written with dictionaries

    @property
    def redshift(self) -> RedshiftPlace:
        """The place, for tests of Redshift only."""
        assert isinstance(self.place, RedshiftPlace)
        return self.place

    def commit(
        self,
        *files: list[dict[str, Any]],
        load_as: LoadAs = "merge",
        table: Table | None = None,
        at: str = "",
        read: int | None = -1,
    ) -> Numbered:
        """Add a commit to the log, with a file for each list of rows; `read` as in a slice of its claim.

        By default each commit has its own claim; None: files from an older release, which don't record it.
        """
        table = table or self.table
        self.n += 1
        told = None if by_key(load_as) or load_as == "replace" or not table.key else read
        when = self.n * 2 + 1 if told == -1 else told
        written = tuple(self._file(rows, table, load_as, i, when) for i, rows in enumerate(files))
        commit = (Deletes if by_key(load_as) else Batch)(
            n=self.n, id=f"id{self.n}", log=self.log, table_name=table.name, run="run", at=at, prev="", schema=table.fingerprint, files=written, load_as=load_as,
        )  # fmt: skip
        self.made.append((commit, f"digest-{self.log}-{self.n}"))
        return self.made[-1]

    def window(self, *files: list[dict[str, Any]], load_as: LoadAs = "merge") -> Numbered:
        """Add a commit of a window's rows."""
        commit, digest = self.commit(*files, load_as=load_as)
        assert isinstance(commit, Batch)
        self.made[-1] = (replace(commit, window_id="w"), digest)
        return self.made[-1]

    def _file(
        self, rows: list[dict[str, Any]], table: Table, load_as: LoadAs, i: int, read: int | None
    ) -> DataFile:
        schema = file_schema(table)
        if by_key(load_as):
            schema = pa.schema([f for f in schema if f.name in (*table.key, "_floodmark_key")])
        if read is not None:
            schema = schema.append(pa.field(READ_FIELD, pa.int64()))
            rows = [{**values, READ_FIELD: read} for values in rows]
        body = io.BytesIO()
        content = pa.Table.from_pylist(rows, schema=schema)
        pq.write_table(content, body, store_schema=False, use_dictionary=self.dictionary)
        data, path = body.getvalue(), f"data/{table.name}/{self.log}-{self.n}-{i}.parquet"
        etag = self.store.put(path, data)
        return DataFile(path, len(rows), len(data), hashlib.sha256(data).hexdigest(), i, etag=etag)

    def request(self, *commits: Numbered, **more: Any) -> LoadRequest:
        table = more.pop("table", self.table)
        values = {"target": table.target, "epoch": self.epoch, "run": "run", **more}
        return LoadRequest(
            pipeline=self.pipeline, log=self.log, table=table, commits=commits, store=self.store, **values
        )

    def load(self, *commits: Numbered, **more: Any) -> LoadOutcome:
        return (self.warehouse or self.place.open()).load(self.request(*commits, **more))

    def rows(self, columns: str = "id, name", target: str | None = None) -> list[tuple[Any, ...]]:
        found = self.place.run(f"SELECT {columns} FROM {target or self.table.target}")
        return sorted(found, key=lambda values: [(value is None, value) for value in values])

    def ledger(self) -> list[int]:
        found = self.place.run(f"SELECT n FROM floodmark_ledger WHERE log_id = '{self.log}' ORDER BY n")
        return [found_row[0] for found_row in found]


def as_json(store: Store) -> dict[str, Any]:
    """A store's address, to pass to another process."""
    return asdict(store.spec)
