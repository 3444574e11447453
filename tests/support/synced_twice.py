"""Helpers for tests of a table's past: a table that was synced twice, and the command line in its folder."""

from __future__ import annotations

import json
from typing import Any

import pytest

from floodmark.cli.main import main
from floodmark.log.log import Log
from floodmark.store.store import Store
from tests.conftest import Workspace


class Past:
    """A table, its pipeline, and the command line in its folder."""

    def __init__(
        self, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        monkeypatch.chdir(workspace.folder)
        self.workspace, self.capsys = workspace, capsys
        self.name = workspace.full_name("orders")
        self.pipeline = workspace.pipeline
        self.store = Store(workspace.settings.store)
        self.log = Log(self.store, self.name)

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run a `watermark` command in this process; returns what it printed."""
        self.capsys.readouterr()
        found = main(["watermark", *arguments])
        out, err = self.capsys.readouterr()
        assert found == code, out + err
        return out + err

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        self.capsys.readouterr()
        found = main(["watermark", *arguments, "--json"])
        out, err = self.capsys.readouterr()
        assert found == code, out + err
        return dict(json.loads(out))

    def kinds(self, *arguments: str, code: int = 7) -> list[str]:
        """The kinds of validate's findings."""
        document = self.json("validate", "-t", self.name, *arguments, code=code)
        (table,) = document["tables"]
        assert document["ok"] is (code == 0) and table["table"] == self.name
        return [f["kind"] for f in table["findings"]]

    def add(self, rows: int = 10) -> None:
        """Add rows to the source, until the test is over."""
        newest = "(SELECT MAX(update_at) FROM (SELECT update_at FROM orders) AS o)"
        self.workspace.execute(
            f"INSERT INTO orders (amount, update_at) SELECT seq, {newest} + INTERVAL seq SECOND FROM seq_1_to_{rows}"
        )

    def objects(self, prefix: str) -> list[str]:
        return [o.path for o in self.store.list(prefix) if self.name in o.path]
