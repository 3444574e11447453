"""Whatever happens to commits, the log is restored exactly or the command stops; nothing is guessed."""

import json
from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec
from floodmark.log.claim import claim
from floodmark.log.copies import Publisher
from floodmark.log.document import commit_path
from floodmark.log.fold import Damaged, NothingLeft, State
from floodmark.log.log import Log, tables
from floodmark.log.recovery import recoveries
from floodmark.model.errors import DataError
from floodmark.store.store import Store
from tests.support.samples import RUN, TABLE
from tests.support.watermark_copies import (
    HARMS,
    NAME,
    OTHER,
    Counting,
    batches,
    claimed,
    content,
    copies,
    published,
)


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(StoreSpec(url=str(tmp_path)))


def test_a_lost_log_is_restored_byte_for_byte(store: Store) -> None:
    _, state = published(store)
    before = content(store, f"commits/{NAME}/")
    store.delete(before)
    log = Log(store, NAME)
    assert log.read() == state
    assert content(store, f"commits/{NAME}/") == before
    (finding,) = log.findings
    assert finding.kind == "damaged_log" and finding.more["lost"] == []


def test_a_lost_log_continues_from_the_copy_even_if_older_commits_are_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.log.copies.TAIL_COMMITS", 3)
    _, state = published(store)
    newest = store.get(commit_path(NAME, state.n))
    store.delete(content(store, f"commits/{NAME}/"))
    log = Log(store, NAME)
    assert log.read() == state and state.n == 7
    assert store.get(commit_path(NAME, state.n)) == newest
    assert log.findings[0].more["lost"] == [0, 1, 2, 3, 4]
    after = batches(log, claimed(log, "next"), 1)
    assert Log(store, NAME).read() == after


