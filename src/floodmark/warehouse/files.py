"""The files of a load: their fields, and on local disk, each proven to be what its commit describes."""

from __future__ import annotations

import hashlib
import itertools
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.errors import DataError
from floodmark.model import DataFile, LoadAs, Table, by_key
from floodmark.store import Store
from floodmark.types import Field, fields

PARALLEL = 8
# Whether a column repeats itself is judged by its first values: by so many, or by fewer that have so many bytes.
SAMPLE_ROWS = 60_000
SAMPLE_BYTES = 64 << 20
# Files of fewer bytes have no column that could be judged by its bytes.
FEW_BYTES = 1 << 20
# It hardly does when at least this share of them are different.
DIFFERENT = 0.8


def fetch(store: Store, files: Sequence[DataFile], folder: Path, table: str) -> list[Path]:
    """The local paths of the files, in order; downloaded into the folder unless the store is on disk.

    Raises DataError for a file that is gone or differs from its commit's size or checksum.
    """

    def one(numbered: tuple[int, DataFile]) -> Path:
        number, file = numbered
        path = store.local(file.path)
        if path is None:
            path = folder / f"{number:06}.parquet"
            store.download(file.path, path, most=file.bytes)
        return _proven(path, file, store.uri(file.path), table)

    if not files:
        return []
    with ThreadPoolExecutor(min(PARALLEL, len(files)), thread_name_prefix="fetch") as pool:
        futures = [pool.submit(one, numbered) for numbered in enumerate(files)]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def ascending(paths: Sequence[Path], column: str) -> list[tuple[Any, Any]] | None:
    """The first and the last value of each file, in order, when a column only ever grows and no two files overlap.

    Then all of its values differ. None: that does not show.
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
    """Whether files of so many rows and bytes can't show what repeats, so that no look at them is needed."""
    return rows < SAMPLE_ROWS and size < FEW_BYTES


def hardly_repeats(paths: Sequence[Path], column: str) -> bool:
    """Whether next to no value of a column is there twice; False where there are too few to say."""
    taken: list[pa.Array[Any]] = []
    rows = size = 0
    for path in paths:
        with pq.ParquetFile(path) as file:
            names = [file.schema.column(i).path for i in range(len(file.schema))]
            for group in range(file.num_row_groups):
                chunk = file.metadata.row_group(group).column(names.index(column))
                if chunk.has_dictionary_page:
                    return False  # whoever wrote it has seen that they repeat
                values = file.read_row_group(group, [column], use_threads=False).column(column)
                taken += values.slice(0, SAMPLE_ROWS - rows).chunks
                rows, size = sum(len(values) for values in taken), size + chunk.total_uncompressed_size
                if rows >= SAMPLE_ROWS or size >= SAMPLE_BYTES:
                    # Not count_distinct, which takes twice as long.
                    return len(pc.unique(pa.chunked_array(taken))) >= rows * DIFFERENT
    return False


def key_fields(table: Table, every: Sequence[Field]) -> tuple[Field, ...]:
    """The fields of the key, with its weight where there is one: what a file of keys has."""
    return tuple(f for f in every if f.file_only or (f.column in table.key and f.name == f.column))


def file_fields(table: Table, way: LoadAs) -> tuple[Field, ...]:
    """The fields of files that go in this way: of a file of keys, only those of the key."""
    every = fields(table)
    return key_fields(table, every) if by_key(way) else every


def missing(uri: str, table: str) -> DataError:
    """A file that a commit names is not in the store."""
    return DataError(
        f"the file {uri} is in the log but not in the store",
        hint=f"put it back, or read the table again: floodmark watermark reset -t {table}",
        table=table,
    )


def differs(uri: str, table: str, what: str) -> DataError:
    """A file is not what its commit describes."""
    return DataError(
        f"the file {uri} is not what its commit describes ({what})",
        hint=f"put the right one back, or read the table again: floodmark watermark reset -t {table}",
        table=table,
    )


def _proven(path: Path, file: DataFile, uri: str, table: str) -> Path:
    """The path, when size and checksum are the commit's."""
    try:
        found = path.stat()
        # Before it is read: it may be endless.
        if not stat.S_ISREG(found.st_mode) or found.st_size != file.bytes:
            raise differs(uri, table, f"{found.st_size:,} bytes instead of {file.bytes:,}")
        with path.open("rb") as stream:
            checksum = hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        raise missing(uri, table) from None
    if checksum != file.checksum:
        raise differs(uri, table, "another checksum")
    return path
