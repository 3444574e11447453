"""Traces: events as spans, sent to a real collector on this machine."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.config.load import Config, SourceSpec, StoreSpec, WarehouseSpec
from floodmark.model import events
from floodmark.model.errors import Interrupted, TransientError
from floodmark.model.run import Counts, SyncReport, TableReport
from floodmark.model.window import Slice, Window
from floodmark.status import traces
from floodmark.status.run import Observer
from tests.support.collecting import Collecting, collecting

SECRET = "hunter2secret"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collecting]:
    with collecting() as here:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", here.url)
        yield here


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        tmp_path / "floodmark.yaml",
        SourceSpec("127.0.0.1", 3306, "u", SECRET),
        StoreSpec(str(tmp_path / "lake")),
        WarehouseSpec("duckdb", "main", path=tmp_path / "w.duckdb"),
    )


ENDED = events.RunEnded("", SyncReport("r", 1.0, ()))
DONE = TableReport("s.t", rows_extracted=30, files_written=2, seconds=1.0)
LOW = ("alice@example.com", 1)
PLANNED = events.Planned("s.t", "auto", False, 30, 2, 0.1, Window("w", LOW, ("bob", 2), "cursor"))


def a_sync(emit: events.Emit, run: str = "r1") -> None:
    """The events of one table's sync."""
    emit(events.RunBegan("", run))
    emit(events.StageBegan("s.t", "plan"))
    emit(events.StageEnded("s.t", "plan"))
    emit(PLANNED)
    emit(events.StageBegan("s.t", "extract", 30))
    for number in range(2):
        emit(events.SliceBegan("s.t", Slice("window", number, rows=15)))
    for number in range(2):
        emit(events.SliceRead("s.t", Slice("window", number, rows=15), 15, 1, 100, 0.05))
        emit(events.Advanced("s.t", "extract", 15, 1, 100))
    emit(events.CommitBegan("s.t"))
    emit(events.Committed("s.t", 7, "batch", LOW, 30, 99.0, Counts(files_written=2)))
    emit(events.StageEnded("s.t", "extract"))
    for stage in ("load", "verify"):
        emit(events.StageBegan("s.t", stage))
        emit(events.Advanced("s.t", stage, 30, 2))
        emit(events.StageEnded("s.t", stage))
    emit(events.Ended("s.t", DONE, LOW))
    emit(events.RunEnded("", SyncReport(run, 1.0, (DONE,))))


def test_a_run_is_one_trace_with_a_span_for_each_step_and_slice(
    config: Config, collector: Collecting
) -> None:
    with Observer(config) as observer:
        a_sync(observer)
    (root,), (table,), (extract,) = map(collector.named, ("sync", "table", "extract"))
    assert root.parent == b"" and {span.trace for span in collector.spans} == {root.trace}
    assert root.attributes["floodmark.run"] == "r1" and root.attributes["floodmark.exit_code"] == 0
    assert collector.under(root) == ["table"] and table.attributes["floodmark.table"] == "s.t"
    assert collector.under(table) == ["plan", "extract", "commit", "load", "verify"]
    assert collector.under(extract) == ["slice", "slice"]
    assert extract.attributes["floodmark.rows"] == 30 and extract.attributes["floodmark.files"] == 2
    assert [span.attributes["floodmark.slice"] for span in collector.named("slice")] == [0, 1]
    (commit,) = collector.named("commit")
    assert commit.attributes["floodmark.commit"] == 7 and commit.end - commit.start < 50e9
    assert all(span.start <= span.end and not span.failed for span in collector.spans)
    assert collector.resource["service.name"] == "floodmark"


def test_each_cycle_of_a_resident_sync_is_a_trace_of_its_own(config: Config, collector: Collecting) -> None:
    with Observer(config) as observer:
        for run in ("r1", "r2"):
            a_sync(observer, run)
    roots = collector.named("sync")
    assert [span.attributes["floodmark.run"] for span in roots] == ["r1", "r2"]
    assert len({span.trace for span in roots}) == 2 and len(collector.named("table")) == 2


