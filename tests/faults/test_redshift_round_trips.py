"""What a small load costs: the statements of a socket, and the requests of the Data API, counted; how long they may take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from floodmark.config.load import Iam, Tls, WarehouseSpec
from floodmark.load.protocol import Numbered, open_warehouse
from floodmark.model.commit import Batch
from tests.support.redshift import RedshiftStandIn
from tests.support.warehouse_loads import DataApiPlace, Fill, RedshiftPlace, row


def of_a_window(made: Numbered) -> Numbered:
    """The commit with rows that are new, as most are, not only read again."""
    commit, digest = made
    assert isinstance(commit, Batch)
    return replace(commit, window_id="w", slices=(0,)), digest


def test_a_small_load_takes_four_statements_and_a_transaction_of_fourteen(
    fill: Fill, place: RedshiftPlace
) -> None:
    faults = place.server.faults
    faults.statements.clear()
    fill.load(of_a_window(fill.commit([row(1)])))
    assert len(faults.statements) <= 22, list(faults.statements)  # and the ledger is made
    commit = of_a_window(fill.commit([row(2)]))
    faults.statements.clear()
    fill.load(commit)
    sent = list(faults.statements)
    assert sent.index("BEGIN") <= 4 and len(sent) <= 18, sent
    faults.statements.clear()
    place.open().ledger("log-1", "orders")
    assert len(faults.statements) <= 3, list(faults.statements)


def test_a_server_that_rejects_combined_settings_gets_them_one_by_one(
    fill: Fill, place: RedshiftPlace
) -> None:
    fill.warehouse = place.faulty()
    place.server.faults.fail(r".*set_config", "42883", "function set_config does not exist", times=100)
    fill.load(fill.commit([row(1)]))
    assert place.sent("SET TIMEZONE TO 'UTC'", "SELECT pg_backend_pid()")
    assert fill.rows("id") == [(1,)]


def test_a_small_load_through_the_data_api_takes_two_queries_and_a_batch(
    redshift: RedshiftStandIn, fill: Fill, place: RedshiftPlace
) -> None:
    aws = DataApiPlace(redshift, f"{place.schema}_aws")
    fill.place = aws
    fill.load(of_a_window(fill.commit([row(1)])))
    commit, before = of_a_window(fill.commit([row(2)])), len(aws.client._tokens)
    fill.load(commit)
    assert len(aws.client._tokens) - before <= 3
    assert fill.rows("id") == [(1,), (2,)]


@pytest.mark.parametrize("kind", [RedshiftPlace, DataApiPlace])
def test_a_statement_may_take_as_long_as_the_configuration_says(
    redshift: RedshiftStandIn, fill: Fill, place: RedshiftPlace, kind: type[RedshiftPlace]
) -> None:
    spec = WarehouseSpec(**place.spec, tls=Tls("disabled"), statement_timeout=72_000)
    if kind is DataApiPlace:
        place = DataApiPlace(redshift, f"{place.schema}_aws")
        spec = WarehouseSpec(
            **{**place.spec, "password": None},
            iam=Iam(cluster="c"),
            transport="data_api",
            statement_timeout=72_000,
        )
    warehouse = open_warehouse(spec)
    if isinstance(place, DataApiPlace):
        warehouse._transport._client = place.client  # type: ignore[attr-defined]
    warehouse.load(fill.request(fill.commit([row(1)])))
    sent = list(redshift.faults.statements)
    copy = next(i for i, sql in enumerate(sent) if sql.startswith("COPY"))
    limits = [sql for sql in sent[:copy] if "statement_timeout" in sql]
    assert limits[-1] == "SET statement_timeout TO 72000000"