def test_older_sessions_restore_what_the_newest_copy_no_longer_carries(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.log.copies.TAIL_COMMITS", 5)
    log = Log(store, NAME)
    for run in ("20250819_150000_aaaa", "20250819_160000_bbbb", "20250819_170000_cccc"):
        state = batches(log, claimed(log, run), 3)
        Publisher(store, NAME, run).publish(state, [])
    before = content(store, f"commits/{NAME}/")
    store.delete(before)
    assert Log(store, NAME).read() == state
    assert content(store, f"commits/{NAME}/") == before


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_commit_in_the_middle_is_restored_when_it_is_needed(n: int, harm: str, store: Store) -> None:
    _, state = published(store)
    published(store, OTHER)
    whole = store.get(commit_path(NAME, n))
    HARMS[harm](store, commit_path(NAME, n), store.get(commit_path(OTHER, n)) or b"")
    log = Log(store, NAME)
    assert log.read() == state
    log.commit(n)
    assert store.get(commit_path(NAME, n)) == whole and log.findings[0].kind == "damaged_log"
    store.delete(copies(store).values())
    assert Log(store, NAME).read() == state


def test_a_changed_commit_is_detected_by_the_one_after_it(store: Store) -> None:
    """Valid JSON with one digit changed: the next commit's digest proves which of the two is wrong."""
    log, state = published(store)
    whole = store.get(commit_path(NAME, 4)) or b""
    store.put(commit_path(NAME, 4), whole.replace(b'"rows":1', b'"rows":2'))
    assert store.get(commit_path(NAME, 4)) != whole
    assert log.fold_on(State(NAME)) == state
    assert store.get(commit_path(NAME, 4)) == whole


def test_the_newest_commit_changed_by_one_digit_is_restored(store: Store) -> None:
    _, state = published(store)
    path = commit_path(NAME, state.n)
    whole = store.get(path) or b""
    store.put(path, whole.replace(b'"rows":1', b'"rows":2'))
    assert Log(store, NAME).read() == state and store.get(path) == whole


def test_the_newest_commit_comes_from_the_copy_that_carries_it_if_it_follows_the_one_before(
    store: Store,
) -> None:
    _, state = published(store)
    path, before = commit_path(NAME, state.n), commit_path(NAME, state.n - 1)
    whole = store.get(path)
    store.delete([path])
    assert Log(store, NAME).commit(state.n)[0].n == state.n and store.get(path) == whole
    store.put(before, (store.get(before) or b"").replace(b'"rows":1', b'"rows":2'))
    store.delete([path])
    with pytest.raises(Damaged):
        Log(store, NAME).commit(state.n)
    assert store.get(path) is None


def test_commits_that_were_never_published_can_not_be_recovered_and_nothing_is_guessed(store: Store) -> None:
    log, state = published(store)
    batches(log, state, 3)
    store.put(commit_path(NAME, state.n + 2), b"\x00")
    with pytest.raises(Damaged) as caught:
        Log(store, NAME).read()
    assert caught.value.code == 6 and f"reset -t {NAME} --force" in (caught.value.hint or "")


def test_a_copy_that_knows_more_than_the_log_is_never_ignored(store: Store) -> None:
    """Neither it nor another copy carries the lost commit: continuing from the log alone would forget it."""
    log, state = published(store)
    for path in copies(store).values():
        body = json.loads(store.get(path) or b"")
        body["checkpoint"]["commits"] = []
        store.put(path, json.dumps(body).encode())
    store.delete([commit_path(NAME, state.n)])
    for _ in range(2):
        with pytest.raises(Damaged, match="is missing"):
            Log(store, NAME).read()
    # One record a day for each cause, however often it occurs.
    (record,) = recoveries(store, NAME)
    assert record["success"] is False and log.numbers()[-1] == state.n - 1


def test_a_damaged_log_is_started_over_only_when_forced_and_is_kept_aside(store: Store) -> None:
    log, state = published(store)
    state = batches(log, state, 2)
    store.put(commit_path(NAME, state.n - 1), b"?")  # newer than every copy
    with pytest.raises(Damaged):
        log.begin()
    assert log.begin(force=True) == State(NAME)
    # The copies are set aside too: none of them restores part of the old log.
    assert not log.numbers() and not content(store, "watermark/tables/") and log.read() == State(NAME)
    assert len(list(store.list(f"damaged/{NAME}/"))) == state.n + 1 + 3


# nothing left


def test_a_table_that_never_had_state_is_new_and_costs_little(store: Counting) -> None:
    for hour in range(24):
        for minute in range(0, 60, 5):
            store.put(f"watermark/backups/sessions/20250819_{hour:02}{minute:02}00_ab12/{OTHER}.json", b"{}")
    store.writes.clear()
    assert Log(store, NAME).read() == State(NAME)
    assert not store.writes and len(store.reads) < 80


def test_tables_are_found_without_listing_their_commits(store: Counting) -> None:
    published(store, count=20)
    published(store, OTHER)
    store.delete(content(store, f"commits/{OTHER}/"))
    store.put("watermark/tables/shop_legacy.json", b"{}")  # the older tool's
    store.put("commits/a%20b.c/0.json", b"{}")
    store.lists.clear()
    assert tables(store) == ["a b.c", NAME, OTHER]
    assert store.lists == ["watermark/tables/"]


def test_data_files_without_a_log_or_a_copy_stop_with_the_commands_to_use(store: Store) -> None:
    log, _ = published(store)
    store.put(f"data/{NAME}/{RUN}/1-window0-aa-0.parquet", b"PAR1")
    store.delete([*content(store, "commits/"), *content(store, "watermark/")])
    with pytest.raises(NothingLeft) as caught:
        log.read()
    assert caught.value.code == 6
    for command in ("watermark set", "restore", "--file", "reset"):
        assert command in (caught.value.hint or "")
    assert log.begin() == State(NAME)
    claim(log, log.begin(), run="next", purpose="set")
    assert log.read().n == 1


@pytest.mark.parametrize("left", [b"\x00", b'{"table_name": "s.t: missing"}'])
def test_damaged_copies_alone_stop_it_too(left: bytes, store: Store) -> None:
    published(store)
    store.delete(content(store, "commits/"))
    for path in copies(store).values():
        store.put(path, left)
    with pytest.raises(DataError, match="damaged watermark copies"):
        Log(store, NAME).read()


def test_a_first_run_that_has_not_published_yet_needs_no_recovery(store: Counting) -> None:
    log = Log(store, NAME)
    taken = claim(log, log.read(), run=RUN, purpose="sync", table=TABLE)
    with taken.lease:
        state = batches(log, taken.state, 1)
        store.writes.clear()
        assert Log(store, NAME).read() == state and not store.writes
    assert Log(store, NAME).read() == state
    assert [r["source"] for r in recoveries(store, NAME)] == ["log"]
