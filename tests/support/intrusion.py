"""Lets tests/support/intruder.py loose on a running command, as another user if possible."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import intruder
from tests.support.held_sync import descendants

NOBODY = 65534
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")  # one that any user may run
OTHER_USER = os.getuid() == 0 and PYTHON is not None


def listening(processes: list[int]) -> list[int]:
    """The TCP ports that these processes listen on."""
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


def stolen(process: int, folders: Sequence[Path] = ()) -> dict[str, bytes]:
    """Everything the intruder gets out of a process and its children, by where it came from."""
    tree = [process, *(p.pid for p in descendants(process))]
    ports = listening(tree)
    assert len(ports) >= 3, "Py4J's, the RPC's and the block manager's"
    # If we can't become another user, try only what any user may read.
    what = {
        "processes": tree if OTHER_USER else [],
        "ports": ports,
        "folders": [str(folder) for folder in folders] if OTHER_USER else [],
    }
    as_nobody: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    done = subprocess.run(
        [PYTHON if PYTHON and OTHER_USER else sys.executable, "-I", "-", json.dumps(what)],
        input=Path(intruder.__file__).read_text(), env={}, cwd="/", capture_output=True, text=True, timeout=120,
        **(as_nobody if OTHER_USER else {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {place: base64.b64decode(data) for place, data in json.loads(done.stdout).items()}
    found |= {f"/proc/{pid}/cmdline": Path(f"/proc/{pid}/cmdline").read_bytes() for pid in tree}
    return found


def taken_for_objects(found: dict[str, bytes]) -> list[str]:
    """Where the intruder's bytes were deserialized as an object."""
    return [p for p, data in found.items() if b"ObjectInputStream" in data or b"invalid stream" in data]


def blocks(found: dict[str, bytes]) -> dict[str, bytes]:
    """The Spark blocks that the intruder got."""
    return {place: data for place, data in found.items() if data.startswith(b"FETCHED")}
