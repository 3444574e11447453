"""Spark on demand: started when it is first needed, kept for the cycles of a resident sync, replaced when it died.

A run that finds nothing to do never gets here, so it starts no JVM. What failed to start fails every table of that
run alike; only the next run tries again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from floodmark.config import Config
from floodmark.errors import Interrupted
from floodmark.spark import Spark


class WarmSpark:
    """One Spark at a time. All methods may be called from any thread."""

    def __init__(self, config: Config, name: str, running: Spark | None = None) -> None:
        """With `running`, somebody else's: used, and left to whoever started it."""
        self._config = config
        self._name = name
        self._lock = threading.Lock()
        self._given = running is not None
        self._spark: Spark | None = running
        self._started: Future[None] | None = None
        self._stopped = threading.Event()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="spark")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def warm_up(self, said: Callable[[], None] = lambda: None) -> None:
        """Begins to start Spark unless it runs; `said` is called when that takes a while."""
        with self._lock:
            if self._spark is not None or self._stopped.is_set():
                return
            self._spark = Spark(self._config.spark_master, self._config.spark_conf, name=self._name)
            self._started = self._starter.submit(self._spark.start)
        said()

    def get(self) -> Spark:
        """Spark, running; raises what kept it from starting."""
        self.warm_up()
        with self._lock:
            spark, started = self._spark, self._started
        if spark is None:
            raise Interrupted("the run has been stopped")
        if started is not None:
            started.result()
        return spark

    def renew(self) -> None:
        """Lets go of a Spark that did not start or has died since: the next that is asked for is a new one."""
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
        """Whether the end of the Spark that was started here takes seconds, for the sake of later starts."""
        with self._lock:
            return self._spark is not None and not self._given and self._spark.trains

    def cancel(self) -> None:
        """Ends every running task at once; whoever waits for it gets Interrupted."""
        with self._lock:
            spark = self._spark
        if spark is not None:
            spark.cancel()

    def stop(self) -> None:
        """Stops the Spark that was started here, for good; safe to call twice, and while it starts."""
        self._stopped.set()
        with self._lock:
            spark, self._spark = self._spark, None
        if spark is not None and not self._given:
            spark.stop()
        self._starter.shutdown(wait=True)
