"""Every type from MySQL through Parquet into DuckDB, bit for bit: extremes, thousands of random rows, awkward names.

What is expected comes from MySQL in a query of its own (hex digits, casts) or from the literals that were inserted,
never from the pipeline's expressions. The files are held to the strict dialect that Redshift's COPY takes.
"""

from __future__ import annotations

import json
import random
import secrets
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest

from floodmark.names import target_name
from floodmark.spark import Spark
from floodmark.testing.services import MariaDB
from tests.conftest import Database, Floodmark, Workspace

ROWS = 2500
Draw = Callable[[random.Random], str]


@dataclass(frozen=True)
class Kind:
    """A column type: its awkward values, a random one, and how each side is asked for it as text."""

    type: str
    values: tuple[str, ...]
    warehouse: str  # the type in DuckDB
    file: str  # the physical type and annotation in Parquet
    draw: Draw
    asked: str = "CAST({c} AS CHAR)"
    told: str = "CAST({c} AS VARCHAR)"
    bits: str = ""  # of floats: compared as bits with the literals themselves


# ---------------------------------------------------------------- random values


def whole(low: int, high: int) -> Draw:
    """Integers of every magnitude."""

    def draw(r: random.Random) -> str:
        bits = r.randint(1, max(high.bit_length(), 1))
        return str(max(low, min(high, r.choice([1, -1]) * r.getrandbits(bits))))

    return draw


def fraction(digits: int, scale: int) -> Draw:
    def draw(r: random.Random) -> str:
        number = r.randint(0, 10 ** r.randint(1, digits) - 1)
        text = str(number).zfill(scale + 1)
        return r.choice(["", "-"]) + (f"{text[: len(text) - scale]}.{text[-scale:]}" if scale else text)

    return draw


def single(r: random.Random) -> str:
    """Any finite FLOAT, by its bits; not the largest exponent, whose rounding MySQL refuses."""
    (value,) = struct.unpack("<f", struct.pack("<I", r.getrandbits(1) << 31 | r.randrange(0x7F000000)))
    return repr(value)


def double(r: random.Random) -> str:
    (value,) = struct.unpack("<d", struct.pack("<Q", r.getrandbits(1) << 63 | r.randrange(0x7FE << 52)))
    return repr(value)


def date(r: random.Random) -> str:
    return f"{r.randint(1, 9999):04}-{r.randint(1, 12):02}-{r.randint(1, 28):02}"


def moment(r: random.Random, digits: int) -> str:
    return f"'{date(r)} {r.randrange(24):02}:{r.randrange(60):02}:{r.randrange(60):02}{sub(r, digits)}'"


def instant(r: random.Random, digits: int) -> str:
    return f"FROM_UNIXTIME({r.randint(1, 2**31 - 2)}{sub(r, digits)})"


def sub(r: random.Random, digits: int) -> str:
    return "." + str(r.randrange(10**digits)).zfill(digits) if digits else ""


def duration(r: random.Random, digits: int) -> str:
    return f"'{r.choice(['', '-'])}{r.randrange(838):02}:{r.randrange(60):02}:{r.randrange(60):02}{sub(r, digits)}'"


def words(letters: str, most: int) -> Draw:
    def draw(r: random.Random) -> str:
        if r.random() < 0.1:
            return r.choice(WORDS)
        return text("".join(r.choice(letters) for _ in range(r.randrange(most))))

    return draw


def octets(most: int) -> Draw:
    return lambda r: f"x'{r.randbytes(r.randrange(most)).hex()}'"


def bits(width: int) -> Draw:
    return lambda r: f"b'{r.getrandbits(r.randint(1, width)):b}'"


def text(value: str) -> str:
    """A literal that no escape rule can change."""
    return f"CONVERT(x'{value.encode().hex()}' USING utf8mb4)"


# ---------------------------------------------------------------- the zoo

