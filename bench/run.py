"""`make bench`: how fast MySQL reaches S3 as Parquet, on private servers of this machine.

ROWS (default 2,000,000) rows of the settlement table are extracted twice: by the whole command from a cold start, and
by a sync on a Spark that runs already. Rates include the servers' work, which shares the machine; CPU seconds are the
contender's own, its children included. RUNS repeats all of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import Usage, Watch, cpu_seconds

from floodmark.testing import settlement
from floodmark.testing.services import MariaDB, SeaweedFS

ROWS = int(os.environ.get("ROWS", "2000000").replace("_", "").replace(",", ""))
RUNS = int(os.environ.get("RUNS", "1"))
MASTER = os.environ.get("MASTER", "local[*]")
HERE = Path(__file__).parent


def main() -> None:
    with MariaDB(buffer_pool="2G") as mariadb, SeaweedFS() as s3, tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        settlement.create(mariadb, ROWS)
        print(f"{ROWS:,} rows in MariaDB after {time.monotonic() - began:.0f} s; {os.cpu_count()} cores\n")
        print(
            f"{'':14}{'seconds':>9}{'rows/s':>10}{'MB':>6}   CPU-s per million rows            peak memory, MB"
        )
        print(f"{'':14}{'':25}   ours  (driver, JVM, workers) servers  driver, JVM, worker")
        for number in range(RUNS):
            for name in ("cold", "steady"):
                config = write_config(Path(folder) / f"{name}{number}", mariadb, s3, f"{name}{number}")
                servers = cpu_seconds(mariadb.pid) + cpu_seconds(s3.pid)
                result, usage = run(name, config)
                servers = cpu_seconds(mariadb.pid) + cpu_seconds(s3.pid) - servers
                print(line(name, result, usage, servers), flush=True)


def write_config(folder: Path, mariadb: MariaDB, s3: SeaweedFS, prefix: str) -> Path:
    """A configuration with a store prefix of its own. JSON is YAML."""
    folder.mkdir()
    file = folder / "floodmark.yaml"
    config = {
        "source": {"url": mariadb.url(settlement.DATABASE)},
        "store": s3.store(prefix),
        "spark": {"master": MASTER},
        "defaults": {"start": None, "settle_seconds": 0},
    }
    file.write_text(json.dumps(config))
    return file


def run(name: str, config: Path) -> tuple[dict[str, Any], Usage]:
    """One contender: its result, and what it used."""
    command = [sys.executable, "-m", "floodmark", "--config", str(config), "--json"]
    command += ["sync", "-t", settlement.NAME, "--backup-only"]
    if name == "steady":
        command = [sys.executable, str(HERE / "steady.py"), str(config), settlement.NAME]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with Watch(process) as usage:
        output, _ = process.communicate()
    seconds = time.monotonic() - began
    if process.returncode:
        sys.exit(f"{name}: exit code {process.returncode}\n{output}")
    said = json.loads(output)
    if name == "cold":
        (table,) = said["tables"]
        said = {"rows": table["rows_extracted"], "bytes": table["bytes_written"], "seconds": seconds}
    if said["rows"] != ROWS:
        sys.exit(f"{name}: {said['rows']:,} rows instead of {ROWS:,}")
    return said, usage


def line(name: str, said: dict[str, Any], usage: Usage, servers: float) -> str:
    million = said["rows"] / 1e6
    roles = ("driver", "jvm", "worker")
    parts = ", ".join(f"{usage.cpu_of(role) / million:.2f}" for role in roles)
    peaks = ", ".join(f"{usage.peak(role) >> 20}" for role in roles)
    rate = said["rows"] / said["seconds"]
    return (
        f"{name:14}{said['seconds']:9.2f}{rate:10,.0f}{said['bytes'] / 1e6:6.0f}   "
        f"{usage.cpu / million:.2f}  ({parts})       {servers / million:.2f}     {peaks}"
    )


if __name__ == "__main__":
    main()
