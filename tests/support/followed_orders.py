"""A table of orders that changes at the source, and its target in either warehouse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pytest
import redshift_connector

from floodmark.model.run import SyncOptions
from floodmark.setup.services.compare import compare
from floodmark.sync.preview import plan
from tests.conftest import Workspace
from tests.support.redshift import RedshiftStandIn

ROWS = 2000
# What another warehouse does differently, beyond tests/contract/warehouse/test_schema_changes.py; how the source is read is
# the same for all, and long with the second.
BOTH = pytest.mark.parametrize("orders", ["duckdb", "redshift"], indirect=True)


@dataclass
class Orders:
    """A table of 2,000 orders, and the target that follows it."""

    workspace: Workspace
    server: RedshiftStandIn | None

    @property
    def target(self) -> str:
        return f"{self.workspace.config['warehouse'].get('schema', 'main')}.orders"

    def execute(self, *statements: str) -> None:
        self.workspace.execute(*statements)

    def sync(self, **options: Any) -> dict[str, Any]:
        return self.workspace.synced("orders", **options)

    def refused(self, **options: Any) -> dict[str, Any]:
        (table,) = self.workspace.sync("orders", **options).as_json()["tables"]
        return dict(table)

    def plan(self) -> dict[str, Any]:
        config = self.workspace.settings
        name = self.workspace.full_name("orders")
        return plan(config, name, SyncOptions(dry_run=True)).result.as_json()

    def run(self, sql: str) -> None:
        """A statement of a person in the warehouse."""
        if self.server is None:
            with duckdb.connect(str(self.workspace.warehouse)) as database:
                database.execute(sql)
            return
        connection = redshift_connector.connect(**self.server.options())
        connection.autocommit = True
        connection.cursor().execute(sql)
        connection.close()

    def ask(self, columns: str, where: str = "TRUE") -> list[tuple[Any, ...]]:
        question = f"SELECT {columns} FROM {self.target} WHERE {where} ORDER BY 1"
        return self.server.execute(question) if self.server else self.workspace.query(question)

    def columns(self) -> list[str]:
        schema, table = self.target.split(".")
        question = (
            f"SELECT column_name FROM information_schema.columns WHERE table_schema = '{schema}' "
            f"AND table_name = '{table}' ORDER BY ordinal_position"
        )
        found = self.server.execute(question) if self.server else self.workspace.query(question)
        return [name for (name,) in found]

    def differences(self) -> Sequence[str]:
        name = self.workspace.full_name("orders")
        source = self.workspace.database.server
        found = compare(source, name, self.server or self.workspace.warehouse, self.target)
        assert found.equal or found.differences
        return found.differences


def notes(report: dict[str, Any]) -> str:
    return " ".join(report["notes"])
