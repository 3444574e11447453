"""What comes next for a table that follows the source's log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from floodmark.config.load import TableOptions
from floodmark.log.fold import Progress, State
from floodmark.model.changes import Reconcile
from floodmark.model.run import Lag
from floodmark.model.window import Window
from floodmark.plan.followed import FollowStep, followed_lag, followed_plan, said_why, untouched
from tests.support.described import changed
from tests.support.following import key_file, news, stands
from tests.support.samples import TABLE, at

BY_KEY = changed(TABLE, cursor=None, changes="binlog")
WHOLE = changed(BY_KEY, key=(), mode="full")


def after(**progress: object) -> State:
    """A table's state with this progress."""
    return State(TABLE.name, log="l", n=9, progress=Progress(started=True, **progress))  # type: ignore[arg-type]


COPY = Window("w", None, None, "key", ((10,), (20,)), followed_to=stands(3))


@pytest.mark.parametrize(
    ("state", "heard", "step"),
    [
        pytest.param(State(TABLE.name), news(4), FollowStep("copy", stands(4)), id="nothing was read yet"),
        pytest.param(after(window=COPY), news(4), FollowStep("copy", stands(4)), id="a copy of which no slice is there"),
        pytest.param(
            after(window=COPY, done=(1,)), news(4), FollowStep("resume", stands(3)), id="a copy that was left open"
        ),
        pytest.param(after(followed_to=stands(3)), news(4), FollowStep("nothing", stands(3)), id="nothing new"),
        pytest.param(
            after(followed_to=stands(3)), news(6, files=("a", "b")),
            FollowStep("changes", stands(6), files=(key_file("a"), key_file("b"))), id="keys that have changed",
        ),
        pytest.param(
            after(followed_to=stands(3)), news(6, "truncate", "ddl", files=("a",)),
            FollowStep("reconcile", stands(6), why=("truncate", "ddl")), id="the log can't tell",
        ),
        pytest.param(
            after(position=at(5, 1)), news(4), FollowStep("reconcile", stands(4), why=("by cursor",)),
            id="it was read by a cursor",
        ),
    ],
)  # fmt: skip
def test_what_comes_next_for_a_table_with_a_key(state: State, heard: object, step: FollowStep) -> None:
    assert followed_plan(state, BY_KEY, heard) == step  # type: ignore[arg-type]


def test_a_first_window_by_cursor_that_was_left_open_begins_anew_as_a_copy_by_key() -> None:
    left = replace(COPY, followed_to=None, high=at(9, 9))
    assert followed_plan(after(window=left, done=(0,)), BY_KEY, news(4)).do == "copy"
    reading_on = after(position=at(1, 1), window=left, done=(0,))
    assert followed_plan(reading_on, BY_KEY, news(4)).do == "reconcile"


def test_a_table_without_a_key_is_read_whole_once_the_log_has_anything_to_say_of_it() -> None:
    assert followed_plan(State(TABLE.name), WHOLE, news(4)) == FollowStep("copy", stands(4))
    state = after(followed_to=stands(3))
    assert followed_plan(state, WHOLE, news(4)) == FollowStep("nothing", stands(3))
    assert followed_plan(state, WHOLE, news(5, files=("a",))) == FollowStep("copy", stands(5))
    assert followed_plan(state, WHOLE, news(5, "lost")) == FollowStep("copy", stands(5))


def test_an_idle_table_is_not_behind_and_another_one_by_the_time_between_two_transactions() -> None:
    assert followed_lag(stands(3), news(50)) == Lag(seconds=0.0)
    assert followed_lag(stands(3), news(5, files=("a",))) == Lag(seconds=120.0)
    assert followed_lag(stands(5), news(5, files=("a",))) == Lag(seconds=0.0)
    assert followed_lag(None, news(5)) is None
    assert followed_lag(stands(3, log="other"), news(5)) is None
    assert followed_lag(replace(stands(3), at=None), news(5, files=("a",))) is None


@pytest.mark.parametrize("why", [*get_args(Reconcile), "by cursor", "by binlog"])
def test_every_reason_to_compare_has_words(why: Reconcile) -> None:
    said = said_why(FollowStep("reconcile", stands(4), why=(why, why)))
    assert said.startswith("source and target are compared, and what differs is repaired: ")
    assert said.count(" and ") == said_why(FollowStep("reconcile", why=(why,))).count(" and ")


def test_each_step_says_up_to_where_the_log_was_read() -> None:
    for do in ("copy", "changes", "nothing"):
        assert "binlog.000001:4000" in said_why(FollowStep(do, stands(4)))
    assert FollowStep("changes", stands(4), files=(key_file("a"),)).as_json() == {
        "step": "changes", "upto": {"commit": 4, "position": "binlog.000001:4000"}, "key_files": 1, "because": [],
    }  # fmt: skip


def test_an_idle_table_is_left_alone_until_its_options_change() -> None:
    options = TableOptions(changes="binlog", deletes="hard")
    table = changed(BY_KEY, deletes="hard")
    state = replace(after(followed_to=stands(3)), table=table)
    assert untouched(state, options, news(9))
    assert not untouched(state, options, news(9, files=("a",)))
    assert not untouched(replace(state, progress=Progress()), options, news(9)), "it was never copied"
    assert not untouched(replace(state, table=changed(table, owed=("id",))), options, news(9))
    others: list[dict[str, Any]] = [
        {"where": "id > 1"}, {"exclude": ("note",)}, {"target": "other"}, {"deletes": "soft"}, {"mode": "full"},
        {"zero_dates": "null"}, {"key": ("update_at",)}, {"changes": "cursor"}, {"renames": {"a": "b"}},
    ]  # fmt: skip
    for other in others:
        assert not untouched(state, replace(options, **other), news(9)), other
