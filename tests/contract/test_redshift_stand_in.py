"""The stand-in for Redshift, through the real driver: as strict as the facts say, and as faulty as it is told to be."""

from __future__ import annotations

import io
import json
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redshift_connector

from floodmark.store import Store, StoreSpec
from floodmark.testing.redshift import RedshiftStandIn
from floodmark.testing.redshift.postgres import program
from floodmark.testing.services import SeaweedFS

UTC_MICROS = pa.timestamp("us", "UTC")
NOON = datetime(2025, 8, 14, 12, 0, 0, 123456, UTC)


@pytest.fixture(autouse=True)
def no_faults(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "redshift" in request.fixturenames:
        request.getfixturevalue("redshift").faults.clear()


@dataclass
class Client:
    """A session of the real driver, in a schema of its own."""

    link: Any
    schema: str

    def __call__(self, sql: str, *values: object) -> list[list[Any]]:
        cursor = self.link.cursor()
        cursor.execute(sql, values or None)
        return [list(row) for row in cursor.fetchall()] if cursor.description else []

    def refused(self, sql: str) -> dict[str, str]:
        """The error of a statement that must fail; the transaction is rolled back."""
        with pytest.raises(redshift_connector.Error) as caught:
            self(sql)
        self.link.rollback()
        return dict(caught.value.args[0])


Connect = Callable[..., Client]


@pytest.fixture
def connect(redshift: RedshiftStandIn) -> Iterator[Connect]:
    schema = f"s_{secrets.token_hex(4)}"
    redshift.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {redshift.user}")
    links = []

    def connect(autocommit: bool = False, **options: Any) -> Client:
        link = redshift_connector.connect(**redshift.options(**options))
        links.append(link)
        link.autocommit = True
        client = Client(link, schema)
        client(f"SET search_path TO {schema}")
        link.autocommit = autocommit
        return client

    yield connect
    redshift.faults.clear()
    for link in links:
        with suppress(Exception):
            link.close()


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


@dataclass
class Lake:
    """Files on the S3 server, and COPYs of them."""

    store: Store
    role: str

    def put(self, table: pa.Table | bytes, name: str = "", **options: Any) -> tuple[str, int]:
        """A Parquet file: its url and size."""
        if isinstance(table, pa.Table):
            buffer = io.BytesIO()
            pq.write_table(table, buffer, **options)
            table = buffer.getvalue()
        path = f"{name or secrets.token_hex(4)}.parquet"
        self.store.put(path, table)
        return self.store.uri(path), len(table)

    def manifest(self, *entries: dict[str, Any] | tuple[str, int]) -> str:
        listed = [
            e if isinstance(e, dict) else {"url": e[0], "mandatory": True, "meta": {"content_length": e[1]}}
            for e in entries
        ]
        path = f"{secrets.token_hex(4)}.manifest"
        self.store.put(path, json.dumps({"entries": listed}).encode())
        return self.store.uri(path)

    def copy(self, target: str, *tables: pa.Table, options: str = "", **write: Any) -> str:
        """The statement that loads some tables."""
        return self.of(target, self.manifest(*(self.put(table, **write) for table in tables)), options)

    def of(self, target: str, manifest: str, options: str = "") -> str:
        return f"COPY {target} FROM '{manifest}' IAM_ROLE '{self.role}' MANIFEST FORMAT AS PARQUET {options}"


@pytest.fixture
def lake(seaweed: SeaweedFS, prefix: str, redshift: RedshiftStandIn) -> Lake:
    return Lake(Store(StoreSpec(**seaweed.store(prefix))), redshift.role)


def column(kind: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"c": pa.array(values, kind)})


def ids(*values: int) -> pa.Table:
    return column(pa.int64(), *values)


def detail(error: dict[str, str]) -> str:
    assert (error["C"], error["M"]) == ("XX000", "Spectrum Scan Error")
    return error["D"]


# ---------------------------------------------------------------- COPY


