"""Redshift through its own driver, redshift_connector: one socket, with a password or through IAM.

Nothing is committed after an exception: the driver does not notice when the server answers COMMIT with
ROLLBACK. No wait is endless: connecting has a deadline; statements have Redshift's `statement_timeout` and,
if no answer comes even then, the socket is cut a little later; keepalives detect a dead peer.

The driver has no option for the user's own CA, and naming it in OpenSSL's environment variable is not safe: another
thread's getenv may read memory that setting it frees. So the connection is the driver's, the TLS on its socket is ours,
and only that CA is trusted.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import botocore.exceptions
import redshift_connector
from redshift_connector.core import Connection
from redshift_connector.error import Error as DriverError
from redshift_connector.error import InterfaceError
from redshift_connector.iam_helper import IamHelper
from redshift_connector.redshift_property import RedshiftProperty

from floodmark.config.load import Ssh, Tls, WarehouseSpec
from floodmark.host import ssh as tunnel
from floodmark.load.redshift.catalog import literal
from floodmark.load.redshift.steps import (
    LOGGING_IN,
    AtWork,
    Busy,
    Choose,
    Do,
    Expect,
    Limits,
    Lock,
    Problem,
    Row,
    StatementFailed,
    Step,
    answered,
    detailed,
    doing,
    failure_of,
    lost,
    milliseconds,
)
from floodmark.model.errors import ConfigError, FloodmarkError, TlsError, TransientError
from floodmark.model.run import Wait
from floodmark.model.statements import statement

# What the driver raises when the connection, not a statement, is the problem.
_BROKEN = (DriverError, OSError, struct.error, KeyError)


class SocketTransport:
    """Connections to one database. The driver speaks IPv4 only."""

    longest = 16_000_000  # Redshift's limit is 16 MB

    def __init__(self, spec: WarehouseSpec, limits: Limits) -> None:
        self._spec = spec
        self.limits = limits

    @property
    def address(self) -> str:
        through = f" through {self._spec.ssh.host}" if self._spec.ssh else ""
        return f"{self._spec.host}:{self._spec.port}{through}"

    def open(self, label: str = "") -> SocketSession:
        """A logged-in session, in UTC, with its statements limited in time and labelled."""
        connection = self._connected()
        session = SocketSession(connection, self.address, self.limits)
        try:
            session.prepare(label)
        except BaseException:
            session.close()
            raise
        return session

    def _connected(self) -> Any:
        """The driver's connection; gives up on a server that accepts and then says nothing."""
        made: list[Any] = []
        failed: list[BaseException] = []
        late = threading.Event()
        try:
            way, trusting = self._tunneled(), tls_context(self._spec.tls)
        except FloodmarkError as error:
            raise StatementFailed(error, again=isinstance(error, TransientError)) from error

        def connect() -> None:
            try:
                connection = self._connect(way, trusting)
            except BaseException as error:
                failed.append(error)
                return
            made.append(connection)
            if late.is_set():
                _close(connection)

        # In a separate thread: the driver's `timeout` would also apply to every later statement.
        thread = threading.Thread(target=connect, name="redshift connect", daemon=True)
        thread.start()
        thread.join(self.limits.connect)
        if thread.is_alive():
            late.set()
            raise StatementFailed(
                TransientError(
                    f"Redshift at {self.address} did not answer within {self.limits.connect:g} s",
                    hint="check warehouse.url, the security group and the network, then run again",
                ),
                again=True,
            )
        if failed:
            raise self._unconnected(failed[0]) from failed[0]
        return made[0]

    def _hop(self) -> tuple[Ssh, str, int] | None:
        """The bastion, if any, and what lies behind it."""
        spec = self._spec
        return None if not (spec.ssh and spec.host and spec.port) else (spec.ssh, spec.host, spec.port)

    def _tunneled(self) -> dict[str, Any]:
        """The driver's options for a tunnel, if any: a socket, so that `host` stays the name to verify."""
        hop = self._hop()
        return {"unix_sock": tunnel.local_socket(*hop), "tcp_keepalive": False} if hop else {}

    def _connect(self, way: dict[str, Any], trusting: ssl.SSLContext | None) -> Any:
        spec = self._spec
        tls = spec.tls.mode if spec.tls else "verify_identity"
        options: dict[str, Any] = {
            "host": spec.host,
            "port": spec.port,
            "database": spec.database,
            "ssl": tls != "disabled",
            "sslmode": "verify-full" if tls == "verify_identity" else "verify-ca",
            "application_name": "floodmark",
            "timeout": None,
            "tcp_keepalive": True,
            "tcp_keepalive_idle": 60,
            "tcp_keepalive_interval": 15,
            "tcp_keepalive_count": 4,
            "max_prepared_statements": 0,
            **_login(spec),
            **way,
        }
        connection = (
            redshift_connector.connect(**options) if trusting is None else connect_trusting(trusting, options)
        )
        connection.autocommit = True  # we send BEGIN and COMMIT ourselves
        # The driver sends a statement in several small packets, each of which would wait for the one before,
        # and has no option for that.
        if not way:
            connection._usock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _unconnected(self, error: BaseException) -> StatementFailed:
        """Why there is no connection."""
        if isinstance(error, botocore.exceptions.ClientError):
            return failure_of(Problem(str(error)), "requesting IAM credentials", denied=LOGGING_IN)
        if isinstance(error, botocore.exceptions.BotoCoreError):
            away = (botocore.exceptions.HTTPClientError, botocore.exceptions.ConnectionError)
            kind = TransientError if isinstance(error, away) else ConfigError
            return StatementFailed(
                kind(
                    f"no IAM credentials for Redshift: {error}",
                    hint="check warehouse.iam and the AWS profile",
                ),
                again=kind is TransientError,
            )
        if (problem := answered(error)) is not None:
            return failure_of(problem, "connecting")
        said = str(error).lower() + str(error.__cause__ or "").lower()
        if "certificate" in said or "refuses ssl" in said or "ssl" in said:
            return StatementFailed(
                TlsError(
                    f"no trusted TLS connection to Redshift at {self.address}: {_short(error)}",
                    hint="check warehouse.tls (ca, mode) and the host in warehouse.url",
                )
            )
        if any(isinstance(part, socket.gaierror) for part in (error, *error.args)):
            return StatementFailed(
                ConfigError(f"there is no host {self._spec.host}", hint="check warehouse.url")
            )
        if isinstance(error, _BROKEN):
            hop = self._hop()
            why = tunnel.complaint(*hop, "socket") if hop else None  # what the bastion reported
            if why is not None:
                return StatementFailed(why, again=isinstance(why, TransientError))
            return StatementFailed(
                TransientError(
                    f"Redshift at {self.address} can't be reached: {_short(error)}",
                    hint="check the network, then run again: nothing is lost",
                ),
                again=True,
            )
        raise error


