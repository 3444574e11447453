"""What became of a table's columns, carried from one description to the next."""

from __future__ import annotations

from dataclasses import replace

from floodmark.lineage import carried, told
from floodmark.model import Column, Table
from floodmark.warehouse.columns import wider
from floodmark.warehouse.places import constants, fills, placed, target_renames

ID = Column("id", "int", "int", nullable=False)
AT = Column("at", "datetime(6)", "datetime", fraction=6)
A, B, C = (Column(name, "int", "int") for name in "abc")


def table(*columns: Column, **more: object) -> Table:
    return replace(Table("s", "t", (ID, *columns, AT), ("id",), "at", "upsert", "t"), **more)  # type: ignore[arg-type]


def names(found: object) -> list[str]:
    return [column.name for column in found]  # type: ignore[attr-defined]


def test_a_first_description_owes_nothing() -> None:
    assert carried(None, table(A)).owed == ()


def test_a_new_column_is_owed_to_rows_that_were_read_and_only_to_those() -> None:
    assert carried(table(A), table(A, B)).owed == ("b",)
    assert carried(table(A), table(A, B), anew=True).owed == ()
    assert carried(table(A), table(A, B, mode="full")).owed == ()
    assert carried(replace(table(A, B), owed=("b",)), table(A, B)).owed == ("b",)


def test_what_was_carried_once_is_not_carried_again() -> None:
    settled = replace(carried(table(A), table(A, B)), owed=())
    assert carried(table(A), settled) == settled


def test_what_the_cursor_counts_stays_known_while_it_is_the_cursor() -> None:
    before = table(ID, A, cursor="a", unix="ms")
    assert carried(before, table(ID, A, B, cursor="a")).unix == "ms"
    assert carried(before, table(ID, B, cursor="b", renames=(("a", "b"),))).unix == "ms"
    assert carried(before, table(ID, A, B, cursor="b")).unix is None


def test_dropped_columns_are_remembered_until_they_are_back() -> None:
    gone = carried(table(A, B), table(A))
    assert names(gone.dropped) == ["b"] and "b is gone" in told(table(A, B), gone)[0]
    assert told(gone, carried(gone, table(A))) == ()
    back = carried(gone, table(A, B))
    assert back.dropped == () and back.owed == ("b",)


def test_a_rename_happens_only_when_it_is_declared_and_the_old_name_is_gone() -> None:
    declared = (("A", "B"),)
    assert carried(table(A), table(B, renames=declared)).renamed == (("a", "b"),)
    assert carried(table(A), table(B, renames=declared)).owed == ()
    assert carried(table(A), table(B)).renamed == ()
    assert carried(table(A), table(A, B, renames=declared)).renamed == ()
    assert carried(table(A, B), table(B, renames=declared)).renamed == ()


def test_files_go_where_the_newest_description_says_over_several_renames() -> None:
    first = carried(None, table(A))
    second = carried(first, table(B, renames=(("a", "b"),)))
    third = carried(second, table(A, B))  # another a
    fourth = carried(third, table(A, C, renames=(("b", "c"),)))
    assert [f.target for f in placed(first, fourth)] == ["id", "c", "at"]
    assert [f.target for f in placed(second, fourth)] == ["id", "c", "at"]
    assert [f.target for f in placed(third, fourth)] == ["id", "a", "c", "at"]
    assert [f.name for f in placed(first, fourth)] == ["id", "a", "at"]
    assert ("a", "b") in target_renames(fourth) and ("b__raw", "c__raw") in target_renames(fourth)


def test_rows_get_the_fill_of_columns_that_came_later_and_null_in_those_that_were_gone() -> None:
    first = carried(None, table(A))
    second = replace(carried(first, table(A, replace(B, fill="5"))), owed=())
    third = carried(second, table(A))
    fourth = replace(carried(third, table(A, replace(C, fill="x"))), owed=())

    def given(of: Table) -> dict[str, str | None]:
        return {c.target: c.value for c in constants(of, fourth)}

    assert given(first) == {"b": "5", "c": "x"}
    assert given(second) == {"c": "x"}
    assert given(third) == {"b": None, "c": "x"}
    assert given(fourth) == {"b": None}
    assert fills(fourth) == {"b": "5", "c": "x"}


def test_fewer_digits_are_owed_to_rows_that_have_more() -> None:
    assert carried(table(), replace(table(), columns=(ID, replace(AT, fraction=0)))).owed == ("at",)
    money = Column("a", "decimal(9,3)", "decimal", precision=9, scale=3)
    assert carried(table(money), table(replace(money, scale=1))).owed == ("a",)
    assert carried(table(money), table(replace(money, precision=10, scale=4))).owed == ()


def test_parts_of_the_recipe_are_owed_until_rows_were_read_again() -> None:
    narrow, wide = table(where="a > 1"), table()
    assert carried(narrow, wide).owed_parts == ("where",)
    assert carried(wide, narrow).owed_parts == ()
    assert carried(carried(narrow, wide), wide).owed_parts == ("where",)
    assert carried(narrow, wide, anew=True).owed_parts == ()
    assert carried(narrow, replace(wide, mode="full")).owed_parts == ()


def test_two_decimals_have_one_that_holds_both() -> None:
    assert wider("DECIMAL(12,2)", "DECIMAL(12,1)") == "DECIMAL(13,2)"
    assert wider("numeric(4,4)", "BIGINT") == "DECIMAL(23,4)"
    assert wider("DECIMAL(38,2)", "DECIMAL(38,0)") is None
    assert wider("VARCHAR(3)", "INTEGER") is None
