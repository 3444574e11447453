"""What another user of the machine gets of a running sync: nothing that is secret, whatever he asks and reads."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from floodmark.setup.services.s3 import SeaweedFS
from tests.conftest import Workspace
from tests.support.held_sync import until
from tests.support.intrusion import blocks, stolen, taken_for_objects
from tests.support.orders import create_orders, fill_orders

# The command, reporting any change of the environment while there are threads.
WATCHED = """
import os, sys
def hook(event, about):
    if event in ("os.putenv", "os.unsetenv") and len(os.listdir("/proc/self/task")) > 1:
        print("changed:", event, about, file=sys.stderr, flush=True)
sys.addaudithook(hook)
from floodmark.cli.main import main
main()
"""


@contextmanager
def resident(workspace: Workspace, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A `sync --every` that has synced once and waits, with its Spark."""
    command = [sys.executable, "-c", WATCHED, "sync", "-t", "orders", "--every", "1h"]
    with (
        open(folder / "err", "w+") as err,
        subprocess.Popen(
            [*command, "--config", str(workspace.file)],
            stdout=subprocess.PIPE, stderr=err, text=True, env={**os.environ, "TMPDIR": str(folder)},
        ) as process,
    ):  # fmt: skip
        try:
            assert process.stdout is not None
            until(lambda: process.poll() is not None or Path(workspace.warehouse).exists(), 60)
            assert "orders" in process.stdout.readline()
            yield process
        finally:
            process.terminate()
            process.wait(30)
        err.seek(0)
        assert "changed:" not in err.read()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Temporary files of the command, below a folder that others may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_no_port_file_or_process_of_a_sync_reveals_a_secret_to_another_user(
    s3_workspace: Workspace, folder: Path
) -> None:
    s3_workspace.execute(create_orders(), fill_orders(20))
    secrets = [s3_workspace.database.server.password, SeaweedFS.writer[1]]
    with resident(s3_workspace, folder) as process:
        found = stolen(process.pid, [folder])
    assert len([place for place in found if place.endswith(" call")]) >= 3
    assert blocks(found) == {}
    assert not [place for place, data in found.items() if any(s.encode() in data for s in secrets)]
    assert taken_for_objects(found) == []


@pytest.mark.long
def test_the_intruder_succeeds_if_spark_requires_no_authentication(
    workspace: Workspace, folder: Path
) -> None:
    workspace.execute(create_orders(), fill_orders(20))
    workspace.write(spark={"conf": {"spark.authenticate": "false", "spark.broadcast.compress": "false"}})
    with resident(workspace, folder) as process:
        found = stolen(process.pid, [folder])
    given = blocks(found)
    assert any(b"floodmark.spark.job" in data for data in given.values())
    assert not [p for p, data in given.items() if workspace.database.server.password.encode() in data]
    assert taken_for_objects(found)
