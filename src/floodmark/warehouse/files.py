"""The files of a load: their fields, and on local disk, each proven to be what its commit describes."""

from __future__ import annotations

import hashlib
import itertools
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.errors import DataError
from floodmark.model import DataFile, LoadAs, Table, by_key
from floodmark.store import Store
from floodmark.types import Field, fields

PARALLEL = 8


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


def ascending(paths: Sequence[Path], column: str) -> bool:
    """Whether a column's values only ever grow inside each file, and no two files' overlap: then all of them differ."""
    ranges = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            values = file.read([column], use_threads=False).column(column).combine_chunks()
        if values.null_count or not pc.all(pc.greater(values[1:], values[:-1]), min_count=0).as_py():
            return False
        if len(values):
            ranges.append((values[0].as_py(), values[-1].as_py()))
    ranges.sort()
    return all(low[1] < high[0] for low, high in itertools.pairwise(ranges))


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
