"""How `doctor` judges facts: the deciding functions, the lanes, the text."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any, NoReturn

import pytest

from floodmark.cli.setup import check_lines, summary_lines
from floodmark.config.file import Tree
from floodmark.config.load import Config, SourceSpec, StoreSpec, TableOptions, Tls, WarehouseSpec
from floodmark.load.redshift.facts import DatabaseFacts, Rights, region
from floodmark.log import pipeline
from floodmark.log.fold import State
from floodmark.log.status import read_doctor
from floodmark.model.errors import ConfigError, Mistake, Mistakes, TransientError
from floodmark.model.open_work import Sight, Trust
from floodmark.model.table import Column, Table
from floodmark.model.warehouse import DUCKDB, LARGE_STRINGS, REDSHIFT
from floodmark.plan.bound import Reading
from floodmark.setup.doctor import (
    Examination,
    examination,
    in_clear,
    keep,
    mistakes,
    source,
    store,
    warehouse,
)
from floodmark.setup.doctor.check import Check, Section, at_once, nearby, reach
from floodmark.setup.doctor.spark import (
    amount,
    check_executors,
    check_memory,
    check_packages,
    check_tasks,
    cores,
    java,
    secrecy,
)
from floodmark.source.binlog.fitness import Fitness, LogFinding
from floodmark.source.describe import Discovered
from floodmark.source.server import LongestTransaction, Replication, ServerFacts, in_newer_words, replication
from floodmark.spark.jvm import settings
from floodmark.store.store import Store
from tests.support.described import changed
from tests.support.samples import AT, ID, TABLE

HERE = Section("spark")
SERVER = ServerFacts(
    version="10.11.6-MariaDB", zone="SYSTEM (CET)", skew=0.1, unsure=0.01, max_allowed_packet=64 << 20,
    max_connections=200, connected=3, user_connections=None, wait_timeout=28800, statement_seconds=0,
    cipher="TLS_AES_256_GCM_SHA384", tls_version="TLSv1.3", trust=Trust(Sight(True)), replication=None,
)  # fmt: skip
SPEC = SourceSpec("db.example.com", 3306, "reader", "secret", tls=Tls("verify_identity"))


def judged(server: ServerFacts, spec: SourceSpec = SPEC) -> dict[str, Check]:
    return {check.name: check for check in source.check_server(server, spec)}


# the source


def test_a_healthy_server_gets_no_warning() -> None:
    assert {check.status for check in judged(SERVER).values()} == {"ok"}


@pytest.mark.parametrize(
    ("skew", "unsure", "status"),
    [(0.0, 0.0, "ok"), (29.0, 0.0, "ok"), (-29.0, 0.0, "ok"), (31.0, 0.1, "warning"), (-7200.0, 0.1, "warning"),
     (31.0, 5.0, "ok")],
)  # fmt: skip
def test_clock_skew_is_a_warning_unless_the_answer_took_as_long(
    skew: float, unsure: float, status: str
) -> None:
    check = source.clock(skew, unsure, "UTC")
    assert check.status == status
    if status == "warning":
        assert ("ahead of" if skew > 0 else "behind") in check.detail
        assert "NTP" in (check.hint or "")


def test_sessions_in_other_zones_are_a_warning_and_hidden_ones_are_assumed() -> None:
    def zones(found: tuple[str, ...] | None) -> Check:
        return judged(replace(SERVER, zones=found))["zones"]

    assert (zones(None).status, zones(()).status, zones(("+00:00",)).status) == ("ok", "ok", "warning")
    assert "are assumed to be in SYSTEM (CET)" in zones(None).detail
    assert "+00:00" in zones(("+00:00",)).detail and "cursor_timezone" in (zones(("+00:00",)).hint or "")


def test_the_binary_log_is_information_whatever_is_wrong_with_it() -> None:
    unfit = LogFinding("no_binlog", "it is off (log_bin)", "set log_bin")
    noted = LogFinding("sync_binlog", "sync_binlog is 0", "set it to 1")
    refused = source.binary_log(Fitness((unfit, noted), ""))
    assert (refused.status, refused.hint) == ("ok", "set log_bin"), "first what keeps it from being followed"
    assert refused.detail.endswith("can't be followed; it is off (log_bin)")
    fit = source.binary_log(Fitness((noted,), "kept for 30 d"))
    assert (fit.status, fit.hint) == ("ok", "set it to 1")
    assert fit.detail.endswith("could be followed; kept for 30 d; sync_binlog is 0")
    assert source.binary_log(Fitness((), "kept for 30 d")).hint is None


def test_a_binary_log_that_tables_follow_must_be_fit() -> None:
    unfit = LogFinding("no_binlog", "it is off (log_bin)", "set log_bin")
    assert source.binary_log(Fitness((unfit,), ""), followed=True).status == "failure"
    fit = source.binary_log(Fitness((), "kept for 30 d"), followed=True)
    assert fit.status == "ok" and fit.detail.startswith("tables follow it; ")


def test_the_longest_pause_is_between_two_recent_runs(tmp_path: Path) -> None:
    store = Store(StoreSpec(url=str(tmp_path / "lake")))
    assert source.longest_pause(store) == 0
    now = time.time()
    for name, ago in (("a", 40), ("b", 10), ("c", 3), ("d", 1)):
        run = f"runs/{time.strftime('%Y%m%d_%H%M%S', time.gmtime(now - ago * 86400))}_{name}.json"
        store.put(run, b"{}")
        os.utime(tmp_path / "lake" / run, (now - ago * 86400,) * 2)
    assert source.longest_pause(store) == pytest.approx(7 * 86400, abs=2), "those of the last 30 days"


def test_encryption_is_judged_by_the_network_path() -> None:
    plain = replace(SERVER, cipher="", tls_version="")
    assert "plain text" in judged(plain)["TLS"].detail
    assert judged(plain, replace(SPEC, host="127.0.0.1"))["TLS"].status == "ok"
    assert judged(plain, replace(SPEC, socket="/run/mysqld.sock"))["TLS"].status == "ok"
    unverified = judged(SERVER, replace(SPEC, tls=Tls("required")))["TLS"]
    assert unverified.status == "warning" and "not verified" in unverified.detail
    # A local port may be the end of someone's tunnel, and TLS was required.
    assert judged(SERVER, replace(SPEC, host="127.0.0.1", tls=Tls("required")))["TLS"].status == "warning"
    assert judged(SERVER, replace(SPEC, host="127.0.0.1", tls=None))["TLS"].status == "ok"
    for mode in ("required", "verify_ca"):  # a `ca` is used in every mode
        checked = judged(SERVER, replace(SPEC, tls=Tls(mode, ca=Path("ca"))))["TLS"]
        assert checked.status == "ok" and "its authority, not its host name" in checked.detail
    assert "host name" in judged(SERVER)["TLS"].detail


def test_a_replica_says_its_lag_and_what_follows() -> None:
    trust = Trust(Sight(True), replica=True)
    role = judged(replace(SERVER, trust=trust, replication=Replication(True, 12.0)))["role"]
    assert role.status == "warning" and "12 s behind" in role.detail and "600 s" in role.detail
    assert "lag unknown" in judged(replace(SERVER, trust=trust))["role"].detail
    cluster = judged(replace(SERVER, trust=Trust(Sight(True), member_of="galera")))["role"]
    assert cluster.status == "warning" and "a node of a Galera cluster" in cluster.detail
    reader = judged(replace(SERVER, trust=Trust(Sight(True), replica=True, member_of="aurora")))["role"]
    assert reader.detail.startswith("a replica, or read-only, part of an Aurora cluster, lag unknown")


@pytest.mark.parametrize(
    ("longest", "status", "words", "hint"),
    [
        (LongestTransaction(20.0, remembered=True), "ok", "that the server remembers", None),
        (LongestTransaction(2000.0, remembered=True), "warning", "33 min", "overlap_seconds: 4200"),
        (LongestTransaction(400.0, remembered=False), "warning", "open right now", "overlap_seconds: 1200"),
        (None, "warning", "does not show", "events_transactions_history_long"),
    ],
)
def test_where_open_work_is_not_seen_the_longest_transaction_decides_which_overlap_is_proposed(
    longest: LongestTransaction | None, status: str, words: str, hint: str | None
) -> None:
    blind = replace(SERVER, trust=Trust(Sight(False)), longest=longest)
    check = judged(blind)["transactions"]
    assert (check.status, "more than 600 s can be missed" in check.detail) == (status, True)
    assert words in check.detail and (hint or "") in (check.hint or "")
    seen = judged(replace(blind, trust=Trust(Sight(True))))["transactions"]
    assert seen.status == "ok" and "waited for" in seen.detail


def test_an_overlap_that_is_configured_is_the_one_that_is_compared() -> None:
    blind = replace(SERVER, trust=Trust(Sight(False)), longest=LongestTransaction(2000.0, remembered=True))
    checks = {check.name: check for check in source.check_server(blind, SPEC, 7200.0)}
    assert checks["transactions"].status == "ok" and "more than 7200 s" in checks["transactions"].detail


def test_a_table_that_is_read_again_on_a_trusted_server_says_why_and_what_is_missed() -> None:
    def found(table: Table, trust: Trust, **options: Any) -> list[str]:
        reading = Reading(table, State(table.name), TableOptions(**options), trust)
        return [f"{check.status} {check.detail}" for check in source.check_overlap(reading)]

    sure = Trust(Sight(True))
    [said] = found(TABLE, sure)
    assert said.startswith("warning every sync reads the last 600 s") and "written by the application" in said
    assert found(TABLE, sure, overlap_seconds=0.0) == []
    kept = changed(TABLE, columns=(ID, replace(AT, extra="on update current_timestamp()")))
    assert found(kept, sure) == []
    [said] = found(kept, replace(sure, engine="ROCKSDB"))
    assert "engine is ROCKSDB" in said and "more than 600 s" in said
    [said] = found(changed(kept, key=(), mode="append"), replace(sure, engine="ROCKSDB"))
    assert "without a key nothing can be read again" in said


def test_the_slowest_channel_of_a_replica_counts_in_either_dialect() -> None:
    good: dict[str, str | None] = {
        "Slave_IO_Running": "Yes",
        "Slave_SQL_Running": "Yes",
        "Seconds_Behind_Master": "3",
        "Last_IO_Error": "",
    }
    new: dict[str, str | None] = {
        "Replica_IO_Running": "Yes",
        "Replica_SQL_Running": "Yes",
        "Seconds_Behind_Source": "7",
    }
    assert replication([in_newer_words(good), in_newer_words(new)]) == Replication(True, 7.0)
    broken: dict[str, str | None] = {
        **good,
        "Slave_IO_Running": "Connecting",
        "Seconds_Behind_Master": None,
        "Last_IO_Error": "no  route",
    }
    assert replication([in_newer_words(good), in_newer_words(broken)]) == Replication(False, None, "no route")


def test_few_connections_small_packets_and_old_versions_are_warnings() -> None:
    found = judged(
        replace(SERVER, connected=195, max_allowed_packet=1 << 20, version="10.1.2-MariaDB", wait_timeout=10)
    )
    for name in ("connections", "packet size", "version", "timeouts"):
        assert found[name].status == "warning" and found[name].hint, name
    assert judged(replace(SERVER, version="5.5.62-log"))["version"].status == "warning"
    assert judged(replace(SERVER, version="5.6.50-log"))["version"].status == "ok"
    assert judged(replace(SERVER, version="8.0.36"))["version"].detail == "MySQL 8.0.36"


def test_a_name_without_an_address_and_a_silent_port_are_two_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(c.name, c.status) for c in reach(HERE, "there.is.no.such.host.invalid", 1)] == [
        ("name", "failure")
    ]
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        found = list(reach(HERE, "localhost", port, "bastion"))
        assert [(c.name, c.status) for c in found] == [("bastion name", "ok"), ("bastion port", "failure")]
    monkeypatch.setattr(socket, "getaddrinfo", _no_name_server)
    (check,) = reach(HERE, "db.example.com", 3306)
    assert check.name == "name" and "no name server answers" in check.detail


def _no_name_server(*_: object, **__: object) -> NoReturn:
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


# the configuration


def test_each_mistake_in_the_file_is_a_check_and_a_missing_variable_has_a_remedy() -> None:
    unset = Mistake("source.url", "environment variable PW is not set", "PW")
    odd = Mistake("tables.a: b", "unknown key; did you mean environment variable X?")
    first, *others = mistakes(Mistakes(Path("f.yaml"), [unset, odd]))
    assert (first.name, first.detail, first.hint) == ("file", "f.yaml has 2 mistakes", None)
    assert [(c.name, c.detail) for c in others] == [(m.place, m.said) for m in (unset, odd)]
    export = "export PW in the shell, or the job, that runs floodmark"
    assert [c.hint for c in others] == [export, None]
    (single,) = mistakes(Mistakes(Path("f.yaml"), [unset]))
    assert (single.name, single.detail, single.hint) == ("file", f"f.yaml: {unset}", export)
    (missing,) = mistakes(ConfigError("there is no configuration f.yaml", hint="make it"))
    assert (missing.detail, missing.hint) == ("there is no configuration f.yaml", "make it")


# the tables


def test_columns_whose_values_redshift_cannot_hold_are_named_with_their_policy() -> None:
    long = Column("long", "longtext", "longtext", characters=1 << 30, octets=1 << 32, charset="utf8mb4")
    table = changed(TABLE, columns=(*TABLE.columns, long), overflow="truncate")
    *_, check = source.check_table(Discovered(table, ()), 5, REDSHIFT)
    assert check.name == "columns" and "long (longtext): values too long" in check.detail
    assert "are cut (overflow: truncate)" in check.detail
    assert [c.name for c in source.check_table(Discovered(table, ()), 5, DUCKDB)] == ["reading"]
    both = changed(table, columns=(*table.columns, Column("doc", "json", "json")))
    *_, check = source.check_table(Discovered(both, ()), 5, LARGE_STRINGS)
    stops, cut = check.detail.split("; ")
    assert stops == "doc (json): values too long for Redshift stop the sync"
    assert cut == "long (longtext): values too long for Redshift are cut (overflow: truncate)"


# the store and the warehouse


@pytest.mark.parametrize(
    ("skew", "status"),
    [(0.0, "ok"), (30.0, "ok"), (-61.0, "warning"), (901.0, "failure"), (-3600.0, "failure")],
)
def test_the_clock_of_the_store(skew: float, status: str) -> None:
    assert store.clock(skew).status == status


def test_a_date_header_means_the_second_that_it_names() -> None:
    now = 1_800_000_000.7
    assert store._skew(formatdate(now, usegmt=True), now, now + 0.1) == 0.0
    assert store._skew(formatdate(now + 100, usegmt=True), now, now + 0.1) == pytest.approx(99.2)
    assert store._skew(formatdate(now - 100, usegmt=True), now, now + 0.1) == pytest.approx(-99.7)
    assert store._skew(None, now, now) is None


def test_bucket_and_cluster_must_be_in_one_region() -> None:
    assert warehouse.regions("eu-west-1", "us-east-1").status == "failure"
    assert warehouse.regions("eu-west-1", "eu-west-1").status == "ok"
    assert warehouse.regions(None, "eu-west-1").status == "ok"
    host = "examplecluster.abc123xyz789.eu-central-1.redshift.amazonaws.com"
    assert region(WarehouseSpec("redshift", "public", host=host)) == "eu-central-1"
    serverless = "wg.123456789012.us-gov-west-1.redshift-serverless.amazonaws.com"
    assert region(WarehouseSpec("redshift", "public", host=serverless)) == "us-gov-west-1"
    assert region(WarehouseSpec("redshift", "public", host="127.0.0.1")) is None


def test_without_a_role_there_must_be_a_default_one() -> None:
    role = "arn:aws:iam::123456789012:role/loader"
    assert warehouse.iam_role(role, None).status == "ok"
    assert warehouse.iam_role("default", "").status == "failure"
    assert warehouse.iam_role(None, role).status == "ok"
    assert warehouse.iam_role(None, "").status == "failure"
    assert warehouse.iam_role(None, None).status == "ok"


def test_serializable_isolation_is_a_warning_that_says_what_it_costs() -> None:
    told = warehouse.isolation("Serializable")
    assert told.status == "warning" and "1023" in told.detail and "SNAPSHOT" in str(told.hint)
    assert {warehouse.isolation(level).status for level in ("Snapshot Isolation", None)} == {"ok"}


# Spark


@pytest.mark.parametrize(
    ("said", "status"),
    [('openjdk version "17.0.15" 2025-04-15', "ok"), ('java version "1.8.0_402"', "failure"),
     ('openjdk version "21" 2023', "ok"), ("what?", "failure")],
)  # fmt: skip
def test_every_format_of_java_s_version_is_parsed(said: str, status: str) -> None:
    assert java(said, "/usr/bin/java").status == status


def test_memory_is_what_tasks_take_against_what_is_free() -> None:
    assert (amount("512m"), amount("2G"), amount("1024"), amount("x")) == (512 << 20, 2 << 30, 1024, None)
    assert (cores("local[3,4]"), cores("local")) == (3, 1)
    assert check_memory(8 << 30, 4, "512m", duckdb=True).status == "ok"
    assert check_memory(1 << 30, 4, "512m", duckdb=True).status == "warning"
    conf = {"spark.master": "yarn", "spark.executor.memory": "2g", "spark.executor.cores": "4"}
    check = check_executors(conf)
    assert check.status == "warning" and "800m" in (check.hint or "")
    check = check_executors({**conf, "spark.executor.memoryOverhead": "1g"})
    assert check.status == "ok"


def test_missing_or_different_packages_are_named_by_host() -> None:
    ours = {"host": "here", "python": "3.11.7", "packages": {"pyarrow": "26", "obstore": "1"}, "missing": {},
            "compiled": True}  # fmt: skip
    same = {**ours, "host": "a"}
    [good] = check_packages(ours, [same, same])
    assert good.status == "ok" and "tasks on a" in good.detail
    lacking = {**ours, "host": "b", "packages": {"pyarrow": "25"}, "missing": {"obstore": "No module"}}
    other = {**ours, "host": "c", "python": "3.12.1"}
    slow, good = check_packages(ours, [{**ours, "compiled": False}])
    assert (slow.status, good.status) == ("warning", "ok") and "no compiled row reader" in slow.detail
    found = list(check_packages(ours, [same, lacking, other]))
    assert [check.status for check in found] == ["failure", "failure"]
    assert "on b: obstore can't be imported (No module); pyarrow 25, here 26" in found[0].detail
    assert "on c: Python 3.12.1, here 3.11.7" in found[1].detail


# secrets, places


def test_tasks_are_counted_by_executor_and_host() -> None:
    ran = [
        {"host": "b", "parent": 7},
        {"host": "a", "parent": 7},
        {"host": "a", "parent": 8},
        {"host": "a", "parent": 7},
    ]
    assert check_tasks(ran).detail == "4 tasks ran in 3 executors on 2 hosts: a 3, b 1"


def test_secrets_in_clear_text_are_found_and_variables_are_not() -> None:
    assert in_clear({"source": {"url": "mysql://u:${PW}@h/d"}}) == []
    assert in_clear({"source": {"url": "mysql://u@h/d"}, "warehouse": {"url": "duckdb:///w"}}) == []
    assert in_clear({"source": {"url": "${URL}"}}) == []
    clear: Tree = {"source": {"url": "mysql://u:p@h/d"}, "store": {"secret_access_key": "x"}}
    assert in_clear(clear) == ["source.url", "store.secret_access_key"]
    assert in_clear({"source": {"url": "mysql://u:$${PW}@h/d"}}) == ["source.url"]


def test_this_machine_is_recognized_by_its_names() -> None:
    assert all(nearby(host) for host in ("localhost", "127.0.0.1", "::1", "127.1.2.3"))
    assert not any(nearby(host) for host in ("db", "10.0.0.1", ""))


# lanes


def test_a_lane_that_hangs_keeps_its_results_and_says_so() -> None:
    never = threading.Event()

    def hanging() -> Iterator[Check]:
        yield HERE.ok("Java", "17")
        never.wait(30)

    def failing() -> Iterator[Check]:
        yield HERE.ok("Spark", "4")
        raise TransientError("it broke", hint="mend it")

    began = time.monotonic()
    hung, failed = at_once([("spark", hanging(), 0.2), ("spark", failing(), 5.0)])
    assert time.monotonic() - began < 3
    assert [check.status for check in hung] == ["ok", "failure"]
    assert "did not finish within 0.2 s" in hung[1].detail and "Java" in hung[1].detail
    assert (failed[1].detail, failed[1].hint) == ("it broke", "mend it")
    never.set()


# the text


def test_lines_fit_the_terminal_and_are_whole_where_there_is_none() -> None:
    long = HERE.warning("memory", "a word " * 40, "another word " * 20)
    skipped = HERE.skipped(("one", "two"), "see memory")
    table = [
        Section("tables", "shop.orders").ok("reading", "upsert"),
        Section("tables", "shop.orders").warning("x", "y"),
    ]
    checks = [long, *skipped, *table]
    for width in (80, 120):
        lines = check_lines(checks, width)
        assert max(len(line) for line in lines) <= width
        assert "  skipped  one, two: see memory" in lines
    assert any(len(line) > 200 for line in check_lines(checks, None))
    assert "  warning  shop.orders: upsert" in check_lines(checks, 80)
    assert "\x1b[33m" in "".join(check_lines(checks, 80, paint=True))


def test_the_last_line_says_what_to_do_next() -> None:
    def last(ok: bool, warning: int, failure: int, skipped: int) -> str:
        counts = {"ok": 3, "warning": warning, "failure": failure, "skipped": skipped}
        return summary_lines(Examination(ok=ok, seconds=1.0, counts=counts, checks=()))[-1]

    assert last(True, 1, 0, 0) == "3 ok, 1 warning, 0 failures; ready: floodmark sync --all"
    assert "1 failure, 2 skipped; fix" in last(False, 0, 1, 2)


@pytest.mark.parametrize(
    ("master", "on", "lacks"),
    [
        ("local[*]", (), None),
        ("spark://m:7077", (), "spark.authenticate and spark.network.crypto.enabled"),
        ("yarn", ("spark.authenticate",), "lacks spark.network.crypto.enabled"),
        ("yarn", ("spark.network.crypto.enabled",), "lacks spark.authenticate:"),
        ("k8s://https://h:6443", ("spark.authenticate", "spark.network.crypto.enabled"), None),
        ("spark://m:7077", ("spark.authenticate", "spark.ssl.rpc.enabled"), None),
    ],
)
def test_secrets_sent_in_clear_text_are_a_warning(
    master: str, on: tuple[str, ...], lacks: str | None
) -> None:
    check = secrecy(settings(master, dict.fromkeys(on, "true"), "x"))
    assert check.status == ("warning" if lacks else "ok")
    assert lacks is None or lacks in check.detail


def test_a_local_spark_without_authentication_is_a_warning() -> None:
    check = secrecy(settings("local[*]", {"spark.authenticate": "false"}, "x"))
    assert check.status == "warning" and "any process on this machine" in check.detail


def test_missing_roles_and_session_rights_come_with_the_statement_to_run() -> None:
    rights = Rights("IAMR:loader", "dev", "public", True, True, True, False, True)
    spec = WarehouseSpec("redshift", "public", iam_role="arn:aws:iam::123456789012:role/copy")

    def told(**facts: Any) -> dict[str, Check]:
        found = DatabaseFacts(rights, "Redshift 1.0", "Snapshot Isolation", None, None, **facts)
        return {check.name: check for check in warehouse.check_database(found, spec)}

    lacking = told(assume_role=False, sees_others=False)
    assert lacking["ASSUMEROLE"].status == "failure" and lacking["ASSUMEROLE"].hint == (
        "GRANT ASSUMEROLE ON 'arn:aws:iam::123456789012:role/copy' TO \"IAMR:loader\" FOR COPY"
    )
    assert lacking["sessions"].status == "ok", "a load does without it"
    assert 'ALTER USER "IAMR:loader" SYSLOG ACCESS UNRESTRICTED' in lacking["sessions"].detail
    fine = told(assume_role=True, sees_others=True)
    assert {fine[name].status for name in ("ASSUMEROLE", "sessions")} == {"ok"}
    assert "ASSUMEROLE" not in told() and "perhaps" in told()["sessions"].detail


@pytest.mark.parametrize(
    ("commits", "is_sorted", "status"), [(10**6, False, "warning"), (10**6, True, "ok"), (9, False, "ok")]
)
def test_a_long_ledger_without_a_sort_key_is_a_warning_with_the_statements(
    commits: int, is_sorted: bool, status: str
) -> None:
    rights = Rights("loader", "dev", "public", True, True, True, False, True)
    found = DatabaseFacts(rights, "Redshift 1.0", None, None, commits, sorted_ledger=is_sorted)
    *_, check = warehouse.check_database(found, WarehouseSpec("redshift", "public"))
    assert (check.name, check.status) == ("ledger", status)
    assert status == "ok" or str(check.hint).endswith(
        'ALTER TABLE "public"."floodmark_ledger" ALTER SORTKEY (log_id, epoch, n)'
    )


# what is left of it


def test_the_result_is_left_only_in_a_sound_store_that_is_in_use(tmp_path: Path) -> None:
    config = Config(
        tmp_path / "floodmark.yaml", SPEC, StoreSpec(str(tmp_path / "lake")),
        WarehouseSpec("duckdb", "main", tmp_path / "w.duckdb"),
    )  # fmt: skip
    lake = Store(config.store)
    said = examination(
        [HERE.ok("memory", "fine"), HERE.warning("java", "old", "a newer one")], time.monotonic()
    )
    keep(config, said, ())
    assert read_doctor(lake) is None and not (tmp_path / "lake").exists()
    pipeline.establish(lake, config.warehouse.label, "2026-11-17T10:00:00.000000Z")
    keep(config, examination([Section("store").failure("read", "no rights")], time.monotonic()), ())
    assert read_doctor(lake) is None
    keep(config, said, ("shop.orders",))
    found = read_doctor(lake)
    assert found is not None and (found.ok, found.tables) == (True, ("shop.orders",))
    assert (found.counts["ok"], found.counts["warning"]) == (1, 1)
    assert [(one["name"], one["hint"]) for one in found.checks] == [("java", "a newer one")]
