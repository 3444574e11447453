"""The certificate of a MySQL server behind a tunnel, checked against the server's real name.

libmariadb checks a certificate against the host that it connects to, and through a tunnel that is 127.0.0.1. So the
check is made here, in a TLS handshake without a log-in, and libmariadb is then held to exactly that certificate: with
a fingerprint given it neither logs in to a server with another one, nor in plain text.
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from MySQLdb import _mysql

from floodmark.config import SourceSpec, Tls
from floodmark.errors import ConfigError, TransientError
from floodmark.mysql.greeting import CLIENT_SSL, capabilities, packet
from floodmark.scratch import scratched

# What libmariadb says when the server shows another certificate than the pinned one.
OTHER = "Fingerprint verification of server certificate failed"
GROUP = "floodmark"

# Of the protocol: with CLIENT_SSL, CLIENT_PROTOCOL_41 and CLIENT_SECURE_CONNECTION.
_REQUEST = CLIENT_SSL | 0x0200 | 0x8000
_UTF8MB4 = 45


@contextmanager
def option_file(digest: str) -> Iterator[str]:
    """A file of libmariadb's options that pins a certificate: the driver has no argument for it."""
    with scratched("floodmark-pin-") as folder:  # a killed run's goes with the next one's
        file = folder / "pin.cnf"
        file.write_text(f"[{GROUP}]\ntls-fp={digest}\n")
        yield str(file)


@lru_cache(maxsize=16)
def fingerprint(spec: SourceSpec, tls: Tls, port: int, seconds: float) -> str:
    """The fingerprint of the server's certificate once it is known to be good; asked once per tunnel."""
    library = str(_mysql.get_client_info())
    if re.match(r"(3|1[0-9])\.", library) is None:
        raise ConfigError(
            f"source.tls.mode {tls.mode} through source.ssh needs MariaDB's client library, and mysqlclient "
            f"was built with MySQL's {library}",
            hint="build mysqlclient with libmariadb, or set source.tls.mode: required",
        )
    # Up to 3.3, libmariadb knows SHA-1 only; a second certificate with the same one can't be made even so.
    digest = "sha1" if re.match(r"3\.[0-3]\.|10\.", library) else "sha256"
    return hashlib.new(digest, _certificate(spec, tls, port, seconds)).hexdigest()


def _certificate(spec: SourceSpec, tls: Tls, port: int, seconds: float) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.mode == "verify_identity"
    where = f"MySQL at {spec.host}:{spec.port}"
    try:
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
        else:
            context.load_default_certs()
    except OSError as error:  # an unreadable PEM is an SSLError, which is one as well
        raise ConfigError(f"source.tls.ca: {tls.ca} can't be read: {error.strerror or error}") from error
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=seconds) as link:
            _ask_for_tls(link, where)
            with context.wrap_socket(link, server_hostname=spec.host) as wrapped:
                return wrapped.getpeercert(binary_form=True) or b""
    except ssl.SSLCertVerificationError as error:
        name = "Hostname mismatch" in error.verify_message or "IP address mismatch" in error.verify_message
        raise ConfigError(
            f"{where}: its certificate is not accepted: {error.verify_message.rstrip('.')}",
            hint="the certificate is another host's: correct the host in source.url, or use tls.mode: verify_ca"
            if name
            else "the server's certificate is not of the authority in source.tls.ca",
        ) from error
    except ssl.SSLError as error:
        raise ConfigError(f"{where}: no TLS: {error.reason}", hint="check source.tls") from error
    except OSError as error:
        raise TransientError(
            f"{where} can't be reached: {error.strerror or error}", hint="try again, nothing is lost"
        ) from error


def _ask_for_tls(link: socket.socket, where: str) -> None:
    """Read the server's greeting and answer with a request for TLS, as the protocol has it."""
    greeting = packet(link)
    if greeting[:1] == b"\xff":
        raise TransientError(f"{where}: {greeting[3:].decode(errors='replace')}", hint="try again")
    if not (capabilities(greeting) or 0) & CLIENT_SSL:
        raise ConfigError(
            f"{where} offers no TLS, and source.tls asks for it",
            hint="switch TLS on at the server, or set source.tls.mode: disabled",
        )
    body = struct.pack("<IIB23x", _REQUEST, 1 << 24, _UTF8MB4)
    link.sendall(struct.pack("<I", len(body))[:3] + b"\1" + body)