WORDS = tuple(
    text(v)
    for v in (
        "", "null", "NULL", "None", "NaN", "nan", "inf", "\\N", "0", "true", "  both ends  ", "'\"`\\%_;--", "a\0b",
        "\t\n\r\x1a\x7f", "\x00",
    )
)  # fmt: skip
UNICODE = (
    *WORDS,
    *map(text, ("é ü ß €", "深圳市", "😀👨‍👩‍👧𠀋", "e\u0301", "\ufeffbom", "\u2028", "\uffff")),
)
BYTES = ("''", "x'00'", "x'0000'", "x'FF00FE'", "x'C328'", "'null'", "x'20'", "repeat(x'FF', 100)")
LETTERS = "abcXYZ 0189'\"\\%\0\n"
GREEK = LETTERS + "äßéαωжשع深市ｱ"

INT16, INT32, INT64 = "INT32 INT_16", "INT32", "INT64"
UTF8, BINARY, WIDE = "BYTE_ARRAY UTF8", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY(9) DECIMAL(20,0)"
CLOCK = "INT64 TIMESTAMP_MICROS"
HEX = "HEX({c})"
DATE_MY, DATE_DUCK = "DATE_FORMAT({c}, '%Y-%m-%d')", "strftime({c}, '%Y-%m-%d')"
TIME_MY, TIME_DUCK = "DATE_FORMAT({c}, '%Y-%m-%d %H:%i:%s.%f')", "strftime({c}, '%Y-%m-%d %H:%M:%S.%f')"
POINTED = r"regexp_replace(CAST({c} AS VARCHAR), '^(-?)[.]', '\10.')"  # DuckDB writes .5
BIT_MY = "CONV(HEX({c}), 16, 10)"


def integer(
    type_: str, low: int, high: int, warehouse: str, file: str, asked: str = "CAST({c} AS CHAR)"
) -> Kind:
    return Kind(type_, (str(low), str(high), "0", "1"), warehouse, file, whole(low, high), asked)


def bit(width: int) -> Kind:
    values = ("b'0'", "b'1'", f"b'1{'0' * (width - 1)}'", f"b'{'1' * width}'")
    if width == 1:
        return Kind(
            "BIT(1)", values, "BOOLEAN", "BOOLEAN", bits(1), BIT_MY, "CAST(CAST({c} AS INTEGER) AS VARCHAR)"
        )
    warehouse, file = ("BIGINT", INT64) if width < 64 else ("DECIMAL(20,0)", WIDE)
    return Kind(f"BIT({width})", values, warehouse, file, bits(width), BIT_MY)


def decimal(p: int, s: int) -> Kind:
    nines = "9" * (p - s) + ("." + "9" * s if s else "")
    least = "0." + "0" * (s - 1) + "1" if s else "1"
    values = (nines, "-" + nines, least, "-" + least, "0")
    if p > 38 or s > 37:
        return Kind(f"DECIMAL({p},{s})", values, "VARCHAR", UTF8, fraction(p, s))
    kept = 20 if p == 19 else p  # Redshift's eight bytes end before 19 nines
    width = ((10**kept - 1).bit_length() + 8) // 8  # the fewest bytes that hold the precision, with its sign
    return Kind(
        f"DECIMAL({p},{s})", values, f"DECIMAL({kept},{s})", f"FIXED_LEN_BYTE_ARRAY({width}) DECIMAL({kept},{s})",
        fraction(p, s), told=POINTED,
    )  # fmt: skip


def datetime_(n: int) -> Kind:
    last = "." + "9" * n if n else ""
    values = (
        "'1000-01-01 00:00:00'", f"'9999-12-31 23:59:59{last}'", "'0001-01-01 00:00:00'", f"'1969-12-31 23:59:59{last}'",
        "'2025-03-30 02:30:00'", "'1582-10-10 12:00:00'", "'0000-01-01 00:00:00'",
    )  # fmt: skip
    return Kind(f"DATETIME({n})", values, "TIMESTAMP", CLOCK, partial(moment, digits=n), TIME_MY, TIME_DUCK)


