"""Several snapshots of one moment, on real servers under writers: what is proven to be equal is equal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from floodmark.config.load import SourceSpec, load
from floodmark.model.errors import TransientError
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source import one_moment
from floodmark.source.describe import discover_with_notes
from floodmark.source.one_moment import at_moment, moment_of, obstacle, open_snapshot, proof
from floodmark.source.server import trust_in
from floodmark.source.session import Session
from tests.conftest import BOTH, NO_MYSQL, PATIENT, SERVERS
from tests.support import transfers
from tests.support.transfers import LOGGED

SESSIONS = 3
SECONDS = 20.0 if PATIENT else 1.0
# Transfers a second, by how many threads: few enough to prove one moment, and too many to.
RATES: list[tuple[float | None, int]] = [(10.0, 2), *([(100.0, 4)] if PATIENT else []), (None, 8)]
SEEN = f"SELECT {transfers.halves()}, SUM(CRC32(CONCAT_WS('/', id, balance, moves))) FROM d.accounts"


@pytest.fixture(scope="module", params=BOTH)
def logged(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """A server that writes a binary log, with the table of transfers."""
    if request.param == "mysql" and NO_MYSQL:
        pytest.skip(NO_MYSQL)
    with SERVERS[request.param](args=LOGGED[request.param]) as server:
        server.execute("CREATE DATABASE d")
        transfers.create(server, "d")
        yield server


def source(server: DatabaseServer, folder: Path, **who: str) -> SourceSpec:
    file = folder / "floodmark.yaml"
    file.write_text(f"source: {{url: '{server.url('d', **who)}'}}\n")
    file.chmod(0o600)
    return load(file).source


@dataclass
class Rounds:
    """How often all sessions opened a snapshot, was that proven to be one moment, and was it not one."""

    all: int = 0
    proven: int = 0
    differed: int = 0
    proven_but_differed: int = 0


def opened(spec: SourceSpec, mariadb: bool, seconds: float) -> Rounds:
    """Opens snapshots in several sessions, again and again, and compares what they see."""
    rounds = Rounds()
    sessions = [Session(spec) for _ in range(SESSIONS)]
    with Session(spec) as looking, ThreadPoolExecutor(SESSIONS) as pool:
        proving = proof(looking, mariadb)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            settled = proving.before()
            opening = [pool.submit(open_snapshot, session) for session in sessions]
            proving.meanwhile()
            for each in opening:
                each.result()
            equal = proving.after() and settled
            seen = {session.rows(SEEN)[0] for session in sessions}
            assert all(transfers.one_moment(one[:3]) for one in seen), "a single snapshot is a mixture"
            rounds.all += 1
            rounds.proven += equal
            rounds.differed += len(seen) > 1
            rounds.proven_but_differed += equal and len(seen) > 1
    for session in sessions:
        session.close()
    return rounds


@pytest.mark.parametrize("ways", [("statement", "transaction"), ("xa",)], ids=["commits", "xa"])
def test_snapshots_proven_to_be_of_one_moment_are_equal_at_every_write_rate(
    logged: DatabaseServer, tmp_path: Path, ways: tuple[transfers.Way, ...]
) -> None:
    spec, mariadb = source(logged, tmp_path), logged.name == "mariadb"
    taken: dict[str, Rounds] = {}
    for rate, threads in RATES:
        with transfers.writing(logged, "d", rate=rate, threads=threads, ways=ways) as writers:
            rounds = opened(spec, mariadb, SECONDS)
        assert writers.total, "nothing was written"
        taken[f"{rate or 'as many as possible'}/s"] = rounds
        print(f"{logged.name}, {ways}, {rate} a second ({writers.total} commits): {rounds}")
    assert not any(rounds.proven_but_differed for rounds in taken.values()), taken
    assert sum(rounds.proven for rounds in taken.values()), f"one moment was never proven: {taken}"
    assert sum(rounds.differed for rounds in taken.values()), (
        f"nothing differed, so nothing was shown: {taken}"
    )


def test_a_server_that_logs_can_prove_it_and_a_user_without_the_privilege_can_not(
    logged: DatabaseServer, tmp_path: Path
) -> None:
    logged.execute("CREATE TABLE IF NOT EXISTS d.other (id INT PRIMARY KEY) ENGINE=MyISAM")
    logged.create_user("blind", "pw", "SELECT ON d.*", "PROCESS ON *.*")
    logged.create_user("seeing", "pw", "SELECT ON d.*", "PROCESS ON *.*", "REPLICATION CLIENT ON *.*")

    def found(table: str, **who: str) -> str | None:
        spec = source(logged, tmp_path, **who)
        options = load(tmp_path / "floodmark.yaml").options(f"d.{table}")
        with Session(spec) as session:
            described = discover_with_notes(session, f"d.{table}", options, None)
            return obstacle(session, described.table, replace(trust_in(session), engine=described.engine))

    assert found("accounts") is None
    assert found("other") == "engine"
    assert found("accounts", user="seeing", password="pw") is None
    assert found("accounts", user="blind", password="pw") == "privilege"


def test_a_server_with_filters_or_without_a_log_proves_nothing(
    new_server: type[DatabaseServer], kind: str, tmp_path: Path
) -> None:
    for more, why in ((["--binlog-ignore-db=x"], "filters"), (["--skip-log-bin"], "no_binlog")):
        with new_server(args=[*LOGGED[kind], *more]) as server:
            server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)")
            spec = source(server, tmp_path)
            options = load(tmp_path / "floodmark.yaml").options("d.t")
            with Session(spec) as session:
                table = discover_with_notes(session, "d.t", options, None).table
                assert obstacle(session, table, trust_in(session)) == why


def test_now_is_the_same_in_every_session(logged: DatabaseServer, tmp_path: Path) -> None:
    spec = source(logged, tmp_path)
    with Session(spec) as one, Session(spec) as other:
        moment = moment_of(one)
        seen = []
        for session in (one, other):
            at_moment(session, moment)
            seen.append(session.rows("SELECT NOW(6), UNIX_TIMESTAMP(NOW(6))")[0])
            time.sleep(0.01)
        assert seen[0] == seen[1] and float(seen[0][1] or 0) == float(moment)


def test_nobody_waits_long_for_a_table_that_is_being_altered(
    logged: DatabaseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_moment, "DDL_PATIENCE", 1)
    spec = source(logged, tmp_path)
    options = load(tmp_path / "floodmark.yaml").options("d.accounts")
    locking = logged.connect("d")
    with Session(spec) as session:
        table = discover_with_notes(session, "d.accounts", options, None).table
        open_snapshot(session)
        cursor = locking.cursor()
        cursor.execute("LOCK TABLES accounts WRITE")
        with pytest.raises(TransientError):
            one_moment.hold(session, table)
        cursor.execute("UNLOCK TABLES")
        locking.close()
        one_moment.hold(session, table)
        with pytest.raises(Exception, match="Lock wait timeout"):
            logged.execute(
                "SET lock_wait_timeout = 1", "ALTER TABLE accounts ADD COLUMN more INT", database="d"
            )
