"""What tests of how far a table may be read share: its table, work that stays open, what a run said."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pymysql

from tests.conftest import Workspace

ORDERS = """CREATE TABLE orders (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(40),
  update_at DATETIME{digits} NOT NULL DEFAULT CURRENT_TIMESTAMP{digits} ON UPDATE CURRENT_TIMESTAMP{digits},
  KEY (update_at))"""
# The same, kept current by the application and not by the server.
BY_HAND = """CREATE TABLE orders (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(40), update_at DATETIME, KEY (update_at))"""
OLD = (
    "INSERT INTO orders (note, update_at) SELECT 'old', '2025-03-01' + INTERVAL seq MINUTE FROM seq_1_to_{n}"
)


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
    """A connection, and its number, that runs the last statement aside; leaving waits for that to end."""
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
        workspace.execute(f"KILL {number}")  # what it waits for may never come
        raise
    finally:
        aside.join()


def equal(workspace: Workspace, rows: int) -> None:
    found = workspace.compare("orders")
    assert found.equal, found.differences
    assert found.source_rows == rows


def notes(table: dict[str, Any]) -> str:
    return "\n".join(table["notes"])
