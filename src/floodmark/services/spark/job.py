"""A Spark task, without Spark: a job that runs somewhere else and comes back as a value or an error."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, Protocol, TypeVar, cast

from floodmark.config.load import SourceSpec
from floodmark.model.errors import FloodmarkError
from floodmark.model.table import Table
from floodmark.services.spark.reports import Address, Teller
from floodmark.services.spark.task_secrets import SentFile, at_hand, packed, unpacked

# Modules that tasks need, by name, since this module must not depend on them. A worker imports them before
# its first task.
PRELOADED = (
    "floodmark.extract.shared_snapshot",
    "floodmark.extract.task",
    "floodmark.services.mysql.log_in",
    "floodmark.services.spark.context",
    "floodmark.verify.task",
    "pyarrow.parquet",
)

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class Job(Protocol[R_co]):
    """One task and everything it needs. A dataclass that is pickled, and never shown anywhere."""

    @property
    def source(self) -> SourceSpec: ...

    @property
    def table(self) -> Table: ...

    def title(self, of: int) -> str:
        """Its name in Spark's UI, as one of `of`."""

    def go(self, told: Callable[[int], None]) -> R_co:
        """Runs the job; raises FloodmarkError. `told` accepts the rows so far, at any rate."""


def task(
    job: Job[R], files: tuple[SentFile, ...] | None, reports: Address | None = None
) -> Callable[[Iterable[int]], list[R | FloodmarkError]]:
    """The job as Spark takes it: with `files` for another machine; without for this one, and no secrets."""
    if files is not None:
        return lambda _: [_attempted(job, files, reports)]
    data = packed(job)
    return lambda _: [_attempted(cast(Job[R], unpacked(data)), (), reports)]


def _attempted(job: Job[R], files: tuple[SentFile, ...], reports: Address | None) -> R | FloodmarkError:
    freeze_imports()
    teller = Teller(reports)
    try:
        return attempt(job, files, teller.tell)
    finally:
        teller.close()


def preload() -> None:
    """Imports the modules that tasks need."""
    for name in PRELOADED:
        import_module(name)


@cache
def freeze_imports() -> None:
    """Once per worker: pyspark collects garbage after every task; traversing all imports takes 80 ms."""
    gc.freeze()


def attempt(
    job: Job[R], files: tuple[SentFile, ...] = (), told: Callable[[int], None] = lambda rows: None
) -> R | FloodmarkError:
    """The job's result, or its error as a value, so that the driver gets it whole and decides on retries.

    `files` are the ones that the source's settings name, for a machine that lacks them.
    """
    try:
        return _at_hand(job, files).go(told)
    except FloodmarkError as error:
        return error.of(job.table.name)
    except Exception as error:
        traceback.print_exc()  # a worker's stderr goes to Spark's log
        return FloodmarkError(f"{type(error).__name__}: {error}", table=job.table.name)


def _at_hand(job: Job[R], files: tuple[SentFile, ...]) -> Job[R]:
    source = at_hand(job.source, files)
    moved: Any = (
        job if source is job.source else replace(cast(Any, job), source=source)
    )  # jobs are dataclasses
    return cast(Job[R], moved)
