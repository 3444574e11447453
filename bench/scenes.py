"""The smaller scenes: loads, end to end, an increment, nothing to do, many small tables, verify."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stage import HERE, Stage

from floodmark.testing import settlement

TABLES = 50
SMALL = "small"


@dataclass(frozen=True)
class Scene:
    """One measurement, and what it is read against."""

    name: str
    seconds: float
    rows: int
    cpu: float
    text: str


def _scene(stage: Stage, name: str, command: list[str], rows: int) -> Scene:
    figure = stage.run(name, command, rows=rows)
    speed = f"{figure.rate:>10,.0f} rows/s" if rows > 1000 else ""
    text = f"{figure.seconds:8.2f} s {speed:>18}   CPU {figure.cpu:6.1f} s"
    return Scene(name, figure.seconds, rows, figure.cpu, text)


def all_scenes(stage: Stage) -> Iterator[Scene]:
    """Every scene, in turn; later ones build on earlier ones' tables."""
    yield from _loads(stage)
    config, _ = stage.place()
    steady = [sys.executable, str(HERE / "steady.py"), str(config), settlement.NAME, "both"]
    yield _scene(stage, "MySQL to S3 to DuckDB, warm Spark", steady, stage.rows)
    sync = stage.floodmark(config, "sync", "-t", settlement.NAME)
    settlement.change(stage.mariadb, 50, 50)
    yield _scene(stage, "100 changed rows, whole command", sync, 100)
    yield _scene(stage, "nothing to do, whole command", sync, 0)
    verify = stage.floodmark(config, "verify", "-t", settlement.NAME)
    yield _scene(stage, "verify, whole command", verify, stage.rows + 50)
    yield from _small(stage)


def _loads(stage: Stage) -> Iterator[Scene]:
    for name, warehouse in (("DuckDB", None), ("the Redshift stand-in", stage.redshift())):
        config, _ = stage.place(warehouse)
        stage.run("", stage.floodmark(config, "sync", "-t", settlement.NAME, "--backup-only"))
        load = stage.floodmark(config, "sync", "-t", settlement.NAME, "--redshift-only")
        yield _scene(stage, f"S3 to {name}, whole command", load, stage.rows)


def _small(stage: Stage) -> Iterator[Scene]:
    stage.mariadb.execute(f"CREATE DATABASE {SMALL}")
    for n in range(TABLES):
        stage.mariadb.execute(
            f"CREATE TABLE t{n} (id INT PRIMARY KEY, v VARCHAR(20), update_at DATETIME NOT NULL, KEY (update_at))",
            f"INSERT INTO t{n} SELECT seq, CONCAT('v', seq), '2025-03-01' + INTERVAL seq SECOND FROM seq_1_to_1000",
            database=SMALL,
        )
    for name, strategy in (("side by side", "auto"), ("one after the other", "sequential")):
        config, _ = stage.place()
        document = json.loads(Path(config).read_text())
        document["source"]["url"] = stage.mariadb.url(SMALL)
        config.write_text(json.dumps(document))
        command = stage.floodmark(config, "sync", "--all", "--strategy", strategy)
        yield _scene(stage, f"{TABLES} tables of 1,000 rows, {name}", command, TABLES * 1000)
