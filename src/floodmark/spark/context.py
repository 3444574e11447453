"""Spark, as the rest of Floodmark sees it: started on demand, stopped, and jobs run as its tasks.

One job, which reads a slice or a range to compare, is one Spark job with one task, a few of them in flight per core: a
Spark job with many tasks would deliver its results only after the last one. Small slices of several tables share a task
if they wait at the same moment (`SharedCalls`). A job's own errors come back as values and are raised here; lost workers
and executors are for Spark to retry. Rows and secrets never appear in Spark's settings, descriptions or logs. `start`
knows where a SparkContext comes from.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakKeyDictionary

from floodmark.config.load import Config
from floodmark.host.retry import SLICE
from floodmark.host.temp import cache_folder
from floodmark.host.threads import SharedCalls
from floodmark.model.errors import ConfigError, FloodmarkError, Interrupted, TransientError
from floodmark.model.text import counted
from floodmark.spark import pyspark_internals as internals
from floodmark.spark.failures import MISSING, explained, java_text, refused, telling
from floodmark.spark.job import Job, Piece, imports, task
from floodmark.spark.jvm import Jvm, is_local, settings
from floodmark.spark.meeting import Meeting
from floodmark.spark.reports import Address, Reports, RowsUnderway, driver_address
from floodmark.spark.start import Way, context_of, started

if TYPE_CHECKING:
    from floodmark.source.connections import Throttle

R = TypeVar("R")

logger = logging.getLogger("floodmark")

# Small slices that share a task at most: a result waits for those of the others.
MOST = 8
# Jobs in flight per core: Spark has the next task before the last one has ended.
AHEAD = 2
# Seconds between liveness checks of Spark while a job is running.
LOOK_EVERY = 2.0
# Seconds that a run waits for its first executor (Spark itself would wait forever), that questions to the executors
# wait for it, and that a run waits for a new one after losing all: a restarted master no longer knows the application.
DESERTED = 300.0
ASKING = 60.0
FORSAKEN = 60.0
# Seconds that a foreign context, which is not ours to kill, may take to release our jobs.
LETTING_GO = 20.0


class Executors:
    """The executors that a cluster gives to a run, as last seen. A local master has none, and a context may not tell."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.gone = False  # none is left, and none will come
        self._settings = settings
        self.forget()

    def forget(self) -> None:
        """Forgets them between two runs of jobs: a cluster takes back executors that are idle for a while."""
        self._ids: frozenset[str] = frozenset()
        self._had_some = False
        self.alone: float | None = None  # since when there has been none, while no job ended

    def look(
        self,
        context: Any,
        note: Callable[[str], None],
        table: str | None = None,
        patience: float | None = None,
    ) -> None:
        """Notes lost ones; raises TransientError if the run has had none for too long.

        `patience` is for a run that never had any.
        """
        found = None if is_local(self._settings) else internals.executors(context)
        if found is not None:
            if lost := self._ids - found:
                note(f"Spark lost {len(lost)} of {len(self._ids)} executors; their slices run again")
            self._ids, self._had_some = found, self._had_some or bool(found)
            self.alone = None if found else self.alone or time.monotonic()
        seconds = FORSAKEN if self._had_some else patience or DESERTED
        if self.alone is None or time.monotonic() - self.alone <= seconds:
            return
        self.gone = True  # a resident sync then starts a new context
        raise TransientError(
            f"{self._settings['spark.master']} has had no executor for this run for {seconds:.0f} s",
            hint="check its workers, their free cores and memory, and that they can reach this machine"
            " (spark.driver.host); then run again",
            table=table,
        )


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
        self._reports: Reports | None = None
        self._way: Way = "own JVM"
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._tag = (
            f"floodmark-{secrets.token_hex(4)}"  # of all our jobs, in a context that may be another's too
        )
        self._numbers = itertools.count(1)
        self._running: set[str] = set()  # tags of the runs of jobs under way
        # Only jobs of one run share tasks, since they share the limits on its source.
        self._shared: WeakKeyDictionary[Throttle, SharedCalls[Any, Any]] = WeakKeyDictionary()
        self._executors = Executors(self.settings)

    # start and stop

    @classmethod
    def over(cls, given: object) -> Spark:
        """Wraps the caller's SparkSession or SparkContext, used and left running; raises ConfigError."""
        if isinstance(given, Spark):
            return given
        context = context_of(given)
        spark = cls(str(context.master))
        spark._use(context, "in this process")
        return spark

    def start(self) -> None:
        """Starts Spark if it isn't running yet; meant to run in a separate thread while the plan is made."""
        try:
            with explained(self._jvm):
                context, self._gateway, way = started(self._jvm)
                self._use(context, way)  # a cluster may end it at any moment
        except FloodmarkError as error:
            raise (
                Interrupted("stopped while Spark was starting") if self._stopped.is_set() else error
            ) from None
        if way == "own JVM" and self.local:
            threading.Thread(target=self._warm_up, name="spark-warm-up", daemon=True).start()

    def _use(self, context: Any, way: Way) -> None:
        self._way = way
        self.settings = dict(context.getConf().getAll())
        self._executors = Executors(self.settings)
        self.parallelism = context.defaultParallelism
        self._base = context.parallelize(range(1), 1)
        port = "0" if self.local else self.settings.get("spark.driver.port", "0")
        with suppress(OSError):  # without reports, progress moves only when a task ends
            self._reports = Reports(
                *driver_address(self.settings, self.local), int(port) if port.isdigit() else 0
            )
        self._context = context

    def _warm_up(self) -> None:
        """Starts the first Python workers while the plan is claimed."""
        with suppress(Exception):
            self.rehearse(min(self.parallelism, 4))

    def rehearse(self, workers: int) -> None:
        """Runs what every sync runs: Python workers that import what jobs need."""
        over = self._context.parallelize(range(workers), workers)
        self._run(over, imports, "warm-up", "start Python workers")

    @property
    def local(self) -> bool:
        """Whether its tasks run on this machine."""
        return is_local(self.settings)

    @property
    def alive(self) -> bool:
        """Whether it still takes tasks: its JVM runs, and its context was neither stopped nor abandoned."""
        context = self._context
        return context is not None and not self._executors.gone and not internals.is_stopped(context)

    @property
    def trains(self) -> bool:
        """Whether its JVM writes the archive of Spark's classes on exit."""
        return self._jvm.training

    def cancel(self) -> None:
        """Ends all our running tasks at once; callers waiting for them get Interrupted."""
        self._stopped.set()
        self._jvm.training = False  # nobody wants to wait for the archive now
        with suppress(Exception):
            if self._context is not None:
                self._context.cancelJobsWithTag(self._tag)

    def stop(self) -> None:
        """Cancels running tasks and ends the JVM if it's ours; safe to call twice, and during the start."""
        self._stopped.set()
        with self._lock:
            context, self._context = self._context, None
            if self._reports is not None:
                self._reports.close()
            if context is not None:
                with suppress(Exception):
                    context.cancelJobsWithTag(self._tag)
                with suppress(Exception):
                    self._leave(context)
            if self._gateway is not None and self._way != "spark-submit":
                with suppress(Exception):
                    self._gateway.shutdown()
                internals.end_launched(self._gateway)
            self._jvm.stop(5)
            if self._way != "spark-submit":
                internals.forget(self._gateway)

    def _leave(self, context: Any) -> None:
        """Ends our own context cleanly. With our own local JVM, its shutdown does that, a second faster."""
        if self._way == "own JVM" and self.local:
            internals.end_accumulators(context)
        elif self._way != "in this process":
            context.stop()

    # jobs

    def run(
        self,
        jobs: Sequence[Job[R]],
        group: str,
        throttle: Throttle | None = None,
        underway: Callable[[int], None] | None = None,
        note: Callable[[str], None] = logger.warning,
        failed: Callable[[], FloodmarkError | None] = lambda: None,
        small: bool = False,
    ) -> Generator[R, None, None]:
        """The jobs' results as they finish, in any order; the first error ends them all and is raised.

        `group` is for people who look at Spark's UI. `underway` receives the rows of unfinished jobs whenever they change,
        from other threads. `note` receives word of executors that a cluster has lost; their jobs run again. `failed` may
        end them all: it is asked while no job ends. `small` jobs may share a task with those of other tables.
        """
        if not jobs:
            return
        source, table = jobs[0].source, jobs[0].table.name
        if throttle is None:
            # Not above: it needs pyarrow, whose import the start of Spark doesn't wait for.
            from floodmark.source.connections import Throttle

            throttle = Throttle(source)
        if attempts_at_once(self.settings) > source.max_connections:
            raise ConfigError(
                "spark.speculation may read a slice twice at once, and source.max_connections allows only 1",
                hint="leave spark.speculation.task.duration.threshold out, or raise source.max_connections",
            )
        tag = f"{self._tag}-{next(self._numbers)}"
        if not self._running:  # a cluster takes back the executors of a run that needs none for a while
            self._executors.forget()
        ended = threading.Event()
        rows = RowsUnderway(self._reports, underway)

        def run(job: Job[R]) -> tuple[R, Address | None]:
            reports = rows.begin()
            piece = Piece(job, tag, group, job.title(len(jobs)), reports)
            return self._patiently(piece, ended, throttle, small), reports

        # A cluster's number of cores can change at any time.
        at_once = self.parallelism * AHEAD if self.local else source.max_connections
        pool = ThreadPoolExecutor(min(len(jobs), at_once), thread_name_prefix="slice")
        waiting: set[Future[tuple[R, Address | None]]] = {pool.submit(run, job) for job in jobs}
        self._running.add(tag)
        try:
            while waiting:
                done, waiting = wait(waiting, LOOK_EVERY, return_when=FIRST_COMPLETED)
                for future in done:
                    result, reports = future.result()
                    rows.end(reports)
                    yield result
                if done:
                    self._executors.alone = None
                elif not self.alive:
                    raise self._lost(RuntimeError(), table)
                elif (error := failed()) is not None:
                    raise error
                else:
                    self._executors.look(self._context, note, table)
        finally:
            ended.set()
            rows.close()
            self._running.discard(tag)
            self._end(pool, waiting, tag)

    def tasks_at_once(self, connections: int) -> int:
        """How many tasks may run side by side, each with a connection, as far as is known."""
        most = connections // attempts_at_once(self.settings)
        return min(self.parallelism, most) if self.local else most

    def cores(self) -> int:
        """How many tasks can run side by side now, as far as is known: executors come and go."""
        with suppress(Exception):  # the context is ending
            if not self.local:
                return int(self._context.defaultParallelism)
        return self.parallelism

    @property
    def speculates(self) -> bool:
        """Whether two attempts at one slice may run side by side."""
        return attempts_at_once(self.settings) > 1

    def meeting(self) -> Meeting:
        """A meeting for tasks of this Spark; raises TransientError, also if Spark has ended."""
        if not self.alive:
            raise self._lost(RuntimeError(), None)
        try:
            return Meeting(*driver_address(self.settings, self.local), speculates=self.speculates)
        except OSError as error:
            raise TransientError(f"the driver can't listen for its tasks: {error}") from error

    def _end(self, pool: ThreadPoolExecutor, waiting: set[Future[Any]], tag: str) -> None:
        """Ends running jobs and waits for them, but not forever if the context is someone else's."""
        if waiting:
            pool.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + LETTING_GO
        # Repeatedly: the first call may miss a job that was just being submitted.
        while not all(future.done() for future in waiting):
            with suppress(Exception):
                self._context.cancelJobsWithTag(tag)  # those that share a task with them run again, alone
            if not self.alive:
                # A context that its cluster has ended no longer answers; a call to it would wait forever.
                self._jvm.kill()
            if self._way != "own JVM" and time.monotonic() > deadline:
                return
            time.sleep(0.1)
        pool.shutdown()

    def _patiently(self, piece: Piece[R], ended: threading.Event, throttle: Throttle, small: bool) -> R:
        """Runs one job, with retries where they can help; a small one at first together with others."""
        cores = self.parallelism if self.local else None
        attempts = attempts_at_once(self.settings)
        with self._lock:
            shared = self._shared.setdefault(throttle, SharedCalls(self._together, MOST))

        def stopped() -> bool:
            return ended.is_set() or self._stopped.is_set()

        def attempt(first: bool) -> R | FloodmarkError:
            room, alone = partial(throttle.task, cores, stopped, attempts), not (small and first)
            result: R | FloodmarkError = shared.ask(piece, self.cores(), room, stopped, alone)
            return result

        def pause(seconds: float, error: TransientError) -> None:
            table = piece.job.table.name
            logger.info("%s failed and is retried: %s", piece.title, error.message, extra={"table": table})
            ended.wait(seconds)

        return SLICE.persist(attempt, pause)

    def _together(self, pieces: Sequence[Piece[Any]]) -> Sequence[Any]:
        """Runs jobs as one task: the results or errors of those that had a turn.

        None if Spark fails, so that each of several runs alone; one that nobody shares with raises Spark's error.
        """
        first, others = pieces[0], len(pieces) - 1
        group, title = first.group, first.title
        if others:
            group, title = "small slices", f"{title}, and {counted(others, 'small slice')} more"
        run, tags = task(pieces, self.local), [piece.tag for piece in pieces]
        try:
            return self._run(self._base, run, group, title, tags, first.job.table.name)
        except FloodmarkError as error:
            if not others:
                raise
            logger.info("%d small slices failed together and run alone: %s", len(pieces), error.message)
            return ()

    def _run(
        self,
        over: Any,
        run: Callable[[Iterable[int]], list[R]],
        group: str,
        title: str,
        tags: Sequence[str] = (),
        table: str | None = None,
    ) -> list[R]:
        """Runs a Spark job, from a thread of ours; raises Spark's own errors as ours."""
        context = self._context
        if context is None:
            raise Interrupted("stopped")
        try:
            context.clearJobTags()
            for tag in (self._tag, *tags):
                context.addJobTag(tag)
            context.setJobGroup(group, title, interruptOnCancel=True)
            results: list[R] = context.runJob(over, run)
            return results
        except Exception as error:
            raise self._lost(error, table) from None

    def answers(
        self, asks: Callable[[Iterable[int]], list[dict[str, Any]]], count: int
    ) -> list[dict[str, Any]]:
        """The answers of `count` tasks, wherever Spark runs them; raises TransientError without executors."""
        over = self._context.parallelize(range(count), count)
        with ThreadPoolExecutor(1, thread_name_prefix="ask") as pool:
            asked = pool.submit(self._run, over, asks, "ask", "check the executors")
            try:
                while not asked.done():
                    wait([asked], LOOK_EVERY)
                    self._executors.look(self._context, logger.warning, patience=ASKING)
            except BaseException:
                self.cancel()
                raise
            return asked.result()

    def _lost(self, error: Exception, table: str | None) -> FloodmarkError:
        """What Spark's own failure means for the operator."""
        text = java_text(error)
        said = telling(text)
        ended = not self.alive
        if self._stopped.is_set() or (" cancelled " in said and not ended):
            return Interrupted("stopped", table=table)
        if missing := MISSING.search(text):
            return ConfigError(
                f"Spark's executors lack what a slice needs: {missing[0]}",
                hint="install or ship Python and its packages, or set PYSPARK_PYTHON before the session starts:"
                " docs/cluster.md", table=table,
            )  # fmt: skip
        why = (self._jvm.shortage() if ended else None) or (refused(self._jvm) if ended or not said else None)
        if why is not None:
            return why.of(table) if table else why
        if ended or not said:
            said = f"{self.settings['spark.master']} is unreachable, or has ended the application"
            if self.local:
                said = "Spark's JVM has ended"
        return TransientError(
            f"Spark lost a task: {said}", hint=f"run the command again; see {self.log_path}", table=table
        )


def attempts_at_once(settings: Mapping[str, str]) -> int:
    """How many attempts at one slice Spark may run side by side.

    A job of one task has nothing to compare its speed with, so Spark speculates on it only with a threshold.
    """
    speculates = settings.get("spark.speculation", "").lower() == "true"
    threshold = settings.get("spark.speculation.task.duration.threshold", "")
    return 2 if speculates and threshold and not is_local(settings) else 1


class WarmSpark:
    """Spark on demand: started when first needed, kept for the cycles of a resident sync, replaced if it dies.

    A run with nothing to do needs none, so it starts no JVM, unless a table was never synced. A failed start fails
    every table of that run alike; only the next run tries again. All methods may be called from any thread.
    """

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
            internals.check_installed()

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
