"""Rows that are read or removed by their keys; and a table's reconcile, which compares all of it and repairs what differs.

A reconcile stands in for a copy: afterwards the table stands where the log of the source, or the cursor, was before it
began. What is written meanwhile is found by the next pass. A crash repeats it, and it finds less to do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from floodmark.log.fold import Progress
from floodmark.model.commit import Batch, Restore
from floodmark.model.errors import ConfigError
from floodmark.model.position import Key
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.window import Intent
from floodmark.plan.decide import TablePlan, again
from floodmark.plan.followed import FollowStep, said_doubts
from floodmark.sync import deletes, loads
from floodmark.sync.passes import append, read, remove
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
    there, absent = deletes.to_repair(run.services, table, found)
    read_keys(run, table, there, "repair")
    kept = run.options.deletes == "ignore"
    leaving = set(absent) & set(found.outside) if kept else absent
    gone = remove_keys(run, table, tuple(leaving), found.rows_warehouse, "repair", always=not kept)
    if step.followed_to is not None:
        append(run, run.held.draft(Batch, schema=table.fingerprint, followed_to=step.followed_to))
    else:
        append(run, run.held.draft(Restore, position=step.position, note=said_doubts(step)))
    repaired = f"{counted(len(there), 'row')} read again, {gone:,} {fate(run)}"
    run.account.note(f"{said_doubts(step)}, so source and target were compared: {repaired}")


def read_keys(run: TableRun, table: Table, keys: Sequence[Key], purpose: str) -> None:
    """Reads and commits the rows of these keys under our claim; they move no position."""
    if pieces := deletes.slices(keys):
        hold(run, purpose, table)
        read(run, TablePlan(Intent(purpose, table), again(table, pieces)))


def remove_keys(
    run: TableRun, table: Table, keys: Sequence[Key], rows: int, purpose: str, *, always: bool = False
) -> int:
    """Commits deletes for those keys that the source lacks when queried now; returns their number.

    `rows` is the warehouse's row count. With `always` there is a commit even without deletes, to record
    the time.
    """
    if not keys and not always:
        return 0
    began = time.monotonic()
    hold(run, purpose, table)
    absent = deletes.lacking(run.services, table, keys, rows, run.asked.force)
    if absent.num_rows or always:
        remove(run, table, absent, absent.num_rows, began=began)
    return absent.num_rows


def fate(run: TableRun) -> str:
    """What becomes of rows that leave the target."""
    return "marked as deleted" if run.options.deletes == "soft" else "deleted"
