"""The body of a Spark task: reads one slice of a table from MySQL and writes it to the store as Parquet.

The last file is uploaded only after the stream has ended cleanly. Tasks that read one snapshot together follow the
driver, which proves that their sessions see one moment before any of them reads. Then each asks for one slice after
the other, and reads them all in its one transaction. It never opens a second session: a lost one ends the meeting, and
the snapshot starts over.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import pyarrow as pa

from floodmark.config.load import SourceSpec, StoreSpec
from floodmark.extract.files import DataFiles, Fingerprint
from floodmark.extract.keys import absent_keys
from floodmark.load.files import key_fields
from floodmark.model.canonical import Digest, forms
from floodmark.model.commit import DataFile
from floodmark.model.origin import UNKNOWN_SOURCE, SourceId
from floodmark.model.row_hash import Sums, compiled, hashes
from floodmark.model.table import Table
from floodmark.model.types import Field, fields, file_schema, schema_of
from floodmark.model.warehouse import UNLIMITED, Capabilities
from floodmark.model.window import Slice
from floodmark.source.connections import lent, usable
from floodmark.source.identity import end_read, session_on
from floodmark.source.one_moment import at_moment, hold, open_snapshot
from floodmark.source.read import Batches
from floodmark.source.server import server_of
from floodmark.source.session import Session
from floodmark.source.sql import outside, selects
from floodmark.spark.job import Relay
from floodmark.spark.meeting import Guest, Invitation
from floodmark.store.store import Store


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
    absent: pa.Table | None = None  # the same for those of the slice's keys that none of its rows has
    source: SourceId = UNKNOWN_SOURCE  # what was really read


def _session(job: SliceJob, relay: Relay) -> AbstractContextManager[Session]:
    """The session in which the task's last slice was read, if that went well; else a new one."""
    purpose = f"extract {job.table.name}"

    def keep(session: Session) -> bool:
        return usable(session) and relay.leave(session)

    left: Session | None = relay.taken()
    if left is not None:
        if (left.spec, left.read_timeout) == (job.source, job.read_timeout) and usable(left):
            return lent(left.use_for(purpose), keep)
        left.close()
    new = partial(Session, job.source, read_timeout=job.read_timeout, purpose=purpose)
    return session_on(job.expected.server, lambda: lent(new(), keep))


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
    files = DataFiles(job, _store(job.store))
    changed: Counter[str] = Counter()
    named = key_fields(job.table, fields(job.table))
    mark = Fingerprint(file_schema(job.table)) if job.fingerprint or job.only_look else None
    # Of a snapshot's rows, the sum of hashes by which verify recognizes them in a target that hands them out.
    key, sums = job.hash_key if compiled is not None else None, Sums()
    hashed = [form.field.name for form in forms(job.table, UNLIMITED)] if key is not None else []
    asked, there = job.slice.keys, list[pa.Table]()
    for question in selects(job.table, job.slice):
        batches = Batches(session, job.table, question, limits=job.limits)
        for batch in batches:
            if mark is not None:
                mark.add(batch)
            if key is not None and batch.num_rows:
                sums.add(hashes([batch.column(name) for name in hashed], key))
            if not job.only_look:
                files.add(batch, changed.total() + batches.changes.total())
            if asked is not None:
                there.append(pa.Table.from_batches([batch]).select([f.name for f in named]))
            read += batch.num_rows
            told(read)
        changed.update(batches.changes)
    keys = _outside(job, session, named) if job.outside else None
    there += [schema_of(named).empty_table(), *([keys] if keys is not None else [])]
    absent = absent_keys(session, job.table, asked, there) if asked is not None else None
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
        digest=sums.digests()[0] if key is not None else None,
        outside=keys,
        absent=absent,
        source=source,
    )


def _outside(job: SliceJob, session: Session, chosen: Sequence[Field]) -> pa.Table:
    """The keys of the slice's rows outside `where`, as of the same moment as its rows."""
    questions = outside(job.table, job.slice, chosen)
    streams = [Batches(session, job.table, one, limits=job.limits, chosen=chosen) for one in questions]
    return pa.Table.from_batches([batch for batches in streams for batch in batches], schema_of(chosen))


@lru_cache(maxsize=4)
def _store(spec: StoreSpec) -> Store:
    """This worker's store, kept between slices to reuse its connections; tasks share nothing else."""
    return Store(spec)


# ---------------------------------------------------------------- a snapshot read by several tasks


@dataclass(frozen=True)
class Share:
    """The slices that one task has read, and which attempt at the task it was."""

    number: int
    attempt: str
    results: tuple[SliceResult, ...] = ()


@dataclass(frozen=True)
class SharedSnapshotJob:
    """One of the tasks that read a snapshot together. Pickled into the task, never shown anywhere."""

    source: SourceSpec
    like: SliceJob  # each slice's job is like this one, but for the slice
    pieces: tuple[Slice, ...]  # all slices of the snapshot
    invitation: Invitation
    moment: str | None = None  # the value of NOW(), in case the table's `where` uses it

    @property
    def table(self) -> Table:
        return self.like.table

    def title(self, of: int) -> str:
        """The task's name in the Spark UI."""
        return f"extract {self.table.name} snapshot, connection {self.invitation.number + 1} of {of}"

    def go(self, told: Callable[[int], None] = lambda rows: None, relay: Relay | None = None) -> Share:
        """Takes part until the driver has no more slices, or dismisses this task."""
        with Guest(self.invitation) as guest:
            return Share(self.invitation.number, guest.attempt, self._take_part(guest, told))

    def _take_part(self, guest: Guest, told: Callable[[int], None]) -> tuple[SliceResult, ...]:
        if guest.told()["do"] != "connect":
            return ()  # the others have begun
        purpose = f"extract {self.table.name}"
        with Session(self.source, read_timeout=self.like.read_timeout, purpose=purpose) as session:
            if self.moment is not None:
                at_moment(session, self.moment)
            guest.tell({"server": server_of(session)})
            while (step := guest.told()["do"]) == "open":
                open_snapshot(session)
                guest.tell({})
            if step != "hold":
                return ()
            hold(session, self.table)
            guest.tell({})
            with guest.showing_life():
                return self._read(guest, session, told)

    def _read(self, guest: Guest, session: Session, told: Callable[[int], None]) -> tuple[SliceResult, ...]:
        done: list[SliceResult] = []
        rows = 0
        while True:
            guest.tell({"do": "next"})
            said = guest.told()
            if said["do"] != "read":
                return tuple(done)
            job = replace(self.like, source=self.source, slice=self.pieces[said["piece"]])
            done.append(read_slice(job, session, _beyond(rows, told)))
            rows += done[-1].rows


def _beyond(before: int, told: Callable[[int], None]) -> Callable[[int], None]:
    """Reports the rows of one slice on top of those before it."""
    return lambda rows: told(before + rows)
