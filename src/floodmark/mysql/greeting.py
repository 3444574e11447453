"""What a MySQL server says before anybody logs in: whether it offers TLS.

libmariadb takes a connection for encrypted when it was told to use TLS, even if the server offers none, and then sends
the password of caching_sha2_password as it is. So it is told only when the server does offer it.
"""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress

from floodmark.config import SourceSpec, Tls
from floodmark.errors import ConfigError
from floodmark.mysql import wire

# Of the protocol: the server, or both sides, can speak TLS.
CLIENT_SSL = 0x0800

Address = tuple[str, int] | str


def offers_tls(spec: SourceSpec, address: Address, seconds: float) -> bool:
    """Whether the server offers TLS: asked once, until `forget`. A server that can't be asked does not refuse it.

    Raises what the driver would when there is no answer in time; what else is wrong, the driver finds out and says.
    """
    if spec not in _known:
        try:
            with reached(address, seconds) as link:
                flags = capabilities(packet(link))
        except (TimeoutError, ConnectionResetError) as error:
            raise silent("handshake: reading initial communication packet") from error
        except OSError:
            flags = None
        if flags is None:
            return True
        _known[spec] = bool(flags & CLIENT_SSL)
    return _known[spec]


def forget(spec: SourceSpec) -> None:
    """Ask the next time: it may be another server, or one with other settings."""
    _known.pop(spec, None)


def no_tls(spec: SourceSpec, tls: Tls) -> ConfigError:
    """The error for a server that offers no TLS where it was asked for."""
    return ConfigError(
        f"{spec.host} offers no TLS, and source.tls.mode is {tls.mode}",
        hint="switch TLS on at the server, or set source.tls.mode: disabled",
    )


# A process talks with one source, over many connections.
_known: dict[SourceSpec, bool] = {}


def reached(address: Address, seconds: float) -> socket.socket:
    """A connection on which the server has begun to speak."""
    if isinstance(address, str):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        link = socket.create_connection(address, seconds)
    try:
        if isinstance(address, str):
            link.settimeout(seconds)
            link.connect(address)
        else:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        greeting = select.poll()
        greeting.register(link, select.POLLIN)
        if not greeting.poll(seconds * 1000):
            raise TimeoutError
        return link
    except BaseException:
        link.close()
        raise


def packet(link: socket.socket) -> bytes:
    """The server's first packet."""
    return _read(link, int.from_bytes(_read(link, 4)[:3], "little"))


def capabilities(greeting: bytes) -> int | None:
    """The lower half of what the server can do; None: it has refused to talk, or speaks something else."""
    # Protocol 10; version, text to NUL; thread (4), scramble (8), filler (1); then the flags.
    if greeting[:1] != b"\x0a":
        return None
    with suppress(ValueError, struct.error):
        return int(struct.unpack_from("<H", greeting, greeting.index(b"\0", 1) + 14)[0])
    return None


def silent(when: str) -> Exception:
    """What the driver raises when the server does not answer in time."""
    return wire.raised(2013, f"Lost connection to server at '{when}', system error: 110")


def _read(link: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = link.recv(count - len(found))
        if not piece:
            raise ConnectionResetError(0, "the connection was closed")
        found += piece
    return found
