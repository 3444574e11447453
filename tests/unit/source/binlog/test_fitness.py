"""Which binary logs can be followed, what is said of the others, and what to set on each platform."""

from __future__ import annotations

from dataclasses import replace

import pytest

from floodmark.model.errors import ConfigError
from floodmark.model.open_work import ClusterKind, Sight, Trust
from floodmark.source.binlog.fitness import (
    DAY,
    REFUSED,
    Fitness,
    LogFacts,
    LogSettings,
    Reason,
    fitness,
)
from floodmark.source.session import Version

MYSQL = LogFacts(
    LogSettings(
        {
            "log_bin": "ON", "binlog_format": "ROW", "binlog_row_metadata": "FULL", "binlog_row_image": "FULL",
            "sync_binlog": "1", "gtid_mode": "ON", "log_replica_updates": "ON", "binlog_expire_logs_seconds": "2592000",
            "expire_logs_days": "0", "binlog_expire_logs_auto_purge": "ON", "basedir": "/USR/",
        },
        [{"file": "b.000001", "position": "4", "binlog_do_db": "", "binlog_ignore_db": ""}],
    ),
    Trust(Sight(process=True)), Version(False, (9, 7)), "reader", files=3, bytes=120_000_000, began=2 * DAY,
)  # fmt: skip
MARIADB = replace(
    MYSQL,
    settings=LogSettings(
        {
            "log_bin": "ON", "binlog_format": "ROW", "binlog_row_metadata": "FULL", "binlog_row_image": "FULL",
            "sync_binlog": "1", "log_slave_updates": "OFF", "binlog_expire_logs_seconds": "0", "expire_logs_days": "0.000000",
            "basedir": "/USR",
        },
        MYSQL.settings.status,
    ),
    version=Version(True, (10, 11)),
)  # fmt: skip
RDS = {"basedir": "/RDSDBBIN/MYSQL/"}
AURORA = Trust(Sight(process=True), member_of="aurora")


def with_(facts: LogFacts, **variables: str) -> LogFacts:
    changed = replace(facts.settings, variables={**facts.settings.variables, **variables})
    return replace(facts, settings=changed)


def filtered(facts: LogFacts, **filters: str) -> LogFacts:
    return replace(facts, settings=replace(facts.settings, status=[{"file": "b.000001", **filters}]))


def reasons(judged: Fitness) -> list[Reason]:
    return [found.reason for found in judged.findings]


def remedy(judged: Fitness) -> str:
    return "; ".join(found.remedy for found in judged.findings)


@pytest.mark.parametrize("facts", [MYSQL, MARIADB])
def test_a_log_that_has_every_change_is_fit_and_says_how_long_it_is_kept(facts: LogFacts) -> None:
    judged = fitness(facts)
    assert not judged.findings
    judged.require()
    assert judged.kept.endswith("; 3 files, 120.0 MB, the oldest from 2 d ago")


