"""Group 4: everybody at once: writers at hundreds of rows per second, several syncs, and every other command.

The writers insert, update rows so that they move from slice to slice, hold transactions open and roll back. All kinds
of commands run alongside on one table. Once everything is quiet, one sync must make source and warehouse equal.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pymysql

from .bench import Bench
from .lab import Lab, Outcome, note, settle, timed, watermark_known
from .prepared import orders
from .truth import Source

# A command and its permitted exit codes: success (0), the table held by another run (3), a locked warehouse (4), a
# comparison while rows wait to be loaded (6).
COMMANDS: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...] = (
    (("sync", "-t", "{t}"), (0, 3, 4)),
    (("sync", "-t", "{t}", "-s", "intra-table"), (0, 3, 4)),
    (("sync", "-t", "{t}", "--limit", "60"), (0, 3, 4)),
    (("sync", "-t", "{t}", "--redshift-only"), (0, 3, 4)),
    (("sync", "-t", "{t}", "--backup-only"), (0, 3, 4)),
    (("verify", "-t", "{t}"), (0, 3, 4, 6)),
    (("s3clean", "clean", "-t", "{t}", "--force"), (0, 3, 4)),
    (("s3clean", "orphans", "-t", "{t}", "--force"), (0, 3, 4)),
    (("s3clean", "list", "-t", "{t}"), (0,)),
    (("watermark", "get", "-t", "{t}"), (0,)),
    (("watermark", "list"), (0,)),
    (("watermark", "history", "-t", "{t}"), (0,)),
    (("watermark", "backups", "-t", "{t}"), (0,)),
    (("watermark", "set", "-t", "{t}", "--timestamp", "2025-03-01 00:00:01"), (0, 3, 4)),
    (("watermark", "reset", "-t", "{t}", "--mysql-only"), (0, 3, 4)),
    (("watermark", "cleanup", "--days", "0", "--force"), (0, 3, 4)),
    (("plan", "-t", "{t}"), (0, 3, 4)),
)
AT_ONCE = 4


class Writer:
    """One connection that writes until stopped; its last transaction is committed or rolled back as a whole."""

    def __init__(self, bench: Bench, source: Source, dice: random.Random) -> None:
        self._link = bench.services.server.connect(source.database)
        self._dice = dice
        self._stop = threading.Event()
        self.rows = 0
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._link.close()

    def _write(self) -> None:
        cursor = self._link.cursor()
        while not self._stop.is_set():
            try:
                for _ in range(self._dice.randint(1, 4)):
                    self.rows += self._change(cursor)
                if self._dice.random() < 0.1:
                    time.sleep(self._dice.uniform(0.2, 1.5))  # a long transaction
                self._link.rollback() if self._dice.random() < 0.15 else self._link.commit()
            except pymysql.OperationalError:  # a deadlock between writers
                self._link.rollback()
            time.sleep(self._dice.uniform(0.0, 0.02))
        self._link.commit()

    def _change(self, cursor: pymysql.cursors.Cursor) -> int:
        """Insert or update some rows; an update gives them a new time and so a new place in the order."""
        if self._dice.random() < 0.5:
            return int(
                cursor.execute("INSERT INTO orders (amount, note) VALUES (1, 'a'), (2, 'b'), (3, 'c')")
            )
        lowest = self._dice.randrange(0, 2400)
        return int(
            cursor.execute(
                "UPDATE orders SET note = %s, amount = amount + 1 WHERE id BETWEEN %s AND %s",
                (f"u{self._dice.getrandbits(24)}", lowest, lowest + 60),
            )
        )


def crowd(lab: Lab) -> Iterator[Outcome]:
    """Random crowds, one after the other."""
    for turn in range(2 if lab.quick else 60):
        for stack in ("folder",) if lab.quick else ("folder", "s3", "redshift"):
            own = f"crowd:{stack}/{turn}"
            if lab.wanted(own):
                yield _experiment(lab, stack, own)


def _experiment(lab: Lab, stack: str, own: str) -> Outcome:
    began, dice, bench = time.monotonic(), lab.dice(own), lab.bench(stack)
    source = Source(bench.services.database(), "orders")
    server = bench.services.server
    server.execute(*orders(300), database=source.database)
    bench.clear(source.database, defaults={"settle_seconds": 0.1, "slice_rows": 100})
    bench.config["tables"] = {source.name: {}}
    bench.write()
    outcome = Outcome("crowd", f"all commands [{stack}]", "writers and commands at once", "", own)
    note(outcome, bench.run("sync", "-t", source.name), (0,))
    writers = [Writer(bench, source, random.Random(f"{own}/{i}")) for i in range(2)]
    first = (COMMANDS[0], COMMANDS[1])  # two syncs of one table, always
    try:
        for wave in range(1 if lab.quick else 3):
            rest = dice.sample(COMMANDS, AT_ONCE - (len(first) if wave == 0 else 0))
            chosen = [*(first if wave == 0 else ()), *rest]
            started = [
                (bench.start(*(part.format(t=source.name) for part in args)), allowed)
                for args, allowed in chosen
            ]
            for running, allowed in started:
                note(outcome, bench.wait(running), allowed)
            outcome.strikes = wave + 1  # a wave counts as one run
    finally:
        for writer in writers:
            writer.stop()
    outcome.step = f"{AT_ONCE} commands"
    watermark_known(bench, source, outcome)
    settle(bench, source, outcome)
    server.execute(f"DROP DATABASE {source.database}")
    return timed(outcome, began)
