"""An HTTP proxy in front of the store: passes requests through unchanged, except where it makes trouble.

Trouble depends on a request's number. Listings can lag, too: they omit the keys that were written a moment ago.
"""

from __future__ import annotations

import http.client
import itertools
import re
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote
from xml.sax.saxutils import unescape

_ERROR = b'<?xml version="1.0"?><Error><Code>%s</Code><Message>the laboratory</Message></Error>'
ANSWERS = {
    "busy": (503, b"SlowDown"),
    "unavailable": (503, b"ServiceUnavailable"),
    "broken": (500, b"InternalError"),
}
SAID = {
    "busy": "503 SlowDown",
    "unavailable": "503 ServiceUnavailable",
    "broken": "500 InternalError",
    "drop": "not done, and no answer",
    "lose": "done, but its answer lost",
    "truncate": "its answer ends half-way",
    "delay": "an answer late",
}

# What happens to a request, by its number; None: nothing.
Trouble = Callable[[int], str | None]


class _Handler(BaseHTTPRequestHandler):
    """Passes a request through unchanged, unless it is to make trouble."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpProxy

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        number = next(self.server.numbers)
        self.server.seen.append(f"{self.command} {_kind(self.path)}")
        trouble = self.server.trouble(number)
        if trouble == "delay":
            time.sleep(1)
        if trouble in ANSWERS:
            status, code = ANSWERS[trouble]
            return self._answer(status, [("Content-Type", "application/xml")], _ERROR % code)
        if trouble == "drop":
            return self._drop()
        link = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=30)
        try:
            link.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                link.putheader(name, value)
            link.endheaders(body or None)
            answer = link.getresponse()
            data = answer.read()
        finally:
            link.close()
        if self.command == "PUT" and answer.status < 300:
            self.server.written[unquote(self.path.partition("?")[0]).partition("/")[2].partition("/")[2]] = (
                time.monotonic()
            )
        if trouble == "lose":  # the request was executed, but the answer is lost
            return self._drop()
        if self.server.lag and self.command == "GET" and "list-type=2" in self.path:
            data = self._older(data)
        return self._answer(answer.status, answer.getheaders(), data, half=trouble == "truncate")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

    def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, half: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = {k.lower(): v for k, v in headers}.get("content-length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if half else data)
        if half:
            self._drop()

    def _older(self, data: bytes) -> bytes:
        """A listing without the keys written in the last moments."""
        since = time.monotonic() - self.server.lag

        def kept(found: re.Match[bytes]) -> bytes:
            key = re.search(rb"<Key>(.*?)</Key>", found[0], re.DOTALL)
            name = unescape(unquote(key[1].decode())) if key else ""
            if self.server.written.get(name, 0.0) <= since:
                return found[0]
            self.server.left_out += 1
            return b""

        return re.sub(rb"<Contents>.*?</Contents>", kept, data, flags=re.DOTALL)

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, *args: Any) -> None: ...


def _kind(path: str) -> str:
    """The kind of request, without names and numbers."""
    path, _, query = path.partition("?")
    if "list-type=2" in query:
        return "listing"
    for part in ("data", "keys", "commits", "tables", "daily", "sessions", "leases", "runs"):
        if f"/{part}/" in path:
            return part
    return path.rpartition("/")[2] if path.endswith((".json", ".txt")) else "other"


class HttpProxy(ThreadingHTTPServer):
    """Listens on its own port until closed."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, behind: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port: int = self.server_address[1]
        self.behind = behind
        self.arm(lambda number: None)
        self.written: dict[str, float] = {}  # keys, and when
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def arm(self, trouble: Trouble, lag: float = 0.0) -> None:
        """Restart the count at 1, and make this trouble."""
        self.numbers = itertools.count(1)
        self.seen: list[str] = []
        self.trouble, self.lag, self.left_out = trouble, lag, 0

    def heal(self) -> None:
        self.trouble, self.lag = lambda number: None, 0.0

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        super().server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None: ...
