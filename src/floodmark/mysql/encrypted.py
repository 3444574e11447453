"""Connections whose TLS is Python's own, so that rows can be taken off them past the driver.

The keys of the driver's connections are inside its library; here PyMySQL logs in, and the socket is ours. It speaks TLS
or does not log in, and checks a certificate at least as strictly as the driver does. Where it is unable (a way to log in
that only the driver knows, an old TLS, a certificate that it does not accept) the driver has the last word, and the words.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pymysql

from floodmark.config import SourceSpec, Tls
from floodmark.mysql import wire
from floodmark.mysql.greeting import Address, reached, silent

# For so long a server is not asked again that only the driver could log in to.
REMEMBERED = 600.0

_QUERY = b"\3"
# The server can't talk with PyMySQL: an odd handshake, a log-in from before plugins.
_MISUNDERSTOOD = {1043, 1251}
_CUT = {2006, 2013}


class Unable(Exception):
    """Why there is no such connection; the driver may be able. What is `lasting` would be the same the next time."""

    def __init__(self, why: str, lasting: bool) -> None:
        super().__init__(why)
        self.lasting = lasting


class Link:
    """A connection with those methods and exceptions of the driver's that a session needs."""

    def __init__(self, connection: Any, tls: ssl.SSLSocket) -> None:
        self.tls = tls  # free for others between a statement's answer and the next statement
        self._connection = connection
        self._cursor: Any = None

    def query(self, sql: bytes) -> None:
        with _as_the_driver():
            self._cursor = self._connection.cursor()
            self._cursor.execute(sql)

    def store_result(self) -> Stored | None:
        return None if self._cursor.description is None else Stored(self._cursor)

    def send_query(self, sql: bytes) -> None:
        """Sends a query whose answer somebody else reads."""
        try:
            self.tls.sendall(wire.packets(_QUERY + sql))
        except OSError as error:
            raise wire.lost() from error

    def warning_count(self) -> int:
        return int(self._cursor.warning_count)

    def thread_id(self) -> int:
        return int(self._connection.thread_id())

    def fileno(self) -> int:
        return self.tls.fileno()

    def close(self) -> None:
        with suppress(pymysql.MySQLError):
            self._connection.close()


class Stored:
    """All rows of a small result."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def describe(self) -> Any:
        return self._cursor.description

    def fetch_row(self, _: int) -> Any:
        return self._cursor.fetchall()


def opened(spec: SourceSpec, address: Address, read_timeout: int, connect_timeout: float) -> Link:
    """A connection to the server at this address; raises Unable, or what the driver would raise as well."""
    try:
        context = _context(spec.tls, connect_timeout, spec.ssh is not None)
        link = reached(address, connect_timeout)
    except TimeoutError as error:
        raise silent("handshake: reading initial communication packet") from error
    except OSError as error:  # bad PEM files among them
        raise Unable(str(error), lasting=isinstance(error, ssl.SSLError)) from error
    seconds = read_timeout or None
    try:
        connection = pymysql.Connection(
            host=spec.host,  # for its certificate
            user=spec.user,
            password=spec.password.encode(),
            database=spec.database or None,
            charset="utf8mb4",
            conv={},
            use_unicode=False,
            autocommit=None,
            read_timeout=seconds,
            write_timeout=seconds,
            ssl=context,
            defer_connect=True,
        )
        connection.connect(link)
    except Exception as error:
        link.close()
        raise _meaning(error) from error
    if context.made is None:  # it says that it has required TLS
        connection.close()
        raise Unable("the server offers no TLS", lasting=True)
    context.made.settimeout(seconds)
    return Link(connection, context.made)


class _Context(ssl.SSLContext):
    """Keeps the socket that it has encrypted, and bounds the time that the log-in may take."""

    made: ssl.SSLSocket | None = None
    seconds = 0.0

    def wrap_socket(self, sock: socket.socket, *args: Any, **options: Any) -> ssl.SSLSocket:
        sock.settimeout(self.seconds)
        self.made = super().wrap_socket(sock, *args, **options)
        return self.made


def _context(tls: Tls | None, seconds: float, tunnelled: bool) -> _Context:
    """What the server has to show, by mode; a `ca` is used in every mode that has one."""
    mode = tls.mode if tls else "required"
    ca = tls.ca if tls else None
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    context.seconds = seconds
    # Without a CA the driver checks the name in both modes, unless it is told of a certificate that was checked before.
    context.check_hostname = mode == "verify_identity" or (
        mode == "verify_ca" and ca is None and not tunnelled
    )
    if ca is not None:
        context.load_verify_locations(ca)
    elif mode == "required":
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_default_certs()
    if tls is not None and tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key, password=lambda: b"")  # else it would ask at the terminal
    return context


# ---------------------------------------------------------------- failures


def _meaning(error: Exception) -> Exception:
    """What it means that the log-in failed: the server's own refusal, no answer, or that the driver should try."""
    code, text = _parts(error)
    if _is_servers(code) and code not in _MISUNDERSTOOD:
        return wire.raised(code, text)
    causes = list(_causes(error))
    if any(isinstance(cause, TimeoutError) for cause in causes):
        return silent("reading authorization packet")
    cut = any(isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) for cause in causes)
    return Unable(text, lasting=not cut and code not in _CUT)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def _as_the_driver() -> Iterator[None]:
    try:
        yield
    except pymysql.MySQLError as error:
        code, text = _parts(error)
        raise (wire.raised(code, text) if _is_servers(code) else wire.lost()) from error


def _is_servers(code: int) -> bool:
    """Whether it is a number of the server's; the others are the client's own."""
    return code >= 1000 and not 2000 <= code < 3000


def _parts(error: Exception) -> tuple[int, str]:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return code, str(error.args[-1]) if error.args else type(error).__name__


# ---------------------------------------------------------------- what is known of servers


def unable(spec: SourceSpec) -> str | None:
    """Why only the driver can log in to this server, if that was found out lately."""
    when, why = _known.get(spec, (0.0, None))
    return why if why is not None and time.monotonic() - when < REMEMBERED else None


def remember(spec: SourceSpec, why: Unable) -> None:
    """The driver was able where we were not."""
    if why.lasting:
        _known[spec] = (time.monotonic(), str(why))


# A process talks with one source, over many connections: each would try in vain.
_known: dict[SourceSpec, tuple[float, str]] = {}
