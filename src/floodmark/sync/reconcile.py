"""Rows that are read or removed by their keys; and a table's reconcile, which compares all of it and repairs what differs.

A reconcile stands in for a copy: afterwards the table stands where the log of the source, or the cursor, was before it
began. What is written meanwhile is found by the next pass. A crash repeats it, and it finds less to do.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from floodmark.extract.keys import key_table, portions
from floodmark.extract.keys import read_keys as read_log_keys
from floodmark.log.fold import Progress
from floodmark.model.changes import DoesNotFit
from floodmark.model.commit import Batch, Restore
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.position import Key
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.window import Intent
from floodmark.plan.decide import Deletion, TablePlan, again
from floodmark.plan.followed import Doubt, FollowStep, said_doubts
from floodmark.plan.keys import slices
from floodmark.plan.reread import carrier
from floodmark.sync import loads
from floodmark.sync.passes import append, read
from floodmark.sync.work import TableRun, hold
from floodmark.verify.compare import check_compared, compare

logger = logging.getLogger("floodmark")


def reconcile(run: TableRun, table: Table, step: FollowStep) -> None:
    """Compares source and target under our claim, and repairs what differs."""
    if run.asked.backup_only:
        raise ConfigError(
            f"{said_doubts(step)}, so source and target have to be compared, and --backup-only has no target",
            hint="run one sync without --backup-only",
            table=run.name,
        )
    suits = _bring_columns(run, table)
    loads.load(run)
    promised = run.state
    if step.followed_to is None:  # up to the position, beyond which the next window reads
        progress = Progress(step.position, started=True, zone=promised.progress.zone)
        promised = replace(promised, progress=progress)
    found = compare(run.services, table, promised, only_keys=not suits)
    check_compared(table, found)
    kept = run.options.deletes == "ignore"
    # The log itself says that a TRUNCATE left no row; of other ways to become empty, it does not.
    deletion = Deletion() if "truncate" in step.why else Deletion(found.rows_warehouse)
    # Extra rows that the source has exist twice, or their key reads differently.
    keys = (*found.missing, *(key for key, _ in found.different), *found.extra)
    # What `where` excludes leaves the target even where deleted rows stay.
    outside = kept and bool(table.recipe.where)
    gone = read_keys(run, table, keys, "repair", None if kept else deletion, outside=outside)
    if step.followed_to is not None:
        append(run, run.held.draft(Batch, schema=table.fingerprint, followed_to=step.followed_to))
    else:
        append(run, run.held.draft(Restore, position=step.position, note=said_doubts(step)))
    repaired = f"{counted(len(keys) - gone, 'row')} read again, {gone:,} {fate(run)}"
    run.account.note(f"{said_doubts(step)}, so source and target were compared: {repaired}")


def _bring_columns(run: TableRun, table: Table) -> bool:
    """Reads one row if the target lacks columns, which a load brings; False: the source has none, so no value can differ."""
    if not loads.foresee(run, table).changes:
        return True
    with run.services.session("plan") as session:
        row = carrier(session, table, run.state.position)
    if row:
        read(run, TablePlan(Intent("sync", table), again(table, row)))
        run.held.claim(Intent("sync", table))  # what is repaired was read later
    return bool(row)


def follow(run: TableRun, table: Table, step: FollowStep) -> None:
    """Reads the rows behind the keys that the source's log names, under our claim; what the source lacks is deleted.

    Only the last commit says how far the table has followed the log, so a crash repeats the pass. Key files that are
    gone, or were written for another key, are a reason to compare.
    """
    deletion = None if run.options.deletes == "ignore" else Deletion()
    groups = list(portions(step.files))
    for number, group in enumerate(groups, 1):
        if number > 1:  # a claim for each pass: its number tells which version of a row was read later
            run.held.claim(Intent("sync", table))
        try:
            keys = read_log_keys(run.services.store, table, group)
        except (DoesNotFit, DataError) as unfit:
            logger.info("%s: %s", run.name, unfit, extra={"table": run.name, "step": "follow"})
            why: Doubt = "ddl" if isinstance(unfit, DoesNotFit) else "lost"
            reconcile(run, table, replace(step, do="reconcile", files=(), why=(why,)))
            return
        upto = step.followed_to if number == len(groups) else None
        pieces, outside = slices(table, keys), bool(table.recipe.where)
        passes = again(table, pieces, outside=outside, deletion=deletion)
        read(run, TablePlan(Intent("sync", table), tuple(replace(one, followed_to=upto) for one in passes)))
    if run.state.followed_to != step.followed_to:  # there was no key to read
        append(run, run.held.draft(Batch, schema=table.fingerprint, followed_to=step.followed_to))


def read_keys(
    run: TableRun,
    table: Table,
    keys: Sequence[Key],
    purpose: str,
    deletion: Deletion | None,
    *,
    outside: bool = False,
) -> int:
    """Reads and commits the rows of these keys under our claim, moving no position; returns how many were removed."""
    before = run.report.rows_deleted
    if keys:
        hold(run, purpose, table)
        pieces = slices(table, key_table(table, keys))
        read(run, TablePlan(Intent(purpose, table), again(table, pieces, outside=outside, deletion=deletion)))
    return run.report.rows_deleted - before


def fate(run: TableRun) -> str:
    """What becomes of rows that leave the target."""
    return "marked as deleted" if run.options.deletes == "soft" else "deleted"
