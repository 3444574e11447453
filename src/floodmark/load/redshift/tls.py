"""Redshift's driver over TLS with the user's own CA, for which it has no option.

Naming the CA in OpenSSL's environment variable is not safe: another thread's getenv may read memory that
setting it frees. So the connection is the driver's, the TLS on its socket is ours, and only that CA is
trusted.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Any

from redshift_connector.core import Connection
from redshift_connector.error import InterfaceError
from redshift_connector.iam_helper import IamHelper
from redshift_connector.redshift_property import RedshiftProperty

from floodmark.config.load import Tls
from floodmark.model.errors import ConfigError

_REQUEST = struct.pack("!ii", 8, 80877103)  # PostgreSQL's SSLRequest
# The driver's internal names for these.
_PROPERTIES = {"user": "user_name", "database": "db_name"}
# Options for logging in and for the driver's own TLS.
_SPENT = {"ssl", "sslmode", "iam", "db_user", "region", "profile", "cluster_identifier", "is_serverless"}
_SPENT |= {"serverless_work_group"}


def context(tls: Tls | None) -> ssl.SSLContext | None:
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


def connect(trusting: ssl.SSLContext, options: dict[str, Any]) -> Connection:
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
