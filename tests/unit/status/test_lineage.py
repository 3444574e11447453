"""Lineage events: what they say, by OpenLineage's own schemas, and that sending them harms nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from floodmark.config.load import Config, SourceSpec, StoreSpec, WarehouseSpec
from floodmark.model import events
from floodmark.model.errors import TransientError
from floodmark.model.results import Watermark
from floodmark.model.run import SyncReport, TableReport
from floodmark.status import openlineage
from floodmark.status.openlineage import FACETS, LineageEvents, OpenLineage, run_id, wanted
from floodmark.status.run import Observer
from tests.support.hostile_folder import HostileFolder
from tests.support.receiving import Receiving, receiving
from tests.support.warehouse_loads import ORDERS

SPEC = Path(__file__).parents[2] / "support" / "openlineage_spec"
RUN = "20250819_153000_ab12"
AT = "2025-08-19T15:30:00.000000Z"


def config(warehouse: WarehouseSpec | None = None, tmp_path: Path = Path("/tmp")) -> Config:
    spec = warehouse or WarehouseSpec("duckdb", "main", path=Path("/data/w.duckdb"))
    source = SourceSpec("db.internal", 3306, "reader", "s3cret-word", "shop")
    return Config(tmp_path / "floodmark.yaml", source, StoreSpec(str(tmp_path / "lake")), spec)


def report(**more: Any) -> TableReport:
    return TableReport(
        ORDERS.name,
        described=ORDERS,
        watermark=Watermark.of({"commit": 42}),
        commits=(
            41,
            42,
        ),
        **more,
    )


@pytest.fixture(scope="module")
def valid() -> Any:
    """Checks an event, and every facet in it, by the published schemas."""
    found = [json.loads(path.read_text()) for path in sorted(SPEC.glob("*.json"))]
    registry = Registry().with_resources((one["$id"], Resource.from_contents(one)) for one in found)

    def check(event: dict[str, Any]) -> None:
        def by(url: str, document: Any) -> None:
            Draft202012Validator({"$ref": url}, registry=registry).validate(document)

        by(event["schemaURL"], event)
        datasets = [*event["inputs"], *event["outputs"]]
        places = [event["run"]["facets"], event["job"]["facets"]]
        places += [
            one.get(name) or {} for one in datasets for name in ("facets", "inputFacets", "outputFacets")
        ]
        for facets in places:
            for name, facet in facets.items():
                if name == "tags":  # the client's own
                    continue
                assert facet["_schemaURL"].endswith(FACETS[name])
                by(facet["_schemaURL"], facet)

    return check


RESULT = {
    "table": "shop.orders", "ok": False, "rows_source": 10, "rows_warehouse": 11, "missing": 0, "extra": 1,
    "different": 0, "error": None,
}  # fmt: skip


def test_every_event_is_valid_by_the_published_schemas(valid: Any) -> None:
    lineage = LineageEvents(config(), parent="airflow/dag.task/0f0f0f0f-0000-4000-8000-000000000000")
    valid(lineage.started(RUN, "shop.orders", AT))
    valid(lineage.ended(RUN, report(rows_loaded=5), AT))
    valid(lineage.ended(RUN, report(error=TransientError("away", hint="later")), AT))
    valid(lineage.aborted(RUN, "shop.orders", AT))
    valid(lineage.verified(RUN, RESULT, "orders", AT))


def test_the_end_of_a_run_says_what_was_read_written_and_how_columns_map() -> None:
    lineage = LineageEvents(config())
    event = lineage.ended(RUN, report(rows_extracted=7, rows_reread=2, rows_loaded=9, files_loaded=3), AT)
    assert (event["eventType"], event["job"]["name"]) == ("COMPLETE", "sync.shop.orders")
    assert event["run"]["runId"] == lineage.started(RUN, "shop.orders", AT)["run"]["runId"]
    (source,), (target,) = event["inputs"], event["outputs"]
    assert (source["namespace"], source["name"]) == ("mysql://db.internal:3306", "shop.orders")
    assert source["inputFacets"]["inputStatistics"]["rowCount"] == 9
    assert {"name": "id", "type": "bigint(20)"} in source["facets"]["schema"]["fields"]
    assert (target["namespace"], target["name"]) == ("duckdb:///data/w.duckdb", "main.orders")
    assert target["facets"]["version"]["datasetVersion"] == "42"
    assert {"name": "id", "type": "BIGINT"} in target["facets"]["schema"]["fields"]
    lined = target["facets"]["columnLineage"]["fields"]
    assert lined["name"]["inputFields"][0]["field"] == "Name" and "_floodmark_read" not in lined
    statistics = target["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (9, 3)


def test_a_failure_has_its_message() -> None:
    event = LineageEvents(config()).ended(
        RUN, report(error=TransientError("MySQL is away", hint="run again")), AT
    )
    assert event["eventType"] == "FAIL"
    assert event["run"]["facets"]["errorMessage"]["message"] == "MySQL is away run again"


@pytest.mark.parametrize(
    ("host", "namespace"),
    [
        ("shop.abc123.eu-west-1.redshift.amazonaws.com", "redshift://shop.eu-west-1:5439"),
        ("wg.123456789012.us-east-1.redshift-serverless.amazonaws.com", "redshift://wg.us-east-1:5439"),
        ("10.0.0.7", "redshift://10.0.0.7:5439"),
    ],
)
def test_redshift_is_named_as_openlineage_asks(host: str, namespace: str) -> None:
    spec = WarehouseSpec("redshift", "public", host=host, port=5439, database="dev")
    (target,) = LineageEvents(config(spec)).ended(RUN, report(), AT)["outputs"]
    assert (target["namespace"], target["name"]) == (namespace, "dev.public.orders")


def test_a_verify_is_assertions_about_the_target() -> None:
    event = LineageEvents(config()).verified(RUN, RESULT, "orders", AT)
    facet = event["inputs"][1]["inputFacets"]["dataQualityAssertions"]
    found = {one["assertion"]: (one["success"], one["actual"]) for one in facet["assertions"]}
    assert found == {
        "matches_source": (False, "11"),
        "no_missing_rows": (True, "0"),
        "no_extra_rows": (False, "1"),
        "no_different_rows": (True, "0"),
    }


def test_a_run_of_a_table_always_has_the_same_id() -> None:
    assert run_id(RUN, "a.b") == run_id(RUN, "a.b") != run_id(RUN, "a.c") != run_id(RUN, "a.c", "verify")


# ---------------------------------------------------------------- sending


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiving]:
    with receiving() as here:
        monkeypatch.setenv("OPENLINEAGE_URL", here.url)
        monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "shop")
        monkeypatch.setattr(openlineage, "END_SECONDS", 60.0)  # a busy machine imports the client slowly
        yield here


def kinds(here: Receiving) -> list[tuple[str, str]]:
    found = [json.loads(body) for path, body in here.got if path == "/api/v1/lineage"]
    return [(one["eventType"], one["job"]["name"]) for one in found]


def planned(table: str, slices: int) -> events.Planned:
    return events.Planned(table, "sequential", not slices, slices=slices)


def ended(report: TableReport) -> events.Ended:
    return events.Ended(report.table, report)


def test_a_run_is_known_from_its_events(
    receiver: Receiving, tmp_path: Path, valid: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with Observer(config(tmp_path=tmp_path)) as observer:
        observer(events.RunBegan("", RUN))
        observer(planned("shop.orders", 3))
        observer(planned("shop.idle", 0))
        failed = TableReport("shop.early", error=TransientError("no answer for s3cret-word"))
        reports = (report(rows_loaded=5), TableReport("shop.idle"), failed)
        for one in reports:
            observer(ended(one))
        observer(events.RunEnded("", SyncReport(RUN, 1.0, reports)))
        observer(events.Compared("", RUN, (RESULT,), 7))
    assert kinds(receiver) == [
        ("START", "sync.shop.orders"),
        ("COMPLETE", "sync.shop.orders"),
        ("START", "sync.shop.early"),
        ("FAIL", "sync.shop.early"),
        ("START", "verify.shop.orders"),
        ("COMPLETE", "verify.shop.orders"),
    ]
    sent = [json.loads(body) for _, body in receiver.got]
    assert {one["job"]["namespace"] for one in sent} == {"shop"}
    for event in sent:
        valid({**event, "outputs": event.get("outputs", []), "inputs": event.get("inputs", [])})
    assert "s3cret-word" not in "".join(body for _, body in receiver.got)


def test_an_interrupted_run_is_aborted(receiver: Receiving, tmp_path: Path) -> None:
    with OpenLineage(config(tmp_path=tmp_path)) as lineage:
        lineage(events.RunBegan("", RUN))
        for table in ("shop.orders", "shop.done"):
            lineage(planned(table, 1))
        lineage(ended(TableReport("shop.done", commits=(1,))))
        lineage(ended(TableReport("shop.orders", error=TransientError("cancelled"), stopped=True)))
    assert kinds(receiver) == [
        ("START", "sync.shop.orders"),
        ("START", "sync.shop.done"),
        ("COMPLETE", "sync.shop.done"),
        ("ABORT", "sync.shop.orders"),
    ]


def test_a_dry_run_and_a_repair_leave_no_events(receiver: Receiving, tmp_path: Path) -> None:
    with OpenLineage(config(tmp_path=tmp_path)) as lineage:
        for begun in (events.RunBegan("", RUN, dry=True), events.RunBegan("", RUN, "verify")):
            lineage(begun)
            lineage(planned("shop.orders", 1))
            lineage(ended(report()))
    assert kinds(receiver) == []


def test_a_receiver_that_hangs_or_is_away_delays_and_fails_nothing(
    receiver: Receiving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(openlineage, "END_SECONDS", 0.2)
    receiver.hangs = True
    with OpenLineage(config(tmp_path=tmp_path)) as lineage:
        lineage(events.RunBegan("", RUN))
        lineage(ended(report()))
    receiver.released.set()
    assert "not all OpenLineage events were sent" in caplog.text


def test_without_its_environment_there_is_no_lineage_and_no_client_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not wanted({}) and not wanted({"OPENLINEAGE_URL": "http://x", "OPENLINEAGE_DISABLED": "true"})
    assert wanted({"OPENLINEAGE_CONFIG": "openlineage.yml"})
    for name in openlineage.ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    with Observer(config(tmp_path=tmp_path)) as observer:
        assert observer._subscribers == []


def test_a_missing_client_is_one_line_that_says_what_to_install_and_fails_no_sync(
    receiver: Receiving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(openlineage, "find_spec", lambda name: None)
    with Observer(config(tmp_path=tmp_path)) as observer:
        assert observer._subscribers == []
    assert [one.getMessage() for one in caplog.records if "floodmark[openlineage]" in one.getMessage()]


def test_a_client_takes_no_settings_from_the_working_folder(
    receiver: Receiving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = HostileFolder(tmp_path / "shared")
    monkeypatch.chdir(hostile.folder)
    with OpenLineage(config(tmp_path=tmp_path)) as lineage:
        lineage(events.RunBegan("", RUN))
        lineage(ended(report()))
    assert kinds(receiver) and hostile.marks == []
