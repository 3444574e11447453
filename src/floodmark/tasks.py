"""What a Spark task is, without Spark: a job that runs somewhere else and comes back as a value or an error."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any, Protocol, TypeVar, cast

from floodmark.carried import Carried, at_hand, packed, unpacked
from floodmark.config import SourceSpec
from floodmark.errors import FloodmarkError
from floodmark.model import Table

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class Job(Protocol[R_co]):
    """One task and all that it needs to know. A dataclass that is pickled, never shown anywhere."""

    @property
    def source(self) -> SourceSpec: ...

    @property
    def table(self) -> Table: ...

    def title(self, of: int) -> str:
        """What Spark's own pages call it, one of so many."""

    def go(self) -> R_co:
        """Does it; raises FloodmarkError."""


def task(
    job: Job[R], files: tuple[Carried, ...] | None
) -> Callable[[Iterable[int]], list[R | FloodmarkError]]:
    """The job as Spark takes it; with `files` for another machine, without for this one, where secrets stay behind."""
    if files is not None:
        return lambda _: [_settled(job, files)]
    data = packed(job)
    return lambda _: [_settled(cast(Job[R], unpacked(data)), ())]


def _settled(job: Job[R], files: tuple[Carried, ...]) -> R | FloodmarkError:
    settle()
    return attempt(job, files)


@cache
def settle() -> None:
    """Once per worker: pyspark collects garbage after every task, and would walk all that was imported, for 80 ms."""
    gc.freeze()


def attempt(job: Job[R], files: tuple[Carried, ...] = ()) -> R | FloodmarkError:
    """The job's result, or its error as a value, so that the driver gets it whole and decides on retries.

    `files` are those that the source's settings name, for a machine that lacks them.
    """
    try:
        return _at_hand(job, files).go()
    except FloodmarkError as error:
        return error.of(job.table.name)
    except Exception as error:
        traceback.print_exc()  # a worker's stderr is Spark's log
        return FloodmarkError(f"{type(error).__name__}: {error}", table=job.table.name)


def _at_hand(job: Job[R], files: tuple[Carried, ...]) -> Job[R]:
    source = at_hand(job.source, files)
    moved: Any = (
        job if source is job.source else replace(cast(Any, job), source=source)
    )  # jobs are dataclasses
    return cast(Job[R], moved)
