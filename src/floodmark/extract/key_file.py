"""Key files, named by a `deletes` commit: like data files, but with only the key's columns."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from floodmark.load.files import key_fields
from floodmark.model.commit import DataFile
from floodmark.model.parquet import Footer, data_file, writer
from floodmark.model.position import Key, Value
from floodmark.model.table import Column, Table
from floodmark.model.times import stamp
from floodmark.model.types import fields, schema_of
from floodmark.source.read import to_arrow
from floodmark.source.sql import BINARY
from floodmark.store.store import Store, file_folders

# Keys per file.
KEYS_PER_FILE = 500_000


def write_keys(
    store: Store,
    table: Table,
    keys: pa.Table,
    *,
    run: str,
    claim: int,
    log: str,
    kind: Literal["deletes", "where"] = "deletes",
) -> tuple[DataFile, ...]:
    """Writes the keys, with their MySQL weights, to the store; files that no commit names are orphans."""
    folder = file_folders(table.name)[1] + run
    attempt = secrets.token_hex(4)
    files = []
    for number, start in enumerate(range(0, keys.num_rows, KEYS_PER_FILE)):
        some = keys.slice(start, KEYS_PER_FILE)
        footer = Footer(table.name, log, run, claim, None, kind, number, table.fingerprint, attempt)
        sink = pa.BufferOutputStream()
        with writer(sink, keys.schema) as file:
            file.write_table(some)
            file.add_key_value_metadata(footer.metadata())
        data = sink.getvalue()
        path = f"{folder}/{claim}-{kind}{number}-{attempt}.parquet"
        etag = store.put(path, memoryview(data))
        files.append(data_file(path, data, footer, some.num_rows, created_at=stamp(), etag=etag))
    return tuple(files)


def key_table(table: Table, keys: Sequence[Key], weights: Sequence[bytes | None]) -> pa.Table:
    """Keys and their MySQL weights as the columns of a key file."""
    found = key_fields(table, fields(table))
    arrays = []
    for field in found:
        if field.file_only:
            arrays.append(pa.array(weights, field.arrow))
            continue
        place, column = table.key.index(field.column), table.column(field.column)
        arrays.append(to_arrow(field, [_cell(column, key[place]) for key in keys], table))
    return pa.Table.from_arrays(arrays, schema=schema_of(found))


def _cell(column: Column, value: Value | None) -> bytes | None:
    """The value as MySQL's text protocol returns it for the column's field."""
    if value is None:
        return None
    if isinstance(value, int) and column.data_type == "enum":
        return column.members[value - 1].encode() if value else b""
    if isinstance(value, int) and column.data_type == "set":
        return ",".join(m for i, m in enumerate(column.members) if value >> i & 1).encode()
    if isinstance(value, str) and column.data_type in BINARY:
        return bytes.fromhex(value.removeprefix("0x"))
    return str(value).encode()
