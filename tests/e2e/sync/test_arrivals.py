"""Rows that keep arriving: each run ends at its bound, and nothing that is committed later is passed over."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.conftest import PATIENT, Workspace

pytestmark = pytest.mark.both_servers

CREATE = """CREATE TABLE {name} (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, n INT NOT NULL DEFAULT 0, note VARCHAR(40),
  update_at DATETIME{digits} NOT NULL DEFAULT CURRENT_TIMESTAMP{digits} ON UPDATE CURRENT_TIMESTAMP{digits},
  KEY (update_at))"""
TABLES = ("seconds", "micros")
# Rows that only the long transactions change: who waits for a lock writes nothing.
RESERVED = 100
RATE = 500


class Writers:
    """Threads that write until they are stopped."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.stop = threading.Event()
        self.done: Counter[str] = Counter()
        jobs = [self.insert, self.update, self.hold, self.hold, self.hold]
        self.threads = [threading.Thread(target=self.run, args=(job, n)) for n, job in enumerate(jobs)]

    def run(self, job: Callable[[random.Random, Callable[[str], None]], None], seed: int) -> None:
        dice = random.Random(seed)
        link = self.workspace.database.connect(autocommit=True)
        cursor = link.cursor()
        while not self.stop.is_set():
            job(dice, cursor.execute)
        link.close()

    def insert(self, dice: random.Random, execute: Callable[[str], None]) -> None:
        execute(f"INSERT INTO {dice.choice(TABLES)} (note) VALUES (UUID())")
        self.paced("inserts")

    def update(self, dice: random.Random, execute: Callable[[str], None]) -> None:
        key = dice.randint(RESERVED + 1, 3 * RESERVED)
        execute(f"UPDATE {dice.choice(TABLES)} SET n = n + 1 WHERE id = {key}")
        self.paced("updates")

    def paced(self, what: str) -> None:
        self.done[what] += 1
        ahead = self.done[what] / (RATE / 2) - (time.monotonic() - self.began)
        if ahead > 0:
            time.sleep(ahead)

    def hold(self, dice: random.Random, execute: Callable[[str], None]) -> None:
        """A transaction of several statements that stays open for up to three seconds."""
        execute("BEGIN")
        for _ in range(dice.randint(1, 4)):
            table = dice.choice(TABLES)
            execute(f"INSERT INTO {table} (note) VALUES ('held')")
            execute(f"UPDATE {table} SET n = n + 1 WHERE id = {dice.randint(1, RESERVED)}")
            self.stop.wait(dice.uniform(0, 0.8))
        end = "ROLLBACK" if dice.random() < 0.3 else "COMMIT"
        execute(end)
        self.done[end] += 1

    def __enter__(self) -> Writers:
        self.began = time.monotonic()
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def test_after_syncs_under_500_changes_a_second_one_more_makes_both_sides_equal(
    workspace: Workspace,
) -> None:
    for name, digits in zip(TABLES, ("", "(6)"), strict=True):
        workspace.execute(
            CREATE.format(name=name, digits=digits),
            f"INSERT INTO {name} (note, update_at) SELECT 'old', '2025-03-01' FROM seq_1_to_{3 * RESERVED}",
        )
    with Writers(workspace) as writers:
        extracted = []
        for _ in range(20 if PATIENT else 5):
            report = workspace.sync(*TABLES)
            assert report.ok, [t.error for t in report.tables]
            extracted.append(sum(t.rows_extracted for t in report.tables))
    assert writers.done["COMMIT"] > 2 and writers.done["ROLLBACK"] > 0
    assert sum(rows > 0 for rows in extracted) > 2  # the runs made headway all the while
    assert workspace.sync(*TABLES).ok
    for name in TABLES:
        found = workspace.compare(name)
        assert found.equal, (name, found.differences)
