"""To commit is to create the next number, and only that one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.config.load import StoreSpec
from floodmark.host.retry import Retries
from floodmark.load.pending import pending
from floodmark.log.copies import Publisher
from floodmark.log.document import commit_path, primary_path
from floodmark.log.fold import State
from floodmark.log.log import Log, Taken, draft
from floodmark.model.commit import Batch, Claim, Open, Owner, Reset, files_of
from floodmark.model.errors import ConflictError, DataError, NoAnswer, TransientError
from floodmark.model.json import dump
from floodmark.model.ledger import Ledger, LedgerRow
from floodmark.store.store import Store
from tests.support.samples import RUN, TABLE, at, files, window

OWNER = Owner("db1", "boot", 4711, "99")


class Unreliable(Store):
    """A store whose creates lose their answers: before they happen, or after."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self.before = 0
        self.after = 0
        self.creates: list[str] = []
        self.reads: list[str] = []

    def get(self, path: str, most: int | None = None) -> bytes | None:
        self.reads.append(path)
        return super().get(path, most)

    def create(self, path: str, data: bytes) -> bool:
        self.creates.append(path)
        if self.before:
            self.before -= 1
            raise NoAnswer("the connection was reset")
        done = super().create(path, data)
        if self.after:
            self.after -= 1
            raise NoAnswer("the connection was reset")
        return done


@pytest.fixture
def store(tmp_path: Path) -> Unreliable:
    return Unreliable(StoreSpec(url=str(tmp_path)))


