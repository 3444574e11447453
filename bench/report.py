"""The figures as people and programs read them: a table of medians and ratios, stored with the machine's facts."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scenes import WIDTH, Scene
from stage import HERE, Figure

OURS = "floodmark, warm Spark"
RESULTS = HERE / "results"


def one_line(figure: Figure) -> str:
    million = figure.rows / 1e6
    return (
        f"{figure.name:<24}{figure.wall:8.2f} s whole{figure.seconds:8.2f} s steady{figure.rate:10,.0f} rows/s"
        f"{figure.cpu / million:7.2f} CPU-s/M{(figure.steady_cpu or 0) / million:7.2f} steady"
        f"{figure.servers / million:7.2f} servers{figure.peak >> 20:6} MB"
    )


def table(figures: Sequence[Figure]) -> str:
    """Medians, and how Floodmark's steady rate compares with each."""
    head = (
        f"{'':24}{'cold s':>9}{'rows/s':>10}{'steady s':>10}{'rows/s':>10}"
        f"{'CPU-s/M':>9}{'steady':>8}{'servers':>9}"
        f"{'peak MB':>9}{'MB out':>8}{'ours is':>9}"
    )
    medians = {name: _median([f for f in figures if f.name == name]) for name in {f.name: 0 for f in figures}}
    ours = medians.get(OURS)
    lines = [head]
    for name, one in medians.items():
        million = one["rows"] / 1e6
        ratio = f"{one['seconds'] / ours['seconds']:7.2f} x" if ours and name != OURS else ""
        cold = "" if name == OURS else f"{one['wall']:9.2f}{one['rows'] / one['wall']:10,.0f}"
        steady = "" if name == "floodmark" else f"{one['seconds']:10.2f}{one['rows'] / one['seconds']:10,.0f}"
        spent = f"{one['steady_cpu'] / million:8.2f}" if one["steady_cpu"] else ""
        lines.append(
            f"{name:24}{cold:19}{steady:20}{one['cpu'] / million:9.2f}{spent:8}{one['servers'] / million:9.2f}"
            f"{one['peak'] / 1e6:9.0f}{one['bytes'] / 1e6:8.0f}{ratio if name != 'floodmark' else '':>9}"
        )
    return "\n".join(lines)


def _median(figures: Sequence[Figure]) -> dict[str, Any]:
    keys = ("rows", "seconds", "wall", "bytes", "cpu", "servers", "peak")
    found = {key: statistics.median([getattr(f, key) for f in figures]) for key in keys}
    spent = [f.steady_cpu for f in figures if f.steady_cpu is not None]
    return {**found, "steady_cpu": statistics.median(spent) if spent else None}


def store(rows: int, source: str, figures: Sequence[Figure], scenes: Sequence[Scene]) -> Path:
    """The run's figures, every one of them, and what they were measured on."""
    RESULTS.mkdir(exist_ok=True)
    moment = datetime.now(UTC)
    file = RESULTS / f"{moment:%Y%m%d_%H%M}_{rows}.json"
    document = {
        "at": f"{moment:%Y-%m-%dT%H:%M:%SZ}", "rows": rows, "source": source, "machine": machine(),
        "figures": [asdict(f) for f in figures], "scenes": [asdict(s) for s in scenes],
    }  # fmt: skip
    file.write_text(json.dumps(document, indent=1) + "\n")
    text = f"{rows:,} rows from {source}, {machine()}\n\n{table(figures)}\n\n"
    text += "\n".join(f"{s.name:<{WIDTH}}{s.text}" for s in scenes)
    file.with_suffix(".txt").write_text(text.rstrip() + "\n")
    return file


def machine() -> str:
    """The facts that figures depend on, in a line."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True
    ).stdout.strip()
    return f"{cpu}, {os.cpu_count()} cores, {memory} GiB, Python {platform.python_version()}, commit {commit}"
