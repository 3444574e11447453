"""Certificates of the servers behind a bastion, and Redshift through it: verified by name, loaded once, never a hang."""

from __future__ import annotations

import secrets
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.config.load import StoreSpec, Tls, WarehouseSpec
from floodmark.load.redshift.socket import SocketTransport
from floodmark.load.redshift.steps import Limits, StatementFailed
from floodmark.load.redshift.warehouse import Redshift
from floodmark.model.errors import ConfigError, TransientError
from floodmark.setup.services.databases import DatabaseServer, MariaDB
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.source.session import Session
from floodmark.store.store import Store
from tests.conftest import Workspace
from tests.support.held_sync import until
from tests.support.redshift import RedshiftStandIn
from tests.support.sshd import Sshd
from tests.support.tunnels import (
    ORDERS,
    fill,
    source,
    ssh_of,
)
from tests.support.warehouse_loads import Fill, RedshiftPlace, row

DOOR = "127.1"  # resolves to 127.0.0.1, and is in no certificate


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


@pytest.mark.both_servers
def test_the_certificate_of_mysql_is_checked_against_the_name_behind_the_tunnel(
    bastion: Sshd, pems: Path, new_server: type[DatabaseServer]
) -> None:
    ca = pems / "ca.pem"
    for kind in ("key", "pem"):
        (pems / f"server.{kind}").write_bytes((pems / f"old.{kind}").read_bytes())
    args = [f"--ssl-ca={ca}", f"--ssl-cert={pems}/server.pem", f"--ssl-key={pems}/server.key"]
    with new_server(args=args, buffer_pool="32M") as server:

        def cipher(host: str, tls: Tls | None) -> bytes | None:
            spec = source(server, ssh_of(bastion), host=host, tls=tls)
            with Session(spec) as session:
                return session.rows("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1]

        assert cipher("localhost", Tls("verify_identity", ca=ca))
        assert cipher("localhost", Tls("verify_identity", ca=ca))  # a second connection of the same tunnel
        for host in ("127.0.0.1", DOOR):
            with pytest.raises(ConfigError, match="mismatch") as error:
                cipher(host, Tls("verify_identity", ca=ca))
            assert "for another host" in (error.value.hint or "")
            assert cipher(host, Tls("verify_ca", ca=ca))
        for mode in ("verify_ca", "verify_identity"):
            with pytest.raises(ConfigError, match="certificate"):
                cipher("localhost", Tls(mode, ca=pems / "other.pem"))
        assert cipher(DOOR, Tls("required")) and cipher(DOOR, None)
        # A certificate that is renewed while the tunnel stays open is checked again, and accepted.
        for kind in ("key", "pem"):
            (pems / f"server.{kind}").write_bytes((pems / f"new.{kind}").read_bytes())
        server.execute("FLUSH SSL" if new_server is MariaDB else "ALTER INSTANCE RELOAD TLS")
        assert cipher("localhost", Tls("verify_identity", ca=ca))


def test_a_server_without_tls_is_refused_through_the_tunnel_too(
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
        login: dict[str, Any] = {
            "user": server.user,
            "password": server.password,
            "database": server.database,
            "port": server.port,
        }
        tls = Tls("verify_identity", ca=server.ca)
        spec = WarehouseSpec("redshift", "public", tls=tls, ssh=ssh_of(bastion), host="localhost", **login)

        def ask(spec: WarehouseSpec) -> object:
            session = SocketTransport(spec, Limits(connect=10)).open()
            try:
                return session.query("SELECT 1")
            finally:
                session.close()

        assert ask(spec) == [(1,)]
        with pytest.raises(StatementFailed, match=r"no trusted TLS connection to Redshift at 127\.1"):
            ask(replace(spec, host=DOOR))
        assert ask(replace(spec, host=DOOR, tls=replace(tls, mode="verify_ca"))) == [(1,)]


# Redshift


def test_a_sync_to_redshift_through_a_bastion_succeeds(
    s3_workspace: Workspace, bastion: Sshd, redshift: RedshiftStandIn
) -> None:
    redshift.faults.clear()
    schema = f"t_{secrets.token_hex(4)}"
    place = RedshiftPlace(redshift, schema)
    s3_workspace.execute(ORDERS, fill(500))
    s3_workspace.write(
        source={"ssh": bastion.ssh()},
        warehouse={
            "url": redshift.url(), "schema": schema, "iam_role": redshift.role,
            "tls": {"mode": "disabled"}, "ssh": bastion.ssh(),
        },
    )  # fmt: skip
    assert s3_workspace.synced("orders")["rows_loaded"] == 500
    assert place.run("SELECT count(*), sum(id) FROM orders") == [(500, 500 * 501 // 2)]


def test_a_tunnel_that_dies_during_a_load_costs_one_retry(
    own_bastion: Sshd, redshift: RedshiftStandIn, seaweed: SeaweedFS, prefix: str
) -> None:
    place = RedshiftPlace(redshift, f"t_{secrets.token_hex(4)}")
    fill = Fill(place, Store(StoreSpec(**seaweed.store(prefix))))
    faults = redshift.faults
    faults.clear()
    about = {**place.spec, "tls": Tls("disabled"), "ssh": ssh_of(own_bastion)}
    limits = replace(place.limits, connect=10)
    fill.warehouse = Redshift(
        SocketTransport(WarehouseSpec(**about), limits), place.schema, iam_role=redshift.role
    )

    def cut_at(end: str) -> None:
        until(lambda: any(sql.startswith(end) for sql in faults.statements), 60)
        own_bastion.cut()

    for number, end in enumerate(("COPY", "COMMIT"), 1):
        faults.statements.clear()
        faults.delay(1.0, match=end)
        cut = threading.Thread(target=cut_at, args=(end,))
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
