"""What the tables of one run share: the store, the source, Spark, the warehouse, the run's name.

Everything is opened when it is first needed: a run with nothing to do starts no Spark and touches no warehouse.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
from types import TracebackType
from weakref import WeakSet

from floodmark.config import Config
from floodmark.errors import ConfigError, Interrupted
from floodmark.model import Table
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import list_tables, resolve
from floodmark.report import Progress, SyncOptions, SyncReport, TableReport
from floodmark.spark import Spark
from floodmark.state import Log, Watermark, pipeline, stamp
from floodmark.store import Store
from floodmark.system import Start, start
from floodmark.warehouse import Warehouse
from floodmark.warehouse.open import open_warehouse

TABLES_AT_ONCE = 4
# Counts and edges of a large table without an index take a while; a server that is gone is noticed sooner.
PATIENCE = 300


class Work:
    """The shared part of one run; a context manager that stops what it started."""

    def __init__(
        self, config: Config, options: SyncOptions, progress: Progress, run: str, spark: Spark | None = None
    ) -> None:
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
        self._borrowed = spark  # somebody else's, who stops it
        self._spark: Spark | None = None
        self._started: Future[None] | None = None
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="spark")
        self._identity: pipeline.Identity | None = None
        self._warehouse: Warehouse | None = None
        self._sessions: WeakSet[Session] = WeakSet()
        self._stopped = threading.Event()
        self.interrupted = False

    def __enter__(self) -> Work:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._starter.shutdown(wait=True)
        if self._warehouse is not None:
            self._warehouse.close()

    def interrupt(self) -> None:
        """Ends running tasks and questions to the source at once."""
        self.interrupted = True
        with self._lock:
            asking = list(self._sessions)
        for session in asking:
            session.abort()
        if self._borrowed is not None:
            self._borrowed.cancel()
        self.stop()

    def stop(self) -> None:
        """Stops the Spark that this run has started, and whatever runs on it; safe to call twice."""
        self._stopped.set()
        with self._lock:
            spark, self._spark = self._spark, None
        if spark is not None:
            spark.stop()

    # source

    def session(self, purpose: str) -> Session:
        """A connection to the source, for questions."""
        session = Session(self.config.source, purpose=purpose, read_timeout=PATIENCE)
        with self._lock:
            self._sessions.add(session)
        if self.interrupted:
            session.abort()
        return session

    def resolve(self, names: Sequence[str], all_tables: bool) -> tuple[list[str], list[TableReport]]:
        """The full names of the tables that the user means, and what is to be said of those that are none."""
        if self.options.load_only and not all_tables and all("." in name for name in names):
            return list(dict.fromkeys(names)), []  # the source may be away
        found: dict[str, None] = {}
        unknown: list[TableReport] = []
        with self.session("plan") as session:
            database = self.config.source.database
            if all_tables and not self.config.tables:
                found = dict.fromkeys(list_tables(session, database))
            for name in self.config.tables if all_tables else names:
                if all_tables and any(c in name for c in "*?["):
                    found |= {t: None for t in list_tables(session, database) if fnmatchcase(t, name)}
                    continue
                try:
                    found[resolve(session, name, database)] = None
                except ConfigError as error:  # the other tables still get their turn
                    unknown.append(TableReport(name, error=error.of(name)))
        shared = self._shared_targets(found)
        return [name for name in found if name not in shared], [*unknown, *shared.values()]

    def _shared_targets(self, names: Iterable[str]) -> dict[str, TableReport]:
        """The tables that would fill one target: none of them is read, so that none comes first by chance."""
        by_target: dict[str, list[str]] = {}
        for name in names:
            table = name.partition(".")[2]
            # With more dots, which part is the schema is known only when the table has been looked at.
            if "." not in table:
                by_target.setdefault((self.config.options(name).target or table).lower(), []).append(name)
        return {
            name: TableReport(name, error=_shared(target, next(n for n in sharing if n != name), name))
            for target, sharing in by_target.items()
            if len(sharing) > 1
            for name in sharing
        }

    def check_target(self, table: Table) -> None:
        """Two tables must not fill one target."""
        with self._lock:
            other = self._targets.setdefault(table.target, table.name)
        if other != table.name:
            raise _shared(table.target, other, table.name)

    # store

    def start(self, name: str) -> Start:
        """Where a table begins that has no position of its own."""
        return start(self.store, self.config, name)

    def log(self, name: str) -> Log:
        return Log(self.store, name)

    def watermark(self, name: str) -> Watermark:
        return Watermark(self.store, name, self.run)

    def identity(self) -> pipeline.Identity:
        """Which pipeline this is; begins it when the prefix is new."""
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

    def warm_up(self) -> None:
        """Begins to start Spark, so that it is there when the plan has been claimed."""
        with self._lock:
            if self._borrowed is None and self._spark is None and not self._stopped.is_set():
                name = f"floodmark {self.run}"
                self._spark = Spark(self.config.spark_master, self.config.spark_conf, name=name)
                self._started = self._starter.submit(self._spark.start)

    def spark(self) -> Spark:
        """Spark, running."""
        if self._borrowed is not None:
            return self._borrowed
        self.warm_up()
        with self._lock:
            spark, started = self._spark, self._started
        if spark is None or started is None:
            raise Interrupted("the run has been stopped")
        started.result()
        return spark

    def warehouse(self) -> Warehouse:
        """The warehouse that this pipeline fills."""
        with self._lock:
            if self._warehouse is None:
                self._warehouse = open_warehouse(self.config.warehouse)
            return self._warehouse


def _shared(target: str, other: str, name: str) -> ConfigError:
    return ConfigError(
        f"{other} and {name} have the same target {target}",
        hint=f"set tables.{name}.target in the configuration",
        table=name,
    )
