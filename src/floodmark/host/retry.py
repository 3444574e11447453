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

# Pauses before a slice whose services failed is retried; not once it has been failing for PATIENCE seconds.
PAUSES = (1.0, 3.0)
PATIENCE = 20.0


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
        give_up, pause, left = time.monotonic() + self.seconds, self.pause, self.attempts
        while True:
            yield
            left -= 1
            if left <= 0 or time.monotonic() + pause > give_up:
                return
            time.sleep(pause * random.uniform(1 - self.jitter, 1))
            pause = min(pause * self.factor, self.longest)


def patiently(
    attempt: Callable[[bool], R | FloodmarkError], pause: Callable[[float, TransientError], object]
) -> R:
    """The result of the first attempt that has one; raises its error if another attempt can't help.

    `attempt` learns whether it is the first. `pause` waits before the next one.
    """
    result = attempt(True)
    since = time.monotonic()
    for seconds in PAUSES:
        if not isinstance(result, TransientError) or time.monotonic() - since > PATIENCE:
            break
        pause(seconds, result)
        result = attempt(False)
    if isinstance(result, FloodmarkError):
        raise result
    return result
