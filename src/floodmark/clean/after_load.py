"""The staged files that a sync removes: superseded snapshots, and with `keep_files` others some time after their load.

While nothing is due, this makes no request and no claim. `keep_files` removes at most once an hour, so that a sync every few
seconds does not write a commit each time for a few seconds' worth of old files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise, takewhile

from floodmark.clean.choose import Facts, Removal, StoredObject, Wanted, choose
from floodmark.clean.remove import listed, loaded_at, read
from floodmark.load.pending import part_of
from floodmark.load.protocol import Warehouse
from floodmark.log.fold import DataCommit, State
from floodmark.log.log import Log
from floodmark.log.spans import within
from floodmark.model.ledger import Ledger, Part
from floodmark.model.run import implausible
from floodmark.model.times import ago, parse_moment

# Files may be removed this many seconds late, and at most 10 % late.
SLACK = 3600.0


def superseded(state: State, ledger: Ledger) -> tuple[DataCommit, ...]:
    """The loaded snapshots that a later one has replaced, newest first, if some still have files: no load needs them.

    Not among them is what may hold the last copy of rows: commits from before the table was read whole, and all
    that came before a snapshot so small that it needed --force.
    """
    if state.table is None or state.table.mode != "full":
        return ()
    loaded = ledger.loaded(state.load_epoch)
    snapshots = takewhile(lambda d: d.load_as == "replace", reversed(state.data.commits))
    steps = pairwise(d for d in snapshots if (d.n, d.digest) in loaded)
    found = tuple(
        old for _, old in takewhile(lambda step: not implausible(step[1].rows, step[0].rows), steps)
    )
    return found if any(d.files and not d.cleaned for d in found) else ()


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
    if keep is None or not first or min(first) > _ripe(keep, now):
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
    found = superseded(state, ledger)
    removal = _replaced(log, state, ledger, found, now) if found else Removal()
    if not removal.empty:
        return removal
    upto = due(state, ledger, keep, now) if keep is not None else None
    if keep is None or upto is None:
        return Removal()
    facts = _facts(log, state, ledger, -1, upto)
    return choose(facts, Wanted(older_than=keep, since_load=True), now)


def _replaced(log: Log, state: State, ledger: Ledger, found: Sequence[DataCommit], now: datetime) -> Removal:
    """The files of superseded snapshots, and those that an earlier removal has left."""
    earlier = [state.data.older.upto, *(d.n for d in state.data.commits if d.n < found[-1].n)]
    facts = _facts(log, state, ledger, max(earlier) or -1, found[0].n)
    there = listed(log.store, state.table_name)
    newer, _ = read(log, (d.n for d in state.data.commits if d.n > found[0].n))
    if not there.keys() <= {f.path for c, _ in (*facts.commits, *newer) for f in c.files}:
        left, _ = read(log, (d.n for d in found if d.cleaned))
        objects = {f.path: there[f.path] for c, _ in left for f in c.files if f.path in there}
        commits = tuple(sorted((*left, *facts.commits), key=lambda c: c[0].n))
        facts = replace(facts, commits=commits, objects={**facts.objects, **objects})
    # Rows that replaced all others but have positions were read by a cursor, before the table was read whole.
    last = max((c.n for c, _ in facts.commits if any(f.first for f in c.files)), default=0)
    numbers = {d.n for d in found if d.n > last}
    only = frozenset(f.path for c, _ in facts.commits if c.n in numbers for f in c.files)
    return choose(facts, Wanted(only=only), now)


def _facts(log: Log, state: State, ledger: Ledger, after: int, upto: int) -> Facts:
    """What is known about the commits after one, up to another, whose files are still there."""
    numbers = (n for n in range(max(after, 0) + 1, upto + 1) if not within(state.data.cleaned, n))
    commits, unreadable = read(log, numbers)
    objects = {f.path: StoredObject(f.bytes, f.created_at or c.at) for c, _ in commits for f in c.files}
    loaded = loaded_at(state, ledger) or {}
    return Facts(state, tuple(commits), objects, loaded, tuple(unreadable), after=after, upto=upto)
