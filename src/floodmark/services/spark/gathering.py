"""Small slices of several tables that share Spark tasks.

A Spark job costs as much as reading a thousand rows. So small slices that wait at the same moment, for Spark's start or
for a free core, become one task, which reads one after the other. As many such tasks run side by side as there are
lanes. A slice whose task failed, or whose turn did not come, runs alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from floodmark.model.errors import Interrupted

Q = TypeVar("Q")
A = TypeVar("A")

# A result waits for those that share its task.
MOST = 8
# Seconds between checks whether a waiting thread has been told to stop.
LOOK_EVERY = 0.5


class _Asked(Generic[Q, A]):
    """One thread's slice, and what became of it."""

    def __init__(self, question: Q) -> None:
        self.question = question
        self.leads = False  # whether its thread runs it, as soon as there is room
        self.over = False
        self.answer: A | None = None  # None: to be run alone


class Gathering(Generic[Q, A]):
    """Calls `answer` with the slices that wait; it returns each one's result in order, or None. Thread-safe."""

    def __init__(self, answer: Callable[[Sequence[Q]], Sequence[A | None]], most: int = MOST) -> None:
        self._answer = answer
        self._most = most
        self._change = threading.Condition()
        self._waiting: list[_Asked[Q, A]] = []
        self._leading = 0  # threads that wait for room, or for an answer
        self._running = 0  # of these, those that wait for an answer

    def ask(
        self,
        question: Q,
        lanes: int,
        room: Callable[[], AbstractContextManager[None]],
        stopped: Callable[[], bool],
    ) -> A | None:
        """The result of a slice; None if it has to run alone. Raises Interrupted when stopped.

        `room` waits until one more task may run. The slices are taken once there is room: more gather meanwhile.
        """
        mine: _Asked[Q, A] = _Asked(question)
        with self._change:
            self._waiting.append(mine)
        try:
            if self._leads(mine, lanes, stopped):
                try:
                    with room():
                        if stopped():
                            raise Interrupted("stopped")
                        self._answer_some(mine, lanes)
                finally:
                    with self._change:
                        self._leading -= 1
                        self._change.notify_all()
            return mine.answer
        finally:
            with self._change:
                if mine in self._waiting:
                    self._waiting.remove(mine)

    def _leads(self, mine: _Asked[Q, A], lanes: int, stopped: Callable[[], bool]) -> bool:
        """Waits; whether this thread runs the next task. Otherwise its slice is over."""
        with self._change:
            while not mine.over and (mine not in self._waiting or self._leading >= max(1, lanes)):
                self._change.wait(LOOK_EVERY)
                if stopped() and not mine.over:
                    raise Interrupted("stopped")
            mine.leads = not mine.over
            self._leading += mine.leads
            return mine.leads

    def _answer_some(self, mine: _Asked[Q, A], lanes: int) -> None:
        """Answers this lane's share of the slices that wait: its own thread's, and the oldest.

        A thread runs no task without its own slice: if that is cancelled, so is the task, and the thread ends. So nobody
        takes the slice of a thread that leads.
        """
        with self._change:
            count = share(len(self._waiting), lanes - self._running, self._most)
            others = [one for one in self._waiting if not one.leads][: count - 1]
            asked = [mine, *others]
            self._waiting = [one for one in self._waiting if one not in asked]
            self._running += 1
        answers: Sequence[A | None] = ()
        try:
            answers = self._answer([one.question for one in asked])
        finally:
            with self._change:
                self._running -= 1
                for number, one in enumerate(asked):
                    one.answer = answers[number] if number < len(answers) else None
                    one.over = True
                self._change.notify_all()


def share(waiting: int, lanes: int, most: int) -> int:
    """How many of the waiting slices one task takes, so that all free lanes have about as many."""
    return min(most, -(-waiting // max(1, lanes)))
