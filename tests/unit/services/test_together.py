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

    shared = Together(answer)
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
