"""`doctor --redshift-live` on the stand-in: every probe answers, and nothing is left behind."""

from __future__ import annotations

import json
import re
import secrets
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redshift_connector
import yaml
from redshift_connector.core import Connection

from floodmark.cli.output.live import live_lines
from floodmark.config.load import Config, Iam, load
from floodmark.model.errors import ConfigError, TransientError
from floodmark.services.store.store import Store
from floodmark.services.warehouse.redshift.data_api import DataApiTransport
from floodmark.services.warehouse.redshift.steps import Transport
from floodmark.setup.doctor.live import Scale, copies, deaths, examine_live, identity
from floodmark.setup.doctor.live.explain import Notes
from floodmark.setup.doctor.live.place import Live, limits
from floodmark.setup.doctor.live.probe import Answer, Probe
from floodmark.setup.doctor.live.run import PROBES
from floodmark.setup.services.s3 import SeaweedFS
from tests.conftest import Floodmark
from tests.support.data_api import DataApi
from tests.support.redshift import RedshiftStandIn
from tests.support.sql_pieces import unsent

# What the stand-in, and the stub for the Data API, answer against what we assume of Redshift.
STAND_IN_DIFFERS = {
    "SQL: trailing blanks",  # to PostgreSQL 'a' and 'a ' differ
}
STAND_IN_UNKNOWN = {
    "roles: chain",
    "alters: drop under a late view",
    "sessions: 1023",
    "statements: nested loops",
    "statements: moved rows",
}
# Pieces of SQL that are sent in other places as well.
ALSO_SENT = (
    r'DELETE FROM "\w+"\."orders_twice" USING "floodmark_older"',
    r'DELETE FROM "\w+"\."orders_twice" USING "floodmark_tied"',
    r'DROP TABLE "\w+"\."orders_untold"',
    r'FROM_HEX\(TO_HEX\("raw"\)\).* FROM "\w+"\."binaries_twice" GROUP BY TO_HEX\("raw"\)',
    r'CREATE TEMP TABLE "floodmark_stage" .*"doc" SUPER',
    r"ALTER TABLE .*floodmark_lock_codes_old.* ADD COLUMN",
)
FEW = Scale(rows=2000, wait=0.4, lock=15, statement=60)


@pytest.fixture
def user(redshift: RedshiftStandIn) -> tuple[str, str]:
    """An ordinary user who may create a schema."""
    redshift.faults.clear()
    name, password = f"live_{secrets.token_hex(4)}", f"Secret-{secrets.token_hex(8)}"
    redshift.create_user(name, password, "TEMP, CREATE ON DATABASE dev")
    redshift.execute(
        f"ALTER ROLE {name} SET floodmark.large_strings TO 'on'", f"GRANT SELECT ON svv_table_info TO {name}"
    )
    return name, password


@pytest.fixture
def config(
    tmp_path: Path, redshift: RedshiftStandIn, seaweed: SeaweedFS, prefix: str, user: tuple[str, str]
) -> Config:
    """A configuration whose source is never contacted."""
    file = tmp_path / "floodmark.yaml"
    document = {
        "source": {"url": "mysql://nobody@nowhere.invalid/shop"},
        "store": seaweed.store(prefix),
        "warehouse": {
            "url": redshift.url(*user),
            "iam_role": redshift.role,
            "tls": {"mode": "disabled"},
        },
    }
    file.write_text(yaml.safe_dump(document))
    file.chmod(0o600)
    return load(file)


def left_behind(redshift: RedshiftStandIn, config: Config, report: dict[str, Any]) -> tuple[Any, ...]:
    """What is there still of a report's schema and files."""
    schemas = redshift.execute(f"SELECT 1 FROM pg_namespace WHERE nspname = '{report['schema']}'")
    return (*schemas, *Store(config.store).list(""))


def odd(report: dict[str, Any], *states: str) -> dict[str, str]:
    """The probes in some states, and what was found."""
    return {
        f"{probe['group']}: {probe['name']}": f"{probe['found']} (assumed: {probe['assumed']})"
        for probe in report["probes"]
        if probe["state"] in states
    }


def both(config: Config, redshift: RedshiftStandIn) -> dict[str, Transport]:
    def connect() -> Connection:
        user, password = config.warehouse.user, config.warehouse.password
        connection = redshift_connector.connect(**redshift.options(user=user, password=password))
        connection.autocommit = True
        return connection

    from floodmark.services.warehouse.redshift.socket import SocketTransport

    spec = replace(config.warehouse, password=None, iam=Iam(cluster="c"), transport="data_api")
    return {
        "socket": SocketTransport(config.warehouse, limits(FEW)),
        "data_api": DataApiTransport(spec, limits(FEW), DataApi(connect), poll=0.01),
    }


