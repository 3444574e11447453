"""`keep_files`: what a sync removes by itself, so long after its load.

No request is made and nothing is claimed while nothing is due. What is due goes in portions, at most one an hour, so
that a sync every few seconds does not write a commit each time for the files of a few seconds a week ago.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from floodmark.clean import Facts, Found, Removal, Wanted, ago, choose, moment
from floodmark.load import ledger_for, part_of
from floodmark.loader import Loader
from floodmark.staging import Outcome, loaded_at, read, remove
from floodmark.state import Log, State, draft
from floodmark.state.spans import within
from floodmark.units import counted, duration, size
from floodmark.warehouse import Ledger, Part
from floodmark.work import Run

# Files may stay this much longer than asked for, and never longer than a tenth of it.
SLACK = 3600.0


def due(state: State, ledger: Ledger, keep: float, now: datetime) -> int | None:
    """The last commit whose files have been kept long enough, or None while that would hardly be worth a commit."""
    since = {
        row.n: moment(row.loaded_at)
        for row in ledger.rows
        if row.epoch == state.load_epoch and row.files and not row.summed and not within(state.cleaned, row.n)
    }
    since |= {d.n: moment(d.at) for d in state.data if d.superseded and d.files and not d.cleaned}
    if not since or min(since.values()) > _ripe(keep, now):
        return None
    return max(n for n, at in since.items() if at <= ago(now, keep))


def listed(state: State, ledger: Ledger, keep: float, now: datetime) -> Part | None:
    """The part of the ledger that names the files, where it is only known as a sum that some may be due."""
    first = [moment(row.oldest) for row in ledger.rows if row.epoch == state.load_epoch and row.oldest]
    if not first or min(first) > _ripe(keep, now):
        return None
    gone = state.cleaned[0][1] if state.cleaned and state.cleaned[0][0] == 0 else 0
    part = part_of(state)
    return replace(part, after=min(part.after, gone)) if part is not None else None


def _ripe(keep: float, now: datetime) -> datetime:
    """What was loaded before is worth a commit."""
    return ago(now, keep + min(keep / 10, SLACK))


class Keeping(Run, Protocol):
    """The run of one table after which files are removed."""

    log: Log
    loader: Loader


def remove_due(run: Keeping) -> None:
    """Removes the files that are due after a load."""
    keep, ledger, table = run.options.keep_files, run.loader.ledger, run.state.table
    if keep is None or ledger is None or table is None:
        return
    now = datetime.now(UTC)

    def named(ledger: Ledger) -> Ledger:
        part = listed(run.state, ledger, keep, now)
        return ledger if part is None else warehouse.ledger(run.state.log, table.target, part)

    warehouse = run.work.warehouse()
    if _chosen(run.log, run.state, named(ledger), keep, now).empty:
        return
    run.hold("clean")
    # Asked again by the state that was claimed: another run may have reset the table meanwhile.
    run.loader.ledger = ledger = named(ledger_for(warehouse, run.state, table.target))
    outcome = Outcome(run.log.table_name, _chosen(run.log, run.state, ledger, keep, now))
    if outcome.removal.empty:
        return
    run.append(draft(run.state, "clean", run.work.run, clean=outcome.removal.clean))
    try:
        remove(run.log.store, outcome, None)
    finally:
        run.report.files_cleaned += outcome.deleted
        run.report.bytes_cleaned += outcome.bytes
    what = f"{counted(outcome.deleted, 'file')}, {size(outcome.bytes)}"
    run.tell(f"removed {what} that were loaded more than {duration(keep)} ago (keep_files)")
    for note in outcome.notes:
        run.tell(note)


def _chosen(log: Log, state: State, ledger: Ledger, keep: float, now: datetime) -> Removal:
    """What goes: decided as `s3clean clean` decides, without a listing, and reading only what is due of the log."""
    upto = due(state, ledger, keep, now)
    if upto is None:
        return Removal()
    commits, unreadable = read(log, (n for n in range(1, upto + 1) if not within(state.cleaned, n)))
    objects = {f.path: Found(f.bytes, f.created_at or c.at) for c, _ in commits for f in c.files}
    facts = Facts(state, tuple(commits), objects, loaded_at(state, ledger), tuple(unreadable), upto=upto)
    return choose(facts, Wanted(older_than=keep, since_load=True), now)
