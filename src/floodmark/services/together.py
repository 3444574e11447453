"""Questions of several threads to one service, answered together.

While one thread asks, the questions of the others gather; the next of them asks them all at once. An answer is always
younger than its question: as if each thread had asked for itself, at a fraction of the cost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from floodmark.model.errors import Interrupted

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
