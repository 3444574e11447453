"""How threads wait for one another, and share what one of them has: a call, or its answer.

`StoppableCondition`: wait until something is true, and no longer than that makes sense. `SharedCalls`: questions that wait at the
same moment become one call, made by one of their threads. So small slices of several tables share Spark tasks: a Spark
job costs as much as reading a thousand rows. `RecentAnswers`: threads with the same question share an answer, for as
long as they say that it may be old. To try again, see `retry`.
"""

from __future__ import annotations

import math
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

Stopped = Callable[[], bool]
Room = Callable[[], AbstractContextManager[object]]

# Seconds between checks whether a waiting thread has been told to stop.
LOOK_EVERY = 0.5


def never() -> bool:
    """For those whom nobody stops."""
    return False


class StoppableCondition(threading.Condition):
    """A condition whose waiters can be stopped, and can give up. Held while one looks or changes something, as usual."""

    def until(self, true: Callable[[], bool], stopped: Stopped = never, seconds: float = math.inf) -> bool:
        """Waits until it is true; returns whether it is after so many seconds. Raises Interrupted when stopped."""
        give_up = time.monotonic() + seconds
        while not (found := true()) and (left := give_up - time.monotonic()) > 0:
            if stopped():
                raise Interrupted("stopped")
            self.wait(min(LOOK_EVERY, left))
        return found


class _Asked(Generic[Q, A]):
    """One thread's question, and what became of it."""

    def __init__(self, question: Q) -> None:
        self.question = question
        self.leads = False  # whether its thread makes the call, as soon as there is room
        self.over = False
        self.answer: Sequence[A] = ()  # none: to be asked alone


class SharedCalls(Generic[Q, A]):
    """Calls `answer` with up to `most` of the questions that wait. Thread-safe.

    It returns an answer to each, in order. If the last ones are missing, or several fail together, each of these is asked
    by itself: it may be one that is bad. An answer is always younger than its question.
    """

    def __init__(self, answer: Callable[[Sequence[Q]], Sequence[A]], most: int = sys.maxsize) -> None:
        self._answer = answer
        self._most = most
        self._change = StoppableCondition()
        self._waiting: list[_Asked[Q, A]] = []
        self._leading = 0  # threads that wait for room, or for an answer
        self._running = 0  # of these, those that wait for an answer

    def ask(
        self,
        question: Q,
        lanes: int = 1,
        room: Room = nullcontext,
        stopped: Stopped = never,
        alone: bool = False,
    ) -> A:
        """The answer to a question, in one of so many calls side by side. Raises Interrupted when stopped.

        `room` waits until one more call may begin. The questions are taken once there is room: more gather meanwhile.
        """
        answer = () if alone else self._shared(question, lanes, room, stopped)
        if not answer:
            with room():
                if stopped():
                    raise Interrupted("stopped")
                answer = self._answer([question])
        return answer[0]

    def _shared(self, question: Q, lanes: int, room: Room, stopped: Stopped) -> Sequence[A]:
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

    def _leads(self, mine: _Asked[Q, A], lanes: int, stopped: Stopped) -> bool:
        """Waits; whether this thread makes the next call. Otherwise its question is over."""
        with self._change:
            leaders = max(1, lanes)
            self._change.until(
                lambda: mine.over or (mine in self._waiting and self._leading < leaders), stopped
            )
            mine.leads = not mine.over
            self._leading += mine.leads
            return mine.leads

    def _answer_some(self, mine: _Asked[Q, A], lanes: int) -> None:
        """Answers this lane's share of the questions that wait: its own thread's, and the oldest.

        A thread makes no call without its own question: if that is cancelled, so is the call, and the thread ends. So
        nobody takes the question of a thread that leads.
        """
        with self._change:
            count = share(len(self._waiting), lanes - self._running, self._most)
            others = [one for one in self._waiting if not one.leads][: count - 1]
            asked = [mine, *others]
            self._waiting = [one for one in self._waiting if one not in asked]
            self._running += 1
        answers: Sequence[A] = ()
        try:
            answers = self._answer([one.question for one in asked])
        except Exception as error:
            if not others or isinstance(error, Interrupted):
                raise
        finally:
            with self._change:
                self._running -= 1
                for number, one in enumerate(asked):
                    one.answer = answers[number : number + 1]
                    one.over = True
                self._change.notify_all()


def share(waiting: int, lanes: int, most: int) -> int:
    """How many of the waiting questions one call takes, so that all free lanes have about as many."""
    return min(most, -(-waiting // max(1, lanes)))


class RecentAnswers:
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
            asked, found = self._known.get(question, (-math.inf, None))
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
