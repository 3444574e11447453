"""Questions of several threads, answered together: each answer is its own, and younger than its question."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from floodmark.services.together import Together


def test_questions_that_wait_are_answered_at_once_and_no_answer_is_older_than_its_question() -> None:
    moments = itertools.count()
    asked_together: list[int] = []

    def answer(questions: Sequence[int]) -> list[tuple[int, int]]:
        now = next(moments)
        asked_together.append(len(questions))
        time.sleep(0.01)
        return [(question, now) for question in questions]

    shared = Together(answer)

    def ask(_: int) -> bool:
        before = next(moments)
        question, when = shared.ask(before)
        return question == before and when > before

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(200)))
    assert sum(asked_together) == 200 and max(asked_together) > 3


def test_an_error_reaches_everyone_who_asks_but_no_one_twice() -> None:
    begun, go_on = threading.Event(), threading.Event()
    calls: list[list[str]] = []

    def answer(questions: Sequence[str]) -> list[str]:
        calls.append(list(questions))
        if len(calls) == 1:
            begun.set()
            go_on.wait(10)
        if "bad" in questions:
            raise ValueError(f"{len(questions)} questions")
        return [question.upper() for question in questions]

    shared = Together(answer)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(shared.ask, "first")
        assert begun.wait(10)
        rest = [pool.submit(shared.ask, question) for question in ("bad", "good")]
        while len(shared._waiting) < 2:
            time.sleep(0.001)
        go_on.set()
        assert first.result(10) == "FIRST"
        with pytest.raises(ValueError, match="questions"):
            rest[0].result(10)
        # Whether the good one was asked with the bad one or after it, it fails only by a call of its own.
        try:
            assert rest[1].result(10) == "GOOD"
        except ValueError:
            assert len(calls) == 3
    assert shared.ask("later") == "LATER"
