"""What the tables of one run share: the store, the source, Spark, the warehouse, the run's name.

Everything is opened when it is first needed: a run with nothing to do starts no Spark and touches no warehouse.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
from types import TracebackType

from floodmark.config import Config
from floodmark.errors import ConfigError
from floodmark.model import Table
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import list_tables, resolve
from floodmark.report import Progress, SyncOptions, SyncReport
from floodmark.spark import Spark
from floodmark.state import Log, Watermark, pipeline, stamp
from floodmark.store import Store
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
        self._spark: Future[Spark] | None = None
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="spark")
        self._identity: pipeline.Identity | None = None
        self._warehouse: Warehouse | None = None
        self._stopped = threading.Event()

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
        """Ends running tasks at once."""
        if self._borrowed is not None:
            self._borrowed.cancel()
        self.stop()

    def stop(self) -> None:
        """Stops the Spark that this run has started, and whatever runs on it; safe to call twice."""
        self._stopped.set()
        with self._lock:
            starting, self._spark = self._spark, None
        if starting is not None and not starting.cancel():
            starting.add_done_callback(_stop_spark)

    # source

    def session(self, purpose: str) -> Session:
        """A connection to the source, for questions."""
        return Session(self.config.source, purpose=purpose, read_timeout=PATIENCE)

    def resolve(self, names: Sequence[str], all_tables: bool) -> list[str]:
        """The full names of the tables that the user means."""
        if self.options.load_only and not all_tables and all("." in name for name in names):
            return list(dict.fromkeys(names))  # the source may be away
        with self.session("plan") as session:
            database = self.config.source.database
            if not all_tables:
                return list(dict.fromkeys(resolve(session, name, database) for name in names))
            if not self.config.tables:
                return list_tables(session, database)
            found: list[str] = []
            for pattern in self.config.tables:
                if any(c in pattern for c in "*?["):
                    found += [t for t in list_tables(session, database) if fnmatchcase(t, pattern)]
                else:
                    found.append(resolve(session, pattern, database))
            return list(dict.fromkeys(found))

    def check_target(self, table: Table) -> None:
        """Two tables must not fill one target."""
        with self._lock:
            other = self._targets.setdefault(table.target, table.name)
        if other != table.name:
            raise ConfigError(
                f"{other} and {table.name} have the same target {table.target}",
                hint=f"set tables.{table.name}.target in the configuration",
                table=table.name,
            )

    # store

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

    def write_run(self, report: SyncReport) -> None:
        """The completion object that orchestrators wait for, written last."""
        body = json.dumps(report.as_json(), indent=2, ensure_ascii=False)
        self.store.put(f"runs/{self.run}.json", body.encode())

    # Spark and warehouse

    def warm_up(self) -> None:
        """Begins to start Spark, so that it is there when the plan has been claimed."""
        with self._lock:
            if self._borrowed is None and self._spark is None and not self._stopped.is_set():
                self._spark = self._starter.submit(self._start_spark)

    def _start_spark(self) -> Spark:
        spark = Spark(self.config.spark_master, self.config.spark_conf, name=f"floodmark {self.run}")
        spark.start()
        return spark

    def spark(self) -> Spark:
        """Spark, running."""
        if self._borrowed is not None:
            return self._borrowed
        self.warm_up()
        with self._lock:
            starting = self._spark
        if starting is None:
            raise RuntimeError("the run has been stopped")
        return starting.result()

    def warehouse(self) -> Warehouse:
        """The warehouse that this pipeline fills."""
        with self._lock:
            if self._warehouse is None:
                self._warehouse = open_warehouse(self.config.warehouse)
            return self._warehouse


def _stop_spark(started: Future[Spark]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().stop()
