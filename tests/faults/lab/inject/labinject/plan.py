"""What is to happen in this process, and the numbering of its durable steps.

A step gets the next line of one file, under a lock, so that a run's processes (the driver and Spark's workers)
share one numbering. The invariant: a step that is to be struck "before" never happens, one "after" always has.
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
    """The plan of the experiment that this process is part of; empty outside of any."""

    def __init__(self) -> None:
        self.take({})

    def take(self, plan: dict[str, Any]) -> None:
        """Go by another plan from now on."""
        self.raw = plan
        self.pid: int = plan.get("pid", 0)  # the command's own process
        self.steps: str | None = plan.get("steps")  # the file that numbers them
        self.at: int | None = plan.get("at")
        self.label: str | None = plan.get("label")  # strike the first step of this label instead
        self.when: str = plan.get("when", "")
        self.delay: float = plan.get("delay", 0.0)
        self.broken: str | None = plan.get("broken")
        self.spark: dict[str, Any] | None = plan.get("spark")
        self._struck = False

    def step(self, label: str, act: Callable[[], T], lost: Callable[[], BaseException] | None = None) -> T:
        """One durable step: numbered, struck if it is the one, and done. `lost` makes the error of a lost answer."""
        if self.steps is None:
            return act()
        here = self._is_it(self._number(label), label)
        if here and self.when == "before":
            self._kill()
        if here and self.when == "during":
            threading.Timer(self.delay, self._kill).start()
        if here and self.when == "pause":
            self._pause()
        if here and self.when == "driver before":  # this worker lives on, and goes on writing
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
        """SIGKILL for the command, and for this worker of it; what comes after never runs."""
        os.kill(self.pid, signal.SIGKILL)
        if os.getpid() != self.pid:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def _pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)


PLAN = Plan()
