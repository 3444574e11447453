"""What the tables of one run share: the store, the source, Spark, the warehouse, the run's name.

Everything is opened when it is first needed: a run with nothing to do starts no Spark and touches no warehouse.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from fnmatch import fnmatchcase
from functools import partial
from types import TracebackType
from typing import Protocol, TypeVar
from weakref import WeakSet

from floodmark import system
from floodmark.config import Config, SourceSpec, TableOptions
from floodmark.errors import ConfigError, Interrupted
from floodmark.extract import SliceJob
from floodmark.model import Commit, Slice, Table
from floodmark.mysql.connect import Session
from floodmark.mysql.convert import UNLIMITED, redshift
from floodmark.mysql.discover import list_tables, resolve
from floodmark.mysql.looks import Looks
from floodmark.plan import Plan, Request
from floodmark.report import Progress, SyncOptions, SyncReport, TableReport
from floodmark.spark import Spark
from floodmark.state import Log, State, Watermark, pipeline, refuse_if_held, stamp
from floodmark.store import Store
from floodmark.stored import StoredTables, is_pattern
from floodmark.system import Start
from floodmark.tasks import Job
from floodmark.throttle import Throttle
from floodmark.warehouse import Warehouse
from floodmark.warehouse.open import open_warehouse
from floodmark.warm import WarmSpark

T = TypeVar("T")
R = TypeVar("R")

TABLES_AT_ONCE = 8
# How long an embedded warehouse stays open for the next table's question or load.
LINGER = 0.25
# How long an interrupted run may take to leave its tables in good order.
GRACE = 5.0
# Counts and edges of a large table without an index take a while; a server that is gone is noticed sooner.
PATIENCE = 300


class Work:
    """The shared part of one run; a context manager that stops what it started."""

    def __init__(
        self,
        config: Config,
        options: SyncOptions,
        progress: Progress,
        run: str,
        spark: Spark | WarmSpark | None = None,
    ) -> None:
        """A Spark that is handed over is used, and left to whoever has it."""
        self.config = config
        self.options = options
        self.progress = progress
        self.run = run
        self.store = Store(config.store)
        self.tables_at_once = TABLES_AT_ONCE
        # One load at a time: loads of one warehouse file would only queue inside it.
        self.loading = threading.Lock()
        self._lock = threading.Lock()
        self._targets: dict[str, str] = {}
        self._own_spark = not isinstance(spark, WarmSpark)
        self._spark = (
            spark if isinstance(spark, WarmSpark) else WarmSpark(config, f"floodmark {run}", running=spark)
        )
        self._identity: pipeline.Identity | None = None
        self._system: tuple[str | None] | None = None  # the system watermark, once it has been read
        self._warehouse: Warehouse | None = None
        self._sessions: WeakSet[Session] = WeakSet()
        # Not by way of this object: in a resident sync, what refers to itself keeps its connections for long.
        self.throttle = Throttle(config.source, partial(progress.note, ""))
        self.looks = Looks()
        self.interrupted = False
        self.all_tables = False  # whether the tables were not named one by one
        self.stored = StoredTables(config, self.store)

    def __enter__(self) -> Work:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._warehouse is not None:
            self._warehouse.close()

    def interrupt(self) -> None:
        """Ends running tasks and questions to the source at once."""
        self.interrupted = True
        with self._lock:
            asking = list(self._sessions)
        for session in asking:
            session.abort()
        self._spark.cancel()
        self.stop()

    def stop(self) -> None:
        """Stops the Spark that this run has started, and whatever runs on it; safe to call twice."""
        if self._own_spark:
            if self._spark.trains:
                self.progress.note(
                    "", "Spark's classes are kept, so that it starts faster from now on: some seconds, once."
                )
            self._spark.stop()

    def side_by_side(self, runs: Sequence[Callable[[], T]]) -> list[T]:
        """What came of one run per table, side by side where the strategy allows it, else one after the other."""
        together = self.options.strategy in ("auto", "inter-table")
        workers = min(len(runs), self.options.max_workers or self.tables_at_once) if together else 1
        pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="table")
        futures = [pool.submit(run) for run in runs]
        try:
            # Short waits keep the main thread open to signals.
            while not all(f.done() for f in futures):
                wait(futures, timeout=0.5, return_when=FIRST_EXCEPTION)
        except (Interrupted, KeyboardInterrupt):
            pool.shutdown(wait=False, cancel_futures=True)
            self.interrupt()
            wait(futures, GRACE)  # who still waits for a service then is left behind
            raise
        pool.shutdown()
        return [f.result() for f in futures]

    # source

    def session(self, purpose: str) -> Session:
        """A connection to the source, for questions."""
        leave = self.throttle.enter()
        try:
            session = Session(self.config.source, purpose=purpose, read_timeout=PATIENCE, closed=leave)
        except BaseException:
            leave()
            raise
        with self._lock:
            self._sessions.add(session)
        if self.interrupted:
            session.abort()
        return session

    def resolve(self, names: Sequence[str], all_tables: bool) -> tuple[list[str], list[TableReport]]:
        """The full names of the tables that the user means, and what is to be said of those that are none."""
        self.all_tables = all_tables
        if self.options.load_only and not all_tables and all("." in name for name in names):
            return list(dict.fromkeys(names)), []  # the source may be away
        with self.session("plan") as session:
            found, unknown = meant(session, self.config, names, all_tables, self.stored.retired)
        if all_tables:
            unknown = [
                *self.stored.not_retired(unknown),
                *self.stored.gone([*found, *(u.table for u in unknown)]),
            ]
        if not found and not unknown:
            raise no_table(self.config.source)
        return found, unknown

    def check_target(self, table: Table) -> None:
        """Two tables must not fill one target."""
        with self._lock:
            other = self._targets.setdefault(table.target, table.name)
        if other != table.name:
            raise _shared(table.target, other, table.name)

    # store

    def start(self, name: str) -> Start:
        """Where a table begins that has no position of its own."""
        with self._lock:
            if self._system is None:
                self._system = (system.read(self.store),)
        return system.start(self._system[0], self.config, name)

    def log(self, name: str) -> Log:
        return Log(self.store, name)

    def watermark(self, log: Log) -> Watermark:
        return Watermark(self.store, log.table_name, self.run, log=log)

    def identity(self) -> pipeline.Identity:
        """Which pipeline this is; begins it when the prefix is new. For whoever has an answer of the warehouse."""
        with self._lock:
            if self._identity is None:
                self._identity = pipeline.establish(self.store, self.config.warehouse.label, stamp())
            return self._identity

    def known_identity(self) -> pipeline.Identity | None:
        """The same as far as there is one; a prefix that belongs to another warehouse is refused."""
        with self._lock:
            if self._identity is None:
                self._identity = pipeline.check(self.store, self.config.warehouse.label)
            return self._identity

    def write_run(self, report: SyncReport) -> None:
        """The completion object that orchestrators wait for, written last."""
        body = json.dumps(report.as_json(), indent=2, ensure_ascii=False)
        self.store.put(f"runs/{self.run}.json", body.encode())

    # Spark and warehouse

    def warm_up_for(self, log: Log, state: State) -> None:
        """Begins to start Spark: the table has rows to read. Raises ConflictError when another run holds it."""
        if not self.options.dry_run:
            refuse_if_held(log, state, self.run)
            self.warm_up()

    def warm_up(self) -> None:
        """Begins to start Spark unless it runs, and says so."""
        self._spark.warm_up(lambda: self.progress.note("", "starting Spark"))

    def spark(self) -> Spark:
        """Spark, running."""
        self.warm_up()
        return self._spark.get()

    def submit(self, jobs: Sequence[Job[R]], group: str) -> Iterator[R]:
        """The results of the jobs, as Spark tasks, as they finish; within this run's limits on the source."""
        return self.spark().submit(jobs, group, self.throttle)

    def jobs(self, plan: Plan, pieces: Sequence[Slice], state: State, file_rows: int) -> list[SliceJob]:
        """The Spark tasks that read the pieces of a table under a claim."""
        spec = self.config.warehouse
        return [
            SliceJob(
                source=self.config.source,
                store=self.config.store,
                table=plan.table,
                slice=piece,
                run=self.run,
                claim=state.n,
                max_file_rows=max(file_rows, 1),
                log=state.log,
                window=plan.window.id if plan.window else None,
                # Where no index leads to the rows, the first one may be a whole scan away.
                read_timeout=60 if plan.table.cursor_index else 600,
                limits=redshift(spec.large_strings) if spec.kind == "redshift" else UNLIMITED,
                fingerprint=self.options.repeated and piece.kind == "snapshot",
            )
            for piece in pieces
        ]

    def warehouse(self) -> Warehouse:
        """The warehouse that this pipeline fills."""
        with self._lock:
            if self._warehouse is None:
                self._warehouse = open_warehouse(self.config.warehouse, linger=LINGER)
            return self._warehouse


