"""Spark for experiments: the laboratory's long-running JVM, and a plan that travels with every task."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from labinject.plan import PLAN, once


def install() -> None:
    """Make tasks carry the plan, and use the plan's JVM if it names one; once per process."""
    if "pyspark.daemon" in sys.modules or "pyspark.worker" in sys.modules:
        return  # a worker starts no tasks
    from floodmark.spark import context as spark

    if once(spark.Spark):
        _spark(spark)


def _spark(spark: Any) -> None:
    task = spark.task
    spark.task = lambda pieces, local: _armed(task(pieces, local), dict(PLAN.raw), pieces[0].title)
    if PLAN.spark is not None:
        spark.Spark.start, spark.Spark.stop = _attach, _detach


def _armed(
    run: Callable[[Iterable[int]], Any], plan: dict[str, Any], title: str
) -> Callable[[Iterable[int]], Any]:
    def armed(rows: Iterable[int]) -> Any:
        import labinject
        from labinject import tasks

        labinject.armed_for_a_task(plan)
        try:
            return tasks.struck(run, rows, title)
        finally:
            labinject.PLAN.take({})

    return armed


def _attach(self: Any) -> None:
    """Wrap the SparkContext of the laboratory's JVM in one of this process."""
    from pyspark import SparkConf, SparkContext

    from floodmark.spark.pyspark_internals import connected, own_environment

    assert PLAN.spark is not None
    gateway = connected(PLAN.spark["port"], PLAN.spark["secret"])
    jvm = gateway.jvm
    settings = jvm.org.apache.spark.SparkConf(False)
    for name, value in {**self.settings, **PLAN.spark["conf"]}.items():
        settings.set(name, value)
    inner = jvm.org.apache.spark.SparkContext.getOrCreate(settings)
    context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(inner)
    with own_environment():
        own = SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=inner.getConf()))
    own._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    own._javaAccumulator = jvm.PythonAccumulatorV2(PLAN.spark["ear"])
    inner.register(own._javaAccumulator)
    own.pythonExec = sys.executable
    self.parallelism = own.defaultParallelism
    self._gateway, self._context, self._base = gateway, own, own.parallelize(range(1), 1)


def _detach(self: Any) -> None:
    """Leave the JVM to the next command."""
    self._stopped.set()
    with self._lock:
        context, self._context = self._context, None
        if context is not None:
            threading.Thread(target=context._accumulatorServer.shutdown, daemon=True).start()
        if self._gateway is not None:
            with suppress(Exception):
                self._gateway.close()
