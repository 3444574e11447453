"""The body of a Spark task: reads one slice of a table from MySQL and writes it to the store as Parquet.

A file is uploaded only once all its rows have been read, the last one only after the stream has ended
cleanly. Files from a failed attempt are orphans, because only returned files are ever committed.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.config.load import SourceSpec, StoreSpec
from floodmark.extract.fingerprint import Fingerprint, SnapshotSums
from floodmark.extract.range import Extremes
from floodmark.load.files import key_fields
from floodmark.model.canonical import Digest
from floodmark.model.commit import DataFile
from floodmark.model.origin import UNKNOWN_SOURCE, SourceId
from floodmark.model.parquet import Footer, data_file, writer
from floodmark.model.row_hash import compiled
from floodmark.model.table import Table
from floodmark.model.times import stamp
from floodmark.model.types import LONG, READ_FIELD, fields, file_schema, schema_of
from floodmark.model.warehouse import UNLIMITED, Capabilities
from floodmark.model.window import Slice
from floodmark.source.connections import usable
from floodmark.source.read import Batches
from floodmark.source.session import Session
from floodmark.source.sources import end_read, session_on
from floodmark.source.sql import outside, selects
from floodmark.spark.job import Relay
from floodmark.store.store import Store, file_folders

# A row group is the unit of parallel reads, and what a worker holds in memory. It ends at whichever comes first.
GROUP_ROWS = 125_000
GROUP_BYTES = 48 << 20
# A column gets a dictionary if less than this share of its values in the first rows are distinct.
REPEATED = 0.5


@dataclass(frozen=True)
class SliceJob:
    """One slice and everything its task needs. Pickled into the task, never shown anywhere."""

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
    limits: Capabilities = UNLIMITED  # of the warehouse that the files are for
    fingerprint: bool = False  # whether to compute the rows' fingerprint too
    only_look: bool = False  # compute the fingerprint only, write nothing
    hash_key: bytes | None = None  # of a snapshot's rows, if they are to be hashed
    outside: bool = False  # return the keys of the slice's rows outside `where`, too
    expected: SourceId = UNKNOWN_SOURCE  # the server and the table that the plan was made for

    def title(self, of: int) -> str:
        """The task's name in the Spark UI."""
        return f"extract {self.table.name} {self.slice.kind} slice {self.slice.number + 1} of {of}"

    def go(self, told: Callable[[int], None] = lambda rows: None, relay: Relay | None = None) -> SliceResult:
        """Reads the slice in a session that no other slice uses meanwhile; calls `told` with the rows read so far."""
        _store(self.store)  # if it can't be opened, the source need not be bothered
        with _session(self, relay or Relay()) as session:
            # All questions see one moment, and nobody changes the table until its identity is known.
            session.rows("START TRANSACTION")
            return read_slice(self, session, told, commits=True)


@dataclass(frozen=True)
class SliceResult:
    """What a task returns instead of rows."""

    slice: Slice
    files: tuple[DataFile, ...]
    rows: int
    bytes: int
    seconds: float
    changed: tuple[tuple[str, int], ...] = ()  # values changed by the table's policies, by column
    fingerprint: str | None = None
    digest: Digest | None = None  # of a snapshot's rows
    outside: pa.Table | None = None  # the columns of a key file, for the slice's rows outside `where`
    source: SourceId = UNKNOWN_SOURCE  # what was really read


def _session(job: SliceJob, relay: Relay) -> Session:
    """The session in which the task's last slice was read, if that went well; else a new one."""
    purpose = f"extract {job.table.name}"
    left: Session | None = relay.taken()
    if left is not None:
        if (left.spec, left.read_timeout) == (job.source, job.read_timeout) and usable(left):
            return left.use_for(purpose)
        left.close()
    opened = partial(Session, job.source, read_timeout=job.read_timeout, purpose=purpose, keep=relay.leave)
    return session_on(job.expected.server, opened)


