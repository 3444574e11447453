"""Spark's faults on a standalone cluster of three workers: an executor dies, a machine is lost, the driver is killed,
a slow attempt at a slice is overtaken by a speculative one, executors come and go (dynamic allocation).

Each experiment is a sync whose executors are separate processes and get the product from the shipped archive.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.spark_cluster import SparkCluster

from .bench import Bench, bound
from .lab import Lab, Outcome, note, settle, timed, watermark_known
from .prepared import orders
from .services import ROOT
from .spawn import INJECT
from .truth import Source

ROWS, SLICE = 400, 50
TURNS = 15
WORKERS = 3
# A second attempt at a slice that takes longer than a second, on another machine.
SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.task.duration.threshold": "1s",
}
# Executors as they are needed, taken back after a second without work.
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": str(WORKERS),
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
}


@dataclass(frozen=True)
class Loss:
    """What is lost, when, and how the command may end."""

    said: str
    plan: dict[str, Any]
    allowed: tuple[int, ...]
    conf: dict[str, str] = field(default_factory=dict)


LOSSES = (
    Loss("an executor lost in mid-slice",
         {"task": {"kind": "executor lost in mid-slice", "times": 1, "once": True, "after": 0.2}}, (0,)),
    Loss("an executor lost after it wrote",
         {"task": {"kind": "executor lost at its end", "times": 1, "once": True}}, (0,)),
    Loss("a machine lost with its executor", {"task": {"kind": "machine lost", "times": 1, "once": True}}, (0,)),
    Loss("driver killed, its executors go on", {"label": "data file", "when": "driver before"}, (-9,)),
    Loss("a slow attempt overtaken by a speculative one",
         {"task": {"kind": "slow", "times": 1, "once": True}}, (0,), SPECULATIVE),
    Loss("an executor lost in mid-slice, with speculation",
         {"task": {"kind": "executor lost in mid-slice", "times": 1, "once": True, "after": 2.0}}, (0,), SPECULATIVE),
    Loss("executors come and go, and one is lost",
         {"task": {"kind": "executor lost in mid-slice", "times": 1, "once": True, "after": 0.2}}, (0,), DYNAMIC),
    Loss("every machine lost", {"task": {"kind": "machine lost", "times": 99}, "hurry": True}, (4,)),
)  # fmt: skip


def cluster(lab: Lab) -> Iterator[Outcome]:
    """Every loss in turn; none in the quick part."""
    for turn in range(0 if lab.quick and lab.only is None else TURNS):
        for loss in LOSSES:
            own = f"cluster:s3/{loss.said}/{turn}"
            if lab.wanted(own):
                yield _experiment(lab, loss, own)


def _experiment(lab: Lab, loss: Loss, own: str) -> Outcome:
    running = _cluster(lab)
    began, bench = time.monotonic(), _bench(lab)
    source = Source(bench.services.database(), "orders")
    server = bench.services.server
    server.execute(*orders(ROWS), database=source.database)
    conf = {"spark.submit.pyFiles": str(_shipped(lab)), "spark.driver.host": "127.0.0.1",
            "spark.executor.memory": "512m", **loss.conf}  # fmt: skip
    bench.clear(
        source.database,
        defaults={"settle_seconds": 0.1, "slice_rows": SLICE},
        spark={"master": running.master.url, "conf": conf},
    )
    counted = lab.services.scratch / f"attempts-{lab.dice(own).getrandbits(48):x}"
    counted.unlink(missing_ok=True)
    plan = dict(loss.plan)
    if "task" in plan:
        plan["task"] = {**plan["task"], "file": str(counted)}
    outcome = Outcome("cluster", "first sync [s3]", loss.said, "a task on one of three workers", own)
    started = bench.start("sync", "-t", source.name, plan=plan, own_jvm=True)
    ended = note(outcome, bench.wait(started, 4 * bound()), loss.allowed)
    outcome.code = ended.code
    outcome.hit = _struck(counted, plan["task"]) if "task" in plan else ended.code == -9
    for worker in running.workers:  # a lost machine comes back
        if not worker.running:
            worker.start()
    watermark_known(bench, source, outcome)
    # The rest needs no cluster.
    bench.config["spark"] = {"master": "local[2]"}
    bench.write()
    settle(bench, source, outcome)
    server.execute(f"DROP DATABASE {source.database}")
    return timed(outcome, began)


def _struck(counted: Path, task: dict[str, Any]) -> bool:
    """Whether a fault struck: where the first attempt alone is struck, there was at least one more than slices."""
    attempts = len(counted.read_text().splitlines()) if counted.exists() else 0
    return attempts > (ROWS // SLICE if task.get("once") else 0)


def _cluster(lab: Lab) -> SparkCluster:
    kept = lab.services.kept
    if ("cluster", "") not in kept:
        made = SparkCluster(workers=WORKERS, cores=1, memory="512m", apart=True)
        lab.services.keep_open(made)
        kept["cluster", ""] = made
    found: SparkCluster = kept["cluster", ""]
    return found


def _bench(lab: Lab) -> Bench:
    found: Bench = lab.services.kept.setdefault(("bench", "cluster"), Bench(lab.services, "s3", "-cluster"))
    found.broken = lab.broken
    return found


def _shipped(lab: Lab) -> Path:
    """The archive for the cluster: the product, and the laboratory's part of every task."""
    place = lab.services.scratch / "floodmark.zip"
    if not place.exists():
        with zipfile.ZipFile(place, "w") as archive:
            for package in (ROOT / "src" / "floodmark", INJECT / "labinject"):
                for file in package.rglob("*.py"):
                    archive.write(file, file.relative_to(package.parent))
    return place
