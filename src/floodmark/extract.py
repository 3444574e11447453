"""The body of a Spark task: one slice of a table, read from MySQL, written as Parquet to the store.

Owns what a data file looks like: the strict dialect that Redshift's COPY accepts (types.py gives the column
types). A file is put only when its rows have been read in full, the last one only after the clean end of the
stream; what a failed attempt has put before is an orphan, because only returned files are ever committed.
"""

from __future__ import annotations

import hashlib
import json
import resource
import secrets
import sys
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.config import SourceSpec
from floodmark.extremes import Extremes
from floodmark.fingerprint import Fingerprint
from floodmark.model import DataFile, Slice, Table
from floodmark.mysql.connect import Session
from floodmark.mysql.convert import UNLIMITED, Limits
from floodmark.mysql.read import record_batches
from floodmark.mysql.sql import selects
from floodmark.store import Store, StoreSpec, encode
from floodmark.types import READ_FIELD, file_schema

# A row group is what readers work on in parallel, and what a worker holds in memory: whichever comes first.
GROUP_ROWS = 125_000
GROUP_BYTES = 48 << 20
# A column is written with a dictionary when less than this share of the first rows are different values.
REPEATED = 0.5


@dataclass(frozen=True)
class SliceJob:
    """One slice and all that its task needs to know. Pickled into the task, never shown anywhere."""

    source: SourceSpec
    store: StoreSpec
    table: Table
    slice: Slice
    run: str
    claim: int
    max_file_rows: int = 250_000
    max_file_bytes: int = 128 << 20
    read_timeout: int = 60
    log: str = ""
    window: str | None = None
    limits: Limits = UNLIMITED  # of the warehouse that the files are for
    fingerprint: bool = False  # whether that of the rows is wanted, too
    only_look: bool = False  # for their fingerprint, and nothing is written

    def title(self, of: int) -> str:
        """What Spark's own pages call the task."""
        return f"extract {self.table.name} {self.slice.kind} slice {self.slice.number + 1} of {of}"

    def go(self) -> SliceResult:
        """The task."""
        return write_slice(self)


@dataclass(frozen=True)
class SliceResult:
    """What a task returns in place of rows."""

    slice: Slice
    files: tuple[DataFile, ...]
    rows: int
    bytes: int
    seconds: float
    rss: int  # the worker's peak memory in bytes
    cpu: float = 0.0  # CPU seconds of the worker for this slice
    changed: tuple[tuple[str, int], ...] = ()  # values changed by the table's policies, by column
    fingerprint: str | None = None


def write_slice(job: SliceJob) -> SliceResult:
    """Reads the slice and puts its files; raises FloodmarkError. No rows, no file."""
    began, cpu = time.monotonic(), time.process_time()
    # Arrow's own allocator hands memory back and asks for it again all the time: 10 % of the CPU, half the memory.
    pa.set_memory_pool(pa.system_memory_pool())
    files = _Files(job, _store(job.store))
    changed: Counter[str] = Counter()
    purpose = f"extract {job.table.name}"
    mark = Fingerprint(file_schema(job.table)) if job.fingerprint or job.only_look else None
    with Session(job.source, read_timeout=job.read_timeout, purpose=purpose) as session:
        for question in selects(job.table, job.slice):
            batches = record_batches(session, job.table, question, limits=job.limits)
            for batch in batches:
                if mark is not None:
                    mark.add(batch)
                if not job.only_look:
                    files.add(batch, changed.total() + batches.changed)
            changed.update(dict(batches.changes))
    files.close()
    return SliceResult(
        slice=job.slice,
        files=tuple(files.done),
        rows=sum(f.rows for f in files.done),
        bytes=sum(f.bytes for f in files.done),
        seconds=time.monotonic() - began,
        rss=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        cpu=time.process_time() - cpu,
        changed=tuple(changed.items()),
        fingerprint=mark.text() if mark is not None else None,
    )


@lru_cache(maxsize=4)
def _store(spec: StoreSpec) -> Store:
    """The store of this worker, kept between slices for its connections."""
    return Store(spec)


