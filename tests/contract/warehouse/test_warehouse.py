"""What every warehouse promises: a commit is in the target exactly when it is in the ledger."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import datetime

import pytest

from floodmark.model.errors import ConflictError, DataError, TransientError, UnknownOutcome
from floodmark.model.json import dump
from floodmark.model.run import Step
from tests.conftest import PATIENT
from tests.support.described import changed
from tests.support.warehouse_loads import (
    CODES,
    EVENTS,
    ID,
    INT,
    NAME,
    ORDERS,
    SEEN,
    Fill,
    as_json,
    code,
    row,
)

# exactly once


def test_a_load_puts_rows_and_ledger_rows_in(fill: Fill) -> None:
    outcome = fill.load(fill.commit([row(1, "a"), row(2, "b")], [row(3, "c")]), fill.commit([row(4, "d")]))
    assert (outcome.rows, outcome.files, [r.n for r in outcome.loaded]) == (4, 3, [1, 2])
    assert fill.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
    ledger = fill.place.open().ledger("log-1", "orders")
    assert ledger.epoch == 0 and ledger.rows == outcome.loaded
    assert [(r.n, r.digest, r.rows, r.files) for r in ledger.rows] == [
        (1, "digest-log-1-1", 3, 2),
        (2, "digest-log-1-2", 1, 1),
    ]
    assert abs(datetime.fromisoformat(ledger.rows[0].loaded_at).timestamp() - time.time()) < 60
    assert fill.place.open().rows("orders") == 4


def test_a_load_reports_what_it_is_doing(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a"), row(2, "b")]))
    told: list[Step] = []
    fill.load(fill.commit([row(1, "x")], [row(3, "c")]), at_work=lambda step, rows: told.append(step))
    kinds = list(dict.fromkeys(step.kind for step in told))
    assert kinds[0] in ("check", "copy") and "merge" in kinds and kinds[-1] == "commit"
    files = [step for step in told if step.done]
    assert sorted(step.done for step in files) == [1, 2] and {step.total for step in files} == {2}


def test_a_warehouse_that_is_not_there_yet_has_an_empty_ledger_and_is_not_created(fill: Fill) -> None:
    assert fill.place.open().ledger("log-1", "orders").rows == ()
    assert fill.place.open().rows("orders") == 0
    assert fill.place.empty


def test_the_whole_ledger_can_be_had_summed_up(fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floodmark.load.duckdb.ledger.OPEN_SECONDS", 60.0)
    outcome = fill.load(fill.commit([row(1, "a"), row(2, "b")], [row(3, "c")]), fill.commit([row(4, "d")]))
    last = max(r.loaded_at for r in outcome.loaded)
    (found,) = fill.place.open().ledger_sums(lambda: True)
    assert (found.log, found.epoch, found.loaded_at) == ("log-1", 0, last)
    assert (found.commits, found.rows, found.files) == (2, 4, 3)


def test_a_commit_that_was_loaded_is_not_loaded_again(fill: Fill) -> None:
    fill.table = EVENTS
    first = fill.commit([{"n": 1}], load_as="insert")
    fill.load(first)
    outcome = fill.load(first, fill.commit([{"n": 2}], load_as="insert"))
    assert (outcome.already, outcome.rows) == ((1,), 1)
    assert fill.load(first).loaded == ()
    assert fill.rows("n") == [(1,), (2,)]


def test_a_number_that_was_loaded_with_another_digest_is_another_commit(fill: Fill) -> None:
    commit, _ = fill.commit([row(1, "old")])
    fill.load((commit, "digest-of-a-lost-log"))
    outcome = fill.load(fill.commit([row(2, "x")]), retake=frozenset({(1, "digest-of-a-lost-log")}))
    assert [r.n for r in outcome.loaded] == [2]
    assert fill.ledger() == [2]


def test_a_failed_load_leaves_nothing_behind(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a")]))
    good, bad = fill.commit([row(2, "b")]), fill.commit([row(3, "c")])
    wrong = replace(bad[0], files=(replace(bad[0].files[0], rows=99),))
    with pytest.raises(DataError, match="has 1 rows, but its commit says 99"):
        fill.load(good, (wrong, bad[1]))
    assert fill.rows() == [(1, "a")] and fill.ledger() == [1]


def test_a_commit_whose_response_was_lost_is_found_in_the_ledger(fill: Fill) -> None:
    fill.warehouse = fill.place.losing("after")
    assert fill.load(fill.commit([row(1)])).rows == 1
    assert fill.ledger() == [1]


def test_a_commit_that_did_not_happen_is_a_transient_error_and_loads_the_next_time(fill: Fill) -> None:
    commit = fill.commit([row(1)])
    fill.warehouse = fill.place.losing("before")
    with pytest.raises(TransientError):
        fill.load(commit)
    fill.warehouse = None
    assert fill.load(commit).rows == 1
    assert fill.rows("id") == [(1,)]


def test_an_unanswered_commit_whose_ledger_cannot_be_read_is_an_unknown_outcome(fill: Fill) -> None:
    fill.warehouse = fill.place.gone_after_commit()
    with pytest.raises(UnknownOutcome):
        fill.load(fill.commit([row(1)]))


def test_two_loaders_at_once_load_once(fill: Fill) -> None:
    fill.table = EVENTS
    commits = [fill.commit([{"n": n}], load_as="insert") for n in range(8)]

    def loader() -> None:
        for commit in commits:
            for _ in range(100):
                try:
                    fill.load(commit)
                    break
                except (TransientError, ConflictError):
                    time.sleep(0.01)

    threads = [threading.Thread(target=loader) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fill.rows("n") == [(n,) for n in range(8)]
    assert fill.ledger() == list(range(1, 9))


# the later read wins


def test_the_later_commit_wins_whatever_its_cursor_says(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "from 2099", at=59)]), fill.commit([row(1, "corrected", at=1)]))
    assert fill.rows() == [(1, "corrected")]


def test_a_later_load_replaces_the_row_of_an_earlier_one(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "old", at=59), row(2, "kept")]))
    fill.load(fill.commit([row(1, "new", at=1), row(3, "added")]))
    assert fill.rows() == [(1, "new"), (2, "kept"), (3, "added")]


def test_inside_a_commit_the_higher_cursor_wins_and_null_is_lowest(fill: Fill) -> None:
    fill.load(
        fill.commit(
            [row(1, "high", at=9), row(2, "null", at=None), row(3, "only null", at=None)],
            [row(1, "low", at=2), row(2, "set", at=1)],
        )
    )
    assert fill.rows() == [(1, "high"), (2, "set"), (3, "only null")]


def test_rows_of_one_key_and_cursor_in_one_commit_give_one_row(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a"), row(1, "b")], [row(1, "c")]))
    # Redshift does not say where in the files a row was: any of them may be the one.
    assert fill.rows() in ([[(1, n)] for n in "abc"] if fill.place.kind == "redshift" else [[(1, "c")]])


def test_composite_keys_are_compared_column_by_column(fill: Fill) -> None:
    fill.table = changed(ORDERS, columns=(ID, replace(INT, nullable=False), NAME, SEEN), key=("id", "n"))
    fill.load(fill.commit([{"id": 1, "n": n, "Name": "first"} for n in (1, 2)]))
    fill.load(fill.commit([{"id": 1, "n": n, "Name": "then"} for n in (1, 3)]))
    assert fill.rows("id, n, name") == [(1, 1, "then"), (1, 2, "first"), (1, 3, "then")]


def test_earlier_commits_that_load_late_take_the_later_ones_back(fill: Fill) -> None:
    early, late = fill.commit([row(1, "early"), row(2, "early")]), fill.commit([row(1, "late")])
    fill.load(late)
    with pytest.raises(ConflictError, match="loaded before"):
        fill.load(early)
    fill.load(early, retake=frozenset({(2, late[1])}))
    assert fill.ledger() == [1]  # whatever dies now, the late one is pending
    fill.load(late)
    assert fill.rows() == [(1, "late"), (2, "early")] and fill.ledger() == [1, 2]


def test_commits_taken_back_may_load_in_the_same_transaction(fill: Fill) -> None:
    early, late = fill.commit([row(1, "early")]), fill.commit([row(1, "late")])
    fill.load(late)
    fill.load(early, late, retake=frozenset({(2, late[1])}))
    assert fill.rows() == [(1, "late")] and fill.ledger() == [1, 2]


# ways


def test_insert_adds_rows_and_keeps_equal_ones(fill: Fill) -> None:
    fill.table = EVENTS
    fill.load(fill.commit([{"n": 1}, {"n": 1}], load_as="insert"))
    fill.load(fill.commit([{"n": 1}], load_as="insert"))
    assert fill.rows("n") == [(1,), (1,), (1,)]


def test_insert_into_a_table_with_a_key_never_duplicates_a_row(fill: Fill) -> None:
    fill.table = changed(ORDERS, mode="append", cursor="id")
    fill.load(fill.commit([row(1, "a")], load_as="insert"))
    fill.load(fill.commit([row(1, "again"), row(2, "b")], load_as="insert"))
    assert fill.rows() == [(1, "again"), (2, "b")]


def test_a_snapshot_replaces_everything(fill: Fill) -> None:
    fill.table = changed(EVENTS, mode="full")
    fill.load(fill.commit([{"n": 1}, {"n": 2}], load_as="replace"))
    fill.load(fill.commit([{"n": 2}, {"n": 3}], load_as="replace"))
    assert fill.rows("n") == [(2,), (3,)]


def test_a_snapshot_by_a_text_key_replaces_the_known_keys(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1)], load_as="replace"))
    fill.load(fill.commit([code("Abc", 1), code("def", 2)], [code("abc", 2, 2)], load_as="replace"))
    assert fill.rows("code, n") == [("abc", 2), ("def", 2)]
    fill.load(fill.commit([code("ABC", 3)]))
    assert fill.rows("code, n") == [("ABC", 3), ("def", 2)]


def test_rows_that_replace_everything_are_merged_among_themselves_by_key(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "old"), row(2, "old")]))
    fill.load(fill.commit([row(1, "a", 1), row(3, "c", 1)], [row(1, "b", 2)], load_as="replace"))
    assert fill.rows() == [(1, "b"), (3, "c")]


def test_an_empty_snapshot_empties_the_target(fill: Fill) -> None:
    fill.table = changed(EVENTS, mode="full")
    fill.load(fill.commit([{"n": 1}], load_as="replace"))
    fill.load(fill.commit(load_as="replace"))
    assert fill.rows("n") == [] and fill.ledger() == [1, 2]


def test_of_several_snapshots_only_the_last_is_read_and_all_are_in_the_ledger(fill: Fill) -> None:
    fill.table = changed(EVENTS, mode="full")
    first, second = fill.commit([{"n": 1}], load_as="replace"), fill.commit([{"n": 2}], load_as="replace")
    fill.store.delete([first[0].files[0].path])
    fill.load(first, second)
    assert fill.rows("n") == [(2,)] and fill.ledger() == [1, 2]


def test_a_file_without_rows_is_loaded_like_any_other(fill: Fill) -> None:
    fill.load(fill.commit([]))
    assert fill.rows() == [] and fill.ledger() == [1]


# crashes

LOADER = """
import json, sys
from pathlib import Path
from floodmark.config.load import Tls, WarehouseSpec
from floodmark.model.commit import read_commit
from floodmark.model.json import load
from floodmark.model.table import Table
from floodmark.config.load import StoreSpec
from floodmark.store.store import Store
from floodmark.load.protocol import LoadRequest
from floodmark.load.protocol import open_warehouse
from floodmark.model.warehouse import WAREHOUSES
said = json.load(sys.stdin)
if said["warehouse"]["kind"] == "postgres":
    from tests.support.postgres import DESCRIPTOR
    WAREHOUSES["postgres"] = DESCRIPTOR
