"""The facts as Prometheus metrics: names, text, the file for node_exporter, and `/metrics` of a resident sync.

Nothing is counted here: every value comes from the store, so a restart resets nothing; a table that was reset begins at 0
again, as counters may. The HTTP server's background threads only read: no request changes anything.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from floodmark import __version__
from floodmark.host.temp import whole_file
from floodmark.model.errors import ConfigError, FloodmarkError
from floodmark.model.run import Lag
from floodmark.model.times import stamp
from floodmark.status.facts import AllFacts, StoreFacts
from floodmark.status.health import TableFacts, judge, moment

# A client that is slower than this is dropped.
PATIENCE = 10.0
# Answers younger than this are reused: several scrapers cost no more than one.
FRESH = 2.0
CONNECTIONS = 16

Sample = tuple[str, tuple[str, ...], float | None]  # the metric, its labels' values, and the value


def exposition(facts: AllFacts) -> bytes:
    """The facts in Prometheus' text format."""
    return generate_latest(_Collector(facts))


def write_file(path: Path, text: bytes) -> None:
    """Writes the file whole or not at all, readable by everyone: node_exporter runs as another user."""
    with whole_file(path, replaces=True) as part:
        part.write_bytes(text)
        part.chmod(0o644)


@dataclass(frozen=True, eq=False)
class _Collector(Collector):
    facts: AllFacts

    def collect(self) -> Iterable[Metric]:
        yield from families(self.facts)


def families(facts: AllFacts) -> Iterator[Metric]:
    """Every metric with its samples; those without any are included, with their help."""
    samples: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for name, labels, value in _samples(facts):
        if value is not None:
            samples.setdefault(name, []).append((labels, value))
    for kind, name, text, names in _METRICS:
        family = kind(f"floodmark_{name}", text, labels=names)
        for labels, value in samples.get(name, ()):
            family.add_metric(labels, value)
        yield family
    yield InfoMetricFamily("floodmark_build", "The version of Floodmark.", value={"version": __version__})


def _samples(facts: AllFacts) -> Iterator[Sample]:
    now = datetime.now(UTC)
    for table in facts.tables:
        for name, labels, value in _of_table(table, facts.limit(table.table), now):
            yield name, (table.table, *labels), value
    yield "copies_bytes", (), facts.copies_bytes
    counts = Counter((one.source or "nothing", "yes" if one.success else "no") for one in facts.recoveries)
    for outcome, count in sorted(counts.items()):
        yield "recoveries", outcome, count
    latest = {one.source or "nothing": _seconds(one.at) for one in facts.recoveries}  # the oldest come first
    for source, at in sorted(latest.items()):
        yield "recovery_timestamp_seconds", (source,), at
    if took := [one.seconds for one in facts.recoveries]:
        for of, seconds in (("average", sum(took) / len(took)), ("latest", took[-1]), ("worst", max(took))):
            yield "recovery_seconds", (of,), seconds


def _of_table(table: TableFacts, limit: float, now: datetime) -> Iterator[Sample]:
    """One table's samples, without its name among the labels."""
    yield "table_state", (judge(table, limit, now).word,), 1
    if (status := table.status) is not None:
        lag, work, verify = status.lag or Lag(), status.work, status.verify
        yield "lag_seconds", (), lag.seconds
        yield "lag_ids", (), lag.ids
        yield "last_success_timestamp_seconds", (), _seconds(status.success_at)
        yield "last_check_timestamp_seconds", (), _seconds(status.last_check_time)
        yield "rows_deleted", (), status.total.rows_deleted
        for code, count in sorted(status.total.exit_codes.items()):
            yield "runs", (code,), count
        for stage, seconds in sorted({**work.stage_seconds, "total": work.seconds}.items()) if work else ():
            yield "run_duration_seconds", (stage,), seconds
        if verify is not None:
            yield "verify_differences", (), verify.differences
            yield "verify_timestamp_seconds", (), _seconds(verify.at)
    if (mark := table.mark) is not None:
        yield "watermark_timestamp_seconds", (), mark.position_at
        yield "pending_files", (), mark.pending_files
        yield "pending_rows", (), mark.pending_rows
        yield "rows_extracted", (), mark.rows_extracted
        yield "rows_loaded", (), mark.rows_loaded
        yield "bytes_written", (), mark.bytes_written


def _seconds(at: str | None) -> float | None:
    """Seconds since 1970."""
    known = moment(at)
    return None if known is None else known.timestamp()


