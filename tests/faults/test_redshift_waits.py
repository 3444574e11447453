"""Loads that wait: for another load of their target, for a slow answer, for somebody who reads the target."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from floodmark.model.errors import ConfigError, TransientError
from floodmark.model.ledger import TargetFiller
from floodmark.model.lineage import with_lineage
from tests.support.described import changed
from tests.support.interrupted_loaders import before_ledger
from tests.support.redshift import Fault
from tests.support.warehouse_loads import (
    ID,
    INT,
    NAME,
    ORDERS,
    SEEN,
    DataApiPlace,
    Fill,
    RedshiftPlace,
    row,
    target_by_hand,
)

LONG = replace(NAME, characters=200, octets=800, type="varchar(200)")


# for another load


@pytest.mark.parametrize("before", ["a reset", "another target"])
def test_a_target_created_by_a_concurrent_load_is_not_mistaken_for_missing(
    fill: Fill, place: RedshiftPlace, before: str
) -> None:
    if before == "a reset":
        place.open().set_epoch(TargetFiller("pipe-1", "log-1", "shop.orders", 0), "orders")
    else:
        theirs = Fill(place, fill.store, changed(ORDERS, target="other"), log="log-2")
        theirs.load(theirs.commit([row(1)]))
    first, second = fill.commit([row(1, "a")]), fill.commit([row(2, "b")])
    fill.warehouse = before_ledger(place, lambda: place.faulty().load(fill.request(first)))
    fill.load(first, second)
    assert fill.rows() == [(1, "a"), (2, "b")] and fill.ledger() == [1, 2]


def test_a_column_renamed_by_a_concurrent_load_is_not_renamed_again(fill: Fill, place: RedshiftPlace) -> None:
    old = with_lineage(None, ORDERS)
    columns = (ID, replace(NAME, name="Title"), SEEN)
    renamed = with_lineage(old, changed(old, carried=False, columns=columns, renames=(("Name", "Title"),)))
    new = changed(renamed, owed=())
    fill.load(fill.commit([row(1, "a")], table=old), table=old, newest=old)
    fill.table = new
    first, second = fill.commit([{"id": 2, "Title": "b"}]), fill.commit([{"id": 3, "Title": "c"}])
    fill.warehouse = before_ledger(place, lambda: place.faulty().load(fill.request(first, newest=new)))
    fill.load(first, second, newest=new)
    assert fill.rows("id, title") == [(1, "a"), (2, "b"), (3, "c")] and fill.ledger() == [1, 2, 3]


def test_a_lost_commit_does_not_count_as_done_because_another_target_has_it(
    fill: Fill, place: RedshiftPlace
) -> None:
    commit, other = fill.commit([row(1)]), changed(ORDERS, target="other")
    fill.warehouse = before_ledger(
        place, lambda: place.faulty().load(fill.request(commit, table=other)), settling=True
    )
    place.server.faults.drop_before_commit()
    with pytest.raises(ConfigError, match="was loaded into other"):
        fill.load(commit)


# for an answer


def test_failing_to_find_the_lock_holder_is_a_transient_error(fill: Fill, place: RedshiftPlace) -> None:
    fill.load(fill.commit([row(1)]))
    fill.warehouse = place.faulty(replace(place.limits, lock=0.3, idle=600))
    with using(place, "LOCK TABLE floodmark_lock_orders"):
        place.server.faults.arm(Fault("drop", r".*svv_transactions", times=100))
        with pytest.raises(TransientError, match="lost"):
            fill.load(fill.commit([row(2)]))


def test_a_query_that_takes_too_long_is_retried_while_nobody_holds_the_lock(
    fill: Fill, place: RedshiftPlace
) -> None:
    fill.load(fill.commit([row(1)]))
    fill.warehouse = place.faulty(replace(place.limits, lock=0.5, idle=600, attempts=6))
    with using(place, "LOCK TABLE floodmark_ledger", 1.2):
        fill.load(fill.commit([row(2)]))
    assert fill.rows("id") == [(1,), (2,)] and fill.ledger() == [1, 2]


def test_only_the_query_that_waits_for_the_lock_has_the_locks_timeout(
    fill: Fill, place: RedshiftPlace
) -> None:
    place.run(target_by_hand())
    place.run("INSERT INTO orders VALUES (7, 'theirs', '2025-01-01')")
    place.server.faults.statements.clear()
    fill.load(fill.commit([row(1)]))
    sent = list(place.server.faults.statements)

    def limit(words: str) -> str:
        at = next(i for i, sql in enumerate(sent) if words in sql)
        return next(sql for sql in reversed(sent[: at + 1]) if "statement_timeout" in sql)

    assert "'300000'" in limit("FROM pg_class") and "TO 5000" in limit("first_row")
    assert "TO 300000" in limit("SELECT count(*) FROM") and "TO 5000" in limit("LOCK TABLE")


# for somebody who uses the target


@contextmanager
def using(place: RedshiftPlace, sql: str, seconds: float = 0.0) -> Iterator[None]:
    """Somebody who does something in a transaction, and ends it later: after so many seconds, or at the end."""
    connection = place.connect()
    cursor = connection.cursor()
    cursor.execute("BEGIN")
    cursor.execute(sql)
    if seconds:
        ending = threading.Timer(seconds, connection.close)
        ending.start()
    try:
        yield
    finally:
        if seconds:
            ending.join()
        else:
            connection.close()


@pytest.mark.parametrize(
    ("way", "more"),
    [("socket", LONG), ("socket", INT), ("data_api", INT)],
    ids=["before the transaction", "inside it", "inside a batch"],
)
def test_a_change_of_the_target_waits_no_longer_for_its_readers_than_for_a_load(
    fill: Fill, place: RedshiftPlace, way: str, more: object
) -> None:
    if way == "data_api":
        place = DataApiPlace(place.server, f"{place.schema}_aws")
        fill.place = place
    fill.load(fill.commit([row(1)]))
    columns = (ID, LONG, SEEN) if more is LONG else (ID, NAME, INT, SEEN)
    fill.table = changed(ORDERS, columns=columns)
    commit = fill.commit([row(2)])
    fill.warehouse = place.faulty(replace(place.limits, lock=1))
    with using(place, "SELECT count(*) FROM orders"):
        began = time.monotonic()
        with pytest.raises(TransientError, match=r"ALTER TABLE .* waited 1 s for session \d+ of"):
            fill.load(commit)
        assert time.monotonic() - began < 10
    assert fill.load(commit).rows == 1
    assert fill.rows("id") == [(1,), (2,)]
