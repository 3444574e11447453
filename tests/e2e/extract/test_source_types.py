"""Every type of MySQL, its extremes included, read through the reader and compared with what the server says of the
same values by other means: as hex digits, as text, or as the literals that were inserted."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from floodmark.config.load import SourceSpec, TableOptions, Tls
from floodmark.model.errors import DataError
from floodmark.model.types import fields
from floodmark.setup.services.databases import MariaDB
from floodmark.source.describe import discover
from floodmark.source.read import Batches
from floodmark.source.session import Session

WAYS = (
    "prepared",
    "prepared, in Python",
    "as text",
    "as text, in Python",
    "prepared, with TLS",
    "as text, with TLS",
)


# test_exactness.py brings every value of both servers into a warehouse; here, one server shows that all ways to read agree.
pytestmark = pytest.mark.source


@pytest.fixture(scope="module")
def mariadb(either_mariadb: MariaDB) -> MariaDB:
    """One that speaks TLS, as every MySQL does."""
    return either_mariadb


def spec(database: Any, tls: bool = False) -> SourceSpec:
    server, mode = database.server, Tls("required" if tls else "disabled")
    return SourceSpec(server.host, server.port, server.user, server.password, database.name, mode)


def read(database: Any, name: str = "zoo", **options: Any) -> pa.Table:
    """The table through discovery and reader, in the order of its id; in all ways that rows can be read alike."""
    found: list[Any] = []
    with Session(spec(database), purpose="test") as session:
        table = discover(session, name, TableOptions(**options), database.name)
    for way in WAYS:
        source = spec(database, "TLS" in way)
        with Session(source, purpose="test") as session, pytest.MonkeyPatch.context() as patch:
            if "in Python" in way:
                patch.setattr("floodmark.source.rows.decoder.compiled", None)
            if "as text" in way:
                patch.setattr("floodmark.source.rows.decoder.layout", lambda definitions, wanted: None)
            chosen = ", ".join(f.select for f in fields(table))
            batches = Batches(session, table, f"SELECT {chosen} FROM `{name}` ORDER BY id")
            schema = pa.schema([(f.name, f.arrow) for f in fields(table)])
            try:
                found.append(pa.Table.from_batches(list(batches), schema))
            except DataError as error:
                found.append(error)
    first, *others = found
    for other in others:
        if isinstance(first, DataError):
            assert str(first) == str(other) and first.hint == other.hint
        else:
            assert [str(c.to_pylist()) for c in first.columns] == [str(c.to_pylist()) for c in other.columns]
    if isinstance(first, DataError):
        raise first
    whole: pa.Table = first
    whole.validate(full=True)
    return whole


def independently(database: Any, expression: str, name: str = "zoo") -> list[Any]:
    rows = database.execute(
        "SET time_zone = '+00:00', sql_mode = ''", f"SELECT {expression} FROM {name} ORDER BY id"
    )
    return [row[0] for row in rows]


def text_of(value: Any) -> str | None:
    return None if value is None else str(value)


# column type, literals, the query to the server, the value we expect
Case = tuple[str, list[str], str, Callable[[Any], Any]]


def number(value: Any) -> str | None:
    return None if value is None else str(int(value))


def wall(digits: int) -> Callable[[Any], str | None]:
    def show(value: Any) -> str | None:
        if value is None:
            return None
        text = f"{value:%H:%M:%S.%f}"
        return f"{value.year:04}-{value.month:02}-{value.day:02} {text[: 9 + digits] if digits else text[:8]}"

    return show


def hexed(value: Any) -> str | None:
    return None if value is None else (value if isinstance(value, bytes) else value.encode()).hex().upper()


CHAR, HEX = "CAST(c AS CHAR)", "HEX(c)"
UTF8 = "HEX(CONVERT(c USING utf8mb4))"
WORDS = [
    "'null'",
    "'None'",
    "'NaN'",
    "''",
    "'\\\\N'",
    "'  spaces  '",
    "'tab\\t nl\\n cr\\r quote\\' nul\\0'",
    "'ü€'",
]
BYTES = ["''", "x'00'", "x'FF00FE'", "'null'", "repeat(x'C328', 40)"]

# What both servers have.
SHARED: dict[str, Case] = {
    "tinyint": ("TINYINT", ["-128", "127", "0"], CHAR, number),
    "tinyint_unsigned": ("TINYINT UNSIGNED", ["0", "255"], CHAR, number),
    "bool": ("BOOL", ["TRUE", "FALSE", "7"], CHAR, number),
    "smallint": ("SMALLINT", ["-32768", "32767"], CHAR, number),
    "smallint_unsigned": ("SMALLINT UNSIGNED", ["65535"], CHAR, number),
    "mediumint": ("MEDIUMINT", ["-8388608", "8388607"], CHAR, number),
    "mediumint_unsigned": ("MEDIUMINT UNSIGNED", ["16777215"], CHAR, number),
    "int": ("INT", ["-2147483648", "2147483647"], CHAR, number),
    "int_unsigned": ("INT UNSIGNED", ["4294967295"], CHAR, number),
    "bigint": ("BIGINT", ["-9223372036854775808", "9223372036854775807"], CHAR, number),
    "bigint_unsigned": ("BIGINT UNSIGNED", ["18446744073709551615", "0"], CHAR, number),
    "zerofill": ("BIGINT(20) UNSIGNED ZEROFILL", ["42"], "CAST(c+0 AS CHAR)", number),
    "year": ("YEAR", ["1901", "2155", "0000"], "CAST(c+0 AS CHAR)", number),
    "bit1": ("BIT(1)", ["b'0'", "b'1'"], "BIN(c)", number),
    "bit7": ("BIT(7)", ["b'1111111'", "b'0'"], "CONV(BIN(c), 2, 10)", number),
    "bit63": ("BIT(63)", [f"b'{'1' * 63}'"], "CONV(BIN(c), 2, 10)", number),
    "bit64": ("BIT(64)", [f"b'{'1' * 64}'"], "CONV(BIN(c), 2, 10)", number),
    "decimal": ("DECIMAL(18,4)", ["-99999999999999.9999", "0.0001", "-0.5"], CHAR, text_of),
    "decimal38": ("DECIMAL(38,10)", ["-" + "9" * 28 + "." + "9" * 10], CHAR, text_of),
    "decimal_integer": ("DECIMAL(38,0)", ["9" * 38, "-1"], CHAR, text_of),
    "decimal_unsigned": ("DECIMAL(10,2) UNSIGNED", ["99999999.99"], CHAR, text_of),
    "decimal_over": ("DECIMAL(65,30)", ["-" + "9" * 35 + "." + "9" * 30, "1e-30"], CHAR, text_of),
    "date": ("DATE", ["'1000-01-01'", "'9999-12-31'", "'0001-01-01'", "'2024-02-29'"], CHAR, text_of),
    "datetime": ("DATETIME", ["'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'"], CHAR, wall(0)),
    "datetime3": ("DATETIME(3)", ["'1969-12-31 23:59:59.999'", "'2025-03-30 02:30:00.001'"], CHAR, wall(3)),
    "datetime6": ("DATETIME(6)", ["'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"], CHAR, wall(6)),
    "timestamp": ("TIMESTAMP NULL", ["'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"], CHAR, wall(0)),
    "timestamp6": ("TIMESTAMP(6) NULL", ["'2038-01-19 03:14:07.999999'", "'2025-10-26 00:30:00'"], CHAR, wall(6)),
    "time": ("TIME", ["'-838:59:59'", "'838:59:59'", "'00:00:00'"], CHAR, text_of),
    "char": ("CHAR(40)", WORDS, UTF8, hexed),
    "varchar": ("VARCHAR(100)", [*WORDS, "repeat('😀', 100)", "'深圳'"], UTF8, hexed),
    "latin1": ("VARCHAR(50) CHARSET latin1", ["'éÿ€'", "'plain'"], UTF8, hexed),
    "gbk": ("VARCHAR(50) CHARSET gbk", ["'深圳市'"], UTF8, hexed),
    "sjis": ("VARCHAR(50) CHARSET sjis", ["'ソ表ｱ'"], UTF8, hexed),
    "ucs2": ("VARCHAR(50) CHARSET ucs2", ["'日本'"], UTF8, hexed),
    "utf16": ("VARCHAR(50) CHARSET utf16", ["'😀x'"], UTF8, hexed),
    "utf32": ("VARCHAR(50) CHARSET utf32", ["'😀x'"], UTF8, hexed),
    "utf8mb3": ("VARCHAR(50) CHARSET utf8mb3", ["'日本é'"], UTF8, hexed),
    "tinytext": ("TINYTEXT", [*WORDS, "repeat('x', 255)"], UTF8, hexed),
    "text": ("TEXT", [*WORDS, "repeat('ü', 32767)"], UTF8, hexed),
    "mediumtext": ("MEDIUMTEXT", [*WORDS, "repeat('x', 100000)"], UTF8, hexed),
    "longtext": ("LONGTEXT", [*WORDS, "repeat('😀', 100000)"], UTF8, hexed),
    "enum": ("ENUM('', 'a', 'null', 'ü')", ["''", "'null'", "'ü'"], UTF8, hexed),
    "set": ("SET('a', 'b', 'ü')", ["''", "'a,b,ü'", "'b'"], UTF8, hexed),
    "binary": ("BINARY(16)", ["''", "x'00FF'", "repeat(x'FF', 16)"], HEX, hexed),
    "varbinary": ("VARBINARY(200)", BYTES, HEX, hexed),
    "tinyblob": ("TINYBLOB", BYTES, HEX, hexed),
    "blob": ("BLOB", [*BYTES, "repeat(x'FF', 65535)"], HEX, hexed),
    "mediumblob": ("MEDIUMBLOB", BYTES, HEX, hexed),
    "longblob": ("LONGBLOB", [*BYTES, "repeat(x'00FF', 500000)"], HEX, hexed),
    "generated": ("INT AS (id * 2) VIRTUAL", [], CHAR, number),
    "generated_stored": ("VARCHAR(20) AS (concat('n', id)) STORED", [], UTF8, hexed),
    "invisible": ("INT INVISIBLE", ["5"], CHAR, number),
}  # fmt: skip
MARIADB: dict[str, Case] = {
    "decimal_fraction": ("DECIMAL(38,37)", ["9." + "9" * 37, "0." + "0" * 36 + "1"], CHAR, lambda v: v and f"{v:f}"),
    "decimal_deep": ("DECIMAL(38,38)", ["0." + "9" * 38], CHAR, text_of),
    "time6": ("TIME(6)", ["'-838:59:59.999999'", "'-00:00:00.000001'"], CHAR, text_of),
    "json": ("JSON", ["'null'", '\'{"a": [1, 2.50, "ü"]}\'', "'1e400'", "'  [ ]'"], UTF8, hexed),
    "uuid": ("UUID", ["'123e4567-e89b-12d3-a456-426655440000'"], "HEX(CAST(c AS CHAR))", hexed),
    "inet4": ("INET4", ["'255.255.255.255'", "'0.0.0.0'"], "HEX(CAST(c AS CHAR))", hexed),
    "inet6": ("INET6", ["'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'", "'::1'"], "HEX(CAST(c AS CHAR))", hexed),
}  # fmt: skip
MYSQL: dict[str, Case] = {
    "decimal_fraction": ("DECIMAL(38,30)", ["99999999." + "9" * 30, "0." + "0" * 29 + "1"], CHAR, lambda v: v and f"{v:f}"),
    "time6": ("TIME(6)", ["'-838:59:59.000000'", "'-00:00:00.000001'"], CHAR, text_of),
    "json": ("JSON", ["'null'", '\'{"bb": 1, "a": [1, 2.50, 1.0, 18446744073709551615, "ü"]}\'', "'1e308'", "'  [ ]'"], UTF8, hexed),
    "gb18030": ("VARCHAR(50) CHARSET gb18030", ["'深圳市😀'"], UTF8, hexed),
    "vector": ("VECTOR(3)", ["STRING_TO_VECTOR('[1,-2.5,3e38]')", "STRING_TO_VECTOR('[0]')"], HEX, hexed),
}  # fmt: skip


@pytest.mark.parametrize("name", list(SHARED))
def test_every_value_arrives_as_the_server_has_it(database: Any, name: str) -> None:
    assert_arrives(database, SHARED[name])


@pytest.mark.mysql_only
@pytest.mark.parametrize("name", list(MYSQL))
def test_every_value_of_a_type_that_mysql_has_arrives(database: Any, name: str) -> None:
    assert_arrives(database, MYSQL[name])


@pytest.mark.mariadb_only
@pytest.mark.parametrize("name", list(MARIADB))
def test_every_value_of_a_type_that_mariadb_has_arrives(database: Any, name: str) -> None:
    assert_arrives(database, MARIADB[name])


def assert_arrives(database: Any, case: Case) -> None:
    type_, literals, asked, show = case
    database.execute(f"CREATE TABLE zoo (id INT PRIMARY KEY, c {type_})")
    generated = " AS (" in type_
    for i, literal in enumerate([*literals, "NULL"]):
        columns, values = ("(id)", f"({i})") if generated else ("(id, c)", f"({i}, {literal})")
        database.execute(
            "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'",
            f"INSERT INTO zoo {columns} VALUES {values}",
        )
    ours = read(database)["c"].to_pylist()
    assert len(ours) == len(literals) + 1
    if not generated:
        assert ours[-1] is None
    assert [show(v) for v in ours] == [
        text_of(v) if not isinstance(v, bytes) else v.decode() for v in independently(database, asked)
    ]


@pytest.mark.both_servers
def test_floats_arrive_bit_for_bit(database: Any) -> None:
    singles = [
        "3.402823466e38",
        "-3.402823466e38",
        "1.17549435e-38",
        "0.1",
        "16777216",
        "123456.789",
        "1e-45",
    ]
    doubles = [
        "1.7976931348623157e308",
        "2.2250738585072014e-308",
        "5e-324",
        "0.1",
        "-1e-300",
        "9007199254740993",
    ]
    database.execute("CREATE TABLE zoo (id INT PRIMARY KEY, f FLOAT, d DOUBLE, m DOUBLE(20,2))")
    for i in range(max(len(singles), len(doubles))):
        f = singles[i] if i < len(singles) else "NULL"
        d = doubles[i] if i < len(doubles) else "NULL"
        database.execute(f"INSERT INTO zoo VALUES ({i}, {f}, {d}, 123456789012.34)")
    got = read(database)
    expected = [struct.unpack("f", struct.pack("f", float(s)))[0] for s in singles]
    bits = [struct.pack("f", v) for v in got["f"].to_pylist()[: len(singles)]]
    assert bits == [struct.pack("f", v) for v in expected]
    assert [struct.pack("d", v) for v in got["d"].to_pylist()[: len(doubles)]] == [
        struct.pack("d", float(s)) for s in doubles
    ]
    assert set(got["m"].to_pylist()) == {123456789012.34}


@pytest.mark.both_servers
def test_geometries_arrive_as_wkb_and_srid(database: Any) -> None:
    shapes = [
        "POINT(1 -2.5)",
        "LINESTRING(0 0,1 1,2 3)",
        "POLYGON((0 0,4 0,4 4,0 0))",
        "GEOMETRYCOLLECTION(POINT(1 1))",
    ]
    database.execute("CREATE TABLE zoo (id INT PRIMARY KEY, g GEOMETRY)")
    for i, shape in enumerate(shapes):
        database.execute(f"INSERT INTO zoo VALUES ({i}, ST_GeomFromText('{shape}', {4326 if i else 0}))")
    # Munich in the servers' own bytes, the SRID and x = longitude, y = latitude: so it arrives, whatever the server prints.
    munich = struct.pack("<BIdd", 1, 1, 11.58, 48.14)
    database.execute(f"INSERT INTO zoo VALUES (50, X'{(struct.pack('<I', 4326) + munich).hex()}')")
    database.execute("INSERT INTO zoo VALUES (99, NULL)")
    got = read(database)
    assert got["g"][0].as_py() == struct.pack("<BIdd", 1, 1, 1.0, -2.5)
    assert got["g"][4].as_py() == munich
    assert [hexed(v) for v in got["g"].to_pylist()] == independently(database, "SUBSTR(HEX(g), 9)")
    assert got["g__srid"].to_pylist() == [0, 4326, 4326, 4326, 4326, None]


@pytest.mark.both_servers
def test_an_impossible_date_is_refused_by_key_and_column(database: Any) -> None:
    database.execute(
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "CREATE TABLE zoo (id INT PRIMARY KEY, d DATE, t TIMESTAMP NULL, w DATETIME(3))",
        "INSERT INTO zoo VALUES (1, '2020-01-01', '2020-01-01', '2020-01-01'), (7, '2020-00-15', 0, '2021-02-31 01:02:03.4')",
    )
    with pytest.raises(
        DataError, match=r"column d: the impossible date 2020-00-15, in the row with id = 7"
    ) as error:
        read(database)
    assert error.value.table == f"{database.name}.zoo" and "zero_dates" in (error.value.hint or "")
    nulls = read(database, zero_dates="null").to_pylist()[1]
    assert nulls == {"id": 7, "d": None, "t": None, "w": None}
    kept = read(database, zero_dates="keep")
    assert kept.select(["d", "t", "w"]).to_pylist()[1] == {"d": None, "t": None, "w": None}
    assert [kept[f"{c}__raw"][1].as_py() for c in "dtw"] == [
        "2020-00-15", "0000-00-00 00:00:00", "2021-02-31 01:02:03.400",
    ]  # fmt: skip
    assert [kept[f"{c}__raw"][0].as_py() for c in "dtw"] == [None, None, None]


@pytest.mark.both_servers
def test_timestamps_are_utc_whatever_the_servers_zone(database: Any) -> None:
    database.execute(
        "CREATE TABLE zoo (id INT PRIMARY KEY, t TIMESTAMP, d DATETIME)",
        "SET time_zone = '+08:00'",
        "INSERT INTO zoo VALUES (1, '2025-06-01 08:00:00', '2025-06-01 08:00:00')",
    )
    row = read(database).to_pylist()[0]
    assert row["t"].isoformat() == "2025-06-01T00:00:00+00:00"
    assert row["d"].isoformat() == "2025-06-01T08:00:00+00:00"  # the wall clock, written as if UTC


def test_half_a_surrogate_pair_is_refused(database: Any) -> None:
    database.execute(
        "CREATE TABLE zoo (id INT PRIMARY KEY, c VARCHAR(10) CHARSET ucs2)",
        "INSERT INTO zoo VALUES (1, 'fine'), (2, x'D800')",
    )
    with pytest.raises(DataError, match=r"column c: text that is not valid Unicode .*in the row with id = 2"):
        read(database)


def test_names_may_contain_anything(database: Any) -> None:
    database.execute(
        "CREATE TABLE `o``d d.x` (id INT PRIMARY KEY, `a``b` INT, `sel ect` INT, `ä` DECIMAL(5,2))",
        "INSERT INTO `o``d d.x` VALUES (1, 2, 3, 4.5)",
    )
    with Session(spec(database)) as session:
        table = discover(session, "o`d d.x", TableOptions(), database.name)
        chosen = ", ".join(f.select for f in fields(table))
        rows = pa.Table.from_batches(list(Batches(session, table, f"SELECT {chosen} FROM `o``d d.x`")))
    assert rows.to_pylist() == [{"id": 1, "a`b": 2, "sel ect": 3, "ä": Decimal("4.50")}]
