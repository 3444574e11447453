"""The warehouse that a configuration names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from floodmark.config.load import WarehouseSpec
from floodmark.load.protocol import Warehouse
from floodmark.model.run import Wait

if TYPE_CHECKING:
    from floodmark.load.redshift.steps import Transport

# How long a run waits for a DuckDB file that another process has open: several times what one holds it.
LOCK_SECONDS = 10.0


def open_warehouse(
    spec: WarehouseSpec,
    *,
    linger: float = 0.0,
    seconds: float | None = None,
    waits: Callable[[Wait | None], None] = lambda on: None,
) -> Warehouse:
    """A warehouse, not connected yet; its driver is imported only when needed.

    `linger`: seconds that an embedded warehouse stays open for the next use, unless it is closed sooner.
    `seconds`: for callers that would rather give up than wait; it limits every connection and every answer,
    and nothing is retried. `waits` is called when a wait for someone else's lock begins, and with None when
    it ends.
    """
    if spec.kind == "duckdb" and spec.path is not None:
        from floodmark.load.duckdb.warehouse import DuckDB

        patience = LOCK_SECONDS if seconds is None else seconds
        return DuckDB(spec.path, spec.schema, linger=linger, lock_seconds=patience, waits=waits)
    from floodmark.load.redshift.warehouse import Redshift

    return Redshift(
        transport(spec, seconds),
        spec.schema,
        iam_role=spec.iam_role,
        large_strings=spec.large_strings,
        waits=waits,
    )


def transport(spec: WarehouseSpec, seconds: float | None) -> Transport:
    """The way to a Redshift; `seconds` as above."""
    from floodmark.load.redshift.steps import Limits

    limits = Limits() if seconds is None else Limits(connect=seconds, question=seconds, grace=1.0, attempts=1)
    if spec.statement_timeout is not None:
        limits = replace(limits, statement=spec.statement_timeout)
    if spec.transport == "data_api":
        from floodmark.load.redshift.data_api import DataApiTransport

        return DataApiTransport(spec, limits)
    from floodmark.load.redshift.socket import SocketTransport

    return SocketTransport(spec, limits)