def test_every_type_arrives_exactly(client: Client, lake: Lake, redshift: RedshiftStandIn) -> None:
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
    client.link.commit()
    assert redshift.execute(f"SELECT l FROM {client.schema}.t WHERE a IS NOT NULL") == [(b"\x00\xff\\\n",)]


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
    with pytest.raises(redshift_connector.Error, match="Spectrum"):
        client(lake.copy("t", column(pa.int32(), 1)))
    with pytest.raises(redshift_connector.Error, match="25P02"):
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
def test_options_that_parquet_does_not_take_are_refused(
    client: Client, lake: Lake, options: str, message: str
) -> None:
    client("CREATE TEMP TABLE t (c BIGINT)")
    assert client.refused(lake.copy("t", ids(1), options=options))["M"] == message


def test_options_that_parquet_takes_are_taken(client: Client, lake: Lake) -> None:
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


def test_what_is_not_plain_parquet_is_refused(client: Client, lake: Lake) -> None:
    client("CREATE TABLE t (c BIGINT)")
    client.link.commit()
    file = lake.put(b"PAR1 this is no Parquet file at all PAR2")
    assert "invalid version number" in detail(client.refused(lake.of("t", lake.manifest(file))))
    assert "BROTLI" in detail(client.refused(lake.copy("t", ids(1), compression="brotli")))
    delta = {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}
    assert "DELTA_BINARY_PACKED" in detail(client.refused(lake.copy("t", ids(1), **delta)))
    for codec in ("snappy", "zstd", "gzip", "none"):
        client(lake.copy("t", ids(1), compression=codec))


# ---------------------------------------------------------------- DDL


def test_keys_are_told_and_not_enforced_but_not_null_is(client: Client) -> None:
    client(
        "CREATE TABLE IF NOT EXISTS t (id BIGINT NOT NULL IDENTITY(1,1), a INT ENCODE az64 UNIQUE, b VARCHAR(MAX) DEFAULT 'x',"
        " PRIMARY KEY (a), FOREIGN KEY (b) REFERENCES other (b)) BACKUP NO DISTSTYLE KEY DISTKEY (a) COMPOUND SORTKEY (a, b)"
    )
    client("INSERT INTO t (a) VALUES (1), (1)")
    assert client("SELECT a, b FROM t") == [[1, "x"], [1, "x"]]
    refused = client.refused("INSERT INTO t (a) VALUES (NULL)")
    assert refused["M"] == "Cannot insert a NULL value into column a"


def test_names_fold_to_lower_case_and_have_127_bytes(client: Client) -> None:
    long = "x" * 120 + "ÄÖÜäöü"
    client(f'CREATE TABLE "T1" ("ID" BIGINT, "{long}" BIGINT, "order" INT)')
    client(f'INSERT INTO t1 (id, "{long}") VALUES (1, 2)')
    cursor = client.link.cursor()
    cursor.execute(f'SELECT "Id", "{long}", "ORDER" FROM "t1"')
    cut = long.encode()[:127].decode(errors="ignore")
    assert [c[0] for c in cursor.description] == ["id", cut, "order"]
    found = client(
        f"SELECT column_name FROM svv_columns WHERE table_schema = '{client.schema}' ORDER BY ordinal_position"
    )
    assert found == [["id"], [cut], ["order"]]
    table = "y" * 100
    client(f"CREATE TABLE {table} (a INT)")
    assert client(f"SELECT relname FROM pg_class WHERE relname = '{table}'") == [[table]]
    assert client.refused("CREATE TABLE u (tag INT)")["M"] == 'syntax error at or near "tag"'
    assert client.refused('CREATE TABLE u (a INT, "A" INT)')["C"] == "42701"


def test_columns_are_described_in_redshifts_words(client: Client) -> None:
    client(
        "CREATE TABLE t (a TEXT, b VARCHAR(20) NOT NULL, c CHAR(3), d DECIMAL(19,2), e DECIMAL, f SUPER, g VARBYTE(9),"
        " h TIMESTAMP, i TIMESTAMPTZ, j DOUBLE PRECISION, k VARBYTE, l FLOAT4)"
    )
    found = client(
        "SELECT column_name, data_type, character_maximum_length, numeric_precision, numeric_scale, is_nullable "
        f"FROM svv_columns WHERE table_schema = '{client.schema}' AND table_name = 't' ORDER BY ordinal_position"
    )
    assert found == [
        ["a", "character varying", 256, None, None, "YES"],
        ["b", "character varying", 20, None, None, "NO"],
        ["c", "character", 3, None, None, "YES"],
        ["d", "numeric", None, 19, 2, "YES"],
        ["e", "numeric", None, 18, 0, "YES"],
        ["f", "super", None, None, None, "YES"],
        ["g", "binary varying", 9, None, None, "YES"],
        ["h", "timestamp without time zone", None, None, None, "YES"],
        ["i", "timestamp with time zone", None, None, None, "YES"],
        ["j", "double precision", None, None, None, "YES"],
        ["k", "binary varying", 64000, None, None, "YES"],
        ["l", "real", None, None, None, "YES"],
    ]
    client("CREATE TEMP TABLE u (LIKE t INCLUDING DEFAULTS)")
    assert client.refused("INSERT INTO u (b) VALUES ('éééééééééééé')")["C"] == "22001"


