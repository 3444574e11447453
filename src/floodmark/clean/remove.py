"""Gathers what is known about staged files, for `choose` to decide, and deletes them; what a sync removes by itself.

A deletion can be repeated: a file that is already gone is not an error. A sync removes superseded snapshots, and with
`keep_files` others some time after their load. While nothing is due, this makes no request and no claim; `keep_files`
removes at most once an hour, so that a sync every few seconds does not write a commit each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise, takewhile

from floodmark.clean.choose import Facts, Removal, Selection, StoredObject, choose
from floodmark.load.pending import part_of, pending
from floodmark.load.protocol import Warehouse
from floodmark.log.document import commit_path
from floodmark.log.fold import Damaged, DataCommit, State, data_commit, within
from floodmark.log.lease import holder
from floodmark.log.log import Log
from floodmark.model.commit import Commit, WithFiles
from floodmark.model.errors import FloodmarkError
from floodmark.model.events import Advanced, Emit, StageBegan, StageEnded, ignore
from floodmark.model.ledger import Ledger, Part
from floodmark.model.run import implausible
from floodmark.model.times import ago, parse_moment, stamp
from floodmark.store.store import Store, file_folders

# Files per delete request: the most that S3 takes.
AT_ONCE = 1000
VERSIONS = (
    "the bucket keeps versions: removed files stay as old versions, and cost money, until a lifecycle rule "
    "(NoncurrentVersionExpiration) expires them"
)


@dataclass
class Cleaning:
    """One table's part of the result."""

    table: str
    removal: Removal = field(default_factory=Removal)
    deleted: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)
    error: FloodmarkError | None = None


def gather(log: Log, state: State, objects: dict[str, StoredObject], ledger: Ledger | None) -> Facts:
    """The facts of one table, from its listing, its state and what the warehouse says.

    Commits whose files an earlier clean removed are read again only if there are files that no other commit names.
    """
    numbers = {n for n in range(1, state.n + 1) if not within(state.data.cleaned, n)}
    if ledger is not None:  # loaded and cleaned, then lost by the warehouse
        waiting = pending(log.data(state, ledger.rows), ledger, state.load_epoch)
        numbers |= {d.n for d in waiting}
    commits, unreadable = read(log, numbers)
    named = {f.path for c, _ in commits for f in c.files}
    if state.data.cleaned and not named.issuperset(objects):
        more, lost = read(log, set(range(1, state.n + 1)) - numbers)
        commits, unreadable = commits + more, unreadable + lost
    held = holder(log.store, log.table_name, state.claim)
    return Facts(
        state=state,
        commits=tuple(sorted(commits, key=lambda c: c[0].n)),
        objects=objects,
        loaded=loaded_at(state, ledger),
        unreadable=tuple(sorted(unreadable)),
        under_way=held.run if held is not None and held.alive else None,
    )


def read(log: Log, numbers: Iterable[int]) -> tuple[list[tuple[WithFiles, str]], list[int]]:
    """The commits among these that have something to load, and the numbers that can't be read."""
    found = documents(log, sorted(numbers))
    commits = [(c, digest) for _, c, digest in found if isinstance(c, WithFiles)]
    return [c for c in commits if data_commit(*c, -1)], [n for n, c, _ in found if c is None]


def documents(
    log: Log, numbers: Sequence[int]
) -> tuple[tuple[int, Commit, str] | tuple[int, None, str], ...]:
    """The commits as they are stored, with their digests, or what is wrong with them."""

    def one(n: int) -> tuple[int, Commit, str] | tuple[int, None, str]:
        try:
            return (n, *log.parse(n, log.store.get(commit_path(log.table_name, n))))
        except Damaged as error:
            return n, None, error.message

    return log.store.each(one, numbers)


def loaded_at(state: State, ledger: Ledger | None) -> dict[tuple[int, str], str] | None:
    """The loaded commits and when they were loaded; None if the warehouse does not answer."""
    if ledger is None:
        return None
    return {row.identity: row.loaded_at for row in ledger.rows if row.epoch == state.load_epoch}


def listed(store: Store, name: str) -> dict[str, StoredObject]:
    """The objects in a table's own folders."""
    found = (item for folder in file_folders(name) for item in store.list(folder))
    return {o.path: StoredObject(o.bytes, stamp(o.modified)) for o in found}


def remove(store: Store, outcome: Cleaning, emit: Emit = ignore) -> None:
    """Deletes the files of an outcome; one that is already gone is not an error."""
    files = outcome.removal.files
    if not files:
        return
    if store.versioned(files[0].path):
        outcome.notes.append(VERSIONS)
    emit(StageBegan(outcome.table, "clean", len(files)))
    try:
        for i in range(0, len(files), AT_ONCE):
            batch = files[i : i + AT_ONCE]
            store.delete(f.path for f in batch)
            size = sum(f.bytes for f in batch)
            outcome.deleted += len(batch)
            outcome.bytes += size
            emit(Advanced(outcome.table, "clean", len(batch), len(batch), size))
    except FloodmarkError as error:
        error.hint = (
            f"{outcome.deleted:,} of {len(files):,} files were removed; run the command again for the rest"
        )
        raise
    finally:
        emit(StageEnded(outcome.table, "clean"))


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
    return choose(facts, Selection(older_than=keep, since_load=True), now)


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
    return choose(facts, Selection(only=only), now)


def _facts(log: Log, state: State, ledger: Ledger, after: int, upto: int) -> Facts:
    """What is known about the commits after one, up to another, whose files are still there."""
    numbers = (n for n in range(max(after, 0) + 1, upto + 1) if not within(state.data.cleaned, n))
    commits, unreadable = read(log, numbers)
    objects = {f.path: StoredObject(f.bytes, f.created_at or c.at) for c, _ in commits for f in c.files}
    loaded = loaded_at(state, ledger) or {}
    return Facts(state, tuple(commits), objects, loaded, tuple(unreadable), after=after, upto=upto)
