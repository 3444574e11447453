"""Questions of several threads, answered together: each answer is its own, and younger than its question."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from floodmark.host.threads import RecentAnswers, SharedCalls
from floodmark.model.errors import TransientError


def test_questions_that_wait_are_answered_at_once_and_no_answer_is_older_than_its_question() -> None:
    moments = itertools.count()
    asked_together: list[int] = []

    def answer(questions: Sequence[int]) -> list[tuple[int, int]]:
        now = next(moments)
        asked_together.append(len(questions))
        time.sleep(0.01)
        return [(question, now) for question in questions]

    shared = SharedCalls(answer)

    def ask(_: int) -> bool:
        before = next(moments)
        question, when = shared.ask(before)
        return question == before and when > before

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(200)))
    assert sum(asked_together) == 200 and max(asked_together) > 3


def test_a_bad_question_fails_its_own_thread_and_no_other() -> None:
    begun, go_on = threading.Event(), threading.Event()
    calls: list[list[str]] = []

    def answer(questions: Sequence[str]) -> list[str]:
        calls.append(list(questions))
        if len(calls) == 1:
            begun.set()
            go_on.wait(10)
        if "bad" in questions:
            raise ValueError("bad")
        return [question.upper() for question in questions]

    shared = SharedCalls(answer)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(shared.ask, "first")
        assert begun.wait(10)
        bad, *good = [pool.submit(shared.ask, question) for question in ("bad", "good", "better")]
        while len(shared._waiting) < 3:
            time.sleep(0.001)
        go_on.set()
        assert first.result(10) == "FIRST"
        with pytest.raises(ValueError, match="bad"):
            bad.result(10)
        assert [one.result(10) for one in good] == ["GOOD", "BETTER"]
    assert calls[0] == ["first"] and set(calls[1]) == {"bad", "good", "better"}
    assert sorted(calls[2:]) == [["bad"], ["better"], ["good"]]
    assert shared.ask("later") == "LATER"


def test_threads_with_the_same_question_share_an_answer_that_is_young_enough() -> None:
    asked: list[str] = []

    def answer(question: str) -> int:
        asked.append(question)
        time.sleep(0.01)
        return len(asked)

    recent = RecentAnswers()

    def ask(question: str, old: float) -> int:
        return recent.ask(question, old, lambda: answer(question))

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: ask("a", 600.0), range(50))) == {1}
    assert ask("b", 600.0) == 2 and ask("a", 0.0) == 3 and ask("a", 600.0) == 3


def test_those_who_wait_get_an_answer_that_was_asked_after_they_came_however_young_it_must_be() -> None:
    begun, go_on = threading.Event(), threading.Event()
    asked: list[float] = []

    def answer() -> float:
        asked.append(time.monotonic())
        begun.set()
        assert go_on.wait(10)
        return asked[-1]

    recent = RecentAnswers()
    with ThreadPoolExecutor(8) as pool:
        pool.submit(recent.ask, "a", 0.0, answer)
        assert begun.wait(10)
        came = time.monotonic()
        waiting = [pool.submit(recent.ask, "a", 0.0, answer) for _ in range(5)]
        time.sleep(0.1)
        go_on.set()
        assert all(one.result(10) > came for one in waiting)
    assert len(asked) == 2


def test_an_error_is_shared_like_an_answer_and_each_thread_has_its_own() -> None:
    asked: list[str] = []

    def answer() -> int:
        asked.append("a")
        time.sleep(0.05)
        raise TransientError("the store is away", hint="run again")

    recent = RecentAnswers()

    def ask(n: int) -> TransientError:
        with pytest.raises(TransientError) as failed:
            recent.ask("a", 1.0, answer)
        return cast(TransientError, failed.value.of(f"s.t{n}"))

    with ThreadPoolExecutor(8) as pool:
        errors = list(pool.map(ask, range(8)))
    assert [error.table for error in errors] == [f"s.t{n}" for n in range(8)]
    assert {error.hint for error in errors} == {"run again"} and len(asked) == 1
