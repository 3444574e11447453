"""A process that syncs tables which follow the binary log, and dies at one of its writes to the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from floodmark.config.load import load
from floodmark.model.run import SyncOptions, new_run
from floodmark.store.store import Store
from floodmark.sync.run import sync
from tests.conftest import Silent, Workspace

WRITES = "create", "put", "swap", "delete"


def dies(workspace: Workspace, n: int, *tables: str, by: signal.Signals = signal.SIGKILL) -> tuple[int, str]:
    """The exit code of a run that dies around its n-th write, half of them before and half after it, and that write."""
    args = [str(workspace.file), str(n), str(int(by)), *map(workspace.full_name, tables)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.dying_follower", *args], capture_output=True, text=True, timeout=120,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    return done.returncode, done.stderr


def _main(file: str, number: str, by: str, *tables: str) -> int:
    writes = 0

    def dying(name: str) -> Any:
        write = getattr(Store, name)

        def act(self: Store, path: Any, *args: Any, **options: Any) -> Any:
            nonlocal writes
            writes += 1
            mine, at = writes, int(number)
            if mine == at // 2 and not at % 2:
                print(f"before {name} {path}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), int(by))
            found = write(self, path, *args, **options)
            if mine == at // 2 and at % 2:
                print(f"after {name} {path}", file=sys.stderr, flush=True)
                os.kill(os.getpid(), int(by))
            return found

        return act

    for name in WRITES:
        setattr(Store, name, dying(name))
    report = sync(load(Path(file)), tables, False, SyncOptions(), Silent(), new_run())
    return report.exit_code


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
