"""Questions of several threads to one service, asked at a fraction of the cost.

`Gathering`: questions that wait at the same moment become one, of one thread of them. So small slices of several tables
share Spark tasks: a Spark job costs as much as reading a thousand rows. `Together`: the same where one thread at a time
asks; an answer is always younger than its question, as if each thread had asked for itself. `Recent`: threads with the
same question share an answer, for as long as they say that it may be old.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from typing import Any, Generic, TypeVar

from floodmark.model.errors import FloodmarkError, Interrupted

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


class Together(Generic[Q, A]):
    """Calls `answer` with all questions that wait; it returns an answer to each, in order."""

    def __init__(self, answer: Callable[[Sequence[Q]], Sequence[A]]) -> None:
        self._answer = answer
        self._gathering: Gathering[Q, tuple[A]] = Gathering(self._together, sys.maxsize)

    def ask(self, question: Q) -> A:
        """The answer to a question. If several fail together, each is asked by itself: it may be one that is bad."""
        found = self._gathering.ask(question, 1, nullcontext, lambda: False)
        return found[0] if found is not None else self._answer([question])[0]

    def _together(self, asked: Sequence[Q]) -> list[tuple[A] | None]:
        try:
            return [(answer,) for answer in self._answer(asked)]
        except Exception as error:
            if len(asked) == 1 or isinstance(error, Interrupted):
                raise
            return []


class Recent:
    """Remembers the answers to a few questions; threads with the same question wait for one of them to ask."""

    def __init__(self, shares_errors: bool = True) -> None:
        """`shares_errors`: those who wait would only wait for the same error once more."""
        self._shares_errors = shares_errors
        self._lock = threading.Lock()
        self._turns: dict[Hashable, threading.Lock] = {}
        self._known: dict[Hashable, tuple[float, Any]] = {}  # when it was asked, and what came of it

    def ask(
        self,
        question: Hashable,
        old: float,
        answer: Callable[[], A],
        ready: Callable[[], None] = lambda: None,
    ) -> A:
        """The answer to a question that was asked at most `old` seconds ago, or later; or the error that it got.

        None is no answer, and not remembered. `ready` waits until it can be asked.
        """
        since = time.monotonic() - old
        with self._lock:
            turn = self._turns.setdefault(question, threading.Lock())
        with turn:
            asked, found = self._known.get(question, (float("-inf"), None))
            if found is None or asked < since:
                ready()
                asked = time.monotonic()
                try:
                    found = answer()
                except FloodmarkError as error:
                    if isinstance(error, Interrupted) or not self._shares_errors:
                        raise
                    found = error
                self._known[question] = asked, found
        if isinstance(found, FloodmarkError):
            raise copy(found)  # each thread adds its own table to it
        result: A = found
        return result
