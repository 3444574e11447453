"""What columns are called in the target, and in the files."""

from __future__ import annotations

import itertools

import pytest

from floodmark.model.errors import ConfigError
from floodmark.model.names import LONGEST, apart, check_target, marked, target_name
from floodmark.model.table import Column, Table
from floodmark.model.types import fields, file_schema
from tests.support.described import described

NAMES = (
    "ID", "order", "190_time", "a b", "Name", "name_", "Größe", "oid", "oid_", "_deleted_at", "_floodmark_key", "At",
    "at__raw", "Shape", "shape__srid", "数" * 64, "数" * 63 + "据", "\u212aelvin", "kelvin", "tab\there", "tab_here",
)  # fmt: skip


def column(name: str) -> Column:
    if name == "At":
        return Column(name, "datetime", "datetime")
    if name == "Shape":
        return Column(name, "point", "point")
    return Column(
        name, "varchar(9)", "varchar", False, 9, 36, charset="utf8mb4", collation="utf8mb4_general_ci"
    )


def table(*names: str) -> Table:
    columns = tuple(column(name) for name in names)
    return described("s", "t", columns, (names[0],), "At", "upsert", "t", zero_dates="keep")


def targets(*names: str) -> dict[str, str]:
    return {field.name: field.target for field in fields(table(*names))}


def test_names_are_folded_and_otherwise_kept_whatever_they_contain() -> None:
    for name in ("190_time", "ID", "order", "Größe", 'a "b"', "a b", "Ωmega", "name_"):
        assert target_name(name) == name.lower()


@pytest.mark.parametrize(
    "name", ["oid", "XMIN", "_deleted_at", "_Floodmark_key", "c__raw", "C__SRID", "tab\t"]
)
def test_a_reserved_name_gets_a_piece_of_its_hash(name: str) -> None:
    assert target_name(name) == marked(name) != name.lower()
    assert target_name(name).isprintable() and not target_name(name).startswith("_floodmark_")


def test_a_capital_that_mysql_may_fold_otherwise_gets_a_piece_of_its_hash_as_the_page_says() -> None:
    assert target_name("Ｃ１") == "ｃ１_c5e090"
    assert all(target_name(name) != name.lower() for name in ("İ", "ϴ", "ẞ"))
    assert all(target_name(name) == name.lower() for name in ("É", "Я", "Ω", "中文", "שם", "ｃ１"))


def test_long_names_are_truncated_at_a_character_and_stay_distinct() -> None:
    one, two = target_name("数" * 64), target_name("数" * 63 + "据")
    assert one != two
    assert all(len(name.encode()) <= LONGEST and name.startswith("数" * 39) for name in (one, two))


def test_no_two_columns_become_one_in_the_target_or_in_a_file() -> None:
    found = [field for field in fields(table(*NAMES)) if not field.file_only]
    assert len({field.target for field in found}) == len(found)
    # DuckDB ignores case in a file's column names.
    files = [name.encode().lower() for name in file_schema(table(*NAMES)).names]
    assert len(set(files)) == len(files) == len(found) + 1
    assert targets(*NAMES)["ID"] == "id" and targets(*NAMES)["kelvin"] == "kelvin"


def test_an_added_column_renames_no_existing_one() -> None:
    alone = {name: targets("ID", "At", name)[name] for name in NAMES if name not in ("ID", "At")}
    for one, other in itertools.permutations(alone, 2):
        assert targets("ID", one, other, "At")[one] == alone[one]


def test_a_name_that_looks_like_anothers_hash_stays_apart() -> None:
    taken = marked("oid")
    assert apart(taken, taken, [marked("oid")]) != taken


@pytest.mark.parametrize("target", ["floodmark_keys_orders", "Floodmark_Ledger", "floodmark_"])
def test_a_target_with_a_reserved_name_is_refused_with_the_setting_to_change(target: str) -> None:
    with pytest.raises(ConfigError, match="reserved for Floodmark's own tables") as refused:
        check_target(target, "shop.t")
    assert refused.value.hint == "set tables.shop.t.target in the configuration"
    check_target(f"x{target}", "shop.t")