def test_a_varchar_grows_only_outside_of_a_transaction(connect: Connect) -> None:
    inside, outside = connect(), connect(autocommit=True)
    outside("CREATE TABLE t (a VARCHAR(10), b VARCHAR(10) PRIMARY KEY, c VARCHAR(10) DEFAULT 'x', d INT)")
    words = "ALTER TABLE ALTER COLUMN cannot run inside a transaction block"
    assert inside.refused("ALTER TABLE t ALTER COLUMN a TYPE VARCHAR(20)")["M"] == words
    outside("ALTER TABLE t ALTER COLUMN a TYPE VARCHAR(20)")
    same = outside.refused("ALTER TABLE t ALTER COLUMN a TYPE VARCHAR(20)")
    assert same["C"] == "0A000" and "target column size should be different" in same["M"]
    outside("INSERT INTO t (a, b) VALUES ('éééééééééé', 'b')")
    assert "smaller" in outside.refused("ALTER TABLE t ALTER COLUMN a TYPE VARCHAR(19)")["M"]
    for column in ("b TYPE VARCHAR(20)", "c TYPE VARCHAR(20)", "d TYPE BIGINT", "a TYPE VARBYTE(30)"):
        assert outside.refused(f"ALTER TABLE t ALTER COLUMN {column}")["C"] == "0A000"


def test_a_column_is_added_one_at_a_time_and_keys_stay(client: Client) -> None:
    client("CREATE TABLE t (a INT) DISTKEY (a)")
    client.link.commit()
    client("ALTER TABLE t ADD COLUMN b VARCHAR(3) DEFAULT 'x' NOT NULL")
    client("ALTER TABLE t ADD c SUPER")
    client("ALTER TABLE t RENAME COLUMN b TO bb")
    client("INSERT INTO t (a) VALUES (1)")
    client("ALTER TABLE t DROP COLUMN c")
    assert client("SELECT * FROM t") == [[1, "x"]]
    client.link.commit()
    for change in (
        "ADD COLUMN d INT, ADD COLUMN e INT", "ADD COLUMN d INT NOT NULL", "ADD COLUMN d INT UNIQUE",
        "ADD COLUMN IF NOT EXISTS d INT", "DROP COLUMN a", "ALTER COLUMN bb DROP NOT NULL", "ALTER COLUMN bb SET DEFAULT 'y'",
        "SET SCHEMA public", "ADD COLUMN d INT DISTKEY",
    ):  # fmt: skip
        assert client.refused(f"ALTER TABLE t {change}")["C"] in ("42601", "0A000"), change


def test_ddl_is_part_of_the_transaction(client: Client) -> None:
    client("CREATE TABLE t (a INT)")
    client("ALTER TABLE t RENAME TO u")
    client.link.rollback()
    assert client(f"SELECT count(*) FROM svv_tables WHERE table_schema = '{client.schema}'") == [[0]]


def test_truncate_commits_what_came_before_it(client: Client) -> None:
    client("CREATE TABLE t (a INT)")
    client("CREATE TABLE other (a INT)")
    client("INSERT INTO t VALUES (1)")
    client("INSERT INTO other VALUES (1)")
    client("TRUNCATE t")
    assert not client.link.in_transaction
    client.link.rollback()
    assert client("SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM other)") == [[0, 1]]


