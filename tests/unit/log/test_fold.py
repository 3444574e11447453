"""A table's state is the fold of its log."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.log.document import condense
from floodmark.log.fold import State, fold
from floodmark.model.changes import FollowedTo, LogIdentity, LogPlace
from floodmark.model.commit import Batch, Claim, Commit, Deletes, Open, Reset, Restore, Set
from floodmark.model.errors import DataError
from floodmark.model.json import dump, load
from floodmark.model.origin import Origin, Witness
from floodmark.model.zones import Zone
from tests.support.described import changed
from tests.support.samples import TABLE, History, at, files, window

LOW, HIGH = at(0, 1), at(59, 9)
EDGES = (at(10, 5), at(20, 5), at(30, 5))


def opened(**more: Any) -> History:
    history = History()
    history.claim(window=replace(window("w", LOW, EDGES, HIGH), **more))
    return history


def test_a_window_in_cursor_order_moves_the_position_with_each_commit() -> None:
    history = opened()
    seen = [history.state.position]
    for slices in ((0,), (1, 2), (3,)):
        seen.append(history.add(Batch, window_id="w", slices=slices, files=files(5)).position)
    assert seen == [None, EDGES[0], EDGES[2], HIGH]
    assert (history.state.position, history.state.window, history.state.progress.done) == (HIGH, None, ())


def test_a_slice_that_finishes_early_does_not_move_the_position_over_a_gap() -> None:
    history = opened()
    history.add(Batch, window_id="w", slices=(1, 3), files=files(5))
    assert (history.state.position, history.state.progress.done) == (None, (1, 3))
    history.add(Batch, window_id="w", slices=(0,), files=files(5))
    assert history.state.position == EDGES[1]


def test_a_window_in_key_order_moves_the_position_only_when_it_is_closed() -> None:
    history = opened(by="key", edges=((10,), (20,)))
    for i in (0, 2):
        state = history.add(Batch, window_id="w", slices=(i,), files=files(5))
        assert state.position is None and state.window is not None
    state = history.add(Batch, window_id="w", slices=(1,), files=files(5))
    assert state.position == HIGH and state.window is None


def test_the_clock_difference_is_kept_with_the_bound() -> None:
    history = opened(ahead=1.5)
    assert history.add(Batch, window_id="w", slices=(0,), files=files(5)).progress.ahead is None
    assert history.add(Batch, window_id="w", slices=(1, 2, 3), files=files(5)).progress.ahead == 1.5


def test_the_zone_that_a_claim_has_seen_is_forgotten_only_when_the_position_is_set_by_hand() -> None:
    zone = Zone(1_700_000_100, 28_800, (0,))
    history = opened()
    history.claim(zone=zone)
    assert history.claim().progress.zone == zone
    assert history.add(Restore, position=LOW).progress.zone == zone
    assert history.add(Set, position=LOW).progress.zone is None


def test_the_source_of_the_newest_claim_that_has_one_is_kept_until_a_position_is_set_or_reset() -> None:
    origin = Origin("uuid", None, 7, None, (Witness(at(10, 5), (("a1b2c3", 5),)),))
    cases: list[tuple[type[Commit], dict[str, Any], bool]] = [
        (Restore, {"position": at(10, 5)}, True),
        (Set, {"position": at(10, 5)}, False),
        (Reset, {"stages": ("load",)}, True),
        (Reset, {"stages": ("extract", "load")}, False),
    ]
    for kind, more, kept in cases:
        history = History()
        history.claim(window=window("w", LOW, EDGES, HIGH), origin=origin)
        history.claim()
        assert history.state.extraction.origin == origin == load(State, dump(history.state)).extraction.origin
        assert (history.add(kind, **more).extraction.origin == origin) is kept


def test_the_bound_is_that_of_the_last_window_that_was_closed() -> None:
    history = opened()
    assert history.add(Batch, window_id="w", slices=(0,), files=files(5)).progress.bound is None
    assert history.add(Batch, window_id="w", slices=(1, 2, 3), files=files(5)).progress.bound == 1000.0


def test_a_new_window_replaces_an_open_one_and_the_gapless_part_stays() -> None:
    history = opened()
    history.add(Batch, window_id="w", slices=(0, 2), files=files(5))
    history.claim("other", window=window("x", EDGES[0], (), HIGH))
    assert (history.state.position, history.state.progress.done) == (EDGES[0], ())
    history.add(Batch, "other", window_id="x", slices=(0,), files=files(5))
    assert history.state.position == HIGH


def test_a_window_that_is_cut_finer_keeps_its_committed_parts() -> None:
    history = History()
    history.claim(window=window("w", at(0), [at(10, 1), at(20, 1)], at(42, 7)))
    history.add(Batch, window_id="w", slices=(2,), files=files(3))
    finer = window("f", at(0), [at(5, 1), at(10, 1), at(20, 1)], at(42, 7), done=(3,))
    assert history.claim(window=finer).progress.done == (3,)
    history.add(Batch, window_id="f", slices=(0, 1), files=files(1, 1))
    assert history.state.position == at(10, 1)
    state = history.add(Batch, window_id="f", slices=(2,), files=files(2))
    assert (state.position, state.window, state.totals.rows) == (at(42, 7), None, 7)


def test_a_claim_without_a_window_leaves_the_open_one_to_the_next_extraction() -> None:
    history = opened()
    history.add(Batch, window_id="w", slices=(0,), files=files(5))
    before = history.state
    history.claim("loader", purpose="load", table=None, window=None, strategy=None)
    assert history.state.window == before.window and history.state.progress.done == (0,)
    assert history.state.table == TABLE and history.state.described == before.described
    history.claim("next", window=before.window)
    assert history.state.progress.done == (0,)


def test_a_sync_that_plans_no_window_gives_up_one_of_which_nothing_was_read() -> None:
    history = opened()
    history.claim("loader", purpose="load", window=None)
    assert history.state.window is not None
    position = history.state.position
    given_up = history.claim("next", window=None)
    assert (given_up.window, given_up.position) == (None, position)
    for left in (
        window("whole", None, (), at(42, 7), whole=True),
        window("s", None, (), at(42, 7), by="snapshot"),
    ):
        history.claim(window=left)
        history.claim("next", window=None)
        assert history.state.window == left, "it says that the target's rows are to be replaced"
    history = opened()
    history.add(Batch, window_id="w", slices=(0,), files=files(5))
    history.claim("next", window=None)
    assert history.state.window is not None, "its other slices are still to be read"


def test_a_snapshot_is_closed_by_one_batch_even_an_empty_one() -> None:
    history = opened(by="snapshot", low=None, high=None, edges=())
    history.add(Batch, window_id="w", slices=(0,), load_as="replace")
    assert history.state.window is None and history.state.progress.started and history.state.position is None
    assert [d.load_as for d in history.state.live] == ["replace"]


def test_slices_without_rows_leave_nothing_to_load() -> None:
    history = opened()
    history.add(Batch, window_id="w", slices=(0, 1, 2, 3))
    assert (
        history.state.position == HIGH
        and history.state.data.commits == ()
        and history.state.totals.batches == 0
    )


def test_rows_read_again_move_nothing_and_are_counted() -> None:
    history = opened()
    history.add(Batch, files=files(7), overlap="seen")
    state = history.state
    assert (state.position, state.totals.rows, state.progress.overlap, state.progress.started) == (
        None,
        7,
        "seen",
        False,
    )


def test_a_manual_position_holds_until_a_window_is_read() -> None:
    history = opened()
    history.add(Set, position=at(42))
    state = history.state
    assert (
        state.progress.manual
        and state.progress.manual_timestamp == at(42)[0]
        and state.window is None
        and state.progress.started
    )
    assert history.add(Batch, files=files(1)).progress.manual
    assert history.claim(window=window("x", at(42), (), HIGH)).progress.manual
    state = history.add(Batch, window_id="x", slices=(0,), files=files(1))
    assert not state.progress.manual and state.progress.manual_timestamp is None


def test_a_reset_of_both_stages_supersedes_the_files_and_sets_the_counts_to_zero() -> None:
    history = opened()
    history.add(Batch, window_id="w", slices=(0,), files=files(5, 6), seconds=3.0)
    history.add(Reset, stages=("extract", "load"))
    state = history.state
    assert (state.position, state.progress.started, state.window, state.extraction.last_extraction_time) == (
        None,
        False,
        None,
        None,
    )
    assert (
        state.totals.rows,
        state.totals.files,
        state.totals.bytes,
        state.totals.batches,
        state.totals.seconds,
    ) == (0, 0, 0, 0, 0.0)
    assert state.extraction.epoch == state.load_epoch == state.data.superseded == state.n
    assert state.live == () and state.live_files == 0
    assert [d.superseded for d in state.data.commits] == [True]


def test_a_reset_of_the_extraction_leaves_what_was_extracted_to_the_load() -> None:
    history = opened()
    history.add(Batch, window_id="w", slices=(0,), files=files(5, 6))
    history.add(Reset, stages=("extract",))
    assert history.state.position is None and history.state.totals.rows == 0 and history.state.load_epoch == 0
    assert len(history.state.live) == 1 and history.state.live_files == 2


def test_a_reset_of_the_load_leaves_the_position_and_begins_an_epoch() -> None:
    history = opened()
    history.add(Batch, window_id="w", slices=(0,), files=files(5, 6))
    before = history.state
    history.add(Reset, stages=("load",))
    assert history.state.position == before.position and history.state.totals.rows == 11
    assert history.state.window == before.window and history.state.load_epoch == history.state.n


def test_a_restore_moves_only_the_position() -> None:
    history = opened()
    history.add(Batch, window_id="w", slices=(0, 1), files=files(5, 6))
    history.add(Restore, position=at(3, 3))
    state = history.state
    assert (state.position, state.window, state.totals.rows, len(state.live)) == (at(3, 3), None, 11, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": Batch, "run": "another"},
        {"kind": Set, "position": ()},
        {"kind": Reset},
        {"kind": Open},
        {"kind": Batch, "window_id": "unknown", "slices": (0,)},
        {"kind": Batch, "window_id": "w", "slices": (4,)},
        {"kind": Batch, "window_id": "w", "slices": (0, 0)},
        {"kind": Batch, "window_id": "w", "slices": (1,)},
        {"kind": Claim, "window": window("w", LOW, EDGES[:1], HIGH)},
    ],
)
def test_a_commit_that_breaks_a_rule_is_damage(fields: dict[str, Any]) -> None:
    history = opened()
    history.add(Batch, window_id="w", slices=(1,), files=files(1))
    with pytest.raises(DataError, match="commit 3"):
        history.add(**fields)


def test_a_commit_before_any_claim_is_damage() -> None:
    with pytest.raises(DataError, match="nobody"):
        History().add(Batch, files=files(1))


@pytest.mark.parametrize("change", [{"n": 7}, {"prev": "00"}, {"log": "other"}, {"table_name": "shop.other"}])
def test_a_commit_that_does_not_continue_its_log_is_damage(change: dict[str, Any]) -> None:
    history = opened()
    commit, found = history.commits[-1]
    before = fold(State(TABLE.name), *history.commits[0])
    assert fold(before, commit, found) == history.state
    with pytest.raises(DataError):
        fold(before, replace(commit, **change), found)


# Random logs. Positions are (second, 0), so that order can be checked with plain comparison.

operation = st.one_of(
    st.tuples(st.just("claim"), st.integers(1, 4), st.sampled_from(["cursor", "key"])),
    st.tuples(st.just("resume"), st.just(0), st.just("")),
    st.tuples(st.just("load"), st.just(0), st.just("")),
    st.tuples(st.just("batch"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("batch"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("again"), st.integers(0, 3), st.just("")),
    st.tuples(st.just("deletes"), st.integers(1, 2), st.just("")),
    st.tuples(st.just("set"), st.integers(0, 500), st.just("")),
    st.tuples(st.just("restore"), st.integers(0, 500), st.just("")),
    st.tuples(st.just("reset"), st.integers(0, 2), st.just("")),
)


def play(operations: list[tuple[str, int, Any]]) -> tuple[History, list[State]]:
    """A valid log made of these operations, and the state after each commit."""
    history = History()
    history.claim()
    states = [fold(State(TABLE.name), *history.commits[0]), history.state]
    for i, (what, number, more) in enumerate(operations):
        state = history.state
        match what:
            case "claim":
                base = int(str(state.position[0])) if state.position else 0
                cuts = [(f"{base + k + 1:06}", 0) for k in range(number)]
                edges = cuts[:-1] if more == "cursor" else [(k,) for k in range(number - 1)]
                history.run = f"run{i}"
                history.claim(window=window(f"w{i}", state.position, edges, cuts[-1], by=more))
            case "resume" | "load":
                history.run = f"run{i}"
                history.claim(window=state.window if what == "resume" else None)
            case "batch" if state.window is not None:
                free = [s for s in range(state.window.slices) if s not in state.progress.done]
                chosen = tuple(free[more % len(free) :])[: number + 1]
                rows = files(*range(number), prefix=str(i))
                history.add(Batch, window_id=state.window.id, slices=chosen, files=rows, seconds=0.1)
            case "again":
                history.add(Batch, files=files(*range(number), prefix=str(i)))
            case "deletes":
                history.add(Deletes, files=files(*range(number), prefix=str(i)), load_as="delete")
            case "set" | "restore":
                history.add(Set if what == "set" else Restore, position=(f"{number:06}", 0))
            case "reset":
                history.add(Reset, stages=(("extract",), ("load",), ("extract", "load"))[number])
        if history.state is not state:
            states.append(history.state)
    return history, states


@given(st.lists(operation, max_size=40))
def test_sums_are_those_of_the_commits_since_the_reset(operations: list[tuple[str, int, Any]]) -> None:
    history, _ = play(operations)
    state = history.state
    since = [c for c, _ in history.data if c.n > state.extraction.epoch]
    assert state.totals.rows == sum(c.rows for c in since)
    assert state.totals.files == sum(len(c.files) for c in since)
    assert state.totals.bytes == sum(c.bytes for c in since)
    live = {c.n for c, _ in history.data if c.files and c.n > state.data.superseded}
    assert {d.n for d in state.live} == live


@given(st.lists(operation, max_size=40))
def test_the_position_goes_back_only_by_hand(operations: list[tuple[str, int, Any]]) -> None:
    history, states = play(operations)
    for before, after, (commit, _) in zip(states[:-1], states[1:], history.commits[1:], strict=True):
        if isinstance(commit, Set | Restore):
            assert after.position == commit.position
        elif isinstance(commit, Reset) and "extract" in commit.stages:
            assert after.position is None
        elif before.position is not None:
            assert after.position is not None and after.position >= before.position
        by_window = isinstance(commit, Batch) and not commit.beside
        if not by_window and not isinstance(commit, Set | Restore | Reset):
            assert after.position == before.position


@settings(max_examples=60)
@given(st.lists(operation, max_size=40), st.integers(0, 40), st.integers(1, 4))
def test_a_checkpoint_and_its_newer_commits_give_the_whole_fold(
    operations: list[tuple[str, int, Any]], cut: int, recent: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Few, so that commits are summed up in these short logs too.
        patch.setattr("floodmark.log.fold.RECENT_COMMITS", recent)
        patch.setattr("floodmark.log.fold.RECENT_FILES", recent)
        history, states = play(operations)
        cut = min(cut, len(states) - 1)
        state = load(State, dump(states[cut]))
        assert state == states[cut]
        for commit, found in history.commits[cut + 1 :]:
            state = fold(state, commit, found)
        assert state == history.state and dump(state) == dump(history.state)
        assert len(state.data.commits) <= recent and len(state.data.recent_files) <= recent


@settings(max_examples=60)
@given(st.lists(operation, max_size=40), st.integers(1, 4), st.sets(st.integers(0, 45)))
def test_pending_is_what_the_ledger_lacks_even_if_most_is_summed(
    operations: list[tuple[str, int, Any]], recent: int, lacking: set[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("floodmark.log.fold.RECENT_COMMITS", recent)
        history, _ = play(operations)
    state = history.state
    ledger = [r for r in history.ledger() if r.n not in lacking and r.files]
    loaded = condense(state, ledger)
    live = {c.n for c, _ in history.data if c.files and c.n > state.data.superseded}
    assert loaded.pending(state) == bool(live - {r.n for r in ledger})
    assert loaded.rows == sum(r.rows for r in ledger)
    known = {r.n for r in ledger}
    assert all(loaded.has(f.n) == (f.n in known) for f in state.data.recent_files)


@pytest.mark.parametrize("before", [1, 2, 5])
def test_summed_superseded_commits_are_not_pending(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floodmark.log.fold.RECENT_COMMITS", 2)
    history = History()
    history.claim()
    for _ in range(before):
        history.add(Batch, files=files(1))
    history.add(Reset, stages=("extract", "load"))
    for _ in range(4):
        history.add(Batch, files=files(2))
    live = [r for r in history.ledger() if r.n > history.state.data.superseded]
    assert (history.state.data.older.commits, history.state.data.older.rows, history.state.live_files) == (
        2,
        4,
        4,
    )
    assert not condense(history.state, live).pending(history.state)
    assert condense(history.state, live[1:]).pending(history.state)


def test_a_state_does_not_grow_with_its_log() -> None:
    history = History()
    history.claim()
    sizes = []
    for i in range(1, 3001):
        history.add(Batch, files=files(1, 2, prefix=f"{i:06}"))
        if i % 1000 == 0:
            sizes.append(len(dump(history.state)))
    assert sizes[-1] < sizes[0] * 1.05 and sizes[-1] < 300_000
    assert history.state.data.older.commits + len(history.state.data.commits) == 3000
    assert history.state.totals.rows == 9000


def test_a_table_without_a_log_has_a_state_of_its_own() -> None:
    assert State("shop.orders").n == -1
    assert load(State, dump(State("shop.orders"))) == State("shop.orders")


def test_the_start_of_reading_is_known_until_the_table_is_moved() -> None:
    history = History()
    history.claim(window=window("w", at(5), (), at(42, 7)))
    assert history.state.progress.began == at(5)
    history.add(Batch, window_id="w", slices=(0,), files=files(1))
    history.claim(window=window("x", at(42, 7), (), at(50, 9)))
    assert history.state.progress.began == at(5)  # not where a later window begins
    assert history.add(Set, position=at(1)).progress.began is None
    history.add(Reset, stages=("extract", "load"))
    assert history.claim(window=window("y", at(3), (), at(50, 9))).progress.began == at(3)
    assert history.add(Reset, stages=("load",)).progress.began == at(3)
    assert history.add(Reset, stages=("extract",)).progress.began is None


# tables that follow the source's log

PLACE = LogPlace("binlog.000042", 1234)
SEEN = FollowedTo("source", 7, "d7", PLACE, LogIdentity("uuid", False), "2025-08-14T16:45:33.123456Z")
LATER = replace(SEEN, n=9, digest="d9")


def copying(history: History | None = None) -> History:
    """A first copy in three slices that has begun."""
    history = history or History()
    first = window("w", None, ((10,), (20,)), None, by="key", followed_to=SEEN)
    history.claim(table=FOLLOWED, window=first)
    return history


FOLLOWED = changed(TABLE, cursor=None, mode="upsert", changes="binlog")


def test_a_table_stands_where_its_first_copy_began_once_every_slice_of_it_is_committed() -> None:
    history = copying()
    state = history.add(Batch, window_id="w", slices=(0, 2), files=files(5))
    assert (state.followed_to, state.position, state.has_read) == (None, None, True)
    state = history.add(Batch, window_id="w", slices=(1,), files=files(5))
    assert (state.followed_to, state.position, state.window, state.progress.done) == (SEEN, None, None, ())
    assert state.has_read and state.looked_at
    assert load(State, dump(state)) == state


def test_the_commit_that_ends_a_pass_over_changes_moves_the_table_with_rows_or_deletes_or_neither() -> None:
    lasts: list[tuple[type[Commit], dict[str, Any]]] = [
        (Batch, {"files": files(3)}),
        (Batch, {}),
        (Deletes, {"files": files(1), "load_as": "delete"}),
    ]
    for kind, last in lasts:
        history = copying()
        history.add(Batch, window_id="w", slices=(0, 1, 2), files=files(5))
        history.claim("next")
        assert history.add(Batch, "next", files=files(1)).followed_to == SEEN
        assert history.add(kind, "next", followed_to=LATER, **last).followed_to == LATER


def test_a_table_that_follows_has_no_position_any_more() -> None:
    history = opened()
    history.add(Batch, window_id="w", slices=(0, 1, 2, 3), files=files(5))
    assert history.state.position == HIGH
    history.claim(table=FOLLOWED)
    state = history.add(Batch, followed_to=SEEN)
    assert (state.position, state.followed_to, state.progress.began) == (None, SEEN, None)


def test_a_copy_is_followed_by_a_search_for_rows_that_were_deleted_before_it() -> None:
    history = History()
    history.claim()
    history.add(Deletes)
    assert history.state.extraction.deletes_at is not None
    assert copying(history).state.extraction.deletes_at is None


def test_a_reset_begins_another_copy_and_a_restore_goes_back_to_where_the_table_stood() -> None:
    for stages, kept in ((("extract",), None), (("extract", "load"), None), (("load",), SEEN)):
        history = copying()
        history.add(Batch, window_id="w", slices=(0, 1, 2), files=files(5))
        assert history.add(Reset, stages=stages).followed_to == kept
    history.claim("next")
    state = history.add(Restore, "next", followed_to=LATER)
    assert (state.followed_to, state.progress.started, state.window) == (LATER, True, None)
    assert history.add(Restore, "next").has_read is False


def test_a_snapshot_stands_where_the_source_s_log_was_before_it() -> None:
    whole = changed(TABLE, cursor=None, key=(), mode="full", changes="binlog")
    history = History()
    history.claim(table=whole, window=replace(window("w", None, (), None, by="snapshot"), followed_to=SEEN))
    state = history.add(Batch, window_id="w", load_as="replace", files=files(5))
    assert (state.followed_to, state.has_read) == (SEEN, False)


def test_what_a_table_by_cursor_has_stored_does_not_know_of_the_binary_log() -> None:
    history = opened()
    for stored in (dump(TABLE), dump(history.state), dump(window("w", LOW, EDGES, HIGH))):
        assert b"followed" not in stored and b"changes" not in stored
