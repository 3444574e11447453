"""`floodmark_freshness`: up to when each target has everything that its source had, for dbt and the like.

Derived, and only for readers: nothing that moves rows looks at it. A run writes all its targets in one go, also those
that it found unchanged. `as_of` never goes back, even if an older run writes last.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

FRESHNESS = "floodmark_freshness"
COLUMNS = ("target", "source_table", "as_of", "checked_at", "watermark", "commit_n", "run")


@dataclass(frozen=True)
class Freshness:
    """How fresh a target is."""

    target: str
    source_table: str
    as_of: datetime  # all that the source had then is in the target
    checked_at: datetime  # when a sync last looked
    watermark: str | None  # the cursor's own value
    commit_n: int | None
    run: str