REFUSED = [
    "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", "INSERT INTO t VALUES (1) RETURNING a", "CREATE INDEX i ON t (a)",
    "CREATE TABLE u (a SERIAL)", "CREATE TABLE u (a INT[])", "CREATE TABLE u (a JSONB)", "CREATE TABLE u (a BYTEA)",
    "CREATE TABLE u (a UUID)", "CREATE TABLE u (a INT CHECK (a > 0))", "CREATE TABLE u (a TIMESTAMP(3))",
    "CREATE TABLE u (a DECIMAL(39,0))", "CREATE TABLE u (a VARCHAR(65536))", "CREATE TABLE u (a INT) DISTKEY (b)",
    "CREATE TABLE u (a SUPER) SORTKEY (a)", "CREATE TEMP TABLE u (a INT) ON COMMIT DROP", "CREATE UNLOGGED TABLE u (a INT)",
    "SELECT * FROM t FOR UPDATE", "SELECT DISTINCT ON (a) a FROM t", "SELECT * FROM (VALUES (1)) AS v", "SAVEPOINT s",
    "SELECT * FROM t WHERE a IS DISTINCT FROM 1", "SELECT string_agg(a, ',') FROM t", "SELECT '1'::jsonb",
    "SELECT ARRAY[1]", "LOCK TABLE t IN SHARE MODE", "LOCK TABLE t NOWAIT", "SELECT pg_advisory_lock(1)",
    "SET lock_timeout TO 100", "SET default_transaction_isolation TO 'read committed'", "DO $$ BEGIN END $$",
    "SELECT sum(a) OVER (ORDER BY a) FROM t", "SELECT count(*) FILTER (WHERE a = 1) FROM t", "COPY t FROM STDIN",
    "INSERT INTO t SELECT generate_series(1, 3)", "TRUNCATE t, u", "SELECT 1; SELECT 2", "DELETE FROM t WHERE ctid[0] = 1",
    "MERGE INTO t AS x USING t AS s ON x.a = s.a WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (1)",
    "MERGE INTO t USING t AS s ON t.a = s.a WHEN MATCHED THEN DELETE",
]  # fmt: skip


def test_what_only_postgresql_would_take_is_refused(client: Client) -> None:
    client("CREATE TABLE t (a INT)")
    client.link.commit()
    codes = {sql: client.refused(sql)["C"] for sql in REFUSED}
    wrong = {
        sql: code
        for sql, code in codes.items()
        if code not in ("42601", "0A000", "42704", "42883", "22023", "42703")
    }
    assert not wrong
    assert client("SELECT count(*) FROM t") == [[0]]


def test_backslashes_escape_in_literals(client: Client) -> None:
    assert client(r"SELECT 'a\\b', 'it\'s', 'c\nd'") == [["a\\b", "it's", "c\nd"]]
    assert client("SELECT %s", "a\\b'c") == [["a\\b'c"]]


def test_merge_says_what_redshift_says(client: Client) -> None:
    client("CREATE TABLE t (a INT, b INT)")
    client("CREATE TABLE s (a INT, b INT)")
    client("INSERT INTO t VALUES (1, 1)")
    client("INSERT INTO s VALUES (1, 2), (2, 2)")
    client.link.commit()
    merge = (
        "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN UPDATE SET b = s.b "
        "WHEN NOT MATCHED THEN INSERT VALUES (s.a, s.b)"
    )
    client(merge)
    assert client("SELECT * FROM t ORDER BY a") == [[1, 2], [2, 2]]
    client("INSERT INTO s VALUES (1, 3)")
    assert client.refused(merge)["M"] == "Found multiple matches to update the same tuple."
    client("MERGE INTO t USING s ON t.a = s.a REMOVE DUPLICATES")
    assert client("SELECT * FROM t ORDER BY a") == [[1, 2], [2, 2]]
    client("ALTER TABLE s ADD COLUMN c INT")
    words = "Target relation and source relation must have the same number of columns"
    assert client.refused("MERGE INTO t USING s ON t.a = s.a REMOVE DUPLICATES")["M"] == words


