"""Helpers for tests of how far a table may be read: the table, work that stays open, a run's notes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pymysql

from tests.conftest import Workspace
from tests.support.orders import NOTE, create_orders, fill_orders

ORDERS = create_orders(NOTE)
ORDERS_IN_MICROSECONDS = create_orders(NOTE, "DATETIME(6)")
# The application keeps the cursor current, not the server.
ORDERS_BY_HAND = create_orders(NOTE, kept=False, null=True)


def old_rows(rows: int) -> str:
    """A statement that adds rows from long ago."""
    return fill_orders(rows, "seq MINUTE", note="'old'")


@contextmanager
def transaction(workspace: Workspace, *statements: str) -> Iterator[Any]:
    """A connection whose transaction has run the statements and stays open."""
    link = workspace.database.connect()
    try:
        for statement in statements:
            link.cursor().execute(statement)
        yield link
    finally:
        link.close()


@contextmanager
def running(workspace: Workspace, *statements: str) -> Iterator[tuple[Any, int]]:
    """A connection and its id; its last statement runs in the background, and the context waits for it to end."""
    link = workspace.database.connect()
    *first, last = statements
    for statement in first:
        link.cursor().execute(statement)

    def run() -> None:
        with suppress(pymysql.OperationalError):
            link.cursor().execute(last)

    number = link.thread_id()
    aside = threading.Thread(target=run)
    aside.start()
    time.sleep(0.1)
    try:
        yield link, number
    except BaseException:
        workspace.execute(f"KILL {number}")  # it may wait for something that never comes
        raise
    finally:
        aside.join()


def equal(workspace: Workspace, rows: int) -> None:
    found = workspace.compare("orders")
    assert found.equal, found.differences
    assert found.source_rows == rows


def notes(table: dict[str, Any]) -> str:
    return "\n".join(table["notes"])
