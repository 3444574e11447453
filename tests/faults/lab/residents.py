"""Long-running commands: a resident sync of a keyless table, and an intruder at a running sync's ports."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import suppress

import duckdb

from tests.support.intrusion import blocks, stolen, taken_for_objects

from .bench import Bench
from .checker import Problem
from .lab import Lab, Outcome, note, settle, timed, watermark_known
from .prepared import CODES, LABELS
from .spawn import Running
from .truth import Source, commits, source_rows, warehouse_rows

CHANGED = (
    "UPDATE codes SET label = CONCAT('{n}', code) WHERE code LIKE 'c1%'",
    "DELETE FROM codes LIMIT 3",
    "INSERT INTO codes VALUES ('n{n}', 'new'), ('n{n}', 'new')",
    "",  # no change, so nothing may be written
)
PATIENCE = 40.0


def resident(lab: Lab, own: str) -> Outcome:
    """`sync --every` of a keyless table is killed and restarted: all changes arrive, and nothing else is written."""
    began, dice, bench = time.monotonic(), lab.dice(own), lab.bench("folder")
    source = Source(bench.services.database(), "codes", key=None, cursor=None)
    execute = bench.services.server.execute
    execute(CODES, LABELS, database=source.database)
    bench.clear(source.database, tables={source.name: {"mode": "full"}})
    outcome = Outcome("changes", "sync --every, no key [folder]", "killed between snapshots", "any step", own)
    outcome.strikes = 0
    command = ("sync", "-t", source.name, "--every", "1s")
    most = 1  # snapshots that had a reason
    running = bench.start(
        *command, plan={"at": dice.randint(1, 60), "when": dice.choice(["before", "after"])}
    )
    for number in range(dice.randint(3, 5)):
        change = dice.choice(CHANGED).format(n=number)
        if change:
            execute(change, database=source.database)
            most += 1
        if not _arrives(bench, source, running):
            ended = note(outcome, bench.wait(running), (-9,))
            outcome.strikes += ended.code == -9
            outcome.code, most = ended.code, most + 1
            watermark_known(bench, source, outcome)
            running = bench.start(*command)
            _arrives(bench, source, running)
    time.sleep(2.5)  # cycles that find nothing
    with suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGTERM)
    ended = note(outcome, bench.wait(running), (143, -9))
    outcome.strikes += ended.code == -9
    made = [c for c in commits(bench, source.name) if c.kind == "batch" and c.body["load_as"] == "replace"]
    if len(made) > most + (ended.code == -9):
        outcome.problems.append(Problem("log", f"{len(made)} snapshots, where {most} had a reason"))
    settle(bench, source, outcome)
    execute(f"DROP DATABASE {source.database}")
    return timed(outcome, began)


def _arrives(bench: Bench, source: Source, running: Running) -> bool:
    """Waits until the target has the source's rows; False if the command ends first or never delivers them."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not bench.spawner.ended(running):
        with suppress(duckdb.Error):  # it is being written
            wanted = Counter(tuple(row.items()) for row in source_rows(bench, source))
            there = warehouse_rows(bench, source.table)
            if Counter(tuple(row.items()) for row in there) == wanted:
                return True
        time.sleep(0.2)
    if not bench.spawner.ended(running):
        bench.spawner.kill(running)
    return False


def intruded(lab: Lab, own: str) -> Outcome:
    """Another user probes every port of a paused sync and gets no secret and no block; then the sync resumes."""
    began, dice, bench = (
        time.monotonic(),
        lab.dice(own),
        lab.bench(lab.dice(own, "stack").choice(["folder", "s3"])),
    )
    source = lab.prepared(bench).lay("orders", dice.choice(["empty", "synced"]))
    outcome = Outcome("changes", f"sync, own JVM [{bench.stack}]", "another user asks its ports", "", own)
    running = bench.start(
        "sync", "-t", source.name, own_jvm=True, plan={"label": "commit batch", "when": "pause"}
    )
    outcome.hit = _stopped(bench, running)
    if outcome.hit:
        outcome.step = "commit batch"
        found = stolen(running.pid)
        for place in blocks(found):
            outcome.problems.append(Problem("said", f"{place} gave a block"))
        for place in taken_for_objects(found):
            outcome.problems.append(Problem("said", f"{place} took bytes for an object"))
        for place, data in found.items():
            if any(secret.encode() in data for secret in bench.services.secrets):
                outcome.problems.append(Problem("said", f"{place} told a secret"))
        with suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGCONT)
    outcome.code = note(outcome, bench.wait(running), (0,)).code
    settle(bench, source, outcome)
    return timed(outcome, began)


def _stopped(bench: Bench, running: Running) -> bool:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not bench.spawner.ended(running):
        with suppress(OSError), open(f"/proc/{running.pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "T":
                return True
        time.sleep(0.02)
    return False
