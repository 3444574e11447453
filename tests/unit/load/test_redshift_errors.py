"""Errors of Redshift and its driver, and what the operator sees."""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Any

import pytest
import redshift_connector
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ProfileNotFound
from redshift_connector import error as driver
from redshift_connector.error import InterfaceError, OperationalError

from floodmark.config.load import WarehouseSpec
from floodmark.load.redshift.socket import SocketTransport
from floodmark.load.redshift.steps import (
    Limits,
    NoRights,
    Problem,
    Row,
    StatementFailed,
    answered,
    detailed,
    failure_of,
    lost,
)
from floodmark.load.redshift.transaction import Keeper, kept
from floodmark.model.errors import (
    ConfigError,
    ConflictError,
    DataError,
    FloodmarkError,
    TlsError,
    TransientError,
)

SCAN = (
    "\n  -----------------------------------------------\n  error:  Spectrum Scan Error\n  code:      {code}\n"
    "  context:   {context}\n  query:     1234\n  location:  dory_util.cpp:1615\n  process:   worker_thread [pid=1]\n"
    "  -----------------------------------------------\n"
)
CYCLE = "Serializable isolation violation on table - 100, transactions forming the cycle are: 1, 2 (pid:3)"

ANSWERS = [
    # SQLSTATE, message, detail, kind, whether the whole transaction is tried again
    ("XX000", "1023", CYCLE, TransientError, True),
    ("40001", "could not serialize access due to concurrent update", "", TransientError, True),
    ("40P01", "deadlock detected", "Process 1 waits for …", TransientError, True),
    ("57014", "Query (17) canceled on user's request", "", TransientError, False),
    ("57P01", "terminating connection due to administrator command", "", TransientError, True),
    ("53300", "too many connections for user", "", TransientError, True),
    ("53100", "could not extend file: No space left on device", "", TransientError, False),
    ("XX000", "Disk Full", "error: Disk Full code: 1016", TransientError, False),
    ("08006", "connection failure", "", TransientError, True),
    ("XX000", "Spectrum Scan Error", SCAN.format(code=15001, context="S3 SlowDown, Status 503"), TransientError, True),
    ("28P01", 'password authentication failed for user "loader"', "", ConfigError, False),
    ("28000", "no pg_hba.conf entry for host", "", ConfigError, False),
    ("3D000", 'database "nowhere" does not exist', "", ConfigError, False),
    ("3F000", 'schema "nowhere" does not exist', "", ConfigError, False),
    ("42501", "permission denied for relation orders", "", NoRights, False),
    ("XX000", 'User loader does not have ASSUMEROLE permission on IAM role "arn:…" for COPY', "", NoRights, False),
    ("XX000", "User arn:aws:redshift:… is not authorized to assume IAM Role arn:…", "", ConfigError, False),
    ("XX000", "S3ServiceException:Access Denied,Status 403,Error AccessDenied", "", ConfigError, False),
    ("42P07", 'Relation "orders" already exists', "", ConflictError, True),
    ("42P01", 'relation "orders" does not exist', "", ConflictError, True),
    ("XX000", "1018", "Relation with OID 123 does not exist.", ConflictError, True),
    ("XX000", "Spectrum Scan Error", SCAN.format(code=15007, context="Unmatched number of columns"), DataError, False),
    ("XX000", "Spectrum Scan Error", SCAN.format(code=15001, context="The length of the data column name is longer than the "
     "length defined in the table. Table: 80, Data: 99"), DataError, False),
    ("XX000", "Mandatory url is not present in manifest file.", "", DataError, False),
    ("XX000", "Spectrum Scan Error", SCAN.format(code=15001, context="HTTP response error code: 416 InvalidRange"), DataError, False),
    ("22001", "value too long for type character varying(80)", "", DataError, False),
    ("22003", "Numeric data overflow (result precision)", "", DataError, False),
    ("23502", "Cannot insert a NULL value into column id", "", DataError, False),
    ("XX000", "JSON parsing error", "error: JSON parsing error code: 8001 context: invalid json object", DataError, False),
    ("0A000", "cannot drop distkey column", "", DataError, False),
    ("42601", 'syntax error at or near "SELEKT"', "", FloodmarkError, False),
    ("25P02", "current transaction is aborted", "", FloodmarkError, False),
]  # fmt: skip


