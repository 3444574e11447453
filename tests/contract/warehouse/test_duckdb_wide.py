"""Rows of a megabyte in a DuckDB file: the memory of a load is bounded by its bytes, not by the table's rows."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec
from floodmark.load.protocol import Numbered
from floodmark.store.store import Store
from tests.support.warehouse_loads import EVENTS, DuckPlace, Fill, row

MEGABYTE = 1 << 20

# Loads commits, each group in one transaction, and prints the peak memory in bytes. Not the rusage's figure: that
# begins with the memory of the process that this one was started from.
LOADS = """import pickle, re, sys
from pathlib import Path
from floodmark.store.store import Store
from floodmark.load.duckdb.warehouse import DuckDB
from floodmark.load.protocol import LoadRequest
path, spec, table, log, groups = pickle.load(sys.stdin.buffer)
for group in groups:
    DuckDB(path).load(LoadRequest("pipe-1", log, table, table.target, 0, group, Store(spec), "run"))
print(int(re.search("VmHWM:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
"""


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    return Fill(DuckPlace(tmp_path), Store(StoreSpec(str(tmp_path / "lake"))), dictionary=False)


def wide(fill: Fill, first: int, count: int, of: int = 20) -> Numbered:
    """A commit of rows of a megabyte, in files of a few each."""
    ids = range(first, first + count)
    texts = {n: f"{n} is a number. ".ljust(1024) * 1024 for n in ids}
    return fill.commit(*([row(n, texts[n]) for n in ids[i : i + of]] for i in range(0, count, of)))


def peak(fill: Fill, *groups: tuple[Numbered, ...]) -> int:
    """The peak memory of loads, one for each group of commits."""
    assert isinstance(fill.place, DuckPlace)
    given = pickle.dumps((fill.place.path, fill.store.spec, fill.table, fill.log, groups))
    done = subprocess.run([sys.executable, "-c", LOADS], input=given, stdout=subprocess.PIPE, check=True)
    return int(done.stdout)


def test_a_load_takes_memory_for_its_own_rows_however_many_there_are_already(fill: Fill) -> None:
    loads = [(wide(fill, n, 40),) for n in range(0, 280, 40)]
    one = peak(fill, *loads[:1])
    assert one < 400 * MEGABYTE
    # The last one replaces rows of all before it. Merged into one row group, they would take twice as much.
    again = fill.commit([row(n, "new".ljust(MEGABYTE)) for n in range(0, 280, 8)])
    assert peak(fill, *loads[1:], (again,)) < one + 80 * MEGABYTE
    found = (
        "SELECT count(*), count(DISTINCT id), min(length(name)), count(*) FILTER (name ^@ 'new') FROM orders"
    )
    assert fill.place.run(found) == [(280, 280, MEGABYTE, 35)]
    # Nor does a load into another table merge them.
    events = replace(fill, table=EVENTS, log="log-2", made=[])
    assert peak(events, (events.commit([{"n": 1, "Name": "a"}], load_as="insert"),)) < 200 * MEGABYTE


def test_many_wide_rows_in_one_load_are_held_twice_at_most(fill: Fill) -> None:
    assert peak(fill, (wide(fill, 0, 200),)) < (150 + 2 * 200 + 150) * MEGABYTE
