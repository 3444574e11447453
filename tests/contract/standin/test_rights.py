"""What the stand-in's ordinary users see and may use: their own sessions, statements and tables, and roles for COPY."""

from __future__ import annotations

import secrets
import threading
import time

import pytest

from tests.support.redshift import RedshiftStandIn
from tests.support.standin_sessions import (
    Client,
    Connect,
    Lake,
    detail,
    ids,
)


@pytest.fixture
def users(redshift: RedshiftStandIn, connect: Connect) -> tuple[Client, Client]:
    """A superuser, and somebody who may create in the same schema."""
    master, name = connect(autocommit=True), f"u_{secrets.token_hex(4)}"
    redshift.create_user(name, "Loader-1", f"CREATE, USAGE ON SCHEMA {master.schema}")
    return master, connect(autocommit=True, user=name, password="Loader-1")


def _name(client: Client) -> str:
    return str(client("SELECT current_user")[0][0])


def test_locks_and_statements_of_others_are_seen_with_syslog_access_only(
    connect: Connect, users: tuple[Client, Client]
) -> None:
    master, loader = users
    master("CREATE TABLE t (a INT)")
    holder = connect()
    holder("LOCK t")
    ((pid,),) = holder("SELECT pg_backend_pid()")
    questions = (
        f"SELECT count(*) > 0 FROM svv_transactions WHERE pid = {pid}",
        f"SELECT count(*) > 0 FROM sys_query_history WHERE session_id = {pid}",
        f"SELECT count(*) > 0 FROM stv_sessions WHERE process = {pid}",
    )
    assert [loader(sql) for sql in questions] == [[[False]]] * 3
    for view in ("pg_locks", "pg_stat_activity"):
        assert loader.refused(f"SELECT count(*) FROM {view}")["C"] == "42501"
    assert [master(sql) for sql in questions] == [[[True]]] * 3
    assert loader.refused(f"ALTER USER {_name(loader)} SYSLOG ACCESS UNRESTRICTED")["C"] == "42501"
    master(f"ALTER USER {_name(loader)} WITH SYSLOG ACCESS UNRESTRICTED")
    assert [loader(sql) for sql in questions] == [[[True]]] * 3
    assert loader("SELECT superuser, syslog_access FROM svv_user_info") == [[False, "UNRESTRICTED"]]
    master(f"ALTER USER {_name(loader)} SYSLOG ACCESS RESTRICTED")
    assert [loader(sql) for sql in questions] == [[[False]]] * 3
    assert loader("SELECT count(*) > 0 FROM sys_query_history WHERE session_id = pg_backend_pid()") == [
        [True]
    ]
    seer = f"{_name(loader)}_2"
    master(f"CREATE USER {seer} PASSWORD 'Loader-2' SYSLOG ACCESS UNRESTRICTED")
    assert connect(user=seer, password="Loader-2")(questions[0]) == [[True]]


def test_loads_of_others_are_not_seen(
    redshift: RedshiftStandIn, users: tuple[Client, Client], lake: Lake
) -> None:
    master, loader = users
    master("CREATE TABLE t (c BIGINT)")
    master(lake.copy("t", ids(1)))
    redshift.faults.fail_copy("out of luck", load_error={"line_number": 7, "err_code": 1204})
    master.refused(lake.copy("t", ids(1)))
    for view in (
        "stl_load_errors",
        "stl_load_commits",
        "sys_load_history",
        "sys_load_detail",
        "sys_load_error_detail",
    ):
        assert loader(f"SELECT count(*) FROM {view}") == [[0]], view
        assert master(f"SELECT count(*) > 0 FROM {view}") == [[True]], view


def test_only_accessible_tables_are_listed(users: tuple[Client, Client]) -> None:
    master, loader = users
    master("CREATE TABLE t (a INT, b INT)")
    loader("CREATE TABLE u (a INT)")
    where = f"WHERE table_schema = '{master.schema}' ORDER BY 1, 2"
    columns, tables = (f"SELECT table_name, {what} FROM {view} {where}" for what, view in (
        ("column_name", "svv_columns"), ("table_type", "svv_tables")))  # fmt: skip
    assert loader(columns) == [["u", "a"]] and loader(tables) == [["u", "BASE TABLE"]]
    assert len(master(columns)) == 3
    # The catalog of PostgreSQL hides nothing.
    assert loader(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute AS a "
        "JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        f"WHERE n.nspname = '{master.schema}' AND c.relname = 't' AND a.attnum > 0 ORDER BY a.attnum"
    ) == [["a", "integer"], ["b", "integer"]]
    master(f"GRANT SELECT ON TABLE t TO {_name(loader)}")
    assert loader(columns) == [["t", "a"], ["t", "b"], ["u", "a"]]


def test_a_role_is_usable_by_its_grantee(users: tuple[Client, Client], lake: Lake) -> None:
    master, loader = users
    loader("CREATE TABLE t (c BIGINT)")
    copy = lake.copy("t", ids(1))
    loader(copy)
    assert loader("SELECT default_iam_role()") == [[lake.role]]
    try:
        master("REVOKE ASSUMEROLE ON ALL FROM PUBLIC FOR ALL")
        error = loader.refused(copy)
        words = f'User {_name(loader)} does not have ASSUMEROLE permission on IAM role "{lake.role}" for COPY'
        assert (error["C"], error["M"]) == ("42501", words)
        assert loader(f"SELECT has_assumerole_privilege('{lake.role}', 'copy')") == [[False]]
        assert (
            loader.refused(f"GRANT ASSUMEROLE ON '{lake.role}' TO {_name(loader)} FOR COPY")["C"] == "42501"
        )
        master(f"GRANT ASSUMEROLE ON '{lake.role}' TO {_name(loader)} FOR COPY")
        loader(copy)
        given = loader("SELECT iam_arn, command_type, identity_name FROM svv_iam_privileges")
        assert given == [[lake.role, "COPY", _name(loader)]]
        assert "other" in loader.refused(copy.replace(lake.role, f"{lake.role}-other"))["M"]
    finally:
        master("GRANT ASSUMEROLE ON ALL TO PUBLIC FOR ALL")