@pytest.mark.parametrize(("code", "message", "detail", "kind", "again"), ANSWERS)
def test_every_answer_of_the_server_has_a_translation(
    code: str, message: str, detail: str, kind: type[FloodmarkError], again: bool
) -> None:
    found = failure_of(Problem(message, detail, code))
    assert (type(found.error), found.again, found.lost) == (kind, again, False)
    assert message in found.error.message and "----" not in found.error.message
    assert found.said.startswith(message) and found.error.message.endswith(f": {found.said}")
    assert kind is FloodmarkError or found.error.hint


@pytest.mark.parametrize(
    ("text", "kind", "again"),
    [
        ("ERROR: 1023\n  Detail: " + CYCLE, TransientError, True),
        ("ERROR: deadlock detected", TransientError, True),
        ("ThrottlingException: Rate exceeded", TransientError, True),
        ("ActiveStatementsExceededException: Active statements exceeded the allowed quota (500)", TransientError, True),
        ("Query canceled on user's request", TransientError, False),
        ("ERROR: permission denied for relation orders", NoRights, False),
        ("AccessDeniedException: User: arn:aws:iam::1:user/x is not authorized to perform", ConfigError, False),
        ('ERROR: Relation "orders" already exists', ConflictError, True),
        ("ERROR: Spectrum Scan Error", DataError, False),
        ("ERROR: syntax error", FloodmarkError, False),
    ],
)  # fmt: skip
def test_without_a_sqlstate_the_text_decides(text: str, kind: type[FloodmarkError], again: bool) -> None:
    found = failure_of(Problem(text.removeprefix("ERROR: ")))
    assert (type(found.error), found.again) == (kind, again)


def test_a_text_that_is_not_json_has_a_hint_that_helps_although_its_file_is_committed() -> None:
    for problem in (Problem("JSON parsing error", "", "XX000"), Problem("invalid json", "", "22P02")):
        hint = str(failure_of(problem).error.hint)
        assert "VARCHAR" in hint and "floodmark watermark reset" in hint


def test_every_exception_of_the_driver_has_a_translation() -> None:
    transport = SocketTransport(WarehouseSpec("redshift", "public", host="h", port=5439, user="u"), Limits())
    kinds = [k for k in vars(driver).values() if isinstance(k, type) and issubclass(k, driver.Error)]
    assert driver.InterfaceError in kinds and driver.ProgrammingError in kinds
    for kind in kinds:
        assert type(transport._unconnected(kind("said so")).error) is TransientError
        said = kind({"S": "FATAL", "C": "28P01", "M": "password authentication failed"})
        assert type(transport._unconnected(said).error) is ConfigError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError(111, "refused"), TransientError),
        (InterfaceError("communication error", socket.gaierror(-2, "unknown")), ConfigError),
        (InterfaceError("communication error", ssl.SSLCertVerificationError("bad")), TlsError),
        (InterfaceError("Server refuses SSL"), TlsError),
        (OperationalError("connection time out"), TransientError),
        (struct.error("truncated"), TransientError),
        (KeyError(b"G"), TransientError),
        (NoCredentialsError(), ConfigError),
        (ProfileNotFound(profile="prod"), ConfigError),
        (EndpointConnectionError(endpoint_url="https://redshift"), TransientError),
        (ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetClusterCredentials"), ConfigError),
        (ClientError({"Error": {"Code": "Throttling", "Message": "Rate exceeded"}}, "x"), TransientError),
    ],
)  # fmt: skip
def test_every_reason_for_a_failed_connection_is_translated(
    error: Exception, kind: type[FloodmarkError]
) -> None:
    transport = SocketTransport(WarehouseSpec("redshift", "public", host="h", port=5439, user="u"), Limits())
    assert type(transport._unconnected(error).error) is kind


