"""A short part of the fault laboratory with fixed seeds, and the proof that it catches what is broken on purpose.

`make faults` runs all of it; see docs/faults.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.conftest import PATIENT
from tests.faults.lab.__main__ import catch
from tests.faults.lab.checker import check_log, check_rows
from tests.faults.lab.lab import Lab
from tests.faults.lab.runner import caught, run
from tests.faults.lab.services import Services
from tests.faults.lab.truth import RawCommit, Source
from tests.support.held_sync import all_gone, descendants

SEED = 20250814


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with Services() as running:
        yield running


@pytest.mark.parametrize(
    ("only", "count"),
    [
        ("crash:folder/load without a key/", 4 if PATIENT else 2),
        ("crash:folder/sync without a key/", 2),
        ("fences:folder/load without a key, by another/", 2 if PATIENT else 1),
        ("writers:folder/a long statement/", 1),
        ("network:mysql/tcp/incremental sync/cut/", 2 if PATIENT else 1),
        # tests/e2e/plan/test_recipe.py changes recipes, too
        pytest.param("changes:recipe, upsert/", 1, marks=pytest.mark.long),
        pytest.param(  # test_crashes.py kills one, too
            "spark:folder/events-synced/a worker killed in mid-slice/", 1, marks=pytest.mark.long
        ),
    ],
)
def test_nothing_is_lost_or_duplicated_whatever_dies(services: Services, only: str, count: int) -> None:
    lab = Lab(services, SEED, only=only, quick=True)
    outcomes = list(islice(run(lab, [only.partition(":")[0]]), count))
    assert len(outcomes) == count
    assert not [(o.replay, o.problems) for o in outcomes if caught(o)]


@pytest.mark.parametrize("name", ["session-zone", pytest.param("ledger-outside", marks=pytest.mark.long)])
def test_the_laboratory_catches_a_build_that_is_broken(services: Services, name: str) -> None:
    assert catch(services, name, SEED, 60)[0] is not None


# the checker itself


def _commit(n: int, kind: str, run: str, prev: str, **fields: object) -> RawCommit:
    body = {"n": n, "id": f"id{n}", "log": "l", "kind": kind, "run": run, "prev": prev, "files": [], "window": None,
            "window_id": None, "slices": [], "position": None, "stages": [], "load_as": "merge"}  # fmt: skip
    return RawCommit(n, {**body, **fields}, f"digest{n}")


def test_the_checker_sees_a_gap_a_broken_chain_and_a_commit_without_a_claim() -> None:
    log = [
        _commit(0, "open", "a", ""),
        _commit(1, "claim", "a", "digest0"),
        _commit(2, "batch", "a", "digest1"),
    ]
    assert check_log(log) == []
    assert any("of the log" in p.text for p in check_log([log[0], log[2]]))
    assert any("continue" in p.text for p in check_log([*log, _commit(3, "batch", "a", "other")]))
    assert any("hold" in p.text for p in check_log([*log, _commit(3, "batch", "b", "digest2")]))


def test_the_checker_sees_a_slice_that_was_committed_twice_and_a_watermark_that_went_back() -> None:
    window = {"id": "w", "low": ["2025-01-01 00:00:00"], "high": ["2025-01-02 00:00:00", 9], "by": "cursor",
              "edges": [["2025-01-01 12:00:00", 5]], "done": []}  # fmt: skip
    log = [_commit(0, "open", "a", ""), _commit(1, "claim", "a", "digest0", window=window)]
    log.append(_commit(2, "batch", "a", "digest1", window_id="w", slices=[0]))
    again = _commit(3, "batch", "a", "digest2", window_id="w", slices=[0])
    assert any("twice" in p.text for p in check_log([*log, again]))
    log.append(_commit(3, "batch", "a", "digest2", window_id="w", slices=[1]))
    assert check_log(log) == []
    other = {**window, "id": "v", "low": ["2025-01-01 12:00:00", 5]}
    assert any(
        "was reached" in p.text for p in check_log([*log, _commit(4, "claim", "a", "digest3", window=other)])
    )


def test_the_checker_sees_rows_that_are_lost_duplicated_different_and_extra() -> None:
    source = Source("d", "t", cursor=None)
    there = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
    assert check_rows(source, there, there) == []
    assert [p.kind for p in check_rows(source, there, there[:1])] == ["lost"]
    assert [p.kind for p in check_rows(source, there, [*there, there[0]])] == ["doubled"]
    assert [p.kind for p in check_rows(source, there, [there[0], {"id": 2, "v": "x"}])] == ["different"]
    assert [p.kind for p in check_rows(source, there, [*there, {"id": 3, "v": "c"}])] == ["extra"]


# how it ends


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_laboratory_leaves_no_process_and_no_folder(number: int) -> None:
    place = Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp"))  # the names of sockets are short
    lab = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.lab", "--forget", "--only", "crash:folder/load/"],
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert lab.stdout is not None
    while " survived " not in (line := lab.stdout.readline()):
        assert line
    family = descendants(lab.pid)
    assert len(family) >= 4  # the source's server, a JVM, whoever forks, keepers
    lab.send_signal(number)
    lab.stdout.read()
    lab.wait(60)
    assert all_gone(family, 10)
    assert list(place.iterdir()) == []
    place.rmdir()
