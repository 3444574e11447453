"""Accepts clients: TLS or not, a startup packet without Redshift's extras, passwords relayed to PostgreSQL."""

from __future__ import annotations

import socket
import ssl
import subprocess
from pathlib import Path

from tests.support.redshift import wire
from tests.support.redshift.backend import OWNER, SOCKET_PORT, Backend
from tests.support.redshift.plans import Context, Services
from tests.support.redshift.session import Session
from tests.support.redshift.tokens import word_set
from tests.support.redshift.wire import Channel, message

VERSION = "8.0.2"  # the version Redshift reports; the driver adapts to it
# Startup parameters of Redshift's driver that PostgreSQL doesn't know.
_REDSHIFT_ONLY = word_set(
    """client_protocol_version driver_version os_version driver_discovery_version plugin_name idp_type provider_name
    identity_namespace token_type idc_client_display_name"""
)


def enter(
    link: socket.socket, folder: Path, tls: ssl.SSLContext | None, services: Services, names: dict[str, str]
) -> Session | None:
    """The session of a client that has logged in; None after a cancel request or a refusal."""
    client = Channel(link)
    code, body = client.opening()
    while code in (wire.SSL_REQUEST, wire.GSS_REQUEST):
        if code == wire.SSL_REQUEST and tls is not None:
            client.send(b"S")
            client = Channel(tls.wrap_socket(client.link, server_side=True))
        else:
            client.send(b"N")
        code, body = client.opening()
    if code == wire.CANCEL_REQUEST:
        _cancel(folder, body)
        client.close()
        return None
    parts = [part.decode() for part in body.split(b"\0")]
    given = dict(zip(parts[::2], parts[1::2], strict=False))
    wanted = {name: value for name, value in given.items() if name and name not in _REDSHIFT_ONLY}
    if code != wire.PROTOCOL or wanted.get("user", OWNER) == OWNER:
        refusal = {"S": "FATAL", "V": "FATAL", "C": "28000", "M": f'no such user: "{wanted.get("user")}"'}
        client.send(wire.fields_as(b"E", refusal))
        client.close()
        return None
    backend = Backend(folder, {**wanted, "client_encoding": "UTF8"})
    context = Context(backend, wanted.get("database", wanted["user"]), services, wanted["user"])
    return _let_in(client, context, names)


def _let_in(client: Channel, context: Context, names: dict[str, str]) -> Session | None:
    """Relay the login exchange between client and backend."""
    backend = context.backend
    while True:
        kind, body = backend.receive()
        if kind == b"S" and body.startswith(b"server_version\0"):
            body = wire.text("server_version") + wire.text(VERSION)
        if kind == b"K":
            backend.key = body
        client.send(message(kind, body))
        if kind == b"E":
            client.close()
            backend.close()
            return None
        if kind == b"R" and body[:4] not in (bytes(4), b"\0\0\0\x0c"):
            answer, secret = client.receive()
            backend.send(message(answer, secret))
        if kind == b"Z":
            return Session(client, context, names)


def _cancel(folder: Path, body: bytes) -> None:
    link = socket.socket(socket.AF_UNIX)
    link.connect(str(folder / f".s.PGSQL.{SOCKET_PORT}"))
    with link:
        link.sendall((16).to_bytes(4, "big") + wire.CANCEL_REQUEST.to_bytes(4, "big") + body)
        link.recv(1)


def certificates(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Create a private authority, and its certificate for this machine."""
    ca, key, pem = folder / "ca.pem", folder / "server.key", folder / "server.pem"
    request, extensions = folder / "server.csr", folder / "server.ext"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    new = ["req", "-newkey", "rsa:2048", "-nodes"]
    for command in (
        [*new, "-x509", "-days", "30", "-subj", "/CN=floodmark stand-in", "-keyout", str(folder / "ca.key"), "-out", str(ca)],
        [*new, "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(request)],
        ["x509", "-req", "-in", str(request), "-CA", str(ca), "-CAkey", str(folder / "ca.key"), "-CAcreateserial",
         "-days", "30", "-extfile", str(extensions), "-out", str(pem)],
    ):  # fmt: skip
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    return ca, context
