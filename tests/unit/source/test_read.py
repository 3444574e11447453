"""Cells into Arrow: exact values, NULLs, and the policies for what can't be represented."""

from __future__ import annotations

import datetime
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.model.table import Column, Table
from floodmark.model.types import fields
from floodmark.model.warehouse import DUCKDB, LARGE_STRINGS, REDSHIFT, Capabilities
from floodmark.source.read import Converter, Unfit, to_arrow
from floodmark.source.rows.decoder import gathered
from tests.support.described import described


def table(type_: str, *, zero_dates: Any = "error", overflow: Any = "error", **more: Any) -> Table:
    column = Column("c", type_, type_.partition("(")[0].partition(" ")[0], **more)
    return described("s", "t", (column,), (), None, "full", "t", zero_dates=zero_dates, overflow=overflow)


def convert(t: Table, *cells: bytes | None, limits: Capabilities = DUCKDB) -> list[Any]:
    field = fields(t)[0]
    array = to_arrow(field, list(cells), t, limits)
    assert array.type == field.arrow
    values: list[Any] = array.to_pylist()
    return values


def test_numbers_keep_every_digit() -> None:
    assert convert(table("bigint(20)"), b"-9223372036854775808", b"9223372036854775807", None) == [
        -(2**63), 2**63 - 1, None,
    ]  # fmt: skip
    assert convert(table("bigint(20) unsigned"), b"18446744073709551615") == [Decimal(2**64 - 1)]
    assert convert(table("bigint(20) unsigned zerofill"), b"00000000000000000042") == [Decimal(42)]
    assert convert(table("year(4)"), b"0000", b"2155") == [0, 2155]
    nines = b"-" + b"9" * 34 + b"." + b"9" * 4
    assert convert(table("decimal", precision=38, scale=4), nines) == [Decimal(nines.decode())]
    assert convert(table("double"), b"5e-324", b"-0", b"1.7976931348623157e308") == [
        5e-324,
        -0.0,
        1.7976931348623157e308,
    ]
    assert convert(table("bit(1)", precision=1), b"0", b"1", None) == [False, True, None]


def test_words_that_look_like_null_stay_text() -> None:
    cells = (b"null", b"None", b"NaN", b"", None, b"NULL", b"\\N", b"0")
    text = table("varchar(10)", charset="utf8mb4", characters=10)
    assert convert(text, *cells) == ["null", "None", "NaN", "", None, "NULL", "\\N", "0"]
    assert convert(table("blob"), *cells) == list(cells)


@given(st.lists(st.none() | st.text()))
def test_any_text_survives(values: list[str | None]) -> None:
    text = table("longtext", charset="utf8mb4", octets=2**32 - 1)
    assert convert(text, *(None if v is None else v.encode() for v in values)) == values


@given(st.lists(st.none() | st.datetimes()))
def test_any_moment_survives(values: list[datetime.datetime | None]) -> None:
    cells = [None if v is None else f"{v.isoformat(' ', 'microseconds')}".encode() for v in values]
    back = convert(table("datetime(6)", fraction=6), *cells)
    assert [None if v is None else v.replace(tzinfo=None) for v in back] == values


@given(st.lists(st.none() | st.decimals(min_value=-(10**14), max_value=10**14, places=4)))
def test_any_decimal_survives(values: list[Decimal | None]) -> None:
    cells = [None if v is None else f"{v:.4f}".encode() for v in values]
    assert convert(table("decimal", precision=19, scale=4), *cells) == values


def test_text_that_is_not_unicode_is_refused() -> None:
    text = table("varchar(10)", charset="ucs2", characters=10)
    with pytest.raises(Unfit, match="not valid Unicode \\(0xeda080\\)") as unfit:
        convert(text, b"fine", None, b"\xed\xa0\x80")
    assert unfit.value.index == 2


def test_a_value_of_another_type_is_refused_where_it_is() -> None:
    with pytest.raises(Unfit, match="not a valid int32") as unfit:
        convert(table("int(11)"), b"1", None, b"x")
    assert unfit.value.index == 2


