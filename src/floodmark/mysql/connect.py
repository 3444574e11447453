"""Connections to the source: read-only sessions with fixed settings, TLS that is enforced, bounded waits.

Cells arrive as the bytes of MySQL's text protocol, unless `columns` reads them past the driver. Every failure becomes
a Floodmark error here, so no caller knows the driver. A session never falls back to plain text when TLS was asked for.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, TypeVar

import pyarrow as pa
from MySQLdb import _mysql

from floodmark import tunnel
from floodmark.config import SourceSpec, Ssh, Tls
from floodmark.errors import ConfigError, TransientError
from floodmark.mysql.answer import Answer
from floodmark.mysql.failures import WRONG_NAME, translated
from floodmark.mysql.pinned import GROUP, OTHER, fingerprint, option_file

Row = tuple[bytes | None, ...]
Cells = tuple[Row, ...] | list[Row]
Block = TypeVar("Block")

CONNECT_SECONDS = 5
# How our statements begin, for whoever reads the process list, and for ourselves.
LABEL = "/* floodmark: "
# The server waits this long for a reader that is busy writing to the store.
WRITE_SECONDS = 3600

# Settings that older servers don't know, and that MariaDB takes for a comment: sizes in information_schema are of now,
# not of yesterday, and plans come from the optimizer that can print them.
_NEWER = (
    " /*!80003 , information_schema_stats_expiry = 0 */"
    " /*!90700 , optimizer_switch = 'hypergraph_optimizer=off' */"
)

# Of the protocol: what both sides may have agreed on.
_CLIENT_SSL, _CLIENT_COMPRESS = 0x0800, 0x0020

_MODES = {
    "disabled": "DISABLED",
    "required": "REQUIRED",
    "verify_ca": "VERIFY_CA",
    "verify_identity": "VERIFY_IDENTITY",
}


class Session:
    """One connection. Text arrives as UTF-8, TIMESTAMPs in `zone`; writes are refused by the server."""

    def __init__(
        self,
        spec: SourceSpec,
        *,
        read_timeout: int = 60,
        connect_timeout: int = CONNECT_SECONDS,
        zone: str = "+00:00",
        purpose: str = "query",
        bulk: bool = False,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`bulk` is for many rows: TLS is Python's own where that can be. `closed` is called at the end, perhaps twice."""
        self.spec = spec
        self._closed = closed
        self._label = f"{LABEL}{purpose.replace('*/', '* /')} */ "
        self._read_timeout = read_timeout
        self._answer: Answer | None = None  # to the last statement, where the driver has not seen it
        self._link: Any = _connect(spec, read_timeout, connect_timeout, bulk)
        self._tls: ssl.SSLSocket | None = getattr(self._link, "tls", None)
        # Whether answers can be read off the socket, past the driver.
        self.direct = self._tls is not None or _is_plain(self._link, spec)
        # The driver lets no other thread near the connection, and `abort` comes from another.
        self._wire = socket.socket(fileno=os.dup(self._link.fileno()))
        try:
            self._check_encryption()
            self.rows("SET NAMES utf8mb4")
            self.rows(
                f"SET SESSION time_zone = '{zone}', sql_mode = '', net_write_timeout = {WRITE_SECONDS}{_NEWER}"
            )
            self.rows("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        except BaseException:
            self.close()
            raise

    @property
    def connection_id(self) -> int:
        """The server's number for this connection."""
        return int(self._link.thread_id())

    def rows(self, sql: str) -> list[Row]:
        """All rows of a small result; none for statements without one."""
        return self._stored(sql)[1]

    def named(self, sql: str) -> list[dict[str, str | None]]:
        """All rows of a small result by their columns' names, as text."""
        names, rows = self._stored(sql)
        return [
            {
                n: None if cell is None else cell.decode(errors="replace")
                for n, cell in zip(names, row, strict=True)
            }
            for row in rows
        ]

    def records(self, sql: str) -> list[dict[str, bytes | None]]:
        """The same by column names, in lower case: for results whose columns differ between servers."""
        names, rows = self._stored(sql)
        return [dict(zip([name.lower() for name in names], row, strict=True)) for row in rows]

    def _stored(self, sql: str) -> tuple[list[str], list[Row]]:
        """The columns' names and all rows of a small result."""
        self._send(sql)
        try:
            result = self._link.store_result()
            if result is None:
                return [], []
            return [str(column[0]) for column in result.describe()], list(result.fetch_row(0))
        except _mysql.MySQLError as error:
            raise translated(error, self.spec) from error

    def stream(self, sql: str, size: int) -> Stream[Cells]:
        """The rows of a large result, `size` at a time. Nothing else may be asked until it has ended."""
        self._send(sql)
        try:
            return Stream(self, size, self._link.use_result())
        except _mysql.MySQLError as error:
            self.close()
            raise translated(error, self.spec) from error

    def columns(self, sql: str, size: int, wanted: Sequence[pa.DataType]) -> Stream[list[Any]]:
        """The same as a stream of columns, past the driver; for sessions that are `direct`.

        `wanted` are the types that the columns will have; numbers and moments may have theirs already.
        """
        try:
            self._answer = Answer(self._tls or self._wire, wanted, self._read_timeout)
            self._answer.ask((self._label + sql).encode(), self._link.send_query)
        except _mysql.MySQLError as error:
            if self._answer is None or not self._answer.refused:
                self.close()
            raise translated(error, self.spec) from error
        return Stream(self, size, self._answer)

    def warnings(self) -> int:
        """How many warnings the last statement left; of a stream, only after its end."""
        return self._answer.warnings if self._answer is not None else int(self._link.warning_count())

    def abort(self) -> None:
        """Ends, from any thread, whatever the connection waits for; its user gets an error."""
        with suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection; safe to call twice."""
        with suppress(_mysql.MySQLError):
            self._link.close()
        self._wire.close()
        self._closed()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, sql: str) -> None:
        self._answer = None
        try:
            self._link.query((self._label + sql).encode())
        except _mysql.MySQLError as error:
            raise translated(error, self.spec) from error

    def _check_encryption(self) -> None:
        """libmariadb's REQUIRED connects in plain text to a server without TLS; so the server is asked."""
        tls = self.spec.tls
        if tls is None or tls.mode == "disabled":
            return
        found = self.rows("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        if not found or not found[0][1]:
            raise ConfigError(
                f"{self.spec.host} offers no TLS, and source.tls.mode is {tls.mode}",
                hint="switch TLS on at the server, or set source.tls.mode: disabled",
            )


class Stream(Generic[Block]):
    """The blocks of a result as they arrive. Only an iteration that ends by itself was complete.

    Leaving early closes the connection first: to drop a half-read result would read it to its end.
    """

    def __init__(self, session: Session, size: int, result: Any) -> None:
        """`result` is the driver's or an `Answer`."""
        self.size = size
        self._session = session
        self._result = result
        self._ended = False

    def __iter__(self) -> Stream[Block]:
        return self

    def __next__(self) -> Block:
        if self._ended:
            raise StopIteration
        try:
            rows: Block = self._result.fetch_row(self.size)
        except _mysql.MySQLError as error:
            self._session.close()
            raise translated(error, self._session.spec) from error
        if not rows:
            self._ended = True
            raise StopIteration
        return rows

    def close(self) -> None:
        if not self._ended:
            self._session.close()
        self._ended = True
        self._result = None

    def __enter__(self) -> Stream[Block]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def unable(spec: SourceSpec) -> str | None:
    """Why `bulk` sessions with this server had to be the driver's, if they had to."""
    from floodmark.mysql import encrypted

    return encrypted.unable(spec)


# ---------------------------------------------------------------- connecting


def _connect(spec: SourceSpec, read_timeout: int, connect_timeout: int, bulk: bool = False) -> Any:
    """A connection of the driver's, or for many rows one whose TLS is ours."""
    open_ = _encrypted if bulk and (spec.tls is None or spec.tls.mode != "disabled") else _driven
    if spec.ssh is not None:
        return _through(spec.ssh, spec, lambda port: open_(spec, port, read_timeout, connect_timeout))
    try:
        return open_(spec, None, read_timeout, connect_timeout)
    except _mysql.MySQLError as error:
        raise translated(error, spec) from error


def _through(ssh: Ssh, spec: SourceSpec, open_: Callable[[int], Any]) -> Any:
    """A connection by way of a tunnel, which is opened when it is not open."""
    port = tunnel.local_port(ssh, spec.host, spec.port)
    try:
        try:
            return open_(port)
        except _mysql.MySQLError as error:
            raise translated(error, spec) from error
    except TransientError as error:
        # The tunnel's local end always answers; what became of the rest of the way, only ssh knows.
        if (why := tunnel.complaint(ssh, spec.host, spec.port)) is not None:
            raise why from error
        raise


def _encrypted(spec: SourceSpec, port: int | None, read_timeout: int, connect_timeout: int) -> Any:
    """A connection whose TLS is ours, else one of the driver's; `port` is the local end of a tunnel."""
    try:
        from floodmark.mysql import encrypted  # takes its time, and only a worker needs it
    except ImportError:  # a cluster's machine whose packages are older than the code
        return _driven(spec, port, read_timeout, connect_timeout)
    if encrypted.unable(spec) is not None:
        return _driven(spec, port, read_timeout, connect_timeout)
    if spec.tls is not None:
        _files(spec.tls)
    address = ("127.0.0.1", port) if port is not None else spec.socket or (spec.host, spec.port)
    try:
        return encrypted.opened(spec, address, read_timeout, connect_timeout)
    except encrypted.Unable as unable:
        link = _driven(spec, port, read_timeout, connect_timeout)
        encrypted.remember(spec, unable)
        return link


def _driven(spec: SourceSpec, port: int | None, read_timeout: int, connect_timeout: int) -> Any:
    """A connection of the driver's."""
    if port is not None:
        return _at(port, spec, read_timeout, connect_timeout)
    tls = spec.tls
    try:
        return _open(spec, read_timeout, connect_timeout, _MODES[tls.mode] if tls else "REQUIRED")
    except _mysql.MySQLError as error:
        if tls is None or tls.mode != "verify_ca" or not _only_the_name_is_wrong(error, tls):
            raise
    # libmariadb can't check the chain without the name, but checks the chain alone when it is given a CA and not
    # told to verify. The first attempt has shown that the server speaks TLS with a certificate of that CA.
    return _open(spec, read_timeout, connect_timeout, "REQUIRED")


def _at(port: int, spec: SourceSpec, read_timeout: int, connect_timeout: int) -> Any:
    """A connection to the local end of a tunnel; where the server is to be verified, under its real name."""
    tls, local = spec.tls, replace(spec, host="127.0.0.1", port=port)
    if tls is None or tls.mode in ("disabled", "required"):
        return _open(local, read_timeout, connect_timeout, _MODES[tls.mode] if tls else "REQUIRED")
    _files(tls)
    for renewed in (False, True):
        with option_file(fingerprint(spec, tls, port, connect_timeout)) as file:
            try:
                return _open(local, read_timeout, connect_timeout, "REQUIRED", file)
            except _mysql.MySQLError as error:
                if renewed or OTHER not in str(error):
                    raise
        fingerprint.cache_clear()  # its certificate may be a new one since it was checked
    raise AssertionError("unreachable")


def _open(
    spec: SourceSpec, read_timeout: int, connect_timeout: int, mode: str, pin: str | None = None
) -> Any:
    tls = spec.tls
    options: dict[str, Any] = {"ssl_mode": mode}
    if pin is not None:
        options |= {"read_default_file": pin, "read_default_group": GROUP}
    if tls is not None and tls.mode != "disabled":
        options["ssl"] = _files(tls)
    if spec.socket is not None:
        options["unix_socket"] = spec.socket
    return _mysql.connect(
        # In lower case, libmariadb takes this name for a Unix socket, whatever the port.
        host="LOCALHOST" if spec.host == "localhost" and spec.socket is None else spec.host,
        port=spec.port,
        user=spec.user,
        password=spec.password,
        database=spec.database or "",
        conv={},
        charset="utf8mb4",
        connect_timeout=connect_timeout,
        read_timeout=read_timeout,
        write_timeout=read_timeout,
        local_infile=0,
        **options,
    )


def _files(tls: Tls) -> dict[str, str]:
    found = {}
    for name, path in (("ca", tls.ca), ("cert", tls.cert), ("key", tls.key)):
        if path is None:
            continue
        try:
            with open(path, "rb"):
                found[name] = str(path)
        except OSError as error:
            raise ConfigError(
                f"source.tls.{name}: {path} can't be read: {error.strerror}", hint="name a readable PEM file"
            ) from error
    return found


def _is_plain(link: Any, spec: SourceSpec) -> bool:
    """Whether the protocol goes over the socket as it is, and the library reads no answer before it is asked to."""
    offered = link.server_capabilities & _CLIENT_SSL
    wanted = spec.tls is None or spec.tls.mode != "disabled"
    spoken = link.client_flag & link.server_capabilities
    tried = re.match(r"3\.|10\.", str(_mysql.get_client_info())) is not None  # MariaDB's
    return tried and not (offered and wanted) and not spoken & (_CLIENT_SSL | _CLIENT_COMPRESS)


def _only_the_name_is_wrong(error: Exception, tls: Tls) -> bool:
    # What the second attempt relies on was measured with these versions; later ones skip the chain as well.
    known = re.match(r"3\.[123]\.|10\.\d+\.", str(_mysql.get_client_info())) is not None
    return known and tls.ca is not None and WRONG_NAME in str(error)
