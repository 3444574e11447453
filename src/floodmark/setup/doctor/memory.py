"""Memory: what Spark on this machine, or an executor elsewhere, has, compared with the measured needs of tasks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from floodmark.model.text import counted, size
from floodmark.setup.doctor.check import Check, Section

# Of one Python worker over any number of rows; rows of a megabyte take more.
WORKER = 200 << 20
DUCKDB = 500 << 20  # what a load of ordinary rows takes; its limit is higher, and it spills
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def amount(text: str) -> int | None:
    """Spark's `512m` or `2g` in bytes."""
    found = re.fullmatch(r"\s*(\d+)\s*([bkmgt]?)b?\s*", text.lower())
    return int(found[1]) * _UNITS[found[2]] if found else None


def available() -> int | None:
    """Free memory of this machine, or of the container that this process runs in."""
    free: list[int] = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free.append(int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) << 10)
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(free, default=None)


def cores(master: str) -> int:
    """How many tasks a local master runs at once."""
    found = re.match(r"local\[(\d+|\*)", master)
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(found[1]) if found and found[1] != "*" else here if found else 1


def check_memory(section: Section, free: int | None, tasks: int, driver: str, duckdb: bool) -> Check:
    """This machine's free memory against what a sync needs here."""
    need = (amount(driver) or 512 << 20) + tasks * WORKER + (DUCKDB if duckdb else 0)
    what = f"about {size(need)} for {counted(tasks, 'parallel task')}"
    if free is None:
        return section.ok("memory", f"{what}; free memory unknown")
    if free < need:
        return section.warning(
            "memory",
            f"{what}, but only {size(free)} is free",
            "use fewer tasks (spark: {master: local[1]}), or free some memory",
        )
    return section.ok("memory", f"{what}; {size(free)} free")


def check_executors(section: Section, conf: Mapping[str, str]) -> Iterator[Check]:
    """An executor's memory for Python workers, which run outside its JVM."""
    heap = amount(conf.get("spark.executor.memory", "1g")) or 1 << 30
    factor = float(conf.get("spark.executor.memoryOverheadFactor", "0.1"))
    beside = amount(conf.get("spark.executor.memoryOverhead", "")) or max(384 << 20, int(heap * factor))
    beside += amount(conf.get("spark.executor.pyspark.memory", "")) or 0
    tasks = int(conf.get("spark.executor.cores", "1") or 1)
    need = tasks * WORKER
    what = f"about {size(need)} outside the JVM for {counted(tasks, 'task')} per executor"
    enforced = conf["spark.master"].startswith(("yarn", "k8s"))
    if enforced and beside < need:
        yield section.warning(
            "memory",
            f"{what}, but an executor has only {size(beside)}: it would be killed",
            f"set spark.executor.memoryOverhead: {need >> 20}m in spark.conf",
        )
    else:
        yield section.ok("memory", f"{what}; an executor has {size(beside)}")