IMPOSSIBLE = (b"0000-00-00", b"2020-00-15", b"2020-10-00", b"2021-02-29")


@pytest.mark.parametrize("cell", IMPOSSIBLE)
def test_an_impossible_date_is_an_error_by_default(cell: bytes) -> None:
    for t, value in ((table("date"), cell), (table("datetime"), cell + b" 00:00:00")):
        with pytest.raises(Unfit, match=f"the impossible date {cell.decode()}") as unfit:
            convert(t, None, b"2020-01-01" + value[10:], value)
        assert unfit.value.index == 2
        assert "zero_dates" in unfit.value.hint


def test_impossible_dates_become_null_and_are_counted() -> None:
    t = table("date", zero_dates="null")
    field, changes = fields(t)[0], Counter[str]()
    cells = pa.array([b"2020-02-29", *IMPOSSIBLE, None], gathered(field.arrow))
    found = Converter(field, t, DUCKDB, changes)(cells).to_pylist()
    assert found == [datetime.date(2020, 2, 29), None, None, None, None, None]
    assert changes.total() == 4


def test_kept_impossible_dates_have_their_text_in_a_second_column() -> None:
    t = table("timestamp(3)", zero_dates="keep", fraction=3)
    value, raw = fields(t)
    cells: list[bytes | None] = [b"2020-01-01 00:00:00.500", b"0000-00-00 00:00:00.000", None]
    assert to_arrow(value, cells, t).null_count == 2
    assert to_arrow(raw, cells, t).to_pylist() == [None, "0000-00-00 00:00:00.000", None]


def test_the_year_zero_is_a_date_when_its_month_and_day_are() -> None:
    t = table("date", zero_dates="null")
    array = to_arrow(fields(t)[0], [b"0000-02-29", b"0001-01-01", b"2021-02-29"], t)
    assert array.cast(pa.int32()).to_pylist() == [-719469, -719162, None]


LONG = "ä" * 32768  # 65,536 bytes


def test_text_too_long_for_the_warehouse_follows_the_policy() -> None:
    more: dict[str, Any] = {"charset": "utf8mb4", "octets": 2**24 - 1}
    cells = (b"short", LONG.encode(), None)
    with pytest.raises(
        Unfit, match="a value of 65,536 bytes, but the warehouse holds at most 65,535"
    ) as unfit:
        convert(table("mediumtext", **more), *cells, limits=REDSHIFT)
    assert unfit.value.index == 1
    cut = convert(table("mediumtext", overflow="truncate", **more), *cells, limits=REDSHIFT)
    assert cut == ["short", LONG[:-1], None]  # whole characters
    assert convert(table("mediumtext", overflow="null", **more), *cells, limits=REDSHIFT) == [
        "short",
        None,
        None,
    ]
    assert convert(table("mediumtext", **more), *cells) == ["short", LONG, None]


def test_a_cluster_with_large_strings_takes_longer_documents_but_no_longer_text() -> None:
    large = LARGE_STRINGS
    assert convert(table("json"), f'"{LONG}"'.encode(), limits=large) == [f'"{LONG}"']
    with pytest.raises(Unfit, match=r"16,000,002 bytes, but the warehouse holds at most 16,000,000"):
        convert(table("json"), b'"' + b"x" * 16_000_000 + b'"', limits=large)
    with pytest.raises(Unfit, match=r"holds at most 65,535"):
        convert(table("longtext"), LONG.encode(), limits=large)


def test_the_longest_document_is_named_with_how_a_cluster_could_take_it() -> None:
    cells = [f'"{"x" * n}"'.encode() for n in (70_000, 90_000, 80_000)]
    with pytest.raises(
        Unfit, match=r"a value of 90,002 bytes, but the warehouse holds at most 65,535"
    ) as unfit:
        convert(table("json"), *cells, limits=REDSHIFT)
    assert unfit.value.index == 1 and "warehouse.large_strings: true" in unfit.value.hint
    with pytest.raises(Unfit) as unfit:
        convert(table("json"), b'"' + b"x" * 16_000_000 + b'"', limits=LARGE_STRINGS)
    assert "large_strings" not in unfit.value.hint


