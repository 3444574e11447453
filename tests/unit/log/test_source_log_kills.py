"""A run that keeps the source's log is killed (-9) at every durable step: the next one goes on, and nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest

from floodmark.clean.changes import clean_changes
from floodmark.config.load import StoreSpec
from floodmark.log import source_log
from floodmark.log.following import here
from floodmark.log.log import Log
from floodmark.log.source_log import waiting
from floodmark.model.changes import SOURCE_LOG, FollowedTo
from floodmark.model.commit import Changes
from floodmark.store.store import Store
from tests.support.source_logs import ITEMS, ORDERS, SERVER, at, described, end, opened, run_name, touch

LAST = 200  # where the binary log ends
LATER = datetime.now(UTC) + timedelta(hours=2)
Side = Literal["before", "after"]


class Deadly(Store):
    """A store whose process is killed at its n-th write, before it or after it."""

    def __init__(self, spec: StoreSpec, last: int, side: Side) -> None:
        super().__init__(spec)
        self.last, self.side, self.steps = last, side, count(1)

    def _step(self, act: Callable[[], Any]) -> Any:
        dies = next(self.steps) == self.last
        if dies and self.side == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = act()
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def create(self, path: str, data: bytes) -> bool:
        return bool(self._step(lambda: Store.create(self, path, data)))

    def put(self, path: str, data: Any) -> Any:
        return self._step(lambda: Store.put(self, path, data))

    def delete(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        self._step(lambda: Store.delete(self, paths))


def follow(store: Store, run: str, *, clean: bool = False) -> None:
    """What a run does: it listens for the tables that nobody listens for yet, and reads the binary log to its end."""
    held = source_log.source_log(store, run)

    def wanted(state: Any) -> bool:
        source = state.source
        return source is None or ITEMS not in source.tables or source.next_start < at(LAST) or clean

    if not source_log.hold(held, wanted, seconds=5.0):
        return
    known = held.state.source.tables if held.state.source is not None else {}
    new = [described(name) for name in (ORDERS, ITEMS) if name not in known]
    if new:
        source_log.listen(held, new, begin=(end(100), SERVER))
    if held.state.source is not None and held.state.source.next_start < at(LAST):
        touch(held, ORDERS, ITEMS, upto=LAST)
    if clean:
        place = here(held.state)
        clean_changes(held, {ORDERS: place, ITEMS: place}, LATER)
    held.release()


def survived(store: Deadly, **more: bool) -> bool:
    """Runs it in a process of its own; whether that came to its end."""
    child = os.fork()
    if child == 0:
        try:
            follow(store, "20250819_153000_dead", **more)
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the run failed before it was killed"
    return not os.WIFSIGNALED(status)


def checked(store: Store) -> None:
    """The next run goes on at once; each place was read once, each key file is there, and all copies agree."""
    follow(store, run_name())
    log = Log(store, SOURCE_LOG)
    state = log.read()
    reads = [c for c, _ in log.commits(range(state.n + 1)) if isinstance(c, Changes) and c.followed.tables]
    assert [(c.followed.begin, c.followed.next_start) for c in reads] == [(at(100), at(LAST))]
    begun = next(c for c, _ in log.commits(range(state.n + 1)) if isinstance(c, Changes))
    followed = FollowedTo(state.log, begun.n, log.commit(begun.n)[1], at(100), SERVER)
    found = waiting(log, state, {ORDERS: followed, ITEMS: followed})
    for name, each in found.items():
        assert len(each.files) == 1 and not each.reconcile and store.get(each.files[0].path), name
    assert set(found) == {ORDERS, ITEMS}
    assert not log.findings


@pytest.mark.parametrize("side", ["before", "after"])
def test_killed_at_any_step_of_the_first_read(tmp_path: Path, side: Side) -> None:
    for step in range(1, 99):
        spec = StoreSpec(url=str(tmp_path / f"{step}"))
        done = survived(Deadly(spec, step, side))
        checked(Store(spec))
        if done:
            assert step >= 12
            return
    raise AssertionError("it never came to its end")


@pytest.mark.parametrize("side", ["before", "after"])
def test_killed_at_any_step_of_a_later_read_that_also_cleans(tmp_path: Path, side: Side) -> None:
    for step in range(1, 99):
        spec = StoreSpec(url=str(tmp_path / f"{step}"))
        held = opened(Store(spec), ORDERS, ITEMS)
        touch(held, ORDERS, upto=150)
        held.release()
        done = survived(Deadly(spec, step, side), clean=True)
        store = Store(spec)
        follow(store, run_name(), clean=True)
        log = Log(store, SOURCE_LOG)
        state = log.read()
        reads = [
            c for c, _ in log.commits(range(state.n + 1)) if isinstance(c, Changes) and c.followed.tables
        ]
        assert [c.followed.next_start.position for c in reads] == [150, LAST]
        assert not log.findings and here(state) is not None
        # Everything was followed: nothing is left, but what a run killed between its commit and its deletions has left.
        left = {o.path for o in store.list("changes/keys/")}
        assert left <= {f.path for c in reads for f in c.files} | {p for p in left if "_dead/" in p}
        if done:
            assert step > 9 and not left
            return
    raise AssertionError("it never came to its end")
