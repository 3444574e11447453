"""When rows are read from the start and replace the target's, decided from the log alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from floodmark.config.load import TableOptions
from floodmark.log.fold import restarted_by
from floodmark.model.commit import Batch, Reset
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.lineage import with_lineage
from floodmark.model.run import SyncOptions
from floodmark.model.table import Table
from floodmark.model.window import Window
from floodmark.plan.reread import begins_whole, changes, check, follows_a_copy, question
from tests.support.described import changed
from tests.support.samples import TABLE, History, at, files, window

FULL = changed(TABLE, mode="full", cursor=None)
BY_OTHER = changed(TABLE, key=("update_at",))
UPSERT = TableOptions()


def whole_copy(history: History) -> History:
    """A log that ends with a snapshot."""
    history.claim(table=FULL, window=Window("s", None, None, "snapshot"))
    history.add(Batch, window_id="s", slices=(0,), files=files(5), load_as="replace")
    return history


def read_by_cursor() -> History:
    history = History()
    history.claim(window=window("w", None, (), at(9, 9)))
    history.add(Batch, window_id="w", slices=(0,), files=files(5))
    return history


def whole(history: History, table: Table = TABLE) -> bool:
    return begins_whole(restarted_by(history.state, table), table, SyncOptions())


def test_after_a_whole_copy_the_position_from_before_it_is_gone() -> None:
    history = whole_copy(read_by_cursor())
    assert history.state.position == at(9, 9)
    assert (
        restarted_by(history.state, TABLE).position is None
        and restarted_by(history.state, FULL) is history.state
    )
    state = history.claim(table=TABLE, window=window("x", at(1), (), at(20, 1), whole=True))
    assert (state.position, state.progress.began, state.progress.started) == (None, at(1), False)


def test_rows_replace_a_whole_copy_whatever_crashes_in_between() -> None:
    history = whole_copy(History())
    assert whole(history) and not whole(history, FULL)
    history.claim(table=TABLE, window=window("x", None, (), at(20, 1), whole=True))
    assert whole(history)
    history.add(Reset, stages=("extract", "load"))
    assert whole(history), "the target still has the copy"
    history.claim(table=TABLE, window=window("y", None, (), at(20, 1), whole=True))
    history.add(Batch, window_id="y", slices=(0,), files=files(5), load_as="replace")
    assert not whole(history)


def test_after_a_reset_rows_by_a_new_key_replace_the_old_rows() -> None:
    history = read_by_cursor()
    assert not whole(history, BY_OTHER)
    with pytest.raises(DataError, match=r"the key of shop\.orders changed"):
        check(BY_OTHER, history.state, UPSERT)
    history.add(Reset, stages=("extract", "load"))
    assert whole(history, BY_OTHER) and not whole(history)
    assert changes(BY_OTHER, history.state, UPSERT) == ()


def test_a_bounded_run_does_not_replace_everything() -> None:
    with pytest.raises(ConfigError, match="--limit"):
        begins_whole(restarted_by(whole_copy(History()).state, TABLE), TABLE, SyncOptions(limit=5))


def test_a_new_target_is_refused_until_all_files_load_again() -> None:
    history, other = read_by_cursor(), changed(TABLE, target="other")
    with pytest.raises(ConfigError, match="was loaded into orders so far"):
        check(other, history.state, UPSERT)
    history.add(Reset, stages=("load",))
    check(other, history.state, UPSERT)


def test_a_table_that_was_read_whole_is_not_compared_by_a_position() -> None:
    with pytest.raises(DataError, match="was read whole so far"):
        check(TABLE, whole_copy(read_by_cursor()).state, UPSERT)


def test_the_commit_that_created_an_empty_table_s_target_is_not_a_copy() -> None:
    history = History()
    history.claim()
    history.add(Batch, load_as="replace")
    assert not whole(history)


def test_the_successor_of_a_copy_begins_at_the_first_row_unless_the_table_was_reset() -> None:
    history = whole_copy(History())
    assert follows_a_copy(restarted_by(history.state, TABLE))
    history.add(Reset, stages=("extract", "load"))
    assert not follows_a_copy(restarted_by(history.state, TABLE))
    assert not follows_a_copy(read_by_cursor().state)


ASK = TableOptions(schema_changes="ask")
NARROWER = changed(TABLE, columns=TABLE.columns[:-1])


def test_a_change_is_asked_about_until_it_was_claimed() -> None:
    history = read_by_cursor()
    assert question(TABLE, history.state, ASK) is None
    asked = question(NARROWER, history.state, ASK)
    assert asked is not None and asked.code == 6
    assert f"{TABLE.columns[-1].name} was dropped" in asked.message
    assert str(asked.hint).endswith(f"floodmark watermark accept -t {TABLE.name}")
    assert question(NARROWER, history.state, UPSERT) is None
    assert question(changed(NARROWER, key=("update_at",)), history.state, ASK) is None, "it is refused"
    history.claim(table=with_lineage(TABLE, NARROWER))
    assert question(NARROWER, history.state, ASK) is None


def test_a_table_that_was_never_read_or_was_just_reset_asks_nothing() -> None:
    assert question(NARROWER, History().state, ASK) is None
    history = read_by_cursor()
    history.add(Reset, stages=("extract", "load"))
    assert question(NARROWER, history.state, ASK) is None


def test_nobody_is_asked_about_a_change_without_consequences() -> None:
    history, (first, *rest) = read_by_cursor(), TABLE.columns
    for same in (replace(first, default="7"), replace(first, type=f"{first.data_type}(9)")):
        assert question(changed(TABLE, columns=(same, *rest)), history.state, ASK) is None
    assert question(changed(TABLE, where="id > 1"), history.state, ASK) is not None
    assert question(changed(FULL, columns=TABLE.columns[1:]), whole_copy(History()).state, ASK) is not None