def test_a_chain_is_granted_as_a_whole_and_the_default_role_by_its_keyword(
    users: tuple[Client, Client], lake: Lake
) -> None:
    master, loader = users
    loader("CREATE TABLE t (c BIGINT)")
    alone = lake.copy("t", ids(1))
    chain = f"{lake.role},{lake.role}-next"
    chained, default = alone.replace(lake.role, chain), alone.replace(f"'{lake.role}'", "default")
    granted = {f"'{lake.role}'": alone, f"'{chain}'": chained, "default": default}
    try:
        for role, copy in granted.items():
            master("REVOKE ASSUMEROLE ON ALL FROM PUBLIC FOR ALL")
            master(f"REVOKE ASSUMEROLE ON ALL FROM {_name(loader)} FOR ALL")
            master(f"GRANT ASSUMEROLE ON {role} TO {_name(loader)} FOR COPY")
            loader(copy)
            for other in set(granted.values()) - {copy}:
                assert loader.refused(other)["C"] == "42501", (role, other)
        shown = loader("SELECT iam_arn, command_type FROM svv_iam_privileges")
        assert shown == [["default-aws-iam-role", "COPY"]]
    finally:
        master("GRANT ASSUMEROLE ON ALL TO PUBLIC FOR ALL")


def test_a_role_that_iam_denies_is_refused(redshift: RedshiftStandIn, client: Client, lake: Lake) -> None:
    client("CREATE TABLE t (c BIGINT)")
    client.link.commit()
    copy = lake.copy("t", ids(1))
    redshift.faults.deny_role(lake.role)
    error = client.refused(copy)
    assert error["C"] == "XX000" and error["M"].startswith("User arn:aws:redshift:")
    assert error["M"].endswith(f"is not authorized to assume IAM Role {lake.role}")
    assert client.refused(copy.replace(f"'{lake.role}'", "default"))["M"] == error["M"]
    redshift.faults.clear()
    client(copy)


def test_objects_that_s3_denies_are_refused(redshift: RedshiftStandIn, client: Client, lake: Lake) -> None:
    client("CREATE TABLE t (c BIGINT)")
    client.link.commit()
    file = lake.put(ids(1))
    manifest = lake.manifest(file)
    redshift.faults.deny_s3(file[0])
    assert "HTTP response error code: 403 Message: AccessDenied" in detail(
        client.refused(lake.of("t", manifest))
    )
    redshift.faults.deny_s3(manifest)
    words = "COPY with MANIFEST parameter requires full path of an S3 object."
    assert client.refused(lake.of("t", manifest))["M"] == words  # as if it were not there
    redshift.faults.deny_s3(manifest.rpartition("/")[0])
    error = client.refused(lake.of("t", manifest.rpartition("/")[0]).replace(" MANIFEST ", " "))
    assert error["M"].startswith("S3ServiceException:Access Denied,Status 403,Error AccessDenied,")
    redshift.faults.clear()
    client(lake.of("t", manifest))


@pytest.mark.parametrize("wrong", ["nothing.manifest", "", "/"])
def test_a_manifest_is_one_object_in_full(client: Client, lake: Lake, wrong: str) -> None:
    client("CREATE TABLE t (c BIGINT)")
    client.link.commit()
    folder = lake.manifest(lake.put(ids(1))).rpartition("/")[0]
    error = client.refused(lake.of("t", f"{folder}/{wrong}" if wrong.strip("/") else folder + wrong))
    assert (error["C"], error["M"]) == (
        "XX000",
        "COPY with MANIFEST parameter requires full path of an S3 object.",
    )
    assert "code:      8001" in error["D"]


def test_the_views_of_statements_and_loads_lag_on_request(
    redshift: RedshiftStandIn, connect: Connect, lake: Lake
) -> None:
    client = connect(autocommit=True)
    client("CREATE TABLE t (c BIGINT)")
    ((pid,),) = client("SELECT pg_backend_pid()")
    questions = (
        f"SELECT trim(status) FROM sys_query_history WHERE session_id = {pid} AND query_type = 'COPY'",
        f"SELECT line_number FROM sys_load_error_detail WHERE session_id = {pid}",
    )
    redshift.faults.lag(0.5)
    redshift.faults.fail_copy("out of luck", load_error={"line_number": 7})
    client.refused(lake.copy("t", ids(1)))
    assert [client(question) for question in questions] == [[], []]
    time.sleep(0.7)
    assert [client(question) for question in questions] == [[["failed"]], [[7]]]


def test_commit_is_in_the_history_on_request(redshift: RedshiftStandIn, connect: Connect) -> None:
    client, other = connect(), connect(autocommit=True)
    client("CREATE TABLE t (a INT)")
    ((pid,),) = client("SELECT pg_backend_pid()")
    redshift.faults.show_utilities()
    redshift.faults.delay_commit(0.5)
    committing = threading.Thread(target=client.link.commit)
    committing.start()
    time.sleep(0.1)
    question = (
        "SELECT trim(query_type), trim(status) FROM sys_query_history "
        f"WHERE session_id = {pid} AND upper(trim(query_text)) = 'COMMIT'"
    )
    assert other(question) == [["UTILITY", "running"]]
    committing.join(5)
    assert other(question) == [["UTILITY", "success"]]
    redshift.faults.clear()
    client("INSERT INTO t VALUES (1)")
    client.link.commit()
    assert len(other(question)) == 1