@pytest.mark.parametrize(
    ("reason", "facts", "words", "to_set"),
    [
        ("no_binlog", with_(MYSQL, log_bin="OFF"), "is off", "remove skip-log-bin"),
        ("no_binlog", with_(MARIADB, log_bin="OFF"), "is off", "set log_bin, binlog_format = ROW"),
        ("no_binlog", with_(MYSQL, log_bin="OFF", **RDS), "is off", "automated backups"),
        ("no_binlog", replace(with_(MYSQL, log_bin="OFF"), trust=AURORA), "is off", "cluster parameter group"),
        ("format", with_(MARIADB, binlog_format="MIXED"), "is MIXED", "SET GLOBAL binlog_format = ROW"),
        ("format", with_(MYSQL, binlog_format="STATEMENT"), "STATEMENT", "SET PERSIST binlog_format = ROW"),
        ("replica", replace(MARIADB, replicates=True), "log_slave_updates is OFF", "set log_slave_updates = ON"),
        ("replica", replace(MYSQL, replicates=True), "log_replica_updates", "or read from its primary"),
        ("role", replace(MARIADB, replicates=None), "can't see whether", "GRANT SLAVE MONITOR ON *.* TO 'reader'"),
        ("dump", replace(MYSQL, readable=False), "may not read it", "GRANT REPLICATION SLAVE ON *.*"),
        (
            "position",
            replace(MYSQL, settings=replace(MYSQL.settings, status=None)),
            "positions",
            "GRANT REPLICATION CLIENT",
        ),
        (
            "position",
            replace(MARIADB, settings=replace(MARIADB.settings, status=None)),
            "positions",
            "GRANT BINLOG MONITOR",
        ),
        ("proxy", replace(MYSQL, trust=replace(MYSQL.trust, member_of="proxy")), "a proxy", "the server itself"),
        ("cluster", replace(MARIADB, trust=replace(MARIADB.trust, member_of="galera")), "Galera", "cursors"),
    ],
)  # fmt: skip
def test_a_log_that_may_lack_changes_or_can_not_be_read_is_refused_with_what_to_set(
    reason: Reason, facts: LogFacts, words: str, to_set: str
) -> None:
    judged = fitness(facts)
    assert [found.reason for found in judged.refused] == [reason]
    with pytest.raises(ConfigError) as refused:
        judged.require()
    assert words in refused.value.message and to_set in (refused.value.hint or "")
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("member_of", ["group_replication", "aurora", None])
def test_members_of_clusters_whose_log_has_all_changes_are_not_refused(member_of: ClusterKind | None) -> None:
    trust = replace(MYSQL.trust, member_of=member_of)
    assert not fitness(replace(MYSQL, trust=trust)).refused


def test_both_missing_privileges_are_granted_by_one_statement() -> None:
    judged = fitness(replace(MYSQL, settings=replace(MYSQL.settings, status=None), readable=False))
    with pytest.raises(ConfigError) as refused:
        judged.require()
    assert refused.value.hint == "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'reader'@'…'"


def test_mariadb_before_10_5_has_other_names_for_its_privileges() -> None:
    older = replace(MARIADB, version=Version(True, (10, 4)), replicates=None)
    assert (
        remedy(fitness(older)).splitlines()[0].startswith("GRANT REPLICATION CLIENT ON *.* TO 'reader'@'…'")
    )


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"binlog_ignore_db": "crm,shop"}, "binlog_ignore_db hides the changes of shop, crm"),
        ({"binlog_do_db": "other"}, "binlog_do_db hides the changes of shop, crm"),
        ({"binlog_do_db": "shop", "binlog_ignore_db": "shop"}, "hides the changes of crm"),
        ({"binlog_ignore_db": "SHOP"}, "hides the changes of shop"),
        ({"binlog_do_db": "Shop,crm"}, "hides the changes of shop"),
    ],
)
def test_filters_name_the_schemas_whose_changes_they_hide(filters: dict[str, str], words: str) -> None:
    [found] = fitness(filtered(MYSQL, **filters), ["shop", "crm"]).refused
    assert found.reason == "filters" and words in found.what and "remove binlog_" in found.remedy


def test_filters_that_hide_no_followed_schema_still_hide_statements_on_its_tables() -> None:
    for filters in ({"binlog_ignore_db": "tmp"}, {"binlog_do_db": "shop,crm"}):
        [found] = fitness(filtered(MYSQL, **filters), ["shop", "crm"]).refused
        assert found.reason == "filters" and "TRUNCATE or ALTER" in found.what