def test_a_null_character_in_json_is_an_escape_and_the_policy_decides() -> None:
    escaped = rb'{"a\\u0000": "b\u0000\u0000c\\\u0000"}'
    with pytest.raises(Unfit, match=r"U\+0000") as unfit:
        convert(table("json"), b"{}", escaped, limits=REDSHIFT)
    assert unfit.value.index == 1
    assert convert(table("json", overflow="null"), b"{}", None, escaped, limits=REDSHIFT) == [
        "{}",
        None,
        None,
    ]
    cleared = r'{"a\\u0000": "bc\\"}'
    assert convert(table("json", overflow="truncate"), escaped, limits=REDSHIFT) == [cleared]
    assert convert(table("json"), cleared.encode(), limits=REDSHIFT) == [cleared]


def test_json_that_is_too_long_is_never_truncated() -> None:
    cells = (b'{"a": 1}', f'"{LONG}"'.encode())
    for policy in ("error", "truncate"):
        with pytest.raises(Unfit) as unfit:
            convert(table("json", overflow=policy), *cells, limits=REDSHIFT)
        assert unfit.value.index == 1 and "JSON can't be truncated" in unfit.value.hint
    assert convert(table("json", overflow="null"), *cells, limits=REDSHIFT) == ['{"a": 1}', None]
    assert convert(table("json", overflow="truncate"), *cells)[1] == f'"{LONG}"'


def test_text_with_a_nul_follows_the_policy_if_the_warehouse_can_not_store_it() -> None:
    more: dict[str, Any] = {"charset": "utf8mb4", "characters": 9}
    cells = (b"plain", b"a\0b\0", None)
    with pytest.raises(Unfit, match=r"U\+0000") as unfit:
        convert(table("varchar(9)", **more), *cells, limits=REDSHIFT)
    assert unfit.value.index == 1
    assert convert(table("varchar(9)", overflow="truncate", **more), *cells, limits=REDSHIFT)[1] == "ab"
    assert convert(table("varchar(9)", overflow="null", **more), *cells, limits=REDSHIFT)[1] is None
    assert convert(table("varchar(9)", **more), *cells)[1] == "a\0b\0"


def test_what_the_limits_change_is_counted() -> None:
    t = table("longblob", overflow="truncate")
    field, changes = fields(t)[0], Counter[str]()
    cells = pa.array([b"abc", b"ab", b"abcd"], gathered(field.arrow))
    assert Converter(field, t, replace(DUCKDB, binary=2), changes)(cells).to_pylist() == [b"ab", b"ab", b"ab"]
    assert changes.total() == 2


def test_a_key_that_weighs_more_than_redshift_can_hash_is_refused_whatever_the_policy() -> None:
    text = Column(
        "c",
        "varchar(768)",
        "varchar",
        characters=768,
        octets=3072,
        charset="utf8mb4",
        collation="utf8mb4_0900_as_cs",
    )
    keyed = described("s", "t", (text,), ("c",), None, "upsert", "t", overflow="null")
    weight = fields(keyed)[-1]
    cells: list[bytes | None] = [b"w" * 32_767, b"w" * 32_768]
    assert to_arrow(weight, cells[:1], keyed, REDSHIFT).to_pylist() == cells[:1]
    assert to_arrow(weight, cells, keyed).to_pylist() == cells
    with pytest.raises(Unfit, match=r"32,768 bytes of collation weights, .* at most 32,767") as unfit:
        to_arrow(weight, cells, keyed, REDSHIFT)
    assert unfit.value.index == 1


def test_an_empty_batch_converts() -> None:
    for type_ in ("int(11)", "date", "datetime", "longblob"):
        assert convert(table(type_, zero_dates="keep")) == []
