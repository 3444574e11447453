"""What happened to a table's columns from one description to the next (`with_lineage`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from floodmark.load.columns import constants, fills, placed, target_renames, wider
from floodmark.model.lineage import said_columns, with_lineage
from floodmark.model.table import Column, Table
from floodmark.model.types import fields
from floodmark.model.warehouse import DUCKDB, LARGE_STRINGS, REDSHIFT
from floodmark.source.read import Unfit, to_arrow
from tests.support.described import changed, described

ID = Column("id", "int", "int", nullable=False)
AT = Column("at", "datetime(6)", "datetime", fraction=6)
A, B, C = (Column(name, "int", "int") for name in "abc")
NOTE = Column("note", "varchar(9)", "varchar", characters=9, octets=36, charset="utf8mb4")
JSON = Column("doc", "json", "json")


def table(*columns: Column, **more: Any) -> Table:
    return changed(described("s", "t", (ID, *columns, AT), ("id",), "at", "upsert", "t"), **more)


def names(found: Iterable[Column]) -> list[str]:
    return [column.name for column in found]


def test_a_first_description_owes_nothing() -> None:
    assert with_lineage(None, table(A)).lineage.owed == ()


def test_a_new_column_is_owed_to_rows_that_were_read_and_only_to_those() -> None:
    assert with_lineage(table(A), table(A, B)).lineage.owed == ("b",)
    assert with_lineage(table(A), table(A, B), from_start=True).lineage.owed == ()
    assert with_lineage(table(A), table(A, B, mode="full")).lineage.owed == ()
    assert with_lineage(changed(table(A, B), owed=("b",)), table(A, B)).lineage.owed == ("b",)


def test_a_change_that_was_carried_once_is_not_carried_again() -> None:
    settled = changed(with_lineage(table(A), table(A, B)), owed=())
    assert with_lineage(table(A), settled) == settled


def test_the_unit_of_a_cursor_is_kept_while_it_is_the_cursor() -> None:
    before = table(ID, A, cursor="a", unix="ms")
    assert with_lineage(before, table(ID, A, B, cursor="a")).recipe.unix == "ms"
    assert with_lineage(before, table(ID, B, cursor="b", renames=(("a", "b"),))).recipe.unix == "ms"
    assert with_lineage(before, table(ID, A, B, cursor="b")).recipe.unix is None


def test_dropped_columns_are_remembered_until_they_are_back() -> None:
    gone = with_lineage(table(A, B), table(A))
    assert names(gone.lineage.dropped) == ["b"] and "b is gone" in said_columns(table(A, B), gone)[0]
    assert said_columns(gone, with_lineage(gone, table(A))) == ()
    back = with_lineage(gone, table(A, B))
    assert back.lineage.dropped == () and back.lineage.owed == ("b",)


def test_what_becomes_of_a_column_is_said_as_it_is() -> None:
    def said(now: Table) -> str:
        before = changed(table(A, B), mode=now.mode, key=now.key)
        return said_columns(before, with_lineage(before, now))[0]

    keeps = "t keeps the column and its values; new rows get NULL in it."
    layout = tuple((c.name, c.type) for c in table(A, B).columns)
    assert said(table(A)) == f"b is gone from the source: {keeps}"
    assert said(table(A, layout=layout)) == f"b is excluded now: {keeps}"
    assert said(table(A, mode="full")) == f"b is gone from the source: {keeps}"
    assert "keeps the column but no values" in said(table(A, mode="full", key=()))


def test_a_rename_happens_only_when_it_is_declared_and_the_old_name_is_gone() -> None:
    declared = (("A", "B"),)
    assert with_lineage(table(A), table(B, renames=declared)).lineage.renamed == (("a", "b"),)
    assert with_lineage(table(A), table(B, renames=declared)).lineage.owed == ()
    assert with_lineage(table(A), table(B)).lineage.renamed == ()
    assert with_lineage(table(A), table(A, B, renames=declared)).lineage.renamed == ()
    assert with_lineage(table(A, B), table(B, renames=declared)).lineage.renamed == ()


def test_files_go_where_the_newest_description_says_over_several_renames() -> None:
    first = with_lineage(None, table(A))
    second = with_lineage(first, table(B, renames=(("a", "b"),)))
    third = with_lineage(second, table(A, B))  # another a
    fourth = with_lineage(third, table(A, C, renames=(("b", "c"),)))
    assert [f.target for f in placed(first, fourth)] == ["id", "c", "at"]
    assert [f.target for f in placed(second, fourth)] == ["id", "c", "at"]
    assert [f.target for f in placed(third, fourth)] == ["id", "a", "c", "at"]
    assert [f.name for f in placed(first, fourth)] == ["id", "a", "at"]
    assert ("a", "b") in target_renames(fourth) and ("b__raw", "c__raw") in target_renames(fourth)


def test_rows_get_the_fill_of_columns_that_came_later_and_null_in_those_that_were_gone() -> None:
    first = with_lineage(None, table(A))
    second = changed(with_lineage(first, table(A, replace(B, fill="5"))), owed=())
    third = with_lineage(second, table(A))
    fourth = changed(with_lineage(third, table(A, replace(C, fill="x"))), owed=())

    def given(of: Table) -> dict[str, str | None]:
        return {c.target: c.value for c in constants(of, fourth)}

    assert given(first) == {"b": "5", "c": "x"}
    assert given(second) == {"c": "x"}
    assert given(third) == {"b": None, "c": "x"}
    assert given(fourth) == {"b": None}
    assert fills(fourth) == {"b": "5", "c": "x"}


def test_fewer_digits_are_owed_to_rows_that_have_more() -> None:
    assert with_lineage(table(), changed(table(), columns=(ID, replace(AT, fraction=0)))).lineage.owed == (
        "at",
    )
    money = Column("a", "decimal(9,3)", "decimal", precision=9, scale=3)
    assert with_lineage(table(money), table(replace(money, scale=1))).lineage.owed == ("a",)
    assert with_lineage(table(money), table(replace(money, precision=10, scale=4))).lineage.owed == ()


def test_parts_of_the_recipe_are_owed_until_rows_are_read_again() -> None:
    narrow, wide = table(where="a > 1"), table()
    assert with_lineage(narrow, wide).lineage.owed_parts == ("where",)
    assert with_lineage(wide, narrow).lineage.owed_parts == ("where",), "rows leave the target"
    appended = changed(wide, mode="append"), changed(narrow, mode="append")
    assert with_lineage(*appended).lineage.owed_parts == (), "rows are only left out"
    assert with_lineage(with_lineage(narrow, wide), wide).lineage.owed_parts == ("where",)
    assert with_lineage(narrow, wide, from_start=True).lineage.owed_parts == ()
    assert with_lineage(narrow, changed(wide, mode="full")).lineage.owed_parts == ()


def test_a_column_that_is_gone_may_have_the_name_of_another_one_now() -> None:
    def order(before: Table, now: Table) -> bool:
        return "order" in with_lineage(before, now).lineage.owed_parts

    assert order(table(A, B), table(A)) and order(table(A, B), table(B))
    assert order(table(A, NOTE, B), table(A, NOTE)), "wherever it stands"
    assert not order(table(A, NOTE), table(A))
    assert not order(table(A, B), table(A, C, renames=(("b", "c"),)))
    assert order(table(A, B), table(A, renames=(("b", "a"),)))


def test_an_excluded_column_keeps_its_place_among_the_others() -> None:
    def layout(*columns: Column) -> tuple[tuple[str, str], ...]:
        return tuple((c.name, c.type) for c in (ID, *columns, AT))

    before = table(A, layout=layout(A, B))
    assert with_lineage(before, table(A, layout=layout(A, B))).lineage.owed_parts == ()
    assert with_lineage(before, table(A, layout=layout(B, A))).lineage.owed_parts == ("order",)
    assert with_lineage(before, table(A)).lineage.owed_parts == ("order",), "b may be called a by now"
    assert with_lineage(table(A), table(A, layout=layout(B, A))).lineage.owed_parts == (), (
        "kept by no older version"
    )
    narrow = table(A, layout=layout(A, replace(B, type="tinyint")))
    assert with_lineage(before, narrow).lineage.owed_parts == ()
    assert with_lineage(
        changed(before, where="b > 1"), changed(narrow, where="b > 1")
    ).lineage.owed_parts == ("where",)


@pytest.mark.parametrize(
    ("was", "is_", "where", "again"),
    [
        ("varchar(20)", "varchar(9)", "Tag LIKE 'a%'", True),
        ("varchar(20)", "varchar(9)", "`tag` LIKE 'a%'", True),
        ("varchar(20)", "varchar(9)", "twice > 1", True),
        ("varchar(20)", "varchar(9)", "a > 0 AND tags <> 'x' AND mytag = 1", False),
        ("varchar(20)", "varchar(30)", "tag LIKE 'a%'", False),
        ("enum('a','b')", "enum('a','b','c')", "tag = 'a'", False),
        ("enum('a','b')", "enum('b','a')", "tag = 'a'", True),
        ("int(11)", "int", "tag > 1", False),
        ("int(11)", "bigint(20)", "tag > 1", False),
        ("int(11)", "int(10) unsigned", "tag > 1", True),
        ("decimal(12,2)", "decimal(14,3)", "tag > 1", False),
        ("decimal(12,2)", "decimal(12,3)", "tag > 1", True),
        ("datetime", "datetime(6)", "tag > 1", False),
        ("datetime(6)", "datetime", "tag > 1", True),
        ("varbinary(9)", "varbinary(8)", "tag > 1", True),
        ("text", "mediumtext", "tag > 1", False),
    ],
)
def test_a_new_type_of_an_excluded_column_matters_if_where_uses_it_and_values_may_change(
    was: str, is_: str, where: str, again: bool
) -> None:
    def described(type_: str) -> Table:
        known = replace(A, name="twice", generated="length(`tag`)" if where.startswith("twice") else "")
        layout = tuple((c.name, c.type) for c in (ID, known, AT))
        return table(known, where=where, layout=(*layout, ("Tag", type_)))

    assert with_lineage(described(was), described(is_)).lineage.owed_parts == (("where",) if again else ())


def test_a_rename_to_a_name_that_existed_before_is_a_new_column() -> None:
    gone = with_lineage(table(A, B), table(B))
    back = with_lineage(gone, table(A, renames=(("b", "a"),)))
    assert back.lineage.renamed == () and back.lineage.owed == ("a",) and names(back.lineage.dropped) == ["b"]


def test_values_that_a_policy_has_changed_are_owed_when_the_warehouse_holds_more() -> None:
    narrow = table(NOTE, overflow="null", holds="redshift")
    assert with_lineage(narrow, changed(narrow, holds="any")).lineage.owed_parts == ("overflow",)
    assert with_lineage(narrow, changed(narrow, holds=None)).lineage.owed_parts == ()
    assert with_lineage(narrow, changed(narrow, holds=None)).recipe.holds == "redshift"
    assert with_lineage(changed(narrow, holds=None), narrow).lineage.owed_parts == ()
    assert (
        with_lineage(changed(narrow, overflow="error"), changed(narrow, holds="any")).lineage.owed_parts == ()
    )


def test_a_warehouse_that_holds_more_matters_only_to_columns_with_such_values() -> None:
    def owed(column: Column, before: str, now: str, **more: Any) -> bool:
        was = table(column, overflow="null", holds=before)
        return "overflow" in with_lineage(was, changed(was, holds=now, **more)).lineage.owed_parts

    large = "redshift with large strings"
    assert owed(JSON, "redshift", large) and owed(JSON, large, "redshift") and owed(JSON, large, "any")
    assert not owed(NOTE, "redshift", large) and owed(NOTE, large, "any")
    assert not owed(A, "redshift", large) and not owed(A, "redshift", "any")
    # DuckDB holds everything, so that no value was ever changed.
    assert not any(owed(c, "any", now, overflow="truncate") for c in (JSON, NOTE) for now in ("any", large))


ROOM = {can.holds: can for can in (DUCKDB, REDSHIFT, LARGE_STRINGS)}
LONG, NUL = b"x" * 70_000, b"a\0b"
BYTES = b"x" * 16_777_217
VALUES = {
    "json": (b'"' + LONG + b'"', rb'"a\u0000b"'),  # MySQL's; MariaDB's is longtext
    "longtext": (LONG, NUL),
    "mediumtext": (LONG, NUL),
    "text": (NUL,),
    "longblob": (LONG, NUL, BYTES),
    "mediumblob": (LONG, NUL),
    "blob": (NUL,),
    "int": (b"1",),
}


def written(of: Table, value: bytes) -> Any:
    """The value as a file has it, for the warehouse that the recipe names; "refused" if it stops the read."""
    try:
        return to_arrow(fields(of)[1], [value], of, ROOM[str(of.recipe.holds)]).to_pylist()[0]
    except Unfit:
        return "refused"


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("policy", ["null", "truncate", "error"])
def test_rows_are_owed_exactly_if_large_strings_change_what_is_written(kind: str, policy: str) -> None:
    small = table(Column("c", kind, kind, charset="utf8mb4"), overflow=policy, holds="redshift")
    large = changed(small, holds="redshift with large strings")
    other = False
    for value in VALUES[kind]:
        one, two = written(small, value), written(large, value)
        other |= one != two and "refused" not in (one, two)  # a refusal changes no row that was read
    assert ("overflow" in with_lineage(small, large).lineage.owed_parts) is other
    assert ("overflow" in with_lineage(large, small).lineage.owed_parts) is other
    assert other is (kind == "json" and policy == "null")


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("policy", ["null", "truncate"])
@pytest.mark.parametrize("before", ["redshift", "redshift with large strings"])
def test_rows_are_owed_if_a_warehouse_that_holds_any_value_gets_other_ones(
    kind: str, policy: str, before: str
) -> None:
    was = table(Column("c", kind, kind, charset="utf8mb4"), overflow=policy, holds=before)
    now = changed(was, holds="any")
    if any(written(was, value) not in (written(now, value), "refused") for value in VALUES[kind]):
        assert "overflow" in with_lineage(was, now).lineage.owed_parts


def test_two_decimals_have_one_that_holds_both() -> None:
    assert wider("DECIMAL(12,2)", "DECIMAL(12,1)") == "DECIMAL(13,2)"
    assert wider("numeric(4,4)", "BIGINT") == "DECIMAL(23,4)"
    assert wider("DECIMAL(38,2)", "DECIMAL(38,0)") is None
    assert wider("VARCHAR(3)", "INTEGER") is None
