"""TLS as the contract has it, against real servers: nothing is ever sent in plain text that was to be encrypted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.config import SourceSpec, Tls
from floodmark.errors import ConfigError
from floodmark.model import Column, Table
from floodmark.mysql.connect import Session
from floodmark.mysql.read import record_batches
from floodmark.testing.services import MariaDB


def openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, and certificates of the first: for this host, for another one, for a client."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("ca", "other"):
        key, pem = str(folder / f"{name}.key"), str(folder / f"{name}.pem")
        openssl(
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={name}",
            "-keyout",
            key,
            "-out",
            pem,
        )
    for name, names in (
        ("right", "DNS:localhost,IP:127.0.0.1"), ("wrong", "DNS:db.elsewhere"), ("client", "DNS:client"),
    ):  # fmt: skip
        key, csr, ext = folder / f"{name}.key", folder / f"{name}.csr", folder / f"{name}.ext"
        ext.write_text(f"subjectAltName={names}\n")
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            f"/CN={name}",
            "-keyout",
            str(key),
            "-out",
            str(csr),
        )
        openssl(
            "x509", "-req", "-in", str(csr), "-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca.key"),
            "-CAcreateserial", "-days", "2", "-extfile", str(ext), "-out", str(folder / f"{name}.pem"),
        )  # fmt: skip
    return folder


def server(pems: Path, certificate: str | None, insists: bool = True) -> MariaDB:
    args = ["--skip-ssl"]
    if certificate:
        args = [
            f"--ssl-ca={pems / 'ca.pem'}", f"--ssl-cert={pems / f'{certificate}.pem'}",
            f"--ssl-key={pems / f'{certificate}.key'}", f"--require-secure-transport={'ON' if insists else 'OFF'}",
        ]  # fmt: skip
    return MariaDB(args=args, buffer_pool="32M")


def spec_of(server: MariaDB) -> SourceSpec:
    return SourceSpec(server.host, server.port, server.user, server.password)


@pytest.fixture(scope="module")
def right(pems: Path) -> Iterator[SourceSpec]:
    with server(pems, "right") as running:
        yield spec_of(running)


@pytest.fixture(scope="module")
def wrong(pems: Path) -> Iterator[SourceSpec]:
    with server(pems, "wrong") as running:
        yield spec_of(running)


@pytest.fixture(scope="module")
def plain(pems: Path) -> Iterator[SourceSpec]:
    with server(pems, None) as running:
        yield spec_of(running)


def cipher(spec: SourceSpec, tls: Tls | None) -> bytes | None:
    with Session(replace(spec, tls=tls)) as session:
        return session.rows("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1]


ENCRYPTING = ("required", "verify_ca", "verify_identity")


def read(spec: SourceSpec, tls: Tls | None) -> tuple[bool, int]:
    """Whether the connection is read past the driver, and how many rows the reader finds."""
    table = Table("d", "t", (Column("n", "int(11)", "int"),), ("n",), None, "full", "t")
    with Session(replace(spec, tls=tls)) as session:
        found = record_batches(session, table, "SELECT 1")
        return session.plain, sum(batch.num_rows for batch in found)


def test_only_what_is_not_encrypted_is_read_past_the_driver(
    right: SourceSpec, plain: SourceSpec, pems: Path
) -> None:
    assert read(right, None) == (False, 1)
    for mode in ENCRYPTING:
        assert read(right, Tls(mode, ca=pems / "ca.pem")) == (False, 1)  # type: ignore[arg-type]
    assert read(plain, None) == (True, 1)
    assert read(plain, Tls("disabled")) == (True, 1)
    with server(pems, "right", insists=False) as either:
        assert read(spec_of(either), None) == (False, 1)
        assert read(spec_of(either), Tls("disabled")) == (True, 1)


@pytest.mark.parametrize("mode", ENCRYPTING)
def test_a_right_certificate_is_accepted(right: SourceSpec, pems: Path, mode: str) -> None:
    assert cipher(right, Tls(mode, ca=pems / "ca.pem"))  # type: ignore[arg-type]


def test_the_host_may_be_a_name(right: SourceSpec, pems: Path) -> None:
    assert cipher(replace(right, host="localhost"), Tls("verify_identity", ca=pems / "ca.pem"))


def test_without_a_word_on_tls_a_server_that_has_it_is_used_with_it(
    right: SourceSpec, plain: SourceSpec
) -> None:
    assert cipher(right, None)
    assert not cipher(plain, None)


@pytest.mark.parametrize("mode", ENCRYPTING)
def test_the_wrong_authority_is_refused(right: SourceSpec, pems: Path, mode: str) -> None:
    with pytest.raises(ConfigError, match="certificate") as error:
        cipher(right, Tls(mode, ca=pems / "other.pem"))  # type: ignore[arg-type]
    assert "source.tls.ca" in (error.value.hint or "")


@pytest.mark.parametrize("mode", ("verify_ca", "verify_identity"))
def test_an_authority_that_nobody_trusts_is_refused(right: SourceSpec, mode: str) -> None:
    with pytest.raises(ConfigError, match="certificate"):
        cipher(right, Tls(mode))  # type: ignore[arg-type]


def test_the_wrong_host_name_is_refused_only_where_it_is_checked(wrong: SourceSpec, pems: Path) -> None:
    ca = pems / "ca.pem"
    with pytest.raises(ConfigError, match="Validation of SSL server certificate failed") as error:
        cipher(wrong, Tls("verify_identity", ca=ca))
    assert "another host's" in (error.value.hint or "")
    assert cipher(wrong, Tls("verify_ca", ca=ca))
    assert cipher(wrong, Tls("required"))
    with pytest.raises(ConfigError, match="certificate"):
        cipher(wrong, Tls("verify_ca", ca=pems / "other.pem"))


@pytest.mark.parametrize("mode", ENCRYPTING)
@pytest.mark.parametrize("with_ca", [True, False])
def test_a_server_without_tls_is_refused(plain: SourceSpec, pems: Path, mode: str, with_ca: bool) -> None:
    with pytest.raises(ConfigError, match=r"no TLS|does not support it"):
        cipher(plain, Tls(mode, ca=pems / "ca.pem" if with_ca else None))  # type: ignore[arg-type]


def test_a_server_that_insists_on_tls_refuses_plain_text(right: SourceSpec) -> None:
    with pytest.raises(ConfigError) as error:
        cipher(right, Tls("disabled"))
    assert "tls" in (error.value.hint or "")


def test_disabled_is_plain_text(plain: SourceSpec) -> None:
    assert not cipher(plain, Tls("disabled"))


def test_a_client_certificate_is_shown(right: SourceSpec, pems: Path) -> None:
    files = {"ca": pems / "ca.pem", "cert": pems / "client.pem", "key": pems / "client.key"}
    root = replace(right, tls=Tls("verify_identity", **files))
    with Session(root) as session:
        session.rows("SET SESSION TRANSACTION READ WRITE")
        session.rows("CREATE USER IF NOT EXISTS shown IDENTIFIED BY 'pw' REQUIRE X509")
    guest = replace(root, user="shown", password="pw")
    assert cipher(guest, guest.tls)
    with pytest.raises(ConfigError, match="Access denied"):
        cipher(guest, Tls("verify_identity", ca=files["ca"]))


def test_a_file_that_is_not_there_is_named(right: SourceSpec, pems: Path) -> None:
    with pytest.raises(ConfigError, match=r"source.tls.ca: .*nowhere.pem can't be read: No such file"):
        cipher(right, Tls("verify_ca", ca=pems / "nowhere.pem"))
