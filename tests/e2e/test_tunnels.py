"""MySQL and Redshift behind a bastion with a real sshd: the right rows or a clear word, never a hang, no ssh left."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark import tunnel
from floodmark.config import SourceSpec, Ssh, Tls, WarehouseSpec
from floodmark.errors import ConfigError, TransientError
from floodmark.mysql.connect import Session
from floodmark.store import Store, StoreSpec
from floodmark.testing.redshift import RedshiftStandIn
from floodmark.testing.services import MariaDB, SeaweedFS
from floodmark.testing.sshd import Sshd
from floodmark.warehouse.redshift import Redshift
from floodmark.warehouse.redshift_socket import SocketTransport
from floodmark.warehouse.redshift_steps import Failed, Limits
from tests.conftest import Workspace
from tests.fill import Fill, RedshiftPlace, row

ORDERS = """CREATE TABLE orders (id BIGINT PRIMARY KEY, note VARCHAR(1000) NOT NULL, update_at DATETIME NOT NULL,
  KEY (update_at))"""
FILL = "INSERT INTO orders SELECT seq, {note}, '2025-03-01' + INTERVAL (seq DIV 100) SECOND FROM seq_1_to_{n}"
SECRET = "root-secret"  # the password of MariaDB's root
DOOR = "127.1"  # 127.0.0.1 for whoever connects, and a name that is in no certificate


@pytest.fixture(scope="module")
def bastion() -> Iterator[Sshd]:
    with Sshd() as server:
        yield server
        tunnel.close_all()


@pytest.fixture
def own_bastion() -> Iterator[Sshd]:
    """One that a test may stop, or give another key."""
    with Sshd() as server:
        yield server
        tunnel.close_all()


def ssh_of(bastion: Sshd, **others: object) -> Ssh:
    about = {"key": bastion.key, "known_hosts": bastion.known_hosts, **others}
    return Ssh(**{**bastion.ssh(), **about})  # type: ignore[arg-type]


def source(mariadb: MariaDB, ssh: Ssh, **others: object) -> SourceSpec:
    spec = SourceSpec(mariadb.host, mariadb.port, mariadb.user, mariadb.password, ssh=ssh)
    return replace(spec, **others)  # type: ignore[arg-type]


def clients(bastion: Sshd) -> dict[int, str]:
    """The ssh processes that lead to a bastion, each with its command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0].endswith("ssh") and ("-p", str(bastion.port)) in itertools.pairwise(words):
            found[int(folder.name)] = " ".join(words)
    return found