def test_the_stand_in_answers_every_probe_on_both_transports_and_nothing_is_left(
    config: Config, redshift: RedshiftStandIn
) -> None:
    name = f"second_{secrets.token_hex(4)}"
    redshift.create_user(name, "Second-1")
    second = replace(config.warehouse, user=name, password="Second-1")
    said: list[str] = []
    sent: list[str] = []

    def note(live: Live) -> Answer:
        sent.extend(one.sql for one in live.once("every statement", Notes).sent)
        return Answer(True, "noted")

    noting = Probe("statements", "all of them", "Which were sent?", "many", note)
    report = examine_live(
        config, FEW, said.append, second=second, ways=both(config, redshift), probes=[*PROBES, noting]
    ).as_json()
    assert odd(report, "failed") == {}
    assert odd(report, "differs").keys() == STAND_IN_DIFFERS, odd(report, "differs")
    assert odd(report, "unknown").keys() == STAND_IN_UNKNOWN, odd(report, "unknown")
    assert (len(report["probes"]), report["stopped"], report["left"]) == (len(PROBES) + 1, None, [])
    assert len(said) > len(PROBES)
    spec = config.warehouse
    for text in (
        spec.user,
        spec.password,
        name,
        redshift.host,
        "123456789012",
        config.store.url.split("/")[3],
    ):
        assert text and text not in str(report), text
    assert left_behind(redshift, config, report) == ()
    # The ledger is made by whichever probe loads first.
    sent += [sql for sql in redshift.faults.statements if sql.startswith("CREATE TABLE IF NOT EXISTS")]
    # If you add a way to build a statement, add it to doctor/live/ways.py too.
    assert unsent(sent) == set()
    assert [way for way in ALSO_SENT if not any(re.search(way, sql) for sql in sent)] == []


def test_the_report_has_no_secrets_hosts_accounts_or_names(
    floodmark: Floodmark, redshift: RedshiftStandIn, config: Config, user: tuple[str, str], prefix: str
) -> None:
    # The refusals of the manifests name files; each waits for Redshift's own note of it.
    for groups, output in (
        (("database", "roles"), ()),
        (("database", "roles", "manifests"), ("--json", "--json-logs")),
    ):
        chosen = [word for group in groups for word in ("--only", group)]
        ran = floodmark("doctor", "--redshift-live", *chosen, *output)
        assert ran.code in (0, 7), ran.stderr
        told = (*user, redshift.host, "123456789012", prefix, config.store.secret_access_key or "")
        assert not [text for text in told if text and text in ran.stdout]
        assert user[1] not in ran.stderr
    assert left_behind(redshift, config, ran.json) == ()
    assert len([json.loads(line) for line in ran.stderr.splitlines()]) > len(ran.json["probes"])


def test_the_user_is_masked_even_if_the_configuration_has_none(
    config: Config, redshift: RedshiftStandIn
) -> None:
    def who(live: Live) -> Answer:
        with live.session() as session:
            return Answer(True, f"I am {str(session.query('SELECT current_user')[0][0]).upper()}.")

    unnamed = replace(config, warehouse=replace(config.warehouse, user=None))
    probes = [Probe("group", "name", "Who?", "somebody", who)]
    ways = {"socket": both(config, redshift)["socket"]}
    report = examine_live(unnamed, FEW, lambda line: None, ways=ways, probes=probes)
    assert report.results[0].found == "I am <user>."


def test_a_cluster_without_large_strings_gets_no_long_documents(
    config: Config, redshift: RedshiftStandIn, user: tuple[str, str]
) -> None:
    redshift.execute(f"ALTER ROLE {user[0]} SET floodmark.large_strings TO 'off'")
    probes = [probe for probe in PROBES if probe.name == "long JSON"]
    (found,) = examine_live(config, FEW, lambda line: None, probes=probes).results
    assert (found.state, found.found) == ("unknown", "enable_large_strings_opt_in is off")


def test_a_serializable_database_is_reported_with_its_conflict(
    config: Config, seaweed: SeaweedFS, user: tuple[str, str]
) -> None:
    with RedshiftStandIn(seaweed, isolation="serializable") as server:
        server.create_user(*user, "TEMP, CREATE ON DATABASE dev")
        there = replace(config, warehouse=replace(config.warehouse, port=server.port))
        names = ("isolation", "write skew", "1023", "two loads")
        report = examine_live(
            there, FEW, lambda line: None, probes=[probe for probe in PROBES if probe.name in names]
        ).as_json()
    states = {probe["name"]: probe["state"] for probe in report["probes"]}
    expected = dict(zip(names, ("differs", "unknown", "as assumed", "as assumed"), strict=True))
    assert states == expected, report["probes"]


def test_without_the_right_to_create_a_schema_no_report_is_made(
    config: Config, redshift: RedshiftStandIn
) -> None:
    name = f"poor_{secrets.token_hex(4)}"
    redshift.create_user(name, "Poor-1")
    poor = replace(config, warehouse=replace(config.warehouse, user=name, password="Poor-1"))
    with pytest.raises(ConfigError, match="permission denied"):
        examine_live(poor, FEW, lambda line: None)


