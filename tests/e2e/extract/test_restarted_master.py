"""A resident sync outlives the master of its cluster: the restarted one does not know its application any more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.conftest import Workspace
from tests.support.held_sync import until
from tests.support.orders import create_orders, fill_orders
from tests.support.spark_cluster import SparkCluster

pytestmark = pytest.mark.long
SECONDS = 600
# As the command, but it gives up a cluster without executors after five seconds instead of a minute.
IMPATIENT = (
    "import sys; from floodmark.spark import context; context.FORSAKEN = 5.0; "
    "from floodmark.cli.main import main; sys.argv = ['floodmark', *sys.argv[1:]]; sys.exit(main())"
)


@contextmanager
def resident(workspace: Workspace, reports: list[Any]) -> Iterator[subprocess.Popen[str]]:
    """A resident sync whose reports end up in a list."""
    command = [sys.executable, "-c", IMPATIENT, "sync", "-t", "orders", "--every", "1s", "--json"]
    process = subprocess.Popen(
        command,
        cwd=workspace.folder,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            reports.append(json.loads(line))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        reader.join(60)


def rows_loaded(reports: list[Any]) -> int:
    return sum(table["rows_loaded"] for report in list(reports) for table in report["tables"])


def test_a_resident_sync_goes_on_after_its_master_was_restarted(s3_workspace: Workspace) -> None:
    s3_workspace.execute(create_orders(), fill_orders(100))
    conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
    reports: list[Any] = []
    with SparkCluster(workers=2, cores=1, memory="512m") as cluster:
        s3_workspace.write(
            defaults={"settle_seconds": 0.1}, spark={"master": cluster.master.url, "conf": conf}
        )
        with resident(s3_workspace, reports) as process:
            until(lambda: rows_loaded(reports) == 100 or process.poll() is not None, SECONDS)
            cluster.master.kill()
            cluster.master.start()
            s3_workspace.execute("INSERT INTO orders (id, amount) SELECT id + 1000, 1 FROM orders")
            until(lambda: rows_loaded(reports) == 200 or process.poll() is not None, SECONDS)
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 143
    assert s3_workspace.compare("orders").equal
