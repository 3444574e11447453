"""Rows of windows and rows read outside them are counted separately, for both stages, however much of a log is summed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.config.load import StoreSpec
from floodmark.log.copies import Publisher, data_commits, parse
from floodmark.log.document import commit_path, condense, document, observe, primary_path
from floodmark.log.fold import Counted, State, fold
from floodmark.log.log import Log
from floodmark.model.commit import Batch, Clean, CleanedFiles, Deletes, GivenUp, Reset, Set
from floodmark.model.json import digest, dump
from floodmark.model.ledger import LedgerRow
from floodmark.store.store import Store
from tests.support.samples import TABLE, History, at, files, window
from tests.support.watermark_copies import synced, uri

NAME = TABLE.name


def counts(history: History, ledger: list[LedgerRow] | None = None) -> tuple[int, int, int, int]:
    """What the document says: extracted, read again, loaded, loaded again."""
    shown = document(observe(history.state, history.ledger() if ledger is None else ledger), uri)
    return tuple(shown[k] for k in ("mysql_rows_extracted", "mysql_rows_reread", "redshift_rows_loaded",
                                    "redshift_rows_reloaded"))  # fmt: skip


def read(history: History, rows: int, name: str = "x", **more: Any) -> None:
    history.claim(window=window(name, history.state.position, (), at(50, 9)))
    history.add(Batch, window_id=name, slices=(0,), files=files(rows, prefix=name), **more)


def test_rows_of_an_overlap_are_counted_apart_from_rows_of_windows() -> None:
    history = synced()
    assert counts(history) == (100, 0, 100, 0)
    history.add(Batch, files=files(70, prefix="again"), overlap="seen")
    assert counts(history) == (100, 70, 100, 70)
    assert counts(history, history.ledger(2)) == (100, 70, 100, 0)


def test_keys_of_deleted_rows_are_not_counted() -> None:
    history = synced()
    history.add(Deletes, files=files(30, prefix="keys"), load_as="delete")
    assert counts(history) == (100, 0, 100, 0)


def test_a_table_that_is_read_whole_counts_its_last_complete_snapshot() -> None:
    history = History()
    for n, rows in enumerate((30, 39)):
        whole = replace(window(f"s{n}", None, (), at(0)), by="snapshot", high=None)
        history.claim(window=whole)
        assert counts(history) == ((0, 0, 0, 0) if n == 0 else (30, 0, 30, 0))
        history.add(Batch, window_id=f"s{n}", slices=(0,), files=files(rows), load_as="replace")
    assert counts(history) == (39, 0, 39, 0)
    assert counts(history, history.ledger(2)) == (39, 0, 30, 0)
    assert document(observe(history.state, []), uri)["s3_file_count"] == 2


def test_a_position_set_back_by_hand_counts_again_from_there() -> None:
    history = synced()
    history.add(Set, position=at(20))
    read(history, 40)
    assert counts(history) == (140, 0, 140, 0)


def test_superseded_files_that_a_manual_watermark_loads_are_not_counted() -> None:
    history = synced(60)
    history.add(Reset, stages=("extract", "load"))
    read(history, 100)
    # Both are in the ledger, the first by hand: 160 rows of 100 can't have been loaded.
    assert counts(history) == (100, 0, 100, 0)


def test_files_that_were_given_up_are_not_counted_and_their_rows_once_they_are_read_again() -> None:
    history = synced()
    read(history, 7)
    gone = history.state.data.commits[-1]
    given_up = GivenUp(gone.n, gone.digest, gone.rows, gone.files, gone.bytes)
    clean = CleanedFiles(
        whole=((gone.n, gone.n),), given_up=(given_up,), dropped=((gone.n, gone.n),), moved=True
    )
    history.add(Clean, clean=clean, position=at(42, 7))
    assert counts(history, history.ledger(2)) == (100, 0, 100, 0)
    read(history, 7, "again")
    assert counts(history, history.ledger(2, history.state.n)) == (107, 0, 107, 0)


operation = st.one_of(
    st.tuples(st.just("window"), st.integers(0, 5)),
    st.tuples(st.just("again"), st.integers(1, 5)),
    st.tuples(st.just("deletes"), st.integers(1, 5)),
    st.tuples(st.just("snapshot"), st.integers(0, 5)),
    st.tuples(st.just("reset"), st.integers(0, 2)),
)


def play(history: History, operations: list[tuple[str, int]]) -> None:
    history.claim()
    for i, (what, number) in enumerate(operations):
        rows = files(number, prefix=str(i))
        match what:
            case "window":
                read(history, number, f"w{i}")
            case "snapshot":
                history.claim(window=replace(window(f"s{i}", None, (), at(0)), by="snapshot", high=None))
                history.add(Batch, window_id=f"s{i}", slices=(0,), files=rows, load_as="replace")
            case "again":
                history.add(Batch, files=rows)
            case "deletes":
                history.add(Deletes, files=rows, load_as="delete")
            case "reset":
                history.add(Reset, stages=(("extract",), ("load",), ("extract", "load"))[number])


def expected(history: History, since: int, known: Callable[[int], bool] = lambda n: True) -> Counted:
    rows = reread = 0
    for c, _ in history.data:
        if isinstance(c, Batch) and c.n > since and known(c.n):
            if c.load_as == "replace":
                rows, reread = c.rows, 0
            elif c.window_id:
                rows += c.rows
            else:
                reread += c.rows
    return Counted(rows, reread)


@settings(max_examples=80)
@given(st.lists(operation, max_size=25), st.integers(1, 4), st.sets(st.integers(0, 60)))
def test_counts_are_sums_over_the_log_joined_with_the_ledger(
    operations: list[tuple[str, int]], recent: int, lacking: set[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("floodmark.log.fold.RECENT_COMMITS", recent)
        history = History()
        play(history, operations)
    state = history.state
    assert state.extracted == expected(history, state.extraction.epoch)
    everything = {d.n: d for d in data(history)}
    for left_out in (set[int](), lacking):
        ledger = [r for r in history.ledger() if r.n in everything and r.n not in left_out]
        loaded = condense(state, ledger, lambda numbers: [everything[n] for n in numbers])
        numbers = {r.n for r in ledger}
        assert loaded.counted(state) == expected(history, state.data.superseded, lambda n: n in numbers)  # noqa: B023


def data(history: History) -> list[Any]:
    from floodmark.log.fold import data_commit

    found = [data_commit(c, d, 0) for c, d in history.commits]
    return [d for d in found if d is not None]


# a store that an earlier version has counted


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(StoreSpec(str(tmp_path)))


def laid(store: Store) -> History:
    """A log with its rows counted together, and a copy, as earlier versions published them."""
    history = synced()
    history.add(Batch, files=files(70, prefix="again"), overlap="seen")
    for commit, _ in history.commits:
        store.create(commit_path(NAME, commit.n), dump(commit))
    Publisher(store, NAME, "run").publish(history.state, history.ledger())
    body = json.loads(store.get(primary_path(NAME)) or b"")
    inner = body["checkpoint"]["body"]
    for field in ("apart", "retired"):
        del inner["state"][field]
    for field in ("counted", "extracted"):
        del inner["state"]["older"][field]
    del inner["load"]["of_older"]
    inner["state"]["data"] = [d[:-1] for d in inner["state"]["data"]]
    text = json.dumps(inner, ensure_ascii=False, separators=(",", ":")).encode()
    body["checkpoint"]["sum"] = digest(text)
    for field in ("mysql_rows_reread", "redshift_rows_reloaded"):
        del body[field]
    body |= {"mysql_rows_extracted": 170, "redshift_rows_loaded": 170}
    store.put(primary_path(NAME), json.dumps(body, ensure_ascii=False).encode())
    return history


def test_a_log_counted_by_an_earlier_version_is_recounted(store: Store) -> None:
    history = laid(store)
    assert parse(store.get(primary_path(NAME)), NAME) is not None
    state = Log(store, NAME).read()
    assert state == history.state and state.extracted == Counted(100, 70)
    away = Publisher(store, NAME, "").current(state, None)
    assert (away["redshift_rows_loaded"], away["redshift_rows_reloaded"]) == (100, 70)


def test_a_copy_of_an_earlier_version_recovers_a_damaged_log(store: Store) -> None:
    history = laid(store)
    lost = commit_path(NAME, history.state.n)
    was = store.get(lost)
    store.put(lost, b"{")
    state = Log(store, NAME).read()
    assert store.get(lost) == was and state.extracted == Counted(100, 70)


def test_if_commits_are_lost_for_good_the_counts_stay_as_they_were(store: Store) -> None:
    history = laid(store)
    store.delete([commit_path(NAME, 1), *(o.path for o in store.list("watermark/backups/"))])
    body = json.loads(store.get(primary_path(NAME)) or b"")
    body["checkpoint"]["commits"] = []
    store.put(primary_path(NAME), json.dumps(body, ensure_ascii=False).encode())
    state = Log(store, NAME).read()
    assert state.n == history.state.n and not state.data.apart and state.extracted == Counted(170, 0)


def test_commits_are_looked_up_if_the_ledger_has_only_some_of_the_older_ones(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.log.fold.RECENT_COMMITS", 1)
    history = synced()
    history.add(Batch, files=files(70, prefix="again"))
    history.add(Batch, files=files(5, prefix="later"))
    for commit, _ in history.commits:
        store.create(commit_path(NAME, commit.n), dump(commit))
    assert [d.rows for d in data_commits(store, NAME, [2, 3, 9])] == [100, 70]
    shown = Publisher(store, NAME, "run").publish(history.state, history.ledger(3, 4))
    assert (shown["redshift_rows_loaded"], shown["redshift_rows_reloaded"]) == (0, 75)


def test_a_table_stays_retired_until_a_sync_claims_it() -> None:
    history = synced()
    state = history.claim("by hand", purpose="retire", table=None)
    assert state.retired and document(observe(state, []), uri)["retired"]
    assert history.claim("loads", purpose="load", table=None).retired
    state = history.claim("syncs")
    assert not state.retired and "retired" not in document(observe(state, []), uri)
    assert fold(State(NAME), *history.commits[0]).retired is False
