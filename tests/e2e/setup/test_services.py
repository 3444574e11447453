"""The private services: they answer, they recover, and they leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from floodmark.model.errors import ConfigError, TransientError
from floodmark.setup.services.databases import DatabaseServer, MariaDB, clocks_go_back
from floodmark.setup.services.s3 import SeaweedFS
from tests.conftest import NO_MYSQL

pytestmark = pytest.mark.source

PARENT = """
import signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has it ignored
from floodmark.setup.services import databases, s3 as services
server = getattr(databases if sys.argv[1] in ("MySQL", "MariaDB") else services, sys.argv[1])()
starter = threading.Thread(target=server.start)  # the end of a thread must not end what it started
starter.start()
starter.join()
time.sleep(0.5)
print(server.folder, server.pid, server.running, flush=True)
time.sleep(100)
"""


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie that nobody has collected yet has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("service", ["MariaDB", "MySQL", "SeaweedFS"])
def test_a_service_whose_parent_is_killed_ends_and_takes_its_files_with_it(service: str) -> None:
    if service == "MySQL" and NO_MYSQL:
        pytest.skip(NO_MYSQL)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, service], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as told:
        folder, pid, running = told.readline().split()
    assert running == "True"
    assert Path(folder).exists()
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not (gone(int(pid)) and not Path(folder).exists()):
        time.sleep(0.05)
    assert gone(int(pid))
    assert not Path(folder).exists()


def test_a_service_whose_reaper_is_killed_ends_too() -> None:
    with MariaDB() as server:
        pid = server.pid
        assert server._keeper is not None
        server._keeper.kill()
        server._keeper.wait()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and not gone(pid):
            time.sleep(0.05)
        assert gone(pid)
    assert not server.folder.exists()


@pytest.mark.long  # tests that need it would say so, too
def test_a_database_keeps_its_rows_across_a_restart_and_a_kill(new_server: type[DatabaseServer]) -> None:
    with new_server() as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (a INT)", "INSERT INTO d.t VALUES (1)")
        server.restart()
        server.execute("INSERT INTO d.t VALUES (2)")
        server.kill()
        assert not server.running
        server.start()
        assert server.execute("SELECT a FROM d.t ORDER BY a") == [(1,), (2,)]
    assert not server.folder.exists()


@pytest.mark.long  # tests that need it would say so, too
def test_a_database_runs_in_a_time_zone_given_by_the_machine_or_by_name(
    new_server: type[DatabaseServer],
) -> None:
    ask = "SELECT TIMESTAMPDIFF(HOUR, UTC_TIMESTAMP(), NOW())"
    with new_server(system_time_zone="Asia/Shanghai") as server:
        assert server.execute(ask) == [(8,)]
    with new_server(default_time_zone="Asia/Shanghai") as server:
        assert server.execute(ask) == [(8,)]


@pytest.mark.long
def test_the_clocks_of_a_database_go_back_at_the_wanted_moment(new_server: type[DatabaseServer]) -> None:
    moment = (datetime.now(UTC) + timedelta(seconds=20)).replace(microsecond=0)
    with new_server(system_time_zone=clocks_go_back(moment)) as server:
        ask = "SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(), NOW())"
        assert server.execute(ask) == [(60,)]
        time.sleep(max(0.0, (moment - datetime.now(UTC)).total_seconds()) + 0.5)
        assert server.execute(ask) == [(0,)]


def test_a_user_has_the_given_grants(server: DatabaseServer) -> None:
    server.create_user("someone", "pass'word".replace("'", ""), "SELECT ON mysql.*")
    link = server.connect(user="someone", password="password")
    link.close()
    assert server.url("d", "some one", "p@ss").startswith("mysql://some%20one:p%40ss@127.0.0.1:")


def test_a_paused_database_answers_again_after_it_is_resumed(new_server: type[DatabaseServer]) -> None:
    with new_server() as server:
        server.pause()
        with pytest.raises(Exception, match=r"20(02|13)"):
            server.connect(connect_timeout=1, read_timeout=1)
        server.resume()
        assert server.execute("SELECT 1") == [(1,)]


def test_seaweedfs_keeps_its_objects_across_a_kill() -> None:
    with SeaweedFS() as server:
        url = f"{server._filer}/buckets/{server.bucket}/kept/object"
        assert server._ask("PUT", url, b"data") == 201
        server.kill()
        server.start()
        assert server.list("kept") == ["object"]
        assert server.list("nothing/here") == []
    assert not server.folder.exists()


def test_two_seaweedfs_run_side_by_side(seaweed: SeaweedFS) -> None:
    with SeaweedFS() as other:
        assert other.port != seaweed.port
        assert seaweed.running


def test_a_missing_program_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="weed is not installed") as caught:
        SeaweedFS()
    assert caught.value.hint is not None
    assert "make setup" in caught.value.hint


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(new_server: type[DatabaseServer]) -> None:
    server = new_server(args=["--no-such-option"])
    with pytest.raises(TransientError, match="no-such-option"), server:
        pass
    assert not server.folder.exists()


def test_an_interrupted_parent_stops_its_service() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, "MariaDB"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout as told:
        folder, pid, _ = told.readline().split()
    os.kill(parent.pid, signal.SIGINT)
    parent.wait()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and Path(folder).exists():
        time.sleep(0.05)
    assert gone(int(pid))
    assert not Path(folder).exists()
