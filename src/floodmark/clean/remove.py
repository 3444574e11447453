"""Gathers what is known about staged files, for `choose` to decide, and deletes them.

A deletion can be repeated: a file that is already gone is not an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from floodmark.clean.choose import Facts, Removal, StoredObject
from floodmark.load.pending import pending
from floodmark.log.document import commit_path
from floodmark.log.fold import Damaged, State, data_commit, within
from floodmark.log.lease import holder
from floodmark.log.log import Log
from floodmark.model.commit import Commit, WithFiles
from floodmark.model.errors import FloodmarkError
from floodmark.model.events import Advanced, Emit, StageBegan, StageEnded, ignore
from floodmark.model.ledger import Ledger
from floodmark.model.times import stamp
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
