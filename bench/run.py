"""`make bench`: Floodmark beside its peers and the machine's limits, in one run, on private servers.

ROWS (default 2,000,000) rows of the settlement table. Every contender runs RUNS times (default 3), interleaved, so that what
the machine does meanwhile hits all alike; the table shows medians, the results keep every run. ONLY=floodmark,dlt chooses
contenders (ONLY=none: none), SOURCE=mariadb another source than MySQL, SCENES=small,idle some of the smaller scenes (SCENES=0: none).
PROFILE=1 shows where the CPU goes instead, on every server that is there or on SOURCE.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import duckdb
import profiled
import report
import scenes
from stage import HERE, Figure, Stage

from floodmark.setup.services import settlement
from floodmark.setup.services.databases import SERVERS, missing
from floodmark.setup.services.databases import chosen as server_kind
from floodmark.setup.services.s3 import SeaweedFS

ROWS = int(os.environ.get("ROWS", "2000000").replace("_", "").replace(",", ""))
RUNS = int(os.environ.get("RUNS", "3"))
SOURCE = os.environ.get("SOURCE") or None
_SCENES = os.environ.get("SCENES", "1")
SCENES = {"0": [], "1": list(scenes.SCENES)}.get(_SCENES) or [
    n for n in _SCENES.split(",") if n not in ("", "0")
]
PEERS = HERE / ".venv" / "bin" / "python"
PLACE = HERE / "contenders"
T = TypeVar("T")


def floodmark_cold(stage: Stage) -> Figure:
    config, prefix = stage.place()
    command = stage.floodmark(config, "sync", "-t", settlement.NAME, "--backup-only")
    return stage.run("floodmark", command, prefix)


def floodmark_steady(stage: Stage) -> Figure:
    config, prefix = stage.place()
    return stage.run("floodmark, warm Spark", stage.steady(config, "extract"), prefix)


def floodmark_both(stage: Stage) -> Figure:
    """End to end, beside the extraction that it is measured against."""
    config, prefix = stage.place()
    figure = stage.run("floodmark, to DuckDB", stage.steady(config, "both"), prefix)
    stage.synced = stage.synced or config
    return figure


def dlt(stage: Stage) -> Figure:
    config, prefix = stage.place()
    task = stage.task(config, prefix)
    return stage.run("dlt, ConnectorX", [str(PEERS), str(PLACE / "dlt_connectorx.py"), str(task)], prefix)


def chdb(stage: Stage) -> Figure:
    return _to_disk(stage, "chDB (to disk)", [str(PEERS), str(PLACE / "chdb_engine.py")])


def spark_jdbc(stage: Stage) -> Figure:
    return _to_disk(stage, "Spark JDBC (to disk)", [sys.executable, str(PLACE / "spark_jdbc.py")])


def _to_disk(stage: Stage, name: str, command: list[str]) -> Figure:
    """A contender that writes Parquet to a folder, which is measured and removed."""
    config, prefix = stage.place()
    figure = stage.run(name, [*command, str(stage.task(config, prefix))])
    folder = config.parent / "parquet"
    size = sum(f.stat().st_size for f in folder.glob("*.parquet"))
    shutil.rmtree(folder)
    return Figure(**{**vars(figure), "bytes": size})


def drain(stage: Stage) -> Figure:
    config, prefix = stage.place()
    task = stage.task(config, prefix)
    return stage.run("limit: drain", [sys.executable, str(PLACE / "limits.py"), "drain", str(task)])


def parquet(stage: Stage) -> Figure:
    """The files of Floodmark's last run, written again from memory."""
    last = stage.folder / "run1" / "floodmark.yaml"
    task = stage.task(last, "run1")
    return stage.run("limit: Parquet", [sys.executable, str(PLACE / "limits.py"), "parquet", str(task)])


def verify_clean(stage: Stage) -> Figure:
    stage.synced = stage.synced or stage.filled()
    return stage.run("verify, warm Spark", stage.steady(stage.synced, "verify"))


def verify_on_server(stage: Stage) -> Figure:
    """The same rows, hashed by MySQL and DuckDB themselves."""
    stage.synced = stage.synced or stage.filled()
    config = json.loads(stage.synced.read_text())
    config["source"]["hash_on_server"] = True
    beside = stage.synced.with_name("on_server.yaml")
    beside.write_text(json.dumps(config))
    return stage.run("verify, hash_on_server", stage.steady(beside, "verify"))


def verify_scattered(stage: Stage) -> Figure:
    """One row in a hundred was deleted from the warehouse, evenly."""
    if stage.scattered is None:
        stage.scattered = stage.filled()
        with duckdb.connect(str(stage.scattered.with_name("warehouse.duckdb"))) as con:
            target = settlement.NAME.rpartition(".")[2]
            con.execute(f"DELETE FROM {target} WHERE id % 100 = 0")
    return stage.run("verify, 1 % missing", stage.steady(stage.scattered, "verify"))


