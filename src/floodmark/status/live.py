"""The live document: a run's progress, folded from its events and written to the store for others.

A background thread writes it, at most every few seconds and only for tables with a stage under way, so a
short sync writes nothing, nor does a short table of a long one, and no sync waits for it. A failed write is
reported once and otherwise ignored.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from floodmark.log.document import log as logger
from floodmark.log.lease import this_process
from floodmark.log.status import Live, LiveStage, live_path
from floodmark.model import events
from floodmark.model.errors import FloodmarkError
from floodmark.model.json import dump
from floodmark.model.times import stamp
from floodmark.store.store import Store

EVERY = 3.0
# Seconds that the end of a run waits for a write or removal still in progress.
GRACE = 1.0


def live_after(live: Live, event: events.Event, at: str) -> Live:
    """A table's progress after one more event. Pure."""
    stages = {one.stage: one for one in live.stages}
    match event:
        case events.StageBegan(_, stage, rows):
            stages[stage] = LiveStage(stage, at, expected=rows)
        case events.Advanced(_, stage, rows, files, size):
            known = stages.get(stage) or LiveStage(stage, at)
            stages[stage] = replace(
                known, rows=known.rows + rows, files=known.files + files, bytes=known.bytes + size
            )
        case events.Underway(_, stage, rows) if stage in stages:
            stages[stage] = replace(stages[stage], underway=rows)
        case events.StageEnded(_, stage) if stage in stages:
            stages[stage] = replace(stages[stage], underway=0, ended=True)
        case events.Waiting(_, on):
            whom = (on.who or None) if on else None
            return replace(live, waits_for=on.kind if on else None, waits_for_whom=whom)
        case events.LagMeasured(_, lag):
            return replace(live, lag_seconds=lag.seconds, lag_ids=lag.ids, lag_at=at, updated_at=at)
        case _:
            return live
    now = next((one for one in stages.values() if not one.ended), [*stages.values()][-1])
    return replace(
        live, updated_at=at, stages=tuple(stages.values()), stage=now.stage, rows=now.rows + now.underway,
        expected=now.expected, files=now.files, bytes=now.bytes,
    )  # fmt: skip


class LiveDocuments:
    """A subscriber of events that writes to the store. A context manager; thread-safe."""

    def __init__(self, store: Store, run: str, every: float = EVERY) -> None:
        self._store = store
        self._run = run
        self._every = every
        self._lock = threading.Lock()
        self._tables: dict[str, Live] = {}
        self._begun: dict[str, float] = {}  # when a table's first stage after planning began
        self._written: set[str] = set()
        self._over: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned = False

    def __enter__(self) -> LiveDocuments:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(GRACE)

    def __call__(self, event: events.Event) -> None:
        with self._lock:
            live = self._tables.get(event.table)
            match event:
                case events.StageBegan(table, stage) | events.Advanced(table, stage):
                    live = live or self._new(table)
                    if stage != "plan":
                        self._begun.setdefault(table, time.monotonic())
                    if self._thread is None and not self._stop.is_set():
                        self._thread = threading.Thread(target=self._follow, name="live", daemon=True)
                        self._thread.start()
                case events.LagMeasured(table):
                    live = live or self._new(table)
                case events.Ended(table):
                    self._tables.pop(table, None)
                    self._begun.pop(table, None)
                    self._over.add(table)
                    return
            if live is not None:
                self._tables[event.table] = live_after(live, event, stamp())

    def _new(self, table: str) -> Live:
        owner = this_process()
        return Live(table, self._run, owner.host, owner.pid, stamp(), stamp())

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
                if not self._warned:
                    said = "%s: the run's progress could not be written: %s"
                    logger.warning(said, name, error.message, extra={"run": self._run, "table": name})
                self._warned = True

    def _remove(self, names: set[str]) -> None:
        self._written -= names
        try:
            if names:
                self._store.delete([live_path(name) for name in sorted(names)])
        except FloodmarkError as error:
            logger.info("the progress object of an ended run could not be removed: %s", error.message)