_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily
# Kind, name, help and labels. Prometheus adds `_total` to a counter's name.
# fmt: off
_METRICS: tuple[tuple[type[GaugeMetricFamily] | type[CounterMetricFamily], str, str, tuple[str, ...]], ...] = (
    (_GAUGE, "table_state", "1 for the table's present state, the word that the dashboard shows.", ("table", "state")),
    (_GAUGE, "lag_seconds", "How far the table was behind its source when a sync last caught up.", ("table",)),
    (_GAUGE, "lag_ids", "The same for tables read by id: ids behind the newest row.", ("table",)),
    (_GAUGE, "last_success_timestamp_seconds", "When a run of the table last ended with exit code 0.", ("table",)),
    (_GAUGE, "last_check_timestamp_seconds", "When a sync last checked the source for rows to read.", ("table",)),
    (_GAUGE, "watermark_timestamp_seconds", "The cursor's own time up to which rows were extracted.", ("table",)),
    (_GAUGE, "pending_files", "Files waiting to be loaded.", ("table",)),
    (_GAUGE, "pending_rows", "Rows of the files waiting to be loaded.", ("table",)),
    (_GAUGE, "verify_differences", "Rows that the last verify found missing, extra or different.", ("table",)),
    (_GAUGE, "verify_timestamp_seconds", "When the last verify ended.", ("table",)),
    (_COUNTER, "rows_extracted", "Rows read from the source since the last reset, including those read again.", ("table",)),
    (_COUNTER, "rows_loaded", "Rows of the commits in the warehouse's ledger since the last reset.", ("table",)),
    (_COUNTER, "rows_deleted", "Rows that were deleted, or marked as deleted, because the source no longer has them.", ("table",)),
    (_COUNTER, "bytes_written", "Bytes of the data files written since the last reset.", ("table",)),
    (_GAUGE, "run_duration_seconds", "Seconds of the last run that did something, by stage; loads run in parallel with the extraction.", ("table", "stage")),
    (_COUNTER, "runs", "Runs by exit code, including idle ones.", ("table", "exit_code")),
    (_GAUGE, "recoveries", "Recoveries of watermarks in the last 30 days, by what they were recovered from, and whether they succeeded.", ("source", "success")),
    (_GAUGE, "recovery_seconds", "Seconds that recoveries of the last 30 days took: on average, the latest, the worst.", ("of",)),
    (_GAUGE, "recovery_timestamp_seconds", "When the latest recovery ended, by what it was recovered from.", ("source",)),
    (_GAUGE, "copies_bytes", "Bytes of the daily and session copies of watermarks.", ()),
)
# fmt: on


# ---------------------------------------------------------------- over HTTP


@dataclass(frozen=True)
class HttpAnswer:
    """What a path answers."""

    status: int
    kind: str
    body: bytes


NOT_FOUND = HttpAnswer(404, "text/plain; charset=utf-8", b"try /metrics or /healthz\n")


class Pulse:
    """Whether the resident sync is alive: how its last cycle ended, and how long ago."""

    def __init__(self, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._last: tuple[float, str, int] | None = None

    def beat(self, exit_code: int) -> None:
        """A cycle has ended."""
        self._last = self._clock(), stamp(), exit_code

    def health(self) -> HttpAnswer:
        """Always 200: a probe that restarts the process would not help a failed table."""
        body: dict[str, Any] = {"ok": True, "every_seconds": self._every, "last_cycle": None}
        if self._last is not None:
            when, at, code = self._last
            ago = round(self._clock() - when, 3)
            body["last_cycle"] = {"at": at, "seconds_ago": ago, "exit_code": code}
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
            return HttpAnswer(200, CONTENT_TYPE_PLAIN_0_0_4, self._last[1])


class Listener(ThreadingHTTPServer):
    """An HTTP server of a few paths. A context manager."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], paths: dict[str, Callable[[], HttpAnswer]]) -> None:
        self.paths = paths
        self.slots = threading.BoundedSemaphore(CONNECTIONS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        try:
            super().__init__(address, _Request)
        except OSError as error:
            raise ConfigError(
                f"can't listen on {address[0]}:{address[1]}: {error.strerror}",
                hint="choose another port: --listen HOST:PORT",
            ) from None

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, name="listen", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

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
    server: Listener
    timeout = PATIENCE
    server_version = "floodmark"
    sys_version = ""

    def do_GET(self) -> None:
        found = self.server.paths.get(self.path.partition("?")[0])
        answer = found() if found else NOT_FOUND
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
