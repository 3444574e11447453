"""`doctor` on the store, the warehouse and Spark: planted problems, each named by its cause; and it always ends."""

from __future__ import annotations

import re
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import duckdb
import pytest

from floodmark.config.load import StoreSpec
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.conftest import Workspace
from tests.support.doctor_checks import doctor
from tests.support.orders import create_orders, fill_orders
from tests.support.redshift import RedshiftStandIn


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(), fill_orders(3))
    return workspace


# the store


def test_a_usable_bucket_is_left_empty(s3_workspace: Workspace, seaweed: SeaweedFS, prefix: str) -> None:
    answer = doctor(s3_workspace)
    assert answer.all("failure") == []
    assert "only once" in answer.one("store", "create")["detail"]
    assert "to the second" in answer.one("store", "clock")["detail"]
    assert list(Store(StoreSpec(**seaweed.store(prefix))).list("")) == []


def test_a_missing_bucket_is_reported(orders: Workspace, seaweed: SeaweedFS, prefix: str) -> None:
    orders.write(store={**seaweed.store(prefix), "url": f"s3://nowhere/{prefix}"})
    doctor(orders).fails("store", "read", "bucket nowhere does not exist", "create it, or change store.url")


def test_a_read_only_bucket_is_reported(orders: Workspace, seaweed: SeaweedFS, prefix: str) -> None:
    orders.write(store=seaweed.store(prefix, read_only=True))
    answer = doctor(orders)
    answer.fails("store", "create", "access denied", "s3:PutObject")
    assert answer.one("store", "read")["status"] == "ok"
    assert seaweed.list(prefix) == []


def test_wrong_s3_keys_are_reported(orders: Workspace, seaweed: SeaweedFS, prefix: str) -> None:
    orders.write(store={**seaweed.store(prefix), "secret_access_key": "some-wrong-secret"})
    answer = doctor(orders)
    answer.fails("store", "read", "keys are not valid", "store.access_key_id")
    assert "some-wrong-secret" not in str(answer.checks)


def test_a_read_only_folder_is_reported(orders: Workspace) -> None:
    lake = orders.folder / "lake"
    lake.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,ro", "tmpfs", str(lake)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        doctor(orders).fails("store", "create", "no permission to write the store", "read-only file system")
    finally:
        subprocess.run(["umount", "--lazy", str(lake)], check=True)


class _Careless(BaseHTTPRequestHandler):
    """S3 as far as a probe needs it, without a thought for If-None-Match."""

    protocol_version = "HTTP/1.1"
    server: CarelessS3

    def do_PUT(self) -> None:
        self.server.objects[self._key] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def do_GET(self) -> None:
        if "list-type=2" in self.path:
            rows = "".join(
                f"<Contents><Key>{key}</Key><Size>{len(data)}</Size><ETag>e</ETag>"
                "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
                for key, data in self.server.objects.items()
            )
            page = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
            return self._answer(200, page.encode())
        if self._key not in self.server.objects:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        return self._answer(200, self.server.objects[self._key])

    def do_POST(self) -> None:  # ?delete
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        keys = re.findall("<Key>(.*?)</Key>", asked)
        for key in keys:
            self.server.objects.pop(key, None)
        gone = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{gone}</DeleteResult>".encode())

    def do_DELETE(self) -> None:
        self.server.objects.pop(self._key, None)
        self._answer(204, b"")

    def do_HEAD(self) -> None:
        self._answer(200, b"")

    @property
    def _key(self) -> str:
        return self.path.partition("?")[0].removeprefix("/bucket/")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"e"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None: ...


class CarelessS3(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Careless)
        self.objects: dict[str, bytes] = {}


def test_a_store_without_conditional_writes_is_reported(orders: Workspace) -> None:
    with CarelessS3() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = {"url": "s3://bucket/prefix", "endpoint": f"http://127.0.0.1:{server.server_port}"}
        orders.write(store={**store, "access_key_id": "any-key", "secret_access_key": "secret-key"})
        answer = doctor(orders)
        server.shutdown()
    answer.fails("store", "create", "lets an object be created twice", "If-None-Match", "proxy")
    assert answer.one("store", "delete")["status"] == "ok"
    assert server.objects == {}


def test_a_prefix_of_another_warehouse_is_reported(orders: Workspace) -> None:
    orders.synced("orders")
    orders.write(warehouse={"url": "duckdb:///other.duckdb"})
    doctor(orders).fails("store", "pipeline", "belongs to a pipeline into", "needs its own store prefix")


# DuckDB


def test_a_warehouse_opened_by_another_process_is_reported(orders: Workspace) -> None:
    orders.synced("orders")
    hold = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(orders.warehouse)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "ready\n"
        doctor(orders).fails("warehouse", "file", f"is locked by process {holder.pid}", "close it there")
    finally:
        holder.kill()
        holder.communicate()


def test_a_missing_warehouse_folder_and_an_invalid_database_are_reported(orders: Workspace) -> None:
    orders.write(warehouse={"url": "duckdb:///nowhere/warehouse.duckdb"})
    doctor(orders).fails("warehouse", "folder", "there is no folder", "nowhere", "change warehouse.url")
    (orders.folder / "text.duckdb").write_text("no database at all " * 1000)
    orders.write(warehouse={"url": "duckdb:///text.duckdb"})
    doctor(orders).fails("warehouse", "file", "can't be read as a DuckDB database")


