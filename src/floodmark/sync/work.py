"""What the tables of one run share besides its services, and what the steps of one table's run share."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from floodmark.config.load import TableOptions
from floodmark.log.claim import HeldTable
from floodmark.log.fold import State
from floodmark.log.pipeline import Starts, StorePipeline
from floodmark.model.errors import FloodmarkError, Interrupted
from floodmark.model.events import Account
from floodmark.model.ledger import Ledger
from floodmark.model.lineage import Known, suspects
from floodmark.model.run import SyncOptions, SyncReport, TableReport
from floodmark.model.table import Table
from floodmark.plan.followed import TableNews
from floodmark.plan.reread import check as check_recipe
from floodmark.plan.reread import known_rows, question
from floodmark.plan.tables import StoredTables, shared
from floodmark.services import Services
from floodmark.sync.news import LogNews

T = TypeVar("T")

# Twice the connections that a run has by default: while some tables are planned, others read their logs and ledgers.
TABLES_AT_ONCE = 16
# Tables that have begun: those that wait for Spark's start, or for a task that they share, are not worked on.
TABLES_BEGUN = 64
# Seconds that lists of the store's folders may be old when a new table looks whether it has left something there.
GLANCE = 1.0
# Seconds that an interrupted run may take to end cleanly.
GRACE = 5.0
# Seconds between checks whether the run has been stopped.
LOOK_EVERY = 0.5


class Turns:
    """How many tables are worked on at once. One that only waits for Spark makes room for another. Thread-safe."""

    def __init__(self, at_once: int) -> None:
        self._free = threading.Semaphore(at_once)
        self._over = threading.Event()

    def taking(self, run: Callable[[], T]) -> Callable[[], T]:
        """The run of a table, as soon as it has a turn; raises Interrupted if there are no more."""

        def in_turn() -> T:
            with self._free:
                if self._over.is_set():
                    raise Interrupted("stopped")
                return run()

        return in_turn

    def end(self) -> None:
        """No other table begins."""
        self._over.set()

    @contextmanager
    def stepping_aside(self) -> Iterator[None]:
        """Lets another table have this one's turn meanwhile; then waits for the next, unless the run has been stopped."""
        self._free.release()
        try:
            yield
        finally:
            while not self._free.acquire(timeout=LOOK_EVERY) and not self._over.is_set():
                pass


class Work:
    """The shared part of one run."""

    def __init__(self, services: Services, options: SyncOptions) -> None:
        self.services = services
        self.options = options
        self.turns = Turns(options.max_workers or TABLES_AT_ONCE)
        self.pipeline = StorePipeline(services.store, services.config.warehouse.label)
        self.starts = Starts(services.store, services.config)
        self.stored = StoredTables(services.config, services.store)
        self.news = (
            LogNews()
        )  # what the source's log says of the tables that follow it, read before any of them is
        self.all_tables = False  # whether the user asked for all tables rather than naming them
        self.ended: list[TableReport] = []  # the tables whose runs have ended
        self._lock = threading.Lock()
        self._targets: dict[str, str] = {}
        self._began = time.monotonic()

    def table(self, name: str, tables: int = 1) -> TableRun:
        """The run of one of so many tables."""
        services, options = self.services, self.services.config.options(name)
        return TableRun(
            self,
            name,
            options,
            replace(self.options, slice_rows=options.slice_rows, tables=tables),
            # That the store has nothing of a table that seems new may be a little old.
            GLANCE if self.stored.seems_new(name) else 0.0,
            Account(name, services.emit),
            HeldTable(services.store, name, services.run),
            LoadThread(),
        )

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


class LoadThread:
    """What is known of a table's loads in this run, and the thread in which they follow while rows are read."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None
        self.upto: str | None = None  # digest of the state up to which this run has loaded
        self.commits: list[int] = []  # those loaded by this run
        self.error: BaseException | None = None  # why the load stage failed
        # Whether source and target are being compared: then rows changed by others don't stop a load.
        self.repairs = False
        self.expected = 0  # rows that the extraction is about to deliver
        self.shown = False  # the stage has begun, for whoever watches
        self._offered: State | None = None
        self._closing = False
        self._busy = False
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def begun(self) -> bool:
        """Whether anything was offered."""
        return self._thread is not None

    def offer(self, state: State, load: Callable[[State], None]) -> None:
        """Loads up to this state in the background; a later one overtakes it."""
        with self._news:
            self._offered = state
            if self._thread is None:
                # Not an attribute: it would keep the run's connections for the garbage collector.
                self._thread = threading.Thread(
                    target=self._follow, args=(load,), name=f"load {state.table_name}", daemon=True
                )
                self._thread.start()
            self._news.notify()

    def idle(self, seconds: float) -> bool:
        """Waits at most so long until everything offered has been loaded; whether it has, without an error."""

        def idle() -> bool:
            return not (self._thread and self._thread.is_alive() and (self._offered or self._busy))

        with self._news:
            return self._news.wait_for(idle, seconds) and self.error is None

    def close(self) -> None:
        """Waits until everything offered has been loaded; accepts no more."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    def abandon(self) -> None:
        """Stops after the current transaction."""
        with self._news:
            self._offered = None
        self.close()

    def _follow(self, load: Callable[[State], None]) -> None:
        while True:
            with self._news:
                while self._offered is None and not self._closing:
                    self._news.wait()
                state, self._offered = self._offered, None
                self._busy = state is not None
            if state is None:
                return
            try:
                load(state)
            except BaseException as error:
                self.error = error
                return
            finally:
                with self._news:
                    self._busy = False
                    self._news.notify_all()


@dataclass(frozen=True)
class TableRun:
    """One table's run, as its steps share it."""

    work: Work
    name: str
    options: TableOptions
    asked: SyncOptions
    old: float  # how many seconds old it may be that the store has nothing of the table
    account: Account
    held: HeldTable
    loads: LoadThread

    @property
    def news(self) -> TableNews | None:
        """What the source's log says of the table, as its own log is now; None: it does not follow that."""
        return self.work.news.of(self.state, self.asked.most) if self.options.changes == "binlog" else None

    @property
    def services(self) -> Services:
        return self.work.services

    @property
    def state(self) -> State:
        return self.held.state

    @property
    def report(self) -> TableReport:
        """The report, as far as the run has got."""
        return self.account.report


def hold(run: TableRun, purpose: str, table: Table | None = None) -> None:
    """Makes sure that we hold the table, as described; refuses one that no longer fits its rows."""
    state, known = run.state, list[Known]()
    if table is not None:
        check_recipe(table, state, run.options)
        if state.table is not None and suspects(state.table, table):
            with run.services.session(purpose) as session:
                known = known_rows(session, state.table, table, state)
        asks = question(table, state, run.options, known)
        if asks is not None:
            raise asks
    run.held.hold(purpose, table, known)
