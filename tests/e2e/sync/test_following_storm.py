"""Tables that follow the binary log in a storm: whatever writers, operators and kills do, source and target are equal in the end.

FLOODMARK_LONG=1 for minutes of it: STORM_SECONDS, STORM_SEED, STORM_CALM (what doesn't happen) and STORM_RUNS (how syncs run) change it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from floodmark.model.errors import TransientError
from floodmark.setup.services.databases import DatabaseServer
from floodmark.spark.context import Spark
from tests.conftest import BOTH, LOGGED, NO_MYSQL, PATIENT, SERVERS, Database, Floodmark, new_workspace
from tests.support.following_storm import OPTIONS, Storm, differences

SECONDS = float(os.environ.get("STORM_SECONDS") or (300 if PATIENT else 10))
SEED = int(os.environ.get("STORM_SEED") or 33)
CALM = tuple((os.environ.get("STORM_CALM") or "").split(","))
RUNS = tuple(
    (os.environ.get("STORM_RUNS") or ("here,process,killed,resident,two" if PATIENT else "here")).split(",")
)


@pytest.fixture(params=BOTH)
def stormy(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    if request.param == "mysql" and NO_MYSQL:
        pytest.skip(NO_MYSQL)
    with SERVERS[request.param](args=LOGGED[request.param], buffer_pool="64M") as server:
        yield server


def test_after_a_storm_source_and_target_are_equal(
    stormy: DatabaseServer, tmp_path: Path, floodmark: Floodmark, spark: Callable[[], Spark]
) -> None:
    dice, codes, told, refused = Random(SEED), Counter[str](), Counter[str](), Counter[str]()
    stormy.execute("CREATE DATABASE storm DEFAULT CHARSET=utf8mb4")
    database = Database(stormy, "storm")
    workspace = new_workspace(tmp_path, database, floodmark, spark, store={"url": "./lake"})
    storm = Storm(stormy, database.name, SEED, CALM)
    names = [one.name for one in storm.shapes]
    workspace.write(
        defaults={"changes": "binlog"},
        tables={f"{database.name}.{name}": OPTIONS.get(name, {}) for name in names},
    )

    def record(way: str, code: int, text: str) -> None:
        codes[f"{way} {code}"] += 1
        if code:
            told[text[:1500]] += 1

    def here(*only: str) -> bool:
        try:
            report = workspace.sync(*(only or names))
        except TransientError as error:  # the server is down
            record("here", error.code, error.message)
            return False
        errors = [
            f"{one.table.rpartition('.')[2]}: {one.error.code} {one.error.message} | {one.error.hint}"
            for one in report.tables
            if one.error
        ]
        record("here", 1 if errors else 0, " || ".join(errors))
        for one in report.tables:
            for note in one.notes:
                notes[note[:90]] += 1
        for one in report.tables:
            if one.error is not None and one.error.code == 6:
                obey(one.table, one.error.message)
        return not errors

    def obey(table: str, said: str) -> None:
        refused[said.partition(" rows in ")[2] or said[:60]] += 1
        if "are gone from the source" in said:
            workspace.sync(table, force=True)
        elif "and its collation changed" in said:
            record("reset", floodmark("watermark", "reset", "-t", table, "--force").code, "reset")

    def process(way: str, *more: str, kill: float = 0.0) -> None:
        running = floodmark.start("sync", "--all", *more)
        if kill:
            time.sleep(kill)
            running.kill()
        _, err = running.communicate(timeout=180)
        record(way, running.wait(), err[-300:])

    notes = Counter[str]()
    storm.create()
    storm.start()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        way = dice.choice(RUNS)
        if way == "here":
            here(*(() if dice.random() < 0.7 else dice.sample(names, 3)))
        elif way == "process":
            process(way)
        elif way == "killed":
            process(way, kill=dice.uniform(3, 14))
        elif way == "resident":
            process(way, "--every", "1s", kill=dice.uniform(5, 25))
        elif way == "two":
            both = [floodmark.start("sync", "--all") for _ in range(2)]
            for one in both:
                _, err = one.communicate(timeout=180)
                record(way, one.wait(), err[-300:])
    storm.stop()
    last = [here() for _ in range(4)][-2:]  # a refusal is answered as its hint says
    found = differences(stormy, database.name, workspace.warehouse, storm.mariadb)
    print("DIFFERENCES", *found, sep="\n", file=sys.stderr)
    print(
        f"syncs {dict(codes)}\ndone {dict(storm.done)}\nfailed {dict(storm.failed)}\nsaid {storm.said[:5]}",
        file=sys.stderr,
    )
    print("refused", dict(refused), file=sys.stderr)
    print(
        "notes",
        json.dumps(dict(notes.most_common(30)), indent=1),
        "\ntold",
        json.dumps(dict(told.most_common(20)), indent=1, ensure_ascii=False),
        file=sys.stderr,
    )
    assert not found and all(last)
