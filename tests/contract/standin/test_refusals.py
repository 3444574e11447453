"""The stand-in refuses what Redshift refuses and PostgreSQL would run, in Redshift's own words: a test per rule."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.support.standin_sessions import Client

UNSUPPORTED = "Specified types or functions (one per INFO message) not supported on Redshift tables."
EQUIJOIN = "Target table must be part of an equijoin predicate"


@pytest.fixture
def two(client: Client) -> Client:
    """A session with two tables."""
    client("CREATE TABLE t (a INT, b VARCHAR(20))")
    client("CREATE TABLE s (a INT, b VARCHAR(20))")
    client.link.commit()
    return client


@pytest.mark.parametrize("call", [
    "now()", "current_timestamp", "current_schema()", "current_schema", "version()", "has_table_privilege('t', 'select')",
    "generate_series(1, 2)", "age(getdate())", "factorial(3)", "log(10)", "format_type(23, -1)",
])  # fmt: skip
def test_a_leader_node_function_is_refused_next_to_a_user_s_table(two: Client, call: str) -> None:
    for sql in (
        f"SELECT {call} FROM t",
        f"INSERT INTO t (a) SELECT 1 WHERE {call} IS NOT NULL",
        f"WITH x AS (SELECT a FROM s) SELECT a, {call} FROM x",
        f"EXPLAIN SELECT {call} FROM t",
        f"PREPARE p AS SELECT {call} FROM t",
        f"DECLARE c CURSOR FOR SELECT {call} FROM t",
    ):
        error = two.refused(sql)
        assert (error["C"], error["M"]) == ("0A000", UNSUPPORTED), sql
    name = call.partition("(")[0]
    assert two.link.notices[-1][b"M"].decode() == f'Function "{name}()" not supported.'


def test_a_quoted_leader_node_function_is_the_same_function(two: Client) -> None:
    for call in ('"now"()', '"version"()', '"generate_series"(1, 2)'):
        error = two.refused(f"SELECT {call} FROM t")
        assert (error["C"], error["M"]) == ("0A000", UNSUPPORTED), call


def test_a_table_may_have_the_name_of_such_a_function(client: Client) -> None:
    client("CREATE TABLE log (a INT)")
    client('CREATE TABLE "starts_with" ("a" INT)')
    client('INSERT INTO log ("a") SELECT 1')
    client('INSERT INTO "starts_with" ("a") SELECT a FROM log')
    client('CREATE VIEW "age" ("a") AS SELECT a FROM "starts_with"')
    assert client("SELECT a FROM age") == [[1]]


def test_a_leader_node_function_works_alone_or_with_the_catalog(two: Client) -> None:
    assert two("SELECT now() IS NOT NULL, current_schema(), substr('abc', 2)") == [[True, two.schema, "bc"]]
    assert two(
        f"SELECT count(*) FROM pg_namespace WHERE nspname = current_schema() AND nspname = '{two.schema}'"
    ) == [[1]]
    assert two("SELECT extract(epoch FROM now()) > 0") == [[True]]
    assert two("WITH x AS (SELECT 1 AS a) SELECT a, version() IS NOT NULL FROM x") == [[1, True]]


def test_substr_of_a_column_is_refused_with_a_hint(two: Client) -> None:
    error = two.refused("SELECT substr(b, 1) FROM t")
    words = "SUBSTR() function is not supported (Hint: use SUBSTRING instead)"
    assert (error["C"], error["M"]) == ("0A000", words)
    assert two("SELECT substring(b, 1) FROM t") == []


@pytest.mark.parametrize(
    "catalog", ["pg_class", "pg_catalog.pg_namespace", "information_schema.tables", "svv_tables"]
)
def test_the_catalog_can_not_be_joined_with_a_user_s_table(two: Client, catalog: str) -> None:
    for sql in (
        f"SELECT count(*) FROM {catalog} AS c, t",
        f"SELECT count(*) FROM t WHERE EXISTS (SELECT 1 FROM {catalog})",
        f"INSERT INTO t (a) SELECT count(*) FROM {catalog}",
        f"CREATE TEMP TABLE n AS SELECT count(*) AS n FROM {catalog}",
    ):
        error = two.refused(sql)
        assert (error["C"], error["M"]) == ("0A000", UNSUPPORTED), sql
    two("SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace")


@pytest.mark.parametrize("condition", [
    "t.a < s.a", "t.a = s.a OR t.b = s.b", "(t.a = s.a OR (t.a IS NULL AND s.a IS NULL))", "t.a = 1 AND s.a = 1",
    "t.a = t.a", "t.a - s.a = 0", "t.a = CAST(1 AS INT)",
])  # fmt: skip
def test_the_target_of_a_delete_or_update_is_joined_by_an_equality(two: Client, condition: str) -> None:
    for sql in (
        f"DELETE FROM t USING s WHERE {condition}",
        f"UPDATE t SET b = s.b FROM s WHERE {condition}",
        f"EXPLAIN VERBOSE DELETE FROM t USING s WHERE {condition}",
        f"WITH x AS (SELECT a FROM s) DELETE FROM t USING s WHERE {condition}",
        f"WITH x AS (SELECT a FROM s) UPDATE t SET b = s.b FROM s WHERE {condition}",
    ):
        error = two.refused(sql)
        assert (error["C"], error["M"]) == ("0A000", EQUIJOIN), sql


def test_an_equality_among_other_conditions_is_enough(two: Client) -> None:
    schema = two.schema
    for condition in ("t.a = s.a", "s.a = t.a AND t.b <> s.b", "(t.a = s.a) AND (t.b = 'x' OR s.b = 'x')",
                      "t.b || '.' = s.b || '.'", "CAST(t.a AS VARCHAR(9)) = s.b"):  # fmt: skip
        two(f"DELETE FROM t USING s WHERE {condition}")
        two(f"UPDATE {schema}.t SET b = s.b FROM s WHERE {condition}")
        two(f"EXPLAIN UPDATE {schema}.t SET b = s.b FROM s WHERE {condition}")
    two("WITH x AS (SELECT a FROM s) DELETE FROM t USING x WHERE t.a = x.a")
    two("DELETE FROM t USING s, s AS r WHERE s.a = r.a AND t.a = r.a")
    two("UPDATE t SET a = 1")
    two("DELETE FROM t WHERE a IN (SELECT s.a FROM s LEFT JOIN t AS u ON s.a = u.a)")


def test_an_update_does_not_support_an_outer_join(two: Client) -> None:
    error = two.refused("UPDATE t SET b = s.b FROM s LEFT JOIN t AS u ON s.a = u.a WHERE t.a = s.a")
    assert (error["C"], error["M"]) == ("0A000", EQUIJOIN)


@pytest.mark.parametrize(("sql", "near"), [
    ("WITH x AS (DELETE FROM s) SELECT 1", "DELETE"),
    ("WITH x AS (INSERT INTO s VALUES (1)) SELECT 1", "INSERT"),
    ("WITH x AS (SELECT 1 AS a) INSERT INTO t (a) SELECT a FROM x", "INSERT"),
    ("EXPLAIN ANALYZE SELECT a FROM t", "ANALYZE"),
    ("EXPLAIN (FORMAT JSON) SELECT a FROM t", "("),
])  # fmt: skip
def test_with_takes_only_queries_and_explain_has_no_options(two: Client, sql: str, near: str) -> None:
    error = two.refused(sql)
    assert (error["C"], error["M"]) == ("42601", f'syntax error at or near "{near}"')


def test_values_is_not_a_table(two: Client) -> None:
    for sql in ("SELECT * FROM (VALUES (1)) AS v", "INSERT INTO t (a) SELECT * FROM (VALUES (1)) AS v",
                "DELETE FROM t USING (VALUES (1)) AS v (a) WHERE t.a = v.a"):  # fmt: skip
        error = two.refused(sql)
        assert (error["C"], error["M"]) == ("42601", 'syntax error at or near "VALUES"'), sql
    two("INSERT INTO t VALUES (1, 'a'), (2, 'b')")


@pytest.mark.parametrize(("call", "function"), [
    ("concat_ws(',', b, b)", 'concat_ws("unknown", character varying, character varying)'),
    ("concat(b, '-', b)", 'concat(character varying, "unknown", character varying)'),
    ("string_to_array(b, ',')", 'string_to_array(character varying, "unknown")'),
    ("regexp_match(b, 'x')", 'regexp_match(character varying, "unknown")'),
    ("md5(c)", "md5(binary varying)"),
    ('"concat_ws"(b, b)', "concat_ws(character varying, character varying)"),
    ("starts_with(b, 'x')", 'starts_with(character varying, "unknown")'),
    ("pg_catalog.make_time(1, 2, 3)", "pg_catalog.make_time(integer, integer, integer)"),
])  # fmt: skip
def test_a_function_that_redshift_does_not_document_does_not_exist(
    client: Client, call: str, function: str
) -> None:
    client("CREATE TABLE t (b VARCHAR(20), c VARBYTE(20))")
    client.link.commit()
    error = client.refused(f"SELECT {call} FROM t")
    assert (error["C"], error["M"]) == ("42883", f"function {function} does not exist")


def test_concat_takes_two_arguments_and_is_null_if_one_is(client: Client) -> None:
    assert client("SELECT concat('a', 'b'), concat('a', NULL), concat('a', concat('b', 'c'))") == [
        ["ab", None, "abc"]
    ]


def test_joined_texts_end_at_65535_bytes(client: Client) -> None:
    client("CREATE TABLE t (b VARCHAR(65535))")
    client("INSERT INTO t VALUES (%s)", "é" * 32767)
    assert client("SELECT octet_length(b || 'x'), octet_length(concat(b, 'x')) FROM t") == [[65535, 65535]]
    client.link.commit()
    for sql in (
        "SELECT b || 'xy' FROM t",
        "SELECT concat(b, 'é') FROM t",
        "SELECT len('x' || b || 'y') FROM t",
        "SELECT b || 12 FROM t",
        "SELECT 12 || b FROM t",
    ):
        error = client.refused(sql)
        assert (error["C"], error["M"]) == ("XX000", "Invalid input"), sql
        assert "CONCAT() result too long for type varchar(65535)" in error["D"]


def test_texts_out_of_functions_end_at_65535_bytes(client: Client) -> None:
    client("CREATE TABLE t (b VARBYTE(65535), s SUPER)")
    client("INSERT INTO t VALUES (%s, NULL)", b"x" * 32768)
    client("INSERT INTO t SELECT NULL, JSON_PARSE('[\"' || repeat('x', 65530) || '\"]')")
    assert client("SELECT max(len(TO_HEX(SUBSTRING(b, 1, 32767)))), max(len(JSON_SERIALIZE(s))) FROM t") == [
        [65534, 65534]
    ]
    client("UPDATE t SET s = JSON_PARSE('[' || repeat('1e9,', 16000) || '1]') WHERE s IS NOT NULL")
    client.link.commit()
    for call in (
        "TO_HEX(b)",
        "FROM_VARBYTE(b, 'hex')",
        "JSON_SERIALIZE(s)",
        "REPEAT('é', 32768)",
        "REPLACE(REPEAT('x', 9), 'x', REPEAT('y', 9999))",
        "LPAD('x', 65536)",
        "RPAD('x', 65536, 'yz')",
        "TRANSLATE(REPEAT('x', 40000), 'x', 'é')",
        "REGEXP_REPLACE('xx', 'x', REPEAT('y', 65535))",
    ):
        error = client.refused(f"SELECT {call} FROM t")
        assert (error["C"], error["M"]) == ("XX000", "Value too long for character type"), call
        assert "Value too long for type character varying(65535)" in error["D"]


def test_sums_end_at_38_digits(client: Client) -> None:
    client("CREATE TABLE t (a BIGINT, d DECIMAL(38, 0), e DECIMAL(38, 2))")
    most, parts = "9" * 38, f"{'9' * 36}.00"
    client(f"INSERT INTO t VALUES (1, {most}, {parts}), (2, 0, 0)")
    assert client("SELECT sum(a), sum(d), sum(e) FROM t") == [[3, int(most), Decimal(parts)]]
    assert client("SELECT a, sum(a) OVER (PARTITION BY a) FROM t GROUP BY a ORDER BY sum(a)") == [
        [1, 1],
        [2, 2],
    ]
    cursor = client.link.cursor()
    cursor.execute("SELECT sum(a), sum(d) AS total FROM t")
    assert [column[0] for column in cursor.description] == ["sum", "total"]
    client("UPDATE t SET d = 1, e = 1 WHERE a = 2")
    client.link.commit()
    for column in ("d", "e"):
        error = client.refused(f"SELECT sum({column}) FROM t")
        assert (error["C"], error["M"]) == ("XX000", "Numeric data overflow (addition)")
        assert "code:      1058" in error["D"]
