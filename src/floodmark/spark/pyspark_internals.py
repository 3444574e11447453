"""Everything we use of pyspark and Py4J beyond their public APIs, each with what happens without it.

Tested with pyspark 4.0 to 4.3 (`KNOWN`). With any other version, pyspark's own launcher starts Spark instead
of ours, and a missing name costs only a convenience: no list of executors, a traceback in the log.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from floodmark.model.errors import ConfigError
from floodmark.spark.jvm import pyspark_folder

KNOWN = ((4, 0), (4, 3))  # the oldest and the newest version whose internals we know
WANTED = (
    "pip install 'floodmark[spark]', or 'pyspark>=4.0,<5'; docs/cluster.md has the engines that bring one"
)


def version_text() -> str:
    """The version of the pyspark that would be imported; read from a file, since importing takes 0.3 s."""
    with suppress(OSError):
        if found := re.search(r"\d+\.\d+[\w.]*", (pyspark_folder() / "version.py").read_text()):
            return found[0]
    import pyspark  # from an archive, as on YARN

    return str(getattr(pyspark, "__version__", "{}.{}".format(*KNOWN[1])))


def is_known() -> bool:
    """Whether we may start the JVM of this pyspark ourselves; raises ConfigError if it is too old to work at all."""
    major, minor = map(int, version_text().split(".")[:2])
    if (major, minor) < KNOWN[0]:
        raise ConfigError(f"pyspark {major}.{minor} is too old: Floodmark needs 4.0 or newer", hint=WANTED)
    return (major, minor) <= KNOWN[1]


def check_installed() -> None:
    """Raises ConfigError unless there is a pyspark, and one that can run our tasks."""
    is_known()


def is_submitted() -> bool:
    """Whether spark-submit started this process and its JVM waits for us to create the context.

    A child process of a submitted driver inherits the address too, but the context in that JVM is its parent's.
    """
    if not os.environ.get("PYSPARK_GATEWAY_PORT"):
        return False
    pid = os.getppid()
    with suppress(OSError, ValueError):
        while pid > 1:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            if name.startswith(("java", "python")):
                return name.startswith("java")
            pid = int(rest.split()[1])
    return True


def connect_to_submitted() -> bool:
    """Connects to the JVM of spark-submit; whether a SparkConf made from here on has what was submitted."""
    from pyspark import SparkContext

    connect = getattr(SparkContext, "_ensure_initialized", None)
    if connect is not None:
        connect()
    return connect is not None


def active_context() -> Any:
    """The SparkContext that this process already has, whoever made it; None if we know of none."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    return getattr(SparkContext, "_active_spark_context", None)


def connected(port: int, secret: str) -> Any:
    """Py4J's gateway to a listening JVM; pyspark's own takes port and token only from the environment."""
    from py4j.clientserver import ClientServer, JavaParameters, PythonParameters  # type: ignore[import-untyped]
    from py4j.java_gateway import java_import  # type: ignore[import-untyped]

    java = JavaParameters(port=port, auth_token=secret, auto_convert=True)
    gateway = ClientServer(java, PythonParameters(port=0, eager_load=False))
    gateway.proc = None
    spare_numpy(gateway)
    for name in ("SparkConf", "api.java.*", "api.python.*"):
        java_import(gateway.jvm, f"org.apache.spark.{name}")
    return gateway


class _ForNumpy:
    """One of pyspark's converters of numpy's values, which no other value makes import anything."""

    def __init__(self, theirs: Any) -> None:
        self.convert = theirs.convert
        self._theirs = theirs

    def can_convert(self, value: object) -> bool:
        return type(value).__module__.startswith("numpy") and bool(self._theirs.can_convert(value))


def spare_numpy(gateway: Any) -> None:
    """Keeps the first call through a gateway from importing numpy, and pandas if it is installed: half a second.

    pyspark's converters of numpy's values import them to look at any argument.
    """
    client = gateway._gateway_client
    client.converters = [_ForNumpy(c) if "Numpy" in type(c).__name__ else c for c in client.converters]


@contextmanager
def own_environment() -> Iterator[None]:
    """Makes a SparkContext under construction write into a copy of the environment.

    While other threads run, it would set two variables, to values that their readers assume anyway.
    """
    try:
        from pyspark.core import context
    except ImportError:  # then it does write them
        yield
        return
    theirs: Any = context
    theirs.os = SimpleNamespace(**{**vars(os), "environ": dict(os.environ)})
    try:
        yield
    finally:
        theirs.os = os


@contextmanager
def own_signals() -> Iterator[None]:
    """Restores the SIGINT handler that SparkContext replaces when it is created in the main thread."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def hush_accumulators(context: Any) -> None:
    """Keeps the accumulator server, which we don't use, from printing a traceback when a connection ends."""
    context._accumulatorServer.handle_error = lambda *_: None


def end_accumulators(context: Any) -> None:
    """Shuts that server down in a separate thread; its socket's folder may be gone already."""
    threading.Thread(target=_end, args=(context._accumulatorServer,), daemon=True).start()


def _end(server: Any) -> None:
    with suppress(OSError):
        server.shutdown()


def is_stopped(context: Any) -> bool:
    """Whether a context takes no more tasks. Asks the JVM: a fork can't wait for its parent's child.

    Without that name, a context whose JVM still answers counts as running.
    """
    try:
        if not hasattr(context, "_jsc"):
            return context.statusTracker().getActiveJobsIds() is None
        return bool(context._jsc.sc().isStopped())
    except Exception:
        return True


def executors(context: Any) -> frozenset[str] | None:
    """The ids of the executors that a cluster has given to a context; None if unknown."""
    try:
        return frozenset(str(context._jsc.sc().getExecutorIds().mkString(" ")).split())
    except Exception:
        return None


def forget(gateway: Any) -> None:
    """Lets a later Spark in this process start afresh; pyspark keeps its gateway forever otherwise."""
    if gateway is None:
        return
    from pyspark import SparkContext

    if getattr(SparkContext, "_gateway", None) is gateway:
        SparkContext._gateway, SparkContext._jvm, SparkContext._active_spark_context = None, None, None


def gateway_of_pyspark() -> Any:
    """The gateway that pyspark itself has made."""
    from pyspark import SparkContext

    return getattr(SparkContext, "_gateway", None)


def end_launched(gateway: Any) -> None:
    """Ends the JVM that pyspark itself has launched, which otherwise stays until this process ends."""
    with suppress(Exception):
        gateway.proc.stdin.close()
