"""A log that exists in the store only, to run our own loads with: files, commits, requests."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.doctor.live.place import Live
from floodmark.model import Column, Commit, DataFile, LoadAs, Table, by_key
from floodmark.types import READ_FIELD, Field, file_schema
from floodmark.warehouse import LoadOutcome, LoadRequest, Numbered
from floodmark.warehouse.files import file_fields
from floodmark.warehouse.redshift_steps import Transport

ID = Column("id", "bigint(20)", "bigint", nullable=False)
NAME = Column(
    "name", "varchar(20)", "varchar", characters=20, octets=80, charset="utf8mb4", collation="utf8mb4_bin"
)
CODE = replace(NAME, name="code", nullable=False, collation="utf8mb4_general_ci")
SEEN = Column("update_at", "datetime(6)", "datetime", fraction=6)
NUMBER = Column("n", "int(11)", "int")

ORDERS = Table("live", "orders", (ID, NAME, SEEN), ("id",), "update_at", "upsert", "orders")
EVENTS = Table("live", "events", (NUMBER, NAME), (), None, "append", "events")
CODES = Table("live", "codes", (CODE, NUMBER, SEEN), ("code",), "update_at", "upsert", "codes")


@dataclass
class Log:
    """Commits of one table, numbered as they are made, and loads of them."""

    live: Live
    table: Table
    transport: Transport | None = None
    n: int = 0
    large_strings: bool = False

    @property
    def name(self) -> str:
        return f"log-{self.table.target}"

    def commit(
        self,
        columns: Mapping[str, Sequence[Any]],
        load_as: LoadAs = "merge",
        *,
        read: int | None = -1,
        at: str = "2025-01-01T00:00:00.000000Z",
    ) -> Numbered:
        """One more commit, of one file; `columns` as `arrow` takes them."""
        self.n += 1
        table = self.table
        told = load_as == "merge" and bool(table.key) and read is not None
        when = self.n * 2 + 1 if read == -1 else read
        file = self._file(columns, load_as, when if told else None)
        commit = Commit(
            self.n, f"id{self.n}", self.name, "deletes" if by_key(load_as) else "batch", table.name, "live", at, "",
            schema=table.fingerprint, files=(file,), load_as=load_as,
        )  # fmt: skip
        return commit, hashlib.sha256(f"{self.name}/{self.n}".encode()).hexdigest()

    def _file(self, columns: Mapping[str, Sequence[Any]], load_as: LoadAs, read: int | None) -> DataFile:
        fields = file_fields(self.table, load_as)
        rows = len(next(iter(columns.values())))
        arrays = {f.name: arrow(f, columns.get(f.name, [None] * rows)) for f in fields}
        schema = file_schema(self.table)
        made = pa.table(arrays, schema=pa.schema([schema.field(f.name) for f in fields]))
        if read is not None:
            made = made.append_column(READ_FIELD, pa.array([read] * rows, pa.int64()))
        body = io.BytesIO()
        pq.write_table(made, body, store_schema=False)
        data, name = body.getvalue(), f"data/{self.table.target}/{self.n}.parquet"
        etag = self.live.store.put(name, data)
        self.live.files, self.live.sent = self.live.files + 1, self.live.sent + len(data)
        return DataFile(name, rows, len(data), hashlib.sha256(data).hexdigest(), 0, etag=etag)

    def request(self, *commits: Numbered, **more: Any) -> LoadRequest:
        values = {"target": self.table.target, "epoch": 0, "run": "live", **more}
        return LoadRequest(
            pipeline="live", log=self.name, table=self.table, commits=commits, store=self.live.store, **values
        )

    def load(self, *commits: Numbered, **more: Any) -> LoadOutcome:
        warehouse = self.live.warehouse(self.transport, large_strings=self.large_strings)
        return warehouse.load(self.request(*commits, **more))


def arrow(field: Field, values: Sequence[Any]) -> pa.Array[Any]:
    """Values as a file has them: days and microseconds since 1970 for dates and times, which Python may not know."""
    kind = field.arrow
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)
