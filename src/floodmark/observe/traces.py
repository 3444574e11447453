"""OpenTelemetry traces, made from the log events of docs/logs.md: one trace per run, a span for each table and step.

Off unless the usual OTEL_* variables enable it; nothing of OpenTelemetry is imported before. Spans are sent in the
background and dropped rather than waited for; the end of a run waits a moment for the last ones.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from floodmark import __version__
from floodmark.model.errors import FloodmarkError
from floodmark.model.run import SyncReport

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger("floodmark")

# Seconds that the end of a run waits for spans that have not been sent.
PATIENCE = 2.0
STEPS = ("plan", "extract", "commit", "load", "verify", "clean")
# Fields of events that become attributes. Positions don't: they are rows' values.
FIELDS = ("rows", "rows_reread", "rows_loaded", "files", "bytes", "slice", "slices", "kind", "strategy", "exit_code")  # fmt: skip
_SIGNS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
)


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the usual variables enable traces."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not off and exporter in ("", "otlp") and any(environment.get(name, "").strip() for name in _SIGNS)


def missing(environment: Mapping[str, str]) -> str | None:
    """Why no traces can be sent although they are wanted, in one line; None: they can."""
    protocol = (
        environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    if protocol != "http/protobuf":
        return f"no traces are sent: Floodmark supports only OTLP over http/protobuf, not {protocol}"
    try:
        found = find_spec("opentelemetry.sdk.trace") and find_spec("opentelemetry.exporter.otlp.proto.http")
    except ImportError:
        found = None
    if found is None:
        return "no traces are sent: OpenTelemetry is not installed; pip install 'floodmark[otel]'"
    return None


@dataclass
class _Table:
    """The open spans of one table."""

    span: Span
    steps: dict[str, Span] = field(default_factory=dict)
    ended: int | None = None  # when the table was done, in nanoseconds


class Traces(logging.Handler):
    """Makes spans from log events. A context manager: it listens until it ends, and then sends what is left."""

    def __init__(
        self,
        command: str,
        environment: Mapping[str, str],
        scrub: Callable[[str], str],
        run: Callable[[], str] = lambda: "",
        exporter: SpanExporter | None = None,
    ) -> None:
        """`exporter`: instead of the one that the environment describes."""
        super().__init__(logging.DEBUG)
        self._command = command
        self._scrub = scrub
        self._run = run
        self._root: Span | None = None
        self._tables: dict[str, _Table] = {}
        self._away = _Away()
        self._quiet = _Quiet()
        self._provider = _provider(environment, exporter, self._away, self._quiet)
        self._tracer = self._provider.get_tracer("floodmark", __version__)

    def __enter__(self) -> Traces:
        self._quiet.begin()
        log.addHandler(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        log.removeHandler(self)
        if self._root is not None:
            self.ended(None, error if isinstance(error, FloodmarkError) else None)
        # Not shutdown() itself: it waits for a collector that does not answer.
        sending = threading.Thread(target=self._shut_down, name="traces", daemon=True)
        sending.start()
        sending.join(PATIENCE)
        if sending.is_alive():
            self._away.said()

    def _shut_down(self) -> None:
        with self._quiet.here():
            self._provider.shutdown()
        self._quiet.end()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            with self._quiet.here():
                self._take(record)
        except Exception:  # a trace is never worth a sync
            self.handleError(record)

    def _take(self, record: logging.LogRecord) -> None:
        event, table = getattr(record, "event", None), getattr(record, "table", None)
        if not table or event not in ("step_start", "step_end", "slice", "table_end"):
            return
        step: str = getattr(record, "step", None) or ""
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        now = int(record.created * 1e9)
        began = now - int(float(fields.get("seconds", 0.0)) * 1e9)
        if event == "table_end":
            known = self._table(table, began)
            known.span.set_attributes(_attributes(fields))
            known.ended = now
        elif event == "slice":
            if "seconds" in fields:  # and not the announcement of one
                known = self._table(table, began)
                parent = known.steps.get("extract", known.span)
                self._span("slice", parent, began, fields).end(now)
        elif event == "step_start":
            self._begin(self._table(table, now), step, now, {})
        elif step in STEPS:
            known = self._table(table, began)
            span = known.steps.pop(step, None) or self._span(step, known.span, began, {})
            span.set_attributes(_attributes(fields))
            if (commit := getattr(record, "commit", None)) is not None:
                span.set_attribute("floodmark.commit", commit)
            span.end(now)

    def ended(
        self, report: SyncReport | None, error: FloodmarkError | None = None, code: int | None = None
    ) -> None:
        """Ends the trace of a run: with a report, with an error before its tables had their turn, or with a code."""
        self.acquire()
        try:
            with self._quiet.here():
                self._end(report, error, code)
        except Exception:
            log.debug("traces", exc_info=True)
        finally:
            self.release()

    def _end(self, report: SyncReport | None, error: FloodmarkError | None, code: int | None) -> None:
        now = time.time_ns()
        began = now - int(report.seconds * 1e9) if report is not None else now
        root = self._root or self._new_root(began)
        codes = {one.table: one for one in report.tables} if report is not None else {}
        for name, one in codes.items():
            if name not in self._tables:  # the caller's log level drops the events
                known = self._table(name, now - int(one.seconds * 1e9))
                counts = {"rows": one.rows_extracted, "files": one.files_written, "exit_code": one.exit_code}
                known.span.set_attributes(_attributes(counts))
        for name, known in self._tables.items():
            end = known.ended or now
            failure = codes[name].error if name in codes else error
            for span in known.steps.values():  # a step that failed has no end of its own
                self._fail(span, failure, end)
                span.end(end)
            self._fail(known.span, failure, end)
            known.span.end(end)
        run = report.run if report is not None else self._run()
        if run:
            root.set_attribute("floodmark.run", run)
        if report is not None:
            root.set_attribute("floodmark.tables", len(report.tables))
            code = report.exit_code
            error = next((one.error for one in report.tables if one.exit_code == code), None)
        elif error is not None:
            code = error.code
        if code is not None:
            root.set_attribute("floodmark.exit_code", code)
        self._fail(root, error, now)
        root.end(now)
        self._root, self._tables = None, {}

    def _fail(self, span: Span, error: FloodmarkError | None, at: int) -> None:
        """Records an error, with its secrets masked."""
        if error is None:
            return
        from opentelemetry.trace import Status, StatusCode

        said = self._scrub(error.message)
        about = {"exception.type": type(error).__name__, "exception.message": said}
        span.add_event("exception", about, timestamp=at)
        span.set_status(Status(StatusCode.ERROR, said))

    def _table(self, name: str, began: int) -> _Table:
        if name not in self._tables:
            root = self._root or self._new_root(began)
            span = self._span("table", root, began, {})
            span.set_attribute("floodmark.table", name)
            self._tables[name] = _Table(span)
        return self._tables[name]

    def _begin(self, table: _Table, step: str, at: int, fields: Mapping[str, Any]) -> None:
        if step in STEPS and step not in table.steps:
            table.steps[step] = self._span(step, table.span, at, fields)

    def _new_root(self, began: int) -> Span:
        self._root = self._span(self._command, None, began, {})
        return self._root

    def _span(self, name: str, parent: Span | None, began: int, fields: Mapping[str, Any]) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        # An empty context, not the current one: a program around us may have a trace of its own.
        context = Context() if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(  # type: ignore[return-value]
            name, context, attributes=_attributes(fields), start_time=began
        )


def _attributes(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {f"floodmark.{name}": fields[name] for name in FIELDS if fields.get(name) is not None}


class _Away:
    """Reports once that the collector can't be reached, until it can be again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told = False

    def said(self, away: bool = True) -> None:
        with self._lock:
            if away and not self._told:
                log.warning("traces could not be sent: the collector can't be reached or rejects them")
            self._told = away