def timestamp(n: int) -> Kind:
    last = "." + "9" * n if n else ""
    least = "FROM_UNIXTIME(0." + "0" * (n - 1) + "1)" if n else "FROM_UNIXTIME(1)"
    values = (
        least,
        "FROM_UNIXTIME(1)",
        f"'2038-01-19 03:14:07{last}'",
        "'2025-10-26 00:30:00'",
        "'2025-10-26 01:30:00'",
    )
    return Kind(
        f"TIMESTAMP({n}) NULL",
        values,
        "TIMESTAMP WITH TIME ZONE",
        CLOCK,
        partial(instant, digits=n),
        TIME_MY,
        TIME_DUCK,
    )


def time_(n: int) -> Kind:
    last = "." + "9" * n if n else ""
    values = (f"'-838:59:59{last}'", f"'838:59:59{last}'", "'00:00:00'", f"'-00:00:01{last}'")
    return Kind(f"TIME({n})", values, "VARCHAR", UTF8, partial(duration, digits=n))


def chars(type_: str, values: tuple[str, ...], letters: str, most: int = 12) -> Kind:
    asked = "HEX(CONVERT({c} USING utf8mb4))"
    return Kind(type_, values, "VARCHAR", UTF8, words(letters, most), asked, HEX)


def blob(type_: str, values: tuple[str, ...] = BYTES, most: int = 40) -> Kind:
    return Kind(type_, values, "BLOB", BINARY, octets(most), HEX, HEX)


def choice(type_: str, values: tuple[str, ...]) -> Kind:
    asked = "HEX(CONVERT({c} USING utf8mb4))"
    return Kind(type_, values, "VARCHAR", UTF8, lambda r: r.choice(values), asked, HEX)