def test_an_error_is_recorded_where_it_happened_without_a_secret(
    config: Config, collector: Collecting
) -> None:
    error = TransientError(f"can't reach mysql://u:{SECRET}@db", table="s.t")
    with Observer(config) as observer:
        observer(events.StageBegan("s.t", "extract", 5))  # and no end
        reports = (TableReport("s.t", error=error), TableReport("s.fine"))
        for one in reports:
            observer(events.Ended(one.table, one))
        observer(events.RunEnded("", SyncReport("r", 1.0, reports)))
    failed = {span.name for span in collector.spans if span.failed}
    assert failed == {"sync", "table", "extract"} and len([s for s in collector.spans if s.failed]) == 3
    (extract,) = collector.named("extract")
    assert extract.said == ("can't reach mysql://u:***@db",)
    assert collector.named("sync")[0].attributes["floodmark.exit_code"] == 4
    assert SECRET.encode() not in collector.raw


def test_a_run_that_was_refused_or_interrupted_leaves_its_trace_too(
    config: Config, collector: Collecting
) -> None:
    with Observer(config) as observer:
        observer(events.RunBegan("", "r9"))
        observer(events.RunEnded("", None, TransientError("no log-in")))
    with pytest.raises(Interrupted), Observer(config) as observer:
        observer(events.RunBegan("", "r10", "verify"))
        observer(events.StageBegan("s.t", "verify"))
        raise Interrupted("stopped", code=143)
    (refused,), (stopped,) = collector.named("sync"), [s for s in collector.named("verify") if not s.parent]
    assert (refused.attributes["floodmark.run"], refused.said) == ("r9", ("no log-in",))
    assert stopped.failed and stopped.attributes["floodmark.exit_code"] == 143


def test_positions_stay_here(config: Config, collector: Collecting) -> None:
    with Observer(config) as observer:
        a_sync(observer)
    assert collector.named("plan") and b"alice" not in collector.raw


@pytest.mark.parametrize("dead", ["hangs", "refuses"])
def test_a_dead_collector_costs_a_moment_and_one_line(
    config: Config,
    collector: Collecting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dead: str,
) -> None:
    monkeypatch.setattr(traces, "PATIENCE", 0.2)
    collector.hangs = True
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        if dead == "refuses":
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        began = time.monotonic()
        with Observer(config) as observer:
            for n in range(2_100):  # more than are kept
                observer(events.SliceRead("s.t", Slice("window", n), 1, 1, 1, 0.01))
            observer(ENDED)
        assert time.monotonic() - began < 30  # and not the minutes of its retries
    assert [r.getMessage() for r in caplog.records if "could not be sent" in r.getMessage()] != []
    # On a busy machine, threads of the tests of lineage are still trying to reach theirs.
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len([line for line in said if "/lineage" not in line]) == 1


def test_a_program_around_us_keeps_the_warnings_about_its_own_traces(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    monkeypatch.setattr(traces, "PATIENCE", 30.0)
    theirs = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    before = theirs.filters[:]
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        with Observer(config) as observer:
            observer(events.StageBegan("s.t", "plan"))
            observer(ENDED)
            OTLPSpanExporter(timeout=0.5).export([])  # a span exporter of theirs, while ours is at work
    said = [r.name for r in caplog.records if r.levelno >= logging.WARNING]
    assert said.count("floodmark") == 1 and len(said) > 1
    assert theirs.filters == before and logging.getLogger("opentelemetry").level == logging.NOTSET


def test_without_the_variables_nothing_is_imported() -> None:
    code = "import sys; import floodmark.status.run; sys.exit(any(n.startswith('opentelemetry') for n in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("given", "on"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_the_usual_variables_decide(given: dict[str, str], on: bool) -> None:
    assert traces.wanted(given) is on


def test_what_keeps_traces_from_being_sent_is_one_line_and_no_error(
    config: Config,
    collector: Collecting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with Observer(config) as observer:
        observer(ENDED)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with Observer(config) as observer:
        observer(ENDED)
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "no traces are sent: Floodmark supports only OTLP over http/protobuf, not grpc",
        "no traces are sent: OpenTelemetry is not installed; pip install 'floodmark[otel]'",
    ]
    assert collector.spans == []
