"""How a run shares its connections between tables and tasks; no server."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from floodmark.config.load import PauseWhen, SourceSpec
from floodmark.model.errors import Interrupted
from floodmark.source import connections as module
from floodmark.source.connections import Throttle
from floodmark.source.session import Session


def throttle(connections: int) -> Throttle:
    return Throttle(SourceSpec("h", 3306, "u", "p", max_connections=connections))


def never() -> bool:
    return False


class Count:
    """How many are inside at once, and how many there were at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.now -= 1


def test_several_connections_are_taken_together_or_not_at_all() -> None:
    shared, inside, begun = throttle(4), Count(), threading.Event()

    def both() -> None:
        with shared.room(2), inside, inside:
            begun.set()
            time.sleep(0.01)

    def task() -> None:
        with shared.task(None, never), inside:
            time.sleep(0.01)

    with ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(each) for _ in range(30) for each in (task, both)]
        for future in futures:
            future.result(30)
    assert begun.is_set() and inside.most <= 4
    with shared.room(4):
        pass  # all have been given back


def test_tasks_and_queries_together_stay_within_the_limit() -> None:
    shared, inside = throttle(3), Count()

    def task() -> None:
        with shared.task(None, never), inside:
            time.sleep(0.01)

    def ask() -> None:
        with shared.room(), inside:
            time.sleep(0.01)

    with ThreadPoolExecutor(12) as pool:
        futures = [pool.submit(each) for _ in range(40) for each in (task, ask)]
        for future in futures:
            future.result(30)
    assert inside.most == 3


def test_a_slice_that_spark_may_attempt_twice_at_once_takes_two_connections() -> None:
    shared, inside = throttle(5), Count()

    def task() -> None:
        with shared.task(None, never, attempts=2), inside:
            time.sleep(0.01)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(task) for _ in range(20)]:
            future.result(30)
    assert inside.most == 2


def test_one_task_runs_eventually_even_if_its_waiters_hold_every_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    shared = throttle(1)
    with shared.room(), shared.task(None, never):
        pass


def test_a_thread_does_not_wait_for_itself() -> None:
    shared = throttle(1)
    with shared.room(), shared.room():
        pass


def test_a_query_waits_for_tasks_only_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    shared = throttle(1)
    with shared.task(None, never), shared.room():
        pass


def test_a_query_goes_before_the_next_task() -> None:
    shared, order = throttle(2), list[str]()
    started = threading.Event()

    def task(name: str) -> None:
        with shared.task(None, never):
            order.append(name)

    def ask() -> None:
        started.set()
        with shared.room():
            order.append("question")
            time.sleep(0.05)

    with ThreadPoolExecutor(4) as pool, shared.task(None, never):
        with shared.task(None, never):
            pool.submit(ask)
            started.wait()
            time.sleep(0.05)
            for i in range(2):
                pool.submit(task, f"task {i}")
            time.sleep(0.05)
        time.sleep(0.3)
    assert order[0] == "question"


def test_tasks_that_only_queue_inside_spark_hold_no_connection() -> None:
    shared = throttle(4)
    with ThreadPoolExecutor(8) as pool:
        all_in = threading.Barrier(8)

        def task() -> None:
            with shared.task(2, never):
                all_in.wait(10)

        for future in [pool.submit(task) for _ in range(8)]:
            future.result(20)


def test_a_stop_ends_the_wait() -> None:
    shared, stop = throttle(1), threading.Event()
    with shared.task(None, never), ThreadPoolExecutor(1) as pool:

        def task() -> None:
            with shared.task(None, stop.is_set):
                pass

        waiting = pool.submit(task)
        stop.set()
        with pytest.raises(Interrupted):
            waiting.result(10)


# ---------------------------------------------------------------- sessions kept for the next table


class Kept:
    """Stands for a session: whether its server still waits for a statement, and whether it was closed."""

    def __init__(self, at_rest: bool = True) -> None:
        self.at_rest, self.closed = at_rest, False
        self.opened = time.monotonic()

    def close(self) -> None:
        self.closed = True


def kept(shared: Throttle, *sessions: Kept) -> list[bool]:
    return [shared.keep(cast(Session, session)) for session in sessions]


def test_a_session_is_kept_for_the_next_query_unless_its_server_has_hung_up() -> None:
    shared, good, gone = throttle(8), Kept(), Kept()
    assert kept(shared, good, gone, Kept(at_rest=False)) == [True, True, False]
    gone.at_rest = False
    assert shared.kept() is cast(Session, good)
    assert gone.closed and not good.closed
    assert shared.kept() is None


def test_a_session_serves_other_tables_only_for_some_seconds_after_its_log_in_however_often_it_is_used() -> (
    None
):
    shared, session = throttle(8), Kept()
    assert kept(shared, session) == [True] and shared.kept() is cast(Session, session)
    assert kept(shared, session) == [True]
    session.opened -= module.KEPT
    assert shared.kept() is None and session.closed
    assert kept(shared, session) == [False]


def test_kept_sessions_make_room_for_the_look_at_a_busy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = PauseWhen(threads_running=10)
    shared = Throttle(SourceSpec("h", 3306, "u", "p", max_connections=8, pause_when=busy))
    session = Kept()
    assert kept(shared, session) == [True]
    monkeypatch.setattr(shared, "_wait_until_calm", lambda stopped: calm.append(session.closed))
    calm: list[bool] = []
    with shared.task(None, never):
        assert calm == [True]


def test_kept_sessions_count_towards_the_limit_and_give_way_to_tasks() -> None:
    shared = throttle(3)
    first, second, third = Kept(), Kept(), Kept()
    with shared.room(), shared.room(), shared.room():
        assert kept(shared, first) == [True]  # the third connection is about to be released in its favour
        assert kept(shared, second) == [False], "a fourth connection"
    assert kept(shared, second, third) == [True, True]
    with shared.task(None, never):
        assert [one.closed for one in (first, second, third)] == [True, False, False]
        with shared.task(None, never), shared.task(None, never):
            assert second.closed and third.closed
        with shared.room():
            assert kept(shared, Kept(), Kept(), Kept()) == [True, True, False], "beside a task and a query"
    shared.drop_kept()
    assert shared.kept() is None


def test_a_task_closes_kept_sessions_that_are_too_old_to_be_used() -> None:
    shared, old, good = throttle(8), Kept(), Kept()
    assert kept(shared, old, good) == [True, True]
    old.opened -= module.KEPT
    with shared.task(None, never):
        assert old.closed and not good.closed


def test_a_kept_session_that_becomes_too_old_is_closed_even_if_nobody_asks_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEPT", 0.1)
    shared, first, second = throttle(3), Kept(), Kept()
    assert kept(shared, first) == [True]
    time.sleep(0.05)
    second.opened = time.monotonic()
    assert kept(shared, second) == [True]
    for _ in range(200):
        if first.closed and second.closed:
            break
        time.sleep(0.01)
    assert first.closed and second.closed and shared.kept() is None
