"""What may go, and how the log names it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.clean.choose import Facts, Removal, Selection, StoredObject, before, choose, orphans, staged
from floodmark.clean.remove import SLACK, due, superseded
from floodmark.load.pending import choose as choose_load
from floodmark.load.pending import pending
from floodmark.log.document import accounts_for_older, condense
from floodmark.log.fold import Progress, around, data_commit, fold, merged, within
from floodmark.model.commit import Batch, Clean, DataFile, Deletes, LoadAs, Reset, Restore, Set
from floodmark.model.errors import DataError
from floodmark.model.json import dump
from floodmark.model.ledger import Ledger, LedgerRow
from floodmark.model.times import stamp
from tests.support.described import changed
from tests.support.samples import RUN, TABLE, History, at, window

NOW = datetime(2025, 8, 20, tzinfo=UTC)
OLD = stamp(NOW - timedelta(days=10))


def data_file(name: str, rows: int = 10, second: int = 5, made: str = OLD, **more: Any) -> DataFile:
    path = f"data/shop.orders/{RUN}/{name}.parquet"
    return DataFile(path, rows, rows * 10, "00", 0, at(second, 1), at(second, rows), 0, made, **more)


def batch(history: History, *files: DataFile, load_as: LoadAs = "merge") -> int:
    """A commit of its own under a claim of its own; its number."""
    history.claim()
    return history.add(Deletes if load_as == "delete" else Batch, files=files, load_as=load_as).n


def facts(history: History, *loaded: int, gone: tuple[str, ...] = (), more: tuple[str, ...] = ()) -> Facts:
    commits = tuple((c, d) for c, d in history.data if data_commit(c, d, -1) is not None)
    objects = {f.path: StoredObject(f.bytes, OLD) for c, _ in commits for f in c.files}
    objects |= {path: StoredObject(7, OLD) for path in more}
    return Facts(
        state=history.state,
        commits=commits,
        objects={path: found for path, found in objects.items() if path not in gone},
        loaded={(c.n, d): OLD for c, d in commits if c.n in loaded},
    )


def names(removal: Removal) -> list[str]:
    return [f.path.rpartition("/")[2].removesuffix(".parquet") for f in removal.files]


def cleaned(history: History, removal: Removal) -> None:
    history.claim(purpose="clean", table=None)
    history.add(Clean, clean=removal.clean, position=removal.position)


# what goes


def test_only_files_whose_rows_are_in_the_warehouse_are_removed() -> None:
    history = History()
    first = batch(history, data_file("a"), data_file("b"))
    batch(history, data_file("c"))
    assert names(choose(facts(history, first), Selection(), NOW)) == ["a", "b"]
    assert choose(facts(history), Selection(), NOW).empty


def test_a_loaded_file_stays_while_an_earlier_commit_is_pending() -> None:
    history = History()
    first, _, third = (batch(history, data_file(name)) for name in "abc")
    removal = choose(facts(history, first, third), Selection(), NOW)
    assert (names(removal), removal.kept) == (["a"], 1)


def test_files_from_before_a_reset_of_both_stages_are_removed() -> None:
    history = History()
    batch(history, data_file("a"))
    history.add(Reset, stages=("extract", "load"))
    seen = facts(history)
    assert [f.state for f in staged(seen)] == ["superseded"]
    assert names(choose(seen, Selection(), NOW)) == ["a"]


def test_age_and_pattern_choose_single_files() -> None:
    history = History()
    young = data_file("young", made=stamp(NOW - timedelta(hours=1)))
    n = batch(history, data_file("a"), young, data_file("b"))
    removal = choose(facts(history, n), Selection(older_than=86_400), NOW)
    assert (names(removal), removal.clean.whole, removal.clean.some) == (["a", "b"], (), ((n, (0, 2)),))
    for pattern in ("a.parquet", f"{RUN}/a*", "data/shop.orders/*/a.*", "*/a.parquet"):
        assert names(choose(facts(history, n), Selection(pattern=pattern), NOW)) == ["a"]
    assert choose(facts(history, n), Selection(pattern="orders/*"), NOW).empty
    assert choose(facts(history, n), Selection(older_than=1e15), NOW).empty


def test_pending_commits_are_removed_whole_or_not_at_all() -> None:
    history = History()
    batch(history, data_file("a"), data_file("b"))
    n = batch(history, data_file("c"))
    wanted = Selection(include_pending=True, pattern="[ac].parquet")
    removal = choose(facts(history), wanted, NOW)
    assert names(removal) == ["c"] and [g.n for g in removal.clean.given_up] == [n]


def test_giving_up_pending_files_leaves_commits_alone_that_an_earlier_clean_has_removed() -> None:
    """They are loaded, and if the warehouse loses them, that must be noticed."""
    history = History()
    first = batch(history, data_file("a"))
    cleaned(history, choose(facts(history, first), Selection(), NOW))
    second = batch(history, data_file("b"))
    read = [c for c in facts(history, first).commits if c[0].n == second]  # as `gather` has it
    removal = choose(
        replace(facts(history, first), commits=tuple(read)), Selection(include_pending=True), NOW
    )
    cleaned(history, removal)
    assert [(d.n, d.superseded) for d in history.state.data.commits] == [(first, False), (second, True)]


def test_keys_to_be_deleted_are_not_given_up_unless_they_are_gone() -> None:
    history = History()
    batch(history, data_file("keys"), load_as="delete")
    assert choose(facts(history), Selection(include_pending=True), NOW).empty
    gone = facts(history, gone=(data_file("keys").path,))
    removal = choose(gone, Selection(include_pending=True), NOW)
    assert not removal.files and len(removal.clean.given_up) == 1 and not removal.empty


def test_only_what_was_shown_is_removed() -> None:
    history = History()
    first, second = batch(history, data_file("a")), batch(history, data_file("b"))
    shown = frozenset({data_file("b").path})
    assert names(choose(facts(history, first, second), Selection(only=shown), NOW)) == ["b"]


def test_orphans_are_files_that_no_commit_names_and_no_live_run_may_still_commit() -> None:
    history = History()
    batch(history, data_file("a"))
    stray = (f"data/shop.orders/{RUN}/9-window0-aa-0.parquet", "data/shop.orders/note.txt")
    seen = facts(history, more=stray)
    assert {f.path for f in orphans(seen, Selection(), NOW).files} == set(stray)
    live = replace(seen, under_way=RUN)
    assert [f.path for f in orphans(live, Selection(), NOW).files] == [stray[1]]
    assert [f.state for f in staged(live)] == ["pending", "pending", "orphan"]
    assert {f.state for f in staged(replace(seen, unreadable=(1,)))} == {"pending", "unknown"}


def test_without_the_warehouse_only_what_the_log_knows_is_shown() -> None:
    history = History()
    batch(history, data_file("a"))
    assert [f.state for f in staged(replace(facts(history), loaded=None))] == ["unknown"]


# the position of what is given up


def test_the_position_goes_back_to_before_the_lowest_row_that_is_given_up() -> None:
    history = History()
    first = batch(history, data_file("a", second=3))
    history.add(Set, position=at(50, 9))
    batch(history, data_file("b", second=30), data_file("c", second=20))
    removal = choose(facts(history, first), Selection(include_pending=True), NOW)
    assert removal.clean.moved and removal.position == ("2025-08-14 15:00:19.999999",)
    cleaned(history, removal)
    assert history.state.position == removal.position and not history.state.progress.manual
    assert [d.n for d in pending(history.state.data.commits, Ledger(), 0)] == [
        first
    ] and history.state.progress.started


def test_the_position_never_goes_forward() -> None:
    history = History()
    batch(history, data_file("a", second=30))
    history.add(Restore, position=at(10, 2))
    assert choose(facts(history), Selection(include_pending=True), NOW).position == at(10, 2)


def test_rows_without_a_place_in_the_order_move_nothing() -> None:
    history = History()
    history.claim()
    history.add(Set, position=at(10, 2))
    loose = replace(data_file("loose"), first=None, last=None)
    batch(history, loose)
    assert choose(facts(history), Selection(include_pending=True), NOW).position == at(10, 2)


def test_an_open_window_is_given_up_with_the_slices_that_are() -> None:
    history = History()
    history.claim(window=window("w", at(0), [(10,)], at(59, 9), by="key"))
    history.add(Batch, window_id="w", slices=(0,), files=(data_file("a", second=20),))
    assert history.state.window is not None
    removal = choose(facts(history), Selection(include_pending=True), NOW)
    cleaned(history, removal)
    after = history.state
    assert (after.window, after.progress.done, after.position) == (None, (), at(0))
    assert after.progress.began == at(0)


def test_a_snapshot_has_no_position_to_go_back_to() -> None:
    history = History()
    batch(history, data_file("a"), load_as="replace")
    history.claim(table=changed(TABLE, mode="full", cursor=None))
    removal = choose(facts(history), Selection(include_pending=True), NOW)
    assert not removal.clean.moved and removal.position is None and len(removal.clean.given_up) == 1


def test_a_table_that_never_had_a_position_starts_where_it_began() -> None:
    state = replace(History().state, table=TABLE, progress=Progress(began=at(0)))
    assert before(state, [data_file("a")]) == at(0)
    assert before(replace(state, progress=Progress()), [data_file("a")]) is None


# how the log names it


def test_ten_thousand_commits_are_named_in_one_span() -> None:
    history = History()
    numbers = [batch(history, data_file(f"f{i}")) for i in range(2000)]
    removal = choose(facts(history, *numbers), Selection(), NOW)
    cleaned(history, removal)
    assert len(removal.files) == 2000 and len(history.state.data.cleaned) == 1
    assert len(dump(history.commits[-1][0])) < 2000
    later = batch(history, data_file("later"))
    cleaned(history, choose(facts(history, *numbers, later), Selection(pattern="later.*"), NOW))
    assert len(history.state.data.cleaned) == 1


# Of each commit: its files, whether it is loaded, whether it is wanted, and how many of its files are.
COMMITS = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 3), st.booleans()), min_size=1, max_size=12
)


@settings(max_examples=200)
@given(COMMITS, st.booleans(), st.integers(1, 6), st.integers(0, 12))
def test_whatever_is_cleaned_is_named_exactly_and_loads_never_again(
    shapes: list[tuple[int, bool, int, bool]], include: bool, recent: int, reset: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("floodmark.log.fold.RECENT_COMMITS", recent)
        history = History()
        loaded = []
        for i, (count, is_loaded, wanted, snapshot) in enumerate(shapes):
            made = [data_file(f"{'y' if k < wanted else 'n'}{i}-{k}") for k in range(count)]
            n = batch(history, *made, load_as="replace" if snapshot and not count else "merge")
            if is_loaded and (count or snapshot):
                loaded.append(n)
            if i == reset:
                history.add(Reset, stages=("extract", "load"))
                loaded.clear()
        seen = facts(history, *loaded)
        removal = choose(seen, Selection(pattern="y*", include_pending=include), NOW)
        if removal.empty:
            return
        start = history.state
        cleaned(history, removal)
        state = history.state

        # The files and what the log says of them are the same.
        going = {f.path for f in removal.files}
        for commit, _ in seen.commits:
            inside = within(removal.clean.whole, commit.n)
            places = dict(removal.clean.some).get(commit.n, ())
            for k, file in enumerate(commit.files):
                assert (file.path in going) == (inside or k in places)
            touched = any(f.path in going for f in commit.files)
            assert not commit.files or within(state.data.cleaned, commit.n) == touched

        # Nothing that waits has lost a file; what was given up does not wait.
        ledger = Ledger(state.load_epoch, tuple(_rows(history, loaded)))
        given_up = {g.n for g in removal.clean.given_up}
        waiting = [d for d in state.live if (d.n, d.digest) not in ledger.loaded(state.load_epoch)]
        assert not any(d.cleaned or d.n in given_up for d in waiting)
        assert include or not given_up
        chosen = choose_load(state, state.data.commits, ledger, keyed=True)
        if not state.data.older.commits:
            assert not any(d.cleaned for d in chosen.commits)

        # Sums agree with what a log without those commits would have.
        assert state.totals.rows == start.totals.rows and state.totals.files == start.totals.files
        live = [c for c, _ in seen.commits if c.n >= state.data.superseded and c.n not in given_up]
        kept = {d.n for d in state.live} | {c.n for c in live if c.n <= state.data.older.upto}
        assert sum(c.rows for c in live if c.n in kept and (c.files or c.load_as == "replace")) == (
            state.data.older.rows + sum(d.rows for d in state.live)
        )
        condense(state, ledger.rows)
        if {c.n for c in live if c.n <= state.data.older.upto and (c.files or c.load_as == "replace")} <= set(
            loaded
        ):
            assert accounts_for_older(state, ledger.rows)

        # Folding on from a checkpoint gives the same state.
        again = start
        for one, found in history.commits[start.n + 1 :]:
            again = fold(again, one, found)
        assert again == state


def _rows(history: History, loaded: list[int]) -> list[LedgerRow]:
    return history.ledger(*loaded) if loaded else []


def test_a_clean_without_files_is_a_damaged_log() -> None:
    history = History()
    history.claim()
    with pytest.raises(DataError, match="cleans nothing"):
        history.add(Clean)


# spans


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)), st.integers(0, 40))
def test_spans_take_in_all_that_is_chosen_and_nothing_that_is_kept(
    chosen: set[int], kept: set[int], last: int
) -> None:
    chosen = {n for n in chosen - kept if n <= last}
    spans = around(chosen, kept, last)
    assert all(within(spans, n) for n in chosen)
    assert not any(within(spans, n) for n in (*kept, last + 1, last + 2))
    assert len(spans) <= len(kept) + 1 and merged(spans) == spans


# keep_files


def kept(*ages: float) -> tuple[History, Callable[[float], int | None]]:
    """Commits that were loaded so many seconds ago, and what is due of them."""
    history = History()
    rows = []
    for i, age in enumerate(ages):
        n = batch(history, data_file(f"f{i}"))
        (row,) = history.ledger(n, loaded_at=stamp(NOW - timedelta(seconds=age)))
        rows.append(row)
    return history, lambda keep: due(history.state, Ledger(0, tuple(rows)), keep, NOW)


def test_files_are_due_that_long_after_their_load_and_in_portions() -> None:
    week = 7 * 86_400
    history, ask = kept(week + SLACK + 1, week + 10, week - 10, 5)
    numbers = [d.n for d in history.state.data.commits]
    assert ask(week) == numbers[1]
    assert ask(week - 20) == numbers[2]
    assert kept(week + SLACK - 1, week)[1](week) is None  # hardly worth a commit yet
    assert kept(20)[1](10) is not None and kept(10.5)[1](10) is None
    cleaned(history, choose(facts(history, *numbers), Selection(pattern="f[01].*"), NOW))
    assert ask(week) is None


FULL = changed(TABLE, mode="full", cursor=None)


def replaced(history: History, *loaded: int) -> list[int]:
    """The superseded snapshots, if these commits are loaded."""
    return [d.n for d in superseded(history.state, Ledger(0, tuple(history.ledger(*loaded))))]


def test_files_from_before_the_newest_loaded_snapshot_are_superseded() -> None:
    history = History()
    first, second = (batch(history, data_file(name), load_as="replace") for name in "ab")
    assert replaced(history, first, second) == [], "a table that is merged may need every file"
    history.claim(table=FULL)
    assert replaced(history, first) == [], "the next snapshot has not been loaded"
    assert replaced(history, first, second) == [first]
    assert replaced(history, second) == [], "the first one's files were never loaded"
    cleaned(history, choose(facts(history, first, second), Selection(pattern="a.*"), NOW))
    history.claim(table=FULL)
    assert replaced(history, first, second) == []


def test_files_from_before_the_table_was_read_whole_are_not_superseded() -> None:
    history = History()
    first = batch(history, data_file("a"), load_as="insert")
    second, third = (batch(history, data_file(name), load_as="replace") for name in "bc")
    history.claim(table=FULL)
    assert replaced(history, first, second) == []
    assert replaced(history, first, second, third) == [second]


def test_what_an_implausibly_small_snapshot_replaces_is_not_superseded() -> None:
    history = History()
    sizes = (1000, 900, 0, 5)
    numbers = [batch(history, data_file(f"f{n}", n), load_as="replace") for n in sizes]
    history.claim(table=FULL)
    assert replaced(history, *numbers[:2]) == numbers[:1]
    assert replaced(history, *numbers[:3]) == []
    assert replaced(history, *numbers) == numbers[2:3], "those before the drop stay for good"


def test_a_commit_that_was_not_read_is_not_named_as_cleaned() -> None:
    history = History()
    first, second, third = (batch(history, data_file(name), load_as="replace") for name in "abc")
    seen = facts(history, first, second, third)
    known = tuple(c for c in seen.commits if c[0].n == second)
    removal = choose(replace(seen, commits=known, after=first, upto=second), Selection(pattern="b.*"), NOW)
    assert removal.clean.whole == ((first + 1, second),)