def test_bytes_settings_and_functions_behave(client: Client) -> None:
    client("CREATE TABLE t (a VARBYTE(4))")
    client("INSERT INTO t VALUES (%s)", b"\x00\x01")
    client("INSERT INTO t VALUES (from_hex('ff'))")
    assert client("SELECT a, from_varbyte(a, 'hex') FROM t ORDER BY a") == [["0001", "0001"], ["ff", "ff"]]
    client("SET query_group TO 'load of t'")
    assert client("SHOW query_group") == [["load of t"]]
    ((now, sysdate, version),) = client("SELECT GETDATE(), SYSDATE, version()")
    assert abs((now - sysdate).total_seconds()) < 60 and "8.0.2" in version and "Redshift" in version
    assert client("SELECT NVL(NULL, 1), LEN('é'), DATEADD(day, 1, '2025-01-01'::timestamp)") == [
        [1, 1, datetime(2025, 1, 2)]
    ]
    found = client(
        "SELECT trim(query_label), trim(query_text) FROM sys_query_history WHERE session_id = pg_backend_pid()"
    )
    assert ["load of t", "SELECT GETDATE(), SYSDATE, version()"] in found


# ---------------------------------------------------------------- transactions


def test_snapshot_isolation_lets_both_loaders_in_unless_they_lock_first(connect: Connect) -> None:
    one, two = connect(), connect()
    one("CREATE TABLE ledger (n INT)")
    one.link.commit()
    assert one("SELECT trim(isolation_level) FROM stv_db_isolation_level") == [["Snapshot Isolation"]]
    one.link.rollback()
    two("BEGIN ISOLATION LEVEL SERIALIZABLE")  # accepted and ignored
    assert one("SELECT count(*) FROM ledger") == two("SELECT count(*) FROM ledger") == [[0]]
    one("INSERT INTO ledger VALUES (1)")
    waiting = threading.Thread(target=lambda: two("INSERT INTO ledger VALUES (1)"))
    waiting.start()  # one writer to a table at a time
    time.sleep(0.2)
    assert waiting.is_alive()
    one.link.commit()
    waiting.join(5)
    two.link.commit()
    assert one("SELECT count(*) FROM ledger") == [[2]]
    one.link.rollback()

    seen = []
    one("LOCK ledger")

    def second() -> None:
        two("LOCK ledger")
        seen.extend(two("SELECT count(*) FROM ledger"))
        two.link.commit()

    waiting = threading.Thread(target=second)
    waiting.start()
    time.sleep(0.2)
    one("INSERT INTO ledger VALUES (2)")
    one.link.commit()
    waiting.join(5)
    assert seen == [[3]]


def test_two_writers_of_one_row_get_1023(connect: Connect) -> None:
    one, two = connect(), connect()
    one("CREATE TABLE t (a INT)")
    one("INSERT INTO t VALUES (1)")
    one.link.commit()
    two("SELECT * FROM t")
    one("UPDATE t SET a = 2")
    one.link.commit()
    error = two.refused("UPDATE t SET a = 3")
    assert (error["C"], error["M"]) == ("XX000", "1023")
    assert error["D"].startswith("Serializable isolation violation on table - ")


def test_serializable_isolation_ends_one_of_two_in_a_cycle(seaweed: SeaweedFS) -> None:
    with RedshiftStandIn(seaweed, isolation="serializable") as server:
        one, two = (Client(redshift_connector.connect(**server.options()), "public") for _ in range(2))
        one("CREATE TABLE ledger (n INT)")
        one.link.commit()
        assert one("SELECT trim(isolation_level) FROM stv_db_isolation_level") == [["Serializable"]]
        one.link.commit()
        for loader in (one, two):
            assert loader("SELECT count(*) FROM ledger") == [[0]]
        one("INSERT INTO ledger VALUES (1)")
        one.link.commit()
        with pytest.raises(redshift_connector.Error, match="'M': '1023'"):
            two("INSERT INTO ledger VALUES (1)")
            two.link.commit()
        assert server.execute("SELECT count(*) FROM ledger") == [(1,)]


def test_a_session_that_holds_a_lock_is_seen_and_ended(connect: Connect) -> None:
    holder, waiter, third = connect(), connect(), connect(autocommit=True)
    holder("CREATE TABLE t (a INT)")
    holder.link.commit()
    holder("LOCK t")
    ((pid,),) = holder("SELECT pg_backend_pid()")
    waiter("SET statement_timeout TO 300")
    error = waiter.refused("LOCK t")
    assert error["C"] == "57014" and error["M"].endswith("canceled on user's request")
    found = third(
        "SELECT pid, txn_owner, lock_mode FROM svv_transactions WHERE granted AND relation = 't'::regclass"
    )
    assert found == [[pid, "awsuser", "AccessExclusiveLock"]]
    assert third(f"SELECT pg_terminate_backend({pid})") == [[True]]
    waiter("LOCK t")
    with pytest.raises(redshift_connector.InterfaceError, match="server socket closed"):
        holder("SELECT 1")


