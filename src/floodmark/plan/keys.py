"""Keys cut into slices: how much one task reads by key. Pure."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from floodmark.model.keys import runs
from floodmark.model.table import Table
from floodmark.model.window import Slice

# Most keys that one task looks up; a small number is spread over several tasks.
KEYS_PER_SLICE = 20_000
SPREAD = 8
FEWEST = 500
# So many keys of a range cost a task as much as one that is looked up.
RANGED = 10


def slices(table: Table, keys: pa.Table) -> tuple[Slice, ...]:
    """Distinct keys as slices, one per task."""
    costs = np.full(keys.num_rows, RANGED)
    for begin, end in runs(table, keys):
        costs[begin:end] = 1
    ends = np.cumsum(costs)
    total = int(ends[-1]) if len(ends) else 0
    each = min(KEYS_PER_SLICE, max(FEWEST, -(-total // (RANGED * SPREAD)))) * RANGED
    edges = np.searchsorted(ends, np.arange(0, total, each), side="right")
    parts = pairwise([*edges, keys.num_rows])
    return tuple(
        # A slice of an Arrow table would take all of it along into the task.
        Slice("keys", n, keys=keys.take(np.arange(begin, end)), rows=int(end - begin))
        for n, (begin, end) in enumerate(parts)
    )