def test_an_existing_target_that_cannot_be_altered_is_named_with_what_to_run(orders: Workspace) -> None:
    with duckdb.connect(orders.warehouse) as con:
        con.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    orders.warehouse.chmod(0o644)
    answer = doctor(orders)
    answer.fails("tables", "target", "column id of orders must become wider", "run: BEGIN; CREATE TABLE")
    assert "chmod 600" in answer.one("warehouse", "rights")["hint"]


# Redshift


@pytest.fixture
def redshifted(orders: Workspace, redshift: RedshiftStandIn, seaweed: SeaweedFS, prefix: str) -> Workspace:
    redshift.faults.clear()
    orders.write(
        store=seaweed.store(prefix),
        warehouse={"url": redshift.url(), "iam_role": redshift.role, "tls": {"mode": "disabled"}},
    )
    return orders


def test_a_usable_redshift_shows_its_isolation_and_gets_no_table(
    redshifted: Workspace, redshift: RedshiftStandIn
) -> None:
    schema = f"t_{secrets.token_hex(4)}"
    redshifted.write(warehouse={"schema": schema})
    tables = "SELECT count(*) FROM pg_class WHERE relkind = 'r'"
    before = redshift.execute(tables)
    answer = doctor(redshifted)
    assert answer.all("failure") == []
    assert "SNAPSHOT" in answer.one("warehouse", "isolation")["detail"]
    assert "the first load creates it" in answer.one("warehouse", "schema")["detail"]
    assert redshift.execute(tables) == before
    redshifted.synced("orders")
    assert "loaded" in doctor(redshifted).one("warehouse", "ledger")["detail"]


def test_a_redshift_user_without_privileges_is_reported(
    redshifted: Workspace, redshift: RedshiftStandIn
) -> None:
    user, schema = f"u_{secrets.token_hex(4)}", f"t_{secrets.token_hex(4)}"
    redshift.create_user(user, "loader-secret")
    redshift.execute(f"CREATE SCHEMA {schema}", "REVOKE TEMP ON DATABASE dev FROM PUBLIC")
    try:
        redshifted.write(
            warehouse={
                "url": redshift.url(user, "loader-secret"),
                "schema": schema,
                "iam_role": redshift.role,
            }
        )
        answer = doctor(redshifted)
    finally:
        redshift.execute("GRANT TEMP ON DATABASE dev TO PUBLIC")
    assert answer.all("failure") == ["warehouse: schema", "warehouse: temp tables"]
    assert "may not create tables" in answer.one("warehouse", "schema")["detail"]
    assert 'GRANT TEMP ON DATABASE "dev"' in answer.one("warehouse", "temp tables")["hint"]
    redshifted.write(warehouse={"url": redshift.url(user, "wrong-secret")})
    answer = doctor(redshifted)
    assert answer.all("failure") == ["warehouse: log-in"]
    assert "wrong-secret" not in str(answer.checks)


# Spark


def test_missing_java_is_reported(orders: Workspace, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    answer = doctor(orders, env={"PATH": str(bare), "JAVA_HOME": ""})
    answer.fails("spark", "Java", "Java is not installed", "install Java 17")
    doctor(orders, env={"JAVA_HOME": str(bare)}).fails("spark", "Java", f"JAVA_HOME is {bare}", "JAVA_HOME")


def test_a_task_python_without_our_packages_is_reported(orders: Workspace) -> None:
    orders.write(spark={"conf": {"spark.pyspark.python": "/usr/bin/python3"}})
    if not Path("/usr/bin/python3").exists():
        pytest.skip("this machine has one Python only")
    doctor(orders).fails("spark", "packages", "can't be imported", "spark.pyspark.python")


@pytest.mark.long
def test_executors_are_checked_only_on_request(orders: Workspace) -> None:
    answer = doctor(orders, "--spark")
    assert answer.all("failure") == []
    assert "2 tasks in parallel" in answer.one("spark", "start")["detail"]
    assert "4 tasks ran in 1 executor on 1 host" in answer.one("spark", "tasks")["detail"]
    assert f"tasks on {socket.gethostname()}" in answer.one("spark", "packages")["detail"]
    orders.write(spark={"master": "spark://127.0.0.1:1"})
    answer = doctor(orders)
    answer.fails("spark", "master port", "nothing listens on 127.0.0.1:1")
    assert "--spark" in answer.one("spark", "packages")["detail"]


# time


@contextmanager
def silent() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(100)
        yield listener.getsockname()[1]


def test_doctor_ends_soon_even_if_nothing_answers(orders: Workspace) -> None:
    with silent() as mysql, silent() as s3, silent() as warehouse:
        orders.write(
            source={"url": f"mysql://root:x@127.0.0.1:{mysql}/shop"},
            store={"url": "s3://bucket/prefix", "endpoint": f"http://127.0.0.1:{s3}",
                   "access_key_id": "any-key", "secret_access_key": "secret-key"},
            warehouse={"url": f"redshift://loader:x@127.0.0.1:{warehouse}/dev"},
        )  # fmt: skip
        answer = doctor(orders)
    assert answer.seconds < 20  # 13 for the slowest, and the imports on a busy machine
    assert answer.code == 2
    failed = {c["section"]: c["detail"] for c in answer.checks if c["status"] == "failure"}
    assert "can't be reached" in failed["source"]
    assert "did not answer" in failed["warehouse"]
    assert "did not finish within" in failed["store"]
