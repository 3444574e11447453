"""Which changes of a column's definition leave its values alone; all others might not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from floodmark.model.lineage import one_collation, rewritten
from floodmark.model.table import Column


def column(type_: str, **more: object) -> Column:
    """A column as discover would describe it."""
    kind = type_.partition("(")[0].split()[0]
    numbers = [int(n) for n in type_.partition("(")[2].partition(")")[0].split(",") if n.isdigit()]
    given: dict[str, Any] = {}
    if kind in ("char", "varchar"):
        given = {"characters": numbers[0], "octets": numbers[0] * 4, "charset": "utf8mb4"}
    elif kind in ("binary", "varbinary"):
        given = {"octets": numbers[0]}
    elif kind == "decimal":
        given = {"precision": numbers[0], "scale": numbers[1]}
    elif kind in ("datetime", "timestamp", "time"):
        given = {"fraction": numbers[0] if numbers else 0}
    elif kind in ("enum", "set") or kind.endswith("text"):
        given = {"charset": "utf8mb4"}
    return Column("c", type_, kind, **{**given, **more})


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("int", "bigint"),
        ("int(11)", "int"),
        ("smallint unsigned", "int"),
        ("int unsigned", "bigint unsigned"),
        ("varchar(40)", "varchar(41)"),
        ("varchar(40)", "text"),
        ("text", "longtext"),
        ("varbinary(40)", "blob"),
        ("varbinary(4)", "varbinary(8)"),
        ("decimal(12,2)", "decimal(16,4)"),
        ("float", "double"),
        ("datetime", "datetime(6)"),
        ("timestamp(3)", "timestamp(6)"),
        ("enum('a','b')", "enum('a','b','c')"),
        ("set('a','b')", "set('a','b','c')"),
        ("date", "date"),
        ("geometry", "geometry"),
    ],
)
def test_harmless_changes_keep_values(before: str, now: str) -> None:
    assert rewritten(column(before), column(now)) is None


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("bigint", "int"),
        ("int", "int unsigned"),
        ("int", "varchar(20)"),
        ("varchar(40)", "varchar(39)"),
        ("varchar(400)", "tinytext"),
        ("text", "blob"),
        ("longtext", "text"),
        ("char(4)", "varchar(4)"),
        ("binary(4)", "binary(8)"),
        ("decimal(12,2)", "decimal(12,1)"),
        ("decimal(12,2)", "decimal(12,4)"),
        ("decimal(50,2)", "decimal(50,4)"),
        ("decimal(10,2)", "decimal(60,20)"),
        ("decimal(10,2)", "decimal(10,2) unsigned"),
        ("double", "float"),
        ("float", "float(7,4)"),
        ("datetime(6)", "datetime"),
        ("datetime", "timestamp"),
        ("date", "datetime"),
        ("time", "time(3)"),
        ("enum('a','b')", "enum('b','a')"),
        ("enum('a','b')", "enum('a')"),
        ("set('a','b')", "set('b','a')"),
        ("bit(4)", "bit(8)"),
        ("geometry", "point"),
    ],
)
def test_other_changes_may_rewrite_values(before: str, now: str) -> None:
    assert rewritten(column(before), column(now)) == f"it changed from {before} to {now}"


def test_nullability_auto_increment_and_character_set_count_too() -> None:
    plain = column("varchar(40)")
    assert rewritten(plain, replace(plain, nullable=False)) is not None
    assert rewritten(replace(plain, nullable=False), plain) is None
    assert rewritten(plain, replace(plain, charset="latin1")) is not None
    assert rewritten(replace(plain, charset="latin1"), plain) is not None
    for utf8 in ("utf8", "utf8mb3"):
        assert rewritten(replace(plain, charset=utf8), plain) is None
    assert rewritten(column("int"), column("int", extra="auto_increment")) is not None
    assert rewritten(column("int", default="1"), column("int", default="2")) is None
    assert rewritten(plain, replace(plain, collation="utf8mb4_bin")) is None


def test_a_changed_expression_counts_and_an_unknown_one_does_not() -> None:
    twice, thrice = (column("int", generated=e, extra="STORED GENERATED") for e in ("a * 2", "a * 3"))
    assert rewritten(twice, thrice) is not None
    assert rewritten(twice, twice) is None
    unknown = replace(twice, generated=None)
    assert rewritten(unknown, thrice) is None
    assert rewritten(unknown, column("int", generated="")) is not None
    clock = column("datetime", extra="DEFAULT_GENERATED on update CURRENT_TIMESTAMP")
    assert rewritten(column("datetime"), clock) is None


def test_utf8_is_one_collation_under_both_of_its_names() -> None:
    text = column("varchar(9)", collation="utf8_general_ci")
    assert one_collation(text, replace(text, collation="utf8mb3_general_ci"))
    assert not one_collation(text, replace(text, collation="utf8mb4_general_ci"))
    assert not one_collation(text, replace(text, collation="utf8mb3_bin"))
