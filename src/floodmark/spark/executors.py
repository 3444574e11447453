"""The executors that a cluster gives to a run: how they try slices, which were lost, when a run without any gives up."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from floodmark.model.errors import TransientError
from floodmark.spark import pyspark_internals as internals
from floodmark.spark.jvm import is_local

# Seconds that a run waits for its first executor (Spark itself would wait forever), and for a new one after
# losing all: a restarted master no longer knows the application.
DESERTED = 300.0
FORSAKEN = 60.0


class Executors:
    """As last seen. A local master has none, and a context may not tell."""

    def __init__(self) -> None:
        self._ids: frozenset[str] = frozenset()
        self._had_some = False
        self.gone = False  # none is left, and none will come

    def forget(self) -> None:
        """Forgets them between two runs of jobs: a cluster takes back executors that are idle for a while."""
        self._ids, self._had_some = frozenset(), False

    def alone(
        self,
        context: Any,
        settings: Mapping[str, str],
        since: float | None,
        note: Callable[[str], None],
        table: str | None = None,
        patience: float | None = None,
    ) -> float | None:
        """Since when the cluster has had no executor for this run; None if it has one, or if unknown.

        Raises TransientError once that is too long ago; `patience` is for a run that never had any.
        """
        found = None if is_local(settings) else internals.executors(context)
        if found is not None:
            if lost := self._ids - found:
                note(f"Spark lost {len(lost)} of {len(self._ids)} executors; their slices run again")
            self._ids, self._had_some = found, self._had_some or bool(found)
            since = None if found else since or time.monotonic()
        seconds = FORSAKEN if self._had_some else patience or DESERTED
        if since is None or time.monotonic() - since <= seconds:
            return since
        self.gone = True  # a resident sync then starts a new context
        raise TransientError(
            f"{settings['spark.master']} has had no executor for this run for {seconds:.0f} s",
            hint="check its workers, their free cores and memory, and that they can reach this machine"
            " (spark.driver.host); then run again",
            table=table,
        )


def attempts_at_once(settings: Mapping[str, str]) -> int:
    """How many attempts at one slice Spark may run side by side.

    A job of one task has nothing to compare its speed with, so Spark speculates on it only with a threshold.
    """
    speculates = settings.get("spark.speculation", "").lower() == "true"
    threshold = settings.get("spark.speculation.task.duration.threshold", "")
    return 2 if speculates and threshold and not is_local(settings) else 1
