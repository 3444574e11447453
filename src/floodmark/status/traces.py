"""OpenTelemetry traces, made from a run's events: one trace per run, a span for each table and step.

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
from typing import TYPE_CHECKING, Any

from floodmark import __version__
from floodmark.config.load import Config
from floodmark.model import events
from floodmark.model.errors import FloodmarkError
from floodmark.model.run import SyncReport
from floodmark.model.secrets import Scrubber
from floodmark.model.tally import Tally

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider

logger = logging.getLogger("floodmark")

# Seconds that the end of a run waits for spans that have not been sent.
PATIENCE = 2.0
_SIGNS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether the usual variables enable traces."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not off and exporter in ("", "otlp") and any(environment.get(name, "").strip() for name in _SIGNS)


def tracing(environment: Mapping[str, str], config: Config) -> Traces | None:
    """The traces that the environment enables; None, and a log line that says why, if there can't be any."""
    if not wanted(environment):
        return None
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next(filter(None, map(environment.get, names)), "http/protobuf")
    if protocol != "http/protobuf":
        why = f"Floodmark supports only OTLP over http/protobuf, not {protocol}"
    else:
        try:
            return Traces(environment, Scrubber.of(config))
        except ImportError:
            why = "OpenTelemetry is not installed; pip install 'floodmark[otel]'"
        except Exception as error:  # one of the variables has a value that OpenTelemetry does not take
            why = f"OpenTelemetry rejects its settings ({type(error).__name__})"
    logger.warning("no traces are sent: %s", why)
    return None


@dataclass
class _Table:
    """The open spans of one table."""

    span: Span
    steps: dict[str, tuple[Span, Tally]] = field(default_factory=dict)
    ended: int | None = None  # when the table was done, in nanoseconds


