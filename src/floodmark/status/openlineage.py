"""OpenLineage events of runs: what was read, what was written, how columns map, and whether both sides agree.

A job is the sync, or the verify, of one table; a run of it has an id that follows from Floodmark's own run and the
table. Datasets are named as OpenLineage specifies (`mysql://host:port` and `schema.table`), so that other tools' events
meet them. A table's run begins when its plan has something to read; tables without work leave no events.

Off unless OpenLineage's own environment names a receiver (OPENLINEAGE_URL, OPENLINEAGE_CONFIG or a transport). Events are
sent beside the run, for at most a few seconds at its end. What can't be sent is dropped, with one line in the log:
lineage neither fails nor delays a run.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from floodmark import __version__
from floodmark.config.load import Config
from floodmark.model.events import Compared, Ended, Event, Planned, RunBegan, RunEnded
from floodmark.model.run import TableReport
from floodmark.model.secrets import Scrubber, masked
from floodmark.model.table import Table
from floodmark.model.times import stamp
from floodmark.model.types import fields

logger = logging.getLogger("floodmark")

ENVIRONMENT = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT__TYPE")
MOST_WAITING = 2_000  # events; more are dropped
END_SECONDS = 5.0  # that the end of a run waits for what is being sent
PRODUCER = f"urn:floodmark:{__version__}"
SPEC = "https://openlineage.io/spec"
EVENT = f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
# The published version of each facet that is sent.
FACETS = {
    "columnLineage": "1-2-0/ColumnLineageDatasetFacet.json#/$defs/ColumnLineageDatasetFacet",
    "dataQualityAssertions": "1-1-0/DataQualityAssertionsDatasetFacet.json#/$defs/DataQualityAssertionsDatasetFacet",
    "errorMessage": "1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet",
    "inputStatistics": "1-0-0/InputStatisticsInputDatasetFacet.json#/$defs/InputStatisticsInputDatasetFacet",
    "jobType": "2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet",
    "outputStatistics": "1-0-2/OutputStatisticsOutputDatasetFacet.json#/$defs/OutputStatisticsOutputDatasetFacet",
    "parent": "1-2-0/ParentRunFacet.json#/$defs/ParentRunFacet",
    "processing_engine": "1-1-1/ProcessingEngineRunFacet.json#/$defs/ProcessingEngineRunFacet",
    "schema": "1-2-0/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet",
    "version": "1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet",
}

Document = dict[str, Any]


@dataclass(frozen=True)
class LineageEvents:
    """What all events of one configuration share."""

    config: Config
    namespace: str = "floodmark"  # of the jobs
    parent: str | None = None  # namespace/job/run id, of the task that runs the command

    def started(self, run: str, table: str, at: str, work: str = "sync") -> Document:
        """A table's run has begun."""
        return self._event("START", run, table, at, [self._input(table)], work=work)

    def ended(self, run: str, report: TableReport, at: str) -> Document:
        """A table's run has ended: COMPLETE or FAIL."""
        error = report.error
        facets = {}
        if error is not None:
            said = f"{error.message} {error.hint or ''}".strip()
            facets = _facet("errorMessage", message=said, programmingLanguage="Python")
        read = report.rows_extracted + report.rows_reread
        source = self._input(report.table, report.described)
        source["inputFacets"] = _facet("inputStatistics", rowCount=read)
        outputs = [self._output(report, report.described)] if report.described else []
        kind = "COMPLETE" if error is None else "FAIL"
        return self._event(kind, run, report.table, at, [source], outputs, facets)

    def aborted(self, run: str, table: str, at: str) -> Document:
        """A table's run was interrupted."""
        return self._event("ABORT", run, table, at, [self._input(table)])

    def verified(self, run: str, result: Mapping[str, Any], target: str, at: str) -> Document:
        """A table was compared: the findings as assertions about the target."""
        checked = self._target(target)
        checked["inputFacets"] = _facet("dataQualityAssertions", assertions=assertions(result))
        table = str(result["table"])
        return self._event("COMPLETE", run, table, at, [self._input(table), checked], work="verify")

    def _event(
        self, kind: str, run: str, table: str, at: str, inputs: Sequence[Document],
        outputs: Sequence[Document] = (), facets: Mapping[str, Any] | None = None, work: str = "sync",
    ) -> Document:  # fmt: skip
        engine = _facet("processing_engine", name="floodmark", version=__version__)
        job = _facet("jobType", processingType="BATCH", integration="FLOODMARK", jobType=work.upper())
        about = {**engine, **(facets or {}), **self._parent()}
        return {
            "eventTime": at,
            "producer": PRODUCER,
            "schemaURL": EVENT,
            "eventType": kind,
            "run": {"runId": run_id(run, table, work), "facets": about},
            "job": {"namespace": self.namespace, "name": f"{work}.{table}", "facets": job},
            "inputs": list(inputs),
            "outputs": list(outputs),
        }

    def _parent(self) -> dict[str, Any]:
        """The run that this one is part of, by OPENLINEAGE_PARENT_ID, if it has that form."""
        namespace, _, rest = (self.parent or "").partition("/")
        name, _, run = rest.rpartition("/")
        if not (namespace and name and run):
            return {}
        return _facet("parent", run={"runId": run}, job={"namespace": namespace, "name": name})

    def _input(self, table: str, described: Table | None = None) -> Document:
        source = self.config.source
        columns = [(c.name, c.type) for c in described.columns] if described is not None else []
        return {
            "namespace": f"mysql://{source.host}:{source.port}",
            "name": table,
            "facets": _schema(columns) if columns else {},
        }

    def _target(self, target: str) -> Document:
        spec = self.config.warehouse
        if spec.path is not None:
            return {"namespace": f"{spec.kind}://{spec.path}", "name": f"{spec.schema}.{target}"}
        return {
            "namespace": f"{spec.kind}://{_cluster(spec.host or '')}:{spec.port}",
            "name": f"{spec.database}.{spec.schema}.{target}",
        }

    def _output(self, report: TableReport, table: Table) -> Document:
        kept = [field for field in fields(table) if not field.file_only]
        source = self._input(report.table)
        of = {"namespace": source["namespace"], "name": source["name"]}
        identity = [{"type": "DIRECT", "subtype": "IDENTITY"}]
        inputs = {
            field.target: {"inputFields": [{**of, "field": field.column, "transformations": identity}]}
            for field in kept
            if field.column
        }
        facets = _schema([(f.target, self.config.warehouse.can.type_of(f)) for f in kept])
        facets |= _facet("columnLineage", fields=inputs)
        if report.watermark and report.watermark.get("commit") is not None:
            facets |= _facet("version", datasetVersion=str(report.watermark["commit"]))
        statistics = _facet("outputStatistics", rowCount=report.rows_loaded, fileCount=report.files_loaded)
        return {**self._target(table.target), "facets": facets, "outputFacets": statistics}


