"""Who may load into a target, in every warehouse: its epoch, pipeline, table and log."""

from __future__ import annotations

import pytest

from floodmark.model.errors import ConfigError, ConflictError, DataError
from floodmark.model.ledger import TargetFiller
from tests.support.described import changed
from tests.support.warehouse_loads import EVENTS, ORDERS, Fill, row, target_by_hand


def test_a_load_of_an_old_epoch_stops(fill: Fill) -> None:
    commit = fill.commit([row(1)])
    fill.load(commit)
    fill.place.open().set_epoch(TargetFiller("pipe-1", "log-1", "shop.orders", 7), "orders")
    with pytest.raises(ConflictError, match="reset"):
        fill.load(fill.commit([row(2)]))
    fill.epoch = 7
    assert [r.n for r in fill.load(commit).loaded] == [1]  # loaded again, because the epoch is new
    assert fill.rows("id") == [(1,)] and fill.ledger() == [1, 1]


def test_an_epoch_never_goes_back(fill: Fill) -> None:
    warehouse = fill.place.open()
    warehouse.set_epoch(TargetFiller("pipe-1", "log-1", "shop.orders", 7), "orders")
    warehouse.set_epoch(TargetFiller("pipe-1", "log-1", "shop.orders", 7), "orders")
    with pytest.raises(ConflictError):
        warehouse.set_epoch(TargetFiller("pipe-1", "log-1", "shop.orders", 5), "orders")
    assert warehouse.ledger("log-1", "orders").epoch == 7


def test_a_target_of_another_pipeline_is_refused_until_it_is_taken_over(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "theirs")]))
    ours = Fill(fill.place, fill.store, log="log-2", pipeline="pipe-2")
    commit = ours.commit([row(1, "ours")])
    with pytest.raises(ConfigError, match="another pipeline") as refused:
        ours.load(commit)
    assert "target" in str(refused.value.hint) and "--force" in str(refused.value.hint)
    ours.load(commit, adopt=True)
    assert fill.rows() == [(1, "ours")]
    ours.load(ours.commit([row(2, "ours")]))
    with pytest.raises(ConfigError, match="another pipeline"):  # now it is they who don't hold it
        fill.load(fill.commit([row(3)]))


def test_a_target_of_another_table_is_refused(fill: Fill) -> None:
    fill.load(fill.commit([row(1)]))
    other = Fill(fill.place, fill.store, changed(ORDERS, table="returns"), log="log-2")
    with pytest.raises(ConfigError, match=r"filled from shop\.orders"):
        other.load(other.commit([row(1)]))


def test_a_log_that_was_started_over_merges_by_key_and_says_so(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "old")]))
    anew = Fill(fill.place, fill.store, log="log-2")
    outcome = anew.load(anew.commit([row(1, "new"), row(2, "new")]))
    assert [f.kind for f in outcome.findings] == ["new_log"]
    assert fill.rows() == [(1, "new"), (2, "new")]
    assert anew.load(anew.commit([row(3)])).findings == ()


def test_a_log_that_was_started_over_without_a_key_is_refused(fill: Fill) -> None:
    fill.table = EVENTS
    fill.load(fill.commit([{"n": 1}], load_as="insert"))
    anew = Fill(fill.place, fill.store, EVENTS, log="log-2")
    with pytest.raises(DataError, match="duplicated"):
        anew.load(anew.commit([{"n": 1}], load_as="insert"))
    assert fill.rows("n") == [(1,)]


def test_a_target_with_a_new_name_is_refused_rather_than_half_filled(fill: Fill) -> None:
    fill.load(fill.commit([row(1)]))
    with pytest.raises(ConfigError, match="was loaded into orders so far"):
        fill.load(fill.commit([row(2)]), target="orders_2")


def test_a_dropped_target_is_refused_rather_than_half_filled(fill: Fill) -> None:
    fill.load(fill.commit([row(1)]))
    fill.place.run("DROP TABLE orders")
    with pytest.raises(DataError, match="is gone") as refused:
        fill.load(fill.commit([row(2)]))
    assert "--redshift-only" in str(refused.value.hint)


def test_foreign_rows_are_merged_but_never_duplicated_or_wiped(fill: Fill) -> None:
    fill.place.run(target_by_hand())
    fill.place.run("INSERT INTO orders VALUES (1, 'mine', NULL)")
    fill.place.run("CREATE TABLE events (n INTEGER, name VARCHAR(80))")
    fill.place.run("INSERT INTO events VALUES (1, 'mine')")
    fill.load(fill.commit([row(1, "loaded"), row(2, "loaded")]))
    assert fill.rows() == [(1, "loaded"), (2, "loaded")]
    adds = Fill(fill.place, fill.store, EVENTS, log="log-2")
    with pytest.raises(DataError, match="no way to tell"):
        adds.load(adds.commit([{"n": 1}], load_as="insert"))
    swaps = Fill(fill.place, fill.store, changed(EVENTS, mode="full"), log="log-3")
    snapshot = swaps.commit([{"n": 5}], load_as="replace")
    with pytest.raises(DataError, match="did not load"):
        swaps.load(snapshot)
    swaps.load(snapshot, adopt=True)
    assert swaps.rows("n") == [(5,)]