def read_slice(
    job: SliceJob,
    session: Session,
    told: Callable[[int], None],
    commits: bool = False,
) -> SliceResult:
    """Reads the slice and uploads its files; raises FloodmarkError. No rows, no file.

    `commits`: ends the transaction once all is read, before the last file is uploaded.
    """
    began, read = time.monotonic(), 0
    # Arrow's default allocator constantly returns and reacquires memory: 10 % of the CPU, half the memory.
    pa.set_memory_pool(pa.system_memory_pool())
    files = _Files(job, _store(job.store))
    changed: Counter[str] = Counter()
    mark = Fingerprint(file_schema(job.table)) if job.fingerprint or job.only_look else None
    sums = (
        SnapshotSums(job.table, job.hash_key) if job.hash_key is not None and compiled is not None else None
    )
    for question in selects(job.table, job.slice):
        batches = Batches(session, job.table, question, limits=job.limits)
        for batch in batches:
            if mark is not None:
                mark.add(batch)
            if sums is not None:
                sums.add(batch)
            if not job.only_look:
                files.add(batch, changed.total() + batches.changed)
            read += batch.num_rows
            told(read)
        changed.update(dict(batches.changes))
    keys = _outside(job, session) if job.outside else None
    source = end_read(session, job.table, job.expected, commits)
    files.close()
    return SliceResult(
        slice=job.slice,
        files=tuple(files.done),
        rows=sum(f.rows for f in files.done),
        bytes=sum(f.bytes for f in files.done),
        seconds=time.monotonic() - began,
        changed=tuple(changed.items()),
        fingerprint=mark.text() if mark is not None else None,
        digest=sums.digest() if sums is not None else None,
        outside=keys,
        source=source,
    )


def _outside(job: SliceJob, session: Session) -> pa.Table:
    """The keys of the slice's rows outside `where`, as of the same moment as its rows."""
    chosen = key_fields(job.table, fields(job.table))
    question = outside(job.table, job.slice, chosen)
    batches = list(Batches(session, job.table, question, limits=job.limits, chosen=chosen))
    return pa.Table.from_batches(batches, schema_of(chosen))


@lru_cache(maxsize=4)
def _store(spec: StoreSpec) -> Store:
    """This worker's store, kept between slices to reuse its connections; tasks share nothing else."""
    return Store(spec)


class _Files:
    """Splits a stream of record batches into files, with one file open at a time."""

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
        self._changed = 0  # values changed by policy, in finished files and the open one
        self._counted = 0  # of these, those in finished files

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
        """Uploads the open file, if there is one."""
        if self._file is None:
            return
        job, piece = self.job, self.job.slice
        folder = file_folders(job.table.name)[0] + job.run
        path = f"{folder}/{job.claim}-{piece.kind}{piece.number}-{self.attempt}-{len(self.done)}.parquet"
        rows, truncated = self._file.rows, self._changed - self._counted
        data, footer = self._file.finish(self.attempt)
        self._file = None
        etag = self.store.put(path, memoryview(data))
        self.done.append(
            data_file(path, data, footer, rows, truncated=truncated, created_at=stamp(), etag=etag)
        )
        self._counted = self._changed


def _read_at(job: SliceJob) -> int | None:
    """A number that grows with the log: higher for later claims, and for a window's rows than for reread ones.

    None if rows don't merge by key, or if a column already has the name.
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
        # Numbers and times get statistics, because the load checks their ranges; text does not.
        measured = [field.name for field in schema if field.type not in LONG]
        self._writer = writer(
            self._sink, schema, use_dictionary=_repeating(sample), write_statistics=measured
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

    def finish(self, attempt: str) -> tuple[pa.Buffer, Footer]:
        """The finished file and its footer, which says where the file belongs if the log is ever lost."""
        self._flush()
        job, piece = self.job, self.job.slice
        footer = Footer(
            table=job.table.name,
            log=job.log,
            run=job.run,
            claim=job.claim,
            window=job.window,
            kind=piece.kind,
            slice=piece.number,
            schema=job.table.fingerprint,
            attempt=attempt,
            first=self.extremes.first,
            last=self.extremes.last,
        )
        self._writer.add_key_value_metadata(footer.metadata())
        self._writer.close()
        return self._sink.getvalue(), footer


def _repeating(sample: pa.RecordBatch) -> list[str]:
    """The columns whose values repeat in the first rows: only there does a dictionary pay off."""
    head = sample.slice(0, 2048)
    return [
        name
        for name, column in zip(head.schema.names, head.columns, strict=True)
        if pc.count_distinct(column, mode="all").as_py() < max(2, head.num_rows * REPEATED)
    ]
