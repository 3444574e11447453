"""A whole table in one line: the checksum that `verify` compares by, asked of MySQL in one statement.

Two checksums that agree stand for the same rows, as they would reach the target; how likely two tables are to agree by
chance is 2^-60. A checksum says something of a snapshot only when both were read in one transaction.
"""

from __future__ import annotations

import hashlib

from floodmark.compared import Scope, Span, forms
from floodmark.model import Table
from floodmark.mysql import canonical
from floodmark.mysql.connect import Session
from floodmark.mysql.sql import text

# Above these a checksum would take minutes; such tables are read whole as before.
MOST_ROWS = 50_000_000
MOST_BYTES = 20 << 30


def possible(session: Session, table: Table) -> bool:
    """Whether a checksum can be had together with a snapshot: InnoDB alone shows one state to two statements."""
    found = session.rows(
        "SELECT ENGINE, TABLE_ROWS, DATA_LENGTH FROM information_schema.TABLES"
        f" WHERE TABLE_SCHEMA = {text(table.schema)} AND TABLE_NAME = {text(table.table)}"
    )
    if not found or found[0][0] is None or found[0][0].lower() != b"innodb":
        return False
    return int(found[0][1] or 0) < MOST_ROWS and int(found[0][2] or 0) < MOST_BYTES


def checksum(session: Session, table: Table) -> str | None:
    """The rows that a snapshot would have now, in one line; None when MySQL could not look at all of them.

    It begins with what decides how rows look in the target: after a change of that, no checksum is the same.
    """
    question = canonical.digest(Scope(table, forms(table, redshift=False)), Span())
    [(rows, total)] = session.rows(question)
    if session.warnings():
        return None  # a value that was too long for an expression counts as NULL
    recipe = (question, table.fingerprint, table.target, table.overflow, table.zero_dates)
    made = hashlib.sha256("\n".join(recipe).encode()).hexdigest()[:16]
    return f"{made} {int(rows or 0)} {int(total or 0)}"
