"""How few rows are too few to take the place of many, unless the user insists. Pure."""

from __future__ import annotations

# So small a part of what was there before is not believed without --force; of fewer rows than this anything is.
IMPLAUSIBLE = 0.1
IMPLAUSIBLE_FROM = 100


def implausible(before: int, now: int) -> bool:
    """Whether a snapshot, or what deletes would leave, is too small to be true."""
    return before >= IMPLAUSIBLE_FROM and now < before * IMPLAUSIBLE