commits = tuple((read_commit(c.encode()), d) for c, d in said["commits"])
table = load(Table, said["table"].encode())
spec = said["warehouse"]
if "path" in spec:
    spec["path"] = Path(spec["path"])
warehouse = open_warehouse(WarehouseSpec(**spec, tls=Tls("disabled")))
print("ready", flush=True)
for commit in commits:
    warehouse.load(LoadRequest(
        "pipe-1", "log-1", table, table.target, 0, (commit,), Store(StoreSpec(**said["store"])), "run"))
"""


def test_a_loader_killed_at_any_moment_leaves_whole_commits(fill: Fill) -> None:
    if fill.place.kind == "redshift" and not PATIENT:
        pytest.skip("tests/faults/test_redshift_kills.py does it statement by statement")
    fill.table = EVENTS
    commits = [fill.commit([{"n": n} for _ in range(2000)], load_as="insert") for n in range(20)]
    said = {
        "commits": [(dump(c).decode(), d) for c, d in commits],
        "table": dump(EVENTS).decode(),
        "warehouse": fill.place.spec,
        "store": as_json(fill.store),
    }
    slow = 5.0 if fill.place.kind == "redshift" else 1.0
    for delay in (0.0, 0.02, 0.05, 0.1, 0.2, 0.35) if PATIENT else (0.0, 0.05, 0.1, 0.35):
        process = subprocess.Popen(
            [sys.executable, "-c", LOADER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(said))
        process.stdin.close()
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay * slow)
        process.kill()
        process.wait()
        process.stdout.close()
        loaded = [r.n for r in fill.place.open().ledger("log-1", "events").rows]
        assert loaded == list(range(1, len(loaded) + 1))
        assert fill.place.open().rows("events") == 2000 * len(loaded)
    for commit in commits:
        fill.load(commit)
    assert fill.rows("n, count(*)", "events GROUP BY n") == [(n, 2000) for n in range(20)]
