"""Consequences of a source clock that was set back, or whose zone has changed, since rows were read. Pure.

Rows written since then may be before the watermark. They are read again by key; a table without a key gets a
note.
"""

from __future__ import annotations

from floodmark.commit.fold import State
from floodmark.model import zones as clock
from floodmark.model.errors import DataError
from floodmark.model.table import Table
from floodmark.model.zones import FUTURE_SLACK
from floodmark.plan.bound import Reading, Settled
from floodmark.plan.overlap import reaches


def clock_notes(reading: Reading, settled: Settled) -> list[str]:
    """Notes on a clock that was set back; refuses if rows would surely be missing and can't be read again."""
    table, state = reading.table, reading.state
    if settled.zone is not None and settled.zone.others and not table.key:
        raise DataError(
            f"{clock.zone_change(settled.zone)}: rows written since may be before the watermark",
            hint="the table has no key, so they alone can't be read again: empty the target and reset the table "
            f"with --force, or continue without them: floodmark watermark set -t {table.name} with the time of the watermark",
            table=table.name,
        )
    check_not_in_the_future(table, state, settled)
    if not settled.back:
        return []
    said = f"the source's clock was set back by {settled.back:,.0f} s since the watermark, measured by this machine's clock"
    if table.key:
        return [f"{said}: rows from {settled.zone_shift} on are read again"]
    if (
        state.progress.bound is not None
        and settled.bound is not None
        and settled.bound < state.progress.bound
    ):
        raise DataError(
            f"{said}: rows written since may be before the watermark",
            hint="the table has no key, so they alone can't be read again: reset the table with --force, or "
            f"continue without them: floodmark watermark set -t {table.name} with the time of the watermark",
            table=table.name,
        )
    return [f"{said}: rows written in between may be before the watermark, and there is no key to merge by"]


def check_not_in_the_future(table: Table, state: State, settled: Settled) -> None:
    """Refuses a watermark in the future, as set by an earlier version that took a clock for a counter."""
    if not table.recipe.unix or state.position is None or settled.bound is None:
        return
    if reaches(state.position[0], clock.count(settled.bound + FUTURE_SLACK, table.recipe.unix)):
        raise DataError(
            f"the watermark {state.position[0]}, as Unix time in {table.recipe.unix}, is in the future: rows written since were left out",
            hint=f"read the table again: floodmark watermark reset -t {table.name} --mysql-only",
            table=table.name,
        )
