"""Shared fixtures: private services started once per run, a fresh database and store prefix for each test, and
the real command as a process. A test that needs no service starts none."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import duckdb
import pytest
import yaml

from floodmark import Pipeline
from floodmark.config.load import Config, load
from floodmark.model import events
from floodmark.model.run import SyncOptions, SyncReport, new_run
from floodmark.setup.services.compare import Comparison, compare
from floodmark.setup.services.databases import DatabaseServer, MariaDB, MySQL, missing
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.spark.context import Spark
from floodmark.sync.run import sync
from tests.live.cluster import CLUSTER
from tests.support.command_server import Command, Template
from tests.support.redshift import RedshiftStandIn
from tests.support.redshift.postgres import Postgres
from tests.support.warehouse_loads import PostgresPlace

TEMPLATE = Template()
# Whether to run everything, however long it takes.
PATIENT = bool(os.environ.get("FLOODMARK_LONG"))
FOLDERS = ("unit", "contract", "e2e", "faults")
SERVERS: dict[str, type[DatabaseServer]] = {"mysql": MySQL, "mariadb": MariaDB}
NO_MYSQL = missing("mysql")
# How a server is started so that its binary log can be followed.
LOGGED = {
    "mysql": ["--log-bin=bin", "--server-id=1"],
    "mariadb": ["--log-bin=bin", "--server-id=1", "--binlog-format=ROW", "--sync-binlog=1"],
}
# The server for tests that don't care.
USUAL = "mariadb" if NO_MYSQL else "mysql"
# Parameters for fixtures that outlive a test, equivalent to a test's markers `both_servers` and `source`.
BOTH = list(SERVERS)
SOURCE = BOTH if PATIENT else [USUAL]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the servers for a test: the usual one, or what its markers say."""
    if "kind" not in metafunc.fixturenames:
        return
    marked = {mark.name for mark in metafunc.definition.iter_markers()}
    if "mariadb_only" in marked or "mysql_only" in marked:  # whatever the module says
        metafunc.parametrize("kind", ["mariadb" if "mariadb_only" in marked else "mysql"], indirect=True)
    elif "both_servers" in marked or (PATIENT and "source" in marked):
        metafunc.parametrize("kind", list(SERVERS), indirect=True)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was not run, so that no skip goes unnoticed."""
    if NO_MYSQL:
        terminalreporter.section("Oracle's MySQL")
        terminalreporter.write_line(f"The tests ran on MariaDB only: {NO_MYSQL}.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its folder, so that `-m "not e2e"` works; skip long ones unless requested."""
    for item in items:
        if item.get_closest_marker("long") and not PATIENT:
            item.add_marker(pytest.mark.skip(reason="long: FLOODMARK_LONG=1"))
        for folder in FOLDERS:
            if folder in item.path.parts:
                item.add_marker(getattr(pytest.mark, folder))


def pytest_sessionfinish() -> None:
    TEMPLATE.end()


@pytest.fixture
def open_umask() -> Iterator[None]:
    """The usual umask, under which new files are world-readable."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """One MariaDB for the whole run; tests that restart or kill a server start their own."""
    with MariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def mysql() -> Iterator[MySQL]:
    """One Oracle MySQL for the whole run."""
    if NO_MYSQL:
        pytest.skip(NO_MYSQL)
    with MySQL() as server:
        yield server


@pytest.fixture(scope="session")
def logged_mariadb() -> Iterator[MariaDB]:
    """One MariaDB that writes a binary log as tables can follow it."""
    with MariaDB(args=LOGGED["mariadb"], buffer_pool="64M") as server:
        yield server


@pytest.fixture(scope="session")
def logged_mysql() -> Iterator[MySQL]:
    """The same for MySQL."""
    if NO_MYSQL:
        pytest.skip(NO_MYSQL)
    with MySQL(args=LOGGED["mysql"], buffer_pool="64M") as server:
        yield server


@pytest.fixture(params=["mysql", "mariadb"])
def logged(request: pytest.FixtureRequest) -> DatabaseServer:
    """Each server that writes a binary log; its files may be purged and reset."""
    server: DatabaseServer = request.getfixturevalue(f"logged_{request.param}")
    return server


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of server that the test runs on: `mysql` or `mariadb`."""
    chosen = str(getattr(request, "param", USUAL))
    if chosen == "mysql" and NO_MYSQL:
        pytest.skip(NO_MYSQL)
    return chosen


@pytest.fixture
def server(kind: str, request: pytest.FixtureRequest) -> DatabaseServer:
    """The shared server of that kind."""
    shared: DatabaseServer = request.getfixturevalue(kind)
    return shared


