"""The binary log of real servers: reading it on over several dumps and files, its identity, its files, and all that can go wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from floodmark.config.load import SourceSpec, load
from floodmark.model.changes import LogEnd, LogPlace
from floodmark.model.errors import ConfigError, DataError, FloodmarkError, TransientError
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source.binlog.dump import LogEvents, begun_at, place_at
from floodmark.source.binlog.end import (
    FIRST,
    LogGone,
    file_of,
    gtid_at,
    log_end,
    log_files,
    log_identity,
    log_start,
    logged_place,
)
from floodmark.source.binlog.events import XID
from floodmark.source.session import Session
from tests.conftest import BOTH, NO_MYSQL, SERVERS
from tests.support import log_writers
from tests.support.replicas import replicated
from tests.support.transfers import LOGGED


@pytest.fixture(scope="module", params=BOTH)
def logged(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """A server with a log of three files, of which two have rows."""
    if request.param == "mysql" and NO_MYSQL:
        pytest.skip(NO_MYSQL)
    with SERVERS[request.param](args=[*LOGGED[request.param], "--binlog-format=ROW"]) as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, x INT) ENGINE=InnoDB")
        for number in range(10):
            server.execute(f"INSERT INTO d.t VALUES ({number}, 0)")
            if number in (4, 9):
                server.execute("FLUSH BINARY LOGS")
        yield server


def source(server: DatabaseServer, folder: Path, **who: str) -> SourceSpec:
    file = folder / "floodmark.yaml"
    file.write_text(f"source: {{url: '{server.url('', **who)}'}}\n")
    file.chmod(0o600)
    return load(file).source


def ends(spec: SourceSpec) -> tuple[LogPlace, LogPlace]:
    """The log's first place and its present end."""
    with Session(spec) as session:
        return LogPlace(log_files(session)[0].name, FIRST), log_end(session).place


def commits(events: LogEvents) -> int:
    return sum(event.kind == XID for event in events)


def refusal(spec: SourceSpec, start: LogPlace, end: LogPlace, patience: float = 0.2) -> FloodmarkError:
    with pytest.raises(FloodmarkError) as caught:
        list(LogEvents(partial(Session, spec), start, end, patience=patience))
    assert caught.value.hint
    return caught.value


def test_the_log_is_read_over_its_files_and_from_any_event_on(logged: DatabaseServer, tmp_path: Path) -> None:
    spec = source(logged, tmp_path)
    start, end = ends(spec)
    every = LogEvents(partial(Session, spec), start, end)
    places = []
    for event in every:
        if event.size:
            places.append((every.place, event.kind))
    assert every.place == end and every.created > 0
    assert sum(kind == XID for _, kind in places) == 10
    for at, (place, _) in list(enumerate(places))[::7]:
        rest = LogEvents(partial(Session, spec), place, end)
        assert commits(rest) == sum(kind == XID for _, kind in places[at + 1 :])
        assert rest.place == end
        upto = LogEvents(partial(Session, spec), start, place)
        assert commits(upto) == sum(kind == XID for _, kind in places[: at + 1])


def test_several_dumps_run_side_by_side(logged: DatabaseServer, tmp_path: Path) -> None:
    spec = source(logged, tmp_path)
    start, end = ends(spec)
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: commits(LogEvents(partial(Session, spec), start, end)), range(12)))
    assert found == [10] * 12


def test_a_log_that_ends_too_early_is_read_on_until_the_end_is_there(
    logged: DatabaseServer, tmp_path: Path
) -> None:
    spec = source(logged, tmp_path)
    _, start = ends(spec)
    logged.execute("UPDATE d.t SET x = x + 1 WHERE id = 1")
    _, end = ends(spec)
    size = end.position - start.position
    later = LogPlace(end.file, end.position + 2 * size)
    writing = threading.Timer(
        0.3, lambda: [logged.execute("UPDATE d.t SET x = x + 1 WHERE id = 1") for _ in range(2)]
    )
    writing.start()
    events = LogEvents(partial(Session, spec), start, later)
    assert commits(events) == 3 and events.place == later
    writing.join()
    never = refusal(spec, start, LogPlace(end.file, end.position + 100_000))
    assert isinstance(never, TransientError) and f"ends at {later.file}:" in never.message


