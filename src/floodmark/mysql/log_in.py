"""Logging in to MySQL: TLS as the configuration wants it, and a password that no server gets to read.

PyMySQL logs in, over a socket and with a TLS context of ours, so that rows can be taken off the same connection later. The
server's greeting decides before anything is sent: where TLS was asked for and is not offered, it hears nothing. A server
that asks for the password by a plug-in that sends it as it is gets none, unless the configuration allows that.
"""

from __future__ import annotations

import importlib
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from floodmark.config import SourceSpec, Tls
from floodmark.errors import ConfigError, FloodmarkError
from floodmark.mysql import wire

Address = tuple[str, int] | str

# Plug-ins that prove the password without sending it, or send it only inside TLS or encrypted with an RSA key.
SAFE = ("mysql_native_password", "caching_sha2_password", "sha256_password", "client_ed25519")
CLEAR = "mysql_clear_password"

_PROTOCOL = 10


class _Later:
    """Hides a package from the imports of one thread."""

    def __init__(self, name: str) -> None:
        self._name, self._thread = name, threading.get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is imported when it is needed", name=name)


def _import() -> Any:
    """PyMySQL without cryptography, which takes longer than all the rest and only sends a password without TLS."""
    later = _Later("cryptography")
    sys.meta_path.insert(0, later)
    try:
        import pymysql
        from pymysql import _auth
    finally:
        sys.meta_path.remove(later)

    def encrypt(*arguments: Any) -> Any:
        importlib.reload(_auth)  # with cryptography this time, and without this function
        if not _auth._have_cryptography:
            _auth.sha2_rsa_encrypt = encrypt
            raise ConfigError(
                "the password has to be encrypted with the server's RSA key, which needs the package cryptography",
                hint="pip install cryptography, on a cluster's machines too",
            )
        return _auth.sha2_rsa_encrypt(*arguments)

    _auth.sha2_rsa_encrypt = encrypt
    return pymysql


pymysql = _import()


class Link:
    """A connection that is logged in: PyMySQL's for questions, its socket for whoever reads rows."""

    def __init__(self, connection: Any, socket: socket.socket) -> None:
        self.socket = socket  # free for others between a statement's answer and the next statement
        self._connection = connection
        self._cursor: Any = None

    def ask(self, sql: bytes) -> tuple[list[str], list[Any]]:
        """The columns' names and the rows of a small result; none for statements without one."""
        try:
            self._cursor = self._connection.cursor()
            self._cursor.execute(sql)
            about, rows = self._cursor.description, self._cursor.fetchall()
        except pymysql.MySQLError as error:
            code, text = _parts(error)
            raise (wire.MySQLError(code, text) if _is_servers(code) else wire.lost()) from error
        except Exception as error:  # whatever an odd packet does to its parser
            self.close()
            raise wire.malformed() from error
        if about is None:
            return [], []
        if any(len(row) != len(about) for row in rows):
            self.close()
            raise wire.malformed()
        return [str(column[0]) for column in about], list(rows)

    def warnings(self) -> int:
        """How many warnings the last question left."""
        return int(self._cursor.warning_count)

    @property
    def number(self) -> int:
        """The server's number for this connection."""
        return int(self._connection.thread_id())

    def close(self) -> None:
        with suppress(pymysql.MySQLError):
            self._connection.close()


def opened(spec: SourceSpec, address: Address, read_timeout: float, connect_timeout: float) -> Link:
    """A connection to the server at this address, by way of which it may be another than its own; raises MySQLError."""
    context = None if spec.tls is not None and spec.tls.mode == "disabled" else _context(spec.tls)
    link = _reached(address, spec.host, connect_timeout)
    seconds = read_timeout or None
    try:
        connection = _Connection(
            host=spec.host,  # for its certificate
            user=spec.user,
            password=spec.password.encode(),
            database=spec.database or None,
            charset="utf8mb4",
            conv={},
            use_unicode=False,
            autocommit=None,
            program_name="floodmark",
            read_timeout=seconds,
            write_timeout=seconds,
            ssl_disabled=context is None,
            ssl=context,
            defer_connect=True,
        )
        connection.spec, connection.patience = spec, connect_timeout
        connection.connect(link)
    except Exception as error:
        link.close()
        raise _meaning(error) from error
    made = (context.made if context is not None else None) or link
    made.settimeout(seconds)
    return Link(connection, made)


class _Connection(pymysql.connections.Connection):  # type: ignore[misc, name-defined]
    """PyMySQL's connection, which looks at what the server wants before it does that."""

    spec: SourceSpec
    patience: float
    ssl: bool
    client_flag: int

    def _get_server_information(self) -> None:
        self._sock.settimeout(self.patience)
        super()._get_server_information()
        if self.protocol_version != _PROTOCOL:
            raise wire.malformed()
        if self.ssl and not self.server_capabilities & wire.CLIENT_SSL:
            if self.spec.tls is not None:
                raise _no_tls(self.spec, self.spec.tls)
            self.ssl, self.client_flag = False, self.client_flag & ~wire.CLIENT_SSL

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, handler: Any = None) -> Any:
        name = plugin_name.decode(errors="replace")
        clear = name == CLEAR and self.spec.cleartext_password and _is_verified(self._sock, self.spec)
        if name not in SAFE and not clear:
            raise _unsafe(self.spec, name)
        if name == "client_ed25519":
            _need_pynacl(self.spec)
        return super()._process_auth(plugin_name, auth_packet, handler)

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """Nothing: the session's first statement says it, with all the rest."""


