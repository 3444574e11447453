"""MySQL and Redshift behind a bastion with a real sshd: the right rows or a clear error, never a hang, no ssh left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from floodmark.host import ssh as tunnel
from floodmark.model.errors import ConfigError, TransientError
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source.session import Session
from tests.conftest import Workspace
from tests.support.held_sync import until
from tests.support.sshd import Sshd
from tests.support.tunnels import (
    ORDERS,
    clients,
    complete,
    fill,
    large,
    reading,
    source,
    ssh_of,
)

pytestmark = pytest.mark.source

SECRET = "root-secret"  # the password of the server's root


@pytest.fixture
def orders(workspace: Workspace, bastion: Sshd) -> Workspace:
    workspace.execute(ORDERS, fill(3000))
    workspace.write(source={"ssh": bastion.ssh()})
    return workspace


def test_a_sync_through_a_bastion_succeeds(orders: Workspace, bastion: Sshd) -> None:
    assert orders.synced("orders")["rows_loaded"] == 3000
    assert orders.compare("orders").equal
    assert clients(bastion)
    orders.execute("UPDATE orders SET note = 'changed', update_at = '2025-04-01' WHERE id % 3 = 0")
    assert orders.synced("orders")["rows_extracted"] == 1000
    assert orders.compare("orders").equal


def test_the_command_leaves_no_ssh_behind_and_shows_no_secret(
    workspace: Workspace, own_bastion: Sshd
) -> None:
    workspace.execute(ORDERS, fill(3000))
    workspace.write(source={"ssh": own_bastion.ssh()})
    process = workspace.run.start("sync", "-t", "orders")
    seen: dict[int, str] = {}
    while process.poll() is None:
        seen |= clients(own_bastion)
        time.sleep(0.05)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert workspace.compare("orders").equal
    assert len(seen) >= 2  # of the command itself, and of Spark's workers
    assert SECRET not in " ".join([out, err, *seen.values()])
    until(lambda: not clients(own_bastion), 5)
    until(lambda: not own_bastion.connections(), 5)


def test_kill_9_of_the_command_leaves_no_ssh_behind(workspace: Workspace, own_bastion: Sshd) -> None:
    workspace.execute(ORDERS, fill(3000))
    workspace.write(source={"ssh": own_bastion.ssh()})
    process = workspace.run.start("sync", "-t", "orders")
    until(lambda: len(clients(own_bastion)) >= 2, 60)  # the second one is of a worker that is about to read
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: not clients(own_bastion), 10)


# a tunnel that dies


def test_a_tunnel_that_dies_during_extraction_is_reopened(workspace: Workspace, own_bastion: Sshd) -> None:
    large(workspace).write(source={"ssh": own_bastion.ssh()})
    died: list[int] = []

    def kill() -> None:
        until(lambda: reading(workspace.database.server, workspace.database.name), 60)
        died.extend(clients(own_bastion))
        for pid in died:
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    began = time.monotonic()
    table = workspace.synced("orders")
    thread.join()
    assert time.monotonic() - began < 60
    assert died and set(clients(own_bastion)) - set(died)
    assert table["rows_loaded"] == 80_000 and complete(workspace)


def test_a_bastion_that_stops_during_extraction_is_exit_code_4_and_the_next_run_completes(
    workspace: Workspace, own_bastion: Sshd
) -> None:
    large(workspace).write(source={"ssh": own_bastion.ssh()})

    def stop() -> None:
        until(lambda: reading(workspace.database.server, workspace.database.name), 60)
        own_bastion.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    began = time.monotonic()
    report = workspace.sync("orders")
    thread.join()
    assert time.monotonic() - began < 60
    (table,) = report.as_json()["tables"]
    assert table["exit_code"] == 4 and "Connection refused" in table["error"]["message"]
    own_bastion.start()
    workspace.synced("orders")
    assert complete(workspace)


# who may log in


def test_a_changed_host_key_is_refused(workspace: Workspace, own_bastion: Sshd) -> None:
    workspace.execute(ORDERS)
    own_bastion.stop()
    own_bastion.new_host_key()
    own_bastion.start()
    workspace.write(source={"ssh": own_bastion.ssh()})
    result = workspace.run("sync", "-t", "orders")
    assert result.code == 2
    assert f"{own_bastion.port} presents a different host key" in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 2
    assert not workspace.warehouse.exists()
    own_bastion.trust()
    with Session(source(workspace.database.server, ssh_of(own_bastion))) as session:
        assert session.rows("SELECT 1") == [(b"1",)]


def test_a_bastion_with_an_unknown_host_key_is_refused(
    server: DatabaseServer, bastion: Sshd, tmp_path: Path
) -> None:
    nobody = tmp_path / "known hosts %h"
    nobody.write_text("")
    with pytest.raises(ConfigError, match=r"host key of the bastion .* is not in") as error:
        Session(source(server, ssh_of(bastion, known_hosts=nobody)))
    assert f"ssh-keyscan -p {bastion.port} 127.0.0.1" in (error.value.hint or "")
    assert nobody.read_text() == ""
    nobody.write_text(
        bastion.known_hosts.read_text()
    )  # a path with a space and a percent sign is just a path
    Session(source(server, ssh_of(bastion, known_hosts=nobody))).close()


def test_a_key_that_the_bastion_does_not_know_is_refused(
    server: DatabaseServer, bastion: Sshd, tmp_path: Path
) -> None:
    other = bastion.new_key(tmp_path / "other")
    with pytest.raises(ConfigError, match=f"does not accept {bastion.user} with the key .*/other"):
        Session(source(server, ssh_of(bastion, key=other)))


def test_a_key_that_others_can_read_is_refused(server: DatabaseServer, bastion: Sshd, tmp_path: Path) -> None:
    mine = tmp_path / "open"
    mine.write_bytes(bastion.key.read_bytes())
    mine.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others") as error:
        Session(source(server, ssh_of(bastion, key=mine)))
    assert error.value.hint == f"chmod 600 {mine}"


def test_floodmark_never_prompts_for_a_passphrase(
    server: DatabaseServer, bastion: Sshd, tmp_path: Path
) -> None:
    locked = tmp_path / "locked"
    locked.write_bytes(bastion.key.read_bytes())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret words", "-f", str(locked)], check=True)
    began = time.monotonic()
    with pytest.raises(ConfigError, match="does not accept") as error:
        Session(source(server, ssh_of(bastion, key=locked)))
    assert "ssh-agent" in (error.value.hint or "")
    assert time.monotonic() - began < 5


def test_the_agents_key_is_used_if_the_configuration_has_none(
    server: DatabaseServer, bastion: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    where = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(where)], stdout=subprocess.DEVNULL)
    try:
        until(where.exists, 60)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(where))
        subprocess.run(["ssh-add", "-q", str(bastion.key)], check=True)
        Session(source(server, ssh_of(bastion, key=None))).close()
    finally:
        agent.kill()
        agent.wait()


def test_a_key_file_shipped_by_spark_is_found(
    server: DatabaseServer, bastion: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    brought = tmp_path / "id_bastion"
    brought.write_bytes(bastion.key.read_bytes())
    brought.chmod(0o755)  # as Spark does
    monkeypatch.chdir(tmp_path)
    Session(source(server, ssh_of(bastion, key=Path("/elsewhere/id_bastion")))).close()
    with pytest.raises(ConfigError, match=r"/elsewhere/id_x can't be read on .*: No such file"):
        Session(source(server, ssh_of(bastion, key=Path("/elsewhere/id_x"))))


# what can't be reached


def test_an_unreachable_bastion_is_reported_at_once(server: DatabaseServer, bastion: Sshd) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(
            TransientError, match=f"the bastion 127.0.0.1:{port} can't be reached: Connection refused"
        ):
            Session(source(server, ssh_of(bastion, port=port)))
        assert time.monotonic() - began < 3
        silent.listen()  # and one that takes connections and says nothing
        with pytest.raises(TransientError, match=r"can't be reached: Connection .*timed out"):
            Session(source(server, ssh_of(bastion, port=port)))
        assert time.monotonic() - began < 10


def test_a_server_that_the_bastion_cannot_reach_is_reported(server: DatabaseServer, bastion: Sshd) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(TransientError, match=f"can't reach 127.0.0.1:{port}: Connection refused"):
            Session(source(server, ssh_of(bastion), port=port))


def test_a_bastion_that_refuses_to_forward_is_a_config_error(server: DatabaseServer) -> None:
    with Sshd(settings="PermitOpen 127.0.0.1:1") as strict:
        with pytest.raises(ConfigError, match=r"does not forward to .*: administratively prohibited"):
            Session(source(server, ssh_of(strict)))
        tunnel.close_all()


# one tunnel, of this process alone


def test_all_threads_share_one_tunnel_that_other_users_cannot_reach(
    server: DatabaseServer, own_bastion: Sshd
) -> None:
    spec = source(server, ssh_of(own_bastion))
    with ThreadPoolExecutor(8) as pool:
        sessions = list(pool.map(lambda _: Session(spec), range(8)))
    # The threads that opened it are gone; it is not.
    assert [s.rows("SELECT 1") for s in sessions] == [[(b"1",)]] * 8
    assert len(clients(own_bastion)) == 1
    port = tunnel.local_port(ssh_of(own_bastion), server.host, server.port)
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)
    for session in sessions:
        session.close()


def test_ssh_ends_with_a_process_that_is_killed(own_bastion: Sshd) -> None:
    code = (
        "import sys, threading, time; from pathlib import Path; from floodmark.host import ssh as tunnel; "
        "from floodmark.config.load import Ssh; host, port, user, key, known = sys.argv[1:]; "
        "ssh = Ssh(host, int(port), user, Path(key), Path(known)); "
        "t = threading.Thread(target=tunnel.local_port, args=(ssh, host, 1)); t.start(); t.join(); "
        "tunnel.local_socket(ssh, host, 1); print('open', flush=True); time.sleep(60)"
    )
    about = [str(value) for value in own_bastion.ssh().values()]
    process = subprocess.Popen([sys.executable, "-c", code, *about], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    assert len(clients(own_bastion)) == 2
    process.kill()
    process.wait()
    process.stdout.close()
    until(lambda: not clients(own_bastion), 2)