class SocketSession:
    """One connection. After a lost answer it is not used again."""

    def __init__(self, connection: Any, address: str, limits: Limits) -> None:
        self.pid: int | None = None
        self._connection = connection
        self._address = address
        self._limits = limits
        self._seconds = 0.0  # the current statement_timeout; 0: unknown
        self._waited = False  # the last statement had its own limit
        self._patience = limits.connect

    def prepare(self, label: str) -> None:
        """Apply the session's settings, in as few round trips as possible.

        Outside any transaction, so that LOCK can be a transaction's first statement.
        """
        seconds, group = self._limits.question, literal(label[:320])
        try:
            [(pid, *_)] = self._run(
                f"SELECT pg_backend_pid(), set_config('statement_timeout', '{milliseconds(seconds)}', false), "
                "set_config('timezone', 'UTC', false)"
                + (f", set_config('query_group', {group}, false)" if label else "")
            )
            self._patient(seconds)
        except StatementFailed as failed:
            if failed.lost:
                raise
            # AWS documents set_config as equivalent to SET. If it fails, SET takes a few more round trips.
            self._timeout(seconds)
            self._run("SET TIMEZONE TO 'UTC'")
            if label:
                self._run(f"SET query_group TO {group}")
            [(pid,)] = self._run("SELECT pg_backend_pid()")
        self.pid = int(pid)

    def query(
        self, sql: str, lock: Lock | None = None, *, seconds: float | None = None, waits: float | None = None
    ) -> list[Row]:
        """The rows of a query; with a lock, in a transaction that changes nothing."""
        if lock is None:
            # The usual limit is restored only now: most often no other query follows.
            usual = self._limits.question if self._waited else None
            self._waited = waits is not None
            if bound := waits or seconds or usual:
                self._timeout(bound)
            return self._run(sql)
        try:
            self._begin(lock)
            found = self._run(sql)
        except StatementFailed as failed:
            if not failed.lost:
                self._rollback()
            raise
        self._rollback()
        return found

    def execute(self, sql: str, *, seconds: float | None = None) -> None:
        """Run one statement by itself."""
        self._timeout(self._limits.statement if seconds is None else seconds)
        self._waited = True
        self._run(sql)

    def transaction(self, lock: Lock, steps: Sequence[Step]) -> None:
        """Run the steps and COMMIT, or nothing; unknown if the answer to COMMIT was lost."""
        stage: Literal["lock", "steps", "commit"] = "lock"
        try:
            self._begin(lock)
            stage = "steps"
            self._steps(steps, lock.at_work)
            lock.at_work("commit")
            stage = "commit"
            self._run("COMMIT")
        except StatementFailed as failed:
            failed.stage = stage
            if stage != "commit" and not failed.lost:
                self._rollback()
                detailed(failed, self._run, self.pid)
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the session; anything not committed is rolled back."""
        _close(self._connection)

    def _begin(self, lock: Lock) -> None:
        """Begin a transaction with the lock as its first statement: no earlier snapshot can be stale."""
        self._timeout(lock.seconds)
        self._run("BEGIN")
        lock.waits(Wait("lock", lock.table))
        try:
            self._run(f"LOCK TABLE {lock.table}")
        finally:
            lock.waits(None)
        self._timeout(self._limits.statement)

    def _steps(self, steps: Sequence[Step], at_work: AtWork) -> None:
        changed = 0
        for step in steps:
            bound = step.seconds if isinstance(step, Do) else None
            self._timeout(self._limits.statement if bound is None else bound)
            match step:
                case Do():
                    if (kind := doing(step.sql)) is not None:
                        at_work(kind)
                    changed = self._do(step, changed if step.together else 0)
                case Expect():
                    found = self._value(step.sql)
                    if found != step.want:
                        raise StatementFailed(step.error(found), again=step.again)
                case Choose():
                    self._steps(
                        step.then if self._value(step.sql) == step.want else step.otherwise(), at_work
                    )

    def _do(self, step: Do, before: int) -> int:
        """Run a statement; returns how many rows it has changed, and those changed before."""
        try:
            changed = before + self._changed(step.sql)
        except StatementFailed as failed:
            if failed.canceled and step.seconds is not None:
                raise StatementFailed(Busy(step.sql, step.seconds)) from failed
            raise
        if step.rows is not None and changed >= 0 and changed != step.rows:
            raise StatementFailed(
                TransientError(
                    f"a statement changed {changed:,} rows instead of {step.rows:,}; it was rolled back",
                    hint="run again; if it happens again, look for another writer of the target",
                ),
                again=True,
            )
        return changed

    def _value(self, sql: str) -> object:
        found = self._run(sql)
        return found[0][0] if found else None

    def _timeout(self, seconds: float) -> None:
        """Limit statements from now on, by Redshift's clock and, a little later, by ours."""
        if seconds != self._seconds:
            self._run(f"SET statement_timeout TO {milliseconds(seconds)}")
            self._patient(seconds)

    def _patient(self, seconds: float) -> None:
        self._seconds, self._patience = seconds, seconds + self._limits.grace

    def _run(self, sql: str) -> list[Row]:
        with self._asked(sql) as cursor:
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def _changed(self, sql: str) -> int:
        with self._asked(sql) as cursor:
            return int(cursor.rowcount)

    @contextlib.contextmanager
    def _asked(self, sql: str) -> Iterator[Any]:
        """A cursor with a statement's answer; raises StatementFailed."""
        # No answer long after the server should have given up: cut the socket, which wakes the reader.
        watch = threading.Timer(self._patience, _end, [self._connection])
        watch.daemon = True
        watch.start()
        try:
            cursor = self._connection.cursor()
            with statement("redshift", sql):
                cursor.execute(sql)
            yield cursor
        except _BROKEN as error:
            problem = answered(error)
            raise (failure_of(problem) if problem else lost(error, self._address)) from error
        finally:
            watch.cancel()

    def _rollback(self) -> None:
        """End the transaction, unless the session is already gone."""
        with contextlib.suppress(StatementFailed):
            self._run("ROLLBACK")
        self._seconds = 0.0  # ROLLBACK undoes what was set inside


