"""Questions of several threads to one service, asked at a fraction of the cost.

`Together`: while one thread asks, the questions of the others gather; the next of them asks them all at once. An answer
is always younger than its question, as if each thread had asked for itself. `Recent`: threads with the same question
share an answer, for as long as they say that it may be old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from copy import copy
from typing import Generic, TypeVar

from floodmark.model.errors import FloodmarkError, Interrupted

Q = TypeVar("Q")
A = TypeVar("A")


class _Asked(Generic[Q, A]):
    """One thread's question, and its answer once there is one."""

    def __init__(self, question: Q) -> None:
        self.question = question
        self.answers: list[A] = []


class Together(Generic[Q, A]):
    """Calls `answer` with all questions that wait; it returns an answer to each, in order."""

    def __init__(self, answer: Callable[[Sequence[Q]], Sequence[A]]) -> None:
        self._answer = answer
        self._turn = threading.Lock()
        self._gathering = threading.Lock()
        self._waiting: list[_Asked[Q, A]] = []

    def ask(self, question: Q) -> A:
        """The answer to a question. If several fail together, each is asked by itself: it may be one that is bad."""
        mine: _Asked[Q, A] = _Asked(question)
        with self._gathering:
            self._waiting.append(mine)
        with self._turn:
            if not mine.answers:
                self._together(mine)
            if not mine.answers:
                mine.answers += self._answer([question])
        return mine.answers[0]

    def _together(self, mine: _Asked[Q, A]) -> None:
        """Answers all questions that wait; if that fails, each thread has to ask its own alone."""
        with self._gathering:
            if mine not in self._waiting:
                return  # it was asked with others, and that failed
            asked, self._waiting = self._waiting, []
        try:
            answers = self._answer([one.question for one in asked])
        except Interrupted:
            raise
        except Exception:
            if len(asked) == 1:
                raise
            return
        for one, answer in zip(asked, answers, strict=True):
            one.answers.append(answer)


class Recent(Generic[Q, A]):
    """Remembers the answers to a few questions; threads with the same question wait for one of them to ask."""

    def __init__(self, answer: Callable[[Q], A]) -> None:
        self._answer = answer
        self._lock = threading.Lock()
        self._turns: dict[Q, threading.Lock] = {}
        self._known: dict[Q, tuple[float, A | FloodmarkError]] = {}  # when it was asked, and what came of it

    def ask(self, question: Q, old: float) -> A:
        """The answer to a question that was asked at most `old` seconds ago, or later; or the error that it got."""
        since = time.monotonic() - old
        with self._lock:
            turn = self._turns.setdefault(question, threading.Lock())
        with turn:
            asked, found = self._known.get(question) or (float("-inf"), None)
            if found is None or asked < since:
                found = self._asked(question)
        if isinstance(found, FloodmarkError):
            raise copy(found)  # each thread adds its own table to it
        return found

    def _asked(self, question: Q) -> A | FloodmarkError:
        now = time.monotonic()
        found: A | FloodmarkError
        try:
            found = self._answer(question)
        except Interrupted:
            raise
        except FloodmarkError as error:  # those who wait would only wait for it once more
            found = error
        self._known[question] = now, found
        return found
