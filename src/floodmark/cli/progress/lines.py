"""Progress as lines: for logs, pipes and screen readers, or as events with `--json-logs`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from floodmark.cli.progress.frame import said_wait
from floodmark.cli.progress.silent import SilentProgress
from floodmark.cli.progress.tally import Tally, said_at_end, said_so_far
from floodmark.cli.stderr import to_stderr
from floodmark.model.run import Step, Wait
from floodmark.model.secrets import Scrubber
from floodmark.model.text import shown

_OF_THE_RUN = ("spark", "warehouse")  # what tables wait for together
_EVERY = 5.0  # seconds between two lines of one table and stage


class PlainProgress(SilentProgress):
    """Lines for logs, pipes and screen readers: one every few seconds for each table, and one when a stage is over."""

    def __init__(
        self,
        scrub: Scrubber,
        write: Callable[[str], None] | None = None,
        stopping: Callable[[], bool] = lambda: False,
        patience: float = _EVERY,
    ) -> None:
        super().__init__(scrub, stopping)
        self._write = write or to_stderr
        self._patience = patience
        self._timers: dict[str, threading.Timer] = {}
        self._said_waits: set[Wait] = set()

    def tables(self, names: Sequence[str]) -> None:
        super().tables(names)
        self._said_waits.clear()

    def stop(self) -> None:
        with self._lock:
            timers, self._timers = list(self._timers.values()), {}
        for timer in timers:
            timer.cancel()

    def wait(self, table: str, on: Wait | None) -> None:
        """A long wait is worth a line."""
        super().wait(table, on)
        with self._lock:
            if on is None:
                if timer := self._timers.pop(table, None):
                    timer.cancel()
            elif table not in self._timers and self._brief is None and not self._closed:
                self._timers[table] = timer = threading.Timer(self._patience, self._say_wait, (table,))
                timer.daemon = True
                timer.start()

    def underway(self, table: str, stage: str, rows: int, step: Step | None = None) -> None:
        """A long step is worth a line too, even if nothing reports on it."""
        with self._lock:
            tally = self._tallies.get(table, {}).get(stage)
            before = tally.step if tally else None
            super().underway(table, stage, rows, step)
            if tally is None or (before and before.kind) == (step and step.kind):
                return
            if timer := self._timers.pop(f"{table} {stage}", None):
                timer.cancel()
            if step is not None and self._brief is None and not self._closed:
                self._say_later(table, stage, tally, step, self._patience)

    def _say_later(self, table: str, stage: str, tally: Tally, step: Step, seconds: float) -> None:
        """Says what a load is doing if it is still doing it by then, and again after twice that time."""

        def say() -> None:
            with self._lock:
                if self._closed or tally.step is None or tally.step.kind != step.kind:
                    return
                self._say_later(table, stage, tally, step, seconds * 2)
                tally.said = tally.seconds
                text = said_so_far(stage, tally)
            self._say(table, text)

        self._timers[f"{table} {stage}"] = timer = threading.Timer(seconds, say)
        timer.daemon = True
        timer.start()

    def _say_wait(self, table: str) -> None:
        with self._lock:
            waiting = self._waits.get(table)
            if waiting is None:
                return
            if waiting.on.kind in _OF_THE_RUN:  # all tables wait for the same: once is enough
                if waiting.on in self._said_waits:
                    return
                self._said_waits.add(waiting.on)
                table = ""
        self._say(table, said_wait(waiting.on, time.monotonic() - waiting.since))

    def _say(self, table: str, text: str) -> None:
        self._write(shown(self._scrub(f"{table}: {text}" if table else text)))

    def _moved(self, table: str, stage: str, tally: Tally) -> None:
        if tally.seconds - tally.said >= _EVERY:
            tally.said = tally.seconds
            self._say(table, said_so_far(stage, tally))

    def _ended(self, table: str, stage: str, tally: Tally) -> None:
        if tally.rows and self._brief is None:
            self._say(table, said_at_end(stage, tally))


class LoggedProgress(SilentProgress):
    """For `--json-logs`: everything is a log line, the steps in between too."""

    def _moved(self, table: str, stage: str, tally: Tally) -> None:
        if tally.seconds - tally.said >= _EVERY:
            tally.said = tally.seconds
            more = {"rows_expected": tally.expected, **tally.fields, "rows": tally.so_far}
            self._log(logging.INFO, table, stage, said_so_far(stage, tally), "progress", **more)
