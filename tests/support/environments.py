"""Environments of their own for orchestrators, whose packages are too many, and too picky, for requirements.lock.

Made by the first test that needs one, in ~/.cache/floodmark/environments, and kept for as long as the versions below and
Python stay the same. What is installed is the orchestrator alone: Floodmark's source is on the path, its command is that
of the tests' environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = Path(sys.executable).with_name("floodmark")
REQUIREMENTS: Mapping[str, Sequence[str]] = {
    "airflow": ("apache-airflow==3.3.2",),
    "dagster": ("dagster==1.13.28",),
    # dbt-core 1.12 needs a parser that PyPI does not have as a wheel.
    "dbt": ("dbt-core==1.11.16", "dbt-duckdb==1.11.1", "duckdb==2.0.0"),
}


def environment(name: str) -> Path:
    """The Python of an environment, made if it is missing."""
    wanted = REQUIREMENTS[name]
    digest = hashlib.sha256(repr((*wanted, sys.version_info[:2])).encode()).hexdigest()[:8]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "floodmark" / "environments" / f"{name}-{digest}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            subprocess.run([str(folder / "bin" / "pip"), "install", "-qq", *wanted], check=True)
            (folder / "made").touch()
    return folder / "bin" / "python"


def run(
    name: str, *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 500
) -> subprocess.CompletedProcess[str]:
    """Python of an environment with these arguments, and Floodmark's source on its path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FLOODMARK_", "PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(environment(name)), *arguments],
        cwd=cwd,
        env={**kept, "PYTHONPATH": str(SOURCE), **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
