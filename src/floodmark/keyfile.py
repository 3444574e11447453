"""Files of keys: what a `deletes` commit names. The same dialect and footer as data files, the key's columns only."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.extremes import members
from floodmark.model import Column, DataFile, Key, Table, Value
from floodmark.mysql.convert import to_arrow
from floodmark.mysql.sql import BINARY
from floodmark.store import Store, encode
from floodmark.types import fields
from floodmark.warehouse.files import key_fields

# Keys of one file.
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
    """Puts the keys, with MySQL's weights of them, into the store; files that no commit names are orphans."""
    folder = f"data/{encode(table.schema)}.{encode(table.table)}/{run}"
    attempt = secrets.token_hex(4)
    files = []
    for number, start in enumerate(range(0, len(keys), KEYS_PER_FILE)):
        end = start + KEYS_PER_FILE
        footer = {
            "table": table.name,
            "log": log,
            "run": run,
            "claim": str(claim),
            "window": "",
            "slice": f"deletes/{number}",
            "schema": table.fingerprint,
            "attempt": attempt,
            "first": json.dumps(None),
            "last": json.dumps(None),
        }
        data = _parquet(table, keys[start:end], weights[start:end], footer)
        path = f"{folder}/{claim}-deletes{number}-{attempt}.parquet"
        etag = store.put(path, memoryview(data))
        files.append(
            DataFile(
                path=path,
                rows=len(keys[start:end]),
                bytes=data.size,
                checksum=hashlib.sha256(data).hexdigest(),
                slice=number,
                created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                etag=etag,
            )
        )
    return tuple(files)


def _parquet(
    table: Table, keys: Sequence[Key], weights: Sequence[bytes | None], footer: dict[str, str]
) -> pa.Buffer:
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
    with pq.ParquetWriter(
        sink,
        schema,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=1,
        store_schema=False,
    ) as writer:
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        writer.add_key_value_metadata({f"floodmark.{name}": value for name, value in footer.items()})
    return sink.getvalue()


def _cell(column: Column, value: Value | None) -> bytes | None:
    """The value as MySQL's text protocol gives it for the column's field."""
    if value is None:
        return None
    if isinstance(value, int) and column.data_type == "enum":
        return members(column)[value - 1].encode() if value else b""
    if isinstance(value, int) and column.data_type == "set":
        return ",".join(m for i, m in enumerate(members(column)) if value >> i & 1).encode()
    if isinstance(value, str) and column.data_type in BINARY:
        return bytes.fromhex(value.removeprefix("0x"))
    return str(value).encode()
