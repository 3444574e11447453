"""Whether several snapshots show one moment: what the server must be like, and what counts as a proof."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from floodmark.model.notes import Obstacle
from floodmark.model.open_work import Sight, Trust
from floodmark.source.binlog.fitness import LogSettings
from floodmark.source.one_moment import one_server, proof, same_end, unfit, unprovable
from floodmark.source.server import server_of
from floodmark.source.session import Session
from tests.support.described import changed
from tests.support.samples import TABLE as ORDERS

TABLE = changed(ORDERS, where=None, key_index="PRIMARY", mode="full")
MYSQL = {"log_bin": "ON", "gtid_mode": "ON", "log_replica_updates": "ON"}
MARIADB = {"log_bin": "ON", "log_slave_updates": "OFF"}
STATUS = [{"file": "b.000001", "position": "4", "binlog_do_db": "", "binlog_ignore_db": ""}]
PRIMARY = Trust(Sight(process=True), numbers=(9, 7))
MARIADB_PRIMARY = Trust(Sight(process=True, mariadb=True))


def test_a_table_is_fit_if_ranges_of_its_key_have_all_its_rows() -> None:
    assert unfit(TABLE) is None
    assert unfit(changed(TABLE, where="status <> 9 AND selected = 1")) is None
    assert unfit(changed(TABLE, key=(), key_index=None)) == "no_key"
    assert unfit(changed(TABLE, key_index=None)) == "no_key"
    nullable = tuple(replace(c, nullable=c.name in TABLE.key) for c in TABLE.columns)
    assert unfit(changed(TABLE, columns=nullable)) == "no_key", "rows whose key is NULL lie in no range"
    sorted_ = changed(TABLE, needs_sort=("PRIMARY",))
    assert unfit(sorted_) == "key_order", "cutting it would sort the whole table"
    assert unfit(changed(TABLE, needs_sort=("other",))) is None
    assert unfit(changed(TABLE, where="a IN (Select b FROM myisam)")) == "subquery"


@pytest.mark.parametrize(
    ("variables", "trust"), [(MYSQL, PRIMARY), (MARIADB, MARIADB_PRIMARY), (MYSQL, replace(PRIMARY, replica=True))]
)  # fmt: skip
def test_a_server_that_logs_every_change_can_prove_one_moment(
    variables: dict[str, str], trust: Trust
) -> None:
    assert unprovable(LogSettings(variables, STATUS), trust) is None


@pytest.mark.parametrize(
    ("found", "variables", "trust", "status"),
    [
        ("engine", MYSQL, replace(PRIMARY, engine="MyISAM"), STATUS),
        ("engine", MYSQL, replace(PRIMARY, engine=""), STATUS),
        ("no_binlog", {**MYSQL, "log_bin": "OFF"}, PRIMARY, STATUS),
        ("no_binlog", MYSQL, PRIMARY, []),
        ("no_gtids", {**MYSQL, "gtid_mode": "ON_PERMISSIVE"}, PRIMARY, STATUS),
        ("no_gtids", {**MYSQL, "gtid_mode": "OFF"}, PRIMARY, STATUS),
        ("filters", MYSQL, PRIMARY, [{**STATUS[0], "binlog_do_db": "shop"}]),
        ("filters", MARIADB, MARIADB_PRIMARY, [{**STATUS[0], "binlog_ignore_db": "x"}]),
        ("replica", MARIADB, replace(MARIADB_PRIMARY, replica=True), STATUS),
        ("cluster", MYSQL, replace(PRIMARY, member_of="galera"), STATUS),
        ("cluster", MYSQL, replace(PRIMARY, member_of="aurora"), STATUS),
        ("version", MYSQL, replace(PRIMARY, numbers=(8, 0)), STATUS),
        ("version", MYSQL, replace(PRIMARY, numbers=()), STATUS),
        (
            "commit_threads",
            {**MARIADB, "binlog_optimize_thread_scheduling": "OFF"},
            MARIADB_PRIMARY,
            STATUS,
        ),
        ("privilege", MYSQL, PRIMARY, None),
        ("privilege", MARIADB, Trust(Sight(process=False, mariadb=True)), STATUS),
    ],
)
def test_a_server_with_changes_that_its_log_does_not_show_proves_nothing(
    found: Obstacle,
    variables: dict[str, str],
    trust: Trust,
    status: list[dict[str, str | None]] | None,
) -> None:
    assert unprovable(LogSettings(variables, status), trust) == found


def test_a_clock_that_nobody_may_set_matters_only_to_a_where() -> None:
    fixed = {**MARIADB, "binlog_optimize_thread_scheduling": "ON", "secure_timestamp": "YES"}
    assert unprovable(LogSettings(fixed, STATUS), MARIADB_PRIMARY) is None
    assert unprovable(LogSettings(fixed, STATUS), MARIADB_PRIMARY, with_clock=True) == "clock"
    free = {**fixed, "secure_timestamp": "NO"}
    assert unprovable(LogSettings(free, STATUS), MARIADB_PRIMARY, with_clock=True) is None


def test_sessions_are_on_one_server_only_if_all_say_the_same_of_it() -> None:
    def server(name: bytes) -> str:
        asked = Server(SHOW_GLOBAL=[[(b"port", b"3306"), (b"hostname", name)]], SELECT_CONCAT=[[(name,)]])
        found = server_of(cast(Session, asked))
        assert "CONCAT('hostname=', @@global.hostname, '/', 'port=', @@global.port)" in asked.asked[-1]
        return found

    here, other = server(b"db1"), server(b"db2")
    assert one_server([here, here, here]) and not one_server([here, here, other])
    assert not one_server(["", ""]), "nothing is known of it"


def test_a_log_that_is_not_written_has_no_end() -> None:
    assert same_end("b:4", "b:4")
    assert not same_end("b:4", "b:9") and not same_end("b:4", "") and not same_end("", "")


class Server:
    """A source that answers by the statement's first words, one answer after the other."""

    def __init__(self, **answers: list[list[tuple[bytes | None, ...]]]) -> None:
        self.answers = {name.replace("_", " "): list(each) for name, each in answers.items()}
        self.asked: list[str] = []
        self._once: dict[str, list[tuple[bytes | None, ...]]] = {}

    def once(self, sql: str) -> list[tuple[bytes | None, ...]]:
        if sql not in self._once:
            self._once[sql] = self.rows(sql)
        return self._once[sql]

    def variables(self, sql: str) -> dict[str, str]:
        return Session.variables(cast(Session, self), sql)

    def rows(self, sql: str) -> list[tuple[bytes | None, ...]]:
        self.asked.append(sql)
        for words, answers in self.answers.items():
            if sql.startswith(words):
                return answers.pop(0)
        return []


