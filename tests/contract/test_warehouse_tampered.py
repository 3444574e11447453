"""What others did to a target, and what a load says of it before it changes anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import DataError
from floodmark.model import LoadAs
from floodmark.store import Store, StoreSpec
from floodmark.warehouse import Numbered
from tests.fill import EVENTS, ID, INT, ORDERS, SEEN, DuckPlace, Fill, row


def window(fill: Fill, *files: list[dict[str, Any]], load_as: LoadAs = "merge") -> Numbered:
    """A commit of a window's rows."""
    commit, digest = fill.commit(*files, load_as=load_as)
    fill.made[-1] = (replace(commit, window_id="w"), digest)
    return fill.made[-1]


def test_a_column_that_somebody_dropped_is_refused_and_not_filled_with_null(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a")]))
    fill.place.run("ALTER TABLE orders DROP COLUMN name")
    with pytest.raises(DataError, match="column name of orders is gone") as refused:
        fill.load(fill.commit([row(2, "b")]), loaded=ORDERS)
    assert 'ADD COLUMN "name"' in str(refused.value.hint) and "verify --repair" in str(refused.value.hint)
    assert fill.place.run("SELECT id FROM orders") == [(1,)]
    with pytest.raises(DataError, match="is gone"):
        fill.place.open().changes(ORDERS, ORDERS)


def test_a_column_that_both_the_source_and_somebody_dropped_is_no_matter(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a")]))
    fill.place.run("ALTER TABLE orders DROP COLUMN name")
    narrower = replace(ORDERS, columns=(ID, SEEN))
    fill.load(fill.commit([row(2)], table=narrower), table=narrower, loaded=ORDERS)
    assert fill.rows("id") == [(1,), (2,)]


def test_a_column_that_somebody_made_narrower_is_refused(fill: Fill) -> None:
    wide = replace(ORDERS, columns=(ID, SEEN, replace(INT, type="bigint(20)", data_type="bigint")))
    fill.load(fill.commit([{"id": 1, "n": 2**40}], table=wide), table=wide)
    fill.place.run("ALTER TABLE orders DROP COLUMN n")
    fill.place.run("ALTER TABLE orders ADD COLUMN n SMALLINT")
    with pytest.raises(DataError, match="was BIGINT after the last load and is"):
        fill.load(fill.commit([{"id": 2, "n": 5}], table=wide), table=wide, loaded=wide)


def test_a_target_that_somebody_emptied_is_refused_unless_it_is_forced_or_repaired(fill: Fill) -> None:
    fill.load(window(fill, [row(1, "a")]))
    fill.place.run("DELETE FROM orders")
    commit = window(fill, [row(2, "b")])
    with pytest.raises(DataError, match="orders is empty") as refused:
        fill.load(commit, kept=True)
    assert "watermark reset -t shop.orders --redshift-only" in str(refused.value.hint)
    fill.load(commit, kept=True, repair=True)
    assert fill.rows() == [(2, "b")]
    fill.place.run("DELETE FROM orders")
    fill.load(window(fill, [row(3, "c")]), kept=True, adopt=True)
    assert fill.rows() == [(3, "c")]


def test_many_rows_give_way_to_a_few_only_by_force(fill: Fill) -> None:
    fill.load(fill.commit([row(n) for n in range(100)]))
    few = fill.commit([row(1)], load_as="replace")
    with pytest.raises(DataError, match="orders has 100 rows, and 1 row would take their place") as refused:
        fill.load(few)
    assert "sync -t shop.orders --redshift-only --force" in str(refused.value.hint)
    assert len(fill.rows("id")) == 100 and fill.ledger() == [1]
    fill.load(few, adopt=True)
    assert fill.rows("id") == [(1,)]


def test_a_target_that_began_empty_is_loaded_again_from_its_first_file_on(fill: Fill) -> None:
    fill.load(fill.commit(load_as="replace"))
    fill.load(fill.commit([row(n) for n in range(100)]))
    fill.place.open().set_epoch(fill.pipeline, fill.log, ORDERS.name, "orders", 3)
    fill.load(fill.made[0], epoch=3, rows_to_follow=100)
    fill.load(fill.made[1], epoch=3)
    assert len(fill.rows("id")) == 100


# rows that others deleted or added: counted in DuckDB, where that costs nothing


@pytest.fixture
def duck(tmp_path: Path) -> Fill:
    return Fill(DuckPlace(tmp_path), Store(StoreSpec(url=str(tmp_path / "lake"))))


@pytest.mark.parametrize(
    ("by_hand", "said"),
    [
        ("DELETE FROM orders WHERE id = 2", "has 2 rows, but the last load left 3: rows were deleted"),
        ("INSERT INTO orders (id) VALUES (9)", "has 4 rows, but the last load left 3: rows were added"),
    ],
)
def test_rows_that_somebody_deleted_or_added_are_noticed_before_the_next_load(
    duck: Fill, by_hand: str, said: str
) -> None:
    duck.load(window(duck, [row(1), row(2)]), window(duck, [row(2), row(3)]))
    duck.place.run(by_hand)
    with pytest.raises(DataError, match=said) as refused:
        duck.load(window(duck, [row(4)]))
    hint = str(refused.value.hint)
    assert "verify -t shop.orders --repair" in hint and "sync -t shop.orders --force" in hint
    assert duck.ledger() == [1, 2]


def test_without_a_key_the_way_on_is_not_a_repair(duck: Fill) -> None:
    duck.table = EVENTS
    duck.load(window(duck, [{"n": 1}, {"n": 1}], load_as="insert"))
    duck.place.run("INSERT INTO events (n) VALUES (1)")
    with pytest.raises(DataError, match="3 rows, but the last load left 2") as refused:
        duck.load(window(duck, [{"n": 2}], load_as="insert"))
    assert "verify" not in str(refused.value.hint)


def test_what_loads_and_deletes_do_themselves_is_no_surprise(duck: Fill) -> None:
    duck.load(window(duck, [row(1), row(2)], [row(3)]))
    duck.load(window(duck, [row(2, "again"), row(4)]))
    duck.load(duck.commit([{"id": 1}], load_as="delete"))
    duck.load(duck.commit([{"id": 2}], load_as="mark", at="2025-01-01T00:00:00.000000Z"))
    duck.load(window(duck, [row(7)], load_as="replace"))
    first, *_ = duck.made
    duck.load(first, *duck.made[1:], retake=frozenset((c.n, digest) for c, digest in duck.made))
    duck.load(window(duck, [row(8)]))
    assert duck.rows("id") == [(7,), (8,)]


def test_a_snapshot_replaces_what_others_did(duck: Fill) -> None:
    duck.load(window(duck, [row(1)]))
    duck.place.run("INSERT INTO orders (id) VALUES (9)")
    duck.load(window(duck, [row(2)], load_as="replace"))
    duck.load(window(duck, [row(3)]))
    assert duck.rows("id") == [(2,), (3,)]


def test_rows_kept_by_force_are_the_ones_to_go_on_with(duck: Fill) -> None:
    duck.load(window(duck, [row(1), row(2)]))
    duck.place.run("DELETE FROM orders WHERE id = 1")
    duck.load(window(duck, [row(3)]), adopt=True)
    duck.load(window(duck, [row(4)]))
    assert duck.rows("id") == [(2,), (3,), (4,)]


def test_a_repair_that_does_not_come_to_its_end_leaves_the_difference_known(duck: Fill) -> None:
    duck.load(window(duck, [row(1), row(2)]))
    duck.place.run("DELETE FROM orders WHERE id = 1")
    duck.load(window(duck, [row(3)]), repair=True)
    duck.load(duck.commit([row(3, "read again")]))  # what moves no position goes in
    with pytest.raises(DataError, match="has 2 rows, but the last load left 3"):
        duck.load(window(duck, [row(4)]))
    duck.place.open().recount(duck.log, "orders")
    duck.load(duck.made[-1])
    assert duck.rows("id") == [(2,), (3,), (4,)]


def test_rows_that_were_deleted_by_hand_and_read_again_are_there_once(duck: Fill) -> None:
    duck.load(window(duck, [row(1), row(2), row(3)]))
    duck.place.run("DELETE FROM orders WHERE id > 1")
    duck.load(duck.commit([row(2)]))  # as --since and overlaps bring them back
    commit = window(duck, [row(4)])
    with pytest.raises(DataError, match="has 2 rows, but the last load left 3"):
        duck.load(commit)
    duck.load(duck.commit([row(3)]))
    duck.load(window(duck, [row(5)]))
    assert duck.rows("id") == [(1,), (2,), (3,), (5,)]


@pytest.mark.parametrize(
    ("by_hand", "gone"),
    [
        ("INSERT INTO orders (id) VALUES (8), (9)", (8, 9)),  # a repair takes them away
        ("DELETE FROM orders WHERE id = 1", (1, 2)),  # one of the source's deletes comes too late
    ],
)
def test_deletes_leave_no_difference_that_is_not_there(
    duck: Fill, by_hand: str, gone: tuple[int, ...]
) -> None:
    duck.load(window(duck, [row(1), row(2), row(3)]))
    duck.place.run(by_hand)
    duck.load(duck.commit([{"id": n} for n in gone], load_as="delete"))
    duck.load(window(duck, [row(4)]))
    assert duck.rows("id")[-2:] == [(3,), (4,)]


def test_deletes_don_t_hide_what_is_missing(duck: Fill) -> None:
    duck.load(window(duck, [row(1), row(2), row(3)]))
    duck.place.run("DELETE FROM orders WHERE id = 1")
    duck.load(duck.commit([{"id": 2}], load_as="delete"))
    with pytest.raises(DataError, match="has 1 rows, but the last load left 2"):
        duck.load(window(duck, [row(4)]))


def test_a_warehouse_whose_rows_nobody_counted_is_loaded_into(duck: Fill) -> None:
    duck.load(window(duck, [row(1), row(2)]))
    duck.place.run("DROP TABLE floodmark_counts")  # as an earlier version leaves it
    duck.place.run("DELETE FROM orders WHERE id = 1")
    duck.load(window(duck, [row(3)]))
    duck.place.run("INSERT INTO orders (id) VALUES (9)")
    with pytest.raises(DataError, match="has 3 rows, but the last load left 2"):
        duck.load(window(duck, [row(4)]))


def test_a_count_from_before_loads_that_nobody_counted_says_nothing(duck: Fill) -> None:
    duck.load(window(duck, [row(1)]))
    counted = duck.place.run("SELECT * FROM floodmark_counts")
    duck.load(window(duck, [row(2)]))
    duck.place.run("DELETE FROM floodmark_counts")  # an earlier version loads, and leaves the count as it was
    values = ", ".join(f"'{value}'" for value in counted[0])
    duck.place.run(f"INSERT INTO floodmark_counts VALUES ({values})")
    duck.load(window(duck, [row(3)]))
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
def test_rows_that_break_a_constraint_of_others_are_refused_with_the_statements_that_help(
    duck: Fill, by_hand: str
) -> None:
    duck.load(duck.commit([row(1, "a"), row(2, "b")]))
    duck.place.run(by_hand)
    commit = duck.commit([row(3, "a", None)])
    with pytest.raises(DataError, match="orders has a constraint that Floodmark did not make") as refused:
        duck.load(commit)
    duck.place.run(str(refused.value.hint).partition("run: ")[2])
    duck.load(commit)
    assert duck.rows() == [(1, "a"), (2, "b"), (3, "a")]
