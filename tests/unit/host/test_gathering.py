"""Small slices that share tasks: how many a task takes, and that no slice is lost, repeated or delayed by another's end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext

import pytest

from floodmark.host.threads import SharedCalls, share
from floodmark.model.errors import Interrupted, TransientError


def never() -> bool:
    return False


def ask(
    calls: SharedCalls[int, int],
    question: int,
    lanes: int = 1,
    room: Callable[[], AbstractContextManager[None]] = nullcontext,
    stopped: Callable[[], bool] = never,
) -> int:
    return calls.ask(question, lanes, room, stopped)


class Tasks:
    """Doubles numbers; the first call waits until it may go on."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, questions: Sequence[int]) -> list[int]:
        self.calls.append(list(questions))
        self.begun.set()
        assert self.go_on.wait(10)
        return [question * 2 for question in questions]


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_free_lanes_share_what_waits_and_no_task_takes_more_than_the_most() -> None:
    assert [share(waiting, 2, 8) for waiting in (0, 1, 2, 3, 9, 50)] == [0, 1, 1, 2, 5, 8]
    assert share(50, 64, 8) == 1  # where there is a core for each, each has a task
    assert share(3, 0, 8) == share(3, 1, 8) == 3


def test_slices_gather_while_a_task_runs_and_each_gets_its_own_result() -> None:
    tasks = Tasks()
    gathering = SharedCalls[int, int](tasks, 8)
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(ask, gathering, 0)
        assert tasks.begun.wait(10)
        others = [pool.submit(ask, gathering, number) for number in range(1, 14)]
        until(lambda: len(gathering._waiting) == 13)
        tasks.go_on.set()
        assert first.result(10) == 0
        assert [other.result(10) for other in others] == [2 * number for number in range(1, 14)]
    assert [len(call) for call in tasks.calls] == [1, 8, 13 - 8]


def test_slices_gather_while_there_is_no_room_for_a_task() -> None:
    free, calls = threading.Event(), list[int]()

    @contextmanager
    def room() -> Iterator[None]:
        assert free.wait(10)
        yield

    def answer(questions: Sequence[int]) -> Sequence[int]:
        calls.append(len(questions))
        return questions

    gathering = SharedCalls[int, int](answer)
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(ask, gathering, number, 1, room) for number in range(5)]
        until(lambda: len(gathering._waiting) == 5)
        free.set()
        assert [one.result(10) for one in asked] == list(range(5))
    assert calls == [5]


def test_a_thread_runs_no_task_without_its_own_slice() -> None:
    led: list[bool] = []
    leading: dict[int, int] = {}

    def answer(questions: Sequence[int]) -> Sequence[int]:
        led.append(leading[threading.get_ident()] in questions)
        time.sleep(0.005)
        return questions

    gathering = SharedCalls[int, int](answer, most=3)

    def run(number: int) -> int:
        leading[threading.get_ident()] = number
        return ask(gathering, number, lanes=2)

    with ThreadPoolExecutor(30) as pool:
        assert list(pool.map(run, range(60))) == list(range(60))
    assert all(led)


def test_as_many_tasks_run_side_by_side_as_there_are_lanes() -> None:
    lock, running, most = threading.Lock(), [0], [0]

    def answer(questions: Sequence[int]) -> Sequence[int]:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.02)
        with lock:
            running[0] -= 1
        return questions

    gathering = SharedCalls[int, int](answer, most=2)
    with ThreadPoolExecutor(30) as pool:
        found = list(pool.map(lambda number: ask(gathering, number, lanes=3), range(30)))
    assert found == list(range(30)) and most == [3]


@pytest.mark.parametrize("failed", [False, True], ids=["its turn did not come", "its task failed"])
def test_a_slice_runs_alone_if_it_got_no_answer_with_the_others(failed: bool) -> None:
    calls, held = list[list[int]](), threading.Event()

    @contextmanager
    def room() -> Iterator[None]:
        assert held.wait(10)
        yield

    def answer(questions: Sequence[int]) -> list[int]:
        calls.append(list(questions))
        if len(questions) == 1:
            return [questions[0] * 2]
        if failed:
            raise TransientError("away")
        return [7]

    gathering = SharedCalls[int, int](answer)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(ask, gathering, number, 1, room) for number in (1, 2)]
        until(lambda: len(gathering._waiting) == 2)
        held.set()
        answers = {one.result(10) for one in both}
    assert answers == {2, 4} if failed else 7 in answers and len(calls) == 2
    assert gathering.ask(5, alone=True) == 10 and calls[-1] == [5]


def test_a_table_that_ends_while_it_waits_leaves_the_others_alone() -> None:
    tasks, ended = Tasks(), threading.Event()
    gathering = SharedCalls[int, int](tasks, 8)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(ask, gathering, 1)
        assert tasks.begun.wait(10)
        ending = pool.submit(ask, gathering, 2, 1, nullcontext, ended.is_set)
        staying = pool.submit(ask, gathering, 3)
        until(lambda: len(gathering._waiting) == 2)
        ended.set()
        with pytest.raises(Interrupted):
            ending.result(10)
        tasks.go_on.set()
        assert (first.result(10), staying.result(10)) == (2, 6)
    assert tasks.calls == [[1], [3]]


def test_a_table_that_ends_while_it_waits_for_room_hands_over_to_the_next() -> None:
    waits, ended = threading.Event(), threading.Event()

    def no_room() -> AbstractContextManager[None]:
        waits.set()
        assert ended.wait(10)
        raise Interrupted("stopped")

    gathering = SharedCalls[int, int](lambda questions: questions)
    with ThreadPoolExecutor(2) as pool:
        ending = pool.submit(ask, gathering, 1, 1, no_room)
        assert waits.wait(10)
        staying = pool.submit(ask, gathering, 2)
        until(lambda: len(gathering._waiting) == 2)
        ended.set()
        with pytest.raises(Interrupted):
            ending.result(10)
        assert staying.result(10) == 2


def test_a_slice_whose_thread_waits_for_room_is_left_to_it() -> None:
    """Otherwise its result would wait for that room, which may be long in coming."""
    calls, rooms = list[list[int]](), [threading.Event() for _ in range(2)]

    def answer(questions: Sequence[int]) -> list[int]:
        calls.append(list(questions))
        return [question * 2 for question in questions]

    def room(number: int) -> Callable[[], AbstractContextManager[None]]:
        @contextmanager
        def wait() -> Iterator[None]:
            assert rooms[number].wait(10)
            yield

        return wait

    gathering = SharedCalls[int, int](answer)
    with ThreadPoolExecutor(3) as pool:
        leaders = [pool.submit(ask, gathering, number, 2, room(number)) for number in (0, 1)]
        until(lambda: gathering._leading == 2)
        follower = pool.submit(ask, gathering, 2, 2)
        until(lambda: len(gathering._waiting) == 3)
        rooms[1].set()
        assert leaders[1].result(10) == 2
        assert follower.result(10) == 4
        assert not leaders[0].done()
        rooms[0].set()
        assert leaders[0].result(10) == 0
    assert calls == [[1, 2], [0]]


def test_no_task_begins_once_there_is_room_if_its_run_was_stopped_meanwhile() -> None:
    gathering = SharedCalls[int, int](lambda questions: [0 for _ in questions])
    with pytest.raises(Interrupted):
        ask(gathering, 1, stopped=lambda: True)
    assert gathering._leading == 0 and not gathering._waiting
