"""The Data API as a way in: the same loads as batches, with botocore's models as the judge of every request."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from botocore.stub import ANY

from floodmark.config.load import Iam, StoreSpec, WarehouseSpec
from floodmark.load import canonical
from floodmark.load.redshift.data_api import DataApiTransport
from floodmark.load.redshift.steps import Choose, Do, Expect, Limits, Lock, StatementFailed
from floodmark.model.canonical import Scope, Span, forms
from floodmark.model.errors import ConfigError, DataError, TransientError, UnknownOutcome
from floodmark.model.ledger import Part
from floodmark.model.table import Column
from floodmark.model.warehouse import REDSHIFT
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.support.data_api import stubbed
from tests.support.described import changed
from tests.support.redshift import RedshiftStandIn
from tests.support.warehouse_loads import (
    CODES,
    EVENTS,
    ID,
    INT,
    DataApiPlace,
    Fill,
    RedshiftPlace,
    code,
    row,
)

LIMITS = Limits(attempts=2, pause=0.01)
LOCK = Lock('"public"."floodmark_lock_orders"', 5)


@pytest.fixture
def fill(redshift: RedshiftStandIn, seaweed: SeaweedFS, prefix: str) -> Fill:
    redshift.faults.clear()
    place = DataApiPlace(redshift)
    return Fill(place, Store(StoreSpec(**seaweed.store(prefix))))


def losing(fill: Fill, when: str) -> None:
    assert isinstance(fill.place, DataApiPlace)
    fill.place.client.losing = when


def test_commits_load_together_while_no_key_occurs_twice(fill: Fill) -> None:
    outcome = fill.load(fill.commit([row(1, "a")], [row(2, "b")]), fill.commit([row(3, "c")]))
    assert (outcome.rows, outcome.files) == (3, 3)
    assert fill.rows() == [(1, "a"), (2, "b"), (3, "c")] and fill.ledger() == [1, 2]
    assert fill.load(*fill.made).already == (1, 2)


def test_sums_of_the_ledger_are_the_same_through_the_driver(fill: Fill) -> None:
    fill.load(*[fill.commit([row(n)]) for n in range(5)])
    fill.place.run("UPDATE floodmark_ledger SET digest = SHA2('a' || n, 256)")
    driver = RedshiftPlace.faulty(fill.redshift)
    for part in (
        Part(0, 3),
        Part(0, 4, superseded=2, cleaned=((0, 2),)),
        Part(7, 0, proven=False),
        Part(0, 9),
    ):
        found = fill.place.open().ledger(fill.log, "orders", part)
        assert found == driver.ledger(fill.log, "orders", part)
        assert found.commits == 5 and any(r.summed for r in found.rows)


def committed(fill: Fill) -> int:
    """How many batches have loaded something."""
    assert isinstance(fill.place, DataApiPlace)
    return len([sqls for sqls in fill.place.client.batches if any(sql.startswith("COPY") for sql in sqls)])


def test_two_hundred_commits_that_share_keys_are_one_transaction(fill: Fill) -> None:
    commits = [fill.commit([row(n % 7, f"read {n}", at=59 - n % 60)]) for n in range(200)]
    fill.load(*commits)
    assert committed(fill) == 1
    assert fill.rows() == sorted((n % 7, f"read {n}") for n in range(193, 200)) and len(fill.ledger()) == 200


def test_a_load_too_large_for_one_transaction_is_loaded_in_halves_exactly_once(fill: Fill) -> None:
    # Commits of one claim that share a key: each is staged by itself, in more than 40 statements.
    commits = [fill.commit([row(1, f"read {n}"), row(10 + n)], read=9) for n in range(6)]
    late = fill.commit([row(1, "late")], read=9)
    fill.load(late)
    taken_back = frozenset({(late[0].n, late[1])})
    outcome = fill.load(*commits, late, retake=taken_back)
    assert [r.n for r in outcome.loaded] == list(range(1, 8)) and outcome.retaken == taken_back
    assert fill.ledger() == list(range(1, 8))
    assert fill.rows()[0] == (1, "late") and len(fill.rows()) == 7


def test_a_crash_between_the_halves_leaves_the_rest_pending(fill: Fill) -> None:
    commits = [fill.commit([row(1, f"read {n}"), row(10 + n)], read=9) for n in range(6)]
    assert isinstance(fill.place, DataApiPlace)
    fill.place.client.refusing = 1  # after a load AWS says no
    with pytest.raises(ConfigError):
        fill.load(*commits)
    loaded = fill.ledger()
    assert 0 < len(loaded) < 6 and loaded == list(range(1, len(loaded) + 1))
    assert len(fill.rows()) == 1 + len(loaded)
    fill.place.client.refusing = None
    assert fill.load(*commits).already == tuple(loaded)
    assert fill.rows()[0] == (1, "read 5") and len(fill.rows()) == 7
    assert fill.ledger() == list(range(1, 7))


def test_an_abandoned_batch_that_runs_late_finds_the_ledger_changed(fill: Fill) -> None:
    fill.table = EVENTS
    losing(fill, "before")  # it is taken for lost, and AWS has it still
    assert isinstance(fill.place, DataApiPlace)
    commit = fill.commit([{"n": 1}], load_as="insert")
    with pytest.raises(TransientError):
        fill.load(commit)
    losing(fill, "")
    fill.load(commit)
    assert fill.place.client.late() == ["FAILED"] * 3  # of three attempts
    assert fill.rows("n") == [(1,)] and fill.ledger() == [1]


def test_inside_a_commit_the_higher_cursor_wins(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "high", at=9), row(2, "null", at=None)], [row(1, "low"), row(2, "set")]))
    assert fill.rows() == [(1, "high"), (2, "set")]


def test_keys_are_compared_as_mysql_compares_them_and_deletes_find_them(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1), code("x", 1)]))
    fill.load(fill.commit([code("ABC", 2)]))
    fill.load(fill.commit([{"code": "X", "_floodmark_key": b"X"}], load_as="delete"))
    assert fill.rows("code, n") == [("ABC", 2)]


def test_a_check_that_fails_rolls_the_batch_back_with_its_own_error(fill: Fill) -> None:
    fill.table = EVENTS
    first = fill.commit([{"n": 1}], load_as="insert")
    fill.load(first)
    fill.place.run("INSERT INTO events VALUES (5, 'mine')")
    transport = fill.redshift.open()._transport

    def wrong(found: object) -> DataError:
        return DataError(f"found {found}")

    steps = (Do("DELETE FROM events"), Expect("SELECT count(*) FROM events", 1, wrong))
    with pytest.raises(StatementFailed, match="found None"):
        transport.open().transaction(Lock(f"{fill.redshift.schema}.floodmark_lock_events", 5), steps)
    assert fill.rows("n") == [(1,), (5,)]


def test_a_batch_whose_end_was_not_observed_is_found_in_the_ledger(fill: Fill) -> None:
    losing(fill, "after")
    assert fill.load(fill.commit([row(1)])).rows == 1
    assert fill.rows("id") == [(1,)] and fill.ledger() == [1]


def test_a_batch_that_did_not_happen_is_a_transient_error(fill: Fill) -> None:
    losing(fill, "before")
    commit = fill.commit([row(1)])
    with pytest.raises(TransientError):
        fill.load(commit)
    losing(fill, "")
    assert fill.load(commit).rows == 1 and fill.rows("id") == [(1,)]


def test_a_batch_that_can_no_longer_be_queried_is_an_unknown_outcome(fill: Fill) -> None:
    losing(fill, "all")
    with pytest.raises(UnknownOutcome):
        fill.load(fill.commit([row(1)]))


# against botocore's stubs


def transport(iam: Iam, user: str = "loader") -> tuple[DataApiTransport, Any]:
    client, stubber = stubbed()
    spec = WarehouseSpec(
        "redshift", "public", host="h", user=user, database="dev", iam=iam, transport="data_api"
    )
    stubber.activate()
    return DataApiTransport(spec, LIMITS, client, poll=0.001), stubber


def test_a_batch_reports_what_its_statements_are_doing() -> None:
    way, stubber = transport(Iam(cluster="c1"))
    copy = Do("COPY stage FROM 's3://b/m' FORMAT PARQUET MANIFEST")
    steps = (copy, Do("DELETE FROM orders USING stage WHERE orders.id = stage.id"))
    stubber.add_response("batch_execute_statement", {"Id": "id-1"})
    opening = 4  # settings and the lock
    for finished, status in (
        (opening - 1, "STARTED"),
        (opening, "STARTED"),
        (opening + 1, "STARTED"),
        (9, "FINISHED"),
    ):
        parts = [{"Id": f"id-1:{n}", "Status": "FINISHED"} for n in range(finished)]
        answer = {"Id": "id-1", "Status": status, "SubStatements": parts}
        stubber.add_response("describe_statement", answer, {"Id": "id-1"})
    told: list[str] = []
    with closing(way.open()) as session:
        session.transaction(replace(LOCK, at_work=told.append), steps)
    assert told == ["copy", "merge"]


@pytest.mark.parametrize(
    ("iam", "sent"),
    [
        (Iam(cluster="c1"), {"ClusterIdentifier": "c1", "DbUser": "loader"}),
        (Iam(workgroup="group"), {"WorkgroupName": "group"}),
        (Iam(cluster="c1", secret_arn="arn:s"), {"ClusterIdentifier": "c1", "SecretArn": "arn:s"}),
    ],
)
def test_the_user_is_the_configured_one(iam: Iam, sent: dict[str, str]) -> None:
    way, stubber = transport(iam)
    request = {"Sql": "SELECT 1", "Database": "dev", "ClientToken": ANY, "StatementName": "floodmark", **sent}
    stubber.add_response("execute_statement", {"Id": "id-1"}, request)
    stubber.add_response("describe_statement", {"Id": "id-1", "Status": "STARTED"}, {"Id": "id-1"})
    done = {"Id": "id-1", "Status": "FINISHED", "HasResultSet": True, "RedshiftPid": 77}
    stubber.add_response("describe_statement", done, {"Id": "id-1"})
    cells = [[{"longValue": 1}, {"stringValue": "x"}, {"isNull": True}]]
    page = {"Records": cells, "NextToken": "more", "TotalNumRows": 2}
    stubber.add_response("get_statement_result", page, {"Id": "id-1"})
    stubber.add_response("get_statement_result", {"Records": cells}, {"Id": "id-1", "NextToken": "more"})
    session = way.open()
    assert session.query("SELECT 1") == [(1, "x", None)] * 2
    assert session.pid == 77
    stubber.assert_no_pending_responses()


def test_a_transaction_is_one_batch_that_begins_with_the_lock() -> None:
    way, stubber = transport(Iam(workgroup="group"))
    statements = [
        "SET query_group TO 'floodmark:p:orders'",
        "SET TIMEZONE TO 'UTC'",
        "SET statement_timeout TO 5000",
        'LOCK TABLE "public"."floodmark_lock_orders"',
        "SET statement_timeout TO 43200000",
        "DELETE FROM t",
        "SELECT 1 / CASE WHEN (SELECT count(*) FROM t) = 0 THEN 1 ELSE 0 END",
        "SELECT 1 / CASE WHEN (SELECT 1) = 1 THEN 1 ELSE 0 END",
        "INSERT INTO t VALUES (1)",
    ]
    request = {
        "Sqls": statements,
        "Database": "dev",
        "WorkgroupName": "group",
        "ClientToken": ANY,
        "StatementName": ANY,
    }
    stubber.add_response("batch_execute_statement", {"Id": "id-1"}, request)
    stubber.add_response("describe_statement", {"Id": "id-1", "Status": "FINISHED"}, {"Id": "id-1"})
    steps = (
        Do("DELETE FROM t"),
        Expect("SELECT count(*) FROM t", 0, lambda found: DataError("x")),
        Choose("SELECT 1", 1, (Do("INSERT INTO t VALUES (1)"),), lambda: (Do("never"),)),
    )
    way.open("floodmark:p:orders").transaction(LOCK, steps)
    stubber.assert_no_pending_responses()


def test_an_unexpected_answer_leads_to_a_second_batch() -> None:
    way, stubber = transport(Iam(workgroup="group"))
    failed = {"Id": "id-1", "Status": "FAILED", "Error": "ERROR: Divide by zero", "SubStatements": [
        *({"Id": f"id-1:{n}", "Status": "FINISHED"} for n in (1, 2, 3, 4)), {"Id": "id-1:5", "Status": "FAILED"},
        {"Id": "id-1:6", "Status": "ABORTED"}]}  # fmt: skip
    stubber.add_response("batch_execute_statement", {"Id": "id-1"})
    stubber.add_response("describe_statement", failed)
    stubber.add_response("batch_execute_statement", {"Id": "id-2"})
    stubber.add_response("describe_statement", {"Id": "id-2", "Status": "FINISHED"})
    steps = (Choose("SELECT 1", 0, (Do("SELECT 2"),), lambda: (Do("SELECT 3"),)),)
    way.open().transaction(LOCK, steps)
    stubber.assert_no_pending_responses()


def test_nested_expectations_are_dropped_one_after_another() -> None:
    way, stubber = transport(Iam(workgroup="group"))
    sent: list[list[str]] = []
    for number in (1, 2, 3):
        # The check comes right after the four statements that open a batch.
        subs = [{"Id": f"id-{number}:{n}", "Status": "FAILED" if n == 5 else "FINISHED"} for n in range(1, 6)]
        state = (
            {"Status": "FAILED", "Error": "ERROR: Divide by zero"} if number < 3 else {"Status": "FINISHED"}
        )
        stubber.add_response("batch_execute_statement", {"Id": f"id-{number}"})
        stubber.add_response("describe_statement", {"Id": f"id-{number}", "SubStatements": subs, **state})
    way._client.meta.events.register(
        "provide-client-params.redshift-data.BatchExecuteStatement",
        lambda params, **_: sent.append(params["Sqls"][4:]),
    )

    def inner() -> tuple[Choose]:
        return (Choose("SELECT 2", 0, (Do("fair"),), lambda: (Do("sure"),)),)

    steps = (Choose("SELECT 1", 0, (Do("quick"),), inner), Do("last"))
    way.open().transaction(LOCK, steps)
    assert [batch[-2:] for batch in sent] == [["quick", "last"], ["fair", "last"], ["sure", "last"]]
    assert [len(batch) for batch in sent] == [3, 3, 2]


def test_a_lock_timeout_is_distinguished_from_a_slow_statement() -> None:
    for number, stage in ((3, "lock"), (5, "steps")):
        way, stubber = transport(Iam(workgroup="group"))
        subs = [{"Id": f"id-1:{n}", "Status": "FAILED" if n == number else "FINISHED"} for n in range(1, 7)]
        said = {"Id": "id-1", "Status": "FAILED", "Error": "ERROR: Query (3) canceled on user's request"}
        stubber.add_response("batch_execute_statement", {"Id": "id-1"})
        stubber.add_response("describe_statement", {**said, "SubStatements": subs})
        with pytest.raises(StatementFailed) as failed:
            way.open().transaction(LOCK, (Do("SELECT 1"), Do("SELECT 2")))
        assert (failed.value.canceled, failed.value.stage) == (True, stage)


@pytest.mark.parametrize(
    ("problem", "kind", "again"),
    [("ThrottlingException", TransientError, True), ("AccessDeniedException", ConfigError, False)],
)
def test_a_request_that_aws_refuses_was_not_executed(
    problem: str, kind: type[Exception], again: bool
) -> None:
    way, stubber = transport(Iam(workgroup="group"))
    for _ in range(2):
        stubber.add_client_error("batch_execute_statement", problem, "no", http_status_code=400)
    with pytest.raises(StatementFailed) as failed:
        way.open().transaction(LOCK, (Do("SELECT 1"),))
    assert (failed.value.unknown, type(failed.value.error), failed.value.again) == (False, kind, again)
    stubber.add_client_error("execute_statement", problem, "no", http_status_code=400)
    with pytest.raises(StatementFailed):
        way.open().execute("SELECT 1")


def test_a_name_that_aws_does_not_allow_is_a_config_error_and_nothing_is_sent() -> None:
    way, stubber = transport(Iam(workgroup="w1"))
    stubber.deactivate()
    with pytest.raises(StatementFailed) as failed:
        way.open().transaction(LOCK, (Do("SELECT 1"),))
    assert (failed.value.unknown, type(failed.value.error), failed.value.again) == (False, ConfigError, False)


def test_a_batch_beyond_aws_s_limits_is_refused_before_it_is_sent() -> None:
    way, stubber = transport(Iam(workgroup="group"))
    with pytest.raises(StatementFailed) as failed:
        way.open().transaction(LOCK, [Do("SELECT 1")] * 40)
    assert not failed.value.unknown and "transport: socket" in str(failed.value.error.hint)
    stubber.assert_no_pending_responses()


def test_rows_of_a_wide_table_are_compared_however_many_keys_and_however_long_they_are(fill: Fill) -> None:
    many = tuple(
        Column(f"c{i}", "varchar(255)", "varchar", characters=255, charset="utf8mb4") for i in range(70)
    )
    number = replace(INT, nullable=False)
    table = changed(EVENTS, columns=(ID, number, *many), key=("id", "n"), target="wide")
    first, names = 10**12, ", ".join(f"c{i}" for i in range(70))
    fill.place.run(
        f"CREATE TABLE wide (id BIGINT, n INT, {', '.join(f'c{i} VARCHAR(1020)' for i in range(70))})"
    )
    server = fill.redshift.server
    values = ", ".join("repeat('é', CASE WHEN g = 7 THEN 500 ELSE 1 END)" for _ in range(70))
    server.execute(
        f"INSERT INTO {fill.redshift.schema}.wide (id, n, {names}) SELECT {first} + g, g, {values} FROM generate_series(1, 2000) g"
    )
    seen = Scope(table, forms(table, REDSHIFT))
    keys = [(str(first + n), str(n)) for n in range(1, 2001)]
    found = fill.place.open().ask("wide", lambda place: canonical.rows(place, seen, keys))
    assert found is not None and sorted(int(row[2]) for row in found) == list(range(1, 2001))
    [wide] = [row for row in found if row[2] == "7"]
    assert wide[5:] == (canonical.element_hash("1000:" + "é" * 500),) * 70
    gone = [canonical.hash_of(seen, key) for key in keys[:-10]]
    sums = fill.place.open().ask("wide", lambda place: canonical.digests(place, seen, [Span()], gone))
    assert sum(int(row[1]) for row in sums or ()) == 10


def test_a_statement_too_long_for_the_data_api_is_not_sent(fill: Fill) -> None:
    session = fill.redshift.faulty()._transport.open()
    with pytest.raises(StatementFailed, match="statements of up to 100,001 bytes"):
        session.query("SELECT " + "1" * 99_994)
