"""The warehouse that a configuration names."""

from __future__ import annotations

from floodmark.config import WarehouseSpec
from floodmark.errors import ConfigError
from floodmark.warehouse import Warehouse


def open_warehouse(spec: WarehouseSpec) -> Warehouse:
    """A warehouse, not connected yet."""
    if spec.kind == "duckdb" and spec.path is not None:
        from floodmark.warehouse.duckdb import DuckDB

        return DuckDB(spec.path, spec.schema)
    raise ConfigError(
        f"warehouse.url: {spec.kind}:// can't be loaded by this version",
        hint="use duckdb:///file; sync --backup-only extracts without a warehouse",
    )
