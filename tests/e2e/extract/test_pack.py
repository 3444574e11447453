"""`floodmark pack` on a standalone cluster whose Python has nothing of ours: the archive brings all that tasks need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import floodmark
from floodmark.setup import pack as packing
from floodmark.setup.pack import JOB, Platform, pack
from floodmark.spark.jvm import spark_home
from tests.conftest import Workspace
from tests.support.orders import create_orders, fill_orders
from tests.support.spark_cluster import SparkCluster

pytestmark = pytest.mark.long
HIDDEN = [Path(sys.prefix).resolve(), Path(floodmark.__file__).resolve().parents[1]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster(workers=2, cores=1, memory="512m", hidden=HIDDEN) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executors' Python: with no package at all."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    for name in ("floodmark", "pyarrow", "pymysql", "pyspark"):
        asked = subprocess.run([python, "-c", f"import {name}"], capture_output=True, cwd=folder, env={})
        assert b"ModuleNotFoundError" in asked.stderr
    return python


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LEVEL", 1)


def conf(archive: Path, bare: Path) -> dict[str, str]:
    return {
        "spark.archives": f"{archive}#floodmark",
        "spark.pyspark.python": "./floodmark/bin/python",
        "spark.executorEnv.FLOODMARK_PYTHON": str(bare),
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
    }


def submitted(workspace: Workspace, master: str, settings: dict[str, str], job: Path) -> Any:
    """`spark-submit … floodmark_job.py --json sync --all`."""
    given = {**settings, "spark.pyspark.driver.python": sys.executable}
    options = [part for name, value in given.items() for part in ("--conf", f"{name}={value}")]
    program = str(spark_home() / "bin" / "spark-submit")
    return subprocess.run(
        [program, "--master", master, *options, str(job), "--json", "sync", "--all"],
        cwd=workspace.folder, capture_output=True, text=True, timeout=900, env=dict(os.environ),
    )  # fmt: skip


def test_a_submitted_sync_runs_on_machines_that_have_only_what_the_archive_ships(
    s3_workspace: Workspace, cluster: SparkCluster, bare: Path, tmp_path: Path, quickly: None
) -> None:
    s3_workspace.execute(create_orders(), fill_orders(300))
    s3_workspace.write(defaults={"slice_rows": 100})
    made = pack(tmp_path / "floodmark.tar.gz")
    assert made.compiled and made.job == tmp_path / JOB
    done = submitted(s3_workspace, cluster.master.url, conf(made.archive, bare), made.job)
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert [table["rows_loaded"] for table in report["tables"]] == [300]
    assert s3_workspace.compare("orders").equal
    unpacked = [path for worker in cluster.workers for path in worker.work.glob("*/*/floodmark/bin/python")]
    assert unpacked  # the tasks ran there, and not in the driver


def test_a_zip_serves_as_well_and_also_without_spark_submit(
    s3_workspace: Workspace, cluster: SparkCluster, bare: Path, tmp_path: Path, quickly: None
) -> None:
    s3_workspace.execute(create_orders(), fill_orders(100))
    settings = conf(pack(tmp_path / "floodmark.zip").archive, bare)
    s3_workspace.write(spark={"master": cluster.master.url, "conf": settings})
    done = s3_workspace.run("sync", "-t", "orders", timeout=900)
    assert done.code == 0, done.stderr
    assert s3_workspace.compare("orders").equal


def test_an_archive_for_another_machine_is_a_mistake_and_says_so(
    s3_workspace: Workspace,
    cluster: SparkCluster,
    bare: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s3_workspace.execute(create_orders(), fill_orders(10))
    monkeypatch.setattr(packing, "needed", lambda *_: [])  # it is refused before a package is looked for
    made = pack(tmp_path / "other.tar.gz", target=Platform("3.11", "Linux", "sparc64"))
    s3_workspace.write(spark={"master": cluster.master.url, "conf": conf(made.archive, bare)})
    done = s3_workspace.run("--quiet", "sync", "-t", "orders", timeout=900)
    assert done.code == 2, done.stderr
    assert "archive is for Python 3.11 on Linux sparc64" in done.stderr and len(done.stderr.splitlines()) == 2