@pytest.mark.both_servers
def test_the_place_that_the_server_shows_is_reached_under_writers(kind: str, tmp_path: Path) -> None:
    tries, several = 20, 0
    with SERVERS[kind](args=[*LOGGED[kind], "--binlog-format=ROW", "--sync-binlog=1"]) as server:
        log_writers.create(server)
        spec = source(server, tmp_path)
        with log_writers.writing(server), Session(spec) as session:
            for _ in range(tries):
                first, opened = Session(spec), list[Session]()
                log_identity(first)  # from now on, it loses no time

                def connect(first: Session = first, opened: list[Session] = opened) -> Session:
                    opened.append(Session(spec) if opened else first)
                    return opened[-1]

                start, end = logged_place(session), None
                while end is None or end == start:
                    time.sleep(0.005)
                    end = logged_place(session)
                assert start is not None
                events = LogEvents(connect, start, end)
                kinds = [event.kind for event in events if event.size]
                assert kinds and events.place == end
                several += len(opened) > 1
    print(f"{kind}: the dump ended before SHOW's place in {several} of {tries} tries")


def test_what_goes_wrong_is_told_apart(logged: DatabaseServer, tmp_path: Path) -> None:
    spec = source(logged, tmp_path)
    start, end = ends(spec)
    far = LogPlace("bin.009999", FIRST)
    for place in (
        LogPlace(end.file, end.position - 5),
        LogPlace(end.file, 130),
        LogPlace(end.file, end.position + 1000),
    ):
        assert isinstance(refusal(spec, place, far), LogGone)
    unknown = refusal(spec, LogPlace("bin.000077", FIRST), far)
    assert isinstance(unknown, LogGone) and "no file bin.000077" in unknown.message
    logged.create_user("blind", "pw", "SELECT ON *.*")
    blind = source(logged, tmp_path, user="blind", password="pw")
    no_dump = refusal(blind, start, end)
    assert isinstance(no_dump, ConfigError) and no_dump.hint == "GRANT REPLICATION SLAVE ON *.* TO blind"
    monitor = "REPLICATION CLIENT" if logged.name == "mysql" else "BINLOG MONITOR"
    with Session(blind) as session, pytest.raises(ConfigError) as no_files:
        log_files(session)
    assert no_files.value.hint == f"GRANT {monitor} ON *.* TO blind"


def test_a_dump_is_aborted_from_another_thread(logged: DatabaseServer, tmp_path: Path) -> None:
    spec = source(logged, tmp_path)
    start, end = ends(spec)
    opened: list[Session] = []

    def connect() -> Session:
        opened.append(Session(spec))
        if len(opened) > 1:  # as the throttle does with sessions that are opened after Ctrl-C
            opened[-1].abort()
        return opened[-1]

    began = time.monotonic()
    with pytest.raises(TransientError):
        for _ in LogEvents(connect, start, LogPlace(end.file, end.position + 1)):
            opened[0].abort()
    assert not opened[-1].at_rest and time.monotonic() - began < 30


def test_another_server_behind_the_same_address_is_noticed(logged: DatabaseServer, tmp_path: Path) -> None:
    spec = source(logged, tmp_path)
    start, end = ends(spec)
    with Session(spec) as session:
        own = log_identity(session).server
    assert commits(LogEvents(partial(Session, spec), start, end, server=own)) >= 10
    with pytest.raises(TransientError, match="another server"):
        list(LogEvents(partial(Session, spec), start, end, server="other"))


def test_a_server_without_a_log_says_so(kind: str, tmp_path: Path) -> None:
    with SERVERS[kind](args=["--skip-log-bin"]) as server, Session(source(server, tmp_path)) as session:
        for asked in (log_end, log_start, log_files):
            with pytest.raises(ConfigError, match="no binary log"):
                asked(session)


def test_a_purged_file_is_gone(kind: str, tmp_path: Path) -> None:
    with SERVERS[kind](args=LOGGED[kind]) as server:
        spec = source(server, tmp_path)
        start, _ = ends(spec)
        for _ in range(3):
            server.execute("CREATE DATABASE d", "DROP DATABASE d")
            server.execute("FLUSH BINARY LOGS")
        _, end = ends(spec)
        server.execute(f"PURGE BINARY LOGS TO '{end.file}'")
        assert isinstance(refusal(spec, start, end), LogGone)
        with Session(spec) as session, pytest.raises(LogGone, match="purged transactions"):
            file_of(session, "")