ZOO: dict[str, Kind] = {
    "c_tinyint": integer("TINYINT", -128, 127, "SMALLINT", INT16),
    "c_tinyint_u": integer("TINYINT UNSIGNED", 0, 255, "SMALLINT", INT16),
    "c_tinyint_1": integer("TINYINT(1)", -128, 127, "SMALLINT", INT16),
    "c_smallint": integer("SMALLINT", -(2**15), 2**15 - 1, "SMALLINT", INT16),
    "c_smallint_u": integer("SMALLINT UNSIGNED", 0, 2**16 - 1, "INTEGER", INT32),
    "c_mediumint": integer("MEDIUMINT", -(2**23), 2**23 - 1, "INTEGER", INT32),
    "c_mediumint_u": integer("MEDIUMINT UNSIGNED", 0, 2**24 - 1, "INTEGER", INT32),
    "c_int": integer("INT", -(2**31), 2**31 - 1, "INTEGER", INT32),
    "c_int_u": integer("INT UNSIGNED", 0, 2**32 - 1, "BIGINT", INT64),
    "c_bigint": integer("BIGINT", -(2**63), 2**63 - 1, "BIGINT", INT64),
    "c_bigint_u": integer("BIGINT UNSIGNED", 0, 2**64 - 1, "DECIMAL(20,0)", WIDE),
    "c_zerofill": integer("INT(9) ZEROFILL", 0, 2**32 - 1, "BIGINT", INT64, "CAST({c}+0 AS CHAR)"),
    "c_year": Kind("YEAR", ("1901", "2155", "0000", "1970"), "SMALLINT", INT16,
                 lambda r: str(r.randint(1901, 2155)), "CAST({c}+0 AS CHAR)"),
    **{f"c_bit{n}": bit(n) for n in (1, 2, 8, 9, 31, 33, 53, 54, 63, 64)},
    **{f"c_decimal_{p}_{s}": decimal(p, s) for p, s in (
        (1, 0), (4, 4), (9, 2), (10, 0), (18, 9), (19, 4), (28, 28), (38, 0), (38, 10), (38, 37),
        (38, 38), (39, 0), (65, 0), (65, 30), (65, 38))},
    "c_decimal_fill": Kind("DECIMAL(12,3) ZEROFILL", ("0", "999999999.999", "0.001"), "DECIMAL(12,3)",
                         "FIXED_LEN_BYTE_ARRAY(6) DECIMAL(12,3)", lambda r: f"{r.random() * 1e8:.3f}",
                         "CAST(CAST({c} AS DECIMAL(12,3)) AS CHAR)"),
    "c_float": Kind("FLOAT", ("3.4028234663852886e38", "-3.4028234663852886e38", "1.1754943508222875e-38",
                             "1.401298464324817e-45", "0.1", "16777217", "123456.789", "8388608.5"),
                   "FLOAT", "FLOAT", single, bits="f"),
    "c_double": Kind("DOUBLE", ("1.7976931348623157e308", "-1.7976931348623157e308", "2.2250738585072014e-308",
                               "5e-324", "0.1", "9007199254740993", "0.30000000000000004", "1e23", "1e15", "1e16"),
                    "DOUBLE", "DOUBLE", double, bits="d"),
    "c_date": Kind("DATE", ("'1000-01-01'", "'9999-12-31'", "'0001-01-01'", "'2024-02-29'", "'1582-10-10'", "'0000-03-01'"),
                  "DATE", "INT32 DATE", lambda r: f"'{date(r)}'", DATE_MY, DATE_DUCK),
    **{f"c_datetime{n}": datetime_(n) for n in range(7)},
    **{f"c_timestamp{n}": timestamp(n) for n in range(7)},
    **{f"c_time{n}": time_(n) for n in (0, 1, 3, 6)},
    "c_char": chars("CHAR(40)", UNICODE, GREEK + "😀"),
    "c_varchar": chars("VARCHAR(80)", (*UNICODE, "repeat('😀', 80)"), GREEK + "😀"),
    "c_utf8mb4_bin": chars("VARCHAR(40) COLLATE utf8mb4_bin", UNICODE, GREEK + "😀"),
    "c_utf8mb3": chars("VARCHAR(40) CHARSET utf8mb3", (*WORDS, text("日本é")), GREEK),
    "c_latin1": chars("VARCHAR(40) CHARSET latin1", (*WORDS, text("éÿ€ŒŽ")), LETTERS + "äßéÿ€"),
    "c_ascii": chars("VARCHAR(40) CHARSET ascii", WORDS, LETTERS),
    "c_ucs2": chars("VARCHAR(40) CHARSET ucs2", (*WORDS, text("日本\ufeff")), GREEK),
    "c_utf16": chars("VARCHAR(40) CHARSET utf16", UNICODE, GREEK + "😀"),
    "c_utf16le": chars("VARCHAR(40) CHARSET utf16le", UNICODE, GREEK + "😀"),
    "c_utf32": chars("VARCHAR(40) CHARSET utf32", UNICODE, GREEK + "😀"),
    "c_sjis": chars("VARCHAR(40) CHARSET sjis", (*WORDS, text("ソ表能ｱ")), "abc ソ表能ｱ漢字"),
    "c_cp932": chars("VARCHAR(40) CHARSET cp932", (*WORDS, text("ソ①髙")), "abc ソ表能ｱ漢字①"),
    "c_gbk": chars("VARCHAR(40) CHARSET gbk", (*WORDS, text("深圳市")), "abc 深圳市乙"),
    "c_big5": chars("VARCHAR(40) CHARSET big5", (*WORDS, text("許功蓋")), "abc 許功蓋"),
    "c_tinytext": chars("TINYTEXT", (*UNICODE, "repeat('x', 255)"), GREEK + "😀"),
    "c_text": chars("TEXT", (*UNICODE, "repeat('ü', 32767)"), GREEK + "😀", 60),
    "c_mediumtext": chars("MEDIUMTEXT", (*UNICODE, "repeat('😀', 70000)"), GREEK + "😀"),
    "c_longtext": chars("LONGTEXT", (*UNICODE, "repeat('x', 1000000)"), GREEK + "😀"),
    "c_enum": choice("ENUM('a', '', 'null', 'NaN', 'ü', 'it''s', 'a,b')", ("'a'", "''", "'null'", "'NaN'", "'ü'", "'it''s'", "'a,b'")),
    "c_set": choice("SET('a', 'b', 'null', 'ü', 'it''s')", ("''", "'a'", "'a,b,null,ü,it''s'", "'b,ü'", "'null'")),
    "c_json": choice("JSON", ("'null'", "'{}'", "'  [1, 2.50, \"ü😀\"] '", "'1e400'", "'\"\"'", "'{\"b\": 1, \"a\": \"\\\\u0000\"}'")),
    "c_uuid": Kind("UUID", ("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
                  "VARCHAR", UTF8, lambda r: f"'{UUID(int=r.getrandbits(128), version=r.choice([1, 4]))}'", "INSERT(INSERT(INSERT(INSERT(LOWER(HEX({c})), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')"),
    "c_inet4": Kind("INET4", ("'0.0.0.0'", "'255.255.255.255'"), "VARCHAR", UTF8,
                   lambda r: f"INET_NTOA({r.getrandbits(32)})", "INET_NTOA(CONV(HEX({c}), 16, 10))"),
    "c_inet6": Kind("INET6", ("'::'", "'::1'", "'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'", "'::ffff:1.2.3.4'"), "VARCHAR",
                   UTF8, lambda r: f"INET6_NTOA(x'{r.getrandbits(128):032x}')", "INET6_NTOA(UNHEX(HEX({c})))"),
    "c_binary": blob("BINARY(16)", ("''", "x'00'", "x'20'", "repeat(x'FF', 16)"), 16),
    "c_varbinary": blob("VARBINARY(200)"),
    "c_tinyblob": blob("TINYBLOB"),
    "c_blob": blob("BLOB", (*BYTES, "repeat(x'00FF', 32767)")),
    "c_mediumblob": blob("MEDIUMBLOB", (*BYTES, "repeat(x'00FF', 100000)")),
    "c_longblob": blob("LONGBLOB", (*BYTES, "repeat(x'00FF', 500000)")),
    "c_point": Kind("POINT", ("ST_GeomFromText('POINT(1 -2.5)', 4326)", "ST_GeomFromText('POINT(1e-300 1e300)')"), "BLOB",
                   BINARY, lambda r: f"ST_GeomFromText('POINT({r.random()} {r.gauss(0, 1e6)})', {r.choice([0, 4326, 3857])})",
                   "HEX(ST_AsWKB({c}))", HEX),
    "c_geometry": Kind("GEOMETRY", ("ST_GeomFromText('POLYGON((0 0,4 0,4 4,0 0),(1 0.5,2 0.5,2 1,1 0.5))', 4326)",
                                   "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1),LINESTRING(0 0,1 1))', 3857)"), "BLOB",
                      BINARY, lambda r: f"ST_GeomFromText('LINESTRING(0 0,{r.random()} 1)', {r.choice([0, 4326])})",
                      "HEX(ST_AsWKB({c}))", HEX),
}  # fmt: skip

# Columns that no INSERT names, and how both sides show them.
GIVEN: dict[str, tuple[str, str]] = {
    "c_virtual": ("BIGINT AS (id * 3000000000) VIRTUAL", "CAST({c} AS CHAR)"),
    "c_stored": ("VARCHAR(60) AS (CONCAT('n', id, '😀')) STORED", "CAST({c} AS CHAR)"),
    "c_invisible": ("INT INVISIBLE DEFAULT 7", "CAST({c} AS CHAR)"),
}


@dataclass(frozen=True)
class Synced:
    """The zoo (awkward values) and the crowd (random ones), replicated."""

    workspace: Workspace
    crowd: dict[str, list[str]]  # the literals, by column

    def source(self, table: str, expression: str) -> list[str | None]:
        rows = self.workspace.execute(
            "SET time_zone = '+00:00', sql_mode = ''", f"SELECT {expression} FROM {table} ORDER BY id"
        )
        return [v.decode() if isinstance(v, bytes) else v if v is None else str(v) for (v,) in rows]

    def warehouse(self, table: str, expression: str) -> list[Any]:
        return [v for (v,) in self.workspace.query(f"SELECT {expression} FROM {table} ORDER BY id")]

    def files(self, table: str) -> list[Path]:
        return sorted((self.workspace.folder / "lake" / "data").glob(f"*.{table}/*/*.parquet"))


def definitions() -> str:
    columns = {**{n: k.type for n, k in ZOO.items()}, **{n: t for n, (t, _) in GIVEN.items()}}
    nothing = {f"no{n}": k.type for n, k in ZOO.items()}
    return ", ".join(f"{name} {type_}" for name, type_ in {**columns, **nothing}.items())


@pytest.fixture(scope="module")
def synced(
    mariadb: MariaDB, spark: Callable[[], Spark], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Synced]:
    folder, name = tmp_path_factory.mktemp("exactness"), f"t_{secrets.token_hex(4)}"
    mariadb.execute(f"CREATE DATABASE {name} DEFAULT CHARSET=utf8mb4")
    database = Database(mariadb, name)
    config = {"source": {"url": database.url}, "defaults": {"settle_seconds": 0.2}}
    workspace = Workspace(folder, database, config, Floodmark(folder), spark)
    workspace.write(store={"url": "./lake"}, warehouse={"url": "duckdb:///warehouse.duckdb"})
    table = "CREATE TABLE {} (id INT PRIMARY KEY, update_at DATETIME NOT NULL DEFAULT '2025-05-05', {})"
    strict = "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'"
    names = ", ".join(ZOO)
    height = max(len(k.values) for k in ZOO.values()) + 1  # the last row is NULL throughout
    zoo = [[k.values[i] if i < len(k.values) else "NULL" for k in ZOO.values()] for i in range(height)]
    chosen = random.Random(20250505)
    crowd = {
        n: [k.draw(chosen) if chosen.random() < 0.95 else "NULL" for _ in range(ROWS)] for n, k in ZOO.items()
    }
    rows = list(zip(*crowd.values(), strict=True))
    database.execute(
        table.format("zoo", definitions()),
        table.format("crowd", ", ".join(f"{n} {k.type}" for n, k in ZOO.items())),
        strict,
        *(f"INSERT INTO zoo (id, {names}) VALUES ({i}, {', '.join(row)})" for i, row in enumerate(zoo)),
        *(
            f"INSERT INTO crowd (id, {names}) VALUES "
            + ", ".join(f"({i}, {', '.join(rows[i])})" for i in range(first, first + 250))
            for first in range(0, ROWS, 250)
        ),
    )
    report = workspace.sync("zoo", "crowd")
    assert report.ok, report.as_json()
    yield Synced(workspace, crowd)
    mariadb.execute(f"DROP DATABASE {name}")


def packed(form: str, values: list[Any]) -> list[bytes | None]:
    return [None if v is None else struct.pack(form, v) for v in values]


@pytest.mark.parametrize("name", [n for n, k in ZOO.items() if not k.bits])
def test_every_value_arrives_as_mysql_has_it(synced: Synced, name: str) -> None:
    kind = ZOO[name]
    for table in ("zoo", "crowd"):
        expected = synced.source(table, kind.asked.format(c=name))
        assert synced.warehouse(table, kind.told.format(c=name)) == expected
    literals = len(kind.values)
    arrived = synced.warehouse("zoo", kind.told.format(c=name))
    assert None not in arrived[:literals] and set(arrived[literals:]) == {None}


@pytest.mark.parametrize("name", [n for n, k in ZOO.items() if k.bits])
def test_floats_arrive_with_every_bit(synced: Synced, name: str) -> None:
    kind = ZOO[name]
    literals = list(kind.values)
    arrived = synced.warehouse("zoo", name)
    assert packed(kind.bits, arrived[: len(literals)]) == packed(kind.bits, [float(v) for v in literals])
    expected = [None if v == "NULL" else float(v) for v in synced.crowd[name]]
    assert packed(kind.bits, synced.warehouse("crowd", name)) == packed(kind.bits, expected)


@pytest.mark.parametrize("name", list(GIVEN))
def test_generated_and_invisible_columns_arrive_too(synced: Synced, name: str) -> None:
    expected = synced.source("zoo", GIVEN[name][1].format(c=name))
    assert synced.warehouse("zoo", f"CAST({name} AS VARCHAR)") == expected
    assert None not in expected


def test_every_column_has_the_type_of_the_table_of_types(synced: Synced) -> None:
    found = dict(
        synced.workspace.query("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'zoo'")
    )
    expected = {prefix + name: kind.warehouse for name, kind in ZOO.items() for prefix in ("", "no")}
    assert {name: found[name] for name in expected} == expected


def test_null_and_the_words_for_it_stay_apart(synced: Synced) -> None:
    for name in ("c_char", "c_varchar", "c_latin1", "c_utf16", "c_gbk", "c_longtext"):
        got = synced.warehouse("zoo", f"CASE WHEN {name} IS NULL THEN 'is null' ELSE 'text ' || {name} END")
        assert got[:8] == [
            "text ", "text null", "text NULL", "text None", "text NaN", "text nan", "text inf", "text \\N",
        ]  # fmt: skip
        assert got[-1] == "is null"
    blobs = synced.warehouse("zoo", "c_blob")
    assert blobs[:3] == [b"", b"\0", b"\0\0"] and blobs[5] == b"null" and blobs[-1] is None
    assert synced.warehouse("zoo", "c_json")[0] == "null"
    assert synced.warehouse("zoo", "c_enum")[1] == "" and synced.warehouse("zoo", "c_set")[0] == ""


def test_columns_of_nothing_but_null_arrive_as_such(synced: Synced) -> None:
    counts = ", ".join(f"count(noc_{name[2:]})" for name in ZOO)
    assert synced.workspace.query(f"SELECT {counts} FROM zoo") == [(0,) * len(ZOO)]


@pytest.mark.parametrize("table", ["zoo", "crowd"])
def test_geometries_keep_their_srid(synced: Synced, table: str) -> None:
    for name in ("c_point", "c_geometry"):
        arrived = synced.warehouse(table, f"CAST({name}__srid AS VARCHAR)")
        assert arrived == synced.source(table, f"ST_SRID({name})")
        assert {"4326", None} < set(arrived)


# ---------------------------------------------------------------- the files


def described(column: Any) -> str:
    """A Parquet column as `ZOO` writes it."""
    physical, annotation = column.physical_type, column.converted_type
    if physical == "FIXED_LEN_BYTE_ARRAY":
        physical += f"({column.length})"
    if annotation == "DECIMAL":
        annotation += f"({column.precision},{column.scale})"
    return physical if annotation == "NONE" else f"{physical} {annotation}"


def test_files_have_the_types_that_copy_takes_in_the_tables_order(synced: Synced) -> None:
    (file,) = synced.files("zoo")
    schema = pq.ParquetFile(file).schema
    found = {schema.column(i).name: described(schema.column(i)) for i in range(len(schema))}
    expected = {prefix + name: kind.file for name, kind in ZOO.items() for prefix in ("", "no")}
    assert {name: found[name] for name in expected} == expected
    assert found["id"] == "INT32" and found["update_at"] == CLOCK and found["c_point__srid"] == "INT32"
    # By position, so the order counts: the target's, which is MySQL's.
    target = synced.workspace.query(
        "SELECT column_name FROM duckdb_columns() WHERE table_name = 'zoo' ORDER BY column_index"
    )
    mysql = synced.workspace.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'zoo'"
        " ORDER BY ordinal_position"
    )
    columns = [
        name for name in found if not name.startswith("_floodmark_")
    ]  # what only files have comes last
    assert [*found][: len(columns)] == columns
    assert [(name.lower(),) for name in columns] == target
    assert [n for n in columns if not n.endswith("__srid")] == [n for (n,) in mysql]


