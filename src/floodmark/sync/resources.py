"""What the tables of one run share besides its services: the options, the pipeline, the choice of tables."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from floodmark.log.pipeline import Starts, StorePipeline
from floodmark.model.errors import FloodmarkError, Interrupted
from floodmark.model.run import SyncOptions, SyncReport, TableReport
from floodmark.model.table import Table
from floodmark.plan.tables import StoredTables, shared
from floodmark.services import Services
from floodmark.sync.turns import Turns

T = TypeVar("T")

# Twice the connections that a run has by default: while some tables are planned, others read their logs and ledgers.
TABLES_AT_ONCE = 16
# Tables that have begun: those that wait for Spark's start, or for a task that they share, are not worked on.
TABLES_BEGUN = 64
# Seconds that lists of the store's folders may be old when a new table looks whether it has left something there.
GLANCE = 1.0
# Seconds that an interrupted run may take to end cleanly.
GRACE = 5.0


class Work:
    """The shared part of one run."""

    def __init__(self, services: Services, options: SyncOptions) -> None:
        self.services = services
        self.options = options
        self.turns = Turns(options.max_workers or TABLES_AT_ONCE)
        self.pipeline = StorePipeline(services.store, services.config.warehouse.label)
        self.starts = Starts(services.store, services.config)
        self.stored = StoredTables(services.config, services.store)
        self.all_tables = False  # whether the user asked for all tables rather than naming them
        self._lock = threading.Lock()
        self._targets: dict[str, str] = {}
        self._began = time.monotonic()

    def side_by_side(self, runs: Sequence[Callable[[], T]]) -> list[T]:
        """The results of one run per table, in parallel if the strategy allows it, else in sequence."""
        together = self.options.strategy in ("auto", "inter-table")
        workers = min(len(runs), self.options.max_workers or TABLES_BEGUN) if together else 1
        pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="table")
        futures = [pool.submit(self.turns.taking(run)) for run in runs]
        try:
            # Short waits let the main thread handle signals.
            left = set(futures)
            while left:
                left = wait(left, timeout=0.5, return_when=FIRST_EXCEPTION).not_done
        except (Interrupted, KeyboardInterrupt):
            self.turns.end()
            pool.shutdown(wait=False, cancel_futures=True)
            self.services.interrupt()
            wait(futures, GRACE)  # a thread still blocked on a service by then is abandoned
            raise
        pool.shutdown()
        return [f.result() for f in futures]

    def resolve(self, names: Sequence[str], all_tables: bool) -> tuple[list[str], list[TableReport]]:
        """The full names of the tables that the user means, and a report for each name without a table."""
        self.all_tables = all_tables
        if self.options.load_only and not all_tables and all("." in name for name in names):
            return list(dict.fromkeys(names)), []  # loading doesn't need the source, which may be down
        return self.stored.resolve(self.services.session, names, all_tables)

    def glance(self, name: str) -> float:
        """How many seconds old it may be that the store has nothing of a table: 0, unless the table seems new."""
        return GLANCE if self.stored.seems_new(name) else 0.0

    def check_target(self, table: Table) -> None:
        """Refuses a second table with the same target."""
        with self._lock:
            other = self._targets.setdefault(table.target, table.name)
        if other != table.name:
            raise shared(table.target, other, table.name)

    def report(self, tables: Iterable[TableReport], new: Sequence[str] = ()) -> SyncReport:
        """The run's report as of now."""
        return SyncReport(self.services.run, time.monotonic() - self._began, tuple(tables), tuple(new))

    def write_run(self, report: SyncReport, error: FloodmarkError | None = None) -> None:
        """Writes the completion object that orchestrators wait for; comes last. `error`: of the run as a whole."""
        document = report.as_json()
        if error is not None:
            document |= {"ok": False, "error": error.as_json()}
        body = json.dumps(document, indent=2, ensure_ascii=False)
        self.services.store.put(f"runs/{self.services.run}.json", body.encode())
