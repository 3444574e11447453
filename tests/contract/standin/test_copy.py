"""The stand-in's COPY: Parquet alone, by position, of exactly the types that Redshift takes."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from redshift_connector.error import Error as DriverError

from tests.support.standin_sessions import (
    Client,
    Lake,
    column,
    detail,
    ids,
)

UTC_MICROS = pa.timestamp("us", "UTC")
NOON = datetime(2025, 8, 14, 12, 0, 0, 123456, UTC)


def test_every_type_arrives_exactly(client: Client, lake: Lake) -> None:
    client(
        "CREATE TABLE t (a SMALLINT, b INTEGER, c BIGINT, d REAL, e DOUBLE PRECISION, f BOOLEAN, g DECIMAL(38,10), h DATE,"
        " i TIMESTAMP, j TIMESTAMPTZ, k VARCHAR(1020), l VARBYTE(16), m VARCHAR(65535), n CHAR(3))"
    )
    text = "😀" * 255
    rows = pa.table(
        {
            "a": pa.array([-32768, None], pa.int16()),
            "b": pa.array([2**31 - 1, None], pa.int32()),
            "c": pa.array([-(2**63), None], pa.int64()),
            "d": pa.array([1.5, None], pa.float32()),
            "e": pa.array([0.1, None], pa.float64()),
            "f": pa.array([True, None]),
            "g": pa.array([Decimal("9999999999999999999999999999.0123456789"), None], pa.decimal128(38, 10)),
            "h": pa.array([date(1000, 1, 1), None], pa.date32()),
            "i": pa.array([NOON, None], UTC_MICROS),
            "j": pa.array([NOON, None], UTC_MICROS),
            "k": pa.array([text, None]),
            "l": pa.array([b"\x00\xff\\\n", None], pa.binary()),
            "m": pa.array(["tab\t newline\n return\r back\\slash \\N \\. 'quote'", None]),
            "n": pa.array(["ab", None]),
        }
    )
    client("SET timezone TO 'Asia/Shanghai'")
    client(lake.copy("t", rows))
    (first, second) = client("SELECT * FROM t ORDER BY a")
    assert first == [
        -32768, 2**31 - 1, -(2**63), 1.5, 0.1, True, Decimal("9999999999999999999999999999.0123456789"),
        date(1000, 1, 1), NOON.replace(tzinfo=None), NOON, text, "00ff5c0a",
        "tab\t newline\n return\r back\\slash \\N \\. 'quote'", "ab ",
    ]  # fmt: skip
    assert second == [None] * 14


def test_copy_says_what_it_loaded_and_is_undone_by_a_rollback(client: Client, lake: Lake) -> None:
    client("CREATE TABLE t (c BIGINT)")
    client.link.commit()
    assert client("SELECT pg_last_copy_count(), pg_last_copy_id()") == [[0, -1]]
    copy = lake.copy("t", ids(1, 2), ids(3))
    cursor = client.link.cursor()
    cursor.execute(copy)
    assert cursor.rowcount == -1
    assert client.link.notices[-1][b"M"] == b"Load into table 't' completed, 3 record(s) loaded successfully."
    ((count, query),) = client("SELECT pg_last_copy_count(), pg_last_copy_id()")
    assert count == 3 and client("SELECT count(*) FROM t") == [[3]]
    client.link.rollback()
    assert client("SELECT count(*) FROM t") == [[0]]
    assert client("SELECT pg_last_copy_count(), pg_last_copy_id()") == [[3, -1]]
    client.link.rollback()
    assert client(
        f"SELECT trim(query_type), trim(status) FROM sys_query_history WHERE query_id = {query}"
    ) == [["COPY", "success"]]
    assert len(client(f"SELECT * FROM stl_load_commits WHERE query = {query}")) == 2


def test_a_file_that_is_listed_twice_is_loaded_twice(client: Client, lake: Lake) -> None:
    client("CREATE TABLE t (c BIGINT)")
    file = lake.put(ids(7))
    client(lake.of("t", lake.manifest(file, file)))
    assert client("SELECT c FROM t") == [[7], [7]]


def test_a_second_copy_after_a_failed_one_is_refused_until_the_transaction_ends(
    client: Client, lake: Lake
) -> None:
    client("CREATE TABLE t (c BIGINT)")
    with pytest.raises(DriverError, match="Spectrum"):
        client(lake.copy("t", column(pa.int32(), 1)))
    with pytest.raises(DriverError, match="25P02"):
        client(lake.copy("t", ids(1)))
    client.link.commit()  # answered by ROLLBACK, and the driver does not look
    assert client.refused("SELECT * FROM t")["C"] == "42P01"


def test_columns_match_by_position_and_their_number_must_be_the_same(client: Client, lake: Lake) -> None:
    client("CREATE TABLE t (a BIGINT, b BIGINT)")
    client.link.commit()
    swapped = pa.table({"b": pa.array([1]), "a": pa.array([2])})
    client(lake.copy("t", swapped))
    assert client("SELECT a, b FROM t") == [[1, 2]]
    client(lake.copy("t (b, a)", swapped))
    client.link.commit()
    error = detail(client.refused(lake.copy("t", ids(1))))
    assert "code:      15007" in error
    assert "Unmatched number of columns between table and file. Table columns: 2, Data columns: 1" in error
    client(lake.copy("t", ids(9), options="FILLRECORD"))
    assert client("SELECT a, b FROM t ORDER BY a") == [[1, 2], [2, 1], [9, None]]


WRONG = [
    ("SMALLINT", pa.int32()), ("INTEGER", pa.int16()), ("INTEGER", pa.int64()), ("BIGINT", pa.int32()),
    ("SMALLINT", pa.uint8()), ("INTEGER", pa.uint16()), ("BIGINT", pa.uint32()), ("BIGINT", pa.uint64()),
    ("REAL", pa.float64()), ("DOUBLE PRECISION", pa.float32()),
    ("DECIMAL(10,2)", pa.float64()), ("DATE", UTC_MICROS), ("TIMESTAMP", pa.date32()),
    ("TIMESTAMP", pa.timestamp("us")), ("TIMESTAMPTZ", pa.timestamp("ms")), ("TIMESTAMP", pa.timestamp("ns", "UTC")),
    ("VARCHAR(10)", pa.binary()), ("VARBYTE", pa.string()), ("VARBYTE(4)", pa.binary(4)),
    ("TIME", pa.time64("us")), ("VARCHAR(10)", pa.null()), ("VARCHAR(10)", pa.list_(pa.string())), ("BOOLEAN", pa.int8()),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "arrow"), WRONG, ids=lambda value: str(value))
def test_a_file_of_another_type_is_refused(client: Client, lake: Lake, kind: str, arrow: pa.DataType) -> None:
    client(f"CREATE TEMP TABLE t (c {kind})")
    error = detail(client.refused(lake.copy("t", column(arrow, None))))
    assert "code:      15007" in error
    assert "has an incompatible Parquet schema for column" in error
    assert f"Column type: {kind.split('(')[0].removesuffix('TZ')}" in error.replace(" WITH TIME ZONE", "")


def test_timestamps_may_be_int96_or_milliseconds_of_utc(client: Client, lake: Lake) -> None:
    client("CREATE TEMP TABLE t (c TIMESTAMP)")
    client(
        lake.copy(
            "t", column(pa.timestamp("us"), NOON.replace(tzinfo=None)), use_deprecated_int96_timestamps=True
        )
    )
    client(lake.copy("t", column(pa.timestamp("ms", "UTC"), NOON.replace(microsecond=123000))))
    assert client("SELECT c FROM t ORDER BY c") == [
        [NOON.replace(tzinfo=None, microsecond=123000)],
        [NOON.replace(tzinfo=None)],
    ]


def test_decimals_need_the_same_digits_and_the_fewest_bytes(client: Client, lake: Lake) -> None:
    client("CREATE TABLE t (c DECIMAL(18,9))")
    client.link.commit()
    value = Decimal("123456789.123456789")
    client(lake.copy("t", column(pa.decimal128(18, 9), value)))
    client(lake.copy("t", column(pa.decimal128(18, 9), value), store_decimal_as_integer=True))
    assert client("SELECT c FROM t") == [[value], [value]]
    client.link.rollback()
    assert "Table metadata precision: 18" in detail(
        client.refused(lake.copy("t", column(pa.decimal128(19, 9), 1)))
    )
    assert "Table metadata scale: 9" in detail(
        client.refused(lake.copy("t", column(pa.decimal128(18, 8), 1)))
    )


def test_text_is_measured_in_bytes(client: Client, lake: Lake) -> None:
    client("CREATE TABLE t (c VARCHAR(5), d VARBYTE(2), e DECIMAL(19,0), f CHAR(2))")
    client.link.commit()
    file = pa.table({"c": ["ééé"]})
    error = detail(client.refused(lake.copy("t (c)", file)))
    words = (
        "The length of the data column c is longer than the length defined in the table. Table: 5, Data: 6"
    )
    assert words in error and "code:      15001" in error
    refused = client.refused("INSERT INTO t (c) VALUES ('ééé')")
    assert (refused["C"], refused["M"]) == ("22001", "value too long for type character varying(5)")
    assert client.refused("INSERT INTO t (c) SELECT 'abcdef'")["C"] == "22001"
    assert client.refused("INSERT INTO t (f) VALUES ('éé')")["C"] == "22001"
    assert "VARBYTE" in str(client.refused(lake.copy("t (d)", column(pa.string(), "abc"))))
    assert "Table: 2, Data: 3" in detail(client.refused(lake.copy("t (d)", column(pa.binary(), b"abc"))))
    assert client.refused("INSERT INTO t (e) VALUES (9223372036854775808)")["M"] == "Numeric data overflow"
    client("INSERT INTO t VALUES ('éé', 'ab', 9223372036854775807, 'ab')")
    assert client("SELECT * FROM t") == [["éé", "6162", Decimal(9223372036854775807), "ab"]]


def test_null_in_a_column_that_is_not_null_is_a_load_error_that_outlives_the_rollback(
    client: Client, lake: Lake
) -> None:
    client("CREATE TABLE t (c BIGINT NOT NULL)")
    client.link.commit()
    assert client.refused(lake.copy("t", ids(1), column(pa.int64(), 1, None)))["M"].startswith(
        "Cannot insert a NULL"
    )
    ((name, line, code),) = client(
        "SELECT trim(column_name), line_number, error_code FROM sys_load_error_detail WHERE session_id = pg_backend_pid()"
    )
    assert (name, line, code) == ("c", 2, 1213)
    assert client("SELECT trim(colname) FROM stl_load_errors WHERE session = pg_backend_pid()") == [["c"]]
    assert client("SELECT count(*) FROM t") == [[0]]


def test_json_arrives_as_a_string_in_super_and_json_parse_makes_it_one(client: Client, lake: Lake) -> None:
    client("CREATE TABLE t (c SUPER)")
    client.link.commit()
    text = '{"b": [1, 2.50, "x y"], "a": null}'
    copy = lake.copy("t", column(pa.string(), text, None))
    assert client.refused(copy)["M"] == "SUPER column in COPY query requires SERIALIZETOJSON option"
    client(f"{copy} SERIALIZETOJSON")
    assert client("SELECT json_typeof(c), c::varchar FROM t WHERE c IS NOT NULL") == [["string", text]]
    client("CREATE TABLE u AS SELECT JSON_PARSE(c) AS c FROM t")
    assert client("SELECT c, JSON_SERIALIZE(c), JSON_TYPEOF(c) FROM u WHERE c IS NOT NULL") == [
        ['{"a":null,"b":[1,2.50,"x y"]}', '{"a":null,"b":[1,2.50,"x y"]}', "object"]
    ]
    assert client.refused("SELECT JSON_PARSE('{')")["C"] == "XX000"
    client(lake.copy("t", column(pa.list_(pa.int64()), [1, 2]), options="SERIALIZETOJSON"))
    assert client("SELECT c FROM t WHERE json_typeof(c) = 'array'") == [["[1,2]"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("REGION 'us-east-1'", "REGION argument is not supported for PARQUET based COPY"),
        ("COMPUPDATE OFF", "COMPUPDATE argument is not supported for PARQUET based COPY"),
        ("TRUNCATECOLUMNS", "TRUNCATECOLUMNS argument is not supported for PARQUET based COPY"),
        ("MAXERROR 5", "MAXERROR argument is not supported for PARQUET based COPY"),
        ("GZIP", "GZIP argument is not supported for PARQUET based COPY"),
        ("NULL AS 'x'", "NULL argument is not supported for PARQUET based COPY"),
        ("WHATEVER", 'syntax error at or near "WHATEVER"'),
    ],
)
def test_options_that_parquet_does_not_support_are_refused(
    client: Client, lake: Lake, options: str, message: str
) -> None:
    client("CREATE TEMP TABLE t (c BIGINT)")
    assert client.refused(lake.copy("t", ids(1), options=options))["M"] == message


def test_options_that_parquet_supports_are_accepted(client: Client, lake: Lake) -> None:
    client("CREATE TEMP TABLE t (c BIGINT)")
    options = "STATUPDATE OFF SERIALIZETOJSON ACCEPTINVCHARS AS '?' EXPLICIT_IDS FILLRECORD MAXERROR 0"
    client(lake.copy("t", ids(1), options=options))
    manifest = lake.manifest(lake.put(ids(2)))
    client(f"copy t from '{manifest}' format parquet manifest iam_role default")
    assert client("SELECT c FROM t ORDER BY c") == [[1], [2]]
    assert "IAM" in client.refused(f"COPY t FROM '{manifest}' MANIFEST FORMAT AS PARQUET")["M"]


def test_a_manifest_must_be_right_in_every_entry(client: Client, lake: Lake) -> None:
    client("CREATE TABLE t (c BIGINT)")
    client.link.commit()
    url, size = lake.put(ids(1))

    def refused(*entries: Any) -> str:
        error = client.refused(lake.of("t", lake.manifest(*entries)))
        return error["M"] + error["D"]

    assert "File entry does not have 'meta' key." in refused({"url": url, "mandatory": True})
    assert "416" in refused((url, size - 1))
    assert "416" in refused((url, size + 1))
    missing = f"{url}.nowhere"
    assert "Mandatory url is not present" in refused((url, size), (missing, 1))
    optional = {"url": missing, "meta": {"content_length": 1}}
    client(lake.of("t", lake.manifest((url, size), optional)))
    client.link.commit()
    assert "does not exist" in refused(optional)
    assert "full path of an S3 object" in client.refused(lake.of("t", "s3://lake/nowhere.manifest"))["M"]
    assert "S3ServiceException" in client.refused(lake.of("t", "s3://no-such-bucket/x.manifest"))["M"]
    assert client("SELECT c FROM t") == [[1]]


def test_anything_but_plain_parquet_is_refused(client: Client, lake: Lake) -> None:
    client("CREATE TABLE t (c BIGINT)")
    client.link.commit()
    file = lake.put(b"PAR1 this is no Parquet file at all PAR2")
    assert "invalid version number" in detail(client.refused(lake.of("t", lake.manifest(file))))
    assert "BROTLI" in detail(client.refused(lake.copy("t", ids(1), compression="brotli")))
    delta: dict[str, Any] = {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}
    assert "DELTA_BINARY_PACKED" in detail(client.refused(lake.copy("t", ids(1), **delta)))
    for codec in ("snappy", "zstd", "gzip", "none"):
        client(lake.copy("t", ids(1), compression=codec))


def test_a_role_is_an_arn_a_chain_without_spaces_or_the_keyword(client: Client, lake: Lake) -> None:
    client("CREATE TABLE t (c BIGINT)")
    client.link.commit()
    copy = lake.copy("t", ids(1))
    for role in (
        "default",
        "floodmark",
        f"{lake.role}, {lake.role}",
        f" {lake.role}",
        "arn:aws:iam::1:role/x",
    ):
        error = client.refused(copy.replace(lake.role, role))
        assert error["C"] == "XX000" and error["M"].startswith(
            "Invalid credentials. Must be of the format"
        ), role
    for role in (f"'{lake.role},{lake.role}'", "default", "DEFAULT"):
        client(copy.replace(f"'{lake.role}'", role))
    assert client("SELECT count(*) FROM t") == [[3]]