@pytest.fixture
def new_server(kind: str) -> type[DatabaseServer]:
    """Creates servers of that kind, for tests that restart or kill one or need other settings."""
    return SERVERS[kind]


@pytest.fixture(scope="session")
def seaweed(pytestconfig: pytest.Config) -> Iterator[SeaweedFS]:
    """One S3 server for the whole run, with the bucket `lake`; or the store of a real cluster."""
    if (cluster := pytestconfig.stash.get(CLUSTER, None)) is not None:
        yield cast(SeaweedFS, cluster)
        return
    with SeaweedFS() as server:
        yield server


@pytest.fixture(scope="session")
def redshift(seaweed: SeaweedFS, pytestconfig: pytest.Config) -> Iterator[RedshiftStandIn]:
    """One stand-in for Redshift for the whole run, over the shared S3 server; or a real cluster (`make redshift-live`)."""
    if (cluster := pytestconfig.stash.get(CLUSTER, None)) is not None:
        yield cast(RedshiftStandIn, cluster)  # it has a part of it, and skips the test that wants more
        return
    with RedshiftStandIn(seaweed) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres(isolation="read committed") as server:
        yield server


@pytest.fixture(scope="session")
def postgres_database(postgres: Postgres) -> str:
    """A database without the stand-in's catalog: plain PostgreSQL."""
    name = "warehouse"
    postgres.run("template1", f"CREATE DATABASE {name} TEMPLATE template0")
    return name


@pytest.fixture
def postgres_place(postgres: Postgres, postgres_database: str) -> PostgresPlace:
    """A schema of its own: a database for each test takes ten times as long."""
    schema = f"t_{secrets.token_hex(6)}"
    postgres.run(postgres_database, f"CREATE SCHEMA {schema}")
    return PostgresPlace(postgres.folder, postgres_database, schema)


@dataclass(frozen=True)
class Database:
    """A fresh, empty database on a server."""

    server: DatabaseServer
    name: str

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in one transaction and commit; returns the rows of the last one."""
        return self.server.execute(*statements, database=self.name)

    def connect(self, **options: Any) -> Any:
        """A PyMySQL connection, for transactions that stay open."""
        return self.server.connect(self.name, **options)


@contextmanager
def fresh_database(server: DatabaseServer) -> Iterator[Database]:
    name = f"t_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE {name} DEFAULT CHARSET=utf8mb4")
    yield Database(server, name)
    server.execute(f"DROP DATABASE {name}")


@pytest.fixture
def database(server: DatabaseServer) -> Iterator[Database]:
    with fresh_database(server) as database:
        yield database


@pytest.fixture
def prefix() -> str:
    """A store prefix that no other test uses."""
    return f"t-{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """The document that `--json` prints."""
        return json.loads(self.stdout)

    def ok(self) -> Result:
        """The same result, after asserting that the command succeeded."""
        assert self.code == 0, f"exit code {self.code}\n{self.stdout}\n{self.stderr}"
        return self


@dataclass
class Floodmark:
    """Runs the real command as a process: `floodmark("sync", "-t", "s.t")`."""

    cwd: Path
    started: list[Command] = field(default_factory=list)

    def __call__(
        self, *args: str, timeout: float = 180, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Result:
        process = self.start(*args, cwd=cwd, env=env)
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate(20)
            pytest.fail(f"floodmark {' '.join(args)}: no end within {timeout} s\n{stdout}\n{stderr}")
        return Result(process.wait(), stdout, stderr)

    def start(self, *args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Command:
        """Start it without waiting; whatever is left of it is killed when the test ends."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("FLOODMARK_", "AWS_"))}
        process = TEMPLATE.start(args, cwd or self.cwd, {**inherited, **(env or {})})
        self.started.append(process)
        return process

    def kill_all(self) -> None:
        for process in self.started:
            process.close()


@pytest.fixture
def floodmark(tmp_path: Path) -> Iterator[Floodmark]:
    command = Floodmark(tmp_path)
    yield command
    command.kill_all()


