"""When a slice whose services failed is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from floodmark.model.errors import FloodmarkError, TransientError

R = TypeVar("R")

# Pauses before a slice whose services failed is retried; not once it has been failing for PATIENCE seconds.
PAUSES = (1.0, 3.0)
PATIENCE = 20.0


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
