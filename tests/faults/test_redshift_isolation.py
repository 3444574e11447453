"""Loads beside each other: those of two targets never meet, those of one see each other, under either isolation level."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from floodmark.config.load import StoreSpec
from floodmark.load.protocol import Warehouse
from floodmark.model.errors import ConfigError, ConflictError, TransientError
from floodmark.model.ledger import TargetFiller
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.support.interrupted_loaders import before_transaction
from tests.support.redshift import Fault, RedshiftStandIn
from tests.support.warehouse_loads import (
    EVENTS,
    ORDERS,
    Fill,
    RedshiftPlace,
    row,
)

COPY_OF_ORDERS = r"\s*copy\b.*shop\.orders"


@pytest.fixture(scope="module")
def serializable(seaweed: SeaweedFS) -> Iterator[RedshiftStandIn]:
    with RedshiftStandIn(seaweed, isolation="serializable") as server:
        yield server


@pytest.fixture
def fills(serializable: RedshiftStandIn, seaweed: SeaweedFS, prefix: str) -> Iterator[tuple[Fill, Fill]]:
    """Logs of two targets. Their loads are tried once only: whatever gets in the way shows."""
    place = RedshiftPlace(serializable, f"t_{secrets.token_hex(4)}")
    place.limits = replace(place.limits, attempts=1, lock=2)
    store = Store(StoreSpec(**seaweed.store(prefix)))
    yield Fill(place, store), Fill(place, store, EVENTS, log="log-2")
    serializable.faults.clear()


def load(fill: Fill, warehouse: Warehouse, n: int) -> None:
    orders = fill.table is ORDERS
    commit = fill.commit([row(n) if orders else {"n": n}], load_as="merge" if orders else "insert")
    warehouse.load(fill.request(commit))


@contextmanager
def held_in_copy(fill: Fill, warehouse: Warehouse, n: int, *, retried: bool = False) -> Iterator[None]:
    """A load that waits in the middle of its transaction meanwhile, and must succeed then."""
    assert isinstance(fill.place, RedshiftPlace)
    faults = fill.place.server.faults
    failed: list[BaseException] = []

    def run() -> None:
        try:
            load(fill, warehouse, n)
        except BaseException as error:
            failed.append(error)

    if retried:
        faults.conflicts()
    faults.arm(Fault("stall", COPY_OF_ORDERS, skip=int(retried)))
    thread = threading.Thread(target=run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while faults.armed and thread.is_alive():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield
    finally:
        faults.clear()
        thread.join()
    assert failed == []


@pytest.mark.parametrize("first", [True, False], ids=["first loads", "later loads"])
def test_loads_of_two_targets_neither_wait_for_nor_end_each_other(
    fills: tuple[Fill, Fill], first: bool
) -> None:
    orders, events = fills
    place = orders.redshift
    if not first:
        for fill in fills:
            load(fill, place.faulty(), 0)
    with held_in_copy(orders, place.faulty(), 1):
        load(events, place.faulty(), 1)
        began = time.monotonic()
        assert len(place.faulty().ledger("log-2", "events").rows) == (1 if first else 2)
        assert time.monotonic() - began < 1
    for fill in fills:
        assert fill.ledger() == ([1] if first else [1, 2])


def test_a_retried_load_blocks_nobody_either(fills: tuple[Fill, Fill]) -> None:
    orders, events = fills
    place = orders.redshift
    for fill in fills:
        load(fill, place.faulty(), 0)
    twice = place.faulty(replace(place.limits, attempts=2))
    with held_in_copy(orders, twice, 1, retried=True):
        load(events, place.faulty(), 1)
        assert len(place.faulty().ledger("log-1", "orders").rows) == 1
    assert orders.ledger() == events.ledger() == [1, 2]


def test_many_loads_of_two_targets_at_once_never_conflict(fills: tuple[Fill, Fill]) -> None:
    place = fills[0].redshift
    failed: list[BaseException] = []
    for fill in fills:
        load(fill, place.faulty(), 0)

    def loads(fill: Fill) -> None:
        try:
            for n in range(1, 6):
                load(fill, place.faulty(), n)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=loads, args=(fill,)) for fill in fills]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [fill.ledger() for fill in fills] == [[1, 2, 3, 4, 5, 6]] * 2
    assert len(fills[0].rows("id")) == len(fills[1].rows("n")) == 6


# loads of one target


def test_a_reset_after_a_load_was_decided_stops_it(fill: Fill, place: RedshiftPlace) -> None:
    fill.load(fill.commit([row(1)]))
    fill.warehouse = before_transaction(
        place, lambda: place.faulty().set_epoch(TargetFiller("pipe-1", "log-1", "shop.orders", 7), "orders")
    )
    with pytest.raises(ConflictError, match="was reset"):
        fill.load(fill.commit([row(2)]))
    assert fill.rows("id") == [(1,)] and fill.ledger() == [1]


def test_a_first_load_is_stopped_by_a_reset_too(fill: Fill, place: RedshiftPlace) -> None:
    fill.warehouse = before_transaction(
        place, lambda: place.faulty().set_epoch(TargetFiller("pipe-1", "log-1", "shop.orders", 7), "orders")
    )
    with pytest.raises(ConflictError, match="was reset"):
        fill.load(fill.commit([row(1)]))
    assert fill.ledger() == []


def test_a_target_that_was_taken_over_after_a_load_was_decided_is_left_alone(
    fill: Fill, place: RedshiftPlace
) -> None:
    fill.load(fill.commit([row(1, "ours")]))
    theirs = Fill(place, fill.store, log="log-2", pipeline="pipe-2")
    fill.warehouse = before_transaction(
        place, lambda: place.faulty().load(theirs.request(theirs.commit([row(1, "theirs")]), adopt=True))
    )
    with pytest.raises(ConfigError, match="another pipeline"):
        fill.load(fill.commit([row(1, "late")]))
    assert fill.rows() == [(1, "theirs")]


def test_a_load_waits_for_another_one_of_its_target_and_loads_what_that_left(
    fill: Fill, place: RedshiftPlace
) -> None:
    fill.table = EVENTS  # without a key a second load would duplicate its rows
    commit = fill.commit([{"n": 1}], load_as="insert")
    place.server.faults.delay(1, r"\s*copy\b")
    other = threading.Thread(target=lambda: place.faulty().load(fill.request(commit)))
    other.start()
    while not any(sql.startswith("COPY") for sql in list(place.server.faults.statements)[-3:]):
        time.sleep(0.01)
    assert place.faulty().load(fill.request(commit)).already == (1,)
    other.join()
    assert fill.rows("n") == [(1,)] and fill.ledger() == [1]


def test_lock_tables_of_an_earlier_release_stay_in_use(fill: Fill, place: RedshiftPlace) -> None:
    fill.load(fill.commit([row(1)]))
    place.run("DROP TABLE floodmark_lock_orders")
    place.run('CREATE TABLE floodmark_lock_orders ("nothing" SMALLINT)')
    commit = fill.commit([row(2)])
    meanwhile = before_transaction(place, lambda: place.faulty().load(fill.request(commit)))
    assert meanwhile.load(fill.request(commit)).already == (2,)
    assert fill.ledger() == [1, 2]
    assert len(place.run('SELECT "token" FROM floodmark_lock_orders')) == 1


@pytest.mark.parametrize(
    ("lag", "shown"),
    [(0, False), (60, False), (0, True)],
    ids=["history at once", "history late", "COMMIT in the history"],
)
def test_a_load_that_waits_in_commit_is_named_and_not_ended(
    fill: Fill, place: RedshiftPlace, lag: float, shown: bool
) -> None:
    fill.load(fill.commit([row(1)]))
    slow, other = fill.commit([row(2)]), fill.commit([row(3)])
    faults = place.server.faults
    faults.lag(lag)
    if shown:
        faults.show_utilities()
    faults.delay_commit(3)
    done: list[int] = []
    committing = threading.Thread(target=lambda: done.append(place.faulty().load(fill.request(slow)).rows))
    committing.start()
    while faults.armed:
        time.sleep(0.01)
    with pytest.raises(TransientError, match="may be committing"):
        place.faulty(replace(place.limits, lock=1, idle=0)).load(fill.request(other))
    committing.join()
    assert done == [1] and not place.sent("SELECT pg_terminate_backend")
    assert fill.ledger() == [1, 2]