class Traces:
    """Makes spans from events. A context manager: its exit sends what is left."""

    def __init__(self, environment: Mapping[str, str], scrub: Callable[[str], str]) -> None:
        self._scrub = scrub
        self._begun = events.RunBegan("", "")
        self._root: Span | None = None
        self._tables: dict[str, _Table] = {}
        self._lock = threading.Lock()
        self._away = False  # whether it was said that the collector can't be reached
        self._quiet = _Quiet()
        self._provider = self._new_provider(environment)
        self._tracer = self._provider.get_tracer("floodmark", __version__)

    def __enter__(self) -> Traces:
        self._quiet.begin()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._root is not None:
            self(events.RunEnded("", None, error if isinstance(error, FloodmarkError) else None))
        # Not shutdown() itself: it waits for a collector that does not answer.
        sending = threading.Thread(target=self._shut_down, name="traces", daemon=True)
        sending.start()
        sending.join(PATIENCE)
        if sending.is_alive():
            self._reached(False)

    def _shut_down(self) -> None:
        with self._quiet.here():
            self._provider.shutdown()
        self._quiet.end()

    def _reached(self, reached: bool) -> None:
        """Reports once that the collector can't be reached, until it can be again."""
        if not reached and not self._away:
            logger.warning("traces could not be sent: the collector can't be reached or rejects them")
        self._away = not reached

    def _new_provider(self, environment: Mapping[str, str]) -> TracerProvider:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

        sender = OTLPSpanExporter()  # its address, headers and certificates come from the environment
        export = sender.export

        def reported(spans: Sequence[ReadableSpan]) -> SpanExportResult:
            with self._quiet.here():
                result = export(spans)
            self._reached(result is SpanExportResult.SUCCESS)
            return result

        sender.export = reported  # type: ignore[method-assign]
        attributes = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
        named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in attributes
        ours = {"service.version": __version__, **({} if named else {"service.name": "floodmark"})}
        provider = TracerProvider(resource=Resource.create(ours), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(sender))
        return provider

    def __call__(self, event: events.Event) -> None:
        try:
            with self._lock, self._quiet.here():
                self._take(event, time.time_ns())
        except Exception:  # a trace is never worth a sync
            logger.debug("traces", exc_info=True)

    def _take(self, event: events.Event, now: int) -> None:
        match event:
            case events.RunBegan():
                self._begun = event
            case events.StageBegan(table, stage):
                self._begin(table, stage, now)
            case events.CommitBegan(table):
                self._begin(table, "commit", now)
            case events.Advanced(table, stage, rows, files, size):
                if (open_step := self._table(table, now).steps.get(stage)) is not None:
                    open_step[1].add(rows, files, size)
            case events.Planned(table, strategy, _, rows, slices):
                self._close(table, "plan", now, rows=rows, slices=slices, strategy=strategy)
            case events.StageEnded(table, stage) if (
                stage != "plan" and stage in self._table(table, now).steps
            ):
                tally = self._tables[table].steps[stage][1]
                self._close(table, stage, now, rows=tally.rows, files=tally.files, bytes=tally.bytes)
            case events.SliceRead(table, piece, rows, files, size, seconds):
                known, began = self._table(table, now), now - int(seconds * 1e9)
                parent, _ = known.steps.get("extract", (known.span, None))
                span = self._span("slice", parent, began)
                _describe(span, slice=piece.number, kind=piece.kind, rows=rows, files=files, bytes=size)
                span.end(now)
            case events.Committed(table, n, _, _, rows, _, counts):
                files, size = counts.files_written, counts.bytes_written
                self._close(table, "commit", now, commit=n, rows=rows, files=files, bytes=size)
            case events.Ended(table, report) if not report.left_out:
                known = self._table(table, now - int(report.seconds * 1e9))
                known.ended = now
                _describe(known.span, **report.log_fields, exit_code=report.exit_code)
            case events.RunEnded(_, report, error):
                self._end(now, report, error, error.code if error else None)
            case events.Compared(_, _, _, code):
                self._end(now, None, None, code)

    def _end(
        self, now: int, report: SyncReport | None, error: FloodmarkError | None, code: int | None
    ) -> None:
        """Ends the trace of a run."""
        root = self._root or self._new_root(now - int(report.seconds * 1e9) if report else now)
        reports = {one.table: one for one in report.tables} if report else {}
        for name, known in self._tables.items():
            end = known.ended or now
            failure = reports[name].error if name in reports else error
            for span, _ in known.steps.values():  # a step that failed has no end of its own
                self._fail(span, failure, end)
                span.end(end)
            self._fail(known.span, failure, end)
            known.span.end(end)
        if report is not None:
            code = report.exit_code
            error = next((one.error for one in report.tables if one.exit_code == code), None)
        _describe(root, tables=len(reports) if report else None, exit_code=code, run=self._begun.run or None)
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
            span = self._span("table", self._root or self._new_root(began), began)
            _describe(span, table=name)
            self._tables[name] = _Table(span)
        return self._tables[name]

    def _begin(self, name: str, step: str, at: int) -> None:
        table = self._table(name, at)
        if step not in table.steps:
            table.steps[step] = self._span(step, table.span, at), Tally(None)

    def _close(self, name: str, step: str, at: int, **about: Any) -> None:
        self._begin(name, step, at)
        span, _ = self._tables[name].steps.pop(step)
        _describe(span, **about)
        span.end(at)

    def _new_root(self, began: int) -> Span:
        self._root = self._span(self._begun.command, None, began)
        return self._root

    def _span(self, name: str, parent: Span | None, began: int) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        # An empty context, not the current one: a program around us may have a trace of its own.
        context = Context() if parent is None else set_span_in_context(parent, Context())
        return self._tracer.start_span(name, context, start_time=began)  # type: ignore[return-value]


def _describe(span: Span, **about: Any) -> None:
    """Sets attributes, those that are known. Never positions: they are rows' values."""
    span.set_attributes({f"floodmark.{name}": value for name, value in about.items() if value is not None})


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