NOT_PREPARED: list[tuple[bytes | None, ...]] = []
VERSION: list[tuple[bytes | None, ...]] = [(b"9.7.4",)]


def end(position: int) -> list[tuple[bytes | None, ...]]:
    return [(b"b.000001", str(position).encode(), b"", b"", b"uuid:1-9")]


def snapshot(position: int) -> list[tuple[bytes | None, ...]]:
    return [
        (b"Binlog_snapshot_file", b"b.000001"),
        (b"Binlog_snapshot_position", str(position).encode()),
    ]


def around(server: Server, mariadb: bool) -> bool:
    """Whether snapshots that are opened now are proven to be of one moment."""
    proving = proof(cast(Session, server), mariadb)
    if not proving.before():
        return False
    proving.meanwhile()
    return proving.after()


@pytest.mark.parametrize(
    ("owned", "before", "after", "expected"),
    [(b"", 4, 4, True), (b"uuid:10#7", 4, 4, False), (b"", 4, 9, False), (b"uuid:10#7", 4, 9, False)],
)
def test_mysql_needs_a_log_that_is_visible_before_and_unchanged_after(
    owned: bytes, before: int, after: int, expected: bool
) -> None:
    server = Server(
        SELECT_VERSION=[VERSION], SELECT_=[[(owned,)]], SHOW_BINARY_LOG_STATUS=[end(before), end(after)]
    )
    assert around(server, False) is expected
    show, owner = (next(i for i, sql in enumerate(server.asked) if word in sql) for word in ("SHOW", "owned"))
    assert show < owner, "what is logged between the two may not be visible yet"


@pytest.mark.parametrize(
    ("before", "first", "last", "after", "expected"),
    [
        (4, False, False, 4, True),
        (4, True, False, 4, False),
        (4, False, True, 4, False),
        (4, False, False, 9, False),
    ],
)
def test_mariadb_needs_equal_places_and_nothing_prepared_before_and_after(
    before: int, first: bool, last: bool, after: int, expected: bool
) -> None:
    prepared: list[tuple[bytes | None, ...]] = [(b"1", b"2", b"0", b"w1")]
    server = Server(
        XA_RECOVER=[prepared if first else NOT_PREPARED, prepared if last else NOT_PREPARED],
        SHOW_STATUS=[snapshot(before), snapshot(after)],
    )
    assert around(server, True) is expected


def test_mariadb_without_a_place_proves_nothing() -> None:
    assert not around(Server(XA_RECOVER=[NOT_PREPARED, NOT_PREPARED], SHOW_STATUS=[[], []]), True)
