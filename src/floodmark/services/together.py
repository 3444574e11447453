"""Questions of several threads to one service, answered together.

While one thread asks, the questions of the others gather; the next of them asks them all at once. An answer is always
younger than its question: as if each thread had asked for itself, at a fraction of the cost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

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
        """The answer to a question. If it fails, so does only this call: the others ask again."""
        mine: _Asked[Q, A] = _Asked(question)
        with self._gathering:
            self._waiting.append(mine)
        with self._turn:
            if not mine.answers:
                with self._gathering:
                    asked, self._waiting = self._waiting, []
                try:
                    for one, answer in zip(asked, self._answer([a.question for a in asked]), strict=True):
                        one.answers.append(answer)
                except BaseException:
                    with self._gathering:
                        self._waiting += [one for one in asked if one is not mine and not one.answers]
                    raise
        return mine.answers[0]
