"""`/metrics` and `/healthz` of a resident sync, served by background threads. Read-only: no request changes anything."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from floodmark.model.errors import ConfigError, FloodmarkError
from floodmark.model.times import stamp
from floodmark.status.facts import StoreFacts
from floodmark.status.metrics import CONTENT_TYPE, exposition

# A client that is slower than this is dropped.
PATIENCE = 10.0
# Answers younger than this are reused: several scrapers cost no more than one.
FRESH = 2.0
CONNECTIONS = 16


@dataclass(frozen=True)
class HttpAnswer:
    """What a path answers."""

    status: int
    kind: str
    body: bytes


class Pulse:
    """Whether the resident sync is alive: how its last cycle ended, and how long ago."""

    def __init__(self, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[float, str, int] | None = None

    def beat(self, exit_code: int) -> None:
        """A cycle has ended."""
        with self._lock:
            self._last = self._clock(), stamp(), exit_code

    def health(self) -> HttpAnswer:
        """Always 200: a probe that restarts the process would not help a failed table."""
        with self._lock:
            last = self._last
        body: dict[str, Any] = {"ok": True, "every_seconds": self._every, "last_cycle": None}
        if last is not None:
            ago = round(self._clock() - last[0], 3)
            body["last_cycle"] = {"at": last[1], "seconds_ago": ago, "exit_code": last[2]}
        return HttpAnswer(200, "application/json", json.dumps(body).encode())


class Metrics:
    """The answer of `/metrics`: the store's facts, looked up on request."""

    def __init__(self, facts: StoreFacts) -> None:
        self._facts = facts
        self._lock = threading.Lock()
        self._last: tuple[float, bytes] | None = None

    def answer(self) -> HttpAnswer:
        """The metrics; 503 while the store can't be read: no value is better than an old one."""
        with self._lock:
            if self._last is None or time.monotonic() - self._last[0] > FRESH:
                try:
                    self._last = time.monotonic(), exposition(self._facts.look())
                except FloodmarkError as error:
                    return HttpAnswer(503, "text/plain; charset=utf-8", f"{error.message}\n".encode())
            return HttpAnswer(200, CONTENT_TYPE, self._last[1])


class Listener:
    """An HTTP server of two paths. A context manager."""

    def __init__(self, address: tuple[str, int], paths: dict[str, Callable[[], HttpAnswer]]) -> None:
        host, port = address
        try:
            self._server = _Server((host, port), paths)
        except OSError as error:
            raise ConfigError(
                f"can't listen on {host}:{port}: {error.strerror}",
                hint="choose another port: --listen HOST:PORT",
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="listen", daemon=True)

    def __enter__(self) -> Listener:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], paths: dict[str, Callable[[], HttpAnswer]]) -> None:
        self.paths = paths
        self.slots = threading.BoundedSemaphore(CONNECTIONS)
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        super().__init__(address, _Request)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a client that went away."""


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE
    server_version = "floodmark"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found = self.server.paths.get(path)
        answer = (
            found() if found else HttpAnswer(404, "text/plain; charset=utf-8", b"try /metrics or /healthz\n")
        )
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(answer.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing: a scrape every few seconds is not news."""
