"""TLS as the contract has it, against real servers: nothing is ever sent in plain text that was to be encrypted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from floodmark.config.load import SourceSpec, Tls
from floodmark.model.errors import ConfigError, TransientError
from floodmark.model.table import Column
from floodmark.setup.services.databases import DatabaseServer, MariaDB
from floodmark.source.read import Batches
from floodmark.source.session import Session
from tests.conftest import Workspace
from tests.support.certificates import authority, issued, openssl
from tests.support.described import described
from tests.support.orders import create_orders, fill_orders

pytestmark = pytest.mark.source  # what a server answers by itself is tried on both

Start = Callable[[str | None], SourceSpec]


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, and certificates of the first: for this host, for another one, for a client."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("ca", "other"):
        authority(folder, name)
    issued(folder, "right", "DNS:localhost,IP:127.0.0.1")
    issued(folder, "wrong", "DNS:db.elsewhere")
    issued(folder, "client", "DNS:client")
    return folder


def server_with(
    kind: type[DatabaseServer], pems: Path, certificate: str | None, insists: bool = True
) -> DatabaseServer:
    args = ["--skip-ssl" if kind is MariaDB else "--tls-version="]
    if certificate:
        args = [
            f"--ssl-ca={pems / 'ca.pem'}", f"--ssl-cert={pems / f'{certificate}.pem'}",
            f"--ssl-key={pems / f'{certificate}.key'}", f"--require-secure-transport={'ON' if insists else 'OFF'}",
        ]  # fmt: skip
    return kind(args=args, buffer_pool="32M")


def spec_of(server: DatabaseServer) -> SourceSpec:
    return SourceSpec(server.host, server.port, server.user, server.password)


@pytest.fixture(scope="module")
def running(pems: Path) -> Iterator[Callable[[type[DatabaseServer], str | None], SourceSpec]]:
    """A server of a kind with a certificate, started when a test first asks for it."""
    servers: dict[tuple[type[DatabaseServer], str | None], DatabaseServer] = {}
    with ExitStack() as until_the_end:

        def get(kind: type[DatabaseServer], certificate: str | None) -> SourceSpec:
            wanted = kind, certificate
            if wanted not in servers:
                servers[wanted] = until_the_end.enter_context(server_with(kind, pems, certificate))
            return spec_of(servers[wanted])

        yield get


@pytest.fixture
def start(
    running: Callable[[type[DatabaseServer], str | None], SourceSpec], new_server: type[DatabaseServer]
) -> Start:
    return lambda certificate: running(new_server, certificate)


@pytest.fixture
def right(start: Start) -> SourceSpec:
    return start("right")


@pytest.fixture
def wrong(start: Start) -> SourceSpec:
    return start("wrong")


@pytest.fixture
def plain(start: Start) -> SourceSpec:
    return start(None)


def cipher(spec: SourceSpec, tls: Tls | None) -> bytes | None:
    """What encrypts a session, after a row has come over it past the driver."""
    table = described("d", "t", (Column("n", "int(11)", "int"),), ("n",), None, "full", "t")
    with Session(replace(spec, tls=tls)) as session:
        assert sum(batch.num_rows for batch in Batches(session, table, "SELECT 1")) == 1
        return session.rows("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1]


Mode = Literal["required", "verify_ca", "verify_identity"]
ENCRYPTING = ("required", "verify_ca", "verify_identity")


@pytest.mark.both_servers
@pytest.mark.parametrize("mode", ENCRYPTING)
def test_a_right_certificate_is_accepted(right: SourceSpec, pems: Path, mode: Mode) -> None:
    assert cipher(right, Tls(mode, ca=pems / "ca.pem"))


def test_the_host_may_be_a_name(right: SourceSpec, pems: Path) -> None:
    assert cipher(replace(right, host="localhost"), Tls("verify_identity", ca=pems / "ca.pem"))


@pytest.mark.both_servers
def test_without_a_tls_setting_tls_is_used_if_the_server_has_it(right: SourceSpec, plain: SourceSpec) -> None:
    assert cipher(right, None)
    assert not cipher(plain, None)


@pytest.mark.parametrize("mode", ENCRYPTING)
def test_the_wrong_authority_is_refused(right: SourceSpec, pems: Path, mode: Mode) -> None:
    with pytest.raises(ConfigError, match="certificate") as error:
        cipher(right, Tls(mode, ca=pems / "other.pem"))
    assert "source.tls.ca" in (error.value.hint or "")


@pytest.mark.parametrize("mode", ("verify_ca", "verify_identity"))
def test_an_untrusted_authority_is_refused(right: SourceSpec, mode: Mode) -> None:
    with pytest.raises(ConfigError, match="certificate"):
        cipher(right, Tls(mode))


def test_a_wrong_host_name_is_refused_only_with_verify_identity(wrong: SourceSpec, pems: Path) -> None:
    ca = pems / "ca.pem"
    with pytest.raises(ConfigError, match="mismatch") as error:
        cipher(wrong, Tls("verify_identity", ca=ca))
    assert "for another host" in (error.value.hint or "")
    assert cipher(wrong, Tls("verify_ca", ca=ca))
    assert cipher(wrong, Tls("required"))
    with pytest.raises(ConfigError, match="certificate"):
        cipher(wrong, Tls("verify_ca", ca=pems / "other.pem"))


@pytest.mark.parametrize("mode", ENCRYPTING)
@pytest.mark.parametrize("with_ca", [True, False])
def test_a_server_without_tls_is_refused(plain: SourceSpec, pems: Path, mode: Mode, with_ca: bool) -> None:
    with pytest.raises(ConfigError, match="offers no TLS"):
        cipher(plain, Tls(mode, ca=pems / "ca.pem" if with_ca else None))


@pytest.mark.both_servers
def test_a_server_that_insists_on_tls_refuses_plain_text(right: SourceSpec) -> None:
    with pytest.raises(ConfigError) as error:
        cipher(right, Tls("disabled"))
    assert "tls" in (error.value.hint or "")


@pytest.mark.both_servers
def test_disabled_is_plain_text(plain: SourceSpec) -> None:
    assert not cipher(plain, Tls("disabled"))


@pytest.mark.both_servers
def test_a_client_certificate_is_presented(right: SourceSpec, pems: Path) -> None:
    files = {"ca": pems / "ca.pem", "cert": pems / "client.pem", "key": pems / "client.key"}
    root = replace(right, tls=Tls("verify_identity", **files))
    with Session(root) as session:
        session.rows("SET SESSION TRANSACTION READ WRITE")
        session.rows("CREATE USER IF NOT EXISTS shown IDENTIFIED BY 'pw' REQUIRE X509")
    guest = replace(root, user="shown", password="pw")
    assert cipher(guest, guest.tls)
    with pytest.raises(ConfigError, match="Access denied"):
        cipher(guest, Tls("verify_identity", ca=files["ca"]))


def test_a_missing_certificate_file_is_named(right: SourceSpec, pems: Path) -> None:
    with pytest.raises(ConfigError, match=r"source.tls.ca: .*nowhere.pem can't be read: No such file"):
        cipher(right, Tls("verify_ca", ca=pems / "nowhere.pem"))


@pytest.mark.both_servers
def test_passwords_and_names_may_be_any_text(right: SourceSpec) -> None:
    with Session(right) as session:
        session.rows("SET SESSION TRANSACTION READ WRITE")
        session.rows("CREATE DATABASE `größe`")
        session.rows("CREATE USER `jürgen` IDENTIFIED BY 'pä😀ß'")
        session.rows("GRANT ALL ON `größe`.* TO `jürgen`")
    guest = replace(right, user="jürgen", password="pä😀ß", database="größe")
    assert cipher(guest, Tls("required"))
    with pytest.raises(ConfigError, match="Access denied") as error:
        cipher(replace(guest, password="pä😀ss"), Tls("required"))
    assert "pä" not in error.value.message
    with pytest.raises(ConfigError, match="nowhere"):
        cipher(replace(guest, database="nowhere"), Tls("required"))


def test_a_key_with_a_passphrase_is_refused_without_a_prompt(right: SourceSpec, pems: Path) -> None:
    locked = pems / "locked.key"
    openssl(
        "pkey", "-in", str(pems / "client.key"), "-aes256", "-passout", "pass:secret", "-out", str(locked)
    )
    with pytest.raises(ConfigError):
        cipher(right, Tls("required", ca=pems / "ca.pem", cert=pems / "client.pem", key=locked))


@pytest.mark.both_servers
def test_a_session_ended_by_the_server_says_so(right: SourceSpec) -> None:
    with Session(right) as other, Session(replace(right, tls=Tls("required"))) as session:
        other.rows("SET SESSION TRANSACTION READ WRITE")
        other.rows(f"KILL {session.connection_id}")
        with pytest.raises(TransientError):
            session.rows("SELECT 1")


def test_slices_are_read_over_tls_without_the_driver(
    workspace: Workspace, right: SourceSpec, pems: Path, server: DatabaseServer
) -> None:
    def prepared() -> int:
        with Session(right) as session:
            return int(session.rows("SHOW GLOBAL STATUS LIKE 'Com_stmt_prepare'")[0][1] or 0)

    with Session(right) as session:
        session.rows("SET SESSION TRANSACTION READ WRITE")
        session.rows("CREATE DATABASE far")
        session.rows("USE far")
        session.rows(create_orders())
        session.rows(server.spelled(fill_orders(1000)))
        session.rows("COMMIT")
    before = prepared()
    url = f"mysql://{right.user}:{right.password}@{right.host}:{right.port}/far"
    tls = {"mode": "verify_identity", "ca": str(pems / "ca.pem")}
    workspace.write(source={"url": url, "tls": tls})
    assert workspace.synced("far.orders")["rows_loaded"] == 1000
    assert prepared() > before
