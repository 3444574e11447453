"""The warehouse that a configuration names."""

from __future__ import annotations

from floodmark.config import WarehouseSpec
from floodmark.warehouse import Warehouse


def open_warehouse(spec: WarehouseSpec) -> Warehouse:
    """A warehouse, not connected yet. Its driver is imported only when it is needed."""
    if spec.kind == "duckdb" and spec.path is not None:
        from floodmark.warehouse.duckdb import DuckDB

        return DuckDB(spec.path, spec.schema)
    from floodmark.warehouse.redshift import Redshift
    from floodmark.warehouse.redshift_steps import Limits, Transport

    limits = Limits()
    transport: Transport
    if spec.transport == "data_api":
        from floodmark.warehouse.redshift_data_api import DataApiTransport

        transport = DataApiTransport(spec, limits)
    else:
        from floodmark.warehouse.redshift_socket import SocketTransport

        transport = SocketTransport(spec, limits)
    return Redshift(transport, spec.schema, iam_role=spec.iam_role, limits=limits)
