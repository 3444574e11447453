"""The live document: forwards a run's progress to its watcher and writes it to the store for others.

A background thread writes it, at most every few seconds and only for tables with a stage under way, so a
short sync writes nothing, nor does a short table of a long one, and no sync waits for it. A failed write is
reported once and otherwise ignored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from floodmark.commit.document import log
from floodmark.commit.lease import this_process
from floodmark.commit.status import Live, LiveStage, live_path
from floodmark.model.errors import FloodmarkError
from floodmark.model.json import dump
from floodmark.model.run import Lag, Progress, Step, TableReport, Wait
from floodmark.model.times import stamp
from floodmark.services.store.store import Store

EVERY = 3.0
# Seconds that the end of a run waits for a write or removal still in progress.
GRACE = 1.0


class LiveProgress:
    """A `Progress` that also writes to the store. A context manager; thread-safe."""

    def __init__(self, store: Store, run: str, progress: Progress, every: float = EVERY) -> None:
        self._store = store
        self._run = run
        self._to = progress
        self._every = every
        self._lock = threading.Lock()
        self._tables: dict[str, Live] = {}
        self._begun: dict[str, float] = {}  # when a table's first stage after planning began
        self._written: set[str] = set()
        self._over: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned = False
        self.done: list[TableReport] = []  # of the tables that have ended

    def __enter__(self) -> LiveProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(GRACE)
        self.done.clear()  # their errors keep the run and its connections

    # called by the run

    def tables(self, names: Sequence[str]) -> None:
        """Only passed on."""
        self._to.tables(names)

    def note(self, table: str, text: str) -> None:
        """Only passed on."""
        self._to.note(table, text)

    def begin(self, table: str, stage: str, rows: int | None) -> None:
        """A stage begins; starts the writer thread if it isn't running."""
        self._to.begin(table, stage, rows)
        self._change(table, stage, LiveStage(stage, stamp(), expected=rows), restart=True)

    def advance(self, table: str, stage: str, rows: int, files: int, bytes: int) -> None:
        """This many more rows, files and bytes are done."""
        self._to.advance(table, stage, rows, files, bytes)
        self._change(table, stage, LiveStage(stage, stamp(), rows, files=files, bytes=bytes))

    def underway(self, table: str, stage: str, rows: int, step: Step | None = None) -> None:
        """Rows done so far by tasks that are still running."""
        self._to.underway(table, stage, rows, step)
        with self._lock:
            if table in self._tables:
                live = self._tables[table]
                stages = (replace(s, underway=rows) if s.stage == stage else s for s in live.stages)
                self._tables[table] = live.showing(stages, stamp())

    def wait(self, table: str, on: Wait | None) -> None:
        """What the table is waiting for."""
        self._to.wait(table, on)
        with self._lock:
            if table in self._tables:
                self._tables[table] = replace(
                    self._tables[table],
                    waits_for=on.kind if on else None,
                    waits_for_whom=(on.who or None) if on else None,
                )

    def end(self, table: str, stage: str) -> None:
        """The stage has ended."""
        self._to.end(table, stage)
        with self._lock:
            if table in self._tables:
                live = self._tables[table]
                stages = (replace(s, underway=0, ended=True) if s.stage == stage else s for s in live.stages)
                self._tables[table] = live.showing(stages, stamp())

    def lag(self, table: str, lag: Lag) -> None:
        """How far the table is behind its source."""
        with self._lock:
            live = self._tables.get(table) or self._new(table)
            self._tables[table] = replace(
                live, lag_seconds=lag.seconds, lag_ids=lag.ids, lag_at=stamp(), updated_at=stamp()
            )

    def finished(self, report: TableReport) -> None:
        """The table's run has ended."""
        self._to.finished(report)
        with self._lock:
            self._tables.pop(report.table, None)
            self._begun.pop(report.table, None)
            self._over.add(report.table)
            self.done.append(report)

    # written to the store

    def _new(self, table: str) -> Live:
        owner = this_process()
        return Live(table, self._run, owner.host, owner.pid, stamp(), stamp())

    def _change(self, table: str, stage: str, more: LiveStage, *, restart: bool = False) -> None:
        with self._lock:
            live = self._tables.get(table) or self._new(table)
            known = {s.stage: s for s in live.stages}
            before = known.get(stage)
            if before is None or restart:
                known[stage] = more
            else:
                known[stage] = replace(
                    before,
                    rows=before.rows + more.rows,
                    files=before.files + more.files,
                    bytes=before.bytes + more.bytes,
                )
            self._tables[table] = live.showing(known.values(), more.since)
            if stage != "plan":
                self._begun.setdefault(table, time.monotonic())
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._follow, name="live", daemon=True)
                self._thread.start()

    def _follow(self) -> None:
        while not self._stop.wait(self._every):
            self._write()
        self._remove(self._written.copy())

    def _write(self) -> None:
        with self._lock:
            since = time.monotonic() - self._every / 2  # most tables of a long sync are done sooner than that
            # A run that is only planning does not hold the table; the run that does may be writing here.
            under_way = {
                name: self._tables[name]
                for name, begun in self._begun.items()
                if begun <= since and not all(s.ended for s in self._tables[name].stages)
            }
            over, self._over = self._over & self._written, set()
        self._remove(over)
        for name, live in under_way.items():
            if self._stop.is_set():
                return
            try:
                self._store.put(live_path(name), dump(replace(live, updated_at=stamp())))
                self._written.add(name)
            except FloodmarkError as error:
                self._complain(name, error)

    def _remove(self, names: set[str]) -> None:
        if not names:
            return
        self._written -= names
        try:
            self._store.delete([live_path(name) for name in sorted(names)])
        except FloodmarkError as error:
            log.info("the progress object of an ended run could not be removed: %s", error.message)

    def _complain(self, name: str, error: FloodmarkError) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "%s: the run's progress could not be written: %s", name, error.message,
                extra={"run": self._run, "table": name},
            )  # fmt: skip
