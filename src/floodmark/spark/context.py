"""Spark, as the rest of Floodmark sees it: started, stopped, and slices run as its tasks.

One slice, or one range to compare, is one Spark job with one task, a few of them in flight per core: a job
with many tasks would deliver its results only after the last one. Small slices of several tables share a task
if they wait at the same moment (`gathering`). A slice's own errors come back as values and are raised here;
lost workers and executors are for Spark to retry. Rows and secrets never appear in Spark's settings,
descriptions or logs. `start` knows where a SparkContext comes from.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from floodmark.host.retry import SLICE
from floodmark.host.temp import cache_folder
from floodmark.host.threads import SharedCalls
from floodmark.model.errors import ConfigError, FloodmarkError, Interrupted, TransientError
from floodmark.model.text import counted
from floodmark.spark import pyspark_internals as internals
from floodmark.spark.errors import MISSING, telling
from floodmark.spark.executors import Executors, attempts_at_once
from floodmark.spark.job import Job, Piece, imports, task
from floodmark.spark.jvm import Jvm, is_local, settings
from floodmark.spark.meeting import Meeting
from floodmark.spark.reports import Address, Reports, RowsUnderway, driver_address, reports_for
from floodmark.spark.start import Way, context_of, java_text, leave, refused, started
from floodmark.spark.task_secrets import files_to_send

if TYPE_CHECKING:
    from floodmark.source.connections import Throttle

R = TypeVar("R")

log = logging.getLogger("floodmark")

# Small slices that share a task at most: a result waits for those of the others.
MOST = 8
# Jobs in flight per core: Spark has the next task before the last one has ended.
AHEAD = 2
# Seconds between liveness checks of Spark while a slice is running.
LOOK_EVERY = 2.0
# Seconds that questions to the executors wait for the first of them.
ASKING = 60.0
# Seconds that a foreign context, which is not ours to kill, may take to release our jobs.
LETTING_GO = 20.0


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
        self._numbers = itertools.count(1)
        self._groups: set[str] = set()  # of running jobs
        self._within: dict[str, str] = {}  # the group in which slices of a group run, if it is another one
        # Only slices of one run share tasks, since they share the limits on its source.
        self._shared: WeakKeyDictionary[Throttle, SharedCalls[Any, Any]] = WeakKeyDictionary()
        self._executors = Executors()

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
            made = started(self._jvm)
        except FloodmarkError as error:
            raise (
                Interrupted("stopped while Spark was starting") if self._stopped.is_set() else error
            ) from None
        self._gateway = made.gateway
        self._use(made.context, made.way)
        if made.way == "own JVM" and is_local(self.settings):
            threading.Thread(target=self._warm_up, name="spark-warm-up", daemon=True).start()

    def _use(self, context: Any, way: Way) -> None:
        self._way = way
        self.settings = dict(context.getConf().getAll())
        self.parallelism = context.defaultParallelism
        self._base = context.parallelize(range(1), 1)
        with suppress(OSError):  # without reports, progress moves only when a task ends
            self._reports = reports_for(context.getConf(), is_local(self.settings))
        self._context = context

    def _warm_up(self) -> None:
        """Starts the first Python workers, with what slices need imported, while the plan is claimed."""
        with suppress(Exception):
            count = min(self.parallelism, 4)
            self._context.setJobGroup("warm-up", "start Python workers")
            self._context.runJob(self._context.parallelize(range(count), count), imports)

    @property
    def alive(self) -> bool:
        """Whether it still takes tasks: its JVM runs, and its context was neither stopped nor abandoned."""
        context = self._context
        return context is not None and not self._executors.gone and not internals.is_stopped(context)

    @property
    def trains(self) -> bool:
        """Whether its JVM writes the archive of Spark's classes on exit."""
        return self._jvm.training

    def rehearse(self) -> None:
        """Runs what every sync runs, on two Python workers."""
        self._context.runJob(self._context.parallelize(range(2), 2), imports)

    def cancel(self) -> None:
        """Ends all our running tasks at once; callers waiting for them get Interrupted."""
        self._stopped.set()
        self._jvm.training = False  # nobody wants to wait for the archive now
        with suppress(Exception):
            if self._context is not None:
                self._cancel_jobs(self._context)

    def _cancel_jobs(self, context: Any) -> None:
        if self._way == "in this process":
            for group in tuple(self._groups):
                context.cancelJobGroup(group)
        else:
            context.cancelAllJobs()

    def stop(self) -> None:
        """Cancels running tasks and ends the JVM if it's ours; safe to call twice, and during the start."""
        self._stopped.set()
        with self._lock:
            context, self._context = self._context, None
            if self._reports is not None:
                self._reports.close()
            if context is not None:
                with suppress(Exception):
                    self._cancel_jobs(context)
                with suppress(Exception):
                    leave(context, self._way, self.settings)
            if self._gateway is not None and self._way != "spark-submit":
                with suppress(Exception):
                    self._gateway.shutdown()
                internals.end_launched(self._gateway)
            self._jvm.stop(5)
            if self._way != "spark-submit":
                internals.forget(self._gateway)

    # slices

    def submit(
        self,
        jobs: Sequence[Job[R]],
        group: str,
        throttle: Throttle | None = None,
        underway: Callable[[int], None] | None = None,
        note: Callable[[str], None] = log.warning,
        failed: Callable[[], FloodmarkError | None] = lambda: None,
        small: bool = False,
    ) -> Generator[R, None, None]:
        """The jobs' results as they finish, in any order; the first error ends them all and is raised.

        `underway` receives the rows of unfinished jobs whenever they change, from other threads. `note`
        receives word of executors that a cluster has lost; their slices run again. `failed` may end them all: it
        is asked while no job ends. `small` jobs may share a task with those of other tables.
        """
        if not jobs:
            return
        if throttle is None:
            # Not above: it needs pyarrow, whose import the start of Spark doesn't wait for.
            from floodmark.source.connections import Throttle

            throttle = Throttle(jobs[0].source)
        if attempts_at_once(self.settings) > jobs[0].source.max_connections:
            raise ConfigError(
                "spark.speculation may read a slice twice at once, and source.max_connections allows only 1",
                hint="leave spark.speculation.task.duration.threshold out, or raise source.max_connections",
            )
        own = f"{group} #{next(self._numbers)}"
        if not self._groups:  # a cluster takes back the executors of a run that needs none for a while
            self._executors.forget()
        ended = threading.Event()
        rows = RowsUnderway(self._reports, underway)

        def run(job: Job[R]) -> tuple[R, Address | None]:
            reports = rows.begin()
            piece = Piece(job, own, job.title(len(jobs)), reports)
            return self._patiently(piece, ended, throttle, small), reports

        # A cluster's number of cores can change at any time.
        at_once = self.parallelism * AHEAD if is_local(self.settings) else jobs[0].source.max_connections
        most = min(len(jobs), at_once)
        pool = ThreadPoolExecutor(most, thread_name_prefix="slice")
        waiting: set[Future[tuple[R, Address | None]]] = {pool.submit(run, job) for job in jobs}
        self._groups.add(own)
        alone: float | None = None
        try:
            while waiting:
                done, waiting = wait(waiting, LOOK_EVERY, return_when=FIRST_COMPLETED)
                for future in done:
                    result, reports = future.result()
                    rows.end(reports)
                    yield result
                if not done and not self.alive:
                    raise self._lost(RuntimeError(), jobs[0].table.name)
                if not done and (error := failed()) is not None:
                    raise error
                if done:
                    alone = None
                else:
                    table = jobs[0].table.name
                    alone = self._executors.alone(self._context, self.settings, alone, note, table)
        finally:
            ended.set()
            rows.close()
            self._groups.discard(own)
            self._end(pool, waiting, own)

    def tasks_at_once(self, connections: int) -> int:
        """How many tasks may run side by side, each with a connection, as far as is known."""
        most = connections // attempts_at_once(self.settings)
        return min(self.parallelism, most) if is_local(self.settings) else most

    def cores(self) -> int:
        """How many tasks can run side by side now, as far as is known: executors come and go."""
        with suppress(Exception):  # the context is ending
            if not is_local(self.settings):
                return int(self._context.defaultParallelism)
        return self.parallelism

    def meeting(self) -> Meeting:
        """A meeting for tasks of this Spark; raises TransientError, also if Spark has ended."""
        if not self.alive:
            raise self._lost(RuntimeError(), None)
        try:
            bind, host = driver_address(self.settings, is_local(self.settings))
            return Meeting(bind, host, speculates=self.speculates)
        except OSError as error:
            raise TransientError(f"the driver can't listen for its tasks: {error}") from error

    @property
    def speculates(self) -> bool:
        """Whether two attempts at one slice may run side by side."""
        return attempts_at_once(self.settings) > 1

    def _end(self, pool: ThreadPoolExecutor, waiting: set[Future[Any]], group: str) -> None:
        """Ends running jobs and waits for them, but not forever if the context is someone else's."""
        if waiting:
            pool.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + LETTING_GO
        # Repeatedly: the first call may miss a job that was just being submitted.
        while not all(future.done() for future in waiting):
            with suppress(Exception):
                # The others that share the task run again, alone.
                self._context.cancelJobGroup(self._within.get(group, group))
            if not self.alive:
                # A context that its cluster has ended no longer answers; a call to it would wait forever.
                self._jvm.kill()
            if self._way != "own JVM" and time.monotonic() > deadline:
                return
            time.sleep(0.1)
        pool.shutdown()

    def _patiently(self, piece: Piece[R], ended: threading.Event, throttle: Throttle, small: bool) -> R:
        """Runs one slice, with retries where they can help; a small one at first together with others."""
        cores = self.parallelism if is_local(self.settings) else None
        attempts = attempts_at_once(self.settings)
        with self._lock:
            shared = self._shared.setdefault(throttle, SharedCalls(self._together, MOST))

        def stopped() -> bool:
            return ended.is_set() or self._stopped.is_set()

        def attempt(first: bool) -> R | FloodmarkError:
            result: R | FloodmarkError = shared.ask(
                piece,
                self.cores(),
                lambda: throttle.task(cores, stopped, attempts),
                stopped,
                alone=not (small and first),
            )
            return result

        def pause(seconds: float, error: TransientError) -> None:
            table = piece.job.table.name
            log.info("%s failed and is retried: %s", piece.title, error.message, extra={"table": table})
            ended.wait(seconds)

        return SLICE.persist(attempt, pause)

    def _together(self, pieces: Sequence[Piece[Any]]) -> Sequence[Any]:
        """Runs small slices of several tables as one task; none of them if Spark fails, so that each runs alone.

        One that nobody shares with raises Spark's error: its thread gets it.
        """
        first, others = pieces[0], len(pieces) - 1
        if not others:
            return self._run(pieces, first.group, first.title)
        group = f"small slices #{next(self._numbers)}"
        self._groups.add(group)
        self._within.update({piece.group: group for piece in pieces})
        try:
            return self._run(pieces, group, f"{first.title}, and {counted(others, 'small slice')} more")
        except FloodmarkError as error:
            log.info("%d small slices failed together and run alone: %s", len(pieces), error.message)
            return ()
        finally:
            self._groups.discard(group)
            for piece in pieces:
                self._within.pop(piece.group, None)

    def _run(self, pieces: Sequence[Piece[R]], group: str, title: str) -> list[R | FloodmarkError]:
        """Runs slices as a Spark job with one task: the results or errors of those that had a turn.

        Raises Spark's own error.
        """
        context, job = self._context, pieces[0].job
        if context is None:
            raise Interrupted("stopped")
        files = None if is_local(self.settings) else files_to_send(job.source)
        run = task(pieces, files)
        try:
            context.setJobGroup(group, title, interruptOnCancel=True)
            found: list[R | FloodmarkError] = context.runJob(self._base, run)
        except Exception as error:
            raise self._lost(error, job.table.name) from None
        return found

    def answers(
        self, asks: Callable[[Iterable[int]], list[dict[str, Any]]], count: int
    ) -> list[dict[str, Any]]:
        """The answers of `count` tasks, wherever Spark runs them; raises TransientError without executors."""
        with ThreadPoolExecutor(1, thread_name_prefix="ask") as pool:
            asked = pool.submit(self._ask, asks, count)
            alone: float | None = None
            try:
                while not asked.done():
                    wait([asked], LOOK_EVERY)
                    alone = self._executors.alone(
                        self._context, self.settings, alone, log.warning, patience=ASKING
                    )
            except BaseException:
                self.cancel()
                raise
            return asked.result()

    def _ask(self, asks: Callable[[Iterable[int]], list[dict[str, Any]]], count: int) -> list[dict[str, Any]]:
        try:
            self._groups.add("ask")
            self._context.setJobGroup("ask", "check the executors", interruptOnCancel=True)
            return list(self._context.runJob(self._context.parallelize(range(count), count), asks))
        except Exception as error:
            raise self._lost(error, None) from None

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
        if ended and (why := self._jvm.shortage()) is not None:
            return why.of(table) if table else why
        if ended or not said:
            if why := refused(self._jvm):
                return why.of(table) if table else why
            said = f"{self.settings['spark.master']} is unreachable, or has ended the application"
            if is_local(self.settings):
                said = "Spark's JVM has ended"
        return TransientError(
            f"Spark lost a task: {said}", hint=f"run the command again; see {self.log_path}", table=table
        )
