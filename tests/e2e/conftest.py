"""What tests of the whole pipeline share beyond tests/conftest.py."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from floodmark.cli.main import main
from floodmark.host import ssh as tunnel
from floodmark.setup.services.databases import MariaDB
from floodmark.spark import start
from floodmark.spark.context import Spark
from tests.conftest import Result, Workspace, lasting_workspace
from tests.support.orders import create_orders, fill_orders
from tests.support.redshift import RedshiftStandIn
from tests.support.sshd import Sshd
from tests.support.synced_twice import Past
from tests.support.tampered_warehouse import Verifying


@pytest.fixture(params=["duckdb", "redshift"])
def place(request: pytest.FixtureRequest) -> Verifying:
    """A workspace with DuckDB, and one with the stand-in for Redshift."""
    if request.param == "duckdb":
        workspace: Workspace = request.getfixturevalue("workspace")

        def change(*statements: str) -> None:
            with duckdb.connect(str(workspace.warehouse)) as link:
                link.execute("SET TimeZone = 'UTC'")
                for statement in statements:
                    link.execute(statement)

        return Verifying(workspace, change, "main")
    redshift: RedshiftStandIn = request.getfixturevalue("redshift")
    s3: Workspace = request.getfixturevalue("redshift_workspace")
    schema = str(s3.config["warehouse"]["schema"])
    return Verifying(s3, lambda *statements: _run(redshift, schema, *statements), schema)


@pytest.fixture
def command(
    spark: Callable[[], Spark], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """Runs the command line in this process, on the shared Spark: for what it prints, not for processes."""

    def run(workspace: Workspace, *args: str) -> Result:
        spark()
        monkeypatch.setattr(start, "OWN", "spark.floodmark.other")  # a Spark that is used and left running
        monkeypatch.chdir(workspace.folder)
        capsys.readouterr()
        code = main(args)
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def either_mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """One MariaDB for the whole run that offers TLS."""
    folder = tmp_path_factory.mktemp("either")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=either",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    with MariaDB(args=[f"--ssl-cert={folder}/cert.pem", f"--ssl-key={folder}/key.pem"]) as server:
        yield server


def _run(redshift: RedshiftStandIn, schema: str, *statements: str) -> None:
    redshift.execute(f"SET search_path TO {schema}", *statements)


@pytest.fixture(scope="session")
def synced_twice(
    mariadb: MariaDB, spark: Callable[[], Spark], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workspace]:
    """A table of a hundred rows that was synced twice: 40 rows, then the others."""
    folder = tmp_path_factory.mktemp("past")
    with lasting_workspace(folder, mariadb, spark, store={"url": "./lake"}) as workspace:
        workspace.execute(create_orders("amount INT NOT NULL"), fill_orders(100, "seq SECOND", amount="seq"))
        workspace.synced("orders", limit=40)
        workspace.synced("orders")
        yield workspace


@pytest.fixture
def past(
    synced_twice: Workspace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Past]:
    """A copy of its store and warehouse, with the same source."""
    folder = tmp_path / "copy"
    shutil.copytree(synced_twice.folder, folder)
    identity = folder / "lake/pipeline.json"  # names the warehouse, which has moved
    identity.write_text(identity.read_text().replace(str(synced_twice.folder), str(folder)))
    yield Past(replace(synced_twice, folder=folder, config=dict(synced_twice.config)), monkeypatch, capsys)
    synced_twice.execute("DELETE FROM orders WHERE id > 100")


@pytest.fixture(scope="session")
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
