"""Spark on demand: started when first needed, kept for the cycles of a resident sync, replaced if it dies.

A run with nothing to do never gets here, so it starts no JVM, unless a table was never synced. A failed start
fails every table of that run alike; only the next run tries again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Self

from floodmark.config.load import Config
from floodmark.model.errors import FloodmarkError, Interrupted
from floodmark.spark.context import Spark
from floodmark.spark.pyspark_internals import check_installed


class WarmSpark:
    """One Spark at a time. All methods may be called from any thread."""

    def __init__(
        self, config: Config, name: str, running: Spark | None = None, *, one_run: bool = False
    ) -> None:
        """`running` is someone else's Spark: used, and left running. `one_run`: the run that is given it stops it."""
        self.one_run = one_run
        self._config = config
        self._name = name
        self._lock = threading.Lock()
        self._given = running is not None
        self._spark: Spark | None = running
        self._started: Future[None] | None = None
        self._untold = False  # whether it was started without anyone being told
        self._stopped = threading.Event()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="spark")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            self.abandon()
        self.stop()

    def check_installed(self) -> None:
        """Raises ConfigError if it could never start, for lack of a pyspark that is new enough."""
        if not self._given:
            check_installed()

    def warm_up(self, said: Callable[[], None] | None = None) -> None:
        """Starts Spark in the background unless it runs; of each start, one caller is told by `said`."""
        with self._lock:
            if self._stopped.is_set():
                return
            if self._spark is None:
                self._spark = Spark(self._config.spark.master, self._config.spark.conf, name=self._name)
                self._started = self._starter.submit(self._spark.start)
                self._untold = True
            if said is None or not self._untold:
                return
            self._untold = False
        said()

    def warm_up_if(self, needed: Callable[[], bool]) -> None:
        """Starts Spark if the answer to a question is yes; doesn't wait for the answer, not even when it is stopped."""

        def ask() -> None:
            with suppress(FloodmarkError):  # whoever needs Spark gets the error, too
                if needed():
                    self.warm_up()

        threading.Thread(target=ask, name="early spark", daemon=True).start()

    def get(self) -> Spark:
        """Spark, running; raises the error that kept it from starting."""
        self.warm_up()
        with self._lock:
            spark, started = self._spark, self._started
        if spark is None:
            raise Interrupted("the run has been stopped")
        if started is not None:
            started.result()
        return spark

    def renew(self) -> None:
        """Discards a Spark that failed to start or has died, so that the next `get` starts a new one."""
        with self._lock:
            spark, started = self._spark, self._started
            if self._given or spark is None or started is None or not started.done():
                return
            if started.exception() is None and spark.alive:
                return
            self._spark, self._started = None, None
        spark.stop()

    @property
    def trains(self) -> bool:
        """Whether stopping our own Spark will take seconds, to write an archive for faster starts."""
        with self._lock:
            return self._spark is not None and not self._given and self._spark.trains

    def cancel(self) -> None:
        """Ends every running task at once; callers waiting for one get Interrupted."""
        with self._lock:
            spark = self._spark
        if spark is not None:
            spark.cancel()

    def abandon(self) -> None:
        """After an error: nobody waits any more for the tasks of our own Spark, or for its archive."""
        if not self._given:
            self.cancel()

    def stop(self) -> None:
        """Stops our own Spark for good; safe to call twice, and during the start."""
        self._stopped.set()
        with self._lock:
            spark, self._spark = self._spark, None
        if spark is not None and not self._given:
            spark.stop()
        self._starter.shutdown(wait=True)
