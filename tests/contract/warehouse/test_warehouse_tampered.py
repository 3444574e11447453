"""What others did to a target, and what a load reports before it changes anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec
from floodmark.model.errors import DataError
from floodmark.model.ledger import TargetFiller
from floodmark.store.store import Store
from tests.support.described import changed
from tests.support.warehouse_loads import (
    EVENTS,
    ID,
    INT,
    NAME,
    ORDERS,
    SEEN,
    DuckPlace,
    Fill,
    Place,
    row,
)


def test_a_column_that_somebody_dropped_is_refused_and_not_filled_with_null(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a")]))
    fill.place.run("ALTER TABLE orders DROP COLUMN name")
    with pytest.raises(DataError, match="column name of orders is gone") as refused:
        fill.load(fill.commit([row(2, "b")]), loaded=ORDERS)
    assert 'ADD COLUMN "name"' in str(refused.value.hint) and "verify --repair" in str(refused.value.hint)
    assert fill.place.run("SELECT id FROM orders") == [(1,)]
    with pytest.raises(DataError, match="is gone"):
        fill.place.open().changes(ORDERS, ORDERS)


def test_a_column_dropped_in_both_source_and_target_does_no_harm(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a")]))
    fill.place.run("ALTER TABLE orders DROP COLUMN name")
    narrower = changed(ORDERS, columns=(ID, SEEN))
    fill.load(fill.commit([row(2)], table=narrower), table=narrower, loaded=ORDERS)
    assert fill.rows("id") == [(1,), (2,)]


def test_a_column_that_somebody_made_narrower_is_refused(fill: Fill) -> None:
    wide = changed(ORDERS, columns=(ID, SEEN, replace(INT, type="bigint(20)", data_type="bigint")))
    fill.load(fill.commit([{"id": 1, "n": 2**40}], table=wide), table=wide)
    fill.place.run("ALTER TABLE orders DROP COLUMN n")
    fill.place.run("ALTER TABLE orders ADD COLUMN n SMALLINT")
    with pytest.raises(DataError, match="was BIGINT after the last load and is"):
        fill.load(fill.commit([{"id": 2, "n": 5}], table=wide), table=wide, loaded=wide)


def test_a_foreign_column_is_not_mistaken_for_a_new_one_in_the_source(fill: Fill) -> None:
    """Rows that are there would keep what others have put into it."""
    fill.load(fill.commit([row(1, "a")]))
    fill.place.run("ALTER TABLE orders ADD COLUMN n INTEGER DEFAULT 7")
    look, more = fill.place.open(), changed(ORDERS, columns=(*ORDERS.columns, INT))
    with pytest.raises(DataError, match="column n of orders was not created by Floodmark"):
        look.changes(more, ORDERS, ORDERS)
    called_n = changed(ORDERS, columns=(ID, replace(NAME, name="n"), SEEN), renamed=(("Name", "n"),))
    with pytest.raises(DataError, match="column n of orders was not created by Floodmark"):
        look.changes(called_n, ORDERS, ORDERS)
    # But not a column that was dropped at the source and came back, nor one that a claim already knows.
    look.changes(more, ORDERS, changed(ORDERS, dropped=(INT,)))
    look.changes(more, ORDERS, more)
    look.changes(changed(more, mode="full", cursor=None), ORDERS, ORDERS)


def test_a_load_does_not_put_a_new_column_s_values_into_a_foreign_one(fill: Fill) -> None:
    """It may have been added after the claim; what a load may have made before is no column of others."""
    fill.load(fill.commit([row(1, "a")]))
    fill.place.run("ALTER TABLE orders ADD COLUMN n INTEGER")
    more = changed(ORDERS, columns=(*ORDERS.columns, replace(INT, fill="7")))
    commit = fill.commit([{**row(2, "b"), "n": 1}], table=more)
    with pytest.raises(DataError, match="column n of orders was not created by Floodmark") as refused:
        fill.load(commit, table=more, loaded=ORDERS, shaped=ORDERS)
    assert "verify -t shop.orders --repair" in str(refused.value.hint)
    assert fill.rows("id, n") == [(1, None)]
    fill.load(commit, table=more, loaded=ORDERS, shaped=ORDERS, repair=True)
    assert fill.rows("id, n") == [(1, None), (2, 1)]
    fill.load(fill.commit([{**row(3), "n": 1}], table=more), table=more, loaded=ORDERS, shaped=more)
    assert fill.rows("id, n") == [(1, None), (2, 1), (3, 1)]


@pytest.mark.parametrize(("default", "value"), [("", None), (" DEFAULT 7", "7")])
def test_a_foreign_column_that_has_the_source_s_values_in_every_row_is_taken_over(
    fill: Fill, default: str, value: str | None
) -> None:
    fill.load(fill.commit([row(1, "a")]))
    fill.place.run(f"ALTER TABLE orders ADD COLUMN n INTEGER{default}")
    more = changed(ORDERS, columns=(*ORDERS.columns, replace(INT, fill=value)))
    assert fill.place.open().changes(more, ORDERS, ORDERS) == ()
    fill.load(fill.commit([{**row(2), "n": 1}], table=more), table=more, loaded=ORDERS, shaped=ORDERS)
    assert fill.rows("id, n") == [(1, value and int(value)), (2, 1)]


def test_a_target_that_somebody_emptied_is_refused_unless_forced_or_repaired(fill: Fill) -> None:
    fill.load(fill.window([row(1, "a")]))
    fill.place.run("DELETE FROM orders")
    commit = fill.window([row(2, "b")])
    with pytest.raises(DataError, match="orders is empty") as refused:
        fill.load(commit, kept=True)
    assert "watermark reset -t shop.orders --redshift-only" in str(refused.value.hint)
    fill.load(commit, kept=True, repair=True)
    assert fill.rows() == [(2, "b")]
    fill.place.run("DELETE FROM orders")
    fill.load(fill.window([row(3, "c")]), kept=True, adopt=True)
    assert fill.rows() == [(3, "c")]


def test_many_rows_are_replaced_by_a_few_only_with_force(fill: Fill) -> None:
    fill.load(fill.commit([row(n) for n in range(100)]))
    few = fill.commit([row(1)], load_as="replace")
    with pytest.raises(DataError, match="orders has 100 rows, and 1 row would replace them") as refused:
        fill.load(few)
    assert "sync -t shop.orders --redshift-only --force" in str(refused.value.hint)
    assert len(fill.rows("id")) == 100 and fill.ledger() == [1]
    fill.load(few, adopt=True)
    assert fill.rows("id") == [(1,)]


def test_a_target_that_began_empty_is_loaded_again_from_its_first_file_on(fill: Fill) -> None:
    fill.load(fill.commit(load_as="replace"))
    fill.load(fill.commit([row(n) for n in range(100)]))
    fill.place.open().set_epoch(TargetFiller(fill.pipeline, fill.log, ORDERS.name, 3), "orders")
    fill.load(fill.made[0], epoch=3, rows_to_follow=100)
    fill.load(fill.made[1], epoch=3)
    assert len(fill.rows("id")) == 100


# rows that others deleted or added


@pytest.mark.parametrize(
    ("by_hand", "said"),
    [
        ("DELETE FROM orders WHERE id = 2", "has 2 rows, but the last load left 3: rows were deleted"),
        ("INSERT INTO orders (id) VALUES (9)", "has 4 rows, but the last load left 3: rows were added"),
    ],
)
def test_rows_that_somebody_deleted_or_added_are_noticed_before_the_next_load(
    fill: Fill, by_hand: str, said: str
) -> None:
    fill.load(fill.window([row(1), row(2)]), fill.window([row(2), row(3)]))
    fill.place.run(by_hand)
    with pytest.raises(DataError, match=said) as refused:
        fill.load(fill.window([row(4)]))
    hint = str(refused.value.hint)
    assert "verify -t shop.orders --repair" in hint and "sync -t shop.orders --force" in hint
    assert fill.ledger() == [1, 2]


def test_without_a_key_the_hint_is_not_a_repair(fill: Fill) -> None:
    fill.table = EVENTS
    fill.load(fill.window([{"n": 1}, {"n": 1}], load_as="insert"))
    fill.place.run("INSERT INTO events (n) VALUES (1)")
    with pytest.raises(DataError, match="3 rows, but the last load left 2") as refused:
        fill.load(fill.window([{"n": 2}], load_as="insert"))
    assert "verify" not in str(refused.value.hint)


def test_changes_by_loads_and_deletes_themselves_are_expected(fill: Fill) -> None:
    fill.load(fill.window([row(1), row(2)], [row(3)]))
    fill.load(fill.window([row(2, "again"), row(4)]))
    fill.load(fill.commit([{"id": 1}], load_as="delete"))
    fill.load(fill.commit([{"id": 2}], load_as="mark", at="2025-01-01T00:00:00.000000Z"))
    fill.load(fill.window([row(7)], load_as="replace"))
    first, *_ = fill.made
    fill.load(first, *fill.made[1:], retake=frozenset((c.n, digest) for c, digest in fill.made))
    fill.load(fill.window([row(8)]))
    assert fill.rows("id") == [(7,), (8,)]


def test_a_snapshot_replaces_foreign_changes(fill: Fill) -> None:
    fill.load(fill.window([row(1)]))
    fill.place.run("INSERT INTO orders (id) VALUES (9)")
    fill.load(fill.window([row(2)], load_as="replace"))
    fill.load(fill.window([row(3)]))
    assert fill.rows("id") == [(2,), (3,)]


def test_rows_kept_by_force_are_the_new_baseline(fill: Fill) -> None:
    fill.load(fill.window([row(1), row(2)]))
    fill.place.run("DELETE FROM orders WHERE id = 1")
    fill.load(fill.window([row(3)]), adopt=True)
    fill.load(fill.window([row(4)]))
    assert fill.rows("id") == [(2,), (3,), (4,)]


def test_an_interrupted_repair_leaves_the_difference_on_record(fill: Fill) -> None:
    fill.load(fill.window([row(1), row(2)]))
    fill.place.run("DELETE FROM orders WHERE id = 1")
    fill.load(fill.window([row(3)]), repair=True)
    fill.load(fill.commit([row(3, "read again")]))  # what moves no position goes in
    with pytest.raises(DataError, match="has 2 rows, but the last load left 3"):
        fill.load(fill.window([row(4)]))
    fill.place.open().recount(fill.pipeline, fill.log, "orders")
    fill.load(fill.made[-1])
    assert fill.rows("id") == [(2,), (3,), (4,)]


def test_rows_that_were_deleted_by_hand_and_read_again_are_there_once(fill: Fill) -> None:
    fill.load(fill.window([row(1), row(2), row(3)]))
    fill.place.run("DELETE FROM orders WHERE id > 1")
    fill.load(fill.commit([row(2)]))  # as --since and overlaps bring them back
    commit = fill.window([row(4)])
    with pytest.raises(DataError, match="has 2 rows, but the last load left 3"):
        fill.load(commit)
    fill.load(fill.commit([row(3)]))
    fill.load(fill.window([row(5)]))
    assert fill.rows("id") == [(1,), (2,), (3,), (5,)]


@pytest.mark.parametrize(
    ("by_hand", "gone"),
    [
        ("INSERT INTO orders (id) VALUES (8), (9)", (8, 9)),  # a repair takes them away
        ("DELETE FROM orders WHERE id = 1", (1, 2)),  # one of the source's deletes comes too late
    ],
)
def test_deletes_leave_no_false_difference(fill: Fill, by_hand: str, gone: tuple[int, ...]) -> None:
    fill.load(fill.window([row(1), row(2), row(3)]))
    fill.place.run(by_hand)
    fill.load(fill.commit([{"id": n} for n in gone], load_as="delete"))
    fill.load(fill.window([row(4)]))
    assert fill.rows("id")[-2:] == [(3,), (4,)]


def test_deletes_don_t_hide_what_is_missing(fill: Fill) -> None:
    fill.load(fill.window([row(1), row(2), row(3)]))
    fill.place.run("DELETE FROM orders WHERE id = 1")
    fill.load(fill.commit([{"id": 2}], load_as="delete"))
    with pytest.raises(DataError, match="has 1 rows, but the last load left 2"):
        fill.load(fill.window([row(4)]))


def test_a_token_of_an_earlier_release_says_nothing_about_rows(fill: Fill, place: Place) -> None:
    if place.kind != "redshift":
        pytest.skip("only Redshift keeps its counts in the lock's table")
    fill.load(fill.window([row(1), row(2)]))
    place.run("UPDATE floodmark_lock_orders SET token = 'of an earlier release'")
    place.run("DELETE FROM orders WHERE id = 1")
    fill.load(fill.window([row(3)]))
    place.run("INSERT INTO orders (id) VALUES (9)")
    with pytest.raises(DataError, match="has 3 rows, but the last load left 2"):
        fill.load(fill.window([row(4)]))


def test_a_lock_table_of_an_earlier_release_has_no_count_to_correct(fill: Fill, place: Place) -> None:
    if place.kind != "redshift":
        pytest.skip("only Redshift keeps its counts in the lock's table")
    fill.load(fill.window([row(1), row(2)]))
    place.run("ALTER TABLE floodmark_lock_orders DROP COLUMN token")
    place.open().recount(fill.pipeline, fill.log, "orders")
    fill.load(fill.window([row(3)]))
    assert fill.rows("id") == [(1,), (2,), (3,)]


def test_a_recreated_target_is_recounted(fill: Fill) -> None:
    skipped, *later = (fill.window([row(n), row(n + 10)]) for n in (1, 2, 3))
    fill.load(*later)  # as after a manual watermark
    fill.place.run("DROP TABLE orders")
    fill.load(skipped, *later, retake=frozenset((c.n, digest) for c, digest in later))
    fill.load(fill.window([row(4)]))
    assert len(fill.rows("id")) == 7


def test_a_ledger_changed_by_hand_is_not_blamed_on_the_rows(fill: Fill) -> None:
    fill.load(fill.window([row(1)]))
    fill.load(fill.window([row(2)]))
    fill.place.run("DELETE FROM orders WHERE id = 2")
    fill.place.run("DELETE FROM floodmark_ledger WHERE n = 2")
    fill.load(*fill.made)
    assert fill.rows("id") == [(1,), (2,)]


@pytest.fixture
def duck(tmp_path: Path) -> Fill:
    return Fill(DuckPlace(tmp_path), Store(StoreSpec(url=str(tmp_path / "lake"))))


def test_a_warehouse_without_row_counts_accepts_loads(duck: Fill) -> None:
    duck.load(duck.window([row(1), row(2)]))
    duck.place.run("DROP TABLE floodmark_counts")  # as an earlier version leaves it
    duck.place.run("DELETE FROM orders WHERE id = 1")
    duck.load(duck.window([row(3)]))
    duck.place.run("INSERT INTO orders (id) VALUES (9)")
    with pytest.raises(DataError, match="has 3 rows, but the last load left 2"):
        duck.load(duck.window([row(4)]))


def test_a_count_from_before_uncounted_loads_says_nothing(duck: Fill) -> None:
    duck.load(duck.window([row(1)]))
    counted = duck.place.run("SELECT * FROM floodmark_counts")
    duck.load(duck.window([row(2)]))
    duck.place.run("DELETE FROM floodmark_counts")  # an earlier version loads, and leaves the count as it was
    values = ", ".join(f"'{value}'" for value in counted[0])
    duck.place.run(f"INSERT INTO floodmark_counts VALUES ({values})")
    duck.load(duck.window([row(3)]))
    assert duck.rows("id") == [(1,), (2,), (3,)]


# constraints: DuckDB keeps to them


def test_a_primary_key_on_the_key_does_no_harm(duck: Fill) -> None:
    duck.load(duck.commit([row(1, "a"), row(2, "b")]))
    duck.place.run("ALTER TABLE orders ADD PRIMARY KEY (id)")
    duck.load(duck.commit([row(1, "c"), row(3, "b")]))
    assert duck.rows() == [(1, "c"), (2, "b"), (3, "b")]


@pytest.mark.parametrize(
    "by_hand",
    [
        "CREATE UNIQUE INDEX ours ON orders (name)",
        "ALTER TABLE orders ADD PRIMARY KEY (name)",
        "ALTER TABLE orders ALTER COLUMN update_at SET NOT NULL",
    ],
)
def test_rows_that_violate_a_foreign_constraint_are_refused_with_the_statements_to_run(
    duck: Fill, by_hand: str
) -> None:
    duck.load(duck.commit([row(1, "a"), row(2, "b")]))
    duck.place.run(by_hand)
    commit = duck.commit([row(3, "a", None)])
    with pytest.raises(DataError, match="orders has a constraint that Floodmark did not create") as refused:
        duck.load(commit)
    duck.place.run(str(refused.value.hint).partition("run: ")[2])
    duck.load(commit)
    assert duck.rows() == [(1, "a"), (2, "b"), (3, "a")]
