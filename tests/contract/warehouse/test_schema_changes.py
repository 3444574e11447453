"""How a target is made to fit files that have changed: in every warehouse the same rows, whatever dies on the way."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from floodmark.config.load import StoreSpec
from floodmark.model.errors import DataError, FloodmarkError
from floodmark.model.lineage import with_lineage
from floodmark.model.table import Column, Table
from floodmark.store.store import Store
from tests.conftest import PATIENT
from tests.support.described import changed
from tests.support.warehouse_loads import (
    CODES,
    ID,
    INT,
    NAME,
    ORDERS,
    SEEN,
    Fill,
    Place,
    RedshiftPlace,
    code,
    row,
    target_by_hand,
)

LONG = replace(NAME, characters=200, octets=800, type="varchar(200)")
PRICE = Column("price", "decimal(6,2)", "decimal", precision=6, scale=2)


def then(before: Table, *columns: Column, renames: tuple[tuple[str, str], ...] = ()) -> Table:
    """The table with other columns, as the next claim describes it; new ones are settled."""
    now = with_lineage(before, changed(before, carried=False, columns=columns, renames=renames))
    return changed(now, owed=())


def named(column: Column, name: str, **more: Any) -> Column:
    return replace(column, name=name, **more)


def columns(place: Place, target: str = "orders") -> list[str]:
    return [name for name, _ in place.columns(target)]


def load(fill: Fill, table: Table, *rows: dict[str, Any], newest: Table | None = None, **more: Any) -> None:
    fill.load(fill.commit(list(rows), table=table, **more), table=table, newest=newest or table)


def test_a_warehouse_does_the_changes_that_it_announces(fill: Fill) -> None:
    first = with_lineage(None, changed(ORDERS, columns=(ID, NAME, SEEN, INT)))
    wide = named(INT, "n", type="bigint(20)", data_type="bigint")
    later = then(first, ID, LONG, SEEN, wide, named(INT, "new", fill="3"))
    warehouse = fill.place.open()
    assert [change.kind for change in warehouse.changes(first)] == ["create"]
    assert fill.place.empty  # a query changes nothing
    load(fill, first, {**row(1, "a"), "n": 1})
    assert warehouse.changes(first) == ()
    changes = warehouse.changes(later)
    wider = (
        ["widen", "widen"] if fill.place.kind == "redshift" else ["widen"]
    )  # VARCHAR has no length elsewhere
    assert [change.kind for change in changes] == [*wider, "add"]
    assert all('"orders"' in change.statement for change in changes)
    load(fill, later, {**row(2, "x" * 200), "n": 1 << 40, "new": 7})
    assert warehouse.changes(later) == ()
    assert fill.rows("id, n, new") == [(1, 1, 3), (2, 1 << 40, 7)]


def test_a_change_that_could_lose_values_is_refused_with_the_statement_for_it(fill: Fill) -> None:
    first = changed(ORDERS, columns=(ID, SEEN, PRICE))
    load(fill, first, {"id": 1, "price": Decimal("1.50")})
    text = changed(first, columns=(ID, SEEN, named(NAME, "price")))
    with pytest.raises(DataError, match="column price of orders") as refused:
        fill.place.open().changes(text)
    for statement in str(refused.value.hint).partition("run: ")[2].split("; "):
        fill.place.run(statement)
    assert fill.place.open().changes(text) == ()
    load(fill, text, {"id": 2, "price": "two"})
    assert fill.rows("id, price") == [(1, "1.50"), (2, "two")]


def test_rows_get_the_fill_of_a_later_column_whenever_they_load(fill: Fill) -> None:
    first = with_lineage(None, ORDERS)
    added = then(first, ID, NAME, SEEN, named(INT, "n", fill="5"), named(NAME, "label", fill="it's \\"))
    gone = then(added, ID, NAME, SEEN)
    load(fill, first, row(1, "before"))
    late = fill.commit([row(2, "late")], table=first)
    load(fill, added, {**row(3, "with"), "n": 1, "label": None})
    load(fill, gone, row(4, "without"))
    retake = frozenset((commit.n, digest) for commit, digest in fill.made[2:])
    fill.load(late, table=first, newest=gone, retake=retake)
    for made in fill.made[2:]:
        table = added if made[0].n == 3 else gone
        fill.load(made, table=table, newest=gone)
    assert fill.rows("id, n, label") == [(1, 5, "it's \\"), (2, 5, "it's \\"), (3, 1, None), (4, None, None)]


def test_a_renamed_column_is_one_column_for_old_files_and_new_ones(fill: Fill) -> None:
    first = with_lineage(None, ORDERS)
    second = then(first, ID, named(LONG, "Title"), SEEN, renames=(("Name", "Title"),))
    load(fill, first, row(1, "a"))
    old = fill.commit([row(2, "b")], table=first)
    fill.load(old, table=first, newest=second)  # loads when the rename is known already
    load(fill, second, {"id": 3, "Title": "c" * 200})
    load(fill, second, {"id": 1, "Title": "again"})
    assert sorted(columns(fill.place)) == ["id", "title", "update_at"]
    assert fill.rows("id, title") == [(1, "again"), (2, "b"), (3, "c" * 200)]
    fill.load(fill.commit([{"id": 2}], table=second, load_as="delete"), table=second, newest=second)
    assert fill.rows("id") == [(1,), (3,)]


def test_a_key_of_text_that_was_renamed_still_finds_its_rows(fill: Fill) -> None:
    first = with_lineage(None, CODES)
    load(fill, first, code("abc", 1), code("x", 1))
    key = named(CODES.columns[0], "number")
    second = changed(then(first, key, *CODES.columns[1:], renames=(("code", "number"),)), key=("number",))
    keys = fill.commit([{"number": "X", "_floodmark_key": b"X"}], table=second, load_as="delete")
    fill.load(keys, table=second, newest=second)
    values = code("ABC", 2)
    load(fill, second, {**values, "number": values["code"]})
    assert fill.rows("number, n", "codes") == [("ABC", 2)]


def test_decimals_get_a_type_that_holds_both(fill: Fill) -> None:
    first = changed(ORDERS, columns=(ID, SEEN, PRICE))
    load(fill, first, {"id": 1, "price": Decimal("1234.56")})
    other = replace(PRICE, type="decimal(6,1)", scale=1)
    second = changed(first, columns=(ID, SEEN, other))
    load(fill, second, {"id": 2, "price": Decimal("12345.6")})
    assert fill.rows("id, price") == [(1, Decimal("1234.56")), (2, Decimal("12345.60"))]


def test_our_own_column_in_a_target_that_marks_deletes_is_left_alone(fill: Fill) -> None:
    load(fill, ORDERS, row(1, "a"), row(2, "b"))
    fill.load(fill.commit([{"id": 1}], load_as="mark", at="2025-05-01T12:00:00.000000Z"))
    mine = then(with_lineage(None, ORDERS), ID, NAME, SEEN, named(INT, "_deleted_at", fill="4"))
    load(fill, mine, {**row(3, "c"), "_deleted_at": 5})
    target = next(name for name in columns(fill.place) if name.startswith("_deleted_at_"))
    found = fill.rows(f"id, {target}, _deleted_at IS NULL")
    assert found == [(1, 4, False), (2, 4, True), (3, 5, True)]


# columns that the files lack


PHONE = named(NAME, "phone")


def customers(fill: Fill, *, mode: str = "upsert") -> Table:
    """A table whose three rows were loaded with phones, after that column was dropped."""
    first = with_lineage(None, changed(ORDERS, columns=(ID, NAME, PHONE, SEEN), mode=mode))
    rows = [{**row(i, "old"), "phone": f"+{i}"} for i in (1, 2, 3)]
    load(fill, first, *rows, load_as="replace" if mode == "full" else "merge")
    return then(first, ID, NAME, SEEN)


def test_a_dropped_column_keeps_its_values_in_rows_that_are_merged(fill: Fill) -> None:
    dropped = customers(fill)
    load(fill, dropped, row(1, "new"), row(4, "new"))
    fill.load(
        fill.commit([row(2, "twice", at=3), row(2, "once", at=2)], table=dropped),
        fill.commit([row(3, "new"), row(5, "new")], table=dropped),
        table=dropped,
        newest=dropped,
    )
    found = [(1, "new", "+1"), (2, "twice", "+2"), (3, "new", "+3"), (4, "new", None), (5, "new", None)]
    assert fill.rows("id, name, phone") == found
    back = then(dropped, ID, NAME, PHONE, SEEN)
    load(fill, back, {**row(1, "back"), "phone": None}, {**row(4, "back"), "phone": "+4"})
    assert fill.rows("id, phone")[:4] == [(1, None), (2, "+2"), (3, "+3"), (4, "+4")]


def test_older_files_that_load_late_change_no_column_that_they_lack(fill: Fill) -> None:
    """Also with several formats one after the other, with columns in another order, and renamed ones."""
    dropped = customers(fill)
    added = then(dropped, SEEN, named(INT, "n", fill="5"), ID, named(NAME, "phone2"), NAME)
    renamed = then(added, ID, NAME, named(INT, "m", fill="5"), SEEN, renames=(("n", "m"),))
    late = fill.commit([row(2, "late"), row(6, "late")], table=dropped)
    load(fill, added, {**row(1, "a"), "n": 7, "phone2": "x"}, newest=renamed)
    load(fill, renamed, {**row(1, "b"), "m": 8}, {**row(4, "b"), "m": 9})
    fill.load(late, table=dropped, newest=renamed, retake=frozenset((c.n, d) for c, d in fill.made[2:]))
    assert fill.rows("id, name, phone, m, phone2") == [
        (1, "b", "+1", 8, "x"), (2, "late", "+2", 5, None), (3, "old", "+3", 5, None), (4, "b", None, 9, None),
        (6, "late", None, 5, None),
    ]  # fmt: skip


def test_a_column_that_others_added_keeps_its_values_and_its_default(fill: Fill) -> None:
    more = "mine VARCHAR(9) DEFAULT 'new', times INTEGER NOT NULL DEFAULT 0"
    more += ", twice BIGINT GENERATED ALWAYS AS (id * 2)" if fill.place.kind == "duckdb" else ""
    fill.place.run(target_by_hand().removesuffix(")") + f", {more})")
    load(fill, ORDERS, row(1, "a"), row(2, "b"))
    fill.place.run("UPDATE orders SET mine = 'seen', times = 7 WHERE id = 1")
    fill.place.run("UPDATE orders SET mine = NULL WHERE id = 2")
    load(fill, ORDERS, row(1, "c"), row(2, "c"), row(3, "c"))
    found = [(1, "c", "seen", 7), (2, "c", None, 0), (3, "c", "new", 0)]
    assert fill.rows("id, name, mine, times") == found


def test_a_row_that_is_back_keeps_its_dropped_column_and_loses_its_mark(fill: Fill) -> None:
    dropped = customers(fill)
    keys = fill.commit(
        [{"id": 1}, {"id": 2}], table=dropped, load_as="mark", at="2025-05-01T12:00:00.000000Z"
    )
    fill.load(keys, table=dropped, newest=dropped)
    load(fill, dropped, row(1, "back"))
    assert fill.rows("id, phone, _deleted_at IS NULL") == [(1, "+1", True), (2, "+2", False), (3, "+3", True)]


def test_a_dropped_column_is_kept_for_keys_that_changed_their_case_and_for_keys_that_are_there_twice(
    fill: Fill,
) -> None:
    phone = named(NAME, "phone")
    first = with_lineage(None, changed(CODES, columns=(*CODES.columns, phone)))
    load(fill, first, {**code("abc", 1), "phone": "+1"}, {**code("x", 1), "phone": "+2"})
    dropped = then(first, *CODES.columns)
    load(fill, dropped, code("ABC", 2), code("y", 2))
    assert fill.rows("code, n, phone", "codes") == [("ABC", 2, "+1"), ("x", 1, "+2"), ("y", 2, None)]
    fill.place.run("INSERT INTO codes (code, n, phone) VALUES ('x', 1, '+2')")
    load(fill, dropped, code("x", 3), code("X", 4, at=5), code("Abc", 5))
    assert fill.rows("code, n, phone", "codes") == [("Abc", 5, "+1"), ("X", 4, "+2"), ("y", 2, None)]


@pytest.mark.parametrize("mode", ["full", "upsert"])
def test_a_copy_that_replaces_all_rows_keeps_a_dropped_column_by_key(fill: Fill, mode: str) -> None:
    dropped = customers(fill, mode=mode)
    load(fill, dropped, row(1, "new"), row(3, "new"), row(4, "new"), load_as="replace")
    assert fill.rows("id, name, phone") == [(1, "new", "+1"), (3, "new", "+3"), (4, "new", None)]
    load(fill, dropped, row(3, "newer"), row(4, "newer"), load_as="replace")
    assert fill.rows("id, name, phone") == [(3, "newer", "+3"), (4, "newer", None)]


def test_without_a_key_a_copy_has_nothing_to_find_old_values_by(fill: Fill) -> None:
    first = with_lineage(None, changed(ORDERS, columns=(ID, NAME, PHONE, SEEN), mode="full", key=()))
    load(fill, first, {**row(1, "old"), "phone": "+1"}, load_as="replace")
    load(fill, then(first, ID, NAME, SEEN), row(1, "new"), load_as="replace")
    assert fill.rows("id, name, phone") == [(1, "new", None)]


def test_the_text_of_an_impossible_date_goes_with_the_date(fill: Fill) -> None:
    first = changed(ORDERS, zero_dates="keep")
    values = {**row(1, "a"), "update_at": None, "update_at__raw": "0000-00-00 00:00:00"}
    load(fill, first, values, {**values, "id": 2})
    load(fill, changed(ORDERS, zero_dates="null"), row(1, "b"))
    assert fill.rows("id, update_at__raw") == [(1, None), (2, "0000-00-00 00:00:00")]


# what only Redshift has


def everything(target: str) -> tuple[Table, Table]:
    """A table, and the same with every kind of change at once."""
    first = with_lineage(None, changed(ORDERS, columns=(ID, NAME, SEEN, INT, PRICE), target=target))
    second = then(
        first,
        ID,
        named(LONG, "Title"),
        SEEN,
        replace(INT, type="bigint(20)", data_type="bigint"),
        replace(PRICE, type="decimal(12,4)", precision=12, scale=4),
        named(INT, "new", fill="3"),
        renames=(("Name", "Title"),),
    )
    return first, second


def test_a_crash_between_any_two_statements_is_recovered(
    redshift_place: RedshiftPlace, seaweed: Any, prefix: str
) -> None:
    store = Store(StoreSpec(**seaweed.store(prefix)))
    faults = redshift_place.server.faults
    once = replace(redshift_place.limits, attempts=1)
    k, armed = 1, 0
    while not armed:
        first, second = everything(f"orders_{k}")
        fill = Fill(redshift_place, store, first, log=f"log-{k}")
        fill.load(fill.commit([{**row(1, "a"), "n": 1, "price": Decimal("1.25")}]))
        changed = fill.commit([{"id": 2, "Title": "b" * 200, "n": 1 << 40, "new": 9}], table=second)
        fill.warehouse = redshift_place.faulty(once)
        faults.drop_at(k, after=bool(k % 2))
        try:
            fill.load(changed, table=second, newest=second)
        except FloodmarkError as error:
            assert error.code in (4, 5)
        armed = faults.armed
        fill.warehouse = redshift_place.open()
        fill.load(changed, table=second, newest=second)
        found = fill.rows("id, title, n, price, new")
        assert found == [(1, "a", 1, Decimal("1.2500"), 3), (2, "b" * 200, 1 << 40, None, 9)]
        assert fill.warehouse.changes(second) == ()
        k += 1 if PATIENT else 3  # odd and even: before a statement and after one
    assert k > 20


@pytest.mark.parametrize("made", ["VARCHAR(80) ENCODE bytedict", "VARCHAR(80) DEFAULT 'x'"])
def test_a_text_column_that_redshift_can_not_alter_is_replaced(
    redshift_place: RedshiftPlace, seaweed: Any, prefix: str, made: str
) -> None:
    fill = Fill(redshift_place, Store(StoreSpec(**seaweed.store(prefix))))
    redshift_place.run(target_by_hand(made))
    redshift_place.run("INSERT INTO orders VALUES (1, 'mine', NULL)")
    load(fill, changed(ORDERS, columns=(ID, LONG, SEEN)), row(2, "😀" * 200))
    assert fill.rows() == [(1, "mine"), (2, "😀" * 200)]
    assert dict(redshift_place.columns("orders"))["name"] == "character varying(800)"
