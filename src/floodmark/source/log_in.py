"""Logs in to MySQL: with TLS as configured, and so that no eavesdropper can read the password.

PyMySQL logs in, over our own socket and TLS context; statements and rows then go over the same connection without it.
The server's greeting decides before we send anything: if TLS is required and not offered, the server gets
nothing. By design of caching_sha2_password and sha256_password the server itself learns the password, even
one with an unverified certificate; a plug-in that sends it in clear text is used only if the configuration
allows it. The log-in as a whole has a limit on time and on bytes received.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Any

from floodmark.config.load import SourceSpec, Tls
from floodmark.host.process import hidden
from floodmark.model.errors import ConfigError, FloodmarkError, TlsError, causes
from floodmark.source.errors import parts
from floodmark.source.rows import packets as wire

Address = tuple[str, int] | str

# Plug-ins that prove the password without sending it, or send it only inside TLS or encrypted with RSA.
SAFE = ("mysql_native_password", "caching_sha2_password", "sha256_password", "client_ed25519")
CLEAR = "mysql_clear_password"

_PROTOCOL = 10
# Most bytes that a server may send until we are logged in; a tenth is plenty, RSA key included.
_MOST_BYTES = 65_536
# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_OTHER_HOST = (62, 64)


def _import() -> Any:
    """PyMySQL without cryptography: slow to import, and needed only to send a password without TLS."""
    with hidden("cryptography"):
        import pymysql
        from pymysql import _auth

    one = threading.Lock()

    def encrypt(*arguments: Any) -> Any:
        with one:
            if _auth.sha2_rsa_encrypt is encrypt:
                again = importlib.util.module_from_spec(_auth.__spec__)  # with cryptography this time
                _auth.__spec__.loader.exec_module(again)
                if not again._have_cryptography:
                    raise ConfigError(
                        "the password must be encrypted with the server's RSA key, which needs the package cryptography",
                        hint="pip install cryptography, also on the machines of a cluster",
                    )
                _auth.sha2_rsa_encrypt = again.sha2_rsa_encrypt
        return _auth.sha2_rsa_encrypt(*arguments)

    _auth.sha2_rsa_encrypt = encrypt
    return pymysql


pymysql = _import()


def opened(spec: SourceSpec, address: Address, read_timeout: float, connect_timeout: float) -> Connection:
    """A logged-in connection to the server at this address, which may be a tunnel's; raises MySQLError."""
    context = None if spec.tls is not None and spec.tls.mode == "disabled" else _context(spec.tls)
    user, password, database = map(
        _bytes, ("user", "password", "database"), (spec.user, spec.password, spec.database)
    )
    link = _reached(address, spec.host, connect_timeout)
    seconds = read_timeout or None
    try:
        connection = Connection(
            host=spec.host,  # for its certificate
            user=user,
            password=password,
            database=database or None,
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
        connection.spec, connection.until = spec, time.monotonic() + connect_timeout
        connection.connect(link)
        connection.room = None
    except Exception as error:
        link.close()
        if (meaning := _meaning(error)) is error:
            raise
        raise meaning from error
    connection.link = (context.made if context is not None else None) or link
    connection.link.settimeout(seconds)
    return connection


class Connection(pymysql.connections.Connection):  # type: ignore[misc, name-defined]
    """PyMySQL's connection, which checks the server's demands before it complies, and leaves its socket to others then."""

    spec: SourceSpec
    link: socket.socket  # free for others once a statement is answered, until the next statement
    until: float
    room: int | None = _MOST_BYTES  # bytes that may still arrive before we are logged in
    ssl: bool
    client_flag: int

    def _read_bytes(self, num_bytes: int) -> bytes:
        if self.room is None:
            return bytes(super()._read_bytes(num_bytes))
        self.room -= num_bytes
        if self.room < 0:
            raise wire.malformed()
        found = b""
        while len(found) < num_bytes:
            self._wait_no_longer()
            piece = self._rfile.read1(
                num_bytes - len(found)
            )  # a single read, so that a trickle of bytes can't outlast the deadline
            if not piece:
                raise ConnectionError("the server closed the connection")
            found += piece
        return found

    def _write_bytes(self, data: bytes) -> None:
        if self.room is not None:
            self._wait_no_longer()
        super()._write_bytes(data)

    def _wait_no_longer(self) -> None:
        """Limits the socket to the time left, so that its next operation, or a handshake, ends by then."""
        if (left := self.until - time.monotonic()) <= 0:
            raise TimeoutError
        self._sock.settimeout(left)

    def _get_server_information(self) -> None:
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

    @property
    def number(self) -> int:
        """The server's id of this connection."""
        return int(self.thread_id())

    def close(self) -> None:
        with suppress(pymysql.MySQLError):  # it is closed
            super().close()

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """Does nothing: the session's first statement sets the character set, along with everything else."""


def _is_verified(link: socket.socket, spec: SourceSpec) -> bool:
    """Whether the other end has proven to be the server with that name."""
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
    """What the server must present, by mode; a `ca` is used in every mode that has one."""
    mode = tls.mode if tls else "required"
    ca = tls.ca if tls else None
    context = _Context(ssl.PROTOCOL_TLS_CLIENT)
    # Public CAs certify anyone: without a check of the host name, their signature proves nothing.
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
            )  # otherwise OpenSSL would prompt at the terminal
        except OSError as error:
            raise _unreadable("key" if tls.key else "cert", tls.key or tls.cert, error) from error
    return context


