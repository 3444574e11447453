"""The side that lets tests/intruder.py loose on a running command, as another user where there is one to be."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import intruder
from tests.stage import descendants

NOBODY = 65534
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin")  # that anybody may run
OTHER_USER = os.getuid() == 0 and PYTHON is not None


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


def stolen(process: int, folders: Sequence[Path] = ()) -> dict[str, bytes]:
    """All that the intruder gets of a process and its children, by where he got it."""
    tree = [process, *(p.pid for p in descendants(process))]
    ports = listening(tree)
    assert len(ports) >= 3, "Py4J's, the RPC's and the block manager's"
    # Without another user to be, only what any user may read is asked for.
    what = {
        "processes": tree if OTHER_USER else [],
        "ports": ports,
        "folders": [str(folder) for folder in folders] if OTHER_USER else [],
    }
    done = subprocess.run(
        [PYTHON if OTHER_USER else sys.executable, "-I", "-", json.dumps(what)],
        input=Path(intruder.__file__).read_text(), env={}, cwd="/", capture_output=True, text=True, timeout=120,
        **({"user": NOBODY, "group": NOBODY, "extra_groups": []} if OTHER_USER else {}),  # type: ignore[arg-type]
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = {place: base64.b64decode(data) for place, data in json.loads(done.stdout).items()}
    found |= {f"/proc/{pid}/cmdline": Path(f"/proc/{pid}/cmdline").read_bytes() for pid in tree}
    return found


def taken_for_objects(found: dict[str, bytes]) -> list[str]:
    """Where what the intruder sent was taken for a serialized object."""
    return [p for p, data in found.items() if b"ObjectInputStream" in data or b"invalid stream" in data]


def blocks(found: dict[str, bytes]) -> dict[str, bytes]:
    """The blocks of Spark's that he was given."""
    return {place: data for place, data in found.items() if data.startswith(b"FETCHED")}