def _login(spec: WarehouseSpec) -> dict[str, Any]:
    """Who logs in, and how."""
    iam = spec.iam
    if iam is None:
        return {"user": spec.user, "password": spec.password or ""}
    found: dict[str, Any] = {"iam": True, "db_user": spec.user, "region": iam.region, "profile": iam.profile}
    if iam.workgroup:
        found |= {"is_serverless": True, "serverless_work_group": iam.workgroup}
    else:
        found |= {"cluster_identifier": iam.cluster}
    return {name: value for name, value in found.items() if value is not None}


def _short(error: BaseException) -> str:
    return " ".join(str(part).split("\n")[0] for part in error.args) or type(error).__name__


def _end(connection: Any) -> None:
    """Cut the socket under a reader that waits for an answer; `close` would wait along with it."""
    with contextlib.suppress(OSError, AttributeError):
        connection._usock.shutdown(socket.SHUT_RDWR)


def _close(connection: Any) -> None:
    with contextlib.suppress(*_BROKEN):
        connection.close()


_REQUEST = struct.pack("!ii", 8, 80877103)  # PostgreSQL's SSLRequest
# The driver's internal names for these.
_PROPERTIES = {"user": "user_name", "database": "db_name"}
# Options for logging in and for the driver's own TLS.
_SPENT = {"ssl", "sslmode", "iam", "db_user", "region", "profile", "cluster_identifier", "is_serverless"}
_SPENT |= {"serverless_work_group"}