def test_an_ordinary_user_sees_his_own(redshift: RedshiftStandIn, connect: Connect) -> None:
    master = connect(autocommit=True)
    redshift.create_user("loader", "Loader-1", f"CREATE, USAGE ON SCHEMA {master.schema}")
    loader = connect(user="loader", password="Loader-1")
    master("CREATE TABLE t (a INT)")
    loader("CREATE TABLE u (a INT)")
    loader("INSERT INTO u VALUES (1)")
    loader.link.commit()
    assert loader.refused("SELECT * FROM t")["C"] == "42501"
    users = loader("SELECT DISTINCT user_id FROM sys_query_history")
    assert len(users) == 1
    with pytest.raises(redshift_connector.ProgrammingError, match="28P01"):
        connect(user="loader", password="wrong")
    with pytest.raises(redshift_connector.ProgrammingError, match="3D000"):
        connect(database="nowhere")


# ---------------------------------------------------------------- faults


def lose(client: Client, act: Callable[[], object]) -> None:
    with pytest.raises((redshift_connector.Error, OSError), match=r"closed|reset|Broken"):
        act()


def test_a_commit_whose_socket_drops_is_or_is_not_there(redshift: RedshiftStandIn, connect: Connect) -> None:
    check = connect(autocommit=True)
    check("CREATE TABLE t (a INT)")
    for value, arm in ((1, redshift.faults.drop_before_commit), (2, redshift.faults.drop_after_commit)):
        client = connect()
        client(f"INSERT INTO t VALUES ({value})")
        arm()
        lose(client, client.link.commit)
        assert redshift.faults.armed == 0
    assert check("SELECT a FROM t") == [[2]]


def test_a_dropped_session_may_hold_its_locks_for_a_while(
    redshift: RedshiftStandIn, connect: Connect
) -> None:
    client, other = connect(), connect()
    client("CREATE TABLE t (a INT)")
    client.link.commit()
    client("LOCK t")
    redshift.faults.drop_at(match="insert", linger=0.6)
    lose(client, lambda: client("INSERT INTO t VALUES (1)"))
    started = time.monotonic()
    other("LOCK t")
    assert 0.3 < time.monotonic() - started < 5
    assert other("SELECT count(*) FROM t") == [[0]]


def test_the_kth_statement_is_the_last(redshift: RedshiftStandIn, connect: Connect) -> None:
    client = connect(autocommit=True)
    client("CREATE TABLE t (a INT)")
    redshift.faults.drop_at(3)
    client("INSERT INTO t VALUES (1)")
    client("INSERT INTO t VALUES (2)")
    lose(client, lambda: client("INSERT INTO t VALUES (3)"))
    redshift.faults.drop_at(1, match="insert", after=True)
    again = connect(autocommit=True)
    lose(again, lambda: again("INSERT INTO t VALUES (4)"))
    assert redshift.execute(f"SELECT a FROM {client.schema}.t ORDER BY a") == [(1,), (2,), (4,)]


def test_conflicts_and_failed_copies_come_as_often_as_asked_for(
    redshift: RedshiftStandIn, client: Client, lake: Lake
) -> None:
    client("CREATE TABLE t (c BIGINT)")
    client.link.commit()
    redshift.faults.conflicts(2)
    for _ in range(2):
        client("INSERT INTO t VALUES (1)")
        assert client.refused("COMMIT")["M"] == "1023"
        assert not client.link.in_transaction
    client("INSERT INTO t VALUES (1)")
    client.link.commit()
    error = {
        "filename": "s3://lake/x",
        "colname": "c",
        "line_number": 7,
        "err_code": 1204,
        "err_reason": "too long",
    }
    redshift.faults.fail_copy("out of luck", load_error=error)
    copy = lake.copy("t", ids(2))
    assert "out of luck" in detail(client.refused(copy))
    assert client("SELECT line_number FROM sys_load_error_detail WHERE session_id = pg_backend_pid()") == [
        [7]
    ]
    client(copy)
    assert client("SELECT c FROM t ORDER BY c") == [[1], [2]]


