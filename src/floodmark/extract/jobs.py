"""The Spark tasks of a plan: each slice with everything its task needs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from floodmark.extract.task import SliceJob
from floodmark.log.fold import State
from floodmark.model.origin import UNKNOWN_SOURCE
from floodmark.model.table import Table
from floodmark.model.window import Slice
from floodmark.plan.decide import Pass, Plan
from floodmark.services import Services

# A table with this few rows to read costs less than a Spark job of its own; fewer if a row may have megabytes.
SMALL_ROWS = 20_000
SMALL_WIDE_ROWS = 1_000
_WIDE = {"mediumtext", "longtext", "mediumblob", "longblob", "json", "geometry"}


def small(table: Table, pieces: Sequence[Slice]) -> bool:
    """Whether the pieces are so quickly read, as far as is known, that other tables may wait for them."""
    wide = any(column.data_type in _WIDE for column in table.columns)
    scans = any(piece.by == "cursor" for piece in pieces) and table.source.cursor_index is None
    few = 0 < sum(piece.rows for piece in pieces) <= (SMALL_WIDE_ROWS if wide else SMALL_ROWS)
    return len(pieces) == 1 and few and not scans


def snapshot_key(state: State) -> bytes:
    """The key of the hashes of a snapshot's rows: nobody who writes rows can guess it."""
    return hashlib.sha256(f"{state.log} {state.described}".encode()).digest()[:16]


def jobs(
    services: Services,
    plan: Plan,
    one: Pass,
    state: State,
    file_rows: int,
    repeated: bool,
) -> list[SliceJob]:
    """The Spark tasks that read the slices of a pass under a claim."""
    can, table = services.config.warehouse.can, plan.table
    hashed = table.mode == "full" and can.embedded
    key = snapshot_key(state) if hashed else None
    return [
        SliceJob(
            source=services.config.source,
            store=replace(services.config.store, copies_to=()),  # a task writes data, not copies
            table=table,
            slice=piece,
            run=services.run,
            claim=state.n,
            max_file_rows=max(file_rows, 1),
            log=state.log,
            window=plan.window.id if plan.window else None,
            # Without an index on the cursor, it may take a full scan to reach the first row.
            read_timeout=60 if table.source.cursor_index else 600,
            limits=can,
            fingerprint=repeated and piece.kind == "snapshot",
            hash_key=key if piece.kind == "snapshot" else None,
            outside=one.outside and piece.outside,
            expected=services.sources.expected(table.name) or UNKNOWN_SOURCE,
        )
        for piece in one.slices
    ]
