"""The files of a load as COPY gets them: their footers read and proven first, then listed in a manifest.

COPY matches columns by position, not by name, and does not remember what it has loaded. So a footer must have
exactly the columns and rows that its commit and schema say, no file is listed twice, and the footers' ranges
of times and decimals are compared with what has arrived.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.host.temp import scratched
from floodmark.load.files import check_footer, differs, fetch, missing, parallel
from floodmark.model.commit import DataFile
from floodmark.model.errors import ConfigError, DataError, FloodmarkError
from floodmark.model.table import Table
from floodmark.model.times import wall_clock
from floodmark.model.types import Field
from floodmark.store.store import Store, encode

PARALLEL = 16
_FOOTER = 64 << 10  # bytes at a file's end; most footers fit
_LENGTH = 8  # bytes: the footer's length, and "PAR1"

Range = tuple[Any, Any]


@dataclass(frozen=True)
class Proven:
    """A file whose footer matches its commit."""

    file: DataFile
    ranges: dict[str, Range]  # by column: lowest and highest; no entry if all are NULL
    read: tuple[int, int] | None = None  # the range of READ_FIELD; None: the file lacks it

    @staticmethod
    def rows(files: Sequence[Proven]) -> int:
        return sum(proven.file.rows for proven in files)


def prove(
    store: Store,
    files: Sequence[DataFile],
    fields: Sequence[Field],
    table: str,
    done: Callable[[int], None] = lambda number: None,
) -> list[Proven]:
    """The files, each checked; DataError for one that is gone or does not match its commit.

    `done` is called with the number of files that are checked, from any thread.
    """
    if not store.uri("x").startswith("s3://"):
        raise ConfigError(
            "Redshift reads only from S3, but the store is a folder",
            hint="set store.url to s3://bucket/prefix, in the warehouse's Region",
        )

    def one(file: DataFile) -> Proven:
        return _proven(store, file, fields, table)

    if len({file.path for file in files}) != len(files):
        raise DataError("a file is in the log twice")
    return parallel(one, files, PARALLEL, "footers", done)


def _proven(store: Store, file: DataFile, fields: Sequence[Field], table: str) -> Proven:
    uri = store.uri(file.path)
    footer = _footer(store, file, uri, table)
    told = check_footer(footer, file, fields, uri) and file.rows
    return Proven(file, _ranges(footer, fields), _read(footer) if told else None)


def _read(metadata: pq.FileMetaData) -> Range:
    """The range of the last column, the read time; the widest possible if it is not known."""
    last = metadata.num_columns - 1
    found = [metadata.row_group(i).column(last).statistics for i in range(metadata.num_row_groups)]
    known = all(statistics is not None and not statistics.null_count for statistics in found)
    span = _span(metadata, last) if known else None
    return (0, 2**63 - 1) if span in (None, UNKNOWN) else span


def _footer(store: Store, file: DataFile, uri: str, table: str) -> pq.FileMetaData:
    """The file's footer, once its size has been compared; usually one small request."""
    wanted = _FOOTER
    while True:
        answer = store.end(file.path, wanted)
        if answer is None:
            raise missing(uri, table)
        size, end, etag = answer
        if size != file.bytes:
            raise differs(uri, table, f"{size:,} bytes instead of {file.bytes:,}")
        if file.etag is not None and etag is not None and etag != file.etag:
            # Rewritten since: a copy of the same bytes may have another ETag, so compare the bytes.
            with scratched("floodmark-load-") as folder:
                fetch(store, [file], folder, table)
        length = struct.unpack("<I", end[-_LENGTH:-4])[0] + _LENGTH if len(end) >= _LENGTH else 0
        if end[-4:] != b"PAR1" or length > size:
            raise differs(uri, table, "no Parquet footer")
        if length <= len(end):
            break
        wanted = length
    try:
        return pq.read_metadata(pa.BufferReader(end))
    except (pa.ArrowException, OSError) as error:
        raise differs(uri, table, f"a footer that can't be read: {error}") from error


def _ranges(metadata: pq.FileMetaData, fields: Sequence[Field]) -> dict[str, Range]:
    """The ranges of the compared columns over all row groups."""
    spans = {field.name: _span(metadata, i) for i, field in enumerate(fields) if _is_ordered(field)}
    return {name: span for name, span in spans.items() if span is not None}


def _span(metadata: pq.FileMetaData, column: int) -> Range | None:
    """The range of a column over all row groups: None if all are NULL, UNKNOWN if a group does not give one."""
    spans: list[Range] = []
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        statistics = group.column(column).statistics
        if statistics is not None and statistics.has_min_max:
            try:
                spans.append((statistics.min, statistics.max))
            except OverflowError:  # the year 0, which Python lacks
                return UNKNOWN
        elif statistics is None or statistics.null_count != group.num_rows:
            return UNKNOWN
    return (min(low for low, _ in spans), max(high for _, high in spans)) if spans else None


UNKNOWN: Range = (None, None)


def ranges(files: Sequence[Proven], fields: Sequence[Field]) -> dict[str, Range | None]:
    """What the staged rows must have, by column: lowest and highest, None if all NULL; absent if unknown."""
    found: dict[str, Range | None] = {}
    for field in fields:
        parts = [p.ranges[field.name] for p in files if field.name in p.ranges]
        if _is_ordered(field) and UNKNOWN not in parts:
            found[field.name] = (min(p[0] for p in parts), max(p[1] for p in parts)) if parts else None
    return found


def is_ranged(field: Field) -> bool:
    """Whether a wrong width or unit would show in the field's range."""
    kind = field.arrow
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date32(kind) or pa.types.is_decimal(kind))


def _is_ordered(field: Field) -> bool:
    """Whether Redshift orders the field's values as the footers' ranges do."""
    return is_ranged(field) or bool(pa.types.is_integer(field.arrow))


def as_text(value: Any) -> str:
    """A value of a range as text for Redshift."""
    if isinstance(value, datetime):
        return wall_clock(value)
    return value.isoformat() if isinstance(value, date) else f"{Decimal(value):f}"


# ---------------------------------------------------------------- manifests


# Writes a manifest of those of the files that have rows, and returns its address.
WriteManifest: TypeAlias = Callable[[Sequence[Proven]], str]


@contextmanager
def manifests(store: Store, table: Table, run: str) -> Iterator[WriteManifest]:
    """One load's manifests, in the store only while it runs."""
    prefix = (
        f"manifests/{encode(table.source.schema)}.{encode(table.source.table)}/{run}-{secrets.token_hex(4)}"
    )
    written: list[str] = []

    def write(files: Sequence[Proven]) -> str:
        entries = [
            {
                "url": store.uri(proven.file.path),
                "mandatory": True,
                "meta": {"content_length": proven.file.bytes},
            }
            for proven in files
            if proven.file.rows
        ]
        path = f"{prefix}-{len(written)}.manifest"
        store.put(path, json.dumps({"entries": entries}).encode())
        written.append(path)
        return store.uri(path)

    try:
        yield write
    finally:
        with suppress(FloodmarkError):  # one that stays behind does no harm
            store.delete(written)
