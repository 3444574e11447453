"""The resident sync: one cycle after another on a warm Spark, until it is stopped.

A cycle is an ordinary sync with its own run id, so a crash of this process loses no more than a crash of a
single sync would. Cycles never overlap and keep to the schedule set by the first one. A failed cycle is
retried; only a mistake in the configuration ends the process, and only until one cycle has succeeded.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from floodmark.config.load import Config
from floodmark.model.errors import (
    ConfigError,
    FloodmarkError,
    Interrupted,
    TransientError,
    UnknownOutcome,
    bug,
)
from floodmark.model.events import Emit, RunEnded
from floodmark.model.run import SyncOptions, SyncReport, new_run
from floodmark.model.times import stamp
from floodmark.spark.context import WarmSpark
from floodmark.sync.run import Reported, sync

logger = logging.getLogger("floodmark")

# Seconds before the first retry of a failure that may be temporary; doubles each time, up to the interval.
BACKOFF = 1.0
_PASSING = (TransientError.code, UnknownOutcome.code)


@dataclass(frozen=True)
class Cycle:
    """How one cycle ended."""

    number: int
    run: str
    at: str
    seconds: float
    report: SyncReport | None  # None: it failed before any table had its turn
    error: FloodmarkError | None = None

    @property
    def exit_code(self) -> int:
        """The exit code that `sync` would have had."""
        return self.error.code if self.error else self.report.exit_code if self.report else 0

    @property
    def mistaken(self) -> bool:
        """Whether it can't succeed until the configuration changes."""
        codes = [t.exit_code for t in self.report.tables] if self.report else [self.exit_code]
        return ConfigError.code in codes

    def as_json(self) -> dict[str, Any]:
        """The cycle as one document: the same as `sync` prints, without idle tables."""
        tables = self.report.tables if self.report else ()
        busy = [t for t in tables if not t.idle]
        return {
            "cycle": self.number,
            "at": self.at,
            "run": self.run,
            "ok": self.exit_code == 0,
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 3),
            "tables_idle": len(tables) - len(busy),
            "tables": [t.as_json() for t in busy],
            "error": self.error.as_json() if self.error else None,
        }


@dataclass(frozen=True)
class Failing:
    """A table, or the whole sync, that has failed in every cycle since `since`."""

    table: str | None  # None: the cycle failed as a whole
    error: FloodmarkError
    since: str
    cycles: int = 1


@dataclass(frozen=True)
class Health:
    """What is currently failing, so that it is reported once and not in every cycle."""

    failing: tuple[Failing, ...] = ()
    new: tuple[Failing, ...] = ()  # of these, what began to fail with the last cycle
    recovered: tuple[Failing, ...] = ()  # what no longer fails since then

    def after(self, cycle: Cycle) -> Health:
        """The health after a cycle. One that failed as a whole says nothing about single tables."""
        errors: dict[str | None, FloodmarkError] = {None: cycle.error} if cycle.error else {}
        shown = {t.table for t in cycle.report.tables} if cycle.report else set()
        errors |= {t.table: t.error for t in (cycle.report.tables if cycle.report else ()) if t.error}
        before = {one.table: one for one in self.failing}
        kept, new = [], []
        for table, error in errors.items():
            known = before.get(table)
            if known is not None and known.error.code == error.code:
                kept.append(replace(known, cycles=known.cycles + 1))
            else:
                new.append(Failing(table, error, cycle.at))
        gone = [one for one in self.failing if one.table not in errors]
        if cycle.report is None:
            kept += [replace(one, cycles=one.cycles + 1) for one in gone]
            return Health((*kept, *new), tuple(new))
        # A table that is no longer synced has not recovered.
        recovered = tuple(one for one in gone if one.table is None or one.table in shown)
        return Health((*kept, *new), tuple(new), recovered)


@dataclass(frozen=True)
class Pace:
    """When the next cycle begins; all times come from one monotonic clock."""

    first: float
    every: float
    failures: int = 0  # consecutive, of the kind that may be temporary

    def after(self, code: int) -> Pace:
        """The pace after a cycle with that exit code."""
        return replace(self, failures=self.failures + 1 if code in _PASSING else 0)

    def next(self, began: float, ended: float) -> float:
        """The next scheduled time, or now if it has passed; sooner after a failure."""
        beats = math.floor((began - self.first) / self.every + 1e-6) + 1
        beat = max(self.first + beats * self.every, ended)
        if not self.failures:
            return beat
        return min(beat, ended + min(self.every, BACKOFF * 2.0 ** min(self.failures - 1, 30)))


def keep_up(
    config: Config,
    names: Sequence[str],
    all_tables: bool,
    options: SyncOptions,
    every: float,
    emit: Emit,
    told: Callable[[Cycle], None],
    stopped: Callable[[], int | None] = lambda: None,
) -> int:
    """Syncs every `every` seconds and passes each cycle's outcome to `told`; ends by raising Interrupted.

    Returns an exit code only if the configuration is wrong. `stopped` reports a signal whose exception got lost.
    """
    pace, number, succeeded = Pace(time.monotonic(), every), 0, False
    again = replace(options, repeated=True)
    with WarmSpark(config, "floodmark resident") as spark:
        once = partial(sync, config, names, all_tables, again, emit, spark=spark, reported=Reported())
        while True:
            number += 1
            began = time.monotonic()
            spark.renew()
            cycle = _cycle(once, emit, number, new_run())
            if (code := stopped()) is not None:
                raise Interrupted("stopped", code=code)
            told(cycle)
            if cycle.mistaken and not succeeded:
                return ConfigError.code
            succeeded = succeeded or cycle.exit_code == 0
            pace = pace.after(cycle.exit_code)
            ended = time.monotonic()
            time.sleep(pace.next(began, ended) - ended)


def _cycle(once: Callable[[str], SyncReport], emit: Emit, number: int, run: str) -> Cycle:
    """One sync; any error except a stop becomes part of the outcome."""
    at, began = stamp(), time.monotonic()
    report, error = None, None
    try:
        report = once(run)
    except Interrupted:
        raise
    except FloodmarkError as failed:
        error = failed
    except Exception as unforeseen:
        logger.debug("unexpected", exc_info=True, extra={"run": run})
        error = bug(unforeseen)
        emit(RunEnded("", None, error))
    return Cycle(number, run, at, time.monotonic() - began, report, error)
