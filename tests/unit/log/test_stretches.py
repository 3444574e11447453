"""Which stretches were read, from the log: rows skipped by a position set by hand were never promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec, TableOptions
from floodmark.log.document import commit_path
from floodmark.log.log import Log
from floodmark.log.stretches import stretches
from floodmark.model.commit import Batch, Reset, Restore, Set
from floodmark.model.json import dump
from floodmark.model.position import Position
from floodmark.model.window import Window
from floodmark.plan.decide import slices
from floodmark.plan.reread import around, span
from floodmark.store.store import Store
from tests.support.described import changed
from tests.support.samples import TABLE, History, at, files, window

STARTS_LATE = TableOptions(start="2025-08-14 15:00:30", older_start="2025-08-14 15:00:30")


@pytest.fixture
def log(tmp_path: Path) -> Callable[[History], Log]:
    def laid(history: History) -> Log:
        store = Store(StoreSpec(str(tmp_path)))
        for commit, _ in history.commits:
            store.create(commit_path(TABLE.name, commit.n), dump(commit))
        return Log(store, TABLE.name)

    return laid


def read(history: History, low: Position | None, high: Position) -> None:
    name = f"w{history.state.n}"
    history.claim(window=window(name, low, (), high))
    history.add(Batch, window_id=name, slices=(0,), files=files(3, prefix=name))


def test_a_position_set_before_the_start_is_where_reading_began(log: Callable[[History], Log]) -> None:
    history = History()
    read(history, at(30), at(40, 4))
    history.add(Set, position=at(10))
    read(history, at(10), at(50, 5))
    there = log(history)
    assert stretches(there, history.state).began == at(10)
    assert span(there, TABLE, history.state, STARTS_LATE) == (at(10), ()), "not from `start`"


def test_rows_skipped_by_a_set_are_a_gap_until_they_are_read(log: Callable[[History], Log]) -> None:
    history = History()
    read(history, None, at(20, 2))
    assert stretches(log(history), history.state).skipped == ()
    history.add(Set, position=at(30))
    gap = ((at(20, 2), at(30)),)
    assert stretches(log(history), history.state).skipped == gap, "before anything was read"
    read(history, at(30), at(40, 4))
    there = log(history)
    assert span(there, TABLE, history.state, TableOptions()) == (None, gap)
    history.add(Set, position=at(10))
    read(history, at(10), at(50, 5))
    assert stretches(log(history), history.state).skipped == ()


def test_the_unread_part_of_an_unfinished_window_is_a_gap_too(log: Callable[[History], Log]) -> None:
    history = History()
    history.claim(window=window("w", None, (at(10, 1),), at(20, 2)))
    history.add(Batch, window_id="w", slices=(0,), files=files(3))
    history.add(Set, position=at(20))
    assert stretches(log(history), history.state).skipped == ((at(10, 1), at(20)),)


def test_a_first_extraction_abandoned_for_a_later_position_is_a_gap_with_rows_in_it(
    log: Callable[[History], Log],
) -> None:
    history = History()
    history.claim(window=replace(window("w", None, (), at(50, 5)), by="key", edges=((10,), (20,))))
    history.add(Batch, window_id="w", slices=(1,), files=files(3))
    history.add(Set, position=at(40))
    read(history, at(40), at(60, 6))
    seen = stretches(log(history), history.state)
    assert (seen.began, seen.skipped) == (None, ((None, at(40)),))
    # For a new column they are still read again: the target must not keep old values.
    assert span(log(history), TABLE, history.state, TableOptions()) == (None, ())


def test_a_window_by_key_that_is_not_finished_began_where_it_did(log: Callable[[History], Log]) -> None:
    history = History()
    history.claim()
    history.add(Set, position=at(40))
    assert stretches(log(history), history.state).began is None, "nothing was read"
    history.claim(window=replace(window("w", at(40), (), at(50, 5)), by="key", edges=((10,), (20,))))
    history.add(Batch, window_id="w", slices=(1,), files=files(3))
    seen = stretches(log(history), history.state)
    assert (seen.began, seen.skipped) == (at(40), ())


def test_a_reset_of_loads_leaves_no_gap_and_one_of_the_extraction_forgets_them(
    log: Callable[[History], Log],
) -> None:
    history = History()
    read(history, None, at(20, 2))
    history.add(Reset, stages=("load",))
    read(history, at(20, 2), at(30, 3))
    assert stretches(log(history), history.state).skipped == ()
    history.add(Set, position=at(40))
    history.add(Reset, stages=("extract",))
    history.add(Set, position=at(45))
    read(history, at(45), at(50, 5))
    seen = stretches(log(history), history.state)
    assert (seen.began, seen.skipped) == (at(45), ())
    # Rows from before the reset may still be in the target.
    assert span(log(history), TABLE, history.state, STARTS_LATE) == (None, ())


def test_rows_that_no_window_before_a_reset_began_with_are_not_read_again(
    log: Callable[[History], Log],
) -> None:
    """A store begun under the default of version 0.1.0, which left rows out, with a configuration that has no start."""
    history = History()
    read(history, at(10), at(20, 2))
    history.add(Reset, stages=("extract",))
    history.add(Set, position=at(45))
    read(history, at(45), at(50, 5))
    assert span(log(history), TABLE, history.state, TableOptions()) == (at(10), ())


def test_rows_that_another_tool_had_loaded_are_read_again_too(log: Callable[[History], Log]) -> None:
    history = History()
    history.claim()
    history.add(Restore, position=at(40))
    read(history, at(40), at(50, 5))
    there = log(history)
    assert stretches(there, history.state).began == at(40)
    assert span(there, TABLE, history.state, STARTS_LATE) == (at(30), ())
    assert span(there, TABLE, history.state, TableOptions()) == (("2025-01-01 00:00:00.000000",), ())
    assert span(there, TABLE, history.state, TableOptions(older_start=None)) == (None, ())


def test_rows_that_replace_all_others_leave_no_gap(log: Callable[[History], Log]) -> None:
    history = History()
    read(history, None, at(20, 2))
    history.add(Set, position=at(30))
    history.claim(table=changed(TABLE, mode="full", cursor=None), window=Window("s", None, None, "snapshot"))
    history.add(Batch, window_id="s", slices=(0,), files=files(5), load_as="replace")
    history.claim(table=TABLE, window=window("x", at(1), (), at(50, 5), whole=True))
    history.add(Batch, window_id="x", slices=(0,), files=files(5), load_as="replace")
    seen = stretches(log(history), history.state)
    assert (seen.began, seen.skipped) == (at(1), ())


def test_a_window_of_reread_rows_skips_the_gaps() -> None:
    asked: list[tuple[Position | None, Position | None]] = []

    def walk(after: Position | None, upto: Position | None) -> list[Position]:
        asked.append((after, upto))
        return [at(5, 5)] if after is None else []

    gaps = ((at(10, 1), at(20)), (at(30, 3), at(40)))
    made = around(walk, Window("w", None, at(50, 5), "cursor", (), None, 100), gaps)
    assert asked == [(None, at(10, 1)), (at(20), at(30, 3)), (at(40), at(50, 5))]
    left = [(s.after, s.upto) for s in slices(made, made.done)]
    assert left == [(None, at(5, 5)), (at(5, 5), at(10, 1)), (at(20), at(30, 3)), (at(40), at(50, 5))]
