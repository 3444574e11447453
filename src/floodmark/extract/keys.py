"""Files of keys: those of a commit, whose rows leave the target, and those of the source's log, whose rows are read.

The first are like data files, but have only the key's columns, with MySQL's weights. A key of the second may occur
often, and in no order. A key is absent if no row was read that a load would take for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.extract.files import put_file
from floodmark.host.temp import scratched
from floodmark.load.files import fetch, key_fields, same_in_file
from floodmark.model.changes import DoesNotFit
from floodmark.model.commit import DataFile
from floodmark.model.keys import distinct, keys_of
from floodmark.model.parquet import Footer, writer
from floodmark.model.position import Key, Value
from floodmark.model.table import Column, Table
from floodmark.model.types import TWIN, Field, fields, schema_of
from floodmark.source.ranges import key_weights
from floodmark.source.read import to_arrow
from floodmark.source.session import Session
from floodmark.source.sql import BINARY
from floodmark.store.store import Store, changed_keys, file_folders

# Keys per file.
KEYS_PER_FILE = 500_000
# Keys of the log that the driver holds at once, repetitions included.
HELD = 5_000_000


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
    folder, attempt = file_folders(table.name)[1], secrets.token_hex(4)
    files = []
    for number, start in enumerate(range(0, keys.num_rows, KEYS_PER_FILE)):
        footer = Footer(table.name, log, run, claim, None, kind, number, table.fingerprint, attempt)
        files.append(_put(store, folder, keys.slice(start, KEYS_PER_FILE), footer))
    return tuple(files)


def write_changed_keys(
    store: Store, name: str, keys: Sequence[pa.RecordBatch], *, run: str, claim: int, log: str
) -> DataFile:
    """Writes keys of rows that the binary log says have changed, each once, for the source's log of changes."""
    footer = Footer(name, log, run, claim, None, "changes", 0, "", secrets.token_hex(8))
    return _put(store, changed_keys(name), distinct(pa.Table.from_batches(keys)), footer)


def _put(store: Store, folder: str, keys: pa.Table, footer: Footer) -> DataFile:
    sink = pa.BufferOutputStream()
    with writer(sink, keys.schema) as file:
        file.write_table(keys)
        file.add_key_value_metadata(footer.metadata())
    path = f"{folder}{footer.run}/{footer.claim}-{footer.kind}{footer.slice}-{footer.attempt}.parquet"
    return put_file(store, path, sink.getvalue(), footer, keys.num_rows)


def portions(files: Sequence[DataFile], most: int = HELD) -> Iterator[list[DataFile]]:
    """The files in groups of about so many keys, to be read one after the other."""
    group: list[DataFile] = []
    for file in files:
        if group and sum(one.rows for one in group) + file.rows > most:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def read_keys(store: Store, table: Table, files: Sequence[DataFile]) -> pa.Table:
    """The keys in files, the source's log's or a commit's, sorted, each once; DoesNotFit if the key has been another one since."""
    found = [schema_of(_own_fields(table)).empty_table()]
    with scratched("floodmark-keys-") as folder:
        for path in fetch(store, files, folder, table.name):
            with pq.ParquetFile(path) as file:
                there = set(file.schema_arrow.names)
                found.append(
                    fitting(table, file.read([f.name for f in _own_fields(table) if f.name in there]))
                )
    return distinct(pa.concat_tables(found))


def fitting(table: Table, keys: pa.Table) -> pa.Table:
    """Keys of the source's log as the table's, sorted, each once; DoesNotFit if the key has been another one since."""
    wanted = _own_fields(table)
    for field in wanted:
        there = keys.schema.field(field.name).type if field.name in keys.schema.names else None
        if there is None or not same_in_file(there, field.arrow):
            raise DoesNotFit(f"{field.name} is {field.arrow}, but {there} in the log's keys")
    return distinct(keys.select([f.name for f in wanted]).cast(schema_of(wanted)))


def key_table(table: Table, keys: Sequence[Key]) -> pa.Table:
    """Keys as the columns that a data file has for them, sorted, each once."""
    found, arrays = _own_fields(table), []
    for field in found:
        place, column = table.key.index(field.column), table.column(field.column)
        arrays.append(to_arrow(field, [_cell(column, key[place]) for key in keys], table))
    return distinct(pa.Table.from_arrays(arrays, schema=schema_of(found)))


def with_weights(table: Table, keys: pa.Table, weights: Sequence[bytes | None]) -> pa.Table:
    """The keys and their MySQL weights as the columns of a key file."""
    found = key_fields(table, fields(table))
    columns = [pa.array(weights, f.arrow) if f.file_only else keys.column(f.name) for f in found]
    return pa.Table.from_arrays(columns, schema=schema_of(found))


def absent_keys(session: Session, table: Table, asked: pa.Table, rows: Sequence[pa.Table]) -> pa.Table:
    """Those of the asked keys that none of the rows has, as the columns of a key file.

    Compared as a load compares them, by their bytes or by MySQL's weights: a row whose key is spelled differently is
    found under either spelling.
    """
    there = pa.concat_tables(rows)
    rest = asked.filter(pc.invert(_among(asked, there)))
    for name in table.key:
        if table.column(name).data_type in ("enum", "set"):
            # No target has such a value: its rows can't be read.
            rest = rest.filter(pc.invert(pc.starts_with(rest.column(name), TWIN)))
    weight = next((f.name for f in fields(table) if f.file_only), None)
    if weight is None or not rest.num_rows:
        return with_weights(table, rest, [None] * rest.num_rows)
    found = with_weights(table, rest, key_weights(session, table, keys_of(table, rest)))
    known = there.column(weight).combine_chunks()
    return found.filter(pc.invert(pc.is_in(found.column(weight), value_set=known)))


def _among(asked: pa.Table, there: pa.Table) -> Any:
    """Which of the keys are among others, by their bytes."""
    if len(asked.column_names) == 1:
        return pc.is_in(asked.column(0), value_set=there.column(asked.column_names[0]).combine_chunks())
    known = set(zip(*(there.column(name).to_pylist() for name in asked.column_names), strict=True))
    mine = zip(*(column.to_pylist() for column in asked.columns), strict=True)
    return pa.array([key in known for key in mine], pa.bool_())


def _own_fields(table: Table) -> list[Field]:
    """The fields of the key's own columns, in the key's order."""
    found = [f for f in key_fields(table, fields(table)) if not f.file_only]
    return sorted(found, key=lambda f: table.key.index(f.column))


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