def test_a_file_is_found_by_the_transactions_that_were_read(logged: DatabaseServer, tmp_path: Path) -> None:
    spec = source(logged, tmp_path)
    with Session(spec) as session:
        files = log_files(session)
        end = log_start(session)
        assert end.gtid
        assert file_of(session, end.gtid).file == files[-1].name
        assert file_of(session, "").file == files[0].name
        if logged.name == "mariadb":
            assert (
                file_of(session, gtid_at(session, LogPlace(files[0].name, files[0].size))).file
                == files[1].name
            )
        beyond = "7-1-1" if logged.name == "mariadb" else "3e11fa47-71ca-11e1-9e33-c80aa9429562:1"
        with pytest.raises(DataError, match="lacks transactions"):
            file_of(session, f"{end.gtid},{beyond}")


def test_the_place_of_a_moment_is_a_file_that_had_begun_by_then(kind: str, tmp_path: Path) -> None:
    with SERVERS[kind](args=LOGGED[kind]) as server:
        spec = source(server, tmp_path)
        connect = partial(Session, spec)
        began = []
        for number in range(4):
            server.execute(f"CREATE DATABASE d{number}")
            time.sleep(1.1)
            server.execute("FLUSH BINARY LOGS")
        with Session(spec) as session:
            files = log_files(session)
        began = [begun_at(connect, file.name) for file in files]
        assert began == sorted(began)
        for at in range(len(files)):
            assert place_at(connect, began[at]).file == files[at].name
        assert place_at(connect, time.time() + 100).file == files[-1].name
        with pytest.raises(LogGone, match="younger"):
            place_at(connect, began[0] - 10)


def test_a_replica_is_read_on_where_the_other_server_was_left(kind: str, tmp_path: Path) -> None:
    with replicated(SERVERS[kind]) as pair:
        pair.primary.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)")
        for number in range(3):
            pair.primary.execute(f"INSERT INTO d.t VALUES ({number})")
        pair.caught_up("SELECT COUNT(*) FROM d.t")
        (tmp_path / "a").mkdir()
        with Session(source(pair.primary, tmp_path / "a")) as session:
            read = log_start(session)
        assert read.gtid
        with Session(source(pair.replica, tmp_path)) as session:
            assert file_of(session, read.gtid).file == log_files(session)[0].name
        pair.replica.execute(pair.word("STOP REPLICA"))
        pair.primary.execute("INSERT INTO d.t VALUES (9)")
        with Session(source(pair.primary, tmp_path / "a")) as session:
            newer = log_start(session)
        assert newer.gtid
        with Session(source(pair.replica, tmp_path)) as session, pytest.raises(DataError, match="lacks"):
            file_of(session, newer.gtid)


@pytest.mark.both_servers
def test_only_who_is_committing_holds_the_end_back(kind: str, tmp_path: Path) -> None:
    none = ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"] if kind == "mysql" else []
    late = [] if kind == "mysql" else ["--binlog-optimize-thread-scheduling=OFF"]
    with SERVERS[kind](args=["--log-bin=bin", *none, *late]) as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY) ENGINE=InnoDB")
        server.execute("INSERT INTO d.t VALUES (1)")
        spec = source(server, tmp_path)
        idle, busy, xa = (server.connect("d") for _ in range(3))
        for link, statements in (
            (idle, ["BEGIN", "INSERT INTO t VALUES (2)"]),
            (busy, ["BEGIN", "INSERT INTO t VALUES (3)"]),
            (xa, ["XA START 'x'", "INSERT INTO t VALUES (4)", "XA END 'x'", "XA PREPARE 'x'"]),
        ):
            for statement in statements:
                link.cursor().execute(statement)
        sleeping = threading.Thread(
            target=busy.cursor().execute, args=("UPDATE t SET id = id + SLEEP(3) WHERE id = 3",)
        )
        sleeping.start()
        with Session(spec) as session:
            time.sleep(0.2)
            end = log_end(session, patience=2)
            assert end == LogEnd(end.place), (
                "idle, in a statement, prepared: none of them has logged a commit"
            )
        sleeping.join()
        for link in (idle, busy, xa):
            link.close()
