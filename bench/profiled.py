"""`make bench PROFILE=1`: where each CPU-second goes, by process and by what the process is doing.

Every scene runs twice: once for the processes' own accounts, once under py-spy, whose samples split the accounts of
the driver and of the workers. DuckDB's own threads run no Python, so py-spy does not see them: their seconds are in the driver's account only.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import report
from stage import HERE, Figure, Stage

# What a worker does, by our function that is deepest in a stack. Anything else goes by its module.
PARTS = {
    "_flush": "Parquet", "finish": "Parquet", "follow": "following the packets", "_block": "columns out of packets",
    "_columns": "columns out of packets", "_batch": "casts", "_join": "joining blocks", "_receive_into": "receiving",
    "extremes": "first and last rows", "close": "hashing and putting files",
}  # fmt: skip
MODULE = re.compile(r"floodmark/([\w/]+)\.pyx?:")
# The bodies of tasks: a stack with one of them is a worker's.
BODIES = ("floodmark/extract/", "floodmark/verify/task")
# Imports, Spark's start and what waits for it: a process of one run does this once, whatever the rows.
STARTING = ("<frozen importlib", "spark/start", "_prepare (floodmark/spark/worker_daemon")
MOST = 12


def profile(stage: Stage) -> str:
    """The profile of extraction, of extraction with the load, and of verify, as text."""
    told = [f"{stage.rows:,} rows from {stage.db.version}, {report.machine()}"]
    for name, what in (("extract", "extract"), ("extract and load into DuckDB", "both")):
        config, prefix = stage.place()
        told += _accounts(name, stage.run(name, stage.steady(config, what), prefix))
        config, _ = stage.place()
        told += _samples(config, stage.steady(config, what))
    synced = stage.filled()
    verify = stage.steady(synced, "verify")
    told += _accounts("verify", stage.run("verify", verify))
    told += _samples(synced, verify)
    return "\n".join(told) + "\n"


def store(texts: Iterable[str], rows: int) -> Path:
    """The profiles, beside the results."""
    report.RESULTS.mkdir(exist_ok=True)
    file = report.RESULTS / f"{datetime.now(UTC):%Y%m%d_%H%M}_{rows}_profile.txt"
    file.write_text("\n".join(texts))
    return file


def _accounts(name: str, figure: Figure) -> list[str]:
    million = figure.rows / 1e6
    spent = sorted(figure.cpus.items(), key=lambda each: -each[1])
    return [
        f"\n== {name}: {figure.seconds:.1f} s, {figure.rate:,.0f} rows/s; CPU-seconds per million rows:",
        *(f"  {seconds / million:6.2f}  {role}" for role, seconds in spent),
        f"  {sum(figure.cpus.values()) / million:6.2f}  in all",
    ]


def _samples(config: Path, command: list[str]) -> list[str]:
    out = config.with_name("stacks.txt")
    spy = [str(HERE / ".venv" / "bin" / "py-spy"), "record", "--subprocesses", "--native", "--rate", "200"]
    # A process that is killed while py-spy follows it never ends, and Spark's workers are killed at its end. So
    # py-spy is stopped as soon as the work is done, which steady.py says by printing its figures.
    process = subprocess.Popen(
        [*spy, "--format", "raw", "--output", str(out), "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:  # py-spy's own lines come before
        if line.startswith("{"):
            break
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate()
    if not out.exists():  # py-spy also fails over a process that ends meanwhile, but still writes its samples
        sys.exit(f"bench: py-spy: {(complaint.strip() or 'no samples').splitlines()[-1]}")
    told = []
    for title, parts, own in _split(out.read_text().splitlines()):
        total = sum(parts.values())
        for what, counts in ((title, parts), (f"{title}, by function", own)):
            told.append(f"\n  {what}:")
            told += [f"  {count / total:6.1%}  {name[:110]}" for name, count in counts.most_common(MOST)]
    return told


def _split(lines: Iterable[str]) -> list[tuple[str, Counter[str], Counter[str]]]:
    """Samples of workers in their tasks, and of the driver at work, each by part and by function."""
    found = {name: (Counter[str](), Counter[str]()) for name in ("workers in tasks", "driver")}
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        modules = [match.group(1) for frame in frames if (match := MODULE.search(frame))]
        if not modules or any(name in stack for name in STARTING):
            continue
        worker = any(body in frame for frame in frames for body in BODIES)
        parts, own = found["workers in tasks" if worker else "driver"]
        parts[_part(frames, modules) if worker else modules[-1]] += int(count)
        own[frames[-1]] += int(count)
    return [(name, *counts) for name, counts in found.items() if counts[0]]


def _part(frames: list[str], modules: list[str]) -> str:
    names = (frame.partition(" ")[0] for frame in reversed(frames))
    return next((PARTS[name] for name in names if name in PARTS), modules[-1])
