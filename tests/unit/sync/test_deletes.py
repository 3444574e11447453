"""When deletes are looked for, and where they are refused: decided without a source."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from floodmark.config.load import TableOptions
from floodmark.log.fold import State
from floodmark.model.commit import Batch, Deletes, Reset
from floodmark.model.errors import ConfigError
from floodmark.model.table import Cascade
from floodmark.source.describe import cascades_in, writing
from floodmark.sync.deletes import check, due
from tests.support.described import changed
from tests.support.following import stands
from tests.support.samples import TABLE, History, files

HARD = TableOptions(deletes="hard", where=TABLE.recipe.where)
SOFT = TableOptions(deletes="soft", where=TABLE.recipe.where)


def replicated() -> History:
    history = History()
    history.claim(table=TABLE)
    history.add(Batch, files=files(5))
    return history


def later(state: State, **time: float) -> datetime:
    assert state.extraction.deletes_at is not None
    return datetime.fromisoformat(state.extraction.deletes_at) + timedelta(**time)


def test_deletes_are_searched_for_at_most_once_per_interval() -> None:
    history = replicated()
    now = datetime.now(UTC)
    assert due(history.state, HARD, now) and due(history.state, SOFT, now)
    assert not due(history.state, TableOptions(), now)
    state = history.add(Deletes, load_as="delete")  # one that found nothing
    assert not due(state, HARD, later(state, hours=23.9))
    assert due(state, HARD, later(state, hours=24))
    assert due(state, replace(HARD, deletes_every=60.0), later(state, minutes=1))
    assert due(state, HARD, later(state, hours=-1)), "a clock that was wrong must not stop them"


def test_a_table_that_follows_the_binary_log_is_searched_once_after_a_copy_or_if_its_where_is_unsteady() -> (
    None
):
    history = History()
    history.claim(table=changed(TABLE, cursor=None, changes="binlog"))
    assert not due(history.add(Batch, files=files(5)), HARD, datetime.now(UTC)), (
        "not before the copy is complete"
    )
    assert due(history.add(Batch, files=files(5), followed_to=stands(1)), HARD, datetime.now(UTC))
    state = history.add(Deletes, load_as="delete")
    assert not due(state, HARD, later(state, days=30))
    assert due(state, replace(HARD, cascades="follow"), later(state, days=30))
    unsteady = replace(HARD, where="at > NOW()")
    history.claim(table=changed(TABLE, cursor=None, changes="binlog", where="at > NOW()"))
    assert due(history.state, unsteady, datetime.now(UTC)), "only once by this `where`"
    state = history.add(Deletes, load_as="delete")
    assert not due(state, unsteady, later(state, hours=23)) and due(state, unsteady, later(state, days=1))


def test_cascades_are_followed_at_the_same_interval_and_need_a_key_too() -> None:
    history, follow = replicated(), replace(HARD, deletes="ignore", cascades="follow")
    assert due(history.state, follow, datetime.now(UTC))
    state = history.add(Deletes, load_as="delete")
    assert not due(state, follow, later(state, hours=23.9)) and due(state, follow, later(state, hours=24))
    check(TABLE, follow)
    with pytest.raises(ConfigError, match="cascades: follow needs a key"):
        check(changed(TABLE, key=(), mode="append"), follow)


def test_only_rules_that_write_into_the_child_count() -> None:
    assert writing("CASCADE", "SET NULL") == ("ON UPDATE CASCADE", "ON DELETE SET NULL")
    assert writing("SET DEFAULT", "CASCADE") == ("ON UPDATE SET DEFAULT",)
    assert writing("RESTRICT", "NO ACTION") == writing("NO ACTION", "CASCADE") == ()


def test_cascades_are_read_from_a_tables_definition() -> None:
    definition = """CREATE TABLE `child` (
  `a` int DEFAULT NULL COMMENT '\\n  CONSTRAINT `x` FOREIGN KEY (`no`) REFERENCES `p` (`id`) ON UPDATE CASCADE',
  `odd``name` int DEFAULT NULL,
  KEY `k` (`a`,`b`),
  CONSTRAINT `one` FOREIGN KEY (`a`, `odd``name`) REFERENCES `other db`.`p` (`x`, `y`) ON DELETE SET NULL ON UPDATE CASCADE,
  CONSTRAINT `two` FOREIGN KEY (`c`) REFERENCES `q` (`id`) ON DELETE CASCADE,
  CONSTRAINT `three` FOREIGN KEY (`d`) REFERENCES `q` (`id`) ON UPDATE SET NULL,
  CONSTRAINT `four` FOREIGN KEY (`e`) REFERENCES `q` (`id`)
) ENGINE=InnoDB"""
    assert cascades_in(definition) == (
        Cascade(("a", "odd`name"), "other db.p", ("ON UPDATE CASCADE", "ON DELETE SET NULL")),
        Cascade(("d",), "q", ("ON UPDATE SET NULL",)),
    )


def test_a_new_where_makes_deletes_due_at_once_until_they_were_searched_for() -> None:
    history = replicated()
    state = history.add(Deletes, load_as="delete")
    soon = later(state, minutes=1)
    assert due(state, replace(HARD, where="status = 1"), soon)
    state = history.claim(table=changed(TABLE, where="status = 1"))
    assert due(state, replace(HARD, where="status = 1"), soon)


def test_a_search_that_found_nothing_leaves_nothing_to_load() -> None:
    history = replicated()
    before = history.state
    state = history.add(Deletes, load_as="delete")
    assert (state.data.commits, state.totals.rows, state.totals.files, state.totals.batches) == (
        before.data.commits, before.totals.rows, before.totals.files, before.totals.batches,
    )  # fmt: skip


def test_a_reset_makes_them_due_again() -> None:
    history = replicated()
    history.add(Deletes, load_as="mark", files=files(1))
    assert history.state.extraction.deletes_at is not None
    assert history.add(Reset, stages=("load",)).extraction.deletes_at is None


def test_nothing_is_searched_for_if_nothing_was_replicated() -> None:
    history = History()
    history.claim(table=TABLE)
    now = datetime.now(UTC)
    assert not due(history.state, HARD, now)
    history.claim(table=changed(TABLE, mode="full"))
    assert not due(history.add(Batch, files=files(3), load_as="replace"), HARD, now)


@pytest.mark.parametrize("options", [HARD, SOFT])
def test_deletes_need_a_key(options: TableOptions) -> None:
    check(TABLE, options)
    keyless = changed(TABLE, key=(), mode="append")
    with pytest.raises(ConfigError, match="needs a key"):
        check(keyless, options)
    check(keyless, TableOptions())


def test_a_full_copy_needs_no_deletes_and_can_mark_none() -> None:
    full = changed(TABLE, key=(), cursor=None, mode="full")
    check(full, HARD)
    with pytest.raises(ConfigError, match="replaces all rows"):
        check(full, SOFT)