def test_unless_gtids_tell_what_is_visible_the_user_must_see_open_transactions() -> None:
    anonymous = with_(MYSQL, gtid_mode="OFF_PERMISSIVE")
    assert reasons(fitness(anonymous)) == ["no_gtids"]
    assert "OFF_PERMISSIVE, ON_PERMISSIVE and ON" in remedy(fitness(anonymous))
    blind = fitness(replace(anonymous, trust=Trust(Sight(process=False))))
    assert [found.reason for found in blind.refused] == ["open_work"]
    assert "GRANT PROCESS" in remedy(blind)
    # MariaDB's snapshots don't tell of an XA COMMIT that is logged and not yet done.
    assert reasons(fitness(replace(MARIADB, trust=Trust(Sight(process=False))))) == ["open_work"]
    assert not fitness(replace(MYSQL, trust=Trust(Sight(process=False)))).findings


@pytest.mark.parametrize(
    ("reason", "variables", "to_set"),
    [
        ("metadata", {"binlog_row_metadata": "MINIMAL"}, "SET PERSIST binlog_row_metadata = FULL"),
        ("row_image", {"binlog_row_image": "MINIMAL"}, "SET PERSIST binlog_row_image = NOBLOB"),
        ("sync_binlog", {"sync_binlog": "0"}, "SET PERSIST sync_binlog = 1"),
        ("retention", {"binlog_expire_logs_seconds": "3600"}, "binlog_expire_logs_seconds = 259200"),
        ("metadata", {"binlog_row_metadata": "MINIMAL", **RDS}, "= FULL in the DB parameter group"),
    ],
)
def test_what_only_costs_comparisons_is_a_note(
    reason: Reason, variables: dict[str, str], to_set: str
) -> None:
    facts = replace(with_(MYSQL, **variables), rds_hours=72.0 if "basedir" in variables else None)
    judged = fitness(facts)
    assert reasons(judged) == [reason] and reason not in REFUSED
    assert to_set in remedy(judged)
    judged.require()


def test_a_server_that_is_too_old_for_a_setting_is_not_asked_for_it() -> None:
    variables = {
        name: value for name, value in MYSQL.settings.variables.items() if name != "binlog_row_metadata"
    }
    assert not fitness(replace(MYSQL, settings=replace(MYSQL.settings, variables=variables))).findings


def test_retention_is_judged_by_how_often_syncs_run() -> None:
    week = with_(MYSQL, binlog_expire_logs_seconds=str(7 * 86400))
    assert not fitness(week).findings
    assert not fitness(week, every=3600).findings
    daily = fitness(week, every=86400)
    assert reasons(daily) == ["retention"] and "every 1 d" in daily.findings[0].what
    assert "binlog_expire_logs_seconds = 864000" in remedy(daily)


@pytest.mark.parametrize(
    ("variables", "kept"),
    [
        ({}, "kept for 30 d"),
        ({"binlog_expire_logs_auto_purge": "OFF"}, "kept until someone removes it"),
        ({"binlog_expire_logs_seconds": "0", "expire_logs_days": "4"}, "kept for 4 d"),
        ({"binlog_expire_logs_seconds": "0", "expire_logs_days": "0"}, "kept until someone removes it"),
    ],
)
def test_the_retention_is_what_the_server_goes_by(variables: dict[str, str], kept: str) -> None:
    assert fitness(with_(MYSQL, **variables)).kept.startswith(kept)


def test_on_rds_only_its_own_setting_counts() -> None:
    facts = with_(MYSQL, **RDS)
    unset = fitness(replace(facts, rds_hours=0.0))
    assert reasons(unset) == ["retention"] and unset.kept.startswith("not kept")
    assert "CALL mysql.rds_set_configuration('binlog retention hours', 72)" in remedy(unset)
    assert reasons(fitness(facts)) == ["retention"], "it can't be seen"
    assert not fitness(replace(facts, rds_hours=72.0)).findings
    aurora = replace(MYSQL, trust=AURORA, rds_hours=24.0)
    assert reasons(fitness(aurora)) == ["retention"]


def test_a_log_that_is_off_has_nothing_else_said_of_it() -> None:
    judged = fitness(with_(MARIADB, log_bin="OFF", binlog_format="MIXED", sync_binlog="0"))
    assert reasons(judged) == ["no_binlog"] and judged.kept == ""
