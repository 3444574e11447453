"""Group 3: Spark's own faults: workers that die, tasks that fail and are retried, attempts that run twice.

Each strikes tasks of a sync that writes several slices. Spark's retries must suffice where they should, and the exit
code must be 4 where they can't; files of attempts that did not count are orphans and nothing worse.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .lab import Lab, Outcome, note, settle, timed, watermark_known

# Attempts that Spark makes at a task before it gives up; see floodmark.spark.context.
ATTEMPTS = 4


@dataclass(frozen=True)
class Fault:
    """What happens to the first few attempts of every slice, and how the command may end."""

    said: str
    kind: str
    times: int
    allowed: tuple[int, ...]
    more: tuple[tuple[str, float], ...] = ()


FAULTS = (
    Fault("a worker killed before it reads", "killed at its start", 1, (0,)),
    Fault("a worker killed in mid-slice", "killed in mid-slice", 1, (0,), (("after", 0.2),)),
    Fault("a worker killed after it wrote", "killed at its end", 1, (0,)),
    Fault("a task fails three times, then works", "fails", ATTEMPTS - 1, (0,)),
    Fault("a task fails every time", "fails", 99, (4,)),
    Fault("a worker killed every time", "killed at its end", 99, (4,)),
    Fault("every attempt twice", "runs twice", 99, (0,)),
    Fault("an attempt that runs on after another counted", "runs on", 99, (0,)),
    Fault("a worker out of memory, once", "has no memory", 1, (0,), (("bytes", 1 << 20),)),
    Fault("a worker out of memory, every time", "has no memory", 99, (0, 4), (("bytes", 1 << 20),)),
)
STATES = (("orders", "synced"), ("orders", "interrupted"), ("events", "synced"), ("codes", "synced"))


def sparks(lab: Lab) -> Iterator[Outcome]:
    """Every fault in every state, on the folder and on S3, in random order."""
    stacks = ("folder",) if lab.quick else ("folder", "s3")
    chosen = [(s, state, fault) for s in stacks for state in STATES for fault in (*FAULTS, None)]
    for turn in range(1 if lab.quick else 6):
        lab.dice("spark", turn).shuffle(chosen)
        for stack, (family, kept), fault in chosen:
            own = f"spark:{stack}/{family}-{kept}/{fault.said if fault else 'driver killed'}/{turn}"
            if not lab.wanted(own):
                continue
            if fault is None:
                yield _driver(lab, stack, family, kept, own)
            else:
                yield _experiment(lab, stack, family, kept, fault, own)


def _experiment(lab: Lab, stack: str, family: str, kept: str, fault: Fault, own: str) -> Outcome:
    began, bench = time.monotonic(), lab.bench(stack)
    source = lab.prepared(bench).lay(family, kept)
    counted = lab.services.scratch / f"attempts-{lab.dice(own).getrandbits(48):x}"
    counted.unlink(missing_ok=True)
    task: dict[str, Any] = {
        "kind": fault.kind,
        "times": fault.times,
        "file": str(counted),
        **dict(fault.more),
    }
    outcome = Outcome("spark", f"sync, {family} {kept} [{stack}]", fault.said, "a task", own)
    ended = note(outcome, bench.run("sync", "-t", source.name, plan={"task": task}), fault.allowed)
    outcome.code, outcome.hit = ended.code, counted.exists()
    watermark_known(bench, source, outcome)
    settle(bench, source, outcome)
    return timed(outcome, began)


def _driver(lab: Lab, stack: str, family: str, kept: str, own: str) -> Outcome:
    """The driver dies when a task is about to write; the task survives and writes."""
    began, bench = time.monotonic(), lab.bench(stack)
    source = lab.prepared(bench).lay(family, kept)
    outcome = Outcome(
        "spark", f"sync, {family} {kept} [{stack}]", "driver killed, its tasks go on", "data file", own
    )
    plan = {"label": "data file", "when": "driver before"}
    ended = note(outcome, bench.run("sync", "-t", source.name, plan=plan), (-9,))
    outcome.code = ended.code
    watermark_known(bench, source, outcome)
    settle(bench, source, outcome)
    return timed(outcome, began)
