"""Floodmark on someone else's Spark: a session of this process, or that of spark-submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from floodmark.spark.jvm import spark_home
from tests.conftest import Workspace
from tests.support.spark_cluster import BRIEFLY

pytestmark = pytest.mark.e2e
JOB = Path(__file__).parents[3] / "docs" / "examples" / "floodmark_job.py"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": BRIEFLY,
}
ENVIRONMENT = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LAUNCHER_OPTS": BRIEFLY}


def prepared(workspace: Workspace) -> None:
    workspace.database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), update_at DATETIME NOT NULL, KEY (update_at))",
        "INSERT INTO t VALUES (1, 'a', '2025-06-01'), (2, 'b', '2025-06-02')",
    )


def test_a_spark_session_that_is_passed_or_already_active_is_used_and_left_running(
    workspace: Workspace,
) -> None:
    prepared(workspace)
    script = f"""
        import json, logging, threading
        from pyspark.sql import SparkSession
        from floodmark import Pipeline
        builder = SparkSession.builder.master("local[2]")
        for name, value in {SETTINGS!r}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        level = logging.getLogger("py4j").level
        name = "{workspace.full_name("t")}"
        pipeline = Pipeline("floodmark.yaml", spark=session)
        first = pipeline.sync(name)["tables"][0]["rows_loaded"]
        pipeline.watermark_reset(name)
        again = Pipeline("floodmark.yaml").sync(name)["tables"][0]["rows_loaded"]  # nobody handed it over
        assert logging.getLogger("py4j").level == level
        assert not [t.name for t in threading.enumerate() if t.name == "reports"]
        print(json.dumps([first, again, session.sparkContext.parallelize(range(5), 1).count()]))
        session.stop()
        try:
            pipeline.sync(name)
        except Exception as error:
            print(json.dumps([type(error).__name__, str(error)]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=workspace.folder, capture_output=True, text=True, timeout=300,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    counts, stopped = map(json.loads, done.stdout.splitlines())
    assert counts == [2, 2, 5]
    assert stopped[0] == "ConfigError" and "has been stopped" in stopped[1]


def test_under_spark_submit_the_submitted_spark_runs_the_slices(workspace: Workspace) -> None:
    prepared(workspace)
    workspace.write(spark={"master": "spark://127.0.0.1:1"})  # the submitted settings override it
    conf = [part for name, value in SETTINGS.items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]", *conf, str(JOB), "--json", "sync", "--all"],
        cwd=workspace.folder, capture_output=True, text=True, timeout=300,
        env={**ENVIRONMENT, "PYSPARK_DRIVER_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert [t["rows_loaded"] for t in report["tables"]] == [2]
    assert workspace.compare("t").equal


@pytest.mark.long
def test_a_child_process_of_a_submitted_driver_starts_its_own_spark(workspace: Workspace) -> None:
    """It inherits the address of the driver's JVM, in which its parent has a context already."""
    prepared(workspace)
    job = workspace.folder / "job.py"
    job.write_text(
        textwrap.dedent("""
        import subprocess, sys
        from pyspark import SparkContext
        with SparkContext():
            sys.exit(subprocess.run([sys.executable, "-m", "floodmark", "sync", "--all"]).returncode)
        """)
    )
    conf = [part for name, value in SETTINGS.items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [str(spark_home() / "bin" / "spark-submit"), "--master", "local[1]", *conf, str(job)],
        cwd=workspace.folder, capture_output=True, text=True, timeout=300,
        env={**ENVIRONMENT, "PYSPARK_DRIVER_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert workspace.compare("t").equal


@pytest.mark.long
def test_a_pyspark_whose_inside_we_don_t_know_is_started_by_its_own_launcher(workspace: Workspace) -> None:
    prepared(workspace)
    script = """
        import sys
        from floodmark.spark import pyspark_internals as internals, jvm
        internals.KNOWN = ((4, 0), (4, 0))
        jvm.Jvm.start = None  # our own way must not be gone
        from floodmark.cli.main import main
        sys.exit(main(["sync", "--all"]) or main(["verify", "--all"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=workspace.folder, capture_output=True, text=True, timeout=900,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert workspace.compare("t").equal
