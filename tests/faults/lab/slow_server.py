"""A slow source: just restarted with nothing cached, or with a seventh of its CPU time.

Both stretch the moment in which a statement's timestamp is fixed but almost nothing shows yet that it will write.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from .bench import Bench, bound
from .crowd import Writer
from .lab import Lab, Outcome, note, settle, timed, watermark_known
from .prepared import orders
from .spawn import Running
from .truth import Source

PARTITIONS = 8000
BIG = "lab_big"
# Permitted exit codes while the source hardly answers.
ALLOWED = (0, 4)
STOPPED = (0, 143)  # a resident sync after SIGTERM: between two cycles or within one


def _orders(lab: Lab, stack: str, own: str) -> tuple[Bench, Source]:
    """A table that was synced once, with a cursor in seconds or microseconds."""
    bench = lab.bench(stack)
    source = Source(bench.services.database(), "orders")
    digits = lab.dice(own, "digits").choice(["", "(6)"])
    bench.services.server.execute(*orders(40, f"DATETIME{digits}"), database=source.database)
    bench.clear(source.database)
    bench.run("sync", "-t", source.name)
    return bench, source


def _cold(lab: Lab, stack: str, name: str, own: str) -> Outcome:
    """A statement that has to load the definition of a huge table, while quick inserts and a resident sync run."""
    began, dice = time.monotonic(), lab.dice(own)
    bench, source = _orders(lab, stack, own)
    server = bench.services.server
    _vast(lab)
    server.restart()
    outcome = Outcome("writers", f"resident sync [{stack}]", name, "while a definition is loaded", own)
    isolation = dice.choice(["REPEATABLE READ", "READ COMMITTED"])
    cold, quick = (server.connect(source.database, autocommit=True) for _ in range(2))
    cold.cursor().execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}")
    written = threading.Event()

    def write() -> None:
        nowhere = f"FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM {BIG}.big WHERE id > 5)"
        cold.cursor().execute(f"INSERT INTO orders (amount, note) SELECT 1, 'cold' {nowhere}")
        written.set()

    def write_quickly() -> None:
        while not written.is_set():
            quick.cursor().execute("INSERT INTO orders (amount, note) VALUES (2, 'quick')")
            time.sleep(0.03)

    threads = [threading.Thread(target=target, daemon=True) for target in (write, write_quickly)]
    running = bench.start("sync", "-t", source.name, "--every", "1s")
    _cycles(bench, running, 2)
    with server.starved():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for link in (cold, quick):
        link.close()
    with suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGTERM)
    outcome.code = note(outcome, bench.wait(running), STOPPED).code
    return _ended(bench, source, outcome, began)


def _cycles(bench: Bench, running: Running, count: int) -> None:
    """Wait until a resident sync has completed this many cycles."""
    deadline = time.monotonic() + bound()
    while not running.out.exists() or len(running.out.read_text().splitlines()) < count:
        if time.monotonic() > deadline or bench.spawner.ended(running):
            raise RuntimeError(f"the resident sync does not go round: {running.err.read_text()[-300:]}")
        time.sleep(0.05)


def _starved(lab: Lab, stack: str, name: str, own: str) -> Outcome:
    """Writers and syncs on a starved server."""
    began = time.monotonic()
    bench, source = _orders(lab, stack, own)
    outcome = Outcome("writers", f"syncs in turn [{stack}]", name, "whole run", own)
    with bench.services.server.starved():
        writers = [Writer(bench, source, random.Random(f"{own}/{i}")) for i in range(2)]
        try:
            for number in range(2):
                outcome.code = note(outcome, bench.run("sync", "-t", source.name), ALLOWED).code
                outcome.strikes = number + 1
        finally:
            for writer in writers:
                writer.stop()
    return _ended(bench, source, outcome, began)


def _ended(bench: Bench, source: Source, outcome: Outcome, began: float) -> Outcome:
    watermark_known(bench, source, outcome)
    settle(bench, source, outcome)
    bench.services.server.execute(f"DROP DATABASE {source.database}")
    return timed(outcome, began)


def _vast(lab: Lab) -> None:
    """Create the table with many partitions, once."""
    if ("vast", "") not in lab.services.kept:
        lab.services.server.execute(
            f"CREATE DATABASE {BIG}",
            f"CREATE TABLE {BIG}.big (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS {PARTITIONS}",
        )
        lab.services.kept["vast", ""] = True


KINDS: dict[str, Callable[[Lab, str, str, str], Outcome]] = {
    "a cold server": _cold,
    "a server with a seventh of its processor": _starved,
}