def _cluster(host: str) -> str:
    """`cluster.region`, as OpenLineage names it, of an address by AWS; any other address as it is."""
    parts = host.split(".")
    ours = host.endswith(".amazonaws.com") and len(parts) == 6 and parts[3].startswith("redshift")
    return f"{parts[0]}.{parts[2]}" if ours else host


def run_id(run: str, table: str, work: str = "sync") -> str:
    """The id of a table's part of a run, always the same."""
    return str(uuid5(NAMESPACE_URL, f"floodmark:{run}:{work}:{table}"))


def assertions(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a verify found, as tests of the target."""
    rows = {"expected": str(result["rows_source"]), "actual": str(result["rows_warehouse"])}
    found = [{"assertion": "matches_source", "success": bool(result["ok"]), **rows}]
    for kind in ("missing", "extra", "different"):
        counts = {"expected": "0", "actual": str(int(result[kind]))}
        found.append({"assertion": f"no_{kind}_rows", "success": not result[kind], **counts})
    return found


def _schema(columns: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return _facet("schema", fields=[{"name": name, "type": kind} for name, kind in columns])


def _facet(name: str, /, **content: Any) -> dict[str, Any]:
    return {name: {"_producer": PRODUCER, "_schemaURL": f"{SPEC}/facets/{FACETS[name]}", **content}}


# ---------------------------------------------------------------- sending


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment enables lineage."""
    disabled = environment.get("OPENLINEAGE_DISABLED", "").lower() == "true"
    return not disabled and any(environment.get(name) for name in ENVIRONMENT)


def lineage(config: Config) -> OpenLineage | None:
    """The events that the environment enables; None, and a log line, if what sends them is missing."""
    if not wanted():
        return None
    if find_spec("openlineage") is not None:
        return OpenLineage(config)
    logger.warning(
        "no lineage is sent: OPENLINEAGE_… is set, and the OpenLineage client is not installed; "
        "pip install 'floodmark[openlineage]', or OPENLINEAGE_DISABLED=true"
    )
    return None


class OpenLineage:
    """The events of one process's runs. A context manager."""

    def __init__(self, config: Config) -> None:
        environment = os.environ
        self._lineage = LineageEvents(
            config,
            environment.get("OPENLINEAGE_NAMESPACE") or "floodmark",
            environment.get("OPENLINEAGE_PARENT_ID"),
        )
        self._scrub = Scrubber.of(config)
        self._lock = threading.Lock()
        self._started: set[str] = set()  # tables whose run has begun and not ended
        self._run: str | None = None
        self._sender = _Sender()

    def __enter__(self) -> OpenLineage:
        return self

    def __exit__(self, *error: object) -> None:
        self._abort()  # interrupted: no report will come
        self._sender.close()

    def __call__(self, event: Event) -> None:
        try:
            self._take(event)
        except Exception:  # lineage is never worth a sync
            logger.debug("lineage", exc_info=True)

    def _take(self, event: Event) -> None:
        match event:
            case RunBegan(_, run, "sync", False):
                self._run, self._started = run, set()
            case Planned(table) if event.slices:
                self._start(table)
            case Ended(table, report) if table in self._started or not (report.left_out or report.idle):
                self._start(table)  # if it failed before it had a plan, or only loads
                self._end(report)
            case RunEnded():
                self._abort()
            case Compared(_, run, results):
                self._compared(run, results)

    def _start(self, table: str) -> None:
        with self._lock:
            if self._run is None or table in self._started:
                return
            self._started.add(table)
        self._send(self._lineage.started(self._run, table, stamp()))

    def _end(self, report: TableReport) -> None:
        if self._run is not None and not report.stopped:
            self._started.discard(report.table)
            self._send(self._lineage.ended(self._run, report, stamp()))

    def _abort(self) -> None:
        with self._lock:
            left, self._started = self._started, set()
        for table in left:
            self._send(self._lineage.aborted(self._run or "", table, stamp()))

    def _compared(self, run: str, results: Sequence[Mapping[str, Any]]) -> None:
        config, now = self._lineage.config, stamp()
        for result in results:
            if result["error"]:
                continue
            name = str(result["table"])
            target = config.options(name).target or name.partition(".")[2].lower()
            self._send(self._lineage.started(run, name, now, "verify"))
            self._send(self._lineage.verified(run, result, target, now))

    def _send(self, event: Document) -> None:
        self._sender.put(masked(event, self._scrub))


class _Sender:
    """A thread that sends what it is given, in order; started by the first event."""

    def __init__(self) -> None:
        self._events: queue.Queue[Document | None] = queue.Queue(MOST_WAITING)
        self._lock = threading.Lock()  # tables begin side by side
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._why = "the receiver can't keep up"

    def put(self, event: Document) -> None:
        """Takes an event, if there is room."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="openlineage", daemon=True)
                self._thread.start()
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Waits a few seconds for what is left; says so if something was not sent."""
        if self._thread is None:
            return
        try:
            self._events.put_nowait(None)
        except queue.Full:
            pass
        else:
            self._thread.join(END_SECONDS)
        left = self._dropped + sum(1 for one in list(self._events.queue) if one is not None)
        if left or self._thread.is_alive():
            logger.warning("not all OpenLineage events were sent (%s left): %s", left, self._why)

    def _work(self) -> None:
        try:
            client = _client()
        except Exception as error:
            client, self._why = None, type(error).__name__  # its text may quote a key
        while (event := self._events.get()) is not None:
            if client is None:
                self._dropped += 1
                continue
            try:
                client.emit(_typed(event))
            except Exception as error:  # whatever the client, its transport or the receiver does
                self._dropped += 1
                self._why = type(error).__name__


def _client() -> Any:
    """A client that takes no settings from the working folder, where somebody else may write them."""
    from openlineage.client import OpenLineageClient

    class Client(OpenLineageClient):
        @staticmethod
        def _find_yaml_config_path() -> str | None:
            home = os.path.expanduser("~/.openlineage/openlineage.yml")
            return next(
                (p for p in (os.environ.get("OPENLINEAGE_CONFIG"), home) if p and os.path.isfile(p)), None
            )

    return Client()


def _typed(event: Document) -> Any:
    """The event as the client wants it; facets stay documents."""
    from openlineage.client import event_v2 as v2

    return v2.RunEvent(
        eventTime=event["eventTime"],
        producer=event["producer"],
        eventType=v2.RunState[event["eventType"]],
        run=v2.Run(**event["run"]),
        job=v2.Job(**event["job"]),
        inputs=[v2.InputDataset(**one) for one in event["inputs"]],
        outputs=[v2.OutputDataset(**one) for one in event["outputs"]],
    )
