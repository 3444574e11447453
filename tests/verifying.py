"""What the tests of `verify` share: a workspace with a warehouse that can be changed behind Floodmark's back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from floodmark.config import load
from floodmark.report import new_run
from floodmark.verify import verify
from tests.conftest import Silent, Workspace


@dataclass
class Verifying:
    """A workspace, and a way into its warehouse."""

    workspace: Workspace
    change: Callable[..., None]  # statements for the warehouse
    schema: str

    def verify(self, table: str = "readings", **options: Any) -> dict[str, Any]:
        """A comparison that comes to an end: what it says of the table."""
        found = self.looked(table, **options)
        assert found["error"] is None, found["error"]
        return found

    def looked(self, table: str = "readings", **options: Any) -> dict[str, Any]:
        """What a comparison says of the table, an error too."""
        config = load(self.workspace.folder / "floodmark.yaml")
        document, code = verify(
            config, [f"{self.workspace.database.name}.{table}"], Silent(), new_run(),
            spark=self.workspace.spark(), **options,
        )  # fmt: skip
        [found] = document["tables"]
        assert found["error"] or (code, found["ok"]) in ((0, True), (7, False))
        return dict(found)

    def found(self, table: str = "readings", **options: Any) -> list[tuple[Any, ...]]:
        """Every finding: kind, key and columns."""
        return [
            (f["kind"], *f["key"], *f.get("columns", ())) for f in self.verify(table, **options)["findings"]
        ]
