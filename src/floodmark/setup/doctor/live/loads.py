"""A log without a source, for running our own loads: files in the store, commits, load requests."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.model.commit import Batch, DataFile, Deletes, LoadAs, by_key
from floodmark.model.table import Column, Mode, Recipe, SourceTable, Table
from floodmark.model.types import READ_FIELD, Field, file_schema
from floodmark.services.warehouse.files import file_fields
from floodmark.services.warehouse.protocol import LoadOutcome, LoadRequest, Numbered
from floodmark.services.warehouse.redshift.steps import Transport
from floodmark.setup.doctor.live.place import Live

ID = Column("id", "bigint(20)", "bigint", nullable=False)
NAME = Column(
    "name", "varchar(20)", "varchar", characters=20, octets=80, charset="utf8mb4", collation="utf8mb4_bin"
)
CODE = replace(NAME, name="code", nullable=False, collation="utf8mb4_general_ci")
SEEN = Column("update_at", "datetime(6)", "datetime", fraction=6)
NUMBER = Column("n", "int(11)", "int")


def live_table(
    name: str,
    columns: tuple[Column, ...],
    key: tuple[str, ...] = (),
    mode: Mode = "upsert",
    cursor: str | None = "update_at",
) -> Table:
    """A table of ours, as if described by the source."""
    return Table(SourceTable("live", name, columns), Recipe(key, cursor, mode, name))


def named(table: Table, name: str) -> Table:
    """The same table under another name."""
    return replace(table, source=replace(table.source, table=name), recipe=replace(table.recipe, target=name))


def with_columns(table: Table, *columns: Column) -> Table:
    """The same table with other columns."""
    return replace(table, source=replace(table.source, columns=columns))


ORDERS = live_table("orders", (ID, NAME, SEEN), ("id",))
EVENTS = live_table("events", (NUMBER, NAME), mode="append", cursor=None)
CODES = live_table("codes", (CODE, NUMBER, SEEN), ("code",))


@dataclass
class Log:
    """Commits of one table, numbered as they are made, and their loads."""

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
        """Add a commit of one file; `columns` as `arrow` takes them."""
        self.n += 1
        table = self.table
        told = load_as == "merge" and bool(table.key) and read is not None
        when = self.n * 2 + 1 if read == -1 else read
        file = self._file(columns, load_as, when if told else None)
        commit = (Deletes if by_key(load_as) else Batch)(
            n=self.n, id=f"id{self.n}", log=self.name, table_name=table.name, run="live", at=at, prev="", schema=table.fingerprint, files=(file,), load_as=load_as,
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
    """Values as in a file. Dates and times are days and microseconds since 1970: Python can't hold them all."""
    kind = field.arrow
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, kind)
