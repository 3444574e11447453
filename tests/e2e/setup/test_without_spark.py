"""Floodmark where pyspark is not installed, or is one that is too old: only what reads tables needs it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import Workspace
from tests.support.orders import create_orders, fill_orders
from tests.support.without_spark import ran, without_spark


def test_without_pyspark_everything_works_that_reads_no_table(workspace: Workspace, tmp_path: Path) -> None:
    workspace.execute(create_orders(), fill_orders(10))
    assert workspace.synced("orders")["ok"]
    command, table = without_spark(tmp_path), workspace.full_name("orders")
    works = (
        f"watermark get -t {table}", "watermark list", f"plan -t {table}", f"sync --redshift-only -t {table}",
        "report -o report.html",
    )  # fmt: skip
    for line in works:
        done = ran(command, workspace.folder, *line.split())
        assert done.returncode == 0, (line, done.stderr)
    for line in ("sync --all", f"verify -t {table}", "demo"):
        done = ran(command, workspace.folder, *line.split())
        assert done.returncode == 2, (line, done.stderr)
        assert "pyspark is not installed" in done.stderr and "floodmark[spark]" in done.stderr
        assert len(done.stderr.splitlines()) <= 2, done.stderr


def test_a_pyspark_that_is_too_old_is_named_with_what_to_install(
    workspace: Workspace, tmp_path: Path
) -> None:
    workspace.execute(create_orders(), fill_orders(10))
    command = without_spark(tmp_path, "3.5.9")
    done = ran(command, workspace.folder, "sync", "--all")
    assert done.returncode == 2, done.stderr
    assert "pyspark 3.5 is too old" in done.stderr and "pip install" in done.stderr
    assert len(done.stderr.splitlines()) <= 2, done.stderr
    checks = json.loads(ran(command, workspace.folder, "doctor", "--json").stdout)["checks"]
    spark = {one["name"]: one for one in checks if one["section"] == "spark"}
    assert spark["Spark"]["status"] == "failure" and "3.5" in spark["Spark"]["detail"]
    assert spark["packages"]["status"] == "skipped"