def _is_verified(link: socket.socket, spec: SourceSpec) -> bool:
    """Whether the other end has proven that it is the server of that name."""
    mode = spec.tls.mode if spec.tls is not None else None
    return isinstance(link, ssl.SSLSocket) and mode == "verify_identity"


# ---------------------------------------------------------------- sockets


class _Context(ssl.SSLContext):
    """Keeps the socket that it has encrypted."""

    made: ssl.SSLSocket | None = None

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        self.made = super().wrap_socket(*args, **options)
        return self.made


def _context(tls: Tls | None) -> _Context:
    """What the server has to show, by mode; a `ca` is used in every mode that has one."""
    mode = tls.mode if tls else "required"
    ca = tls.ca if tls else None
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    # The authorities that everybody trusts certify everybody: without the name, their word is worth nothing.
    context.check_hostname = mode == "verify_identity" or (mode == "verify_ca" and ca is None)
    try:
        if ca is not None:
            context.load_verify_locations(ca)
        elif mode == "required":
            context.verify_mode = ssl.CERT_NONE
        else:
            context.load_default_certs()
    except OSError as error:
        raise _unreadable("ca", ca, error) from error
    if tls is not None and tls.cert is not None:
        for name, path in (("cert", tls.cert), ("key", tls.key or tls.cert)):
            try:
                path.open("rb").close()
            except OSError as error:
                raise _unreadable(name, path, error) from error
        try:
            context.load_cert_chain(
                tls.cert, tls.key, password=lambda: b""
            )  # else it would ask at the terminal
        except OSError as error:
            raise _unreadable("key" if tls.key else "cert", tls.key or tls.cert, error) from error
    return context


def _unreadable(name: str, path: object, error: OSError) -> ConfigError:
    why = "it is no PEM file of that kind, or has a passphrase" if isinstance(error, ssl.SSLError) else ""
    return ConfigError(
        f"source.tls.{name}: {path} can't be read: {why or error.strerror}", hint="name a readable PEM file"
    )


def _reached(address: Address, host: str, seconds: float) -> socket.socket:
    """A connection on which nothing was said yet."""
    try:
        if not isinstance(address, str):
            link = socket.create_connection(address, seconds)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return link
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(seconds)
            link.connect(address)
            return link
        except BaseException:
            link.close()
            raise
    except (socket.gaierror, UnicodeError) as error:
        raise wire.MySQLError(2005, f"the name {host} is unknown") from error
    except TimeoutError as error:
        raise _silent() from error
    except ConnectionRefusedError as error:
        raise wire.MySQLError(2003, "the connection was refused") from error
    except OSError as error:
        raise wire.MySQLError(2003, error.strerror or str(error)) from error


# ---------------------------------------------------------------- failures


def _no_tls(spec: SourceSpec, tls: Tls) -> ConfigError:
    return ConfigError(
        f"{spec.host} offers no TLS, and source.tls.mode is {tls.mode}",
        hint="switch TLS on at the server, or set source.tls.mode: disabled",
    )


def _unsafe(spec: SourceSpec, name: str) -> ConfigError:
    """The error for a server that wants the password in a way that it does not get."""
    if name == CLEAR:
        return ConfigError(
            f"{spec.host} asks for the password in clear text ({name}), and got none",
            hint="if that server is to have it: source.cleartext_password: true, with tls.mode: verify_identity",
        )
    return ConfigError(
        f"{spec.host} asks for a log-in by {name[:64]}, which Floodmark does not have",
        hint=f"give {spec.user} one of {', '.join(SAFE[:3])}, ed25519",
    )


def _need_pynacl(spec: SourceSpec) -> None:
    try:
        importlib.import_module("nacl.bindings")
    except ImportError as error:
        raise ConfigError(
            f"{spec.user} logs in to {spec.host} by ed25519, which needs the package PyNaCl",
            hint="pip install 'floodmark[ed25519]', on a cluster's machines too",
        ) from error


def _meaning(error: Exception) -> Exception:
    """What it means that the log-in failed: ours to say, the server's own refusal, its certificate, no answer or a cut."""
    if isinstance(error, (FloodmarkError, wire.MySQLError)):
        return error
    code, text = _parts(error) if isinstance(error, pymysql.MySQLError) else (0, "")
    if _is_servers(code):
        return wire.MySQLError(code, text)
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message.rstrip(".")
            return wire.MySQLError(2026, f"its certificate is not accepted: {why}")
        if isinstance(cause, TimeoutError):
            return _silent()
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            return wire.MySQLError(2026, f"no TLS: {cause.reason or cause.strerror or cause}")
    if any(isinstance(cause, OSError) for cause in causes) or code:
        return wire.MySQLError(2013, "Lost connection to server during the log-in")
    return wire.malformed()


def _silent() -> wire.MySQLError:
    return wire.MySQLError(2003, "no answer")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_servers(code: int) -> bool:
    """Whether it is a number of the server's; the others are the client's own."""
    return code >= 1000 and not 2000 <= code < 3000


def _parts(error: Exception) -> tuple[int, str]:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return code, str(error.args[-1]) if error.args else type(error).__name__
