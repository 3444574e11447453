"""Trying again: how often, for how long, and with which pauses. What is worth another attempt, the caller knows."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from floodmark.model.errors import FloodmarkError, TransientError

R = TypeVar("R")


@dataclass(frozen=True)
class Retries:
    """`for _ in Retries(3, 0.5): …` makes up to three attempts; the loop ends when it is time to give up."""

    attempts: float = math.inf
    pause: float = 0.2  # seconds before the second attempt
    factor: float = 2.0  # how much longer each further pause is
    longest: float = math.inf
    jitter: float = 0.0  # the share of a pause that is left to chance
    seconds: float = math.inf  # no attempt begins later than this

    def __iter__(self) -> Iterator[None]:
        pauses = self.pauses()
        yield
        for seconds in pauses:
            time.sleep(seconds)
            yield

    def pauses(self) -> Iterator[float]:
        """The pauses before further attempts, for those who wait in a way of their own; the time runs from here."""
        return self._pauses(time.monotonic() + self.seconds)

    def persist(
        self, attempt: Callable[[bool], R | FloodmarkError], pause: Callable[[float, TransientError], object]
    ) -> R:
        """The result of the first attempt that has one; raises its error if another attempt can't help.

        `attempt` learns whether it is the first. `pause` waits before the next one. The time runs from the first failure.
        """
        result = attempt(True)
        for seconds in self.pauses():
            if not isinstance(result, TransientError):
                break
            pause(seconds, result)
            result = attempt(False)
        if isinstance(result, FloodmarkError):
            raise result
        return result

    def _pauses(self, give_up: float) -> Iterator[float]:
        pause, left = self.pause, self.attempts - 1
        while left > 0 and time.monotonic() + pause <= give_up:
            yield pause * random.uniform(1 - self.jitter, 1)
            pause, left = min(pause * self.factor, self.longest), left - 1


# A slice whose services failed.
SLICE = Retries(3, 1.0, factor=3.0, seconds=20.0)
