"""Helpers for tests of `verify`: a workspace with a warehouse that can be changed behind Floodmark's back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from floodmark.model.run import new_run
from floodmark.verify.run import verify
from tests.conftest import Silent, Workspace

# For tests of what doesn't depend on the warehouse: on DuckDB, and with FLOODMARK_LONG=1 on the stand-in as well.
MAINLY_DUCKDB = pytest.mark.parametrize(
    "place", ["duckdb", pytest.param("redshift", marks=pytest.mark.long)], indirect=True
)
READINGS = """CREATE TABLE readings (
  id BIGINT AUTO_INCREMENT PRIMARY KEY, site VARCHAR(20) NOT NULL, value FLOAT, exact DOUBLE, note VARCHAR(40),
  taken DATETIME(6) NOT NULL, seen TIMESTAMP(6) NULL, price DECIMAL(12,4),
  update_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (update_at))"""
FILL = """INSERT INTO readings (id, site, value, exact, note, taken, seen, price, update_at)
  SELECT seq * 3, CONCAT('s', seq % 7), seq / 7e0, seq / 11e0, IF(seq % 5 = 0, NULL, IF(seq % 5 = 1, '', CONCAT('n', seq))),
  '2025-03-01' + INTERVAL seq * 1001 MICROSECOND, '2025-03-01' + INTERVAL seq SECOND, seq / 100,
  '2025-03-01' + INTERVAL (seq DIV 40) SECOND FROM seq_1_to_{n}"""


@dataclass
class Verifying:
    """A workspace, and a way into its warehouse."""

    workspace: Workspace
    change: Callable[..., None]  # runs statements in the warehouse
    schema: str

    def verify(self, table: str = "readings", **options: Any) -> dict[str, Any]:
        """A comparison that must complete; returns its result for the table."""
        found = self.looked(table, **options)
        assert found["error"] is None, found["error"]
        return found

    def looked(self, table: str = "readings", **options: Any) -> dict[str, Any]:
        """A comparison's result for the table, even if it is an error."""
        config = self.workspace.settings
        document, code = verify(
            config, [self.workspace.full_name(table)], Silent(), new_run(),
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
