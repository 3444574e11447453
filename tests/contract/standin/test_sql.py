"""The stand-in's SQL: tables and columns as Redshift has them, and nothing that only PostgreSQL would take."""

from __future__ import annotations

import hashlib
from datetime import datetime

from tests.support.standin_sessions import Client, Connect


def test_keys_are_recorded_and_not_enforced_but_not_null_is(client: Client) -> None:
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


def test_columns_are_described_in_redshift_s_terms(client: Client) -> None:
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
    "MERGE INTO t USING t AS s ON t.a = s.a WHEN MATCHED THEN DELETE", "SELECT SHA256('a')", "SELECT SHA512('a')",
    "SELECT SHA2('a')", "SELECT SHA2(a, 256) FROM t", "SELECT SHA2(FROM_HEX('ff'), 256)",
]  # fmt: skip


def test_sql_that_only_postgresql_accepts_is_refused(client: Client) -> None:
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


def test_sha2_takes_text_and_the_documented_bit_lengths(client: Client) -> None:
    text = "é\\"
    client("CREATE TABLE t (a VARCHAR(8), b VARBYTE(8))")
    client("INSERT INTO t VALUES (%s, from_hex('ff'))", text)
    bits = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}
    for n, name in bits.items():
        assert client(f"SELECT SHA2(a, {n}) FROM t") == [[hashlib.new(name, text.encode()).hexdigest()]]
    assert client("SELECT SHA2(a, 100), SHA2(NULL, 256) FROM t") == [["", None]]
    client.link.commit()
    assert client.refused("SELECT SHA2(b, 256) FROM t")["C"] == "42883"
    assert client("SELECT STRTOL(SUBSTRING(SHA2(a, 256), 1, 15), 16) FROM t") == [
        [int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)]
    ]


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