def test_files_hold_to_the_strict_dialect(synced: Synced) -> None:
    for path in (*synced.files("zoo"), *synced.files("crowd")):
        data, file = path.read_bytes(), pq.ParquetFile(path)
        for i in range(len(file.schema)):
            column = file.schema.column(i)
            # Every column may be NULL and none is nested; instants are UTC in microseconds, wall clocks too.
            assert (column.max_definition_level, column.max_repetition_level) == (1, 0)
            if column.converted_type == "TIMESTAMP_MICROS":
                assert json.loads(column.logical_type.to_json())["isAdjustedToUTC"] is True
        for group in range(file.metadata.num_row_groups):
            for i in range(len(file.schema)):
                chunk = file.metadata.row_group(group).column(i)
                assert set(chunk.encodings) <= {"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}
                assert chunk.compression in ("ZSTD", "SNAPPY", "GZIP", "UNCOMPRESSED")
                # The header of a page begins with its type: 0 is a data page of version 1, 3 one of version 2.
                assert data[chunk.data_page_offset : chunk.data_page_offset + 2] == b"\x15\x00"


# ---------------------------------------------------------------- names

NAMES = [
    "a`b", 'say "hi"', "it's", "two words", " leading", "select", "from", "Order", "MiXeD", "ÄÖ", "深圳", "İstanbul",
    "straße", "dot.ted", "a.b.c", "%s", "%(x)s", "100%", "back\\slash", "semi;--", "/*", "(paren)", "[1]", "{0}", "#", "$1",
    "1e5", "007", "a,b", "=", "?", ":x", "new\nline", "tab\tstop", "null", "true", "s", "t", "k", "l", "o0", "rowid", "place",
    "filename", "file_index", "file_row_number", "_source_filename", "_floodmark_key", "_deleted_at", "x__raw",
]  # fmt: skip


@pytest.mark.parametrize("key", ["INT", "VARCHAR(20)"])
def test_column_names_may_hold_anything(workspace: Workspace, key: str) -> None:
    names = [n for n in NAMES if n != "_floodmark_key" or key == "INT"]
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    workspace.execute(
        f"CREATE TABLE t (`i``d` {key} PRIMARY KEY, `up date` DATETIME NOT NULL, {', '.join(f'{q} INT' for q in quoted)})",
        *(
            f"INSERT INTO t VALUES ({n}, '2025-05-0{n}', {', '.join(str(n * 100 + i) for i in range(len(names)))})"
            for n in (1, 2)
        ),
    )
    workspace.write(tables={f"{workspace.database.name}.t": {"cursor": "up date"}})
    workspace.synced("t")
    # Twice, so that rows are merged by their key and not only inserted.
    workspace.execute(f"UPDATE t SET {quoted[0]} = -1, `up date` = '2025-06-01' WHERE `i``d` = 1")
    workspace.synced("t")
    wanted = ", ".join('"' + target_name(name).replace('"', '""') + '"' for name in names)
    assert workspace.query(f'SELECT {wanted} FROM t ORDER BY "i`d"') == workspace.execute(
        f"SELECT {', '.join(quoted)} FROM t ORDER BY `i``d`"
    )
