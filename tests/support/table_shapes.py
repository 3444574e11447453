"""Helpers for tests of tables of many shapes."""

from __future__ import annotations

from typing import Any

from tests.conftest import Workspace

AT = "update_at DATETIME NOT NULL DEFAULT '2025-03-01' ON UPDATE CURRENT_TIMESTAMP"


def shown(row: tuple[Any, ...]) -> str:
    return " | ".join(str(v) for v in row)


def same(workspace: Workspace, table: str, columns: str = "*", target: str | None = None) -> bool:
    """Whether both sides hold the same rows, for columns that both print alike."""
    source = workspace.execute(f"SELECT {columns} FROM `{table}`")
    arrived = workspace.query(f'SELECT {columns} FROM "{target or table}"')
    assert sorted(map(shown, arrived)) == sorted(map(shown, source))
    return True


def configured(workspace: Workspace, table: str, **options: Any) -> None:
    workspace.write(tables={workspace.full_name(table): options})


def refused(workspace: Workspace, *tables: str, **options: Any) -> dict[str, Any]:
    """The error of the one table that fails."""
    report = workspace.sync(*tables, **options).as_json()
    (error,) = [t["error"] for t in report["tables"] if t["error"]]
    return dict(error)