def _unreadable(name: str, path: object, error: OSError) -> ConfigError:
    why = (
        "it is not a PEM file of that kind, or it has a passphrase" if isinstance(error, ssl.SSLError) else ""
    )
    return ConfigError(
        f"source.tls.{name}: {path} can't be read: {why or error.strerror}", hint="name a readable PEM file"
    )


def _bytes(name: str, text: str | None) -> bytes:
    """The text as sent. Environment bytes that aren't UTF-8 are sent unchanged."""
    try:
        return (text or "").encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise ConfigError(
            f"source.url: the {name} contains an incomplete character, which can't be sent", hint="correct it"
        ) from None


def _reached(address: Address, host: str, seconds: float) -> socket.socket:
    """A connection on which nothing has been exchanged yet."""
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
        raise wire.MySQLError(2005, f"the host name {host} is unknown") from error
    except TimeoutError as error:
        raise _silent() from error
    except ConnectionRefusedError as error:
        raise wire.MySQLError(2003, "the connection was refused") from error
    except OSError as error:
        raise wire.MySQLError(2003, error.strerror or str(error)) from error


# ---------------------------------------------------------------- failures


def _no_tls(spec: SourceSpec, tls: Tls) -> TlsError:
    return TlsError(
        f"{spec.host} offers no TLS, but source.tls.mode is {tls.mode}",
        hint="enable TLS on the server, or set source.tls.mode: disabled",
    )


def _unsafe(spec: SourceSpec, name: str) -> ConfigError:
    """The error for a server that wants the password in a way that we refuse."""
    if name == CLEAR:
        return ConfigError(
            f"{spec.host} asks for the password in clear text ({name}); it was not sent",
            hint="if you trust that server: source.cleartext_password: true, with tls.mode: verify_identity",
        )
    return ConfigError(
        f"{spec.host} requires the log-in plug-in {name[:64]}, which Floodmark does not support",
        hint=f"switch {spec.user} to one of {', '.join(SAFE[:3])}, ed25519",
    )


def _need_pynacl(spec: SourceSpec) -> None:
    try:
        importlib.import_module("nacl.bindings")
    except ImportError as error:
        raise ConfigError(
            f"{spec.user} logs in to {spec.host} with ed25519, which needs the package PyNaCl",
            hint="pip install 'floodmark[ed25519]', also on the machines of a cluster",
        ) from error


def _meaning(error: Exception) -> Exception:
    """What a failed log-in means: our error, the server's refusal or certificate, no answer, or a cut."""
    if isinstance(error, (FloodmarkError, wire.MySQLError)):
        return error
    code, text = parts(error) if isinstance(error, pymysql.MySQLError) else (0, "")
    if code >= 1000 and not 2000 <= code < 3000:  # the server's own; the others are the client's
        return wire.MySQLError(code, text)
    found = list(causes(error))
    for cause in found:
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message.rstrip(".")
            refused = wire.NotTrusted(2026, f"its certificate was rejected: {why}")
            refused.other_host = cause.verify_code in _OTHER_HOST
            return refused
        if isinstance(cause, TimeoutError):
            return _silent()
        # A server that shuts down or has too many connections sends plain text in place of a handshake.
        cut = isinstance(cause, ssl.SSLEOFError) or getattr(cause, "reason", "") == "WRONG_VERSION_NUMBER"
        if isinstance(cause, ssl.SSLError) and not cut:
            return wire.MySQLError(2026, f"TLS failed: {cause.reason or cause.strerror or cause}")
    if any(isinstance(cause, OSError) for cause in found) or code:
        return wire.MySQLError(2013, "Lost connection to server during the log-in")
    return wire.malformed()


def _silent() -> wire.MySQLError:
    return wire.MySQLError(2003, "no answer")
