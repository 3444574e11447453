"""Logging in: every method that the servers have, with TLS and without; a refusal says what to do."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from floodmark.config.load import SourceSpec, Tls
from floodmark.model.errors import ConfigError
from floodmark.setup.services.databases import DatabaseServer, MariaDB, MySQL
from floodmark.source.session import Session
from tests.conftest import NO_MYSQL, Workspace
from tests.support.certificates import authority, issued
from tests.support.doctor_checks import doctor
from tests.support.orders import create_orders, fill_orders

PLAIN = Tls("disabled")


@pytest.fixture(scope="module")
def own_pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority(folder, "ca")
    for name in ("server", "client"):
        issued(folder, name, "DNS:localhost,IP:127.0.0.1")
    return folder


def tls_args(folder: Path) -> list[str]:
    return [
        f"--ssl-ca={folder}/ca.pem",
        f"--ssl-cert={folder}/server.pem",
        f"--ssl-key={folder}/server.key",
    ]


@pytest.fixture(scope="module")
def own(own_pems: Path) -> Iterator[tuple[MySQL, Path]]:
    """A MySQL whose users may be changed, and the folder of its certificates."""
    if NO_MYSQL:
        pytest.skip(NO_MYSQL)
    with MySQL(args=tls_args(own_pems), buffer_pool="32M") as server:
        yield server, own_pems


@pytest.fixture(scope="module")
def without_tls() -> Iterator[MySQL]:
    if NO_MYSQL:
        pytest.skip(NO_MYSQL)
    with MySQL(args=["--tls-version="], buffer_pool="32M") as server:
        yield server


def spec_of(server: DatabaseServer, user: str, password: str = "guest-pw") -> SourceSpec:
    return SourceSpec(server.host, server.port, user, password)


def guest(server: DatabaseServer, name: str, how: str = "IDENTIFIED BY 'guest-pw'") -> SourceSpec:
    server.execute(f"DROP USER IF EXISTS {name}@'%'", f"CREATE USER {name}@'%' {how}")
    return spec_of(server, name)


def forget_all(server: DatabaseServer) -> None:
    """Let the server forget whom it has seen: the next log-in has to prove the whole password."""
    server.execute("FLUSH PRIVILEGES")


def ask(spec: SourceSpec, sql: str = "SELECT 1") -> bool:
    """Whether the session is encrypted, by the server's own word; rows and questions share the connection."""
    with Session(spec) as session:
        session.rows(sql)
        with closing(session.columns("SELECT 1", 10, [pa.int64()])) as blocks:
            assert [column.to_pylist() for block in blocks for column in block] == [[1]]
        return bool(session.rows("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1])


def refused(spec: SourceSpec, sql: str = "SELECT 1") -> str:
    """What a log-in says, message and hint."""
    with pytest.raises(ConfigError) as error:
        ask(spec, sql)
    assert "guest-pw" not in str(error.value)
    return f"{error.value.message} → {error.value.hint}"


@pytest.mark.mysql_only
@pytest.mark.parametrize("plugin", ["caching_sha2_password", "sha256_password"])
def test_a_password_is_proven_with_tls_and_with_rsa_on_the_first_and_later_logins(
    own: tuple[MySQL, Path], plugin: str
) -> None:
    server, _ = own
    if not server.execute(f"SELECT 1 FROM information_schema.plugins WHERE plugin_name = '{plugin}'"):
        pytest.skip(f"this MySQL has no {plugin}")
    spec = guest(server, "proven", f"IDENTIFIED WITH {plugin} BY 'guest-pw'")
    for tls in (None, Tls("required"), PLAIN):
        forget_all(server)
        for _ in range(2):
            assert ask(replace(spec, tls=tls)) == (tls != PLAIN)


@contextmanager
def overheard(server: DatabaseServer) -> Iterator[tuple[int, bytearray]]:
    """A port that leads to the server, and everything that is sent to it there."""
    heard = bytearray()

    def carry(one: socket.socket, other: socket.socket, keep: bool) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                if keep:
                    heard.extend(data)
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def serve(door: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = door.accept()
                far = socket.create_connection((server.host, server.port))
                for pair in ((near, far, True), (far, near, False)):
                    threading.Thread(target=carry, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as door:
        threading.Thread(target=serve, args=(door,), daemon=True).start()
        yield door.getsockname()[1], heard
        door.shutdown(socket.SHUT_RDWR)


@pytest.mark.mysql_only
@pytest.mark.parametrize("plugin", ["caching_sha2_password", "sha256_password"])
def test_a_password_is_never_sent_readable_even_without_tls(without_tls: MySQL, plugin: str) -> None:
    spec = guest(without_tls, "heard", f"IDENTIFIED WITH {plugin} BY 'guest-pw'")
    with overheard(without_tls) as (port, heard):
        for tls in (None, PLAIN):
            forget_all(without_tls)
            assert not ask(replace(spec, port=port, tls=tls))
        assert b"heard" in heard and b"guest-pw" not in heard
        heard.clear()
        with pytest.raises(ConfigError, match="offers no TLS"):
            ask(replace(spec, port=port, tls=Tls("required")))
        assert b"heard" not in heard  # not even who wanted to log in


@pytest.fixture(scope="module")
def mariadb_with_ed25519(own_pems: Path) -> Iterator[MariaDB]:
    """A MariaDB with TLS and the plug-in, which Debian has in another package than the server."""
    pytest.importorskip("nacl")
    folders = [Path("/usr/lib/mysql/plugin"), Path(sys.prefix) / "mariadb/usr/lib/mysql/plugin"]
    folder = next((f for f in folders if (f / "auth_ed25519.so").exists()), None)
    if folder is None:
        pytest.skip("there is no auth_ed25519.so: run `make setup`")
    args = [f"--plugin-dir={folder}", "--plugin-load-add=auth_ed25519", *tls_args(own_pems)]
    with MariaDB(args=args, buffer_pool="32M") as server:
        yield server


@pytest.mark.mariadb_only
@pytest.mark.parametrize("plugin", ["mysql_native_password", "ed25519"])
def test_mariadbs_plugins_prove_a_password_without_sending_it(
    mariadb_with_ed25519: MariaDB, plugin: str
) -> None:
    server = mariadb_with_ed25519
    spec = guest(server, "proven", f"IDENTIFIED VIA {plugin} USING PASSWORD('guest-pw')")
    with overheard(server) as (port, heard):
        for tls in (None, Tls("required"), PLAIN):
            assert ask(replace(spec, port=port, tls=tls)) == (tls != PLAIN)
        assert b"proven" in heard and b"guest-pw" not in heard
    assert "Access denied" in refused(replace(spec, password="other"))


@pytest.mark.mysql_only
def test_a_server_that_starts_to_offer_tls_is_used_with_tls(without_tls: MySQL) -> None:
    spec = guest(without_tls, "later")
    assert not ask(spec)
    with MySQL(buffer_pool="32M") as other:  # in its place
        without_tls.stop()
        other.stop()
        other.port = without_tls.port
        try:
            other.start()
            guest(other, "later")
            assert ask(spec)
        finally:
            other.stop()
            without_tls.start()


@pytest.mark.mysql_only
def test_a_user_that_requires_a_certificate_presents_it(own: tuple[MySQL, Path]) -> None:
    server, folder = own
    files = {"ca": folder / "ca.pem", "cert": folder / "client.pem", "key": folder / "client.key"}
    for how in ("REQUIRE X509", "REQUIRE SUBJECT '/CN=client'"):
        spec = guest(server, "shown", f"IDENTIFIED BY 'guest-pw' {how}")
        for mode in ("required", "verify_identity"):
            assert ask(replace(spec, tls=Tls(mode, **files)))
        assert "Access denied" in refused(replace(spec, tls=Tls("required")))
    spec = guest(server, "other", "IDENTIFIED BY 'guest-pw' REQUIRE SUBJECT '/CN=somebody'")
    assert "source.tls" in refused(replace(spec, tls=Tls("required", **files)))


@pytest.mark.mysql_only
def test_a_refused_login_says_why(own: tuple[MySQL, Path]) -> None:
    server, _ = own
    spec = guest(server, "mistaken")
    assert "check the user and the password in source.url" in refused(replace(spec, password="other"))
    spec = guest(server, "old", "IDENTIFIED BY 'guest-pw' PASSWORD EXPIRE")
    assert "(1862) → give old a new password (ALTER USER … IDENTIFIED BY …)" in refused(spec)
    spec = guest(server, "shut", "IDENTIFIED BY 'guest-pw' ACCOUNT LOCK")
    assert "(3118) → ALTER USER 'shut'@'…' ACCOUNT UNLOCK" in refused(spec)
    spec = guest(server, "tried", "IDENTIFIED BY 'guest-pw' FAILED_LOGIN_ATTEMPTS 1 PASSWORD_LOCK_TIME 2")
    assert "(3955) → ALTER USER 'tried'@'…' ACCOUNT UNLOCK" in refused(replace(spec, password="other"))
    assert "(3955)" in refused(spec)
    server.execute("SET GLOBAL require_secure_transport = ON")
    try:
        spec = spec_of(server, "root", server.password)
        assert ask(spec)
        assert "(3159) → set source.tls.mode" in refused(replace(spec, tls=PLAIN))
    finally:
        with Session(spec) as session:
            session.rows("SET GLOBAL require_secure_transport = OFF")


@pytest.mark.both_servers
def test_grants_may_come_from_an_active_role(workspace: Workspace, kind: str) -> None:
    name, server = workspace.database.name, workspace.database.server
    workspace.execute(create_orders(), fill_orders(50), "CREATE TABLE secret (id INT PRIMARY KEY)")
    user, role = f"u_{name}", f"r_{name}"
    server.create_user(user, "guest-pw")
    server.execute(
        f"CREATE ROLE {role}",
        f"GRANT SELECT ON {name}.orders TO {role}",
        f"GRANT PROCESS ON *.* TO {role}",
        f"GRANT SELECT ON performance_schema.* TO {role}",
        f"GRANT {role} TO {user}@'%'",
    )
    workspace.write(source={"url": server.url(name, user, "guest-pw")})
    answer = doctor(workspace)
    answer.fails("source", "log-in", "(1044)", "GRANT SELECT", "SET DEFAULT ROLE")
    active = "SET DEFAULT ROLE {0} TO {1}@'%'" if kind == "mysql" else "SET DEFAULT ROLE {0} FOR {1}@'%'"
    server.execute(active.format(role, user))
    assert (
        "open transactions are visible"
        in doctor(workspace, "-t", "orders").one("source", "privileges")["detail"]
    )
    assert workspace.synced("orders")["rows_loaded"] == 50
    assert refused(replace(spec_of(server, user), database=name), "SELECT * FROM secret").endswith(
        f"GRANT SELECT on the tables to {user} (rights of a role count only after SET DEFAULT ROLE)"
    )


@pytest.mark.both_servers
def test_a_function_that_the_user_may_not_call_is_named_with_its_grant(
    workspace: Workspace, server: DatabaseServer
) -> None:
    name = workspace.database.name
    workspace.execute("CREATE FUNCTION wanted(a INT) RETURNS INT DETERMINISTIC RETURN a")
    server.create_user(f"u_{name}", "guest-pw", f"SELECT ON {name}.*")
    spec = replace(spec_of(server, f"u_{name}"), database=name)
    assert "(1370) → GRANT EXECUTE on it to" in refused(spec, "SELECT wanted(1)")
