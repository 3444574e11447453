"""What `doctor --redshift-live` makes of answers: plans, masks, exit codes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.cli.main import main
from floodmark.cli.output.live import live_lines
from floodmark.config.load import StoreSpec, WarehouseSpec, second_user
from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.services.store.store import Store
from floodmark.services.warehouse.redshift.data_api import DataApiTransport
from floodmark.services.warehouse.redshift.errors import Problem, failure_of
from floodmark.services.warehouse.redshift.raw import Requests
from floodmark.services.warehouse.redshift.steps import Failed
from floodmark.setup.doctor.live.explain import Notes, Sent, has_plan
from floodmark.setup.doctor.live.mask import Mask
from floodmark.setup.doctor.live.place import Aside, Live, Scale, Stopped, limits
from floodmark.setup.doctor.live.probe import Answer, Probe, Refusal, Result, State, refusal, refused, taken
from floodmark.setup.doctor.live.run import PROBES, Report

PLAN = (
    "XN Hash Join DS_BCAST_INNER  (cost=0.05..800012.13 rows=1 width=6)",
    '  Hash Cond: ("outer".id = "inner".id)',
    "  ->  XN Seq Scan on orders  (cost=0.00..100000.00 rows=10000000 width=14)",
    "  ->  XN Hash  (cost=0.04..0.04 rows=4 width=8)",
)


def result(state: State) -> Result:
    probe = Probe("group", "name", "Is it so?", "yes", lambda live: Answer(True, "yes"))
    return Result(probe, state, "no")


@pytest.mark.parametrize(
    ("lines", "moves", "nested"),
    [
        (PLAN, ("DS_BCAST_INNER",), False),
        (("XN Hash Join DS_DIST_NONE  (cost=1..2)",), (), False),
        (("XN Hash Join DS_DIST_ALL_NONE  (cost=1..2)",), (), False),
        (("XN Merge Join DS_DIST_BOTH  (cost=1..2)", "XN Seq Scan"), ("DS_DIST_BOTH",), False),
        (("XN Nested Loop DS_BCAST_INNER  (cost=1..2)",), ("DS_BCAST_INNER",), True),
        (("Nested Loop  (cost=1..2)",), (), False),  # of the leader node's catalog
    ],
)
def test_plans_show_what_moves_and_what_loops(
    lines: tuple[str, ...], moves: tuple[str, ...], nested: bool
) -> None:
    sent = Sent("DELETE FROM t", lines)
    assert (sent.moves, sent.nested, sent.distributed) == (moves, nested, "XN" in lines[0])


def test_statements_that_differ_by_values_or_tables_alone_are_one() -> None:
    def deleted(table: str) -> Sent:
        return Sent(f'DELETE FROM "floodmark_live_1"."{table}" USING "s" WHERE "{table}"."id" = "s"."id"')

    notes = Notes(
        [
            Sent("SELECT 1 FROM t WHERE a = 'it''s'"), Sent("SELECT 2 FROM t WHERE a = 'x'"), Sent("SELECT b"),
            deleted("one"), deleted("other"),
        ]
    )  # fmt: skip
    kinds = [sent.sql for sent in notes.kinds().values()]
    assert kinds == ["SELECT 2 FROM t WHERE a = 'x'", "SELECT b", deleted("other").sql]


def test_hosts_accounts_buckets_and_users_are_masked_everywhere() -> None:
    mask = Mask(
        {"<host>": ["wh.internal"], "<user>": ["loader", "other"], "<bucket>": ["lake"], "<prefix>": ["a/b"]}
    )
    said = {
        "text": "User loader can't read s3://lake/a/b/x from wh.internal (10.0.0.7), other can",
        "arns": ["arn:aws:iam::123456789012:role/path/name,arn:aws-cn:iam::123456789012:role/r"],
        "plan": ("abc.123456789012.eu-west-1.redshift-serverless.amazonaws.com", 7, None),
    }
    assert mask.all(said) == {
        "text": "User <user> can't read s3://<bucket>/<prefix>/x from <host> (<address>), <user> can",
        "arns": ["arn:aws:iam::<account>:role/<name>,arn:aws-cn:iam::<account>:role/<name>"],
        "plan": ["<host>", 7, None],
    }
    assert (
        mask("uploaders lakeside 2025-01-02 12:34:56.789012")
        == "uploaders lakeside 2025-01-02 12:34:56.789012"
    )


@pytest.mark.parametrize(
    ("said", "masked"),
    [
        ("User LOADER can't read s3://Lake/x", "User <user> can't read s3://<bucket>/x"),
        ("permission denied for IAMR:deployer", "permission denied for IAMR:<user>"),
        ('owner "IAM:someone"', 'owner "IAM:<user>"'),
        ("account 123456789012 is not allowed", "account <account> is not allowed"),
        ("(123456789012)", "(<account>)"),
        ("arn:aws:iam::123456789012:root", "arn:aws:iam::<account>:root"),
        ("denied on arn:aws:s3:::other-lake/key, twice", "denied on arn:aws:s3:::<name>, twice"),
        ("Abc.Redshift.AmazonAWS.com", "<host>"),
        ("(cost=0.00..100000000000.25 rows=1)", "(cost=0.00..100000000000.25 rows=1)"),
        ("0.123456789012 floodmark_live_123456789012", "0.123456789012 floodmark_live_123456789012"),
    ],
)
def test_names_are_masked_in_any_case_and_accounts_and_buckets_are_recognized(said: str, masked: str) -> None:
    assert Mask({"<user>": ["Loader"], "<bucket>": ["lake"]})(said) == masked


def test_the_database_s_name_for_us_is_masked_if_no_user_is_configured() -> None:
    mask = Mask({"<user>": [None]})
    mask.user("IAMR:nightly-load")
    assert mask("must be owner: nightly-load, or Nightly-Load") == "must be owner: <user>, or <user>"


WAREHOUSE = WarehouseSpec(
    "redshift", "public", host="wh.internal", port=5439, user="loader", password="one", database="dev"
)


def test_the_second_user_must_be_of_the_same_database() -> None:
    second = second_user(WAREHOUSE, "redshift://other:p%40ss@wh.internal/dev")
    assert (second.user, second.password, second.host, second.port) == ("other", "p@ss", "wh.internal", 5439)
    for url in ("redshift://other:x@elsewhere/dev", "redshift://other:x@wh.internal/prod", "other"):
        with pytest.raises(ConfigError, match="second user's URL"):
            second_user(WAREHOUSE, url)


@pytest.mark.parametrize("options", [["--rows", "1000"], ["--only", "SQL"], ["--redshift-live", "--spark"]])
def test_options_of_the_live_probes_need_the_live_probes(options: list[str]) -> None:
    assert main(["doctor", *options]) == 2


@pytest.mark.parametrize(
    ("sql", "explained"),
    [
        ("SELECT 1", True),
        ('CREATE TEMP TABLE "newest" DISTSTYLE KEY DISTKEY ("id") AS SELECT "id" FROM "stage"', True),
        ('CREATE TEMP TABLE "stage" ("id" BIGINT)', False),
        ("COPY t FROM 's3://b/k'", False),
        ("COMMIT", False),
    ],
)
def test_only_statements_with_a_plan_are_explained(sql: str, explained: bool) -> None:
    assert has_plan(sql) is explained


def test_a_refusal_keeps_redshift_s_own_words() -> None:
    for message in ("Redshift refused: everything", "permission denied for relation orders"):
        found = refusal(failure_of(Problem(message, code="42501")))
        assert (found.text, found.code, found.kind) == (message, "42501", "NoRights")
    ours = refusal(Failed(TransientError("the Data API did not finish within 5 s")))
    assert ours.text == "the Data API did not finish within 5 s"


def test_a_statement_is_judged_by_what_we_assume_of_it() -> None:
    said = Refusal("0A000", "target column size should be different", "DataError")
    assert refused(said, "size should be different").as_assumed and refused(said, "", "0A000").as_assumed
    assert not refused(said, "transaction block").as_assumed and not refused([]).as_assumed
    assert taken([]).as_assumed and not taken(said).as_assumed
    assert taken(said).found == "refused (0A000): target column size should be different"


@pytest.mark.parametrize(
    ("state", "code"), [("as assumed", 0), ("unknown", 0), ("differs", 7), ("failed", 7)]
)
def test_the_exit_code_is_7_when_an_answer_differs_or_is_missing(state: State, code: int) -> None:
    report = Report("s", "p", 1, {"socket": "used"}, [result("as assumed"), result(state)])
    assert report.code == code
    report.stopped = "the time is over"
    assert report.code == 7


def test_both_sides_of_a_differing_answer_are_shown() -> None:
    report = Report(
        "s", "p", 1, {"socket": "used"}, [result("differs")], left=["DROP SCHEMA s"], stopped="so"
    )
    text = "\n".join(live_lines(report.as_json(), 80))
    assert "Is it so?" in text and "assumed: yes" in text and "found:   no" in text
    assert "stopped early: so" in text and "could not be removed:\n  DROP SCHEMA s" in text


def test_the_report_has_the_keys_that_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/formats.md").read_text()
    written = (
        page.partition("## `doctor --redshift-live --json`")[2].partition("```json\n")[2].partition("```")[0]
    )
    told = json.loads(written)
    report = Report("s", "p", 1, {"socket": "used"}, [result("as assumed")]).as_json()
    assert report.keys() == told.keys() and report["counts"].keys() == told["counts"].keys()
    assert report["probes"][0].keys() == told["probes"][0].keys()


class Pending:
    """The Data API, where what was submitted never ends; until it is canceled."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.canceled: list[str] = []

    def execute_statement(self, **request: Any) -> dict[str, Any]:
        return {"Id": "1"}

    def describe_statement(self, **request: Any) -> dict[str, Any]:
        self.asked.set()
        return {"Id": request["Id"], "Status": "STARTED"}

    def cancel_statement(self, **request: Any) -> dict[str, Any]:
        self.canceled.append(request["Id"])
        return {"Status": True}


@pytest.mark.parametrize(
    "ask",
    [
        lambda live: Requests(live.way("data_api")).run(["SELECT 1"]),
        lambda live: live.warehouse().rows("orders"),
    ],
    ids=["a request", "a load of ours"],
)
def test_a_stop_ends_waits_for_the_data_api(ask: Callable[[Live], Any], tmp_path: Path) -> None:
    client = Pending()
    spec = replace(WAREHOUSE, transport="data_api")
    way = DataApiTransport(spec, limits(Scale()), client)
    store = Store(StoreSpec(f"file://{tmp_path}"))
    live = Live(spec, store, "s", {"data_api": way}, {})
    waiting = Aside(lambda: ask(live))
    assert client.asked.wait(10)
    live.stop()
    with pytest.raises((Failed, FloodmarkError, Stopped)):
        waiting.result(10)
    assert client.canceled == ["1"]
    with pytest.raises(Stopped):
        live.way("data_api").open()


def test_probes_have_unique_names() -> None:
    names = [(probe.group, probe.name) for probe in PROBES]
    assert len(set(names)) == len(names)
    assert all(probe.question.endswith("?") and probe.assumed for probe in PROBES)
