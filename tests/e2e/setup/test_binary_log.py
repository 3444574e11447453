"""Whether the source's binary log could be followed, on real servers: what is judged, and how `doctor` and `init` say it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.config.load import load, source_from
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source.binlog.fitness import Fitness, fitness, log_facts
from floodmark.source.server import trust_in
from floodmark.source.session import Session
from tests.conftest import BOTH, NO_MYSQL, SERVERS, Database, Floodmark, Workspace, fresh_database
from tests.support.doctor_checks import doctor
from tests.support.orders import create_orders
from tests.support.replicas import replicated

FIT = {
    "mysql": ["--log-bin=bin", "--server-id=1", "--binlog-row-metadata=FULL"],
    "mariadb": [
        "--log-bin=bin", "--server-id=1", "--binlog-row-metadata=FULL", "--binlog-format=ROW", "--sync-binlog=1",
    ],
}  # fmt: skip
ALL = ("SELECT ON *.*", "PROCESS ON *.*", "REPLICATION SLAVE ON *.*", "REPLICATION CLIENT ON *.*")


@pytest.fixture(scope="module", params=BOTH)
def logged(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """A server whose binary log is fit."""
    if request.param == "mysql" and NO_MYSQL:
        pytest.skip(NO_MYSQL)
    with SERVERS[request.param](args=FIT[request.param], buffer_pool="64M") as server:
        yield server


def judged(server: DatabaseServer, *schemas: str, grants: tuple[str, ...] | None = None) -> Fitness:
    """The judgement, for root or for a user with these grants only."""
    if grants is not None:
        server.create_user("limited", "limited-pw", *grants)
    return judged_by(server, None if grants is None else "limited", *schemas)


def judged_by(server: DatabaseServer, user: str | None, *schemas: str) -> Fitness:
    """The judgement for a user that is there, or root."""
    spec = source_from(server.url(None, user, "limited-pw" if user else None))
    with Session(spec) as session:
        return fitness(log_facts(session, trust_in(session), lambda: Session(spec)), schemas)


def reasons(log: Fitness) -> list[str]:
    return [found.reason for found in log.findings]


def set_all(server: DatabaseServer, **variables: Any) -> None:
    server.execute(*(f"SET GLOBAL {name} = {value}" for name, value in variables.items()))


# the judgement


def test_a_log_with_every_change_is_fit_and_says_its_age(logged: DatabaseServer) -> None:
    log = judged(logged)
    assert not log.findings, log.findings
    kept = "kept for 30 d" if logged.name == "mysql" else "kept until someone removes it"
    assert log.kept.startswith(f"{kept}; 1 file, ") and log.kept.endswith(" s ago")


def test_the_age_is_that_of_the_oldest_file(logged: DatabaseServer) -> None:
    logged.execute("FLUSH BINARY LOGS")
    log = judged(logged)
    assert "files, " in log.kept and ", the oldest from " in log.kept


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"binlog_format": "'MIXED'"}, "format"),
        ({"binlog_format": "'STATEMENT'"}, "format"),
        ({"binlog_row_metadata": "'MINIMAL'"}, "metadata"),
        ({"binlog_row_image": "'MINIMAL'"}, "row_image"),
        ({"sync_binlog": 0}, "sync_binlog"),
        ({"binlog_expire_logs_seconds": 86400}, "retention"),
    ],
)
def test_each_setting_is_read_from_the_server(
    logged: DatabaseServer, variables: dict[str, Any], reason: str
) -> None:
    names = ", ".join(f"@@GLOBAL.{name}" for name in variables)
    [before] = logged.execute(f"SELECT {names}")
    set_all(logged, **variables)
    try:
        assert reasons(judged(logged)) == [reason]
    finally:
        quoted = (f"'{value}'" if isinstance(value, str) else value for value in before)
        set_all(logged, **dict(zip(variables, quoted, strict=True)))


def test_each_missing_privilege_is_named_and_the_statement_grants_what_is_missing(
    logged: DatabaseServer,
) -> None:
    on_mariadb = logged.name == "mariadb"
    # MariaDB doesn't log what it replicates unless it is told to, and has no GTIDs that tell what is visible.
    role = ["role", "open_work"] if on_mariadb else []
    for grants, expected in (
        (("SELECT ON *.*",), ["dump", "position", *role]),
        (("REPLICATION SLAVE ON *.*",), ["position", *role]),
        (("REPLICATION CLIENT ON *.*",), ["dump", *role]),
    ):
        log = judged(logged, grants=grants)
        assert reasons(log) == expected, grants
        [remedy] = {found.remedy for found in log.findings}
        statement, _, _ = remedy.partition(" TO ")
        logged.execute(f"{statement} TO limited@'%'")
        assert not judged_by(logged, "limited").refused


@pytest.mark.mysql_only
def test_without_gtids_the_user_must_see_open_transactions(new_server: type[DatabaseServer]) -> None:
    with new_server(args=[*FIT["mysql"], "--gtid-mode=OFF"], buffer_pool="64M") as server:
        assert reasons(judged(server)) == ["no_gtids"]
        blind = judged(server, grants=tuple(grant for grant in ALL if "PROCESS" not in grant))
        assert reasons(blind) == ["open_work", "no_gtids"]
        assert reasons(judged(server, grants=ALL)) == ["no_gtids"]


@pytest.mark.both_servers
def test_a_filter_hides_statements_on_tables_of_any_schema(
    new_server: type[DatabaseServer], kind: str
) -> None:
    """The reason why any filter is refused: the TRUNCATE of a table that is not filtered is not in the log."""
    with new_server(args=[*FIT[kind], "--binlog-ignore-db=hidden"], buffer_pool="64M") as server:
        server.execute(
            "CREATE DATABASE hidden", "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)"
        )
        server.execute("INSERT INTO shop.t VALUES (1)", "TRUNCATE shop.t", database="hidden")
        events = [str(row[5]) for row in server.execute("SHOW BINLOG EVENTS")]
        assert any("(shop.t)" in event for event in events), "the row is there"
        assert not any("TRUNCATE" in event for event in events), "the statement is not"
        assert "hides the changes of hidden" in judged(server, "hidden", "shop").refused[0].what
        assert "TRUNCATE or ALTER" in judged(server, "shop").refused[0].what


@pytest.mark.both_servers
def test_a_replica_that_does_not_log_what_it_replicates_is_refused(kind: str) -> None:
    kinds = SERVERS[kind]
    silent = "--skip-log-replica-updates" if kind == "mysql" else "--skip-log-slave-updates"
    with replicated(kinds, silent) as pair:
        assert "replica" in reasons(judged(pair.replica))
        assert "replica" not in reasons(judged(pair.primary))
        # Stopped, it may be started again.
        pair.replica.execute(pair.word("STOP REPLICA"))
        assert "replica" in reasons(judged(pair.replica))


# `doctor` and `init`


@pytest.fixture
def orders(logged: DatabaseServer, make_workspace: Callable[..., Workspace]) -> Iterator[Workspace]:
    """A workspace on the server whose log is fit."""
    with fresh_database(logged) as database:
        workspace = make_workspace(database, store={"url": "./lake"})
        workspace.execute(create_orders())
        workspace.write(tables={workspace.full_name("orders"): {}})
        yield workspace


def test_doctor_says_that_a_fit_log_could_be_followed(orders: Workspace) -> None:
    found = doctor(orders).one("source", "binary log")
    assert (found["status"], found["hint"]) == ("ok", None)
    assert "could be followed; kept " in found["detail"]


def test_doctor_says_what_to_set_and_fails_nothing_because_cursors_need_no_log(orders: Workspace) -> None:
    server = orders.database.server
    [(before,)] = server.execute("SELECT @@GLOBAL.binlog_format")
    set_all(server, binlog_format="'MIXED'")
    try:
        answer = doctor(orders)
    finally:
        set_all(server, binlog_format=f"'{before}'")
    assert (answer.code, answer.all("failure")) == (0, [])
    found = answer.one("source", "binary log")
    assert found["status"] == "ok"
    assert "can't be followed; binlog_format is MIXED" in found["detail"]
    assert "binlog_format = ROW" in found["hint"]


@pytest.mark.both_servers
def test_doctor_says_how_to_switch_a_log_on(workspace: Workspace, kind: str) -> None:
    workspace.execute(create_orders())
    answer = doctor(workspace)
    assert answer.code == 0
    found = answer.one("source", "binary log")
    assert found["status"] == "ok" and "can't be followed; it is off (log_bin)" in found["detail"]
    assert ("remove skip-log-bin" if kind == "mysql" else "set log_bin, binlog_format = ROW") in found["hint"]


def test_doctor_fails_nothing_if_a_second_connection_is_refused(orders: Workspace) -> None:
    server, name = orders.database.server, orders.database.name
    server.create_user("single", "single-pw", f"SELECT ON {name}.*", "PROCESS ON *.*")
    server.execute("ALTER USER single@'%' WITH MAX_USER_CONNECTIONS 1")
    orders.write(source={"url": server.url(name, "single", "single-pw")})
    answer = doctor(orders)
    assert (answer.code, answer.all("failure")) == (0, [])
    assert "can't be told: " in answer.one("source", "binary log")["detail"]


def test_init_says_in_the_file_whether_the_log_could_be_followed(
    logged: DatabaseServer, floodmark: Floodmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYSQL_PASSWORD", logged.password)
    with fresh_database(logged) as database:
        database.execute(create_orders())
        done = floodmark("init", "--source", database.url).ok()
        assert "Binary log: not used; it could be followed; kept " in done.stdout
        text = (tmp_path / "floodmark.yaml").read_text()
        assert "  # The binary log is not used; it could be followed; kept " in text
        load(tmp_path / "floodmark.yaml")
        logged.create_user("limited", "limited-pw", f"SELECT ON {database.name}.*")
        url = logged.url(database.name, "limited", "limited-pw")
        document = floodmark("init", "--force", "--json", "--source", url).ok().json
        assert document["binlog"]["fit"] is False
        assert {"dump", "position"} <= {found["reason"] for found in document["binlog"]["findings"]}
        text = (tmp_path / "floodmark.yaml").read_text()
        assert "# The binary log is not used; it can't be followed (docs/binlog.md):\n" in text
        assert "  #   ! the user may not read it → GRANT REPLICATION SLAVE, " in text
        load(tmp_path / "floodmark.yaml")


@pytest.mark.both_servers
def test_init_says_that_a_log_is_off(floodmark: Floodmark, database: Database, tmp_path: Path) -> None:
    database.execute(create_orders())
    done = floodmark("init", "--source", database.url).ok()
    assert "Binary log: not used; it can't be followed (see the file)" in done.stdout
    assert "  #   ! it is off (log_bin) → " in (tmp_path / "floodmark.yaml").read_text()
