"""Spark: its start, its stop, and slices run as tasks. The only module that imports pyspark.

One slice is one Spark job of one task, a few of them in flight per core: a job of many tasks would hand over its
results only when the last one has ended. A task's own errors come back as values and are raised here; a lost worker
or executor is Spark's to retry. Rows and secrets are never in Spark's settings, descriptions or logs.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from floodmark.errors import ConfigError, FloodmarkError, Interrupted, TransientError
from floodmark.extract import SliceJob, SliceResult, attempt
from floodmark.jvm import Gateway, Jvm, cache_folder, direct_command, find_java, is_local

log = logging.getLogger("floodmark")

# Jobs in flight per core: the next task is with Spark before the last one has ended.
AHEAD = 2
# A slice whose services failed is tried again after these pauses, unless it has failed for so long already.
PAUSES = (1.0, 3.0)
PATIENCE = 20.0
# Attempts of a task whose worker was lost. Local masters know of retries only by their URL.
ATTEMPTS = 4


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
        self._connections: threading.Semaphore | None = None

    # start and stop

    def start(self) -> None:
        """Starts the JVM and the context; meant for a thread of its own while the plan is made."""
        # Py4J would report a connection that ends with the JVM as an error of its own.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        where = self._jvm.start()
        try:
            self._connect(where)
        except FloodmarkError:
            raise
        except Exception as error:
            self._jvm.kill()
            if self._stopped.is_set():
                raise Interrupted("stopped while Spark was starting") from None
            raise _start_error(error, self.settings["spark.master"], self.log_path) from None
        if is_local(self.settings):
            threading.Thread(target=self._warm_up, name="spark-warm-up", daemon=True).start()

    def _connect(self, where: Gateway) -> None:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        if SparkContext._active_spark_context is not None:
            raise ConfigError("Spark is running already in this process")
        # With these two set, launch_gateway connects to a JVM that is there.
        os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = (
            str(where.port),
            where.secret,
        )
        try:
            self._gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
        conf = SparkConf(loadDefaults=False)
        if is_local(self.settings) and self._jvm.folder is not None:
            # Sockets and temporary files where only this user can look, and where they are found to be removed.
            conf.set("spark.local.dir", str(self._jvm.folder))
            conf.set("spark.python.unix.domain.socket.dir", str(self._jvm.folder))
        conf.setAll(list(self.settings.items()))
        with _own_signals():
            context = SparkContext(conf=conf, gateway=self._gateway)
        # Accumulators are not used; their server would print a traceback for a connection that ends.
        context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
        # The Python of the workers: this one, unless told otherwise.
        told = self.settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
        context.pythonExec = told or sys.executable
        self.parallelism = context.defaultParallelism
        self._base = context.parallelize(range(1), 1)
        self._context = context

    def _warm_up(self) -> None:
        """Starts the first Python workers and lets them import what slices need, while the plan is being claimed."""
        with suppress(Exception):
            count = min(self.parallelism, 4)
            self._context.setJobGroup("warm-up", "start Python workers")
            self._context.runJob(self._context.parallelize(range(count), count), _imports)

    def cancel(self) -> None:
        """Ends every running task at once; whoever waits for it gets Interrupted."""
        self._stopped.set()
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
            self._jvm.stop(60 if self._jvm.training else 5)
            _forget(self._gateway)

    def _leave(self, context: Any) -> None:
        """Ends the context in good order. On this machine that is the JVM's own shutdown, a second faster."""
        if not is_local(self.settings):
            context.stop()
            return
        threading.Thread(target=context._accumulatorServer.shutdown, daemon=True).start()

    # slices

    def submit(self, jobs: Sequence[SliceJob], group: str) -> Iterator[SliceResult]:
        """The slices' results as they finish, in any order; the first error ends them all and is raised."""
        if not jobs:
            return
        own = f"{group} #{next(self._numbers)}"
        ended = threading.Event()
        room = self._room(jobs[0].source.max_connections)

        def run(job: SliceJob) -> SliceResult:
            what = f"extract {group} {job.slice.kind} slice {job.slice.number + 1} of {len(jobs)}"
            return self._patiently(job, own, what, ended, room)

        with ThreadPoolExecutor(min(len(jobs), self.parallelism * AHEAD), thread_name_prefix="slice") as pool:
            waiting: set[Future[SliceResult]] = {pool.submit(run, job) for job in jobs}
            try:
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
            finally:
                ended.set()
                if waiting:
                    pool.shutdown(wait=False, cancel_futures=True)
                    with suppress(Exception):
                        self._context.cancelJobGroup(own)

    def _room(self, connections: int) -> threading.Semaphore:
        """Holds tasks back where Spark has more cores than the source may have connections."""
        with self._lock:
            if self._connections is None:
                enough = connections >= self.parallelism
                self._connections = threading.Semaphore(
                    self.parallelism * 64 if enough else max(1, connections)
                )
            return self._connections

    def _patiently(
        self, job: SliceJob, group: str, what: str, ended: threading.Event, room: threading.Semaphore
    ) -> SliceResult:
        """One slice, tried again where trying again can help."""
        pauses, failing_since = iter(PAUSES), None
        while True:
            with room:
                if ended.is_set() or self._stopped.is_set():
                    raise Interrupted("stopped")
                result = self._run(job, group, what)
            if isinstance(result, SliceResult):
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

    def _run(self, job: SliceJob, group: str, what: str) -> SliceResult | FloodmarkError:
        """One slice as a Spark job of one task; the task's error as a value, Spark's own raised."""
        context = self._context
        if context is None:
            raise Interrupted("stopped")
        try:
            context.setJobGroup(group, what, interruptOnCancel=True)
            [result] = context.runJob(self._base, _task(job))
        except Exception as error:
            raise self._lost(error, job.table.name) from None
        if not isinstance(result, SliceResult | FloodmarkError):
            raise TypeError(f"a task returned {type(result).__name__}")
        return result

    def _lost(self, error: Exception, table: str) -> FloodmarkError:
        """What Spark's own failure means to the operator."""
        said = _java_message(error)
        if self._stopped.is_set() or " cancelled " in said:
            return Interrupted("stopped", table=table)
        process = self._jvm.process
        if process is None or process.poll() is not None or not said:
            said = "Spark's JVM has ended"
        return TransientError(
            f"Spark lost a task: {said}", hint=f"run the command again; see {self.log_path}", table=table
        )


