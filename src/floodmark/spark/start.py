"""Where a SparkContext comes from, and how it is left.

It comes from one of four places: our own JVM (`jvm`); this process, if it already has one, say in a notebook
(used and left running); the JVM of spark-submit; or, with a pyspark whose internals we don't know, pyspark's
own launcher. Nothing here changes the environment: libc's getenv in another thread may read memory that such
a change frees.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.spark import pyspark_internals as internals
from floodmark.spark.errors import telling
from floodmark.spark.jvm import DAEMON, Jvm, is_local, last_words, other_python
from floodmark.spark.master import UNRESPONSIVE, refusal

# Tells our own context from others in the same process.
OWN = "spark.floodmark.own"

Way = Literal["own JVM", "in this process", "spark-submit", "pyspark"]
# Settings that make sense only in a JVM that we have started ourselves.
_OF_OUR_JVM = {DAEMON, "spark.python.unix.domain.socket.enabled", "spark.authenticate"}


@dataclass(frozen=True)
class Started:
    """A running SparkContext, the gateway to its JVM if that is ours to close, and where it came from."""

    context: Any
    gateway: Any
    way: Way


def started(jvm: Jvm) -> Started:
    """Finds or starts a SparkContext with the JVM's settings; raises FloodmarkError."""
    known = internals.is_known(internals.version())
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


def leave(context: Any, way: Way, settings: Mapping[str, str]) -> None:
    """Ends our own context cleanly. With our own local JVM, its shutdown does that, a second faster."""
    if way == "in this process":
        return
    if way == "own JVM" and is_local(settings):
        internals.end_accumulators(context)
    else:
        context.stop()


def _in_own_jvm(jvm: Jvm) -> Started:
    # Py4J would report a connection that ends with the JVM as an error.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    gateway = internals.connected(*jvm.start(meanwhile=_import_pyspark))
    try:
        return Started(_context(jvm, gateway), gateway, "own JVM")
    except Exception as error:
        # Queries the JVM, so before the kill.
        told = start_error(error, jvm)
        jvm.kill()
        with suppress(Exception):
            gateway.shutdown()
        internals.forget(gateway)
        raise (jvm.shortage() or refused(jvm) or told) from None


def _context(jvm: Jvm, gateway: Any) -> Any:
    from pyspark import SparkConf, SparkContext

    conf = SparkConf(loadDefaults=False)
    if is_local(jvm.settings) and jvm.folder is not None:
        # Sockets and temporary files go where only this user can see them, and where cleanup finds them.
        conf.set("spark.local.dir", str(jvm.folder))
        conf.set("spark.python.unix.domain.socket.dir", str(jvm.folder))
    conf.setAll([*jvm.settings.items(), (OWN, "true")])
    with internals.own_signals(), internals.own_environment():
        context = SparkContext(conf=conf, gateway=gateway)
    internals.hush_accumulators(context)
    # The workers' Python: this one, unless configured otherwise.
    context.pythonExec = other_python(jvm.settings) or sys.executable
    return context


def _by_pyspark(jvm: Jvm, way: Way) -> Started:
    """Makes a context by pyspark's own means; submitted settings override the configuration."""
    from pyspark import SparkConf, SparkContext

    try:
        known = way != "spark-submit" or internals.connect_to_submitted()
        conf = SparkConf()
        # Where we can't see what was submitted, none of ours could overrule it by mistake.
        for name, value in jvm.settings.items() if known else ():
            if not conf.contains(name) and name not in _OF_OUR_JVM:
                conf.set(name, value)
        conf.set(OWN, "true")
        with internals.own_signals(), internals.own_environment():
            context = SparkContext(conf=conf)
    except Exception as error:
        raise start_error(error, jvm) from None
    return Started(context, internals.gateway_of_pyspark(), way)


def _import_pyspark() -> None:
    """Takes a third of a second, while the JVM is busy starting anyway."""
    import pyspark.java_gateway  # noqa: F401


# ---------------------------------------------------------------- what went wrong


def refused(jvm: Jvm) -> FloodmarkError | None:
    """Why a reachable master has not accepted the application; None if that is not what happened."""
    if UNRESPONSIVE not in jvm.said():
        return None
    return refusal(jvm.settings["spark.master"], internals.version_text())


def java_text(error: Exception) -> str:
    """The full text of an exception from the JVM; empty if it is something else, or the JVM is gone."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    if type(error).__module__.startswith("pyspark.errors"):  # a SparkSession converts it to this
        return str(error).strip()
    try:
        if not isinstance(error, Py4JJavaError):
            return ""
        text = str(error.java_exception.getMessage()).strip()
        # A single word, such as a path, means nothing without the exception's name.
        return text if " " in text else f"{error.java_exception.getClass().getSimpleName()}: {text}"
    except Exception:
        return ""


def start_error(error: Exception, jvm: Jvm) -> FloodmarkError:
    """What a failed start means for the operator."""
    try:
        line = telling(java_text(error)) or str(error).strip().splitlines()[-1]
    except Exception:  # the JVM is gone, and its message with it
        line = last_words(jvm.said())
    hint = f"check spark.master ({jvm.settings['spark.master']}) and spark.conf; see {jvm.log_path}"
    if re.search("unresponsive|connect|timed out|refused|stopped|starthook", line.lower()):
        return TransientError(f"Spark did not start: {line[:300]}", hint=hint)
    return ConfigError(f"Spark did not start: {line[:300]}", hint=hint)
