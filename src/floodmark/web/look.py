"""Looks at the store for the dashboard.

A look that fails keeps what was seen before, and says since when.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from floodmark.config.load import Config
from floodmark.log.status import Scrub, TableOutcome
from floodmark.model.errors import FloodmarkError
from floodmark.model.times import compact
from floodmark.status.facts import RUNS_BACK, StoreFacts
from floodmark.status.health import TableFacts, limit_of, moment
from floodmark.store.store import Store
from floodmark.web.ledger import LedgerWatch
from floodmark.web.seen import Snapshot, killed_runs, latest, make_row, parts_of, worst_first

log = logging.getLogger("floodmark")

EVERY = 5.0  # seconds between two looks while someone is watching
WATCHED = 30.0  # how long after a request someone still counts as watching
FRESH = 10.0  # what is older is looked at again before it is shown,
PATIENCE = 0.7  # but no request waits longer than this for it
FIRST = 120.0  # except for the first look


class Looks:
    """Everything seen so far. One thread looks; any number of threads may take the snapshot."""

    def __init__(self, config: Config, scrub: Scrub, ask_ledger: bool = False) -> None:
        self.config = config
        self.scrub = scrub
        self.store = Store(config.store)
        self.facts = StoreFacts(self.store, partial(limit_of, config), scrub)
        self.ledger = LedgerWatch(self.store, config.warehouse, scrub, ask_ledger)
        self._parts: dict[str, list[TableOutcome]] = {}
        self.snapshot = Snapshot(datetime.now(UTC), 0, read=False)
        self.failed: FloodmarkError | None = None  # why the last look failed

    def look(self, now: datetime | None = None) -> Snapshot:
        """Looks at the store and makes the next snapshot, with a new version if anything shown has changed."""
        began = now or datetime.now(UTC)
        before = self.snapshot
        try:
            found, history = self.facts.history(began)
        except FloodmarkError as error:
            self.failed = error
            said = self.scrub(error.message)
            if said != before.problem:
                log.warning("the store can't be read: %s", said, extra={"step": "look"})
            self.snapshot = replace(before, problem=said, version=before.version + (said != before.problem))
            return self.snapshot
        self.failed = None
        killed = killed_runs(found, history, compact(began - RUNS_BACK))
        runs = tuple(sorted((*history.runs, *killed), key=lambda run: run.run, reverse=True))
        if runs != before.runs or not self._parts:
            self._parts = parts_of(runs)
        # The ledger is queried again when that is due.
        saved = latest(*(one.mark.document.get("updated_at") for one in found if one.mark))
        ledger = self.ledger.now(self.facts.published, moment(saved), any(one.running for one in found))
        configured = {name for name in self.config.tables if not set(name) & set("*?[")}
        unknown = (TableFacts(name) for name in configured - {one.table for one in found})
        rows = worst_first(
            make_row(
                one,
                self.facts.limit(one.table),
                self._parts.get(one.table, []),
                history.days.get(one.table, ()),
                began,
                ledger,
            )
            for one in (*found, *unknown)
        )
        made = Snapshot(began, before.version, tuple(rows), runs, history.days, ledger=ledger)
        same = before.read and before.problem is None and made.shows(before)
        self.snapshot = replace(made, version=before.version + (not same))
        return self.snapshot


class Watch:
    """Looks at the store only while someone is watching. A context manager that ends its thread."""

    def __init__(self, looks: Looks, every: float = EVERY) -> None:
        self._looks = looks
        self._every = every
        self._asked = threading.Event()
        self._seen = threading.Condition()
        self._looked = 0.0  # monotonic, when the last look ended
        self._wanted = 0.0  # when it was last requested
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._asked.set()
        self._thread.join(2.0)

    @property
    def fresh(self) -> bool:
        """Whether the snapshot is fresh enough to be shown as it is."""
        return self._looked > 0 and time.monotonic() - self._looked < FRESH

    def now(self) -> Snapshot:
        """What was seen last, at once; counts as watching."""
        self._wanted = time.monotonic()
        self._asked.set()
        return self._looks.snapshot

    def current(self) -> Snapshot:
        """What is there now, if the store answers soon; else what was seen last."""
        self.now()
        patience = PATIENCE if self._looked else FIRST
        with self._seen:
            self._seen.wait_for(lambda: self.fresh, patience)
        return self._looks.snapshot

    def _run(self) -> None:
        while not self._ended.is_set():
            self._asked.wait()
            if self._ended.is_set():
                return
            try:
                self._looks.look()
            except Exception:
                log.exception("the dashboard could not look at the store", extra={"step": "look"})
            with self._seen:
                self._looked = time.monotonic()
                self._seen.notify_all()
            if time.monotonic() - self._wanted > WATCHED:
                self._asked.clear()
            self._ended.wait(self._every)
