"""The resident sync: one cycle after the other on a Spark that stays warm, until somebody stops it.

A cycle is a sync like any other, with a run of its own, so nothing that a crash may interrupt hangs on this process.
Cycles never overlap and keep to the clock of the first one; a cycle that failed is said and tried again. Only a
mistake of the configuration ends it, and only before the first cycle that went through.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from floodmark.config import Config
from floodmark.errors import ConfigError, FloodmarkError, Interrupted, TransientError, UnknownOutcome, bug
from floodmark.report import Progress, SyncOptions, SyncReport, new_run
from floodmark.state import stamp
from floodmark.sync import sync
from floodmark.warm import WarmSpark

log = logging.getLogger("floodmark")

# The first pause after a failure that passes by itself; it doubles, up to the interval.
BACKOFF = 1.0
_PASSING = (TransientError.code, UnknownOutcome.code)


@dataclass(frozen=True)
class Cycle:
    """What became of one cycle."""

    number: int
    run: str
    at: str
    seconds: float
    report: SyncReport | None  # None: it failed before any table had its turn
    error: FloodmarkError | None = None

    @property
    def exit_code(self) -> int:
        """What `sync` would have ended with."""
        return self.error.code if self.error else self.report.exit_code if self.report else 0

    @property
    def mistaken(self) -> bool:
        """Whether the configuration, or a table's, has to change before it can go on."""
        codes = [t.exit_code for t in self.report.tables] if self.report else [self.exit_code]
        return ConfigError.code in codes

    def as_json(self) -> dict[str, Any]:
        """The cycle as one document: that of `sync`, without the tables that had nothing to do."""
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
class Pace:
    """When the next cycle begins; all times are those of one clock that only goes forward."""

    first: float
    every: float
    failures: int = 0  # in a row, of the kind that passes by itself

    def after(self, code: int) -> Pace:
        """The pace after a cycle with that exit code."""
        return replace(self, failures=self.failures + 1 if code in _PASSING else 0)

    def next(self, began: float, ended: float) -> float:
        """The clock's next beat, at once when it has passed meanwhile; sooner after a failure."""
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
    progress: Progress,
    told: Callable[[Cycle], None],
    stopped: Callable[[], int | None] = lambda: None,
) -> int:
    """Syncs every so many seconds, and hands over what became of each cycle; ends by Interrupted.

    Returns an exit code only when the configuration is mistaken. `stopped` tells of a signal whose exception was lost
    on its way.
    """
    pace, number, went_through = Pace(time.monotonic(), every), 0, False
    with WarmSpark(config, "floodmark resident") as spark:
        while True:
            number += 1
            began = time.monotonic()
            spark.renew()
            cycle = _cycle(config, names, all_tables, options, progress, spark, number)
            if (code := stopped()) is not None:
                raise Interrupted("stopped", code=code)
            told(cycle)
            if cycle.mistaken and not went_through:
                return ConfigError.code
            went_through = went_through or cycle.exit_code == 0
            pace = pace.after(cycle.exit_code)
            _sleep_until(pace.next(began, time.monotonic()))


def _cycle(
    config: Config,
    names: Sequence[str],
    all_tables: bool,
    options: SyncOptions,
    progress: Progress,
    spark: WarmSpark,
    number: int,
) -> Cycle:
    """One sync; whatever it fails with, but for a stop, is its outcome."""
    run, at, began = new_run(), stamp(), time.monotonic()
    report, error = None, None
    try:
        report = sync(config, names, all_tables, replace(options, repeated=True), progress, run, spark)
    except Interrupted:
        raise
    except FloodmarkError as failed:
        error = failed
    except Exception as unforeseen:
        log.debug("unexpected", exc_info=True, extra={"run": run})
        error = bug(unforeseen)
    return Cycle(number, run, at, time.monotonic() - began, report, error)


def _sleep_until(moment: float) -> None:
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)
