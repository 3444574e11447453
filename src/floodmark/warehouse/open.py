"""The warehouse that a configuration names."""

from __future__ import annotations

from dataclasses import replace

from floodmark.config import WarehouseSpec
from floodmark.warehouse import Warehouse

# How long a run waits for a DuckDB file that another process has open; a verify lets it go after two seconds.
LOCK_SECONDS = 10.0


def open_warehouse(spec: WarehouseSpec, *, linger: float = 0.0, seconds: float | None = None) -> Warehouse:
    """A warehouse, not connected yet. Its driver is imported only when it is needed.

    `linger`: an embedded one stays open that many seconds for a next use, until it is closed. `seconds`: for whoever
    would rather not know than wait: no connection and no answer takes longer, and nothing is tried again.
    """
    if spec.kind == "duckdb" and spec.path is not None:
        from floodmark.warehouse.duckdb import DuckDB

        patience = LOCK_SECONDS if seconds is None else seconds
        return DuckDB(spec.path, spec.schema, linger=linger, lock_seconds=patience)
    from floodmark.warehouse.redshift import Redshift
    from floodmark.warehouse.redshift_steps import Limits, Transport

    limits = Limits() if seconds is None else Limits(connect=seconds, question=seconds, grace=1.0, attempts=1)
    if spec.statement_timeout is not None:
        limits = replace(limits, statement=spec.statement_timeout)
    transport: Transport
    if spec.transport == "data_api":
        from floodmark.warehouse.redshift_data_api import DataApiTransport

        transport = DataApiTransport(spec, limits)
    else:
        from floodmark.warehouse.redshift_socket import SocketTransport

        transport = SocketTransport(spec, limits)
    return Redshift(
        transport, spec.schema, iam_role=spec.iam_role, limits=limits, large_strings=spec.large_strings
    )
