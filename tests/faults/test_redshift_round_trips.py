"""What a small load costs: the statements of a socket, and the requests of the Data API, counted."""

from __future__ import annotations

from floodmark.testing.redshift import RedshiftStandIn
from tests.fill import DataApiPlace, Fill, RedshiftPlace, row


def test_a_small_load_takes_four_statements_and_a_transaction_of_fifteen(
    fill: Fill, place: RedshiftPlace
) -> None:
    fill.load(fill.commit([row(1)]))
    faults, commit = place.server.faults, fill.commit([row(2)])
    faults.statements.clear()
    fill.load(commit)
    sent = list(faults.statements)
    assert sent.index("BEGIN") <= 4 and len(sent) <= 19, sent
    faults.statements.clear()
    place.open().ledger("log-1", "orders")
    assert len(faults.statements) <= 3, list(faults.statements)


def test_a_server_that_does_not_take_all_settings_at_once_gets_them_one_by_one(
    fill: Fill, place: RedshiftPlace
) -> None:
    fill.warehouse = place.faulty()
    place.server.faults.fail(r".*set_config", "42883", "function set_config does not exist", times=100)
    fill.load(fill.commit([row(1)]))
    assert place.sent("SET TIMEZONE TO 'UTC'", "SELECT pg_backend_pid()")
    assert fill.rows("id") == [(1,)]


def test_a_small_load_through_the_data_api_takes_two_questions_and_a_batch(
    redshift: RedshiftStandIn, fill: Fill, place: RedshiftPlace
) -> None:
    aws = DataApiPlace(redshift, f"{place.schema}_aws")
    fill.place = aws
    fill.load(fill.commit([row(1)]))
    commit, before = fill.commit([row(2)]), len(aws.client._tokens)
    fill.load(commit)
    assert len(aws.client._tokens) - before <= 3
    assert fill.rows("id") == [(1,), (2,)]
