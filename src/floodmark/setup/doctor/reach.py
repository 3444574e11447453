"""Checks that a host has an address and a port answers, before any driver is used, so that the message names the cause.

And what an S3 server tells anyone about a bucket: one unsigned HEAD request, which AWS answers with the Region even if
it denies access.
"""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from urllib.parse import quote

from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.setup.doctor.check import Check, Section

NAME_SECONDS = 4.0
PORT_SECONDS = 3.0
ANSWER_SECONDS = 4.0


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


# ---------------------------------------------------------------- buckets


@dataclass(frozen=True)
class BucketHead:
    """What the server says about a bucket."""

    region: str | None = None
    skew: float | None = None  # the server's clock minus this machine's; whole seconds


def bucket_head(url: str, endpoint: str | None) -> BucketHead:
    """Asks for the bucket of `s3://bucket/prefix`; unanswered fields stay None."""
    bucket = url.removeprefix("s3://").partition("/")[0]
    # Not by the bucket's own host name: with a dot in it, AWS's certificate does not match.
    base = (endpoint or "https://s3.amazonaws.com").rstrip("/")
    request = urllib.request.Request(f"{base}/{quote(bucket)}", method="HEAD")
    began = time.time()
    try:
        with _opener.open(request, timeout=ANSWER_SECONDS) as answer:
            headers: Message = answer.headers
    except urllib.error.HTTPError as error:
        headers = error.headers
    except (OSError, ValueError):
        return BucketHead()
    return BucketHead(headers.get("x-amz-bucket-region"), _skew(headers.get("Date"), began, time.time()))


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the redirecting answer is the one that names the Region."""

    def redirect_request(self, *_: object) -> None:
        return None


_opener = urllib.request.build_opener(_Stay)


def _skew(date: str | None, began: float, ended: float) -> float | None:
    try:
        server = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return None
    # The header has whole seconds: the moment is somewhere within that second.
    if began - 1 <= server <= ended:
        return 0.0
    return server - ended if server > ended else server + 1 - began
