"""An OpenTelemetry collector: takes traces over HTTP, decodes them, and answers as the test says."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.web_server import serving


@dataclass(frozen=True)
class Collected:
    """One span as it arrived."""

    name: str
    trace: bytes
    id: bytes
    parent: bytes
    start: int
    end: int
    attributes: dict[str, Any]
    failed: bool
    said: tuple[str, ...]  # the messages of recorded exceptions


@dataclass
class Collecting:
    """A collector: its address, the spans it got, and whether it answers."""

    url: str = ""
    spans: list[Collected] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    headers: list[str] = field(default_factory=list)
    raw: bytes = b""
    hangs: bool = False
    released: threading.Event = field(default_factory=threading.Event)

    def named(self, name: str) -> list[Collected]:
        return [span for span in self.spans if span.name == name]

    def under(self, parent: Collected) -> list[str]:
        """The names of a span's children, in the order in which they began."""
        found = [span for span in self.spans if (span.trace, span.parent) == (parent.trace, parent.id)]
        return [span.name for span in sorted(found, key=lambda span: (span.start, span.name))]

    def take(self, body: bytes) -> None:
        self.raw += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource |= _values(resource.resource.attributes)
            for scope in resource.scope_spans:
                for one in scope.spans:
                    said = tuple(str(_values(e.attributes).get("exception.message")) for e in one.events)
                    self.spans.append(
                        Collected(
                            one.name, one.trace_id, one.span_id, one.parent_span_id, one.start_time_unix_nano,
                            one.end_time_unix_nano, _values(one.attributes), one.status.code == 2, said,
                        )
                    )  # fmt: skip


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextmanager
def collecting() -> Iterator[Collecting]:
    """A collector that answers 200 until the test says otherwise."""
    here = Collecting()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            here.headers.append(str(self.headers))
            if here.hangs:
                here.released.wait(60)
                return
            if self.path == "/v1/traces":
                here.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    with serving(Handler) as url:
        here.url = url
        try:
            yield here
        finally:
            here.released.set()
