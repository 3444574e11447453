"""What another user of the machine gets of a running sync: nothing that is secret, whatever he asks and reads."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from floodmark.testing.services import SeaweedFS
from tests import intruder
from tests.conftest import Workspace
from tests.stage import FILL, ORDERS, descendants, until

# The command, which tells when the environment is changed while there are threads.
WATCHED = """
import os, sys
def hook(event, about):
    if event in ("os.putenv", "os.unsetenv") and len(os.listdir("/proc/self/task")) > 1:
        print("changed:", event, about, file=sys.stderr, flush=True)
sys.addaudithook(hook)
from floodmark.cli import main
main()
"""
NOBODY = 65534
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")  # that anybody may run
OTHER_USER = os.getuid() == 0 and PYTHON is not None


@contextmanager
def resident(workspace: Workspace, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A `sync --every` that has synced once and waits, with its Spark."""
    command = [sys.executable, "-c", WATCHED, "sync", "-t", "orders", "--every", "1h"]
    with (
        open(folder / "err", "w+") as err,
        subprocess.Popen(
            [*command, "--config", str(workspace.folder / "floodmark.yaml")],
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


def listening(processes: list[int]) -> list[int]:
    """The TCP ports on which these processes listen."""
    sockets = set()
    for process in processes:
        for link in Path(f"/proc/{process}/fd").iterdir():
            try:
                sockets.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    rows = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    return sorted({int(r[1].rpartition(":")[2], 16) for r in rows if r[3] == "0A" and r[9] in sockets})


def stolen(process: int, folder: Path) -> dict[str, bytes]:
    """All that the intruder gets of a process and its children."""
    tree = [process, *(p.pid for p in descendants(process))]
    ports = listening(tree)
    assert len(ports) >= 3, "Py4J's, the RPC's and the block manager's"
    # Without another user to be, only what any user may read is asked for.
    what = {"processes": tree if OTHER_USER else [], "ports": ports, "folders": [str(folder)] * OTHER_USER}
    done = subprocess.run(
        [PYTHON if OTHER_USER else sys.executable, "-I", "-", json.dumps(what)],
        input=Path(intruder.__file__).read_text(), env={}, cwd="/", capture_output=True, text=True, timeout=120,
        **({"user": NOBODY, "group": NOBODY, "extra_groups": []} if OTHER_USER else {}),  # type: ignore[arg-type]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {place: base64.b64decode(data) for place, data in json.loads(done.stdout).items()}
    found |= {f"/proc/{pid}/cmdline": Path(f"/proc/{pid}/cmdline").read_bytes() for pid in tree}
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    """Temporary files of the command, below a folder that others may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_no_port_file_or_process_of_a_sync_tells_another_user_a_secret(
    s3_workspace: Workspace, folder: Path
) -> None:
    s3_workspace.execute(ORDERS, FILL.format(n=20))
    secrets = [s3_workspace.database.server.password, SeaweedFS.writer[1]]
    with resident(s3_workspace, folder) as process:
        found = stolen(process.pid, folder)
    assert len([place for place in found if place.endswith(" call")]) >= 3
    assert not [place for place, data in found.items() if data.startswith(b"FETCHED")]
    assert not [place for place, data in found.items() if any(s.encode() in data for s in secrets)]
    # Nothing of what was sent was taken for a serialized object.
    assert not [
        place for place, data in found.items() if b"ObjectInputStream" in data or b"invalid stream" in data
    ]


@pytest.mark.long
def test_the_intruder_knows_how_where_spark_asks_nobody(workspace: Workspace, folder: Path) -> None:
    workspace.execute(ORDERS, FILL.format(n=20))
    workspace.write(spark={"conf": {"spark.authenticate": "false", "spark.broadcast.compress": "false"}})
    with resident(workspace, folder) as process:
        found = stolen(process.pid, folder)
    blocks = {place: data for place, data in found.items() if data.startswith(b"FETCHED")}
    assert any(b"floodmark.tasks" in data for data in blocks.values())
    assert not [p for p, data in blocks.items() if workspace.database.server.password.encode() in data]
    assert [
        place for place, data in found.items() if b"ObjectInputStream" in data or b"invalid stream" in data
    ]
