"""Checks that a host has an address and a port answers, before any driver is used, so that the message names the cause."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address

from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.setup.doctor.check import Check, Section

NAME_SECONDS = 4.0
PORT_SECONDS = 3.0


def addresses(host: str) -> tuple[str, ...]:
    """The host's addresses; ConfigError when it has none, TransientError when no name server answers."""
    found: list[tuple[str, ...]] = []
    failed: list[OSError] = []

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found.append(tuple(dict.fromkeys(str(answer[4][0]) for answer in answers)))
        except (OSError, UnicodeError) as error:
            failed.append(error if isinstance(error, OSError) else OSError(str(error)))

    # The system's resolver takes no timeout, so it runs in a thread that can be abandoned.
    thread = threading.Thread(target=ask, name="resolve", daemon=True)
    thread.start()
    thread.join(NAME_SECONDS)
    if found:
        return found[0]
    if failed and not (isinstance(failed[0], socket.gaierror) and failed[0].errno == socket.EAI_AGAIN):
        raise ConfigError(f"unknown host {host}", hint="correct the name, and check that DNS works from here")
    raise TransientError(
        f"no name server answers for {host}", hint="check the network and /etc/resolv.conf, then try again"
    )


def connected(host: str, port: int) -> float:
    """How many seconds it took until the port answered."""
    began = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=PORT_SECONDS).close()
    except TimeoutError:
        raise TransientError(
            f"{host}:{port} does not answer within {PORT_SECONDS:g} s",
            hint="a firewall or security group may be dropping packets; check the port and the route",
        ) from None
    except ConnectionRefusedError:
        raise TransientError(
            f"nothing listens on {host}:{port}: the connection was refused",
            hint="check the port, and that the server is running and listens on that address",
        ) from None
    except OSError as error:
        raise TransientError(
            f"{host}:{port} can't be reached: {(error.strerror or str(error)).lower()}",
            hint="check the network and the route",
        ) from None
    return time.monotonic() - began


def reach(section: Section, host: str, port: int, what: str = "") -> Iterator[Check]:
    """The checks `name` and `port` of a server; the second only if the first succeeds."""
    name, door = (f"{what} name", f"{what} port") if what else ("name", "port")
    try:
        found = addresses(host)
        if host not in found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            yield section.ok(name, f"{host} resolves to {found[0]}{more}")
    except FloodmarkError as error:
        yield section.failed(name, error)
        return
    try:
        seconds = connected(host, port)
    except FloodmarkError as error:
        yield section.failed(door, error)
        return
    yield section.ok(door, f"{host}:{port} answers in {seconds * 1000:.1f} ms")


def nearby(host: str) -> bool:
    """Whether the host is this machine."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
