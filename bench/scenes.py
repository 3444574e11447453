"""The smaller scenes: loads, end to end, an increment, nothing to do, many small tables, wide rows, verify, the binary log."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import followed
from stage import Stage

from floodmark.setup.services import settlement

TABLES = 50
MEASURED = 5  # of the commands for one table each; the rest are taken to be like them
SMALL = "small"
MANY, MANY_ROWS = "many", 10  # a database with this many rows in each of its tables
MANY_TABLES = int(os.environ.get("TABLES", "1000"))
WIDE, WIDE_ROWS, WIDE_BYTES = "wide", 2000, 1_000_000
AT_ONCE = 10  # wide rows in one INSERT
WIDTH = 66  # of a scene's name


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
    return Scene(name, figure.seconds, rows, figure.cpu, _text(figure.seconds, rows, figure.cpu))


def _text(seconds: float, rows: int, cpu: float) -> str:
    speed = f"{rows / seconds:>10,.0f} rows/s" if rows > 1000 else ""
    return f"{seconds:8.2f} s {speed:>18}   CPU {cpu:6.1f} s"


def _whole(stage: Stage, runs: int) -> Iterator[Scene]:
    """The whole pipeline, an increment, nothing to do, and a comparison."""
    config, _ = stage.place()
    yield _scene(stage, "MySQL to S3 to DuckDB, warm Spark", stage.steady(config, "both"), stage.rows)
    sync = stage.floodmark(config, "sync", "-t", settlement.NAME)
    settlement.change(stage.db, 50, 50)
    yield _scene(stage, "100 changed rows, whole command", sync, 100)
    yield _scene(stage, "nothing to do, whole command", sync, 0)
    verify = stage.floodmark(config, "verify", "-t", settlement.NAME)
    yield _scene(stage, "verify, whole command", verify, stage.rows + 50)


def _loads(stage: Stage, runs: int) -> Iterator[Scene]:
    for name, warehouse in (("DuckDB", None), ("the Redshift stand-in", stage.redshift())):
        config, _ = stage.place(warehouse)
        stage.run("", stage.floodmark(config, "sync", "-t", settlement.NAME, "--backup-only"))
        load = stage.floodmark(config, "sync", "-t", settlement.NAME, "--redshift-only")
        yield _scene(stage, f"S3 to {name}, whole command", load, stage.rows)


def _small(stage: Stage, runs: int) -> Iterator[Scene]:
    stage.db.execute(f"CREATE DATABASE {SMALL}")
    for n in range(TABLES):
        stage.db.execute(
            f"CREATE TABLE t{n} (id INT PRIMARY KEY, v VARCHAR(20), update_at DATETIME NOT NULL, KEY (update_at))",
            f"INSERT INTO t{n} SELECT seq, CONCAT('v', seq), '2025-03-01' + INTERVAL seq SECOND FROM seq_1_to_1000",
            database=SMALL,
        )
    what = f"{TABLES} tables of 1,000 rows"
    ways: dict[str, list[Scene]] = {"side by side": [], "one after the other": []}
    for _ in range(runs):
        for (name, measured), strategy in zip(ways.items(), ("auto", "sequential"), strict=True):
            measured.append(_scene(stage, f"{what}, {name}", _all(stage, strategy), TABLES * 1000))
    together, turns = (_median(measured) for measured in ways.values())
    yield together
    yield _against(turns, together)
    yield _against(_apart(stage, what), together)


def _idle(stage: Stage, runs: int) -> Iterator[Scene]:
    """Many tables that nothing has happened to since their first sync."""
    stage.db.execute(f"CREATE DATABASE {MANY}")
    for n in range(MANY_TABLES):
        stage.db.execute(
            f"CREATE TABLE t{n} (id INT PRIMARY KEY, v VARCHAR(20), update_at DATETIME NOT NULL "
            "DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, KEY (update_at))",
            f"INSERT INTO t{n} SELECT seq, 'v', '2025-03-01' + INTERVAL seq SECOND FROM seq_1_to_{MANY_ROWS}",
            database=MANY,
        )
    config, what = _place(stage, MANY), f"{MANY_TABLES:,} tables"
    sync = stage.floodmark(config, "sync", "--all")
    yield _scene(stage, f"{what} of {MANY_ROWS} rows, the first sync", sync, MANY_TABLES * MANY_ROWS)
    yield _median([_scene(stage, f"{what}, nothing to do", sync, 0) for _ in range(runs)])


def _followed(stage: Stage, runs: int) -> Iterator[Scene]:
    """Changes from the binary log, beside the same by a cursor; and many tables that nothing has happened to."""
    for name, figure, beside in followed.scenes(stage):
        cpu = followed.cpu_of(figure)
        yield Scene(name, figure.seconds, figure.rows, cpu, _text(figure.seconds, figure.rows, cpu) + beside)
    with followed.logged(stage) as own:
        own.db.execute(f"CREATE DATABASE {MANY}")
        for n in range(MANY_TABLES):
            own.db.execute(
                f"CREATE TABLE t{n} (id INT PRIMARY KEY, v VARCHAR(20))",
                f"INSERT INTO t{n} SELECT seq, 'v' FROM seq_1_to_{MANY_ROWS}",
                database=MANY,
            )
        config, what = followed.place(own, "binlog", MANY), f"{MANY_TABLES:,} tables that follow the log"
        sync = own.floodmark(config, "sync", "--all")
        yield _scene(own, f"{what}, the first sync", sync, MANY_TABLES * MANY_ROWS)
        yield _scene(own, f"{what}, nothing to do for the first time", sync, 0)
        yield _median([_scene(own, f"{what}, nothing to do", sync, 0) for _ in range(runs)])


def _wide(stage: Stage, runs: int) -> Iterator[Scene]:
    """Rows of a megabyte each: how much memory the extraction takes, and the load."""
    stage.db.execute(f"CREATE DATABASE {WIDE}")
    stage.db.execute(
        "CREATE TABLE docs (id INT PRIMARY KEY, doc LONGTEXT NOT NULL, update_at DATETIME NOT NULL, KEY (update_at))",
        database=WIDE,
    )
    for first in range(0, WIDE_ROWS, AT_ONCE):
        rows = (
            f"({n}, '{random.Random(n).randbytes(WIDE_BYTES // 2).hex()}', '2025-03-01')"
            for n in range(first, first + AT_ONCE)
        )
        stage.db.execute(f"INSERT INTO docs VALUES {', '.join(rows)}", database=WIDE)
    config = _place(stage, WIDE)
    for stage_of, option in (("MySQL to S3", "--backup-only"), ("S3 to DuckDB", "--redshift-only")):
        name = f"{WIDE_ROWS:,} rows of {WIDE_BYTES // 1_000_000} MB, {stage_of}"
        figure = stage.run(name, stage.floodmark(config, "sync", "--all", option), rows=WIDE_ROWS)
        peaks = ", ".join(f"{role} {peak >> 20:,} MB" for role, peak in figure.peaks.items() if peak)
        said = f"{_text(figure.seconds, WIDE_ROWS, figure.cpu)}   peak memory: {peaks}"
        yield Scene(name, figure.seconds, WIDE_ROWS, figure.cpu, said)


def _all(stage: Stage, strategy: str) -> list[str]:
    """One command for all the small tables, into a place of its own."""
    return stage.floodmark(_place(stage, SMALL), "sync", "--all", "--strategy", strategy)


def _place(stage: Stage, database: str) -> Path:
    """A place of its own for the tables of another database."""
    config, _ = stage.place()
    document = json.loads(config.read_text())
    document["source"]["url"] = stage.db.url(database)
    config.write_text(json.dumps(document))
    return config


def _apart(stage: Stage, what: str) -> Scene:
    """One command for each table, as cron would run them in turn: a few are measured and multiplied."""
    config = _place(stage, SMALL)
    figures = [
        stage.run("", stage.floodmark(config, "sync", "-t", f"{SMALL}.t{n}"), rows=1000)
        for n in range(MEASURED)
    ]
    times = TABLES // MEASURED
    seconds, cpu = times * sum(f.seconds for f in figures), times * sum(f.cpu for f in figures)
    name = f"{what}, a command each ({MEASURED} measured, times {times})"
    return Scene(name, seconds, TABLES * 1000, cpu, _text(seconds, TABLES * 1000, cpu))


def _median(scenes: list[Scene]) -> Scene:
    """The one in the middle by seconds, and what the others took."""
    ordered = sorted(scenes, key=lambda scene: scene.seconds)
    middle = ordered[len(ordered) // 2]
    if len(ordered) == 1:
        return middle
    return replace(middle, text=f"{middle.text}   of {', '.join(f'{s.seconds:.1f}' for s in scenes)} s")


def _against(scene: Scene, together: Scene) -> Scene:
    """The same, with how many times as long as side by side it took, and how much CPU."""
    time, cpu = scene.seconds / together.seconds, scene.cpu / together.cpu
    return replace(scene, text=f"{scene.text}   {time:.1f} x the time, {cpu:.1f} x the CPU of side by side")


# By name, in order: each measures what the last ones left, and is told how often to measure what varies.
SCENES: dict[str, Callable[[Stage, int], Iterator[Scene]]] = {
    "loads": _loads, "whole": _whole, "small": _small, "idle": _idle, "wide": _wide,
    "followed": _followed,
}  # fmt: skip
