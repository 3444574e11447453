"""Durable steps of the warehouses: each statement that writes, each COMMIT, the creation of the file."""

from __future__ import annotations

import re
from typing import Any

from labinject.plan import PLAN, once

_WRITES = re.compile(
    r"\s*(INSERT|DELETE|UPDATE|CREATE|ALTER|DROP|TRUNCATE|COPY|MERGE|COMMIT|END)\b", re.IGNORECASE
)


class Watched:
    """A DuckDB connection whose writes are steps, except inside a transaction, where they are not durable yet."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._inside = False
        self._what = "warehouse"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *values: Any) -> Any:
        word = _WRITES.match(sql)
        if sql.strip().upper() == "BEGIN":
            self._inside = True
        if word is None:
            return self._connection.execute(sql, *values)
        end = word[1].upper() in ("COMMIT", "END")
        label = "warehouse COMMIT" if end else f"inside the load: {word[1].upper()}"
        if not self._inside:
            label = f"warehouse {word[1].upper()}"
        done = PLAN.step(label, lambda: self._connection.execute(sql, *values), _lost if end else None)
        if end:
            self._inside = False
        return done

    def executemany(self, sql: str, *values: Any) -> Any:
        return PLAN.step("inside the load: ledger rows", lambda: self._connection.executemany(sql, *values))

    def close(self) -> None:
        """Closing checkpoints into the file, which is a durable step, too."""
        PLAN.step("warehouse close", self._connection.close)


def _lost() -> BaseException:
    import duckdb

    return duckdb.IOException("the laboratory lost the answer to COMMIT")


def install() -> None:
    """Wrap both warehouses; once per process."""
    from floodmark.load.duckdb import file as duckdb_file
    from floodmark.load.redshift import socket as redshift_socket

    if once(duckdb_file.DatabaseFile):
        _duckdb(duckdb_file.DatabaseFile)
        _redshift(redshift_socket.SocketSession)


def _duckdb(kind: Any) -> None:
    connect, place = kind._connect, kind._place

    def connected(self: Any, read_only: bool, *more: Any) -> Any:
        found = connect(self, read_only, *more)
        return found if read_only else Watched(found)

    def placed(self: Any, draft: Any) -> None:
        PLAN.step("warehouse file", lambda: place(self, draft))

    kind._connect, kind._place = connected, placed


def _redshift(kind: Any) -> None:
    run, changed = kind._run, kind._changed

    def ran(self: Any, sql: str) -> Any:
        return _statement(sql, lambda: run(self, sql))

    def did(self: Any, sql: str) -> Any:
        return _statement(sql, lambda: changed(self, sql))

    kind._run, kind._changed = ran, did


def _statement(sql: str, act: Any) -> Any:
    word = _WRITES.match(sql)
    if word is None:
        return act()
    name = word[1].upper()
    return PLAN.step("warehouse COMMIT" if name == "COMMIT" else f"inside the load: {name}", act)
