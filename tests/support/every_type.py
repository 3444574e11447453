"""Columns of every MySQL type: awkward values, random ones, and how to query each side for them as text.

Expected values come from separate MySQL queries (hex digits, casts) or from the literals, never from the pipeline's
expressions.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from uuid import UUID

Draw = Callable[[random.Random], str]


@dataclass(frozen=True)
class Kind:
    """A column type: its awkward values, a random one, and how to query each side for it as text."""

    type: str
    values: tuple[str, ...]
    warehouse: str  # the type in DuckDB
    file: str  # the physical type and annotation in Parquet
    draw: Draw
    asked: str = "CAST({c} AS CHAR)"
    told: str = "CAST({c} AS VARCHAR)"
    bits: str = ""  # floats only: compared bit by bit with the literals themselves


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
    """Any finite FLOAT, by its bits, except with the largest exponent, whose rounding MySQL refuses."""
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
WKB = "SUBSTR(HEX({c}), 9)"  # as stored, after the SRID: x = longitude on every server
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
    kept = 20 if p == 19 else p  # 19 nines don't fit Redshift's eight bytes
    width = ((10**kept - 1).bit_length() + 8) // 8  # the fewest bytes that hold this precision and a sign
    return Kind(
        f"DECIMAL({p},{s})", values, f"DECIMAL({kept},{s})", f"FIXED_LEN_BYTE_ARRAY({width}) DECIMAL({kept},{s})",
        fraction(p, s), told=POINTED,
    )  # fmt: skip


def point(r: random.Random) -> str:
    """A point anywhere, or on the globe: MySQL refuses a latitude of more than 90 degrees."""
    srid = r.choice([0, 4326, 3857])
    place = (r.uniform(-90, 90), r.uniform(-180, 180)) if srid == 4326 else (r.random(), r.gauss(0, 1e6))
    return f"ST_GeomFromText('POINT({place[0]} {place[1]})', {srid})"


def vector(r: random.Random) -> str:
    return f"STRING_TO_VECTOR('{[r.gauss(0, 1) for _ in range(r.randint(1, 9))]}')"


def datetime_(n: int) -> Kind:
    last = "." + "9" * n if n else ""
    values = (
        "'1000-01-01 00:00:00'", f"'9999-12-31 23:59:59{last}'", "'0001-01-01 00:00:00'", f"'1969-12-31 23:59:59{last}'",
        "'2025-03-30 02:30:00'", "'1582-10-10 12:00:00'", "'0000-01-01 00:00:00'",
    )  # fmt: skip
    return Kind(f"DATETIME({n})", values, "TIMESTAMP", CLOCK, partial(moment, digits=n), TIME_MY, TIME_DUCK)


def timestamp(n: int, first: int = 0) -> Kind:
    """`first`: the earliest second that has fractions: 0 on MariaDB, 1 on MySQL."""
    last = "." + "9" * n if n else ""
    least = f"FROM_UNIXTIME({first}." + "0" * (n - 1) + "1)" if n else "FROM_UNIXTIME(1)"
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


def time_(n: int, end: str = "9") -> Kind:
    """`end`: the last digit of the longest time."""
    last, most = ("." + digit * n if n else "" for digit in ("9", end))
    values = (f"'-838:59:59{most}'", f"'838:59:59{most}'", "'00:00:00'", f"'-00:00:01{last}'")
    return Kind(f"TIME({n})", values, "VARCHAR", UTF8, partial(duration, digits=n))


def chars(type_: str, values: tuple[str, ...], letters: str, most: int = 12) -> Kind:
    asked = "HEX(CONVERT({c} USING utf8mb4))"
    return Kind(type_, values, "VARCHAR", UTF8, words(letters, most), asked, HEX)


def blob(type_: str, values: tuple[str, ...] = BYTES, most: int = 40) -> Kind:
    return Kind(type_, values, "BLOB", BINARY, octets(most), HEX, HEX)


def choice(type_: str, values: tuple[str, ...]) -> Kind:
    asked = "HEX(CONVERT({c} USING utf8mb4))"
    return Kind(type_, values, "VARCHAR", UTF8, lambda r: r.choice(values), asked, HEX)


# What both servers have.
SHARED: dict[str, Kind] = {
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
        (1, 0), (4, 4), (9, 2), (10, 0), (18, 9), (19, 4), (28, 28), (38, 0), (38, 10), (38, 30),
        (39, 0), (65, 0), (65, 30))},
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
    "c_binary": blob("BINARY(16)", ("''", "x'00'", "x'20'", "repeat(x'FF', 16)"), 16),
    "c_varbinary": blob("VARBINARY(200)"),
    "c_tinyblob": blob("TINYBLOB"),
    "c_blob": blob("BLOB", (*BYTES, "repeat(x'00FF', 32767)")),
    "c_mediumblob": blob("MEDIUMBLOB", (*BYTES, "repeat(x'00FF', 100000)")),
    "c_longblob": blob("LONGBLOB", (*BYTES, "repeat(x'00FF', 500000)")),
    "c_point": Kind("POINT", ("ST_GeomFromText('POINT(1 -2.5)', 4326)", "ST_GeomFromText('POINT(1e-300 1e300)')"), "BLOB",
                   BINARY, point, WKB, HEX),
    "c_geometry": Kind("GEOMETRY", ("ST_GeomFromText('POLYGON((0 0,4 0,4 4,0 0),(1 0.5,2 0.5,2 1,1 0.5))', 4326)",
                                   "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1),LINESTRING(0 0,1 1))', 3857)"), "BLOB",
                      BINARY, lambda r: f"ST_GeomFromText('LINESTRING(0 0,{r.random()} 1)', {r.choice([0, 4326])})",
                      WKB, HEX),
}  # fmt: skip
MARIADB: dict[str, Kind] = {
    **{f"c_decimal_{p}_{s}": decimal(p, s) for p, s in ((38, 37), (38, 38), (65, 38))},
    **{f"c_timestamp{n}": timestamp(n) for n in range(7)},
    **{f"c_time{n}": time_(n) for n in (0, 1, 3, 6)},
    "c_json": choice("JSON", ("'null'", "'{}'", "'  [1, 2.50, \"ü😀\"] '", "'1e400'", "'\"\"'", "'{\"b\": 1, \"a\": \"\\\\u0000\"}'")),
    "c_uuid": Kind("UUID", ("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
                  "VARCHAR", UTF8, lambda r: f"'{UUID(int=r.getrandbits(128), version=r.choice([1, 4]))}'", "INSERT(INSERT(INSERT(INSERT(LOWER(HEX({c})), 21, 0, '-'), 17, 0, '-'), 13, 0, '-'), 9, 0, '-')"),
    "c_inet4": Kind("INET4", ("'0.0.0.0'", "'255.255.255.255'"), "VARCHAR", UTF8,
                   lambda r: f"INET_NTOA({r.getrandbits(32)})", "INET_NTOA(CONV(HEX({c}), 16, 10))"),
    "c_inet6": Kind("INET6", ("'::'", "'::1'", "'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'", "'::ffff:1.2.3.4'"), "VARCHAR",
                   UTF8, lambda r: f"INET6_NTOA(x'{r.getrandbits(128):032x}')", "INET6_NTOA(UNHEX(HEX({c})))"),
}  # fmt: skip
MYSQL: dict[str, Kind] = {
    **{f"c_timestamp{n}": timestamp(n, 1) for n in range(7)},
    **{f"c_time{n}": time_(n, "0") for n in (0, 1, 3, 6)},
    "c_gb18030": chars("VARCHAR(40) CHARSET gb18030", UNICODE, GREEK + "😀"),
    "c_0900_as_cs": chars("VARCHAR(40) COLLATE utf8mb4_0900_as_cs", UNICODE, GREEK + "😀"),
    # Stored as parsed: keys ordered by length and bytes, numbers as 64-bit integers, decimals or doubles.
    "c_json": choice("JSON", ("'null'", "'{}'", "'  [1, 2.50, \"ü😀\"] '", "'1.0'", "'\"\"'",
                              "'{\"bb\": 1, \"b\": 1, \"a\": \"\\\\u0001\"}'",
                              "'[18446744073709551615, -9223372036854775808, 123456789012345678901234567890, 1e308, -0.0, 1e-7]'",
                              "JSON_OBJECT('decimal', CAST(1.50 AS DECIMAL(65,30)), 'float', 1.5e0, 'bytes', x'00FF', 'bit', b'101')",
                              "JSON_ARRAY(CAST('2020-01-01 01:02:03.5' AS DATETIME(6)), CAST('-10:11:12.5' AS TIME(1)), DATE'2020-02-29')",
                              "JSON_ARRAY(REPEAT('😀', 15000))")),
    "c_vector": Kind("VECTOR(9)", ("STRING_TO_VECTOR('[1,-2.5,3e38]')", "STRING_TO_VECTOR('[0]')", "x'FFFF7FFF01000080'"), "BLOB", BINARY,
                     vector, HEX, HEX),
}  # fmt: skip
# The columns by the kind of server.
ZOO = {"mysql": {**SHARED, **MYSQL}, "mariadb": {**SHARED, **MARIADB}}
