"""When a load begins beside an extraction: with enough rows, after a while, or when no more come."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from floodmark import loader as module
from floodmark.loader import ENOUGH, Loader
from floodmark.model import Table
from floodmark.report import SyncOptions, TableReport
from floodmark.state import State
from floodmark.testing.samples import TABLE


class Watched(Loader):
    """Loads nothing, but says what it would load, and takes as long as it is told to."""

    def __init__(self, **options: Any) -> None:
        nothing: Any = None
        work: Any = SimpleNamespace(options=SyncOptions(**options))
        super().__init__(work, nothing, nothing, TableReport(TABLE.name))
        self.numbers: list[int] = []
        self.began = threading.Event()
        self.go_on = threading.Event()

    def _load(self, state: State, table: Table) -> None:
        self.numbers.append(state.n)
        self.began.set()
        assert self.go_on.wait(20)


def state(n: int) -> State:
    return State(TABLE.name, n=n)


def test_few_rows_wait_until_there_are_enough_and_load_together() -> None:
    loader = Watched()
    loader.go_on.set()
    loader.offer(state(1), TABLE, 100)
    assert not loader.began.wait(0.2)
    loader.offer(state(2), TABLE, ENOUGH - 100)
    assert loader.began.wait(20)
    loader.close()
    assert loader.numbers == [2]


def test_what_waits_is_loaded_when_no_more_comes() -> None:
    loader = Watched()
    loader.go_on.set()
    loader.offer(state(1), TABLE, 100)
    loader.close()
    assert loader.numbers == [1]


def test_what_waits_is_left_when_the_run_fails() -> None:
    loader = Watched()
    loader.offer(state(1), TABLE, 100)
    loader.abandon()
    assert loader.numbers == []


def test_rows_of_a_slow_source_do_not_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    loader = Watched()
    loader.go_on.set()
    loader.offer(state(1), TABLE, 100)
    assert loader.began.wait(20)
    loader.close()
    assert loader.numbers == [1]


def test_a_loader_wants_rows_when_it_is_idle_and_they_are_enough() -> None:
    loader = Watched()
    assert not loader.wants(ENOUGH - 1)
    assert loader.wants(ENOUGH)
    loader.offer(state(1), TABLE, ENOUGH)
    assert loader.began.wait(20)
    assert not loader.wants(ENOUGH)
    loader.go_on.set()
    loader.close()


def test_nothing_is_wanted_by_a_run_that_loads_nothing() -> None:
    assert not Watched(backup_only=True).wants(ENOUGH)
