"""OpenLineage events of runs: what was read, what was written, how columns map, and whether both sides agree. Pure.

A job is the sync, or the verify, of one table; a run of it has an id that follows from Floodmark's own run and the
table. Datasets are named as OpenLineage specifies (`mysql://host:port` and `schema.table`), so that other tools' events
meet them. The events are plain documents; the client only sends them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from floodmark import __version__
from floodmark.config.load import Config
from floodmark.model.run import TableReport
from floodmark.model.table import Table
from floodmark.model.types import fields

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
        return self._event("START", run, table, at, work, [self._input(table)], [])

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
        return self._event(kind, run, report.table, at, "sync", [source], outputs, facets)

    def aborted(self, run: str, table: str, at: str) -> Document:
        """A table's run was interrupted."""
        return self._event("ABORT", run, table, at, "sync", [self._input(table)], [])

    def verified(self, run: str, result: Mapping[str, Any], target: str, at: str) -> Document:
        """A table was compared: the findings as assertions about the target."""
        checked = self._target(target)
        checked["inputFacets"] = _facet("dataQualityAssertions", assertions=assertions(result))
        table = str(result["table"])
        return self._event("COMPLETE", run, table, at, "verify", [self._input(table), checked], [])

    def _event(
        self, kind: str, run: str, table: str, at: str, work: str,
        inputs: Sequence[Document], outputs: Sequence[Document], facets: Mapping[str, Any] | None = None,
    ) -> Document:  # fmt: skip
        about = {**_facet("processing_engine", name="floodmark", version=__version__), **(facets or {})}
        if (parent := self._parent()) is not None:
            about |= parent
        return {
            "eventTime": at,
            "producer": PRODUCER,
            "schemaURL": EVENT,
            "eventType": kind,
            "run": {"runId": run_id(run, table, work), "facets": about},
            "job": {
                "namespace": self.namespace,
                "name": f"{work}.{table}",
                "facets": _facet(
                    "jobType", processingType="BATCH", integration="FLOODMARK", jobType=work.upper()
                ),
            },
            "inputs": list(inputs),
            "outputs": list(outputs),
        }

    def _parent(self) -> dict[str, Any] | None:
        """The run that this one is part of, by OPENLINEAGE_PARENT_ID; None: none, or not of that form."""
        namespace, _, rest = (self.parent or "").partition("/")
        name, _, run = rest.rpartition("/")
        if not (namespace and name and run):
            return None
        return _facet("parent", run={"runId": run}, job={"namespace": namespace, "name": name})

    def _input(self, table: str, described: Table | None = None) -> Document:
        source = self.config.source
        columns = [] if described is None else [(c.name, c.type) for c in described.columns]
        return {
            "namespace": f"mysql://{source.host}:{source.port}",
            "name": table,
            "facets": _facet("schema", fields=_fields(columns)) if columns else {},
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
        facets = _facet(
            "schema", fields=_fields([(f.target, self.config.warehouse.can.type_of(f)) for f in kept])
        )
        identity = [{"type": "DIRECT", "subtype": "IDENTITY"}]
        facets |= _facet(
            "columnLineage",
            fields={
                field.target: {
                    "inputFields": [
                        {
                            "namespace": source["namespace"],
                            "name": source["name"],
                            "field": field.column,
                            "transformations": identity,
                        }
                    ]
                }
                for field in kept
                if field.column
            },
        )
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
        count = int(result[kind])
        found.append(
            {"assertion": f"no_{kind}_rows", "success": not count, "expected": "0", "actual": str(count)}
        )
    return found


def _fields(columns: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"name": name, "type": kind} for name, kind in columns]


def _facet(name: str, /, **content: Any) -> dict[str, Any]:
    return {name: {"_producer": PRODUCER, "_schemaURL": f"{SPEC}/facets/{FACETS[name]}", **content}}
