"""The Spark tasks of a plan: each slice with everything its task needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from floodmark.commit.fold import State
from floodmark.extract.task import SliceJob
from floodmark.model.window import Slice
from floodmark.plan.decide import Plan
from floodmark.services.mysql.convert import UNLIMITED, redshift
from floodmark.services.run import Services


def jobs(
    services: Services, plan: Plan, pieces: Sequence[Slice], state: State, file_rows: int, repeated: bool
) -> list[SliceJob]:
    """The Spark tasks that read the pieces of a table under a claim."""
    spec, table = services.config.warehouse, plan.table
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
            limits=redshift(spec.large_strings) if spec.kind == "redshift" else UNLIMITED,
            fingerprint=repeated and piece.kind == "snapshot",
        )
        for piece in pieces
    ]