@pytest.fixture
def log(store: Store, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr("floodmark.log.log.COMMITTING", Retries(pause=0.001, seconds=1.0))
    return Log(store, TABLE.name)


def claimed(log: Log, run: str = RUN, **more: Any) -> State:
    state = log.read()
    if state.n < 0:
        state = log.append(state, draft(state, Open, run))
    return log.append(state, draft(state, Claim, run, owner=OWNER, table=TABLE, **more))


def batches(log: Log, state: State, count: int) -> State:
    for i in range(count):
        batch = draft(state, Batch, RUN, files=files(1, prefix=f"{state.n}-{i}"))
        state = log.append(state, batch)
    return state


def test_a_table_without_a_log_reads_as_one_without_commits(log: Log) -> None:
    assert log.read() == State(TABLE.name)


def test_an_appended_commit_is_read_back(log: Log) -> None:
    state = claimed(log, window=window("w", None, (at(1, 1),), at(2, 2)))
    state = log.append(state, draft(state, Batch, RUN, window_id="w", slices=(0,), files=files(3, 4)))
    assert state.position == at(1, 1)
    assert log.read() == state
    commit, found = log.commit(2)
    assert isinstance(commit, Batch)
    assert (commit.rows, found, commit.prev) == (7, state.digest, log.commit(1)[1])


def test_a_commit_without_an_id_or_a_time_gets_them(log: Log) -> None:
    state = claimed(log)
    log.append(state, replace(draft(state, Batch, RUN, files=files(1)), id="", at=""))
    written, _ = log.commit(2)
    assert len(written.id) == 32 and written.at.endswith("Z")


def test_a_create_whose_response_was_lost_is_found_by_its_id(log: Log, store: Unreliable) -> None:
    state = claimed(log)
    store.after = 1
    after = log.append(state, draft(state, Batch, RUN, files=files(5)))
    assert after.totals.rows == 5 and after.n == state.n + 1
    assert log.read() == after


def test_a_create_without_an_answer_is_tried_again_under_the_same_number(log: Log, store: Unreliable) -> None:
    state = claimed(log)
    store.creates.clear()
    store.before = 3
    after = log.append(state, draft(state, Batch, RUN, files=files(5)))
    assert set(store.creates) == {commit_path(TABLE.name, 2)} and len(store.creates) == 4
    assert log.read() == after


@pytest.mark.parametrize("lost", ["before", "after"])
def test_without_any_answer_it_stops_and_the_next_run_checks(
    lost: str, log: Log, store: Unreliable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.log.log.COMMITTING", Retries(pause=0.001, seconds=0.02))
    state = claimed(log)
    setattr(store, lost, 1000)
    with pytest.raises(TransientError) as caught:
        log.append(state, draft(state, Batch, RUN, files=files(5)))
    assert caught.value.code == 4 and "nothing is lost" in (caught.value.hint or "")
    store.before = store.after = 0
    # Creates that were answered too late may have happened; a number is never used twice or skipped.
    assert log.read().n == (state.n if lost == "before" else state.n + 1)
    claimed(log, "next")


def test_a_run_that_was_taken_over_can_not_commit(log: Log) -> None:
    ours = claimed(log)
    claimed(log, "20250819_160000_beef")
    with pytest.raises(ConflictError) as caught:
        log.append(ours, draft(ours, Batch, RUN, files=files(5)))
    assert caught.value.code == 3
    for said in ("20250819_160000_beef", "db1", "4711"):
        assert said in caught.value.message
    assert log.read().totals.rows == 0


def test_a_run_that_keeps_reading_after_it_was_taken_over_can_not_commit_either(log: Log) -> None:
    claimed(log)
    claimed(log, "20250819_160000_beef")
    state = log.read()
    with pytest.raises(ConflictError, match="20250819_160000_beef"):
        log.append(state, draft(state, Batch, RUN, files=files(5)))


def test_nothing_is_committed_without_a_claim(log: Log) -> None:
    state = log.append(log.read(), draft(log.read(), Open, RUN))
    with pytest.raises(ConflictError, match="not claimed"):
        log.append(state, draft(state, Batch, RUN, files=files(5)))


def test_two_runs_that_open_a_log_at_once_share_the_first_one(log: Log) -> None:
    nothing = log.read()
    first = log.append(nothing, draft(nothing, Open, RUN))
    with pytest.raises(Taken):
        log.append(nothing, draft(nothing, Open, "other"))
    assert log.read().log == first.log


def test_garbage_at_our_number_is_damage_not_a_conflict(log: Log, store: Store) -> None:
    state = claimed(log)
    store.put(commit_path(TABLE.name, 2), b"\x00garbage")
    with pytest.raises(DataError) as caught:
        log.append(state, draft(state, Batch, RUN, files=files(5)))
    assert caught.value.code == 6 and commit_path(TABLE.name, 2) in (caught.value.hint or "")


def test_another_run_s_batch_at_our_number_is_damage(log: Log, store: Store) -> None:
    state = claimed(log)
    store.put(commit_path(TABLE.name, 2), dump(draft(state, Batch, "stranger", files=files(1))))
    with pytest.raises(DataError, match="stranger"):
        log.append(state, draft(state, Batch, RUN, files=files(5)))


Harm = Callable[[Store, str], None]


@pytest.mark.parametrize("n", [0, 1, 4, 8])
@pytest.mark.parametrize(
    "harm",
    [
        lambda store, path: store.put(path, b""),
        lambda store, path: store.put(path, (store.get(path) or b"")[:-20]),
        lambda store, path: store.put(path, b"\xff\xfe\x00"),
        lambda store, path: store.put(path, b"[1, 2]"),
        lambda store, path: store.put(path, (store.get(path) or b"").replace(b"shop.orders", b"shop.others")),
        lambda store, path: store.put(path, (store.get(path) or b"").replace(b'"at":"2', b'"at":"1')),
        lambda store, path: store.delete([path]),
    ],
    ids=["empty", "truncated", "random", "other", "another table", "changed", "deleted"],
)
def test_a_damaged_log_is_never_read_as_if_it_were_whole(n: int, harm: Harm, log: Log, store: Store) -> None:
    batches(log, claimed(log), 8)
    harm(store, commit_path(TABLE.name, n))
    with pytest.raises(DataError) as caught:
        log.read()
    assert "damaged" in caught.value.message and caught.value.hint and caught.value.table == TABLE.name


def test_a_log_mixed_with_another_one_is_damage(log: Log, store: Store, tmp_path: Path) -> None:
    batches(log, claimed(log), 2)
    other = Log(Store(StoreSpec(url=str(tmp_path / "other"))), TABLE.name)
    batches(other, claimed(other), 3)
    store.put(commit_path(TABLE.name, 4), other.store.get(commit_path(TABLE.name, 4)) or b"")
    with pytest.raises(DataError, match="commit 4"):
        log.read()


def test_objects_that_are_not_commits_are_left_alone(log: Log, store: Store) -> None:
    state = claimed(log)
    store.put(f"commits/{TABLE.name}/{2:020d}.json.tmp", b"half")
    store.put(f"commits/{TABLE.name}2/{0:020d}.json", b"another table's")
    assert log.read() == state


def test_a_commit_under_another_s_number_is_damage(log: Log, store: Store) -> None:
    batches(log, claimed(log), 3)
    store.put(commit_path(TABLE.name, 3), store.get(commit_path(TABLE.name, 2)) or b"")
    with pytest.raises(DataError, match="really commit 2"):
        log.commit(3)


def test_a_read_resumes_from_the_published_checkpoint(log: Log, store: Unreliable) -> None:
    state = batches(log, claimed(log), 30)
    Publisher(store, TABLE.name, RUN).publish(state, None)
    state = batches(log, state, 3)
    store.reads.clear()
    assert log.read() == state
    fetched = [p for p in store.reads if p.startswith("commits/")]
    assert sorted(fetched) == [commit_path(TABLE.name, n) for n in (31, 32, 33, 34)]


@pytest.mark.parametrize("copy", [b"", b"{}", b"\x00\x01", b'{"table_name": "shop.orders", "checkpoint": 3}'])
def test_a_damaged_checkpoint_is_not_used(copy: bytes, log: Log, store: Store) -> None:
    state = batches(log, claimed(log), 5)
    store.put(primary_path(TABLE.name), copy)
    assert log.read() == state


@pytest.mark.parametrize(
    "change", [(b'"rows":5', b'"rows":6'), (b'"n":6', b'"n":5'), (b"shop.orders", b"shop.others")]
)
def test_a_checkpoint_with_one_digit_changed_is_not_used(
    change: tuple[bytes, bytes], log: Log, store: Store
) -> None:
    state = batches(log, claimed(log), 5)
    Publisher(store, TABLE.name, RUN).publish(state, None)
    whole = store.get(primary_path(TABLE.name)) or b""
    assert change[0] in whole
    store.put(primary_path(TABLE.name), whole.replace(*change))
    assert log.read() == state


def test_a_checkpoint_of_another_log_is_not_used(log: Log, store: Store, tmp_path: Path) -> None:
    state = batches(log, claimed(log), 5)
    elsewhere = Store(StoreSpec(url=str(tmp_path / "elsewhere")))
    other = Log(elsewhere, TABLE.name)
    Publisher(store, TABLE.name, RUN).publish(batches(other, claimed(other), 3), None)
    assert log.read() == state


def test_commits_that_the_state_only_sums_up_are_found_when_the_ledger_lacks_them(
    log: Log, store: Unreliable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.log.fold.RECENT_COMMITS", 3)
    state = batches(log, claimed(log), 10)
    assert [d.n for d in state.data.commits] == [9, 10, 11] and state.data.older.commits == 7
    full = [
        LedgerRow(c.n, found, 0, sum(f.rows for f in files_of(c)), 1, "2099")
        for c, found in log.commits(range(2, 12))
    ]
    store.reads.clear()
    assert log.data(state, full) == state.data.commits and not store.reads
    for lacking in ([4], [2, 3, 10], list(range(2, 12))):
        ledger = [r for r in full if r.n not in lacking]
        found = pending(log.data(state, ledger), Ledger(rows=tuple(ledger)), state.load_epoch)
        assert [d.n for d in found] == lacking
        assert all(d.described == 1 for d in found)
    # A ledger row with another digest is another commit.
    changed = [LedgerRow(r.n, "ab" * 32, 0, 1, 1, "2099") if r.n == 5 else r for r in full]
    assert [d.n for d in pending(log.data(state, changed), Ledger(rows=tuple(changed)), 0)] == [5]


def test_superseded_commits_come_along_only_when_they_are_wanted(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.log.fold.RECENT_COMMITS", 3)
    state = batches(log, claimed(log), 5)
    state = log.append(state, draft(state, Reset, RUN, stages=("extract", "load")))
    state = batches(log, state, 5)
    assert [d.n for d in log.data(state, [])] == [8, 9, 10, 11, 12]
    every = log.data(state, [], superseded=True)
    assert [d.n for d in every if d.superseded] == [2, 3, 4, 5, 6] and len(every) == 10
