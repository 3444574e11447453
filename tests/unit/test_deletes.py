"""When deletes are looked for, and where they are refused: decided without a source."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from floodmark.config import TableOptions
from floodmark.deletes import check, due
from floodmark.errors import ConfigError
from floodmark.state import State
from floodmark.testing.samples import TABLE, History, files

HARD = TableOptions(deletes="hard", where=TABLE.where)
SOFT = TableOptions(deletes="soft", where=TABLE.where)


def replicated() -> History:
    history = History()
    history.claim(table=TABLE)
    history.add("batch", files=files(5))
    return history


def later(state: State, **time: float) -> datetime:
    assert state.deletes_at is not None
    return datetime.fromisoformat(state.deletes_at) + timedelta(**time)


def test_deletes_are_looked_for_at_most_every_so_often() -> None:
    history = replicated()
    now = datetime.now(UTC)
    assert due(history.state, HARD, now) and due(history.state, SOFT, now)
    assert not due(history.state, TableOptions(), now)
    state = history.add("deletes", load_as="delete")  # one that found nothing
    assert not due(state, HARD, later(state, hours=23.9))
    assert due(state, HARD, later(state, hours=24))
    assert due(state, replace(HARD, deletes_every=60.0), later(state, minutes=1))
    assert due(state, HARD, later(state, hours=-1)), "a clock that was wrong must not stop them"


def test_another_where_makes_them_due_at_once_and_until_they_were_looked_for() -> None:
    history = replicated()
    state = history.add("deletes", load_as="delete")
    soon = later(state, minutes=1)
    assert due(state, replace(HARD, where="status = 1"), soon)
    state = history.claim(table=replace(TABLE, where="status = 1"))
    assert due(state, replace(HARD, where="status = 1"), soon)


def test_a_look_that_found_nothing_leaves_nothing_to_load() -> None:
    history = replicated()
    before = history.state
    state = history.add("deletes", load_as="delete")
    assert (state.data, state.rows, state.files, state.batches) == (
        before.data, before.rows, before.files, before.batches,
    )  # fmt: skip


def test_a_reset_makes_them_due_again() -> None:
    history = replicated()
    history.add("deletes", load_as="mark", files=files(1))
    assert history.state.deletes_at is not None
    assert history.add("reset", stages=("load",)).deletes_at is None


def test_nothing_is_looked_for_where_nothing_was_replicated() -> None:
    history = History()
    history.claim(table=TABLE)
    now = datetime.now(UTC)
    assert not due(history.state, HARD, now)
    history.claim(table=replace(TABLE, mode="full"))
    assert not due(history.add("batch", files=files(3), load_as="replace"), HARD, now)


@pytest.mark.parametrize("options", [HARD, SOFT])
def test_deletes_need_a_key(options: TableOptions) -> None:
    check(TABLE, options)
    keyless = replace(TABLE, key=(), mode="append")
    with pytest.raises(ConfigError, match="needs a key"):
        check(keyless, options)
    check(keyless, TableOptions())


def test_a_full_copy_needs_no_deletes_and_can_mark_none() -> None:
    full = replace(TABLE, key=(), cursor=None, mode="full")
    check(full, HARD)
    with pytest.raises(ConfigError, match="replaces all rows"):
        check(full, SOFT)