def test_a_client_that_dies_in_the_middle_of_copy_leaves_no_row(
    config: Config, redshift: RedshiftStandIn
) -> None:
    redshift.faults.delay(1.0, r"\s*copy\b", times=9)
    report = examine_live(config, FEW, lambda line: None, probes=deaths.PROBES).as_json()
    redshift.faults.clear()
    assert odd(report, "differs", "unknown", "failed") == {}


def test_a_commit_sent_by_a_dying_client_takes_effect(config: Config, redshift: RedshiftStandIn) -> None:
    redshift.faults.delay_commit(0.5, times=9)  # the first is that of the client that dies
    probes = [probe for probe in deaths.PROBES if probe.name == "in COMMIT"]
    (found,) = examine_live(config, FEW, lambda line: None, probes=probes).results
    redshift.faults.clear()
    assert (found.state, found.details["committed"]) == ("as assumed", True), found.found
    assert found.details["lock_seconds"] > 0.2, "it kept its lock while it was committing"


def test_without_the_right_to_see_table_info_the_grant_is_printed(
    config: Config, redshift: RedshiftStandIn, user: tuple[str, str]
) -> None:
    redshift.execute(f"REVOKE SELECT ON svv_table_info FROM {user[0]}")
    probes = [probe for probe in PROBES if probe.name == "table info"]
    (found,) = examine_live(config, FEW, lambda line: None, probes=probes).results
    assert found.state == "unknown" and "permission denied" in found.found
    assert found.found.endswith("GRANT SELECT ON svv_table_info TO the user")


def test_a_differing_answer_is_shown_with_our_assumption_and_is_exit_code_7(
    config: Config, redshift: RedshiftStandIn
) -> None:
    redshift.faults.fail(r"\s*copy\b", "XX000", "something new", times=100)
    report = examine_live(config, FEW, lambda line: None, probes=copies.PROBES)
    redshift.faults.clear()
    document = report.as_json()
    assert (report.code, document["ok"]) == (7, False)
    told = odd(document, "differs")["manifests: missing file"]
    assert "something new" in told and "nothing loaded" in told
    lines = "\n".join(live_lines(document, None))
    assert "assumed: refused, nothing loaded" in lines and "something new" in lines


def test_load_errors_that_redshift_notes_late_are_in_the_report(
    config: Config, redshift: RedshiftStandIn
) -> None:
    redshift.faults.lag(0.5)
    noted = {
        "filename": "s3://lake/x",
        "colname": "c",
        "line_number": 7,
        "err_code": 1204,
        "err_reason": "too long",
    }
    redshift.faults.fail_copy("longer than the length", load_error=noted)
    probes = [probe for probe in PROBES if probe.name == "over-long text"]
    report = examine_live(config, replace(FEW, wait=5), lambda line: None, probes=probes).as_json()
    redshift.faults.clear()
    (found,) = report["probes"]
    assert found["details"]["sqlstate"] == "XX000"
    (error,) = found["details"]["load_errors"]
    assert (error["column"], error["line"], error["code"], error["reason"]) == ("c", "7", "1204", "too long")


def test_what_could_not_be_removed_is_listed_with_its_statement(
    config: Config, redshift: RedshiftStandIn
) -> None:
    redshift.faults.fail(r"\s*drop schema\b", "42501", "must be owner", times=3)
    report = examine_live(config, FEW, lambda line: None, probes=identity.PROBES[:1])
    assert report.left == [
        f'DROP SCHEMA IF EXISTS "{report.schema}" CASCADE;  -- {report.left[0].partition("-- ")[2]}'
    ]
    redshift.execute(f"DROP SCHEMA {report.schema} CASCADE")


def test_the_time_for_all_probes_is_bounded(config: Config, redshift: RedshiftStandIn) -> None:
    report = examine_live(config, replace(FEW, seconds=0.0), lambda line: None)
    assert report.stopped is not None and report.code == 7 and len(report.results) <= 1
    assert left_behind(redshift, config, report.as_json()) == ()


def test_ctrl_c_removes_schema_and_files(
    floodmark: Floodmark, redshift: RedshiftStandIn, config: Config
) -> None:
    redshift.faults.delay(60.0, r"\s*copy\b")
    running = floodmark.start("doctor", "--redshift-live")
    schema = running.stderr.readline().split()[1].rstrip(",")
    for line in running.stderr:
        if "leader node" in line:  # the last before the first COPY
            break
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=90)
    redshift.faults.clear()
    assert running.returncode == 130 and "schema and files have been removed" in stderr
    assert left_behind(redshift, config, {"schema": schema}) == ()


def test_an_unreachable_database_makes_no_report(config: Config) -> None:
    away = replace(config, warehouse=replace(config.warehouse, port=1))
    with pytest.raises(TransientError):
        examine_live(away, FEW, lambda line: None)
