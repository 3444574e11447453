"""The claim is the fence; the lease only says that its holder is alive."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec
from floodmark.host.retry import Retries
from floodmark.log import claim as claims
from floodmark.log import lease as leases
from floodmark.log.claim import Changed, Claimed, HeldTable, claim, decide_and_claim
from floodmark.log.document import commit_path
from floodmark.log.fold import NothingLeft, State
from floodmark.log.lease import LeaseNote, holder, lease_path, this_process
from floodmark.log.log import Log, draft
from floodmark.model.commit import Batch, Claim, Open, Owner
from floodmark.model.errors import ConflictError, TransientError
from floodmark.model.json import dump, load
from floodmark.store.store import Store
from tests.support.samples import TABLE, files

ELSEWHERE = Owner("another-host", "another-boot", 1, "1")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(Store(StoreSpec(url=str(tmp_path))), TABLE.name)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def take(log: Log, run: str, owner: Owner | None = None, seconds: float = 60.0) -> Claimed:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "LEASE_SECONDS", seconds)
        if owner is not None:
            patch.setattr(claims, "this_process", lambda: owner)
        outcome = claim(log, log.read(), run=run, purpose="sync", table=TABLE)
    return outcome


def owner_of(pid: int) -> Owner:
    started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return replace(this_process(), pid=pid, started=started)


def note(log: Log) -> LeaseNote:
    return load(LeaseNote, log.store.get(lease_path(TABLE.name)) or b"")


def test_a_table_s_first_claim_opens_its_log(log: Log) -> None:
    with take(log, "run1").lease:
        state = log.read()
        assert state.n == 1 and state.claim is not None and state.claim.run == "run1"
        assert note(log).owner == this_process()


def test_a_second_run_learns_who_holds_the_table_and_until_when(log: Log) -> None:
    with take(log, "run1").lease:
        with pytest.raises(ConflictError) as caught:
            take(log, "run2")
        assert caught.value.code == 3 and caught.value.table == TABLE.name
        for said in ("run1", this_process().host, str(os.getpid()), note(log).expires_at, "sync"):
            assert said in caught.value.message
        assert log.read().n == 1


def test_a_released_table_is_free_at_once(log: Log) -> None:
    first = take(log, "run1")
    first.lease.release()
    first.lease.release()
    assert holder(log.store, TABLE.name, first.state.claim) is None
    take(log, "run2").lease.release()


def test_a_later_claim_s_heartbeat_counts_for_a_reader_who_knows_only_the_earlier_claim(log: Log) -> None:
    first = take(log, "run1")
    first.lease.release()
    old = first.state.claim
    assert old is not None
    with take(log, "run2").lease:
        found = holder(log.store, TABLE.name, replace(old, at="2025-01-01T00:00:00.000000Z"))
        assert found is not None and (found.run, found.alive) == ("run2", True)


def test_a_run_may_claim_its_own_table_again(log: Log) -> None:
    first, second = take(log, "run1"), take(log, "run1")
    first.lease.release()
    # The first lease does not speak for the second claim.
    found = holder(log.store, TABLE.name, second.state.claim)
    assert found is not None and found.alive
    second.lease.release()


def test_a_crashed_holder_on_this_host_is_taken_over_at_once(
    log: Log, child: subprocess.Popen[bytes]
) -> None:
    take(log, "run1", owner_of(child.pid))
    with pytest.raises(ConflictError):
        take(log, "run2")
    child.kill()
    # Dead is dead, whether or not its parent has taken notice.
    deadline = time.monotonic() + 5
    while "Z" not in Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2]:
        assert time.monotonic() < deadline
    take(log, "run2").lease.release()


def test_a_reused_process_id_is_not_the_holder(log: Log) -> None:
    take(log, "run1", replace(this_process(), started="1"))
    take(log, "run2").lease.release()


def test_a_run_that_takes_over_a_table_learns_which_run_was_killed(log: Log) -> None:
    dead = replace(this_process(), started="1")
    first = take(log, "run1", dead)
    log.append(first.state, draft(first.state, Batch, "run1", files=files(7), schema=TABLE.fingerprint))
    second = take(log, "run2")
    killed = second.killed
    assert killed is not None and (killed.run, killed.host, killed.pid) == ("run1", dead.host, dead.pid)
    assert killed.rows == 7 and killed.until is not None and killed.since is not None
    again = take(log, "run2")
    assert again.killed is None  # its own claim
    for lease in (second.lease, again.lease):
        lease.release()
    third = take(log, "run3")
    third.lease.release()
    assert third.killed is None  # released in good order


def test_a_holder_on_another_host_counts_until_its_lease_runs_out(log: Log) -> None:
    first = take(log, "run1", ELSEWHERE, seconds=0.6)
    first.lease._stop.set()  # the host is gone: no renewal, no release
    with pytest.raises(ConflictError, match="another-host"):
        take(log, "run2", seconds=0.6)
    time.sleep(0.7)
    take(log, "run2", seconds=0.6).lease.release()


def test_a_paused_holder_is_taken_over_when_its_lease_runs_out_and_can_not_commit(log: Log) -> None:
    paused = take(log, "run1", seconds=0.3)
    paused.lease._stop.set()  # stands for SIGSTOP: the process exists, but nothing in it moves
    time.sleep(0.4)
    other = take(log, "run2")
    with pytest.raises(ConflictError, match="run2"):
        log.append(paused.state, draft(paused.state, Batch, "run1", files=files(1)))
    other.lease.release()


def test_a_lease_is_renewed_while_it_is_held(log: Log) -> None:
    with take(log, "run1", seconds=2.0).lease:
        first, deadline = note(log).expires_at, time.monotonic() + 20
        while note(log).expires_at == first:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        found = holder(log.store, TABLE.name, log.read().claim)
        assert found is not None and found.alive


def test_a_claim_whose_lease_is_not_written_yet_is_respected(log: Log) -> None:
    state = log.append(log.read(), draft(log.read(), Open, "run1"))
    log.append(state, draft(state, Claim, "run1", owner=this_process(), purpose="sync"))
    with pytest.raises(ConflictError, match="run1"):
        take(log, "run2")


@pytest.mark.parametrize("data", [b"", b"garbage", b"{}"])
def test_a_damaged_lease_stops_nobody_for_longer_than_a_lease_lasts(log: Log, data: bytes) -> None:
    first = take(log, "run1", ELSEWHERE, seconds=0.2)
    first.lease._stop.set()
    time.sleep(0.1)
    log.store.put(lease_path(TABLE.name), data)
    time.sleep(0.2)
    take(log, "run2", seconds=0.2).lease.release()


def test_a_run_that_was_taken_over_does_not_overwrite_the_lease_of_its_successor(log: Log) -> None:
    first = take(log, "run1", replace(this_process(), started="1"))
    second = take(log, "run2")
    first.lease._put()  # as the heartbeat does; by its own clock it might come between the successor's read and write
    assert note(log).run == "run2"
    first.lease.release()
    assert note(log).run == "run2" and not note(log).released
    second.lease.release()


def test_renewals_that_fail_do_not_stop_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class NoLeases(Store):
        def put(self, path: str, data: bytes | bytearray | memoryview | Path) -> None:
            if path.startswith("leases/"):
                raise TransientError("the store is away")
            super().put(path, data)

    log = Log(NoLeases(StoreSpec(url=str(tmp_path))), TABLE.name)
    held = take(log, "run1", seconds=0.1)
    time.sleep(0.2)
    log.append(held.state, draft(held.state, Batch, "run1", files=files(1)))
    held.lease.release()
    assert "could not be renewed" in caplog.text


def test_a_release_that_the_store_did_not_receive_holds_up_no_later_run_of_the_same_process(
    tmp_path: Path,
) -> None:
    class Away(Store):
        away = False

        def put(self, path: str, data: bytes | bytearray | memoryview | Path) -> None:
            if self.away:
                raise TransientError("the store is away")
            super().put(path, data)

    store = Away(StoreSpec(url=str(tmp_path)))
    held = take(Log(store, TABLE.name), "run1")
    store.away = True
    held.lease.release()
    store.away = False
    assert not note(Log(store, TABLE.name)).released
    take(Log(store, TABLE.name), "run2").lease.release()


def test_a_claim_whose_response_was_lost_holds_up_no_later_run_of_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deaf(Store):
        deaf = True

        def create(self, path: str, data: bytes) -> bool:
            super().create(path, data)
            if self.deaf:
                raise TransientError("no answer")
            return False

        def get(self, path: str, most: int | None = None) -> bytes | None:
            if self.deaf and path.startswith("commits/"):
                raise TransientError("no answer")
            return super().get(path, most)

    take(Log(Store(StoreSpec(url=str(tmp_path))), TABLE.name), "run0").lease.release()
    deaf = Deaf(StoreSpec(url=str(tmp_path)))
    before = Log(Store(StoreSpec(url=str(tmp_path))), TABLE.name).read()
    monkeypatch.setattr("floodmark.log.log.COMMITTING", Retries(pause=0.05, seconds=0.1))
    with pytest.raises(TransientError):
        claim(Log(deaf, TABLE.name), before, run="run1", purpose="sync")
    log = Log(Store(StoreSpec(url=str(tmp_path))), TABLE.name)
    newest = log.read().claim
    assert newest is not None and newest.run == "run1"
    take(log, "run2").lease.release()


def test_a_state_that_changed_since_the_plan_is_not_claimed(log: Log) -> None:
    stale = log.read()
    between = take(log, "run1")
    log.append(between.state, draft(between.state, Batch, "run1", files=files(1)))
    between.lease.release()
    with pytest.raises(Changed) as raised:
        claim(log, stale, run="run2", purpose="sync")
    assert raised.value.state == log.read()
    assert claim(log, raised.value.state, run="run2", purpose="sync").state.n == log.read().n


def test_a_decision_on_an_outdated_state_is_made_again_on_the_newer_one(log: Log) -> None:
    stale = log.read()
    take(log, "run1").lease.release()
    seen: list[int] = []

    def decide(state: State) -> Claimed:
        seen.append(state.n)
        return claim(log, state, run="run2", purpose="sync")

    taken = decide_and_claim(log, stale, decide)
    taken.lease.release()
    assert seen == [-1, 1] and taken.state.n == 2


def test_a_table_that_another_run_changed_since_it_was_read_is_held_as_it_is_now(log: Log) -> None:
    held = HeldTable(log.store, TABLE.name, "run2")
    held.read()
    take(log, "run1").lease.release()
    held.hold("load")
    assert held.lease is not None and held.killed is None
    assert held.state == log.read() and held.state.claim is not None and held.state.claim.run == "run2"
    before = held.state
    held.hold("load")
    assert held.state is before
    held.release()
    assert note(log).released


def test_a_decision_that_needs_no_claim_is_taken_as_it_is(log: Log) -> None:
    assert decide_and_claim(log, log.read(), lambda state: state.n) == -1
    assert log.read().n == -1


def test_a_table_that_others_keep_changing_is_a_conflict(log: Log) -> None:
    def outrun(state: State) -> Claimed:
        take(log, "run1").lease.release()
        return claim(log, state, run="run2", purpose="sync")

    with pytest.raises(ConflictError, match="keep changing") as raised:
        decide_and_claim(log, log.read(), outrun)
    assert raised.value.table == TABLE.name


def test_a_live_run_that_claimed_since_the_plan_is_a_conflict(log: Log) -> None:
    stale = log.read()
    with take(log, "run1").lease, pytest.raises(ConflictError, match="run1"):
        claim(log, stale, run="run2", purpose="sync")


def test_of_many_runs_at_once_one_gets_the_table(log: Log) -> None:
    outcomes: list[Claimed | Changed | ConflictError] = []
    start = threading.Barrier(10)
    nothing: State = log.read()

    def contend(run: str) -> None:
        start.wait()
        try:
            outcomes.append(claim(log, nothing, run=run, purpose="sync"))
        except (Changed, ConflictError) as error:
            outcomes.append(error)

    threads = [threading.Thread(target=contend, args=(f"run{i}",)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    won = [o for o in outcomes if isinstance(o, Claimed)]
    assert len(outcomes) == 10 and len(won) == 1
    # The loser of the race to open the log only has to plan again.
    state = log.read()
    assert won[0].state == state
    assert log.store.get(commit_path(TABLE.name, 2)) is None
    for winner in won:
        winner.lease.release()


def test_a_lease_reads_back_as_it_was_written() -> None:
    written = LeaseNote(TABLE.name, "run1", "id", 3, ELSEWHERE, None, "a", "b")
    assert load(LeaseNote, dump(written)) == written


def test_a_lease_alone_shows_that_a_table_had_state_and_is_removed_when_it_starts_over(log: Log) -> None:
    for _ in range(3):
        with take(log, "old").lease:
            pass
    log.store.delete([o.path for o in log.store.list("commits/")])
    with pytest.raises(NothingLeft, match="only the lease"):
        log.read()
    taken = claim(log, log.begin(), run="new", purpose="reset")
    with taken.lease:
        assert (note(log).run, note(log).n) == ("new", 1)
