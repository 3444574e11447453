"""Where a SparkContext comes from, and how it is left.

It comes from one of four places: our own JVM (`jvm`); this process, if it already has one, say in a notebook
(used and left running); the JVM of spark-submit; or, with a pyspark whose internals we don't know, pyspark's
own launcher. Nothing here changes the environment: libc's getenv in another thread may read memory that such
a change frees.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from floodmark.model.errors import ConfigError, FloodmarkError
from floodmark.spark import pyspark_internals as internals
from floodmark.spark.failures import explained
from floodmark.spark.jvm import DAEMON, Jvm, is_local, other_python

# Tells our own context from others in the same process.
OWN = "spark.floodmark.own"

Way = Literal["own JVM", "in this process", "spark-submit", "pyspark"]
# Settings that make sense only in a JVM that we have started ourselves.
_OF_OUR_JVM = {DAEMON, "spark.python.unix.domain.socket.enabled", "spark.authenticate"}


class Started(NamedTuple):
    """A running SparkContext, the gateway to its JVM if that is ours to close, and where it came from."""

    context: Any
    gateway: Any
    way: Way


def started(jvm: Jvm) -> Started:
    """Finds or starts a SparkContext with the JVM's settings; raises whatever fails (see `failures.explained`)."""
    known = internals.is_known()
    if (running := internals.active_context()) is not None:
        if running.getConf().get(OWN):
            raise ConfigError("Spark is already running in this process")
        return Started(running, None, "in this process")
    if internals.is_submitted():
        return _by_pyspark(jvm, "spark-submit")
    if not known:
        return _by_pyspark(jvm, "pyspark")
    return _in_own_jvm(jvm)


def context_of(given: object) -> Any:
    """The SparkContext of a caller's SparkSession, or the one that was handed over; raises ConfigError."""
    if type(given).__module__.startswith("pyspark.sql.connect"):
        raise ConfigError(
            "a Spark Connect session can't run Floodmark's tasks: it has no SparkContext",
            hint="pass a classic SparkSession, or none: Floodmark then starts Spark itself",
        )
    context: Any = getattr(given, "sparkContext", given)
    if not hasattr(context, "runJob"):
        raise ConfigError(f"spark must be a SparkSession or a SparkContext, not {type(given).__name__}")
    if internals.is_stopped(context):
        raise ConfigError("the Spark session that was passed in has been stopped", hint="create a new one")
    return context


def _in_own_jvm(jvm: Jvm) -> Started:
    # Py4J would report a connection that ends with the JVM as an error.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    gateway = internals.connected(*jvm.start(meanwhile=_import_pyspark))
    from pyspark import SparkConf

    conf = SparkConf(loadDefaults=False)
    if is_local(jvm.settings):
        # Sockets and temporary files go where only this user can see them, and where cleanup finds them.
        conf.set("spark.local.dir", str(jvm.folder))
        conf.set("spark.python.unix.domain.socket.dir", str(jvm.folder))
    conf.setAll([*jvm.settings.items()])
    try:
        with explained(jvm):
            context = _made(conf, gateway)
    except FloodmarkError:
        with suppress(Exception):
            gateway.shutdown()
        internals.forget(gateway)
        raise
    internals.hush_accumulators(context)
    # The workers' Python: this one, unless configured otherwise.
    context.pythonExec = other_python(jvm.settings) or sys.executable
    return Started(context, gateway, "own JVM")


def _by_pyspark(jvm: Jvm, way: Way) -> Started:
    """Makes a context by pyspark's own means; submitted settings override the configuration."""
    from pyspark import SparkConf

    readable = way != "spark-submit" or internals.connect_to_submitted()
    conf = SparkConf()
    # Where we can't see what was submitted, none of ours could overrule it by mistake.
    for name, value in jvm.settings.items() if readable else ():
        if not conf.contains(name) and name not in _OF_OUR_JVM:
            conf.set(name, value)
    return Started(_made(conf), internals.gateway_of_pyspark(), way)


def _made(conf: Any, gateway: Any = None) -> Any:
    from pyspark import SparkContext

    conf.set(OWN, "true")
    with internals.own_signals(), internals.own_environment():
        return SparkContext(conf=conf, gateway=gateway)


def _import_pyspark() -> None:
    """Takes a third of a second, while the JVM is busy starting anyway."""
    import pyspark.java_gateway  # noqa: F401
