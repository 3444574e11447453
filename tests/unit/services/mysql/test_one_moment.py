"""Whether several snapshots show one moment: what the server must be like, and what counts as a proof."""

from __future__ import annotations

from dataclasses import replace

import pytest

from floodmark.model.notes import Obstacle
from floodmark.services.mysql.one_moment import proven, unfit, unprovable
from floodmark.services.mysql.open_work import Sight
from floodmark.services.mysql.trust import Trust
from tests.support.described import changed
from tests.support.samples import TABLE as ORDERS

TABLE = changed(ORDERS, where=None, key_index="PRIMARY", mode="full")
MYSQL = {"log_bin": "ON", "gtid_mode": "ON", "log_replica_updates": "ON"}
MARIADB = {"log_bin": "ON", "log_slave_updates": "OFF"}
STATUS = [{"file": b"b.000001", "position": b"4", "binlog_do_db": b"", "binlog_ignore_db": b""}]
PRIMARY = Trust(Sight(process=True))
MARIADB_PRIMARY = Trust(Sight(process=True, mariadb=True))


def test_a_table_is_fit_if_ranges_of_its_key_have_all_its_rows() -> None:
    assert unfit(TABLE) is None
    assert unfit(changed(TABLE, where="status <> 9 AND selected = 1")) is None
    assert unfit(changed(TABLE, key=(), key_index=None)) == "no_key"
    assert unfit(changed(TABLE, key_index=None)) == "no_key"
    nullable = tuple(replace(c, nullable=c.name in TABLE.key) for c in TABLE.columns)
    assert unfit(changed(TABLE, columns=nullable)) == "no_key", "rows whose key is NULL lie in no range"
    assert unfit(changed(TABLE, where="a IN (Select b FROM myisam)")) == "subquery"


@pytest.mark.parametrize(
    ("variables", "trust"), [(MYSQL, PRIMARY), (MARIADB, MARIADB_PRIMARY), (MYSQL, replace(PRIMARY, replica=True))]
)  # fmt: skip
def test_a_server_that_logs_every_change_can_prove_one_moment(
    variables: dict[str, str], trust: Trust
) -> None:
    assert unprovable("InnoDB", variables, trust, STATUS) is None


@pytest.mark.parametrize(
    ("found", "engine", "variables", "trust", "status"),
    [
        ("engine", "MyISAM", MYSQL, PRIMARY, STATUS),
        ("engine", "", MYSQL, PRIMARY, STATUS),
        ("no_binlog", "InnoDB", {**MYSQL, "log_bin": "OFF"}, PRIMARY, STATUS),
        ("no_binlog", "InnoDB", MYSQL, PRIMARY, []),
        ("no_gtids", "InnoDB", {**MYSQL, "gtid_mode": "ON_PERMISSIVE"}, PRIMARY, STATUS),
        ("no_gtids", "InnoDB", {**MYSQL, "gtid_mode": "OFF"}, PRIMARY, STATUS),
        ("filters", "InnoDB", MYSQL, PRIMARY, [{**STATUS[0], "binlog_do_db": b"shop"}]),
        ("filters", "InnoDB", MARIADB, MARIADB_PRIMARY, [{**STATUS[0], "binlog_ignore_db": b"x"}]),
        ("replica", "InnoDB", MARIADB, replace(MARIADB_PRIMARY, replica=True), STATUS),
        ("cluster", "InnoDB", MYSQL, replace(PRIMARY, cluster=True), STATUS),
        ("cluster", "InnoDB", {**MYSQL, "aurora_version": "3.05.2"}, PRIMARY, STATUS),
        ("privilege", "InnoDB", MYSQL, PRIMARY, None),
        ("privilege", "InnoDB", MARIADB, Trust(Sight(process=False, mariadb=True)), STATUS),
    ],
)
def test_a_server_with_changes_that_its_log_does_not_show_proves_nothing(
    found: Obstacle,
    engine: str,
    variables: dict[str, str],
    trust: Trust,
    status: list[dict[str, bytes | None]] | None,
) -> None:
    assert unprovable(engine, variables, trust, status) == found


@pytest.mark.parametrize(
    ("before", "opened", "after", "equal"),
    [
        ("b:4", ["", ""], "b:4", True),
        ("b:4", ["b:4", "b:4"], "b:4", True),
        (None, ["", ""], None, False),  # something was on its way both times
        (None, ["", ""], "b:4", False),
        ("b:4", ["", ""], None, False),
        ("b:4", ["", ""], "b:9", False),
        ("b:4", ["b:4", "b:9"], "b:4", False),
        ("b:4", ["b:9", "b:9"], "b:9", False),
    ],
)
def test_snapshots_are_equal_if_the_log_was_settled_before_and_unchanged_after(
    before: str | None, opened: list[str], after: str | None, equal: bool
) -> None:
    assert proven(before, opened, after) is equal
