"""A Spark task, without Spark: a job that runs somewhere else and comes back as a value or an error."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar, cast

from floodmark.config.load import SourceSpec
from floodmark.model.errors import FloodmarkError
from floodmark.model.table import Table
from floodmark.spark.reports import Address, Teller
from floodmark.spark.task_secrets import SentFile, at_hand, packed, unpacked

# Modules that slices need, by name, since this module must not depend on them. A worker imports them before
# its first task. A `verify` needs some more, which its first task imports.
PRELOADED = (
    "floodmark.extract.task",
    "floodmark.source.log_in",
    "pyarrow.parquet",
)

# Seconds after which a task begins no other job: those that are done wait for it.
PATIENCE = 2.0

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class Relay:
    """What each job of a task may leave to the next: its connection to the source."""

    def __init__(self) -> None:
        self._left: Any = None

    def leave(self, link: Any) -> bool:
        """Leaves a connection, which the task closes at its end at the latest."""
        self._left = link
        return True

    def taken(self) -> Any:
        """The connection that the last job has left, or None."""
        link, self._left = self._left, None
        return link


class Job(Protocol[R_co]):
    """One task and everything it needs. A dataclass that is pickled, and never shown anywhere."""

    @property
    def source(self) -> SourceSpec: ...

    @property
    def table(self) -> Table: ...

    def title(self, of: int) -> str:
        """Its name in Spark's UI, as one of `of`."""

    def go(self, told: Callable[[int], None], relay: Relay | None = None) -> R_co:
        """Runs the job; raises FloodmarkError. `told` accepts the rows so far, at any rate."""


@dataclass(frozen=True)
class Piece(Generic[R]):
    """One job as it is submitted: the group and the title of its Spark job, and where its rows are reported."""

    job: Job[R]
    group: str = ""
    title: str = ""
    reports: Address | None = None


def task(
    pieces: Sequence[Piece[R]], files: tuple[SentFile, ...] | None
) -> Callable[[Iterable[int]], list[R | FloodmarkError | None]]:
    """Jobs as one task that Spark takes: with `files` for another machine; without for this one, and no secrets."""
    if files is not None:
        return lambda _: attempts(pieces, files)
    data = packed(pieces)
    return lambda _: attempts(cast(Sequence[Piece[R]], unpacked(data)))


def attempts(
    pieces: Sequence[Piece[R]], files: tuple[SentFile, ...] = (), patience: float = PATIENCE
) -> list[R | FloodmarkError | None]:
    """Runs jobs one after another: each one's result or error; None for those whose turn comes too late."""
    freeze_imports()
    began, relay = time.monotonic(), Relay()
    done: list[R | FloodmarkError | None] = []
    try:
        for piece in pieces:
            if done and time.monotonic() - began > patience:
                done.append(None)
                continue
            with closing(Teller(piece.reports)) as teller:
                done.append(attempt(piece.job, files, teller.tell, relay))
    finally:
        if (left := relay.taken()) is not None:
            left.close()
    return done


def preload() -> None:
    """Imports the modules that tasks need."""
    for name in PRELOADED:
        import_module(name)


def imports(_: Iterable[int]) -> list[int]:
    """A task that only imports what slices need."""
    preload()
    freeze_imports()
    return []


@cache
def freeze_imports() -> None:
    """Once per worker: pyspark collects garbage after every task; traversing all imports takes 80 ms."""
    gc.freeze()


def attempt(
    job: Job[R],
    files: tuple[SentFile, ...] = (),
    told: Callable[[int], None] = lambda rows: None,
    relay: Relay | None = None,
) -> R | FloodmarkError:
    """The job's result, or its error as a value, so that the driver gets it whole and decides on retries.

    `files` are the ones that the source's settings name, for a machine that lacks them.
    """
    try:
        if files:  # jobs are dataclasses
            job = cast(Job[R], replace(cast(Any, job), source=at_hand(job.source, files)))
        return job.go(told, relay)
    except FloodmarkError as error:
        return error.of(job.table.name)
    except Exception as error:
        traceback.print_exc()  # a worker's stderr goes to Spark's log
        return FloodmarkError(f"{type(error).__name__}: {error}", table=job.table.name)
