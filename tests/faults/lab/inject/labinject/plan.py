"""What is to happen in this process, and the numbering of its durable steps.

A step takes the next line of one file, under a lock, so that a run's processes (the driver and Spark's workers)
share one numbering. The invariant: a step struck "before" never happens, a step struck "after" always has.
"""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Plan:
    """The plan of the experiment that this process belongs to; empty if none."""

    def __init__(self) -> None:
        self.take({})

    def take(self, plan: dict[str, Any]) -> None:
        """Follow another plan from now on."""
        self.raw = plan
        self.pid: int = plan.get("pid", 0)  # the command's own process
        self.steps: str | None = plan.get("steps")  # the file that numbers them
        self.at: int | None = plan.get("at")
        self.label: str | None = plan.get("label")  # strike the first step with this label instead
        self.when: str = plan.get("when", "")
        self.delay: float = plan.get("delay", 0.0)
        self.broken: str | None = plan.get("broken")
        self.spark: dict[str, Any] | None = plan.get("spark")
        self._struck = False

    def step(self, label: str, act: Callable[[], T], lost: Callable[[], BaseException] | None = None) -> T:
        """Number a durable step, strike if it is the one, perform it. `lost` creates a lost answer's error."""
        if self.steps is None:
            return act()
        here = self._is_it(self._number(label), label)
        if here and self.when == "before":
            self._kill()
        if here and self.when == "during":
            threading.Timer(self.delay, self._kill).start()
        if here and self.when == "pause":
            self._pause()
        if here and self.when == "driver before":  # this worker survives and keeps writing
            os.kill(self.pid, signal.SIGKILL)
        if here and self.when == "refused" and lost is not None:
            raise lost()
        done = act()
        if here and self.when == "after":
            self._kill()
        if here and self.when == "during":
            time.sleep(max(0.05, self.delay))  # the kill is on its way
        if here and self.when == "lost" and lost is not None:
            raise lost()
        return done

    def _is_it(self, number: int, label: str) -> bool:
        if self._struck or not self.when:
            return False
        self._struck = number == self.at if self.label is None else label == self.label
        return self._struck

    def _number(self, label: str) -> int:
        assert self.steps is not None
        with open(self.steps, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            number = sum(1 for _ in file) + 1
            file.write(f"{number} {label}\n")
            file.flush()
        return number

    def _kill(self) -> None:
        """SIGKILL the command, and this worker of it; nothing after this runs."""
        os.kill(self.pid, signal.SIGKILL)
        if os.getpid() != self.pid:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def _pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)


PLAN = Plan()


def once(kind: Any) -> bool:
    """Whether a class is not yet wrapped in this process; marks it as wrapped."""
    if hasattr(kind, "lab"):
        return False
    kind.lab = True
    return True