def settings(master: str, conf: Mapping[str, str], name: str) -> dict[str, str]:
    """Spark's settings: ours, overruled by the user's."""
    master = conf.get("spark.master", master)
    if master == "local":
        master = "local[1]"
    if master.startswith("local[") and "," not in master:
        master = f"{master[:-1]},{ATTEMPTS}]"
    ours = {
        "spark.app.name": name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.worker.reuse": "true",
        "spark.python.task.killTimeout": "100ms",
        "spark.task.maxFailures": str(ATTEMPTS),
    }
    if master.startswith("local"):
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Over TCP every task waits 40 ms for an acknowledgement.
        ours |= {"spark.python.unix.domain.socket.enabled": "true"}
    return {**ours, **conf, "spark.master": master}


def prepare() -> Path | None:
    """Makes the archive of Spark's classes that later starts are faster with; None: it was there.

    A JVM of its own runs what a sync runs and writes down at its end which classes that took. About 15 seconds.
    """
    spark = Spark("local[2]", name="floodmark prepare", training=True)
    archive = _archive(direct_command(find_java(), spark.settings, training=True))
    part = archive.with_name(f"{archive.name}.{os.getpid()}")
    if archive.exists():
        return None
    try:
        spark.start()
        spark._context.runJob(spark._context.parallelize(range(2), 2), _imports)
    finally:
        spark.stop()
    if not part.exists():
        raise ConfigError(
            "Java wrote no class archive", hint=f"Spark starts without it too; see {spark.log_path}"
        )
    part.replace(archive)
    return archive


def _archive(command: Sequence[str]) -> Path:
    option = next(o for o in command if o.startswith("-XX:ArchiveClassesAtExit="))
    return Path(option.partition("=")[2].removesuffix(f".{os.getpid()}"))


# ---------------------------------------------------------------- what runs in the workers


def _task(job: SliceJob) -> Callable[[Iterable[int]], list[SliceResult | FloodmarkError]]:
    def run(_: Iterable[int]) -> list[SliceResult | FloodmarkError]:
        _settle()
        return [attempt(job)]

    return run


def _imports(_: Iterable[int]) -> list[int]:
    """A task that does nothing but to have this module imported."""
    _settle()
    return []


@cache
def _settle() -> None:
    """Once per worker: pyspark collects garbage after every task, and would walk all that was imported, for 80 ms."""
    gc.freeze()


# ---------------------------------------------------------------- Py4J's manners


class _own_signals:
    """Puts back the SIGINT handler that SparkContext replaces when it is made in the main thread."""

    def __enter__(self) -> None:
        self._before = signal.getsignal(signal.SIGINT)

    def __exit__(self, *error: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._before)


def _forget(gateway: Any) -> None:
    """Lets a later Spark in this process begin anew; pyspark keeps its gateway for ever."""
    from pyspark import SparkContext

    if gateway is not None and SparkContext._gateway is gateway:
        SparkContext._gateway, SparkContext._jvm, SparkContext._active_spark_context = None, None, None


_LOST = re.compile(r"failed (\d+) times, most recent failure: Lost task [^:]*: (.+?)(?: Consider |\. |\n|$)")


def _java_message(error: Exception) -> str:
    """The telling line of an exception from the JVM, without stack and boilerplate; empty when there is none."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    if not isinstance(error, Py4JJavaError):
        return ""
    try:
        text = str(error.java_exception.getMessage()).strip()
    except Exception:  # the JVM is gone
        return ""
    if found := _LOST.search(text):
        return f"{found[2].rpartition('Exception: ')[2]} ({found[1]} times)"[:300]
    return text.partition("\n")[0][:300]


def _start_error(error: Exception, master: str, log_path: Path) -> FloodmarkError:
    line = _java_message(error) or (str(error).strip().splitlines() or [type(error).__name__])[-1]
    hint = f"check spark.master ({master}) and spark.conf; see {log_path}"
    if any(word in line.lower() for word in ("unresponsive", "connect", "timed out", "refused", "stopped")):
        return TransientError(f"Spark did not start: {line[:300]}", hint=hint)
    return ConfigError(f"Spark did not start: {line[:300]}", hint=hint)


if __name__ == "__main__":
    from floodmark import spark  # under its own name: workers can't import __main__

    made = spark.prepare()
    print(f"Spark's classes are in {made}" if made else "Spark's classes were prepared already")
