"""The whole command in a folder where somebody else has left code and settings: none of it runs, here or in a worker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

from tests.conftest import Workspace
from tests.support.hostile_folder import HostileFolder
from tests.support.orders import create_orders, fill_orders
from tests.support.receiving import receiving


def test_no_code_and_no_settings_are_taken_from_the_working_folder(
    workspace: Workspace, tmp_path: Path
) -> None:
    workspace.execute(create_orders(), fill_orders(20))
    hostile = HostileFolder(tmp_path / "shared")
    with receiving() as receiver:
        env = {"OPENLINEAGE_URL": receiver.url, "FLOODMARK_CONFIG": str(workspace.file)}
        for command in (("sync", "-t", "orders"), ("verify", "-t", "orders"), ("doctor",)):
            done = hostile.run(*command, env=env)
            assert (done.returncode, hostile.marks) == (0, []), (command, done.stdout, done.stderr)
        assert receiver.got
    assert workspace.compare("orders").equal
    with subprocess.Popen(
        [sys.executable, "-m", "floodmark", "--config", str(workspace.file), "serve", "--port", "0"],
        cwd=hostile.folder, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        try:
            assert server.stderr is not None
            address = next(found[0] for line in server.stderr if (found := re.search(r"http://\S+\d", line)))
            with urlopen(
                f"{address}/api/tables/{workspace.full_name('orders')}"
            ) as answer:  # asks the warehouse's ledger
                assert b"success" in answer.read()
        finally:
            server.terminate()
    assert hostile.marks == []
