"""How extraction scales: the same rows over 1, 2 and 4 executors of one core, and CPU-seconds of driver and executors.

python bench/scaling.py. ROWS (default 1,000,000) rows of the settlement table, PASSES (default 3) passes that are measured. A standalone
cluster, one context for each number of executors. The first pass over a kind of slices warms everything up, and lets the proxy of
replay.py hear the source's answers; measured passes read them from there, so the source's work is not in them. Each pass is a sync of its
own into a store prefix of its own. Slices of two sizes part what the driver spends on a slice from what it spends on a sync.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import cpu_below, cpu_seconds
from stage import HERE, Stage

from floodmark.config.load import load
from floodmark.model import events
from floodmark.model.run import SyncOptions, new_run
from floodmark.setup.services import settlement
from floodmark.setup.services.databases import chosen as server_kind
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.spark.context import Spark
from floodmark.sync.run import sync

sys.path.insert(0, str(HERE.parent))
from tests.support.spark_cluster import SparkCluster

ROWS = int(os.environ.get("ROWS", "1000000").replace("_", ""))
PASSES = int(os.environ.get("PASSES", "3"))
EXECUTORS = (1, 2, 4)
SLICES = (20, 80)
SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.executor.cores": "1", "spark.executor.memory": "512m"}


def drive(task: dict[str, Any]) -> None:
    """The driver: every configuration in turn on one context; prints a line of figures for each."""
    first = load(Path(task["configs"][0]))
    spark = Spark(first.spark.master, first.spark.conf, name="floodmark bench")
    spark.start()
    for config in map(Path, task["configs"]):
        before = _accounts(task)
        began = time.monotonic()
        options = SyncOptions(backup_only=True)
        report = sync(load(config), [settlement.NAME], False, options, events.ignore, new_run(), spark=spark)
        seconds = time.monotonic() - began
        time.sleep(1)  # what ends with the last slice
        used = {name: after - before[name] for name, after in _accounts(task).items()}
        (done,) = report.as_json()["tables"]
        if done["error"] or done["rows_extracted"] != task["rows"]:
            sys.exit(f"{done['rows_extracted']} rows, {done['error']}")
        print(json.dumps({"seconds": seconds, "files": done["files_written"], **used}), flush=True)
    spark.stop()


def _accounts(task: dict[str, Any]) -> dict[str, float]:
    """CPU seconds so far: this process, its JVM, all executors with their Python workers, and the servers."""
    own = cpu_seconds(os.getpid())
    return {
        "python": own,
        "jvm": cpu_below(os.getpid()),
        "executors": sum(cpu_below(pid) for pid in task["workers"]),
        **{name: cpu_seconds(pid) for name, pid in task["servers"].items()},
    }


def main() -> None:
    with (
        server_kind(os.environ.get("SOURCE") or None)(buffer_pool="1G") as db,
        SeaweedFS() as s3,
        SparkCluster(workers=max(EXECUTORS), cores=1, memory="512m") as cluster,
        tempfile.TemporaryDirectory(prefix="floodmark-bench-") as folder,
        subprocess.Popen(
            [sys.executable, str(HERE / "replay.py"), db.host, str(db.port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as proxy,
    ):  # fmt: skip
        assert proxy.stdin is not None and proxy.stdout is not None
        settlement.create(db, ROWS)
        print(f"{ROWS:,} rows in {db.version}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}")
        stage = Stage(db, s3, Path(folder), ROWS)
        servers = {"source": db.pid, "s3": s3.pid, "proxy": proxy.pid}
        port = int(proxy.stdout.readline())
        for executors in EXECUTORS:
            configs = [_config(stage, cluster, port, executors, n) for n in SLICES for _ in range(1 + PASSES)]
            task = {
                "configs": configs,
                "rows": ROWS,
                "workers": [w.pid for w in cluster.workers],
                "servers": servers,
            }
            command = [sys.executable, __file__, json.dumps(task)]
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
            passes = [json.loads(line) for line in told]
            for i, slices in enumerate(SLICES):
                first, *measured = passes[i * (1 + PASSES) : (i + 1) * (1 + PASSES)]
                print(
                    f"{executors} executors, {slices} slices, {len(measured)} passes (the one before: {_text(first)})"
                )
                for one in measured:
                    print(f"    {_text(one)}")
                print(
                    f"  medians {_text({k: statistics.median(one[k] for one in measured) for k in first})}",
                    flush=True,
                )
        proxy.stdin.write("\n")
        proxy.stdin.flush()
        print(f"the proxy: {proxy.stdout.readline().strip()}")
        proxy.stdin.close()


def _config(stage: Stage, cluster: SparkCluster, port: int, executors: int, slices: int) -> str:
    file, _ = stage.place(slice_rows=ROWS // slices)
    config = json.loads(file.read_text())
    config["source"]["url"] = config["source"]["url"].replace(f":{stage.db.port}/", f":{port}/")
    conf = {**SETTINGS, "spark.cores.max": str(executors)}
    config["spark"] = {"master": cluster.master.url, "conf": conf}
    file.write_text(json.dumps(config))
    return str(file)


def _text(one: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in one.items())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        drive(json.loads(sys.argv[1]))
    else:
        main()
