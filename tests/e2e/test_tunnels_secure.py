"""Certificates of the servers behind a bastion, and Redshift through it: verified by name, loaded once, never a hang."""

from __future__ import annotations

import secrets
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.config import Tls, WarehouseSpec
from floodmark.errors import ConfigError, TransientError
from floodmark.mysql.connect import Session
from floodmark.store import Store, StoreSpec
from floodmark.testing.databases import DatabaseServer, MariaDB
from floodmark.testing.redshift import RedshiftStandIn
from floodmark.testing.services import SeaweedFS
from floodmark.testing.sshd import Sshd
from floodmark.warehouse.redshift import Redshift
from floodmark.warehouse.redshift_socket import SocketTransport
from floodmark.warehouse.redshift_steps import Failed, Limits
from tests.bastion import FILL, ORDERS, source, ssh_of, until
from tests.conftest import Workspace
from tests.fill import Fill, RedshiftPlace, row

DOOR = "127.1"  # 127.0.0.1 for whoever connects, and a name that is in no certificate


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
    ca, verified = pems / "ca.pem", "verify_identity"
    for kind in ("key", "pem"):
        (pems / f"server.{kind}").write_bytes((pems / f"old.{kind}").read_bytes())
    args = [f"--ssl-ca={ca}", f"--ssl-cert={pems}/server.pem", f"--ssl-key={pems}/server.key"]
    with new_server(args=args, buffer_pool="32M") as server:

        def cipher(host: str, tls: Tls | None) -> bytes | None:
            spec = source(server, ssh_of(bastion), host=host, tls=tls)
            with Session(spec) as session:
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
        server.execute("FLUSH SSL" if new_server is MariaDB else "ALTER INSTANCE RELOAD TLS")
        assert cipher("localhost", Tls(verified, ca=ca))


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