def meant(
    session: Session,
    config: Config,
    names: Sequence[str],
    all_tables: bool,
    retired: Callable[[str], bool] = lambda name: False,
) -> tuple[list[str], list[TableReport]]:
    """The full names of the tables that the user means, and what is to be said of those that are none."""
    found: dict[str, None] = {}
    unknown: list[TableReport] = []
    database = config.source.database
    if all_tables and not config.tables:
        found = dict.fromkeys(list_tables(session, database))
    for name in config.tables if all_tables else names:
        if all_tables and is_pattern(name):
            found |= {t: None for t in list_tables(session, database) if fnmatchcase(t, name)}
            continue
        try:
            found[resolve(session, name, database)] = None
        except ConfigError as error:  # the other tables still get their turn
            unknown.append(TableReport(name, error=error.of(name)))
    shared = _shared_targets(config, found)
    if all_tables and any(map(retired, shared)):
        found = {name: None for name in found if name not in shared or not retired(name)}
        shared = _shared_targets(config, found)
    return [name for name in found if name not in shared], [*unknown, *shared.values()]


def no_table(source: SourceSpec) -> ConfigError:
    """What to say of a source that shows nothing."""
    where = f"in {source.database}" if source.database else "on the server"
    return ConfigError(
        f"{source.user} sees no table {where}",
        hint=f"GRANT SELECT ON … TO '{source.user}'@'…', or correct the database in source.url",
    )