CONTENDERS: dict[str, Callable[[Stage], Figure]] = {
    "floodmark": floodmark_cold, "steady": floodmark_steady, "both": floodmark_both, "dlt": dlt, "chdb": chdb,
    "jdbc": spark_jdbc, "drain": drain, "parquet": parquet, "verify": verify_clean, "on_server": verify_on_server,
    "scattered": verify_scattered,
}  # fmt: skip


def main() -> None:
    chosen = [n for n in os.environ.get("ONLY", "").split(",") if n] or list(CONTENDERS)
    chosen = [] if chosen == ["none"] else chosen
    if unknown := set(chosen) - set(CONTENDERS):
        sys.exit(f"bench: no contender {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}")
    if unknown := set(SCENES) - set(scenes.SCENES):
        sys.exit(f"bench: no scene {', '.join(sorted(unknown))}; there are {', '.join(scenes.SCENES)}")
    if SOURCE is not None and SOURCE not in SERVERS:
        sys.exit(f"bench: no source {SOURCE}; there are {', '.join(SERVERS)}")
    if os.environ.get("PROFILE") or {"dlt", "chdb", "jdbc"} & set(chosen):
        _prepare()
    if os.environ.get("PROFILE"):
        sources = [SOURCE] if SOURCE else [name for name in SERVERS if name == "mariadb" or not missing(name)]
        texts = [_on(source, profiled.profile) for source in sources]
        print("\n".join(texts) + f"\nstored as {profiled.store(texts, ROWS)}")
    else:
        _on(SOURCE, lambda stage: _compare(stage, chosen))


def _on(source: str | None, work: Callable[[Stage], T]) -> T:
    """What `work` makes of a private server with the table in it."""
    with (
        server_kind(source)(buffer_pool="4G") as db,
        SeaweedFS() as s3,
        tempfile.TemporaryDirectory(prefix="floodmark-bench-") as folder,
    ):
        began = time.monotonic()
        settlement.create(db, ROWS)
        took = time.monotonic() - began
        print(f"{ROWS:,} rows in {db.version} after {took:.0f} s; {os.cpu_count()} cores", flush=True)
        stage = Stage(db, s3, Path(folder), ROWS)
        try:
            return work(stage)
        finally:
            if stage.standin is not None:
                stage.standin.stop()


def _compare(stage: Stage, chosen: list[str]) -> None:
    """Every contender, RUNS times, and the scenes."""
    figures: list[Figure] = []
    for number in range(RUNS):
        for name in chosen:
            figure = CONTENDERS[name](stage)
            print(f"  run {number + 1}  {report.one_line(figure)}", flush=True)
            figures.append(figure)
    if figures:
        print("\n" + report.table(figures), flush=True)
    seen = []
    for name in SCENES:
        for scene in scenes.SCENES[name](stage, RUNS):
            print(f"  {scene.name:<{scenes.WIDTH}}{scene.text}", flush=True)
            seen.append(scene)
    print(f"\nstored as {report.store(ROWS, stage.db.version, figures, seen)}")


def install_peers() -> None:
    """The peers' environment, in bench/.venv."""
    venv, wanted = HERE / ".venv", (HERE / "requirements.txt").read_text()
    stamp = venv / "stamp"
    if not stamp.exists() or stamp.read_text() != wanted:
        print("bench: installing the peers into bench/.venv (a minute or two)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        pip = [str(venv / "bin" / "pip"), "install", "-qq", "-r", str(HERE / "requirements.txt")]
        if subprocess.run(pip, check=False).returncode:
            sys.exit("bench: pip could not install bench/requirements.txt")
        stamp.write_text(wanted)


def _prepare() -> None:
    """The peers' environment, and MariaDB's JDBC driver beside it."""
    install_peers()
    venv = HERE / ".venv"
    if not list((venv / "java").glob("**/mariadb-java-client*.jar")):
        with tempfile.TemporaryDirectory() as folder:
            got = subprocess.run(
                ["apt-get", "download", "-qq", "libmariadb-java"],
                cwd=folder,
                check=False,
                stderr=subprocess.DEVNULL,
            )
            files = list(Path(folder).glob("*.deb"))
            if got.returncode or not files:
                sys.exit(
                    "bench: apt-get could not download libmariadb-java; leave it out with ONLY=floodmark,dlt,…"
                )
            subprocess.run(["dpkg-deb", "-x", str(files[0]), str(venv / "java")], check=True)


if __name__ == "__main__":
    main()
