"""Positions in a table: the values by which rows are ordered and found."""

from __future__ import annotations

# A value of an order or key column as MySQL gives it: int for integer columns, text for all others
# (temporal values with the session in UTC; binary as "0x" and hex digits).
Value = int | str

# A position in a table's change order: the values of its order columns (cursor, then key). A shorter tuple is
# the position after every row with that prefix: (x,) as a low bound means cursor > x.
Position = tuple[Value, ...]

# The values of a row's key columns; None is NULL.
Key = tuple[Value | None, ...]
