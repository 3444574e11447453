"""Rows that are read or removed by their keys; and a table's reconcile, which compares all of it and repairs what differs.

A reconcile stands in for a copy: afterwards the table stands where the log of the source, or the cursor, was before it
began. What is written meanwhile is found by the next pass. A crash repeats it, and it finds less to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from floodmark.extract.keys import key_table
from floodmark.log.fold import Progress
from floodmark.model.commit import Batch, Restore
from floodmark.model.errors import ConfigError
from floodmark.model.position import Key
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.window import Intent
from floodmark.plan.decide import Deletion, TablePlan, again
from floodmark.plan.followed import FollowStep, said_doubts
from floodmark.plan.keys import slices
from floodmark.sync import loads
from floodmark.sync.passes import append, read
from floodmark.sync.work import TableRun, hold
from floodmark.verify.compare import check_compared, compare


def reconcile(run: TableRun, table: Table, step: FollowStep) -> None:
    """Compares source and target under our claim, and repairs what differs."""
    if run.asked.backup_only:
        raise ConfigError(
            f"{said_doubts(step)}, so source and target have to be compared, and --backup-only has no target",
            hint="run one sync without --backup-only",
            table=run.name,
        )
    loads.load(run)
    promised = run.state
    if step.followed_to is None:  # up to the position, beyond which the next window reads
        progress = Progress(step.position, started=True, zone=promised.progress.zone)
        promised = replace(promised, progress=progress)
    found = compare(run.services, table, promised)
    check_compared(table, found)
    kept = run.options.deletes == "ignore"
    # Extra rows that the source has exist twice, or their key reads differently.
    keys = (*found.missing, *(key for key, _ in found.different), *found.extra)
    gone = read_keys(run, table, keys, "repair", None if kept else Deletion(found.rows_warehouse))
    if step.followed_to is not None:
        append(run, run.held.draft(Batch, schema=table.fingerprint, followed_to=step.followed_to))
    else:
        append(run, run.held.draft(Restore, position=step.position, note=said_doubts(step)))
    repaired = f"{counted(len(keys) - gone, 'row')} read again, {gone:,} {fate(run)}"
    run.account.note(f"{said_doubts(step)}, so source and target were compared: {repaired}")


def read_keys(
    run: TableRun, table: Table, keys: Sequence[Key], purpose: str, deletion: Deletion | None
) -> int:
    """Reads and commits the rows of these keys under our claim, moving no position; returns how many were removed."""
    before = run.report.rows_deleted
    if keys:
        hold(run, purpose, table)
        pieces = slices(table, key_table(table, keys))
        read(run, TablePlan(Intent(purpose, table), again(table, pieces, deletion=deletion)))
    return run.report.rows_deleted - before


def fate(run: TableRun) -> str:
    """What becomes of rows that leave the target."""
    return "marked as deleted" if run.options.deletes == "soft" else "deleted"