def test_a_stalled_session_hangs_until_its_backend_is_ended(
    redshift: RedshiftStandIn, connect: Connect
) -> None:
    client, other = connect(), connect(autocommit=True)
    ((pid,),) = client("SELECT pg_backend_pid()")
    redshift.faults.stall(match="select 2")
    lost = threading.Thread(target=lambda: lose(client, lambda: client("SELECT 2")))
    lost.start()
    time.sleep(0.2)
    assert lost.is_alive() and other("SELECT 1") == [[1]]
    other(f"SELECT pg_terminate_backend({pid})")
    lost.join(5)
    assert not lost.is_alive()


def test_answers_are_late_and_other_processes_can_ask_for_it(
    redshift: RedshiftStandIn, connect: Connect
) -> None:
    client = connect(autocommit=True)
    client("""SET floodmark.fault TO '{"fault": "delay", "seconds": 0.3, "match": "select"}'""")
    started = time.monotonic()
    client("SELECT 1")
    assert time.monotonic() - started >= 0.3
    assert "no such fault" in client.refused("SET floodmark.fault TO 'explode'")["M"]
    redshift.pause()
    threading.Timer(0.3, redshift.resume).start()
    started = time.monotonic()
    client("SELECT 1")
    assert time.monotonic() - started >= 0.2


def test_a_running_statement_can_be_cancelled(redshift: RedshiftStandIn, connect: Connect) -> None:
    holder, waiter = connect(), connect()
    holder("CREATE TABLE t (a INT)")
    holder.link.commit()
    holder("LOCK t")
    waiter("SELECT 1")

    def cancel() -> None:
        with socket.create_connection((redshift.host, redshift.port)) as link:
            link.sendall(struct.pack("!ii", 16, 80877102) + waiter.link._backend_key_data)
            link.recv(1)

    threading.Timer(0.2, cancel).start()
    assert waiter.refused("LOCK t")["C"] == "57014"
    assert waiter("SELECT 1") == [[1]]


def test_psql_gets_in_too(redshift: RedshiftStandIn, lake: Lake) -> None:
    """Several statements in one message of the simple protocol, a COPY among them."""
    sql = f"BEGIN; CREATE TEMP TABLE t (c BIGINT, d VARBYTE(2)); {lake.copy('t (c)', ids(1, 2))}; SELECT sum(c) FROM t; SELECT x"
    url = redshift.url().replace("redshift://", "postgresql://") + "?sslmode=disable"
    done = subprocess.run([program("psql"), "-XAtq", url, "-c", sql], capture_output=True, text=True)
    assert done.returncode == 1
    assert "2 record(s) loaded successfully" in done.stderr and 'column "x" does not exist' in done.stderr
    assert "3" in done.stdout.split()


PARENT = """
import sys, time
from floodmark.store import StoreSpec
from floodmark.testing.redshift import RedshiftStandIn
from floodmark.testing.redshift.postgres import program
server = RedshiftStandIn(StoreSpec("s3://lake", "http://127.0.0.1:1"))
server.start()
print(server.folder, server.pid, flush=True)
time.sleep(100)
"""


def test_it_ends_with_its_parent_and_leaves_no_file() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as told:
        folder, pid = told.readline().split()
    assert Path(folder, "data").exists() and Path("/proc", pid).exists()
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (Path(folder).exists() or Path("/proc", pid).exists()):
        time.sleep(0.05)
    assert not Path(folder).exists()
    assert not Path("/proc", pid).exists()


def test_a_dead_cluster_comes_back_with_what_was_committed(
    seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with RedshiftStandIn(seaweed, tls=True) as server:
        options = server.options(sslmode="verify-full")
        with pytest.raises(redshift_connector.InterfaceError, match="communication error"):
            redshift_connector.connect(**options)
        monkeypatch.setenv("SSL_CERT_FILE", str(server.ca))
        client = Client(redshift_connector.connect(**options), "public")
        client("CREATE TABLE t (a VARCHAR(3))")
        client.link.commit()
        client("INSERT INTO t VALUES ('x')")
        server.kill()
        lose(client, client.link.commit)
        server.start()
        client = Client(redshift_connector.connect(**options), "public")
        assert client("SELECT count(*) FROM t") == [[0]]
        client.link.close()
        folder = server.folder
    assert not folder.exists()
