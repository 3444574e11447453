"""Runs experiments until the time is up: the groups in turn, a few experiments each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pymysql

from floodmark.model.errors import FloodmarkError

from .groups import GROUPS
from .lab import Lab, Outcome

# Experiments per group and round: more for groups with many steps to strike and short runs.
WEIGHTS = {"crash": 4, "fences": 2, "network": 3, "writers": 4}


def run(
    lab: Lab,
    groups: Sequence[str] = (),
    seconds: float = 1800.0,
    stop: Callable[[Outcome], bool] = lambda outcome: False,
) -> Iterator[Outcome]:
    """The outcomes as they come, until all groups are done, the time is up, or `stop` says so."""
    deadline = time.monotonic() + seconds
    turns = {name: GROUPS[name](lab) for name in groups or GROUPS}
    while turns:
        for name in [n for n in turns for _ in range(WEIGHTS.get(n, 1))]:
            if time.monotonic() > deadline:
                return
            try:
                outcome = next(turns[name], None) if name in turns else None
            except (
                AssertionError,
                OSError,
                RuntimeError,
                pymysql.Error,
                FloodmarkError,
            ) as error:  # a server that is gone
                print(f"           {name} can't go on: {type(error).__name__}: {error}", flush=True)
                outcome = None
            if outcome is None:
                turns.pop(name, None)
                continue
            yield outcome
            if stop(outcome):
                return


def caught(outcome: Outcome) -> bool:
    """Whether an experiment has exposed a problem."""
    return outcome.verdict != "survived"