DENIED = "User: arn:aws:iam::1:user/x is not authorized to perform: {} on resource: arn:aws:redshift:eu:1:{}"


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (
            DENIED.format(
                "redshift:GetClusterCredentials", "dbuser:c/u because no identity-based policy allows it"
            ),
            'add to a policy of arn:aws:iam::1:user/x: {"Effect": "Allow", "Action": "redshift:GetClusterCredentials", '
            '"Resource": "arn:aws:redshift:eu:1:dbuser:c/u"}',
        ),
        ("no", "docs/redshift-rights.md has the policies"),
    ],
)
def test_an_action_that_iam_denies_at_log_in_is_named_with_the_policy_statement_to_add(
    message: str, hint: str
) -> None:
    transport = SocketTransport(WarehouseSpec("redshift", "public", host="h", port=5439, user="u"), Limits())
    error = ClientError({"Error": {"Code": "AccessDenied", "Message": message}}, "GetClusterCredentials")
    said = transport._unconnected(error).error
    assert hint in str(said.hint) and "iam_role" not in str(said.hint)


def test_an_action_that_iam_denies_to_copy_s_role_is_reported_for_that_role() -> None:
    said = failure_of(Problem("S3ServiceException:Access Denied,Status 403,Error AccessDenied", code="XX000"))
    assert "warehouse.iam_role" in str(said.error.hint)
    words = "is not authorized to perform: kms:Decrypt on resource: arn:aws:kms:eu:1:key/k"
    said = failure_of(
        Problem(f"S3ServiceException:User: arn:aws:sts::1:assumed-role/r/s {words}", code="XX000")
    )
    assert str(said.error.hint).startswith("add to a policy of arn:aws:sts::1:assumed-role/r/s: ")
    assert '"kms:Decrypt"' in str(said.error.hint)


def test_a_lost_connection_does_not_count_as_an_answer() -> None:
    assert answered(InterfaceError("BrokenPipe: server socket closed")) is None
    assert answered(BrokenPipeError(32, "Broken pipe")) is None
    found = lost(BrokenPipeError(32, "Broken pipe"), "h:5439")
    assert found.lost and found.again and type(found.error) is TransientError


def test_a_bad_file_is_named_with_its_column_and_row() -> None:
    asked: list[str] = []

    def ask(sql: str) -> list[Row]:
        asked.append(sql)
        if "sys_load_error_detail" in sql:
            raise failure_of(Problem("permission denied", code="42501"))
        return [("s3://b/f.parquet  ", 7, "name   ", "varchar  ", 1204, "String length exceeds DDL length  ")]

    bad = failure_of(Problem("Load into table 'stage' failed. Check 'stl_load_errors'", code="XX000"))
    found = detailed(bad, ask, 42)
    assert "s3://b/f.parquet, row 7, column name (varchar): String length exceeds" in found.error.message
    assert found.error.message.endswith(found.said)
    assert all("= 42 " in sql for sql in asked) and len(asked) == 2


def test_a_conflict_is_not_looked_up_among_load_errors() -> None:
    def ask(sql: str) -> list[Row]:
        raise StatementFailed(FloodmarkError("not to be asked"))

    assert detailed(failure_of(Problem("1023", CYCLE, "XX000")), ask, 42).again


def test_a_dead_peer_is_detected_by_keepalives_and_no_timeout_ends_a_long_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}

    class Silent:
        autocommit = False

        class _usock:
            @staticmethod
            def setsockopt(*option: int) -> None: ...

    def connect(**options: Any) -> Silent:
        given.update(options)
        return Silent()

    monkeypatch.setattr(redshift_connector, "connect", connect)
    spec = WarehouseSpec("redshift", "public", host="h", port=5439, user="u", password="p", database="dev")
    SocketTransport(spec, Limits())._connect({}, None)
    assert given["tcp_keepalive"] and given["timeout"] is None
    quiet = given["tcp_keepalive_idle"] + given["tcp_keepalive_interval"] * given["tcp_keepalive_count"]
    assert quiet <= 200  # seconds: what firewalls and NAT let pass
    assert given["ssl"] and given["sslmode"] == "verify-full"


def test_the_holder_of_a_lock_is_named_or_how_to_find_it() -> None:
    named = kept("orders", [Keeper(17, "somebody")])
    assert "session 17 of somebody" in named.message and "pg_terminate_backend(17)" in str(named.hint)
    # Redshift shows an ordinary user no sessions but their own.
    unseen = kept("orders", [])
    assert "does not show" in unseen.message and "SYSLOG ACCESS UNRESTRICTED" in str(unseen.hint)
