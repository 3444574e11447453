"""The staged files that a sync removes: superseded snapshots, and with `keep_files` others some time after their load.

While nothing is due, this makes no request and no claim. `keep_files` removes at most once an hour, so that a sync every few
seconds does not write a commit each time for a few seconds' worth of old files.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from floodmark.clean.choose import Facts, Removal, StoredObject, Wanted, choose
from floodmark.clean.remove import listed, loaded_at, read
from floodmark.commit.fold import State
from floodmark.commit.log import Log
from floodmark.commit.spans import within
from floodmark.load.pending import part_of
from floodmark.model.ledger import Ledger, Part
from floodmark.model.times import ago, parse_moment
from floodmark.services.warehouse.protocol import Warehouse

# Files may be removed this many seconds late, and at most 10 % late.
SLACK = 3600.0


def superseded(state: State, ledger: Ledger) -> int | None:
    """The last commit before the newest loaded snapshot, if loaded files from before that are still there: no load needs them."""
    if state.table is None or state.table.mode != "full":
        return None
    loaded = ledger.loaded(state.load_epoch)
    there = [d for d in state.data.commits if (d.n, d.digest) in loaded]
    last = max((d.n for d in there if d.load_as == "replace"), default=0)
    return last - 1 if any(d.n < last and d.files and not d.cleaned for d in there) else None


def due(state: State, ledger: Ledger, keep: float, now: datetime) -> int | None:
    """The last commit whose files have been kept long enough; None while a removal is not worth a commit."""
    since = {
        row.n: parse_moment(row.loaded_at)
        for row in ledger.rows
        if row.epoch == state.load_epoch
        and row.files
        and not row.summed
        and not within(state.data.cleaned, row.n)
    }
    since |= {
        d.n: parse_moment(d.at) for d in state.data.commits if d.superseded and d.files and not d.cleaned
    }
    if not since or min(since.values()) > _ripe(keep, now):
        return None
    return max(n for n, at in since.items() if at <= ago(now, keep))


def ledger_part(state: State, ledger: Ledger, keep: float | None, now: datetime) -> Part | None:
    """The part of the ledger to fetch row by row, if its sums say that files may be due."""
    first = [parse_moment(row.oldest) for row in ledger.rows if row.epoch == state.load_epoch and row.oldest]
    ripe = keep is not None and first and min(first) <= _ripe(keep, now)
    if not ripe and superseded(state, ledger) is None:
        return None
    gone = state.data.cleaned[0][1] if state.data.cleaned and state.data.cleaned[0][0] == 0 else 0
    part = part_of(state)
    return replace(part, after=min(part.after, gone)) if part is not None else None


def _ripe(keep: float, now: datetime) -> datetime:
    """Once the oldest file was loaded before this, a removal is worth a commit."""
    return ago(now, keep + min(keep / 10, SLACK))


def due_files(
    warehouse: Warehouse, log: Log, state: State, ledger: Ledger, keep: float | None, now: datetime
) -> tuple[Removal, Ledger]:
    """The files that are due, and the ledger with the rows that prove it."""
    if (part := ledger_part(state, ledger, keep, now)) is not None and state.table is not None:
        ledger = warehouse.ledger(state.log, state.table.target, part)
    return _chosen(log, state, ledger, keep, now), ledger


def _chosen(log: Log, state: State, ledger: Ledger, keep: float | None, now: datetime) -> Removal:
    """What to remove, by the same rules as `s3clean clean`; reads only the due part of the log."""
    upto = before = superseded(state, ledger)
    if upto is None and keep is not None:
        upto = due(state, ledger, keep, now)
    if upto is None:
        return Removal()
    commits, unreadable = read(log, (n for n in range(1, upto + 1) if not within(state.data.cleaned, n)))
    objects = {f.path: StoredObject(f.bytes, f.created_at or c.at) for c, _ in commits for f in c.files}
    loaded = loaded_at(state, ledger) or {}
    if before is not None:
        # A run that died after its commit has left the files of the snapshot that it was about to remove.
        gone = [d for d in state.data.commits if d.cleaned and d.n <= upto]
        left, _ = read(log, [d.n for d in gone[-1:] if (d.n, d.digest) in loaded])
        there = listed(log.store, state.table_name) if left else {}
        commits = sorted((*left, *commits), key=lambda c: c[0].n)
        objects |= {f.path: there[f.path] for c, _ in left for f in c.files if f.path in there}
    facts = Facts(state, tuple(commits), objects, loaded, tuple(unreadable), upto=upto)
    if before is None:
        return choose(facts, Wanted(older_than=keep, since_load=True), now)
    # Files from before a reset may still be loaded by hand.
    only = frozenset(f.path for c, digest in commits if (c.n, digest) in loaded for f in c.files)
    return choose(facts, Wanted(only=only), now)