class _Quiet(logging.Filter):
    """Keeps OpenTelemetry's warnings about our own spans to itself, and no others of the process.

    They quote addresses and come with every attempt; we say once that the collector is away.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ours = threading.local()
        self._loggers: list[logging.Logger] = []

    def begin(self) -> None:
        """From now on; OpenTelemetry has been imported. A filter has to be at the very logger that is used."""
        known = list(logging.root.manager.loggerDict.items())
        self._loggers = [
            one for name, one in known if name.startswith("opentelemetry") and isinstance(one, logging.Logger)
        ]
        for one in self._loggers:
            one.addFilter(self)

    def end(self) -> None:
        for one in self._loggers:
            one.removeFilter(self)

    @contextmanager
    def here(self) -> Iterator[None]:
        """What this thread does inside is ours."""
        before = getattr(self._ours, "inside", False)
        self._ours.inside = True
        try:
            yield
        finally:
            self._ours.inside = before

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(self._ours, "inside", False)


def _provider(
    environment: Mapping[str, str], exporter: SpanExporter | None, away: _Away, quiet: _Quiet
) -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    ours = {"service.version": __version__, **({} if named else {"service.name": "floodmark"})}
    provider = TracerProvider(resource=Resource.create(ours), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_complaining(exporter or _otlp(), away, quiet)))
    return provider


def _otlp() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()  # its address, headers and certificates come from the environment


def _complaining(exporter: SpanExporter, away: _Away, quiet: _Quiet) -> SpanExporter:
    """The exporter, which from now on reports once that the collector can't be reached."""
    from opentelemetry.sdk.trace.export import SpanExportResult

    export = exporter.export

    def told(spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with quiet.here():
            result = export(spans)
        away.said(result is not SpanExportResult.SUCCESS)
        return result

    exporter.export = told  # type: ignore[method-assign]
    return exporter
