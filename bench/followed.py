"""Scenes of tables that follow the binary log, each beside the same table read by its cursor, on a server with a log, all on a warm Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stage import Figure, Stage

from floodmark.setup.services import settlement

LOGGED = ["--log-bin=bin", "--server-id=1", "--binlog-format=ROW", "--sync-binlog=1"]
WAYS = ("cursor", "binlog")
PER_INSERT = 100_000  # rows of one transaction


@contextmanager
def logged(stage: Stage) -> Iterator[Stage]:
    """The same stage with another server of the same kind, which writes a binary log."""
    folder = stage.folder / f"logged{stage.count}"
    folder.mkdir()
    stage.count += 100  # the places of both share a bucket
    with type(stage.db)(args=LOGGED, buffer_pool="1G") as db:
        yield Stage(db, stage.s3, folder, stage.rows, count=stage.count)


def place(stage: Stage, changes: str, database: str = settlement.DATABASE) -> Path:
    """A place whose tables are read in one of both ways."""
    config, _ = stage.place()
    document = json.loads(config.read_text())
    document["source"]["url"] = stage.db.url(database)
    if changes == "binlog":
        document["defaults"] = {"changes": "binlog"}
    config.write_text(json.dumps(document))
    return config


def scenes(stage: Stage) -> Iterator[tuple[str, Figure, str]]:
    """Name, figure and what it is compared with, of half as many inserts and updates as there are rows, and a reconcile."""
    many = stage.rows // 2
    with logged(stage) as own:
        settlement.create(own.db, own.rows)
        configs = {way: place(own, way) for way in WAYS}

        def both(what: str, rows: int) -> Iterator[tuple[str, Figure, str]]:
            before = None  # `more`: keys may become ranges
            for way, config in configs.items():
                figure = own.run(f"{what}, by {way}", own.steady(config, "both"), rows=rows, more=True)
                yield figure.name, figure, "" if before is None else against(figure, before, "by cursor")
                before = figure

        yield from both(f"{own.rows:,} rows, the first copy", own.rows)
        for first in range(0, many, PER_INSERT):
            settlement.change(own.db, min(PER_INSERT, many - first), 0)
        yield from both(f"{many:,} inserted rows", many)
        half = f"UPDATE {settlement.NAME} SET settlement_status = settlement_status + 1 WHERE id % 3 = 0"
        own.db.execute(half, database=settlement.DATABASE)
        [(updated,)] = own.db.execute(f"SELECT COUNT(*) FROM {settlement.NAME} WHERE id % 3 = 0")
        yield from both(f"{updated:,} scattered updates", updated)
        yield from both("nothing to do", 0)
        config, rows = configs["binlog"], own.rows + many
        verify = own.run("verify", own.steady(config, "verify"), rows=rows)
        yield f"{rows:,} rows, verify", verify, ""
        own.db.execute(
            "SET SESSION binlog_format = 'STATEMENT'",
            f"UPDATE {settlement.NAME} SET settlement_status = settlement_status + 1 WHERE id % 100 = 0",
            database=settlement.DATABASE,
        )
        [(changed,)] = own.db.execute(f"SELECT COUNT(*) FROM {settlement.NAME} WHERE id % 100 = 0")
        figure = own.run("reconcile", own.steady(config, "both"), rows=changed, more=True)
        yield f"{rows:,} rows, reconcile of 1 %", figure, against(figure, verify, "a verify")


def against(figure: Figure, other: Figure, name: str) -> str:
    """How much of another's time and CPU it took."""
    time, cpu = figure.seconds / other.seconds, cpu_of(figure) / cpu_of(other)
    return f"   {time:.2f} x the time, {cpu:.2f} x the CPU of {name}"


def cpu_of(figure: Figure) -> float:
    """CPU seconds without the start of the process and of Spark."""
    return figure.cpu if figure.steady_cpu is None else figure.steady_cpu