class _Files:
    """Cuts a stream of record batches into files; one file is open at a time."""

    def __init__(self, job: SliceJob, store: Store) -> None:
        self.job = job
        self.store = store
        self.read = _read_at(job)
        self.schema = file_schema(job.table)
        if self.read is not None:
            self.schema = self.schema.append(pa.field(READ_FIELD, pa.int64()))
        self.attempt = secrets.token_hex(4)
        self.done: list[DataFile] = []
        self._file: _File | None = None
        self._changed = 0  # values changed by policy, those of finished files and of the open one
        self._counted = 0  # of these, in finished files

    def add(self, batch: pa.RecordBatch, changed: int) -> None:
        if self.read is not None:
            reads = pa.repeat(self.read, batch.num_rows)
            batch = pa.RecordBatch.from_arrays([*batch.columns, reads], schema=self.schema)
        while batch.num_rows:
            if self._file is not None and self._file.full:
                self.close()
            if self._file is None:
                self._file = _File(self.job, self.schema, batch)
            room = self.job.max_file_rows - self._file.rows
            self._file.add(batch.slice(0, room))
            batch = batch.slice(room)
        self._changed = changed

    def close(self) -> None:
        """Puts the open file, if there is one."""
        if self._file is None:
            return
        job, piece = self.job, self.job.slice
        folder = f"data/{encode(job.table.schema)}.{encode(job.table.table)}/{job.run}"
        name = f"{job.claim}-{piece.kind}{piece.number}-{self.attempt}-{len(self.done)}.parquet"
        extremes, rows = self._file.extremes, self._file.rows
        data = self._file.finish(self.attempt)
        self._file = None
        etag = self.store.put(f"{folder}/{name}", memoryview(data))
        self.done.append(
            DataFile(
                path=f"{folder}/{name}",
                rows=rows,
                bytes=data.size,
                checksum=hashlib.sha256(data).hexdigest(),
                slice=piece.number,
                first=extremes.first,
                last=extremes.last,
                truncated=self._changed - self._counted,
                created_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                etag=etag,
            )
        )
        self._counted = self._changed


def _read_at(job: SliceJob) -> int | None:
    """A number that grows with the log: rows of later claims, and a window's after those that are read again first.

    None where rows don't merge by key, or where a column has the name already.
    """
    if not job.table.key or job.slice.kind == "snapshot":
        return None
    if any(column.name.lower() == READ_FIELD for column in job.table.columns):
        return None
    return job.claim * 2 + (job.slice.kind == "window")


class _File:
    """One Parquet file in memory. Row groups are encoded as soon as they are full."""

    def __init__(self, job: SliceJob, schema: pa.Schema, sample: pa.RecordBatch) -> None:
        self.job = job
        self.schema = schema
        self.rows = 0
        self.extremes = Extremes(job.table)
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            version="2.6",
            data_page_version="1.0",
            compression="zstd",
            compression_level=1,
            use_dictionary=_repeating(sample),  # type: ignore[arg-type]  # the stubs know bool only
            write_statistics=_measured(schema),
            store_schema=False,
        )
        self._group: list[pa.RecordBatch] = []
        self._group_rows = 0
        self._group_bytes = 0

    @property
    def full(self) -> bool:
        return self.rows >= self.job.max_file_rows or self._sink.tell() >= self.job.max_file_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        self.extremes.add(batch)
        self.rows += batch.num_rows
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_rows >= GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._group:
            table = pa.Table.from_batches(self._group, self.schema)
            self._group, self._group_rows, self._group_bytes = [], 0, 0
            self._writer.write_table(table, row_group_size=table.num_rows)

    def finish(self, attempt: str) -> pa.Buffer:
        """The whole file; its footer says where it belongs, should the log ever be lost."""
        self._flush()
        job, piece = self.job, self.job.slice
        footer = {
            "table": job.table.name,
            "log": job.log,
            "run": job.run,
            "claim": str(job.claim),
            "window": job.window or "",
            "slice": f"{piece.kind}/{piece.number}",
            "schema": job.table.fingerprint,
            "attempt": attempt,
            "first": json.dumps(self.extremes.first),
            "last": json.dumps(self.extremes.last),
        }
        self._writer.add_key_value_metadata({f"floodmark.{k}": v for k, v in footer.items()})
        self._writer.close()
        return self._sink.getvalue()


def _measured(schema: pa.Schema) -> list[str]:
    """The columns that get statistics: the load checks ranges of numbers and times; those of text only cost."""
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return [field.name for field in schema if not any(test(field.type) for test in text)]


def _repeating(sample: pa.RecordBatch) -> list[str]:
    """The columns whose values repeat, judged by the first rows: only there a dictionary pays."""
    head = sample.slice(0, 2048)
    return [
        name
        for name, column in zip(head.schema.names, head.columns, strict=True)
        if pc.count_distinct(column, mode="all").as_py() < max(2, head.num_rows * REPEATED)
    ]
