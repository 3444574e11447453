"""The files of a load: their fields, and their local paths, each file proven to match its commit."""

from __future__ import annotations

import hashlib
import itertools
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.load.columns import placed
from floodmark.model.commit import DataFile, LoadAs, by_key
from floodmark.model.errors import DataError
from floodmark.model.table import Table
from floodmark.model.types import READ_FIELD, Field
from floodmark.store.store import Store

T = TypeVar("T")
R = TypeVar("R")

PARALLEL = 8
# Whether a column's values repeat is judged by its first rows: this many, or fewer of this many bytes.
SAMPLE_ROWS = 60_000
SAMPLE_BYTES = 64 << 20
# Files smaller than this have no column with enough bytes to judge by.
FEW_BYTES = 1 << 20
# Values of this many bytes on average count as different, without comparing them: no dictionary takes longer ones.
LONG = 4096
# Values hardly repeat if at least this share of them is distinct.
DIFFERENT = 0.8


def fetch(
    store: Store,
    files: Sequence[DataFile],
    folder: Path,
    table: str,
    done: Callable[[int], None] = lambda number: None,
) -> list[Path]:
    """The local paths of the files, in order; downloaded into the folder unless the store is on disk.

    Raises DataError for a file that is gone or differs from its commit's size or checksum. `done` is called
    with the number of files that are there, from any thread.
    """

    def one(numbered: tuple[int, DataFile]) -> Path:
        number, file = numbered
        path = store.local(file.path)
        if path is None:
            path = folder / f"{number:06}.parquet"
            store.download(file.path, path, most=file.bytes)
        return _proven(path, file, store.uri(file.path), table)

    return parallel(one, list(enumerate(files)), PARALLEL, "fetch", done)


def parallel(
    work: Callable[[T], R],
    items: Sequence[T],
    most: int,
    name: str,
    done: Callable[[int], None] = lambda number: None,
) -> list[R]:
    """Run `work` on each item, `most` at a time; results in order. After a failure, no more are started.

    `done` is called with the number of items that are finished.
    """
    if not items:
        return []
    numbers = itertools.count(1)

    def one(item: T) -> R:
        made = work(item)
        done(next(numbers))
        return made

    if len(items) == 1:
        return [one(items[0])]
    with ThreadPoolExecutor(min(most, len(items)), thread_name_prefix=name) as pool:
        futures = [pool.submit(one, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def ascending(paths: Sequence[Path], column: str) -> list[tuple[Any, Any]] | None:
    """The first and last value of each file, in order, if the column strictly ascends across the files.

    No two files overlap then, and all values are distinct. None: the files don't show that.
    """
    ranges = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            values = file.read([column], use_threads=False).column(column).combine_chunks()
        if values.null_count or not pc.all(pc.greater(values[1:], values[:-1]), min_count=0).as_py():
            return None
        if len(values):
            ranges.append((values[0].as_py(), values[-1].as_py()))
    ranges.sort()
    return ranges if all(low[1] < high[0] for low, high in itertools.pairwise(ranges)) else None


def too_few(rows: int, size: int) -> bool:
    """Whether this is too little data to tell what repeats, so that the files need not be read."""
    return rows < SAMPLE_ROWS and size < FEW_BYTES


def hardly_repeats(paths: Sequence[Path], column: str) -> bool:
    """Whether almost all values of a column are distinct; False when there are too few to tell."""
    taken: list[pa.Array[Any]] = []
    rows = size = 0
    for path in paths:
        with pq.ParquetFile(path) as file:
            names = [file.schema.column(i).path for i in range(len(file.schema))]
            for group in range(file.num_row_groups):
                chunk = file.metadata.row_group(group).column(names.index(column))
                if chunk.has_dictionary_page:
                    return False  # the writer saw that they repeat
                if chunk.num_values and chunk.total_uncompressed_size >= chunk.num_values * LONG:
                    return True
                values = file.read_row_group(group, [column], use_threads=False).column(column)
                taken += values.slice(0, SAMPLE_ROWS - rows).chunks
                rows, size = sum(len(values) for values in taken), size + chunk.total_uncompressed_size
                if rows >= SAMPLE_ROWS or size >= SAMPLE_BYTES:
                    # count_distinct would take twice as long.
                    return len(pc.unique(pa.chunked_array(taken))) >= rows * DIFFERENT
    return False


def key_fields(table: Table, every: Sequence[Field]) -> tuple[Field, ...]:
    """The fields of the key, with its weight if there is one: the columns of a file of keys."""
    return tuple(f for f in every if f.file_only or (f.column in table.key and f.name == f.column))


def file_fields(table: Table, way: LoadAs, newest: Table) -> tuple[Field, ...]:
    """The fields of files that load this way, as the newest description places them: only the key's for a file of keys."""
    every = placed(table, newest)
    return key_fields(table, every) if by_key(way) else every


def check_footer(footer: pq.FileMetaData, file: DataFile, fields: Sequence[Field], uri: str) -> bool:
    """DataError if a file has other columns or rows than it should; returns whether READ_FIELD follows its fields."""
    found = footer.schema.to_arrow_schema()
    expected = [(field.name, field.arrow) for field in fields]
    told = found.names[len(expected) :] == [READ_FIELD]
    if found.names[: len(found.names) - told] != [name for name, _ in expected]:
        raise DataError(f"the file {uri} has columns {found.names}, not {[n for n, _ in expected]}")
    for (name, type_), is_type in zip(expected, found.types, strict=False):
        if not same_in_file(is_type, type_):
            raise DataError(f"column {name} is {is_type} in the file {uri}, not {type_}")
    if footer.num_rows != file.rows:
        said = f"the file {file.path} has {footer.num_rows:,} rows, but its commit says {file.rows:,}"
        raise DataError(said)
    return told


def same_in_file(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether a file stores both types alike."""
    return _in_file(one) == _in_file(other)


def _in_file(type_: pa.DataType) -> pa.DataType:
    """The type as a file stores it: Parquet does not record how wide Arrow's offsets are."""
    if pa.types.is_large_string(type_):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(type_) else type_


def missing(uri: str, table: str) -> DataError:
    """The error for a file that a commit names and the store lacks."""
    return DataError(
        f"the file {uri} is in the log but not in the store",
        hint=f"restore it, or read the table again: floodmark watermark reset -t {table}",
        table=table,
    )


def differs(uri: str, table: str, what: str) -> DataError:
    """The error for a file that does not match its commit."""
    return DataError(
        f"the file {uri} does not match its commit ({what})",
        hint=f"restore the right one, or read the table again: floodmark watermark reset -t {table}",
        table=table,
    )


def _proven(path: Path, file: DataFile, uri: str, table: str) -> Path:
    """The path, once size and checksum have matched the commit's."""
    try:
        found = path.stat()
        # Checked before reading: a device or a pipe might never end.
        if not stat.S_ISREG(found.st_mode) or found.st_size != file.bytes:
            raise differs(uri, table, f"{found.st_size:,} bytes instead of {file.bytes:,}")
        with path.open("rb") as stream:
            checksum = hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        raise missing(uri, table) from None
    if checksum != file.checksum:
        raise differs(uri, table, "a different checksum")
    return path
