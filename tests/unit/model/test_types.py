"""The type table: which file and warehouse types a MySQL column gets, and by what keys are compared."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from floodmark.model.errors import ConfigError
from floodmark.model.table import Column, Table
from floodmark.model.types import KEY_FIELD, Field, comparison, fields, file_schema, member_text, quote
from floodmark.model.warehouse import DUCKDB, REDSHIFT
from tests.support.described import described

UTC = pa.timestamp("us", "UTC")


def column(type_: str, name: str = "c", **more: Any) -> Column:
    return Column(name, type_, type_.partition("(")[0].partition(" ")[0], **more)


def table(*columns: Column, **more: Any) -> Table:
    given: dict[str, Any] = {"key": (), "cursor": None, "mode": "full", "target": "t", **more}
    return described("s", "t", columns, **given)


def only(c: Column) -> Field:
    (field,) = fields(table(c))
    return field


@pytest.mark.parametrize(
    ("type_", "arrow", "redshift", "duckdb"),
    [
        ("tinyint(4)", pa.int16(), "SMALLINT", "SMALLINT"),
        ("tinyint(3) unsigned", pa.int16(), "SMALLINT", "SMALLINT"),
        ("smallint(6)", pa.int16(), "SMALLINT", "SMALLINT"),
        ("smallint(5) unsigned", pa.int32(), "INTEGER", "INTEGER"),
        ("mediumint(9)", pa.int32(), "INTEGER", "INTEGER"),
        ("mediumint(8) unsigned", pa.int32(), "INTEGER", "INTEGER"),
        ("int(11)", pa.int32(), "INTEGER", "INTEGER"),
        ("int(10) unsigned zerofill", pa.int64(), "BIGINT", "BIGINT"),
        ("bigint(20)", pa.int64(), "BIGINT", "BIGINT"),
        ("bigint(20) unsigned", pa.decimal128(20, 0), "DECIMAL(20,0)", "DECIMAL(20,0)"),
        ("year(4)", pa.int16(), "SMALLINT", "SMALLINT"),
        ("double", pa.float64(), "DOUBLE PRECISION", "DOUBLE"),
        ("date", pa.date32(), "DATE", "DATE"),
        ("datetime(6)", UTC, "TIMESTAMP", "TIMESTAMP"),
        ("timestamp", UTC, "TIMESTAMPTZ", "TIMESTAMPTZ"),
        ("time(6)", pa.string(), "VARCHAR(18)", "VARCHAR"),
        ("uuid", pa.string(), "VARCHAR(36)", "VARCHAR"),
        ("inet6", pa.string(), "VARCHAR(45)", "VARCHAR"),
    ],
)
def test_plain_types_are_read_as_they_are(type_: str, arrow: pa.DataType, redshift: str, duckdb: str) -> None:
    field = only(column(type_))
    assert (field.select, field.arrow, REDSHIFT.type_of(field), DUCKDB.type_of(field)) == (
        "`c`",
        arrow,
        redshift,
        duckdb,
    )
    assert field.wall_clock == type_.startswith("datetime")


def test_a_float_is_read_with_all_its_digits() -> None:
    field = only(column("float"))
    assert (field.select, field.arrow, REDSHIFT.type_of(field)) == ("`c`*1e0", pa.float32(), "REAL")


@pytest.mark.parametrize(
    ("bits", "arrow"), [(1, pa.bool_()), (2, pa.int64()), (63, pa.int64()), (64, pa.decimal128(20, 0))]
)
def test_bits_are_read_as_a_number(bits: int, arrow: pa.DataType) -> None:
    field = only(column(f"bit({bits})", precision=bits))
    assert (field.select, field.arrow) == ("CAST(`c` AS UNSIGNED)", arrow)


@pytest.mark.parametrize(
    ("precision", "scale", "arrow", "redshift"),
    [
        (18, 4, pa.decimal128(18, 4), "DECIMAL(18,4)"),
        (38, 37, pa.decimal128(38, 37), "DECIMAL(38,37)"),
        (38, 38, pa.string(), "VARCHAR(41)"),
        (39, 0, pa.string(), "VARCHAR(42)"),
        (65, 30, pa.string(), "VARCHAR(68)"),
    ],
)
def test_a_decimal_that_no_warehouse_holds_is_text(
    precision: int, scale: int, arrow: pa.DataType, redshift: str
) -> None:
    field = only(column("decimal", precision=precision, scale=scale))
    assert (field.arrow, REDSHIFT.type_of(field)) == (arrow, redshift)


@pytest.mark.parametrize(
    ("type_", "charset", "characters", "octets", "redshift"),
    [
        ("varchar(10)", "utf8mb4", 10, 40, "VARCHAR(40)"),
        ("varchar(10)", "utf8mb3", 10, 30, "VARCHAR(30)"),
        ("char(10)", "ascii", 10, 10, "VARCHAR(10)"),
        ("char(10)", "latin1", 10, 10, "VARCHAR(30)"),  # the euro sign is one byte there and three in UTF-8
        ("char(0)", "ascii", 0, 0, "VARCHAR(1)"),
        ("varchar(60000)", "latin1", 60000, 60000, "VARCHAR(65535)"),
        ("enum('a','bc')", "utf8mb4", 2, 8, "VARCHAR(8)"),
        ("tinytext", "utf8mb4", 255, 255, "VARCHAR(255)"),
        ("text", "utf8mb4", 65535, 65535, "VARCHAR(65535)"),
        ("longtext", "utf8mb4", 4294967295, 4294967295, "VARCHAR(65535)"),
    ],
)
def test_text_has_room_for_its_bytes_in_utf8(
    type_: str, charset: str, characters: int, octets: int, redshift: str
) -> None:
    field = only(column(type_, charset=charset, characters=characters, octets=octets))
    assert (REDSHIFT.type_of(field), DUCKDB.type_of(field), field.select) == (redshift, "VARCHAR", "`c`")
    assert field.arrow == (pa.large_string() if type_ == "longtext" else pa.string())


def test_binary_never_has_a_fixed_length() -> None:
    assert only(column("binary(16)", octets=16)).arrow == pa.binary()
    assert REDSHIFT.type_of(only(column("binary(16)", octets=16))) == "VARBYTE(16)"
    assert only(column("longblob")).arrow == pa.large_binary()
    assert REDSHIFT.type_of(only(column("longblob"))) == "VARBYTE(16777216)"


def test_a_geometry_gives_its_bytes_and_its_reference_system() -> None:
    shape, srid = fields(table(column("point", "g")))
    # The option is in a comment that only MySQL 8 and newer run: others have no such option, and need none.
    select = "ST_AsBinary(`g` /*!80011 , 'axis-order=long-lat' */)"
    assert (shape.name, shape.select, DUCKDB.type_of(shape)) == ("g", select, "BLOB")
    assert (srid.name, srid.select, srid.arrow) == ("g__srid", "ST_SRID(`g`)", pa.int32())


def test_kept_zero_dates_have_a_second_column() -> None:
    names = [f.name for f in fields(table(column("date", "d"), column("int(11)", "i"), zero_dates="keep"))]
    assert names == ["d", "d__raw", "i"]


def test_an_unknown_type_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="c has type tsvector") as refused:
        only(column("tsvector"))
    assert "exclude" in (refused.value.hint or "")


def test_backticks_in_names_are_doubled() -> None:
    assert quote("a`b") == "`a``b`"
    assert only(column("int", "a`b")).select == "`a``b`"


def test_the_file_has_the_fields_in_order_and_all_nullable() -> None:
    schema = file_schema(table(column("int(11)", "b", nullable=False), column("date", "a")))
    assert schema.names == ["b", "a"]
    assert all(field.nullable for field in schema)


def text_key(collation: str, name: str = "c", type_: str = "varchar(10)") -> Column:
    charset = collation.partition("_")[0]
    return column(type_, name, nullable=False, characters=10, octets=40, charset=charset, collation=collation)


@pytest.mark.parametrize(
    ("collation", "expected"),
    [
        ("utf8mb4_general_ci", "weights"),
        ("utf8mb4_bin", "weights"),  # 'a' and 'a ' are one key
        ("utf8mb4_nopad_bin", "bytes"),
        ("utf8mb4_0900_bin", "bytes"),
        ("utf8mb4_0900_ai_ci", "weights"),
        ("big5_chinese_ci", "unknown"),
        ("utf8mb4_uca1400_nopad_ai_cs", "unknown"),
        ("utf8mb4_uca1400_ai_cs", "weights"),
        ("euckr_korean_ci", "unknown"),
        ("tis620_thai_ci", "unknown"),
        ("tis620_bin", "weights"),
    ],
)
def test_how_a_text_key_is_compared_depends_on_its_collation(collation: str, expected: str) -> None:
    assert comparison(text_key(collation)) == expected


def test_only_upsert_tables_with_text_keys_carry_weights() -> None:
    text = text_key("utf8mb4_general_ci")
    number = column("int(11)", "id", nullable=False)
    merged = {"mode": "upsert", "cursor": "id"}
    weighed = fields(table(number, text, key=("c",), **merged))
    assert (weighed[-1].name, weighed[-1].file_only, weighed[-1].arrow) == (KEY_FIELD, True, pa.binary())
    assert fields(table(number, text, key=("id",), **merged))[-1].name == "c"
    assert fields(table(number, text, key=("c",), mode="full"))[-1].name == "c"


@pytest.mark.parametrize(
    ("type_", "which"),
    [
        ("enum('z','a','')", "(`c` | 0) IN (0)"),
        ("enum('a','b','a')", "(`c` | 0) IN (3)"),
        ("enum('','','a')", "(`c` | 0) IN (0, 2)"),
        ("set('','x')", "(`c` | 0) & 1 = 1"),
        ("set('x','','y')", "(`c` | 0) & 3 = 2"),
        ("set('a','a','b')", "(`c` | 0) & 2 <> 0"),
        ("enum('a','b')", None),
        ("enum('?','?')", None),  # two characters that the catalogue can't show
        ("set('x','y')", None),
        ("varchar(9)", None),
    ],
)
def test_members_of_a_key_that_only_their_number_tells_apart_are_marked(
    type_: str, which: str | None
) -> None:
    member = column(type_, nullable=False)
    text = member_text(member)
    assert text is None if which is None else text is not None and text.startswith(f"IF({which}, ")
    for mode, cursor in (("upsert", "at"), ("full", None)):
        at = column("datetime", "at")
        keyed, _, *_ = fields(table(member, at, key=("c",), mode=mode, cursor=cursor))
        assert keyed.select == (text or "`c`")
        assert fields(table(member, at, key=("at",), mode=mode, cursor=cursor))[0].select == "`c`"
