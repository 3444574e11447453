"""Whether a column that is gone may now have another one's name: decided by known rows, else by kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from floodmark.model.lineage import Known, heirs, with_lineage
from floodmark.model.origin import Witness
from floodmark.model.table import Column, Table
from floodmark.model.witnesses import CurrentRow, mark
from tests.support.described import changed, described

ID = Column("id", "int(11)", "int", nullable=False)
AT = Column("at", "datetime(6)", "datetime", fraction=6)
PRICE = Column("price", "decimal(12,2)", "decimal", precision=12, scale=2)
NEW = replace(PRICE, name="price_new")
COUNT = Column("count", "int(11)", "int")


def table(*columns: Column, **more: object) -> Table:
    return described("s", "t", (ID, *columns, AT), ("id",), "at", "upsert", "t", **more)


def known(column: Column, lost: Column | None, *rows: tuple[object, ...], cursor: int = 0) -> list[Known]:
    """Rows with their old values in two columns, and the new value in the first."""
    found: list[Known] = []
    for number, (was, other, is_) in enumerate(rows):
        cells = ((mark(column), was), *(((mark(lost), other),) if lost else ()))
        found.append((Witness((number,), cells), [CurrentRow(cursor, {mark(column): is_})]))  # type: ignore[dict-item]
    return found


def taken(before: Table, now: Table, rows: list[Known]) -> bool:
    return "order" in with_lineage(before, now, known=rows).lineage.owed_parts


BEFORE, NOW = table(PRICE, COUNT, NEW), table(PRICE, COUNT)


def test_unchanged_values_that_differed_from_the_lost_column_prove_that_it_was_only_dropped() -> None:
    assert not taken(BEFORE, NOW, known(PRICE, NEW, (1, 1, 1), (1, 2, 1)))


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([], "nothing is known"),
        ([(1, 2, 2)], "the other column's values"),
        ([(1, 2, 1), (1, 1, 3)], "one row is enough"),
        ([(1, 1, 1), (2, 2, 2)], "both were the same"),
        ([(1, None, 1)], "it may have been filled since"),
        ([(None, None, None)], "nothing in either"),
    ],
)
def test_otherwise_rows_are_read_again(rows: list[tuple[object, ...]], why: str) -> None:
    assert taken(BEFORE, NOW, known(PRICE, NEW, *rows)), why


def test_a_row_that_has_moved_since_proves_nothing() -> None:
    assert taken(BEFORE, NOW, known(PRICE, NEW, (1, 2, 1), cursor=1))


def test_without_known_rows_any_column_of_the_same_kind_is_suspect_wherever_it_is() -> None:
    text = Column("t", "varchar(9)", "varchar", characters=9)
    long = Column("long", "text", "text")
    assert taken(table(PRICE, COUNT, text, NEW), table(PRICE, COUNT, text), [])
    assert taken(
        table(PRICE, COUNT, NEW), table(replace(PRICE, type="decimal(14,2)", precision=14), COUNT), []
    )
    assert taken(table(text, long), table(text), []) and not taken(table(text, PRICE), table(text), [])
    assert not taken(table(text), table(text), [])
    # For the key and the cursor whole rows decide: they would have moved.
    assert not taken(table(text, COUNT), table(text), [])
    assert not taken(table(text, replace(AT, name="then")), table(text), [])


def test_a_lost_column_of_another_kind_is_detected_by_its_values() -> None:
    before, now = table(PRICE, COUNT), table(PRICE)
    assert not taken(before, now, known(PRICE, COUNT, (1, 2, 1)))
    assert taken(before, now, known(PRICE, COUNT, (1, 2, 3)))


def test_checksums_of_different_types_are_not_compared() -> None:
    finer = replace(NEW, type="decimal(12,3)", scale=3)
    assert taken(table(PRICE, finer), table(PRICE), known(PRICE, finer, (1, 2, 1)))
    wider = replace(PRICE, type="decimal(14,2)", precision=14)
    assert taken(BEFORE, table(wider, COUNT), known(PRICE, NEW, (1, 2, 1)))


def test_columns_in_another_order_are_the_same_ones_if_known_rows_tell_all_of_a_kind_apart() -> None:
    before, now = table(PRICE, COUNT, NEW), table(NEW, COUNT, PRICE)

    def rows(*values: tuple[int, int, int, int]) -> list[Known]:
        """Rows with the old and the new values of both prices."""
        return [
            (
                Witness((n,), ((mark(PRICE), price), (mark(NEW), new), (mark(COUNT), 1))),
                [CurrentRow(0, {mark(PRICE): price_now, mark(NEW): new_now, mark(COUNT): 1})],
            )
            for n, (price, new, price_now, new_now) in enumerate(values)
        ]

    assert not taken(before, now, rows((1, 1, 1, 1), (1, 2, 1, 2)))
    assert taken(before, now, rows((1, 1, 1, 1), (1, 2, 2, 1))), "they have swapped names"
    assert taken(before, now, rows((1, 1, 1, 1))) and taken(before, now, []), "nothing tells"
    third = replace(PRICE, name="third")
    assert taken(table(PRICE, NEW, third), table(third, PRICE, NEW), rows((1, 2, 1, 2))), "not of all"
    text = Column("t", "varchar(9)", "varchar", characters=9)
    assert taken(table(PRICE, NEW, text), table(NEW, PRICE, text), rows((1, 2, 1, 2))), "nor of other kinds"
    without = changed(now, key=())
    assert "order" in with_lineage(changed(before, key=()), without).lineage.owed_parts


def test_an_integer_s_display_width_is_not_part_of_its_type() -> None:
    other = replace(COUNT, name="other", type="int")
    assert not taken(table(COUNT, other), table(replace(COUNT, type="int")), known(COUNT, other, (1, 2, 1)))


def test_an_excluded_column_that_is_gone_has_no_known_values() -> None:
    layout = tuple((c.name, c.type) for c in (ID, PRICE, NEW, AT))
    assert taken(table(PRICE, layout=layout), table(PRICE), known(PRICE, None, (1, 0, 1)))


def test_a_declared_rename_is_in_question_too_when_another_column_is_gone() -> None:
    cost = replace(PRICE, name="cost")
    before, now = table(PRICE, NEW), table(cost, renames=(("price", "cost"),))
    assert taken(before, now, [])
    told = [(Witness((1,), ((mark(PRICE), 1), (mark(NEW), 2))), [CurrentRow(0, {mark(cost): 1})])]
    assert not taken(before, now, [*told])


def test_a_table_without_a_key_is_left_alone() -> None:
    before, now = (changed(t, key=(), mode="append") for t in (BEFORE, NOW))
    assert not taken(before, now, [])


def test_a_column_that_was_never_read_may_live_on_in_any_of_its_kind_that_has_not_kept_its_values() -> None:
    old = {c.name: c for c in NOW.columns}

    def of(now: Table, rows: list[Known]) -> tuple[str, ...]:
        return heirs(old, now, "secret", "decimal(10,2)", rows)

    assert of(NOW, known(PRICE, None, (1, 0, 1), (None, 0, None))) == ()
    for rows in ([], [(None, 0, None)], [(1, 0, 1), (1, 0, 2)]):
        assert of(NOW, known(PRICE, None, *rows)) == ("price",)
    assert of(NOW, known(PRICE, None, (1, 0, 1), cursor=1)) == ("price",), "the row has moved"
    assert of(table(PRICE, NEW), known(PRICE, None, (1, 0, 1))) == ("price_new",), "a new column"
    assert heirs(old, NOW, "at_first", "datetime", []) == (), "the cursor: whole rows would have moved"
    assert heirs(old, NOW, "secret", "varchar(9)", []) == (), "none of its kind"