def until(true: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def reading(mariadb: MariaDB, database: str) -> bool:
    """Whether a slice is being read."""
    return bool(
        mariadb.execute(
            f"SELECT id FROM information_schema.processlist WHERE db = '{database}' "
            "AND info LIKE '/* floodmark: extract%' AND id <> connection_id()"
        )
    )


@pytest.fixture
def orders(workspace: Workspace, bastion: Sshd) -> Workspace:
    workspace.execute(ORDERS, FILL.format(n=3000, note="CONCAT('n', seq)"))
    workspace.write(source={"ssh": bastion.ssh()})
    return workspace


def large(workspace: Workspace) -> Workspace:
    """Rows that take a while to arrive."""
    workspace.execute(ORDERS, FILL.format(n=80_000, note="REPEAT(MD5(seq), 25)"))
    return workspace


def complete(workspace: Workspace) -> bool:
    found = workspace.query("SELECT count(*), count(DISTINCT id), sum(id), sum(length(note)) FROM orders")
    return found == [(80_000, 80_000, 80_000 * 80_001 // 2, 80_000 * 800)]


# a sync


def test_a_sync_through_a_bastion_ends_right(orders: Workspace, bastion: Sshd) -> None:
    assert orders.synced("orders")["rows_loaded"] == 3000
    assert orders.compare("orders").equal
    assert clients(bastion)
    orders.execute("UPDATE orders SET note = 'changed', update_at = '2025-04-01' WHERE id % 3 = 0")
    assert orders.synced("orders")["rows_extracted"] == 1000
    assert orders.compare("orders").equal


def test_the_command_leaves_no_ssh_behind_and_shows_no_secret(
    workspace: Workspace, own_bastion: Sshd
) -> None:
    workspace.execute(ORDERS, FILL.format(n=3000, note="CONCAT('n', seq)"))
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


def test_kill_minus_9_of_the_command_leaves_no_ssh_behind(workspace: Workspace, own_bastion: Sshd) -> None:
    workspace.execute(ORDERS, FILL.format(n=3000, note="CONCAT('n', seq)"))
    workspace.write(source={"ssh": own_bastion.ssh()})
    process = workspace.run.start("sync", "-t", "orders")
    until(lambda: len(clients(own_bastion)) >= 2, 60)  # the second one is of a worker that is about to read
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: not clients(own_bastion), 10)


# a tunnel that dies


def test_a_tunnel_that_dies_in_mid_extract_is_opened_again(workspace: Workspace, own_bastion: Sshd) -> None:
    large(workspace).write(source={"ssh": own_bastion.ssh()})
    died = []

    def kill() -> None:
        until(lambda: reading(workspace.database.server, workspace.database.name))
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


def test_a_bastion_that_stops_in_mid_extract_is_exit_code_4_and_the_next_run_completes(
    workspace: Workspace, own_bastion: Sshd
) -> None:
    large(workspace).write(source={"ssh": own_bastion.ssh()})

    def stop() -> None:
        until(lambda: reading(workspace.database.server, workspace.database.name))
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


# who is let in, and by whom


def test_a_changed_host_key_is_refused(workspace: Workspace, own_bastion: Sshd) -> None:
    workspace.execute(ORDERS)
    own_bastion.stop()
    own_bastion.new_host_key()
    own_bastion.start()
    workspace.write(source={"ssh": own_bastion.ssh()})
    result = workspace.run("sync", "-t", "orders")
    assert result.code == 2
    assert f"{own_bastion.port} shows another host key" in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 2
    assert not workspace.warehouse.exists()
    own_bastion.trust()
    with Session(source(workspace.database.server, ssh_of(own_bastion))) as session:
        assert session.rows("SELECT 1") == [(b"1",)]


def test_a_bastion_that_nobody_knows_is_refused(mariadb: MariaDB, bastion: Sshd, tmp_path: Path) -> None:
    nobody = tmp_path / "known hosts %h"
    nobody.write_text("")
    with pytest.raises(ConfigError, match=r"host key of the bastion .* is not in") as error:
        Session(source(mariadb, ssh_of(bastion, known_hosts=nobody)))
    assert f"ssh-keyscan -p {bastion.port} 127.0.0.1" in (error.value.hint or "")
    assert nobody.read_text() == ""
    nobody.write_text(
        bastion.known_hosts.read_text()
    )  # a path with a blank and a per cent sign is only a path
    Session(source(mariadb, ssh_of(bastion, known_hosts=nobody))).close()


def test_a_key_that_the_bastion_does_not_know_is_refused(
    mariadb: MariaDB, bastion: Sshd, tmp_path: Path
) -> None:
    other = bastion.new_key(tmp_path / "other")
    with pytest.raises(ConfigError, match=f"does not let in {bastion.user} with the key .*/other"):
        Session(source(mariadb, ssh_of(bastion, key=other)))


def test_a_key_that_others_can_read_is_refused(mariadb: MariaDB, bastion: Sshd, tmp_path: Path) -> None:
    mine = tmp_path / "open"
    mine.write_bytes(bastion.key.read_bytes())
    mine.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others") as error:
        Session(source(mariadb, ssh_of(bastion, key=mine)))
    assert error.value.hint == f"chmod 600 {mine}"


def test_a_key_with_a_passphrase_is_never_asked_for(mariadb: MariaDB, bastion: Sshd, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.write_bytes(bastion.key.read_bytes())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret words", "-f", str(locked)], check=True)
    began = time.monotonic()
    with pytest.raises(ConfigError, match="does not let in") as error:
        Session(source(mariadb, ssh_of(bastion, key=locked)))
    assert "ssh-agent" in (error.value.hint or "")
    assert time.monotonic() - began < 5


def test_the_agent_has_the_key_when_the_configuration_has_none(
    mariadb: MariaDB, bastion: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    where = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(where)], stdout=subprocess.DEVNULL)
    try:
        until(where.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(where))
        subprocess.run(["ssh-add", "-q", str(bastion.key)], check=True)
        Session(source(mariadb, ssh_of(bastion, key=None))).close()
    finally:
        agent.kill()
        agent.wait()


def test_the_key_that_spark_brought_along_is_found(
    mariadb: MariaDB, bastion: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    brought = tmp_path / "id_bastion"
    brought.write_bytes(bastion.key.read_bytes())
    brought.chmod(0o755)  # as Spark does
    monkeypatch.chdir(tmp_path)
    Session(source(mariadb, ssh_of(bastion, key=Path("/elsewhere/id_bastion")))).close()
    with pytest.raises(ConfigError, match=r"/elsewhere/id_x can't be read on .*: No such file"):
        Session(source(mariadb, ssh_of(bastion, key=Path("/elsewhere/id_x"))))


# what can't be reached


def test_a_bastion_that_is_away_is_said_at_once(mariadb: MariaDB, bastion: Sshd) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(
            TransientError, match=f"the bastion 127.0.0.1:{port} can't be reached: Connection refused"
        ):
            Session(source(mariadb, ssh_of(bastion, port=port)))
        assert time.monotonic() - began < 3
        silent.listen()  # and one that takes connections and says nothing
        with pytest.raises(TransientError, match=r"can't be reached: Connection .*timed out"):
            Session(source(mariadb, ssh_of(bastion, port=port)))
        assert time.monotonic() - began < 10


def test_a_server_that_the_bastion_can_not_reach_is_said(mariadb: MariaDB, bastion: Sshd) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(TransientError, match=f"can't reach 127.0.0.1:{port}: Connection refused"):
            Session(source(mariadb, ssh_of(bastion), port=port))


def test_a_bastion_that_does_not_forward_is_a_matter_of_its_configuration(mariadb: MariaDB) -> None:
    with Sshd(settings="PermitOpen 127.0.0.1:1") as strict:
        with pytest.raises(ConfigError, match=r"does not forward to .*: administratively prohibited"):
            Session(source(mariadb, ssh_of(strict)))
        tunnel.close_all()


# one tunnel, of this process alone


def test_connections_of_all_threads_share_one_tunnel_that_others_can_not_reach(
    mariadb: MariaDB, own_bastion: Sshd
) -> None:
    spec = source(mariadb, ssh_of(own_bastion))
    with ThreadPoolExecutor(8) as pool:
        sessions = list(pool.map(lambda _: Session(spec), range(8)))
    # The threads that opened it are gone; it is not.
    assert [s.rows("SELECT 1") for s in sessions] == [[(b"1",)]] * 8
    assert len(clients(own_bastion)) == 1
    port = tunnel.local_port(ssh_of(own_bastion), mariadb.host, mariadb.port)
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)
    for session in sessions:
        session.close()


def test_ssh_ends_with_a_process_that_is_killed(own_bastion: Sshd) -> None:
    code = (
        "import sys, threading, time; from pathlib import Path; from floodmark import tunnel; "
        "from floodmark.config import Ssh; host, port, user, key, known = sys.argv[1:]; "
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


# TLS through the tunnel


def openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, another one, and certificates of the first for `localhost` but not for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        openssl(
            *new,
            "-x509",
            "-subj",
            f"/CN={name}",
            "-keyout",
            f"{folder}/{name}.key",
            "-out",
            f"{folder}/{name}.pem",
        )
    (folder / "ext").write_text("subjectAltName=DNS:localhost\n")
    for name in ("old", "new"):
        openssl(*new, "-subj", "/CN=db", "-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.csr")
        openssl(
            "x509", "-req", "-in", f"{folder}/{name}.csr", "-CA", f"{folder}/ca.pem", "-CAkey", f"{folder}/ca.key",
            "-CAcreateserial", "-extfile", f"{folder}/ext", "-out", f"{folder}/{name}.pem",
        )  # fmt: skip
    return folder


def test_the_certificate_of_mysql_is_checked_against_the_name_behind_the_tunnel(
    bastion: Sshd, pems: Path
) -> None:
    ca, verified = pems / "ca.pem", "verify_identity"
    for kind in ("key", "pem"):
        (pems / f"server.{kind}").write_bytes((pems / f"old.{kind}").read_bytes())
    args = [f"--ssl-ca={ca}", f"--ssl-cert={pems}/server.pem", f"--ssl-key={pems}/server.key"]
    with MariaDB(args=args, buffer_pool="32M") as server:

        def cipher(host: str, tls: Tls | None) -> bytes | None:
            with Session(source(server, ssh_of(bastion), host=host, tls=tls)) as session:
                return session.rows("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1]

        assert cipher("localhost", Tls(verified, ca=ca))
        assert cipher("localhost", Tls(verified, ca=ca))  # a second connection of the same tunnel
        for host in ("127.0.0.1", DOOR):
            with pytest.raises(ConfigError, match="mismatch") as error:
                cipher(host, Tls(verified, ca=ca))
            assert "another host's" in (error.value.hint or "")
            assert cipher(host, Tls("verify_ca", ca=ca))
        for mode in ("verify_ca", "verify_identity"):
            with pytest.raises(ConfigError, match="certificate"):
                cipher("localhost", Tls(mode, ca=pems / "other.pem"))  # type: ignore[arg-type]
        assert cipher(DOOR, Tls("required")) and cipher(DOOR, None)
        # A certificate that is renewed while the tunnel stays is checked anew, and accepted.
        for kind in ("key", "pem"):
            (pems / f"server.{kind}").write_bytes((pems / f"new.{kind}").read_bytes())
        server.execute("FLUSH SSL")
        assert cipher("localhost", Tls(verified, ca=ca))


def test_a_mysql_without_tls_is_refused_through_the_tunnel_too(
    bastion: Sshd, mariadb: MariaDB, pems: Path
) -> None:
    with pytest.raises(ConfigError, match="offers no TLS"):
        Session(
            source(mariadb, ssh_of(bastion), host="localhost", tls=Tls("verify_identity", ca=pems / "ca.pem"))
        )


def test_the_certificate_of_redshift_is_checked_against_the_name_behind_the_tunnel(
    bastion: Sshd, seaweed: SeaweedFS
) -> None:
    with RedshiftStandIn(seaweed, tls=True) as server:
        login = {
            "user": server.user,
            "password": server.password,
            "database": server.database,
            "port": server.port,
        }
        tls = Tls("verify_identity", ca=server.ca)
        spec = WarehouseSpec("redshift", "public", tls=tls, ssh=ssh_of(bastion), host="localhost", **login)  # type: ignore[arg-type]

        def ask(spec: WarehouseSpec) -> object:
            session = SocketTransport(spec, Limits(connect=10)).open()
            try:
                return session.query("SELECT 1")
            finally:
                session.close()

        assert ask(spec) == [(1,)]
        with pytest.raises(Failed, match=r"no trusted TLS connection to Redshift at 127\.1"):
            ask(replace(spec, host=DOOR))
        assert ask(replace(spec, host=DOOR, tls=replace(tls, mode="verify_ca"))) == [(1,)]


# Redshift


def test_a_sync_to_redshift_through_a_bastion_ends_right(
    s3_workspace: Workspace, bastion: Sshd, redshift: RedshiftStandIn
) -> None:
    redshift.faults.clear()
    schema = f"t_{secrets.token_hex(4)}"
    place = RedshiftPlace(redshift, schema)
    s3_workspace.execute(ORDERS, FILL.format(n=500, note="CONCAT('n', seq)"))
    s3_workspace.write(
        source={"ssh": bastion.ssh()},
        warehouse={
            "url": redshift.url(), "schema": schema, "iam_role": redshift.role,
            "tls": {"mode": "disabled"}, "ssh": bastion.ssh(),
        },
    )  # fmt: skip
    assert s3_workspace.synced("orders")["rows_loaded"] == 500
    assert place.run("SELECT count(*), sum(id) FROM orders") == [(500, 500 * 501 // 2)]


def test_a_tunnel_that_dies_in_mid_load_costs_one_more_try(
    own_bastion: Sshd, redshift: RedshiftStandIn, seaweed: SeaweedFS, prefix: str
) -> None:
    place = RedshiftPlace(redshift, f"t_{secrets.token_hex(4)}")
    fill = Fill(place, Store(StoreSpec(**seaweed.store(prefix))))
    faults = redshift.faults
    faults.clear()
    about = {**place.spec, "tls": Tls("disabled"), "ssh": ssh_of(own_bastion)}
    limits = replace(place.limits, connect=10)
    fill.warehouse = Redshift(
        SocketTransport(WarehouseSpec(**about), limits), place.schema, iam_role=redshift.role, limits=limits
    )
    for number, end in enumerate(("COPY", "COMMIT"), 1):
        faults.statements.clear()
        faults.delay(1.0, match=end)
        cut = threading.Thread(
            target=lambda end=end: (  # type: ignore[misc]
                until(lambda: any(sql.startswith(end) for sql in faults.statements)),
                own_bastion.cut(),
            )
        )
        cut.start()
        assert fill.load(fill.commit([row(number)])).rows <= 1
        cut.join()
    assert fill.rows("id") == [(1,), (2,)] and fill.ledger() == [1, 2]
    own_bastion.stop()
    began = time.monotonic()
    with pytest.raises(TransientError, match=r"the bastion .* can't be reached"):
        fill.load(fill.commit([row(3)]))
    assert time.monotonic() - began < 10
    own_bastion.start()
    fill.load(fill.made[-1])
    assert fill.ledger() == [1, 2, 3]
