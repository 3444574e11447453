"""A web server that receives alerts: records what came in, and answers as the test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.web_server import serving


@dataclass
class Receiving:
    """One receiver: its address, what it got, and how it answers."""

    url: str = ""
    got: list[tuple[str, str]] = field(default_factory=list)  # path and body
    status: int = 200
    hangs: bool = False
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def documents(self) -> list[Any]:
        """The bodies of requests to /hook."""
        return [json.loads(body) for path, body in self.got if path.startswith("/hook")]

    @property
    def events(self) -> list[tuple[str, str, bool]]:
        """The events that webhooks reported, in order: event, table, and whether it was a repeat."""
        return [(e["event"], e["table"], e["again"]) for d in self.documents for e in d["events"]]

    @property
    def beats(self) -> list[str]:
        """The paths of heartbeat requests."""
        return [path for path, _ in self.got if path.startswith("/beat")]


@contextmanager
def receiving() -> Iterator[Receiving]:
    """A receiver that answers 200 until the test says otherwise."""
    here = Receiving()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            here.got.append((self.path, body))
            if here.hangs:
                here.released.wait(60)
                return
            self.send_response(here.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    with serving(Handler) as url:
        here.url = url
        try:
            yield here
        finally:
            here.released.set()
