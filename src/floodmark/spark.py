"""Spark: its start, its stop, and slices run as tasks. The only module that imports pyspark.

One slice, or one range to be compared, is one Spark job of one task, a few of them in flight per core: a job of many
tasks would hand over its results only when the last one has ended. A task's own errors come back as values and are
raised here; a lost worker or executor is Spark's to retry. Rows and secrets are never in Spark's settings,
descriptions or logs. Nothing here changes the environment: libc's getenv in another thread may read what that frees.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from floodmark.carried import carried
from floodmark.errors import ConfigError, FloodmarkError, Interrupted, TransientError
from floodmark.jvm import Gateway, Jvm, is_local, last_words, other_python, settings
from floodmark.scratch import cache_folder
from floodmark.spark_words import MISSING, telling
from floodmark.tasks import Job, settle, task
from floodmark.throttle import Throttle

R = TypeVar("R")

log = logging.getLogger("floodmark")

# Jobs in flight per core: the next task is with Spark before the last one has ended.
AHEAD = 2
# How often it is looked whether Spark still lives, while a slice is waited for.
LOOK_EVERY = 2.0
# A slice whose services failed is tried again after these pauses, unless it has failed for so long already.
PAUSES = (1.0, 3.0)
PATIENCE = 20.0
# How long a cluster may leave a run without a single executor: Spark itself would wait for ever.
DESERTED = 300.0


class Spark:
    """One SparkContext. `stop` and `cancel` may be called from any thread, at any time."""

    def __init__(
        self,
        master: str = "local[*]",
        conf: Mapping[str, str] | None = None,
        *,
        name: str = "floodmark",
        log_path: Path | None = None,
        training: bool = False,
    ) -> None:
        self.log_path = log_path or cache_folder() / "spark.log"
        self.settings = settings(master, conf or {}, name)
        self.parallelism = 0
        self._jvm = Jvm(self.settings, self.log_path, training=training)
        self._context: Any = None
        self._gateway: Any = None
        self._base: Any = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    # start and stop

    def start(self) -> None:
        """Starts the JVM and the context; meant for a thread of its own while the plan is made."""
        # Py4J would report a connection that ends with the JVM as an error of its own.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        where = self._jvm.start(meanwhile=_import_pyspark)
        try:
            self._connect(where)
        except FloodmarkError:
            raise
        except Exception as error:
            told = _start_error(error, self.settings["spark.master"], self.log_path)  # it asks the JVM
            self._jvm.kill()
            raise (
                Interrupted("stopped while Spark was starting") if self._stopped.is_set() else told
            ) from None
        if is_local(self.settings):
            threading.Thread(target=self._warm_up, name="spark-warm-up", daemon=True).start()

    def _connect(self, where: Gateway) -> None:
        from pyspark import SparkConf, SparkContext

        if SparkContext._active_spark_context is not None:
            raise ConfigError("Spark is running already in this process")
        self._gateway = connected(where)
        conf = SparkConf(loadDefaults=False)
        if is_local(self.settings) and self._jvm.folder is not None:
            # Sockets and temporary files where only this user can look, and where they are found to be removed.
            conf.set("spark.local.dir", str(self._jvm.folder))
            conf.set("spark.python.unix.domain.socket.dir", str(self._jvm.folder))
        conf.setAll(list(self.settings.items()))
        with _own_signals(), own_environment():
            context = SparkContext(conf=conf, gateway=self._gateway)
        # Accumulators are not used; their server would print a traceback for a connection that ends.
        context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        # The Python of the workers: this one, unless told otherwise.
        context.pythonExec = other_python(self.settings) or sys.executable
        self.parallelism = context.defaultParallelism
        self._base = context.parallelize(range(1), 1)
        self._context = context

    def _warm_up(self) -> None:
        """Starts the first Python workers and lets them import what slices need, while the plan is being claimed."""
        with suppress(Exception):
            count = min(self.parallelism, 4)
            self._context.setJobGroup("warm-up", "start Python workers")
            self._context.runJob(self._context.parallelize(range(count), count), _imports)

    @property
    def alive(self) -> bool:
        """Whether tasks can still be given to it: its JVM runs and its context has not been stopped."""
        context = self._context
        if context is None:
            return False
        try:  # not by the process: whoever has been forked from its parent can't wait for it
            return not context._jsc.sc().isStopped()
        except Exception:
            return False

    @property
    def trains(self) -> bool:
        """Whether its JVM writes Spark's classes down at its end."""
        return self._jvm.training

    def rehearse(self) -> None:
        """Runs what every sync runs, on two Python workers."""
        self._context.runJob(self._context.parallelize(range(2), 2), _imports)

    def cancel(self) -> None:
        """Ends every running task at once; whoever waits for it gets Interrupted."""
        self._stopped.set()
        self._jvm.training = False  # nobody wants to wait for that now
        with suppress(Exception):
            if self._context is not None:
                self._context.cancelAllJobs()

    def stop(self) -> None:
        """Cancels what runs and ends the JVM; safe to call twice, and while it starts."""
        self._stopped.set()
        with self._lock:
            context, self._context = self._context, None
            if context is not None:
                with suppress(Exception):
                    context.cancelAllJobs()
                with suppress(Exception):
                    self._leave(context)
            if self._gateway is not None:
                with suppress(Exception):
                    self._gateway.shutdown()
            self._jvm.stop(5)
            _forget(self._gateway)

    def _leave(self, context: Any) -> None:
        """Ends the context in good order. On this machine that is the JVM's own shutdown, a second faster."""
        if not is_local(self.settings):
            context.stop()
            return
        threading.Thread(target=_end_server, args=(context._accumulatorServer,), daemon=True).start()

    # slices

    def submit(self, jobs: Sequence[Job[R]], group: str, throttle: Throttle | None = None) -> Iterator[R]:
        """The jobs' results as they finish, in any order; the first error ends them all and is raised."""
        if not jobs:
            return
        throttle = throttle or Throttle(jobs[0].source)
        own = f"{group} #{next(self._numbers)}"
        ended = threading.Event()

        def run(job: Job[R]) -> R:
            return self._patiently(job, own, job.title(len(jobs)), ended, throttle)

        most = min(len(jobs), self._at_once(jobs[0].source.max_connections))
        with ThreadPoolExecutor(most, thread_name_prefix="slice") as pool:
            waiting: set[Future[R]] = {pool.submit(run, job) for job in jobs}
            alone: float | None = None
            try:
                while waiting:
                    done, waiting = wait(waiting, LOOK_EVERY, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
                    if not done and not self.alive:
                        raise self._lost(RuntimeError(), jobs[0].table.name)
                    alone = None if done else self._alone(alone)
                    if alone is not None and time.monotonic() - alone > DESERTED:
                        raise TransientError(
                            f"{self.settings['spark.master']} has had no executor for this run for {DESERTED:.0f} s",
                            hint="check its workers, and what of their cores and memory is free; then run again",
                            table=jobs[0].table.name,
                        )
            finally:
                ended.set()
                if waiting:
                    pool.shutdown(wait=False, cancel_futures=True)
                # More than once: a job that was just being handed over is not known to the first.
                while not all(future.done() for future in waiting):
                    with suppress(Exception):
                        self._context.cancelJobGroup(own)
                    if not self.alive:
                        # A context that its cluster has ended answers no more; whoever asks it would wait for ever.
                        self._jvm.kill()
                    time.sleep(0.1)

    def _alone(self, since: float | None) -> float | None:
        """Since when the cluster has no executor for this run; None where it has one."""
        if is_local(self.settings):
            return None
        try:  # the driver is among those that are counted
            others = self._context._jsc.sc().getExecutorMemoryStatus().size() - 1
        except Exception:
            return since
        return None if others else since or time.monotonic()

    def _at_once(self, connections: int) -> int:
        """How many slices may be with Spark; how many cores a cluster has can change at any time."""
        return self.parallelism * AHEAD if is_local(self.settings) else connections

    def _patiently(self, job: Job[R], group: str, what: str, ended: threading.Event, throttle: Throttle) -> R:
        """One slice, tried again where trying again can help."""
        pauses, failing_since = iter(PAUSES), None
        cores = self.parallelism if is_local(self.settings) else None
        while True:
            with throttle.task(cores, lambda: ended.is_set() or self._stopped.is_set()):
                if ended.is_set() or self._stopped.is_set():
                    raise Interrupted("stopped")
                result = self._run(job, group, what)
            if not isinstance(result, FloodmarkError):
                return result
            failing_since = failing_since or time.monotonic()
            pause = next(pauses, None)
            if not isinstance(result, TransientError) or pause is None:
                raise result
            if time.monotonic() - failing_since > PATIENCE:
                raise result
            log.info(
                "%s failed and is tried again: %s", what, result.message, extra={"table": job.table.name}
            )
            ended.wait(pause)

    def _run(self, job: Job[R], group: str, what: str) -> R | FloodmarkError:
        """One slice as a Spark job of one task; the task's error as a value, Spark's own raised."""
        context = self._context
        if context is None:
            raise Interrupted("stopped")
        run = task(job, None if is_local(self.settings) else carried(job.source))
        try:
            context.setJobGroup(group, what, interruptOnCancel=True)
            [result] = context.runJob(self._base, run)
        except Exception as error:
            raise self._lost(error, job.table.name) from None
        found: R | FloodmarkError = result
        return found

    def answers(
        self, asks: Callable[[Iterable[int]], list[dict[str, Any]]], count: int
    ) -> list[dict[str, Any]]:
        """What a number of tasks answer, wherever Spark lets them run."""
        try:
            self._context.setJobGroup("ask", "ask the executors", interruptOnCancel=True)
            return list(self._context.runJob(self._context.parallelize(range(count), count), asks))
        except Exception as error:
            raise self._lost(error, None) from None

    def _lost(self, error: Exception, table: str | None) -> FloodmarkError:
        """What Spark's own failure means to the operator."""
        text = _java_text(error)
        said = telling(text)
        ended = not self.alive
        if self._stopped.is_set() or (" cancelled " in said and not ended):
            return Interrupted("stopped", table=table)
        if missing := MISSING.search(text):
            return ConfigError(
                f"Spark's executors lack what a slice needs: {missing[0]}",
                hint="install or ship Python and its packages: docs/cluster.md", table=table,
            )  # fmt: skip
        if ended or not said:
            master = self.settings["spark.master"]
            said = (
                "Spark's JVM has ended"
                if is_local(self.settings)
                else f"{master} is away, or has ended the application"
            )
        return TransientError(
            f"Spark lost a task: {said}", hint=f"run the command again; see {self.log_path}", table=table
        )


def _imports(_: Iterable[int]) -> list[int]:
    """A task that does nothing but to have imported what slices need."""
    import floodmark.extract  # noqa: F401

    settle()
    return []


# ---------------------------------------------------------------- Py4J's manners


def _import_pyspark() -> None:
    """Takes a third of a second, in which the JVM has enough to do without us."""
    import pyspark.java_gateway  # noqa: F401


def connected(where: Gateway) -> Any:
    """Py4J's gateway to a JVM that listens; pyspark's own way takes port and token from the environment only."""
    from py4j.clientserver import ClientServer, JavaParameters, PythonParameters  # type: ignore[import-untyped]
    from py4j.java_gateway import java_import  # type: ignore[import-untyped]

    java = JavaParameters(port=where.port, auth_token=where.secret, auto_convert=True)
    gateway = ClientServer(java, PythonParameters(port=0, eager_load=False))
    gateway.proc = None
    for name in ("SparkConf", "api.java.*", "api.python.*"):
        java_import(gateway.jvm, f"org.apache.spark.{name}")
    return gateway


@contextmanager
def own_environment() -> Iterator[None]:
    """Lets a SparkContext that is being made write into a copy of the environment.

    It sets two variables to what its readers take without them, while other threads run.
    """
    from pyspark.core import context

    theirs: Any = context
    theirs.os = SimpleNamespace(**{**vars(os), "environ": dict(os.environ)})
    try:
        yield
    finally:
        theirs.os = os


class _own_signals:
    """Puts back the SIGINT handler that SparkContext replaces when it is made in the main thread."""

    def __enter__(self) -> None:
        self._before = signal.getsignal(signal.SIGINT)

    def __exit__(self, *error: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._before)


def _end_server(server: Any) -> None:
    """Ends pyspark's server for accumulators; the folder of its socket may be gone already."""
    with suppress(OSError):
        server.shutdown()


def _forget(gateway: Any) -> None:
    """Lets a later Spark in this process begin anew; pyspark keeps its gateway for ever."""
    from pyspark import SparkContext

    if gateway is not None and SparkContext._gateway is gateway:
        SparkContext._gateway, SparkContext._jvm, SparkContext._active_spark_context = None, None, None


def _java_text(error: Exception) -> str:
    """All that an exception from the JVM says; empty when it is none, or the JVM is gone."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        if not isinstance(error, Py4JJavaError):
            return ""
        text = str(error.java_exception.getMessage()).strip()
        # One word, as a path, says nothing without the exception's name.
        return text if " " in text else f"{error.java_exception.getClass().getSimpleName()}: {text}"
    except Exception:
        return ""


def _start_error(error: Exception, master: str, log_path: Path) -> FloodmarkError:
    try:
        line = telling(_java_text(error)) or str(error).strip().splitlines()[-1]
    except Exception:  # the JVM is gone, and its words with it
        line = last_words(log_path)
    hint = f"check spark.master ({master}) and spark.conf; see {log_path}"
    if any(
        word in line.lower()
        for word in ("unresponsive", "connect", "timed out", "refused", "stopped", "starthook")
    ):
        return TransientError(f"Spark did not start: {line[:300]}", hint=hint)
    return ConfigError(f"Spark did not start: {line[:300]}", hint=hint)