def _shared_targets(config: Config, names: Iterable[str]) -> dict[str, TableReport]:
    """The tables that would fill one target: none of them is read, so that none comes first by chance."""
    by_target: dict[str, list[str]] = {}
    for name in names:
        table = name.partition(".")[2]
        # With more dots, which part is the schema is known only when the table has been looked at.
        if "." not in table:
            by_target.setdefault((config.options(name).target or table).lower(), []).append(name)
    return {
        name: TableReport(name, error=_shared(target, next(n for n in sharing if n != name), name))
        for target, sharing in by_target.items()
        if len(sharing) > 1
        for name in sharing
    }


def _shared(target: str, other: str, name: str) -> ConfigError:
    return ConfigError(
        f"{other} and {name} have the same target {target}",
        hint=f"set tables.{name}.target in the configuration",
        table=name,
    )


class Run(Protocol):
    """The run of one table, as the parts of it that have modules of their own see it."""

    work: Work
    name: str
    options: TableOptions
    request: Request
    report: TableReport
    state: State

    def hold(self, purpose: str, table: Table | None = None) -> None:
        """Makes sure that the table is claimed by this run, as it is described."""

    def read(self, plan: Plan) -> None:
        """Extracts and commits what the plan says, under our claim."""

    def append(self, commit: Commit) -> None:
        """Makes a commit true, and shows it."""

    def tell(self, note: str) -> None:
        """Says something of this run."""
