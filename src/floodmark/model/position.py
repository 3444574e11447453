"""Positions in a table: the values by which rows are ordered and found; and in the source's log of changes."""

from __future__ import annotations

from dataclasses import dataclass

# A value of an order or key column as MySQL gives it: int for integer columns, text for all others
# (temporal values with the session in UTC; binary as "0x" and hex digits).
Value = int | str

# A position in a table's change order: the values of its order columns (cursor, then key). A shorter tuple is
# the position after every row with that prefix: (x,) as a low bound means cursor > x.
Position = tuple[Value, ...]

# The values of a row's key columns; None is NULL.
Key = tuple[Value | None, ...]


@dataclass(frozen=True)
class Followed:
    """How far a table has followed the source's log: every change up to this commit of it is in the table's own log."""

    log: str  # the id of the source's log
    n: int  # the commit's number and digest
    digest: str
    place: str  # where that commit ends in the binary log: "binlog.000042:1234"
    at: str | None = (
        None  # when the last transaction before that place was committed: "2025-08-14T16:45:33.123456Z"
    )
    gtid: str | None = None  # the same place for another server
