"""The source's log of changes: a table's log under a name of its own, and what tables have not followed of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from floodmark.clean.copies import Keep, choose
from floodmark.config.load import CopiesTo, StoreSpec
from floodmark.log import source_log
from floodmark.log.document import commit_path, primary_path
from floodmark.log.fold import Damaged, Progress, State
from floodmark.log.following import here, lowest, to_read, unread
from floodmark.log.lease import lease_path
from floodmark.log.log import Log, tables
from floodmark.log.recovery import recoveries
from floodmark.log.source_log import descriptions, waiting
from floodmark.model.changes import SOURCE_LOG, FollowedChanges, LogIdentity, PreparedXa
from floodmark.model.commit import Batch, Set
from floodmark.model.errors import ConflictError, TransientError
from floodmark.model.json import dump, load
from floodmark.store.places import finish
from floodmark.store.store import Store
from floodmark.sync.news import news_of
from tests.support.samples import History
from tests.support.samples import at as position
from tests.support.source_logs import (
    ITEMS,
    ORDERS,
    SERVER,
    USERS,
    at,
    changed,
    described,
    end,
    key_file,
    opened,
    run_name,
    touch,
)
from tests.support.watermark_copies import HARMS, Counting, published


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(StoreSpec(url=str(tmp_path / "lake")))


def again(store: Store) -> State:
    return Log(store, SOURCE_LOG).read()


def opened_table(store: Store) -> State:
    return replace(Log(store, ORDERS).read(), table_name=ORDERS)


def files_of(state: State, log: Log, name: str, followed) -> tuple[str, ...]:  # type: ignore[no-untyped-def]
    found = waiting(log, state, {name: followed})
    return tuple(f.path for f in found[name].files) if name in found else ()


# What is stored.


def test_everything_lies_below_one_folder_and_is_no_table(store: Store) -> None:
    held = opened(store, ORDERS)
    touch(held, ORDERS, upto=200)
    held.release()
    assert {o.path.partition("/")[0] for o in store.list("")} == {"changes"}
    assert tables(store) == []
    assert primary_path(SOURCE_LOG) == "changes/watermark/tables/source.json"


def test_the_state_is_the_same_from_the_log_and_from_a_copy(store: Store) -> None:
    held = opened(store, ORDERS, ITEMS)
    touch(held, ORDERS, upto=200, prepared=(PreparedXa("1,61,62", {}, at(150)),))
    held.release()
    assert again(store) == held.state == Log(store, SOURCE_LOG).fold_on(State(SOURCE_LOG))
    assert load(State, dump(held.state)) == held.state
    assert not recoveries(store, SOURCE_LOG)


def test_a_table_says_how_far_it_followed_and_other_commits_are_stored_as_before(store: Store) -> None:
    there = here(opened(store, ORDERS).state)
    history = History()
    history.claim()
    assert history.state.progress.followed_to is None and b"followed_to" not in dump(history.state)
    assert all(b"followed_to" not in dump(commit) for commit, _ in history.commits)
    history.add(Batch, followed_to=there)
    assert history.state.progress.followed_to == there
    assert load(State, dump(history.state)) == history.state
    later = replace(there, n=9) if there else None
    history.add(Batch, followed_to=later)
    history.add(Batch)
    assert history.state.progress.followed_to == later
    with pytest.raises(Damaged, match="follows the source's log to"):
        history.add(Batch, followed_to=there)
    history.add(Set, position=position(3))
    assert history.state.progress.followed_to is None


# What may follow what.


def test_a_read_begins_where_the_last_one_ended(store: Store) -> None:
    held = opened(store, ORDERS)
    touch(held, ORDERS, upto=200)
    with pytest.raises(
        Damaged, match=r"begins at binlog\.000001:150, but the binary log was read to binlog\.000001:200"
    ):
        touch(held, ORDERS, upto=300, begin=at(150))
    touch(held, upto=300, begin=at(250), every=("lost",))
    assert again(store).source == held.state.source


def test_after_a_failover_the_log_goes_on_at_a_place_of_another_server(store: Store) -> None:
    held = opened(store, ORDERS)
    other = LogIdentity("another", mariadb=False)
    state = source_log.append(held, FollowedChanges(at(4, 9), at(70, 9)), end(70), other)
    assert state.source is not None and (state.source.began, state.source.identity) == (at(4, 9), other)


def test_a_commit_names_only_key_files_that_it_has(store: Store) -> None:
    held = opened(store, ORDERS)
    read = FollowedChanges(at(100), at(200), {ORDERS: changed(key_file(held, ORDERS))})
    with pytest.raises(Damaged, match="which it does not have"):
        source_log.append(held, read, end(200), SERVER)


def test_commits_of_tables_and_of_the_source_do_not_mix(store: Store) -> None:
    held = opened(store, ORDERS)
    with pytest.raises(Damaged, match="not of this log"):
        held.append(held.draft(Batch))
    history = History()
    history.claim()
    changes = held.log.commit(held.state.n)[0]
    with pytest.raises(Damaged, match="not of this log"):
        history.add(type(changes), followed=FollowedChanges(at(1), at(2)), end=end(2), identity=SERVER)


def test_a_run_that_lost_the_log_commits_nothing(store: Store) -> None:
    held = opened(store, ORDERS)
    held.release()
    other = source_log.source_log(store, run_name())
    assert source_log.hold(other, lambda state: True)
    with pytest.raises(ConflictError):
        touch(held, ORDERS, upto=200)
    touch(other, ORDERS, upto=200)
    assert again(store).n == other.state.n


# Who is listened for.


def test_a_table_is_listened_for_from_the_place_where_it_was_added(store: Store) -> None:
    held = opened(store, ORDERS)
    touch(held, ORDERS, upto=200)
    before = here(held.state)
    source_log.listen(held, [described(ITEMS)])
    joined = here(held.state)
    assert joined is not None and joined.place == at(200)
    touch(held, ITEMS, upto=300)
    log = Log(store, SOURCE_LOG)
    assert waiting(log, again(store), {ITEMS: joined})[ITEMS].reconcile == ()
    assert waiting(log, again(store), {ITEMS: before})[ITEMS].reconcile == ("unlisted",)
    assert waiting(log, again(store), {USERS: joined})[USERS].reconcile == ("unlisted",)


def test_a_table_that_was_off_the_list_for_a_while_is_reconciled(store: Store) -> None:
    held = opened(store, ORDERS, ITEMS)
    followed = here(held.state)
    source_log.listen(held, [], left=[ORDERS])
    assert held.state.source is not None and set(held.state.source.tables) == {ITEMS}
    touch(held, ITEMS, upto=200)
    source_log.listen(held, [described(ORDERS)])
    assert waiting(held.log, held.state, {ORDERS: followed})[ORDERS].reconcile == ("unlisted",)


def test_a_table_has_the_description_that_was_made_last(store: Store) -> None:
    held = opened(store, ORDERS, ITEMS)
    wider = replace(described(ORDERS), columns=(*described(ORDERS).columns, ("note", "text")))
    source_log.listen(held, [wider])
    found = descriptions(held.log, held.state, [ORDERS, ITEMS, USERS])
    assert found == {ORDERS: wider, ITEMS: described(ITEMS)}
    assert held.state.source is not None and held.state.source.tables[ORDERS].since == 2


def test_many_tables_are_added_by_several_commits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_log, "ADDED_AT_ONCE", 2)
    held = opened(store, *(f"shop.t{n}" for n in range(5)))
    assert held.state.n == 4
    state = again(store)
    assert descriptions(held.log, state, ["shop.t4"]) == {"shop.t4": described("shop.t4")}
    # They all began at the same place, so another log's table can go on with any of them.
    theirs = here(state)
    assert theirs is not None
    assert [unread(state, f"shop.t{n}", replace(theirs, log="lost")) for n in range(5)] == [None] * 5


# What a table has not followed.


def test_a_table_that_nobody_touched_costs_no_request(tmp_path: Path) -> None:
    store = Counting(StoreSpec(url=str(tmp_path / "lake")))
    held = opened(store, ORDERS, ITEMS)
    followed = here(held.state)
    for n in range(5):
        touch(held, ORDERS, upto=200 + n)
    log = Log(store, SOURCE_LOG)
    state = log.read()
    store.reads.clear()
    assert waiting(log, state, {ITEMS: followed}) == {} and store.reads == []
    assert to_read(state, {ITEMS: followed}) == range(0)


def test_key_files_come_in_the_logs_order_and_only_those_after_the_place_followed(store: Store) -> None:
    held = opened(store, ORDERS, ITEMS)
    first = here(held.state)
    paths = []
    for n in range(4):
        touch(held, ORDERS, *([ITEMS] if n % 2 else []), upto=200 + n)
        paths.append(f"changes/keys/{ORDERS}/{held.run}/{held.state.n - 1}-0.parquet")
    assert files_of(held.state, held.log, ORDERS, first) == tuple(paths)
    middle = replace(first, n=first.n + 2, digest=held.log.commit(first.n + 2)[1])  # type: ignore[type-var, union-attr]
    assert files_of(held.state, held.log, ORDERS, middle) == tuple(paths[2:])
    upto = waiting(held.log, held.state, {ORDERS: middle})[ORDERS].upto
    assert upto == here(held.state)
    assert waiting(held.log, held.state, {ORDERS: upto, ITEMS: upto}) == {}


def test_a_table_that_another_run_brought_further_than_our_read_has_nothing_pending(store: Store) -> None:
    held = opened(store, ORDERS)
    first = here(held.state)
    assert first is not None
    ours = news_of(store, held.state, 5.0)
    touch(held, ORDERS, upto=200)
    further = here(held.state)
    table = replace(opened_table(store), progress=Progress(started=True, followed_to=further))
    said = ours.of(table)
    assert said is not None and (said.pending, said.newest) == (None, further)
    # A log that has never been there is another matter: the store went back to an earlier state.
    beyond = replace(first, n=first.n + 9)
    said = ours.of(replace(table, progress=Progress(started=True, followed_to=beyond)))
    assert said is not None and said.pending is not None and said.pending.reconcile == ("lost",)


def test_where_the_log_could_not_tell_the_table_is_reconciled(store: Store) -> None:
    held = opened(store, ORDERS, ITEMS)
    followed = here(held.state)
    touch(held, ORDERS, upto=200, reconcile=("truncate",))
    touch(held, ORDERS, upto=300, reconcile=("ddl",))
    found = waiting(held.log, held.state, {ORDERS: followed, ITEMS: followed})
    assert list(found) == [ORDERS]
    assert found[ORDERS].reconcile == ("truncate", "ddl") and len(found[ORDERS].files) == 2
    assert held.state.source is not None and held.state.source.tables[ORDERS].reconcile == held.state.n


def test_a_log_that_began_anew_reconciles_every_table(store: Store) -> None:
    held = opened(store, ORDERS, ITEMS)
    followed = here(held.state)
    touch(held, upto=300, begin=at(250), every=("lost",))
    found = waiting(held.log, held.state, {ORDERS: followed, ITEMS: followed})
    assert {name: each.reconcile for name, each in found.items()} == {ORDERS: ("lost",), ITEMS: ("lost",)}
    assert waiting(held.log, held.state, {ORDERS: here(held.state)}) == {}


def test_a_store_that_went_back_and_on_from_there_is_noticed_where_a_table_stands(store: Store) -> None:
    held = opened(store, ORDERS)
    touch(held, ORDERS, upto=200)
    followed = here(held.state)
    assert followed is not None
    touch(held, ORDERS, upto=300)
    elsewhere = replace(followed, digest="0" * 64)
    assert waiting(held.log, held.state, {ORDERS: elsewhere})[ORDERS].reconcile == ("lost",)
    beyond = replace(followed, n=99)
    assert waiting(held.log, held.state, {ORDERS: beyond})[ORDERS].reconcile == ("lost",)


# XA.


def test_prepared_keys_count_once_the_transaction_is_committed(store: Store) -> None:
    held = opened(store, ORDERS)
    followed = here(held.state)
    file = key_file(held, ORDERS)
    xa = PreparedXa("1,61,62", {ORDERS: changed(file)}, at(150))
    read = FollowedChanges(at(100), at(200), prepared=(xa,))
    source_log.append(held, read, end(200), SERVER, files=(file,))
    assert held.state.source is not None and held.state.source.prepared[0].n == held.state.n
    assert waiting(held.log, held.state, {ORDERS: followed}) == {}
    upto = here(held.state)
    touch(held, upto=250, prepared=(xa,))
    assert held.state.source.prepared[0].n == held.state.n - 1, "the commit that read it stays known"
    read = FollowedChanges(at(250), at(300), {ORDERS: changed(file)})
    source_log.append(held, read, end(300), SERVER)
    assert held.state.source.prepared == ()
    assert files_of(held.state, held.log, ORDERS, followed) == (file.path,)
    assert files_of(held.state, held.log, ORDERS, upto) == (file.path,)


def test_a_table_added_while_a_transaction_was_prepared_is_reconciled_once_that_ends(store: Store) -> None:
    held = opened(store, ORDERS)
    touch(held, upto=200, prepared=(PreparedXa("1,61,62", {}, at(150)),))
    source_log.listen(held, [described(ITEMS)])
    joined = here(held.state)
    touch(held, upto=300, prepared=(PreparedXa("1,61,62", {}, at(150)),))
    assert waiting(held.log, held.state, {ITEMS: joined}) == {}
    touch(held, upto=400)
    assert waiting(held.log, held.state, {ITEMS: joined, ORDERS: joined}).keys() == {ITEMS}
    assert waiting(held.log, held.state, {ITEMS: joined})[ITEMS].reconcile == ("unlisted",)


# A run waits for another.


def test_a_run_waits_for_another_and_sees_what_that_has_done(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = opened(store, ORDERS)
    pauses = []

    def work(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            touch(held, ORDERS, upto=200)
            held.release()

    monkeypatch.setattr("floodmark.host.retry.time.sleep", work)
    other = source_log.source_log(store, run_name())
    wanted = source_log.hold(other, lambda state: state.source is None or state.source.next_start < at(200))
    assert not wanted and len(pauses) == 2
    assert other.lease is None and again(store).n == held.state.n
    assert source_log.hold(other, lambda state: True) and other.state.claim is not None


def test_a_run_that_waits_in_vain_ends_with_4_and_says_for_whom(store: Store) -> None:
    held = opened(store, ORDERS)
    other = source_log.source_log(store, run_name())
    with pytest.raises(TransientError, match=held.run):
        source_log.hold(other, lambda state: True, seconds=0.1)


# Damage and loss.


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_copy_or_commit_comes_back(store: Store, harm: str) -> None:
    held = opened(store, ORDERS)
    for n in range(6):
        touch(held, ORDERS, upto=200 + n)
    held.release()
    other = store.get(commit_path(SOURCE_LOG, 0)) or b""
    for path in (commit_path(SOURCE_LOG, held.state.n), primary_path(SOURCE_LOG)):
        HARMS[harm](store, path, other)
        assert again(store) == held.state
    for n in range(1, held.state.n):
        before = store.get(commit_path(SOURCE_LOG, n))
        HARMS[harm](store, commit_path(SOURCE_LOG, n), other)
        assert Log(store, SOURCE_LOG).fold_on(State(SOURCE_LOG)) == held.state
        assert store.get(commit_path(SOURCE_LOG, n)) == before


def test_a_store_that_has_lost_everything_gets_the_log_back_from_a_further_place(tmp_path: Path) -> None:
    spec = StoreSpec(url=str(tmp_path / "lake"), copies_to=(CopiesTo(str(tmp_path / "place"), log=True),))
    store = Store(spec)
    held = opened(store, ORDERS)
    touch(held, ORDERS, upto=200)
    held.release()
    finish(store.places)
    assert tables(store.places[0].store) == []
    store.delete([o.path for o in store.list("")])
    assert again(Store(spec)) == held.state


def test_a_log_beyond_recovery_is_put_aside_and_begins_where_the_tables_are(store: Store) -> None:
    held = opened(store, ORDERS, ITEMS)
    first = here(held.state)
    touch(held, ORDERS, ITEMS, upto=200)
    second = here(held.state)
    held.release()
    for item in [*store.list("changes/commits/"), *store.list("changes/watermark/")]:
        store.put(item.path, b"{")
    assert first is not None and second is not None
    named = {ORDERS: first, ITEMS: second}
    begin = lowest(named.values(), SERVER.server)
    assert begin == first and lowest(named.values(), "another") is None
    anew = source_log.source_log(store, run_name())
    assert source_log.hold(anew, lambda state: state.source is None)
    assert list(store.list("damaged/source/"))
    source_log.listen(
        anew, [described(n) for n in named], begin=(replace(end(0), place=begin.place), begin.identity)
    )
    assert waiting(anew.log, anew.state, named) == {}
    touch(anew, ORDERS, ITEMS, upto=300)
    found = waiting(anew.log, anew.state, named)
    assert {name: (len(each.files), each.reconcile) for name, each in found.items()} == {
        ORDERS: (1, ()), ITEMS: (1, ()),
    }  # fmt: skip


def test_a_table_that_followed_a_lost_log_to_before_the_new_one_is_reconciled(store: Store) -> None:
    held = opened(store, ORDERS)
    there = here(held.state)
    assert there is not None
    earlier = replace(there, log="lost", place=at(99))
    elsewhere = replace(there, log="lost", identity=LogIdentity("another", mariadb=False))
    for place in (earlier, elsewhere):
        assert waiting(held.log, held.state, {ORDERS: place})[ORDERS].reconcile == ("lost",)


def test_a_new_log_tells_nothing_of_a_table_that_it_listened_for_only_later(store: Store) -> None:
    held = opened(store, ORDERS)
    there = here(held.state)
    assert there is not None
    touch(held, ORDERS, upto=200)
    source_log.listen(held, [described(ITEMS)])
    place = replace(there, log="lost")
    assert (unread(held.state, ORDERS, place), unread(held.state, ITEMS, place)) == (-1, "lost")


def test_a_damaged_log_that_a_live_run_holds_is_left_alone(store: Store) -> None:
    held = opened(store, ORDERS)
    for item in [*store.list("changes/commits/"), *store.list("changes/watermark/")]:
        store.put(item.path, b"{")
    other = source_log.source_log(store, run_name())
    with pytest.raises(TransientError, match="another run holds the log"):
        source_log.hold(other, lambda state: True, seconds=0.1)
    held.release()
    assert source_log.hold(other, lambda state: True)


def test_old_copies_are_removed_like_a_tables(store: Store) -> None:
    held = opened(store, ORDERS)
    held.release()
    published(store)
    later = datetime.now(UTC) + timedelta(days=9)
    old = choose(store, Keep.all(7), later)
    assert {o.path.partition("watermark/")[0] for o in old.sessions} == {"", "changes/"}
    assert old.daily == () and store.get(lease_path(SOURCE_LOG)) is not None
    today = next(o for o in store.list("changes/watermark/backups/daily/"))
    store.put(today.path.replace(today.path[-13:-5], "20200101"), store.get(today.path) or b"")
    assert [o.path[-13:-5] for o in choose(store, Keep.all(7), later).daily] == ["20200101"]
