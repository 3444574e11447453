"""The body of a Spark task that reads one stretch of the source's binary log: keys of changed rows → Parquet in the store.

Short stretches are read by the driver, with the same function. Key files count only once a commit names them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa

from floodmark.config.load import SourceSpec, StoreSpec
from floodmark.extract.keys import write_changed_keys
from floodmark.model.changes import KeyDescription, LogEnd, LogPlace
from floodmark.model.commit import DataFile
from floodmark.source.binlog.dump import LogEvents
from floodmark.source.binlog.walk import Stretch, Walk
from floodmark.source.session import Session
from floodmark.spark.job import Relay
from floodmark.store.store import Store

Connect = Callable[[], AbstractContextManager[Session]]


@dataclass(frozen=True)
class ManyTables:
    """What a job is about that reads many tables."""

    name: str = ""


@dataclass(frozen=True)
class LogJob:
    """One stretch of the log and everything its task needs. Pickled into the task, never shown anywhere."""

    source: SourceSpec
    store: StoreSpec
    number: int
    begin: LogPlace
    end: LogEnd  # of the stretch
    described: Mapping[str, KeyDescription]
    run: str
    claim: int
    log: str
    server: str  # whose log it is
    before: str | None = None  # the GTIDs that earlier reads have taken
    read_timeout: int = 60
    table: ManyTables = field(default_factory=ManyTables)

    def title(self, of: int) -> str:
        """The task's name in the Spark UI."""
        return f"binary log {self.begin.file}, {self.number + 1} of {of}"

    def go(self, told: Callable[[int], None] = lambda size: None, relay: Relay | None = None) -> LogRead:
        """Reads the stretch over a connection of its own; calls `told` with the bytes read so far."""
        pa.set_memory_pool(pa.system_memory_pool())
        return self.read(
            lambda: Session(self.source, read_timeout=self.read_timeout, purpose="changes"), told
        )

    def read(
        self,
        connect: Connect,
        told: Callable[[int], None] = lambda size: None,
        claimed: Callable[[], int] | None = None,
    ) -> LogRead:
        """Reads the stretch, and uploads its files; `claimed` claims the log before the first one, if that isn't done yet."""
        began, store, files = time.monotonic(), _store(self.store), list[DataFile]()

        def write(name: str, keys: Sequence[pa.RecordBatch]) -> str:
            claim = claimed() if claimed is not None else self.claim
            files.append(write_changed_keys(store, name, keys, run=self.run, claim=claim, log=self.log))
            return files[-1].path

        walk = Walk(self.begin, self.end, self.described, write, before=self.before)
        events = LogEvents(connect, self.begin, self.end.place, server=self.server)
        walk.follow(events, events.skip, told)
        return LogRead(self.number, walk.stretch(), tuple(files), time.monotonic() - began)


@dataclass(frozen=True)
class LogRead:
    """What a task returns instead of keys."""

    number: int
    stretch: Stretch
    files: tuple[DataFile, ...]
    seconds: float


@lru_cache(maxsize=4)
def _store(spec: StoreSpec) -> Store:
    """This worker's store, kept between stretches to reuse its connections."""
    return Store(spec)