@dataclass
class Workspace:
    """A folder with a floodmark.yaml that names a fresh database, a fresh store and a fresh DuckDB file."""

    folder: Path
    database: Database
    config: dict[str, Any]
    run: Floodmark
    spark: Callable[[], Spark]

    @property
    def file(self) -> Path:
        return self.folder / "floodmark.yaml"

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse.duckdb"

    def write(self, **sections: Any) -> None:
        """Write floodmark.yaml; sections are merged into the existing ones (None removes one)."""
        for name, section in sections.items():
            if section is None:
                self.config.pop(name, None)
            elif isinstance(section, dict):
                self.config[name] = {**self.config.get(name, {}), **section}
            else:
                self.config[name] = section
        self.file.write_text(yaml.safe_dump(self.config, allow_unicode=True))
        self.file.chmod(0o600)  # it holds the password

    @property
    def settings(self) -> Config:
        """The configuration as the command reads it from floodmark.yaml."""
        return load(self.file)

    @property
    def pipeline(self) -> Pipeline:
        """The library, over the same file."""
        return Pipeline(self.file)

    def full_name(self, table: str) -> str:
        """The table with its schema."""
        return table if "." in table else f"{self.database.name}.{table}"

    def sync(self, *tables: str, **options: Any) -> SyncReport:
        """A sync in this process, on the shared Spark: for tests that need many syncs, not a process."""
        names = [self.full_name(table) for table in tables]
        how = SyncOptions(**options)
        return sync(self.settings, names, not names, how, Silent(), new_run(), spark=self.spark())

    def synced(self, *tables: str, **options: Any) -> dict[str, Any]:
        """The same for one table that must succeed; returns its part of the report."""
        report = self.sync(*tables, **options)
        (table,) = report.as_json()["tables"]
        assert report.ok, table["error"]
        return dict(table)

    def verified(self, table: str, **options: Any) -> dict[str, Any]:
        """A `verify` in this process, on the shared Spark; returns the table's part of its result."""
        (found,) = self.pipeline.verify(self.full_name(table), spark=self.spark(), **options)["tables"]
        return dict(found)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements on the source."""
        return self.database.execute(*statements)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Query the warehouse."""
        with duckdb.connect(str(self.warehouse), read_only=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            return connection.execute(sql).fetchall()

    def compare(self, table: str, target: str | None = None, key: str = "id") -> Comparison:
        """Source against warehouse, independently of the pipeline."""
        return compare(self.database.server, self.full_name(table), self.warehouse, target, key)


class Silent:
    """Observes a run and prints nothing."""

    def __call__(self, event: events.Event) -> None: ...


@pytest.fixture(scope="session")
def spark() -> Iterator[Callable[[], Spark]]:
    """One Spark for the whole run, started when a test first needs it."""
    started: list[Spark] = []

    def get() -> Spark:
        if not started:
            started.append(Spark("local[2]", name="floodmark tests"))
            started[0].start()
        return started[0]

    yield get
    for one in started:
        one.stop()


def new_workspace(
    folder: Path, database: Database, run: Floodmark, spark: Callable[[], Spark], **sections: Any
) -> Workspace:
    config = {
        "source": {"url": database.url},
        "warehouse": {"url": "duckdb:///warehouse.duckdb"},
        "spark": {"master": "local[2]"},
        "defaults": {"settle_seconds": 0.2},
    }
    workspace = Workspace(folder, database, config, run, spark)
    workspace.write(**sections)
    return workspace


@contextmanager
def lasting_workspace(
    folder: Path, server: DatabaseServer, spark: Callable[[], Spark], **sections: Any
) -> Iterator[Workspace]:
    """A workspace with a fresh database that outlives a test, for module- and session-scoped fixtures."""
    with fresh_database(server) as database:
        yield new_workspace(folder, database, Floodmark(folder), spark, **sections)


@pytest.fixture
def make_workspace(
    tmp_path: Path, floodmark: Floodmark, spark: Callable[[], Spark]
) -> Callable[..., Workspace]:
    """Builds a workspace for any database, for tests with their own server."""

    def make(database: Database, **sections: Any) -> Workspace:
        return new_workspace(tmp_path, database, floodmark, spark, **sections)

    return make


@pytest.fixture
def workspace(make_workspace: Callable[..., Workspace], database: Database) -> Workspace:
    """A workspace whose store is the folder ./lake."""
    return make_workspace(database, store={"url": "./lake"})


@pytest.fixture
def s3_workspace(
    make_workspace: Callable[..., Workspace], database: Database, seaweed: SeaweedFS, prefix: str
) -> Workspace:
    """A workspace whose store is S3."""
    return make_workspace(database, store=seaweed.store(prefix))


@pytest.fixture
def redshift_workspace(s3_workspace: Workspace, redshift: RedshiftStandIn) -> Workspace:
    """A workspace whose store is S3 and whose warehouse is a private schema in the stand-in."""
    redshift.faults.clear()
    s3_workspace.write(
        warehouse={
            "url": redshift.url(),
            "schema": f"t_{secrets.token_hex(4)}",
            "iam_role": redshift.role,
            "tls": {"mode": "disabled"},
        }
    )
    return s3_workspace
