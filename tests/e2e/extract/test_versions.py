"""Every Spark that users' engines run: the same commands on each of them, on this machine and on a standalone cluster.

The versions come from PyPI into the user's cache, once. Everything else in tests/e2e runs on the newest one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from floodmark.host.temp import cache_folder
from floodmark.spark.pyspark_internals import version_text
from tests.conftest import Workspace
from tests.support.orders import create_orders, fill_orders
from tests.support.spark_cluster import SparkCluster

pytestmark = pytest.mark.long
# Of EMR's runtime 8.0, of Glue 6.0, of Databricks 19, and the newest.
VERSIONS = ("4.0.2", "4.1.1", "4.2.0", "4.3.0")
SECONDS = 900


@pytest.fixture(scope="module", params=VERSIONS)
def engine(request: pytest.FixtureRequest) -> dict[str, str]:
    """An environment in which that version is imported."""
    version = str(request.param)
    if version == version_text():
        return dict(os.environ)
    folder = cache_folder() / "engines" / f"pyspark-{version}"
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.{os.getpid()}")
        get = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            "--target",
            str(part),
            f"pyspark=={version}",
        ]
        got = subprocess.run(get, capture_output=True, text=True)
        if got.returncode:
            pytest.skip(f"pyspark {version} could not be had: {got.stderr.strip()[-200:]}")
        part.rename(folder)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    ask = "from floodmark.spark.pyspark_internals import version_text as v; import pyspark; print(v(), pyspark.__version__)"
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env=environment)
    assert told.stdout.split() == [version, version], told.stderr
    return environment


def home(engine: dict[str, str]) -> Path | None:
    return (
        Path(engine["PYTHONPATH"]) / "pyspark"
        if engine.get("PYTHONPATH") != os.environ.get("PYTHONPATH")
        else None
    )


def begun(workspace: Workspace, engine: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "floodmark", *arguments], cwd=workspace.folder, env=engine,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ran(workspace: Workspace, engine: dict[str, str], *arguments: str) -> int:
    process = begun(workspace, engine, *arguments)
    said = process.communicate(timeout=SECONDS)
    print(arguments, process.returncode, *said)
    return process.returncode


def test_sync_verify_repair_and_a_resident_sync(workspace: Workspace, engine: dict[str, str]) -> None:
    workspace.execute(create_orders(), fill_orders(500))
    workspace.write(defaults={"slice_rows": 100, "settle_seconds": 0.1})
    assert ran(workspace, engine, "sync", "-t", "orders") == 0
    assert workspace.compare("orders").equal
    with duckdb.connect(str(workspace.warehouse)) as warehouse:
        warehouse.execute("DELETE FROM orders WHERE id = 7")
    assert ran(workspace, engine, "verify", "-t", "orders") == 7
    assert ran(workspace, engine, "verify", "-t", "orders", "--repair") == 0
    assert workspace.compare("orders").equal

    resident = begun(workspace, engine, "sync", "-t", "orders", "--every", "1s", "--json")
    try:
        assert resident.stdout is not None
        resident.stdout.readline()  # the first cycle's report
        workspace.execute(
            "INSERT INTO orders (id, amount) SELECT id + 1000000, 1 FROM orders ORDER BY id LIMIT 50"
        )

        loaded = 0
        while loaded < 50:
            line = resident.stdout.readline()
            assert line, resident.communicate()  # it has ended
            loaded += sum(table["rows_loaded"] for table in json.loads(line)["tables"])
        resident.send_signal(signal.SIGTERM)
        resident.communicate(timeout=SECONDS)
    finally:
        resident.kill()
        resident.wait()
    assert resident.returncode == 143
    assert workspace.compare("orders").equal


def test_a_standalone_cluster_of_that_version(s3_workspace: Workspace, engine: dict[str, str]) -> None:
    s3_workspace.execute(create_orders(), fill_orders(300))
    conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    with SparkCluster(workers=2, cores=1, memory="512m", home=home(engine)) as cluster:
        s3_workspace.write(defaults={"slice_rows": 100}, spark={"master": cluster.master.url, "conf": conf})
        assert ran(s3_workspace, engine, "sync", "-t", "orders") == 0
        assert ran(s3_workspace, engine, "verify", "-t", "orders") == 0
    assert s3_workspace.compare("orders").equal
