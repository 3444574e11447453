"""Helpers for the tests of `doctor`: the real command's answer, by section and name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.conftest import Workspace


@dataclass(frozen=True)
class Answer:
    """One run of `doctor --json`."""

    code: int
    checks: list[dict[str, Any]]
    stderr: str
    seconds: float

    def all(self, status: str) -> list[str]:
        """The names of the checks with a given status, each with its section."""
        return [f"{c['section']}: {c['name']}" for c in self.checks if c["status"] == status]

    def one(self, section: str, name: str, table: str | None = None) -> dict[str, Any]:
        """The one check of that name."""
        found = [c for c in self.checks if (c["section"], c["name"]) == (section, name)]
        found = [c for c in found if table is None or (c["table"] or "").endswith(f".{table}")]
        assert len(found) == 1, (found, self.checks)
        return found[0]

    def fails(self, section: str, name: str, *words: str) -> None:
        """Assert that exactly this check failed, with these words."""
        assert self.all("failure") == [f"{section}: {name}"], self.checks
        check = self.one(section, name)
        said = f"{check['detail']} {check['hint'] or ''}"
        assert all(word in said for word in words), said
        assert self.code == 2
        assert self.stderr == ""

    def warns(self, section: str, name: str, *words: str, table: str | None = None) -> None:
        """Assert that this check warns, with these words, and that none failed."""
        check = self.one(section, name, table)
        said = f"{check['detail']} {check['hint'] or ''}"
        assert check["status"] == "warning", check
        assert all(word in said for word in words), said
        assert (self.code, self.all("failure")) == (0, []), self.checks


def doctor(workspace: Workspace, *args: str, env: Mapping[str, str] | None = None) -> Answer:
    """Runs the real command."""
    result = workspace.run("doctor", "--json", *args, env=env, timeout=200)
    document = result.json
    assert document["ok"] == (result.code == 0)
    assert sum(document["counts"].values()) == len(document["checks"])
    return Answer(result.code, document["checks"], result.stderr, document["seconds"])
