"""Plausible row counts: the most any table can have, and drops too large to accept without --force. Pure."""

from __future__ import annotations

# More rows than any table has, but still within the integers of MySQL and Arrow.
MOST_ROWS = 10**15
# A drop below this fraction needs --force, unless there were fewer rows than this to begin with.
IMPLAUSIBLE = 0.1
IMPLAUSIBLE_FROM = 100


def implausible(before: int, now: int) -> bool:
    """Whether a snapshot, or the rows left after deletes, are too few to be plausible."""
    return before >= IMPLAUSIBLE_FROM and now < before * IMPLAUSIBLE