def tls_context(tls: Tls | None) -> ssl.SSLContext | None:
    """An SSL context that trusts the configured CA; None if there is none. Raises ConfigError."""
    if tls is None or tls.ca is None or tls.mode == "disabled":
        return None
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found.check_hostname = tls.mode == "verify_identity"
    try:
        found.load_verify_locations(tls.ca)
    except OSError as error:
        raise ConfigError(
            f"{tls.ca} can't be used as a CA: {error.strerror or error}",
            hint="set warehouse.tls.ca to a PEM file of certificates",
        ) from error
    return found


def connect_trusting(trusting: ssl.SSLContext, options: dict[str, Any]) -> Connection:
    """What `redshift_connector.connect` does for a password or IAM, but with this TLS."""
    info = RedshiftProperty()
    for name, value in options.items():
        info.put(_PROPERTIES.get(name, name), value)
    IamHelper.set_iam_properties(info)
    names = {"user", "password", "database", "host", "port"} | (options.keys() - _SPENT)
    return _Trusting(trusting, {name: getattr(info, _PROPERTIES.get(name, name)) for name in names})


class _Trusting(Connection):
    """The driver's connection, which creates and connects its socket through the attribute `_usock`."""

    def __init__(self, trusting: ssl.SSLContext, options: dict[str, Any]) -> None:
        self._trusting, self._name = trusting, options["host"]
        super().__init__(ssl=False, **options)

    @property  # type: ignore[override]
    def _usock(self) -> _Link:
        return self._link

    @_usock.setter
    def _usock(self, plain: socket.socket) -> None:
        self._link = _Link(plain, self._trusting, self._name)


class _Link:
    """A socket that switches to TLS once connected, before the driver sends its first byte."""

    def __init__(self, plain: socket.socket, trusting: ssl.SSLContext, name: str) -> None:
        self._socket, self._context, self._name = plain, trusting, name

    def connect(self, where: Any) -> None:
        """Connect, request TLS, and verify the server."""
        self._socket.connect(where)
        self._socket.sendall(_REQUEST)
        if self._socket.recv(1) != b"S":
            raise InterfaceError("Server refuses SSL")
        self._socket = self._context.wrap_socket(self._socket, server_hostname=self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)
