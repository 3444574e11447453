"""Hand-made MySQL servers for a client to log in to, hostile ones among them."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from floodmark.config.load import SourceSpec, Tls
from floodmark.source.log_in import Connection, opened
from tests.support.mysql_packets import packets

PASSWORD = "hunter2"
TLS, PLAIN = 0xFFFF, 0xFFFF & ~0x0800
OK = b"\0\0\0\2\0\0\0"
SALT = b"123456789012\0"


def greeting(capabilities: int = TLS, plugin: bytes = b"mysql_native_password") -> bytes:
    about = struct.pack("<HBHHB", capabilities, 45, 2, 0x81BF & 0xFFFF, 21) + bytes(10)
    head = b"\x0a10.11.0-MariaDB\0" + struct.pack("<I", 7) + b"12345678\0"
    return packets([head + about + SALT + plugin + b"\0"], first=0)


def refusal(code: int, text: bytes) -> bytes:
    return b"\xff" + struct.pack("<H", code) + b"#HY000" + text


def switch(plugin: bytes, data: bytes = SALT) -> bytes:
    return b"\xfe" + plugin + b"\0" + data


@contextmanager
def server(behave: Callable[[socket.socket], None]) -> Iterator[SourceSpec]:
    """A server that accepts one connection and passes it to `behave`."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            with suppress(OSError), door.accept()[0] as link:
                behave(link)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield SourceSpec("127.0.0.1", door.getsockname()[1], "me", PASSWORD, tls=Tls("required"))
        thread.join(10)


def login(spec: SourceSpec, connect_timeout: float = 5) -> Connection:
    return opened(spec, (spec.host, spec.port), 5, connect_timeout)


class Hostile:
    """Sends its script, a piece after each client message, and records all it receives, decrypted from TLS."""

    def __init__(
        self, said: list[bytes], context: ssl.SSLContext | None = None, capabilities: int = 0
    ) -> None:
        self.said, self.context, self.heard = said, context, b""
        self.capabilities = capabilities or (TLS if context else PLAIN)

    def __call__(self, link: socket.socket) -> None:
        link.settimeout(5)
        link.sendall(greeting(self.capabilities, b"caching_sha2_password"))
        if self.context is not None:
            link.recv(36)
            link = self.context.wrap_socket(link, server_side=True)
        for piece in [*self.said, b""]:
            self.heard += (got := link.recv(65_536))
            if not got:
                return
            link.sendall(piece)

    @property
    def betrayed(self) -> bool:
        return PASSWORD.encode() in self.heard
