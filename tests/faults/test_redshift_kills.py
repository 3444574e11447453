"""Loaders of Redshift that are killed between any two statements, or stop in mid-load: rows and ledger stay one.

Fifteen kills at random by default, fifty among the long tests; FLOODMARK_KILLS=1000 for more, FLOODMARK_SEED for others.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.load.protocol import Numbered
from floodmark.model.errors import TransientError
from floodmark.model.json import dump
from floodmark.setup.services import reaper
from tests.conftest import PATIENT, Workspace
from tests.faults.lab.proxy import Proxy, Trouble
from tests.support.held_sync import descendants
from tests.support.orders import create_orders, fill_orders
from tests.support.warehouse_loads import (
    EVENTS,
    Fill,
    RedshiftPlace,
    as_json,
    row,
)

KILLS = int(os.environ.get("FLOODMARK_KILLS", "50" if PATIENT else "15"))
SEED = int(os.environ.get("FLOODMARK_SEED", "4"))
STATEMENTS = 26  # of a load, and some more


class Loaders:
    """The process whose children load."""

    def __init__(self, fill: Fill) -> None:
        self._fill = fill
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.dying_loaders"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=reaper.die_with_parent,
        )

    def start(self, commits: Sequence[Numbered], **more: Any) -> int:
        """A child that loads; its pid."""
        fill = self._fill
        assert self._process.stdin and isinstance(fill.place, RedshiftPlace)
        said = {
            "commits": [(dump(commit).decode(), digest) for commit, digest in commits],
            "table": dump(fill.table).decode(),
            "warehouse": fill.place.spec,
            "store": as_json(fill.store),
            "limits": asdict(fill.place.limits),
            **more,
        }
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        return int(self.said())

    def said(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        for left in descendants(self._process.pid):  # one that is stopped would hold the pipes open
            with suppress(ProcessLookupError):
                os.kill(left.pid, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def loaders(fill: Fill) -> Iterator[Loaders]:
    made = Loaders(fill)
    yield made
    made.end()


def test_a_loader_killed_between_any_two_statements_leaves_whole_commits(
    fill: Fill, loaders: Loaders
) -> None:
    fill.table = EVENTS  # without a key a second load would duplicate its rows
    chance = random.Random(SEED)
    pending: list[Numbered] = []
    killed = done = 0
    # A load that ends by itself shows that the kills reach up to the last statement.
    while killed < KILLS or not done:
        assert killed < KILLS + 100
        pending.append(fill.commit([{"n": fill.n}] * 3, load_as="insert"))
        when = chance.choice(("before", "during", "after"))
        loaders.start(pending, at=chance.randint(1, STATEMENTS), when=when, signal="SIGKILL")
        ended = int(loaders.said())
        assert ended in (0, -signal.SIGKILL)
        killed += ended != 0
        done += ended == 0
        if not ended:
            pending = []
        if killed % 5 == 0 and fill.place.open().ledger("log-1", "events").rows:
            in_ledger = len(fill.ledger())
            assert fill.place.open().rows("events") == 3 * in_ledger
    if pending:
        fill.load(*pending)
    assert fill.rows("n, count(*)", "events GROUP BY n") == [(n, 3) for n in range(fill.n)]
    assert fill.ledger() == list(range(1, fill.n + 1)) and done


def stopped(fill: Fill, loaders: Loaders) -> tuple[Numbered, int]:
    """A loader that has staged its rows, holds the lock and does nothing more: what it loads, and its pid."""
    assert isinstance(fill.place, RedshiftPlace)
    fill.load(fill.commit([row(1)]))
    faults = fill.place.server.faults
    faults.statements.clear()
    fill.load(fill.commit([row(2)]))
    copied = next(i for i, sql in enumerate(faults.statements) if sql.startswith("COPY"))
    commit = fill.commit([row(3)])
    pid = loaders.start([commit], at=copied + 1, when="after", signal="SIGSTOP")
    assert loaders.said() == "stopped"
    return commit, pid


def loaded_once(fill: Fill) -> bool:
    return fill.rows("id") == [(1,), (2,), (3,)] and fill.ledger() == [1, 2, 3]


def test_a_stopped_loader_blocks_nobody_beyond_the_timeout_and_continues_when_it_wakes(
    fill: Fill, place: RedshiftPlace, loaders: Loaders
) -> None:
    commit, pid = stopped(fill, loaders)
    began = time.monotonic()
    with pytest.raises(TransientError, match="another load holds the lock on orders"):
        place.faulty(replace(place.limits, lock=1, idle=600)).load(fill.request(commit))
    assert time.monotonic() - began < 30
    os.kill(pid, signal.SIGCONT)
    assert loaders.said() == "0"
    assert loaded_once(fill)


def test_a_loader_that_wakes_after_its_lock_was_taken_loads_nothing_twice(
    fill: Fill, place: RedshiftPlace, loaders: Loaders
) -> None:
    commit, pid = stopped(fill, loaders)
    time.sleep(0.5)
    began = time.monotonic()
    assert place.faulty(replace(place.limits, lock=1, idle=0.2)).load(fill.request(commit)).rows == 1
    assert time.monotonic() - began < 30
    os.kill(pid, signal.SIGCONT)
    assert loaders.said() == "0"  # it finds that it was loaded
    assert loaded_once(fill)


def test_the_lock_of_a_stopped_loader_can_be_waited_for_again_after_one_was_lost(
    fill: Fill, place: RedshiftPlace
) -> None:
    """A session that broke once must not make this process impatient with everybody from then on."""
    warehouse = place.open()
    place.server.faults.drop_before_commit()
    warehouse.load(fill.request(fill.commit([row(1)])))
    assert warehouse._tries.lock("orders").seconds == place.limits.lock


def test_the_watermark_is_shown_within_seconds_even_if_redshift_does_not_answer(
    redshift_workspace: Workspace,
) -> None:
    orders, url = redshift_workspace, redshift_workspace.config["warehouse"]["url"]
    orders.execute(create_orders(), fill_orders(20))
    port = int(url.rpartition(":")[2].partition("/")[0])
    between = Proxy(port)
    try:
        orders.write(warehouse={"url": url.replace(f":{port}/", f":{between.port}/")})
        orders.synced("orders")
        seen = orders.run("watermark", "get", "-t", "orders", "--json").ok().json
        assert (seen["redshift_status"], seen["redshift_rows_loaded"]) == ("success", 20)
        between.arm(Trouble("stall", 0, lasting=True))
        began = time.monotonic()
        seen = orders.run("watermark", "get", "-t", "orders", "--json").ok().json
        assert (seen["mysql_rows_extracted"], seen["redshift_rows_loaded"]) == (20, 20)
        assert "redshift_status_as_of" in seen  # as last known, and the output says so
        assert time.monotonic() - began < 10
    finally:
        between.close()
