"""Progress as lines: for logs, pipes and screen readers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from floodmark.cli.progress.frame import said_wait
from floodmark.cli.progress.silent import SilentProgress
from floodmark.cli.stderr import to_stderr
from floodmark.model.events import Event, TablesChosen, Underway, Waiting
from floodmark.model.run import Step, Wait
from floodmark.model.secrets import Scrubber
from floodmark.model.tally import EVERY, Tally, said_so_far
from floodmark.model.text import shown

_OF_THE_RUN = ("spark", "warehouse")  # what tables wait for together


class PlainProgress(SilentProgress):
    """Lines for logs, pipes and screen readers: one every few seconds for each table, and one when a stage is over."""

    _prints_stages = True

    def __init__(self, scrub: Scrubber, stopping: Callable[[], bool] = lambda: False) -> None:
        super().__init__(scrub, stopping)
        self._timers: dict[str, threading.Timer] = {}
        self._said_waits: set[Wait] = set()

    def stop(self) -> None:
        with self._lock:
            timers, self._timers = list(self._timers.values()), {}
        for timer in timers:
            timer.cancel()

    def __call__(self, event: Event) -> None:
        """A long wait is worth a line, and a long step of a load too, even if nothing reports on it."""
        with self._lock:
            tally = (
                self._tallies.get(event.table, {}).get(event.stage) if isinstance(event, Underway) else None
            )
            before = tally.step if tally else None
        super().__call__(event)
        with self._lock:
            match event:
                case TablesChosen():
                    self._said_waits.clear()
                case Waiting(table, None):
                    self._cancel(table)
                case Waiting(table) if table not in self._timers:
                    self._later(table, EVERY, partial(self._say_wait, table))
                case Underway(table, stage, _, step) if tally and (before and before.kind) != (
                    step and step.kind
                ):
                    self._cancel(f"{table} {stage}")
                    if step is not None:
                        self._say_later(table, stage, tally, step, EVERY)

    def _cancel(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()

    def _later(self, name: str, seconds: float, say: Callable[[], None]) -> None:
        if self._brief is None and not self._closed:
            self._timers[name] = timer = threading.Timer(seconds, say)
            timer.daemon = True
            timer.start()

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

        self._later(f"{table} {stage}", seconds, say)

    def _say_wait(self, table: str) -> None:
        with self._lock:
            on, waited = self._waited(table, time.monotonic())
            if on is None or on in self._said_waits:
                return
            if on.kind in _OF_THE_RUN:  # all tables wait for the same: once is enough
                self._said_waits.add(on)
                table = ""
        self._say(table, said_wait(on, waited))

    def _say(self, table: str, text: str) -> None:
        to_stderr(shown(self._scrub(f"{table}: {text}" if table else text)))
