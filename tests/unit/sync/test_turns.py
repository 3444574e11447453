"""Turns: as many tables at once as allowed, not counting those that step aside."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from floodmark.model.errors import Interrupted
from floodmark.sync.work import Turns


def test_no_more_tables_are_worked_on_than_there_are_turns() -> None:
    turns, lock, busy, most = Turns(3), threading.Lock(), [0], [0]

    def run() -> None:
        with lock:
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        time.sleep(0.005)
        with lock:
            busy[0] -= 1

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: turns.taking(run)(), range(40)))
    assert most == [3]


def test_a_table_that_steps_aside_makes_room_and_gets_a_turn_again() -> None:
    turns, all_here = Turns(1), threading.Barrier(5, timeout=10)

    def run() -> None:
        with turns.stepping_aside():
            all_here.wait()  # one after another, none would ever get here

    with ThreadPoolExecutor(5) as pool:
        for done in [pool.submit(turns.taking(run)) for _ in range(5)]:
            done.result(10)
    assert turns.taking(lambda: "the turn is free again")()


def test_a_table_without_a_turn_does_not_begin_once_the_run_is_stopped() -> None:
    turns, begun, go_on = Turns(1), threading.Event(), threading.Event()

    def first() -> str:
        begun.set()
        assert go_on.wait(10)
        return "ended"

    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(turns.taking(first))
        assert begun.wait(10)
        waiting = pool.submit(turns.taking(lambda: "began"))
        turns.end()
        go_on.set()
        assert running.result(10) == "ended"
        with pytest.raises(Interrupted):
            waiting.result(10)


def test_a_table_that_fails_while_it_steps_aside_keeps_the_number_of_turns() -> None:
    turns = Turns(1)

    def run() -> None:
        with turns.stepping_aside():
            raise ValueError

    with pytest.raises(ValueError):
        turns.taking(run)()
    assert turns._free._value == 1


def test_a_table_that_stepped_aside_ends_without_a_turn_once_the_run_is_stopped() -> None:
    turns, aside, go_on = Turns(1), threading.Event(), threading.Event()

    def steps_aside() -> str:
        with turns.stepping_aside():
            aside.set()
        return "ended"

    def busy() -> None:
        assert aside.wait(10) and go_on.wait(10)

    with ThreadPoolExecutor(2) as pool:
        done = pool.submit(turns.taking(steps_aside))
        working = pool.submit(turns.taking(busy))
        turns_over = threading.Timer(0.1, turns.end)
        turns_over.start()
        assert done.result(10) == "ended"
        go_on.set()
        working.exception(10)
