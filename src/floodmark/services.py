"""The services of one run: the source, the store, Spark and the warehouse, each opened when it is first needed.

A run of known tables with nothing to do starts no Spark and touches no warehouse. Whatever is opened here is closed here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from floodmark.config.load import Config
from floodmark.load.protocol import Warehouse, open_warehouse
from floodmark.model.errors import FloodmarkError
from floodmark.model.events import Emit, Noted, Waiting
from floodmark.model.origin import Sources
from floodmark.model.table import Table
from floodmark.source.connections import SharedLooks, Throttle
from floodmark.source.identity import end_read, session_on
from floodmark.source.session import Session
from floodmark.spark.context import Spark, WarmSpark
from floodmark.spark.job import Job
from floodmark.store.places import finish
from floodmark.store.store import Store

R = TypeVar("R")

# Seconds that an embedded warehouse stays open for the next table's query or load.
LINGER = 0.25


class Services:
    """What the tables of one run share. A context manager that stops what it started."""

    def __init__(self, config: Config, emit: Emit, run: str, spark: Spark | WarmSpark | None = None) -> None:
        """A Spark that is passed in is used, but not stopped: it stays the caller's, unless it is for one run."""
        self.config = config
        self.emit = emit
        self.run = run
        self.store = Store(config.store)
        # No reference to self here: in a resident sync, a reference cycle would keep connections open for long.
        self.throttle = Throttle(config.source, lambda text: emit(Noted("", text)))
        self.sources = Sources()
        self.interrupted = False
        # One load at a time, except small ones: loads into one warehouse file would only queue inside it.
        self.loading = threading.Lock()
        # One shared snapshot at a time: two would wait for each other's cores and connections.
        self.sharing = threading.Lock()
        self._lock = threading.Lock()
        self._own_spark = not isinstance(spark, WarmSpark) or spark.one_run
        self._spark = (
            spark if isinstance(spark, WarmSpark) else WarmSpark(config, f"floodmark {run}", running=spark)
        )
        self._warehouse: Warehouse | None = None

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *error: object) -> None:
        self.throttle.drop_kept()
        if self._own_spark and error[0] is not None:
            self._spark.abandon()
        self.stop()
        if self._warehouse is not None:
            self._warehouse.close()
        finish(self.store.places)

    def interrupt(self) -> None:
        """Ends running tasks and source queries at once."""
        self.interrupted = True
        self.throttle.interrupt()
        self._spark.cancel()
        self.stop()

    def stop(self) -> None:
        """Stops the Spark that this run started, and everything running on it; safe to call twice."""
        if self._own_spark:
            if self._spark.trains:
                self.emit(Noted("", "saving Spark's classes for faster starts (a few seconds, once)"))
            self._spark.stop()

    def session(self, purpose: str) -> AbstractContextManager[Session]:
        """A connection to the source, for queries."""
        return self.throttle.session(purpose)

    def looks(self, session: Session) -> SharedLooks:
        """What the run's tables have found out about the session's server."""
        return self.throttle.looks(session)

    @contextmanager
    def reading(self, purpose: str, table: Table) -> Iterator[Session]:
        """A session whose questions to one table see one moment; raises if they went to another source than the run's."""
        known = self.sources.expected(table.name)
        with session_on(known.server, lambda: self.session(purpose)) as session:
            session.rows("START TRANSACTION")
            yield session
            found = end_read(session, table, known, commits=True)
        self.sources.check(table.name, found)

    def need_spark(self) -> None:
        """Raises ConfigError at once if there is no Spark that could be started."""
        self._spark.check_installed()

    def warm_up(self) -> None:
        """Starts Spark in the background unless it is running, and says so."""
        self._spark.warm_up(lambda: self.emit(Noted("", "starting Spark")))

    def spark(self) -> Spark:
        """Spark, running."""
        self.warm_up()
        return self._spark.get()

    def submit(
        self,
        jobs: Sequence[Job[R]],
        group: str,
        underway: Callable[[int], None] | None = None,
        failed: Callable[[], FloodmarkError | None] = lambda: None,
        small: bool = False,
    ) -> Generator[R, None, None]:
        """Runs the jobs as Spark tasks and yields results as they finish, within this run's limits on the source.

        `underway` receives the number of rows read so far by unfinished jobs. `failed` is asked now and then for an
        error that ends them all, though no task has one. `small` jobs may share a task with those of other tables.
        """
        table, emit = jobs[0].table.name if jobs else "", self.emit
        return self.spark().run(
            jobs, group, self.throttle, underway, lambda text: emit(Noted(table, text)), failed, small
        )

    def warehouse(self) -> Warehouse:
        """The warehouse that this pipeline fills."""
        with self._lock:
            if self._warehouse is None:
                emit = self.emit
                self._warehouse = open_warehouse(
                    self.config.warehouse, linger=LINGER, waits=lambda on: emit(Waiting("", on))
                )
            return self._warehouse
