"""Many rows on one timestamp: however a window is cut, limited or killed, each row arrives once."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time

import pytest

from tests.conftest import PATIENT, Workspace

pytestmark = pytest.mark.source

# One nightly job has written them all. Keys lie in no order of the rows' arrival.
ONE = "2025-03-01 03:00:00"
CREATE = """CREATE TABLE jobs (
  id BIGINT NOT NULL PRIMARY KEY, n INT NOT NULL,
  update_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, KEY (update_at))"""
FILL = f"INSERT INTO jobs SELECT (seq * 7919) % 1000003, seq, '{ONE}' FROM seq_1_to_{{rows}}"


def filled(workspace: Workspace, rows: int) -> Workspace:
    workspace.execute(CREATE, FILL.format(rows=rows))
    return workspace


def commits(workspace: Workspace) -> int:
    return len(list((workspace.folder / "lake" / "commits").rglob("*.json")))


def arrived_once(workspace: Workspace, rows: int) -> None:
    """Every row is in the warehouse, and none was read or loaded a second time on its way."""
    assert workspace.query("SELECT count(*), count(DISTINCT id) FROM jobs") == [(rows, rows)]
    assert workspace.compare("jobs").equal
    watermark = workspace.synced("jobs")["watermark"]
    assert (watermark["mysql_rows_extracted"], watermark["redshift_rows_loaded"]) == (rows, rows)


def test_many_rows_on_one_timestamp_arrive_once_under_a_repeated_limit(workspace: Workspace) -> None:
    rows = 200_000 if PATIENT else 10_000
    filled(workspace, rows)
    for n in itertools.count(1):
        table = workspace.synced("jobs", limit=rows // 5)
        if not table["rows_extracted"]:
            break
        assert workspace.query("SELECT count(*) FROM jobs") == [(table["rows_extracted"] * n,)]
    arrived_once(workspace, rows)


@pytest.mark.long  # the test above has the ties and the limit, tests/faults/test_crashes.py the kills
def test_rows_on_one_timestamp_arrive_once_whenever_a_limited_run_is_killed(workspace: Workspace) -> None:
    filled(workspace, 8_000)
    dice = random.Random(20250301)
    for _ in range(3 if PATIENT else 1):
        before = commits(workspace)
        process = workspace.run.start("sync", "-t", "jobs", "--limit", "500", "--max-chunks", "12")
        wanted = before + dice.randint(2, 6)
        deadline = time.monotonic() + 120
        while commits(workspace) < wanted and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(dice.uniform(0, 0.2))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.communicate() and process.returncode in (0, -signal.SIGKILL)
    assert commits(workspace) > 3
    while workspace.synced("jobs", limit=2000)["rows_extracted"]:
        pass
    arrived_once(workspace, 8_000)


@pytest.mark.parametrize("number", ["INT", "DECIMAL(10,2)"])
def test_without_a_key_a_limit_never_splits_rows_with_one_cursor(workspace: Workspace, number: str) -> None:
    workspace.write(tables={workspace.full_name("t"): {"cursor": "n", "mode": "append"}})
    workspace.execute(f"CREATE TABLE t (n {number} NOT NULL, note INT, KEY (n))")
    workspace.execute("INSERT INTO t VALUES (98, 1), (99, 1), (100, 1), (101, 1), (101, 2)")
    for rows in (2, 1, 2):
        assert workspace.synced("t", limit=2)["rows_extracted"] == rows
    workspace.execute("INSERT INTO t VALUES (102, 1), (102, 2), (102, 3)")
    (refused,) = workspace.sync("t", limit=2).tables
    assert refused.exit_code == 2 and "more rows than that share the cursor 102" in str(refused.error)


class Mover:
    """Updates rows all the time, one by one, up and down the key: each leaves its slice for a later window."""

    def __init__(self, workspace: Workspace) -> None:
        self.ids = [row[0] for row in workspace.execute("SELECT id FROM jobs ORDER BY id")]
        self.link = workspace.database.connect(autocommit=True)
        self.moved = 0
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        cursor = self.link.cursor()
        order = itertools.chain.from_iterable(itertools.repeat([*self.ids[::-37], *self.ids[::41]]))
        while not self.stop.wait(0.002):
            cursor.execute(f"UPDATE jobs SET n = n + 1 WHERE id = {next(order)}")
            self.moved += 1

    def __enter__(self) -> Mover:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        self.link.close()


@pytest.mark.parametrize(
    ("slices", "strategy"),
    [(1, "intra-table"), (7, "intra-table"), (16, "sequential")],
)
def test_rows_that_move_while_slices_are_read_are_neither_lost_nor_duplicated(
    workspace: Workspace, slices: int, strategy: str
) -> None:
    filled(workspace, 7_000)
    workspace.write(defaults={"slice_rows": -(-7_000 // slices)})
    with Mover(workspace) as mover:
        table = workspace.synced("jobs", strategy=strategy)
        assert table["rows_extracted"] > 6_000
    assert mover.moved
    workspace.synced("jobs", strategy=strategy)
    assert workspace.query("SELECT count(*), count(DISTINCT id) FROM jobs") == [(7_000, 7_000)]
    assert workspace.compare("jobs").equal
