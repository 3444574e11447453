"""Key files, named by a `deletes` commit: like data files, but with only the key's columns."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import pyarrow as pa

from floodmark.model.commit import DataFile
from floodmark.model.parquet import Footer, data_file, writer
from floodmark.model.position import Key, Value
from floodmark.model.table import Column, Table
from floodmark.model.times import stamp
from floodmark.model.types import fields
from floodmark.services.mysql.convert import to_arrow
from floodmark.services.mysql.sql import BINARY
from floodmark.services.store.store import Store, encode
from floodmark.services.warehouse.files import key_fields

# Keys per file.
KEYS_PER_FILE = 500_000


def write_keys(
    store: Store,
    table: Table,
    keys: Sequence[Key],
    weights: Sequence[bytes | None],
    *,
    run: str,
    claim: int,
    log: str,
) -> tuple[DataFile, ...]:
    """Writes the keys, with their MySQL weights, to the store; files that no commit names are orphans."""
    folder = f"data/{encode(table.source.schema)}.{encode(table.source.table)}/{run}"
    attempt = secrets.token_hex(4)
    files = []
    for number, start in enumerate(range(0, len(keys), KEYS_PER_FILE)):
        end = start + KEYS_PER_FILE
        footer = Footer(table.name, log, run, claim, None, "deletes", number, table.fingerprint, attempt)
        data = _parquet(table, keys[start:end], weights[start:end], footer)
        path = f"{folder}/{claim}-deletes{number}-{attempt}.parquet"
        etag = store.put(path, memoryview(data))
        files.append(data_file(path, data, footer, len(keys[start:end]), created_at=stamp(), etag=etag))
    return tuple(files)


def _parquet(table: Table, keys: Sequence[Key], weights: Sequence[bytes | None], footer: Footer) -> pa.Buffer:
    found = key_fields(table, fields(table))
    arrays = []
    for field in found:
        if field.file_only:
            arrays.append(pa.array(weights, field.arrow))
            continue
        place, column = table.key.index(field.column), table.column(field.column)
        arrays.append(to_arrow(field, [_cell(column, key[place]) for key in keys], table))
    schema = pa.schema([pa.field(field.name, field.arrow) for field in found])
    sink = pa.BufferOutputStream()
    with writer(sink, schema) as file:
        file.write_table(pa.Table.from_arrays(arrays, schema=schema))
        file.add_key_value_metadata(footer.metadata())
    return sink.getvalue()


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
