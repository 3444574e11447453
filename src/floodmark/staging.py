"""Staged files between the decision and the store: what is known of them is gathered here, and here they are deleted.

Deleting can be repeated: a file that is gone already is no error.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from floodmark.clean import Facts, Found, Removal
from floodmark.errors import FloodmarkError
from floodmark.load import pending
from floodmark.model import Commit
from floodmark.report import Progress
from floodmark.state import Log, State, commit_path, holder, stamp
from floodmark.state.fold import Damaged, data_commit
from floodmark.state.log import READERS
from floodmark.state.spans import within
from floodmark.store import Store, encode
from floodmark.warehouse import Ledger

# Files that one request removes: as many as S3 takes.
AT_ONCE = 1000
VERSIONS = (
    "the bucket keeps versions: the removed files stay as old versions, and are paid for, until a lifecycle rule "
    "(NoncurrentVersionExpiration) removes them"
)


@dataclass
class Outcome:
    """One table's part of the result."""

    table: str
    removal: Removal = field(default_factory=Removal)
    deleted: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)
    error: FloodmarkError | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "ok": self.error is None,
            "exit_code": self.error.code if self.error else 0,
            "deleted": self.deleted,
            "bytes": self.bytes,
            "notes": self.notes,
            "error": self.error.as_json() if self.error else None,
        }


def gather(log: Log, state: State, objects: dict[str, Found], ledger: Ledger | None) -> Facts:
    """The facts of one table, from its listing, its state and what the warehouse says.

    The log is read only as far as it names files that are still there: commits that an earlier clean removed are
    looked at again only when something is left over that no other commit names.
    """
    numbers = {n for n in range(1, state.n + 1) if not within(state.cleaned, n)}
    if ledger is not None:  # loaded and cleaned, then lost by the warehouse
        waiting = pending(log.data(state, ledger.rows), ledger, state.load_epoch)
        numbers |= {d.n for d in waiting}
    commits, unreadable = read(log, numbers)
    named = {f.path for c, _ in commits for f in c.files}
    if state.cleaned and not named.issuperset(objects):
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


def read(log: Log, numbers: Iterable[int]) -> tuple[list[tuple[Commit, str]], list[int]]:
    """The commits among these that have something to load, and the numbers that can't be read."""

    def one(n: int) -> tuple[int, tuple[Commit, str] | None]:
        try:
            return n, log.parse(n, log.store.get(commit_path(log.table_name, n)))
        except Damaged:
            return n, None

    with ThreadPoolExecutor(READERS, thread_name_prefix="clean") as pool:
        found = list(pool.map(one, sorted(numbers)))
    commits = [c for _, c in found if c is not None and data_commit(*c, -1) is not None]
    return commits, [n for n, c in found if c is None]


def loaded_at(state: State, ledger: Ledger | None) -> dict[tuple[int, str], str] | None:
    """The loaded commits and when that was; None when the warehouse can't be asked."""
    if ledger is None:
        return None
    return {row.identity: row.loaded_at for row in ledger.rows if row.epoch == state.load_epoch}


def listed(store: Store, name: str) -> dict[str, Found]:
    """What lies in a table's folder, and in no other's."""
    return {o.path: Found(o.bytes, stamp(o.modified)) for o in store.list(f"data/{encode(name)}/")}


def remove(store: Store, outcome: Outcome, progress: Progress | None) -> None:
    """Deletes the files of an outcome; what is not there any more is no error."""
    files = outcome.removal.files
    if not files:
        return
    if store.versioned(files[0].path):
        outcome.notes.append(VERSIONS)
    if progress is not None:
        progress.begin(outcome.table, "clean", len(files))
    try:
        for i in range(0, len(files), AT_ONCE):
            batch = files[i : i + AT_ONCE]
            store.delete(f.path for f in batch)
            size = sum(f.bytes for f in batch)
            outcome.deleted += len(batch)
            outcome.bytes += size
            if progress is not None:
                progress.advance(outcome.table, "clean", len(batch), len(batch), size)
    except FloodmarkError as error:
        error.hint = (
            f"{outcome.deleted:,} of {len(files):,} files are removed; run the command again for the rest"
        )
        raise
    finally:
        if progress is not None:
            progress.end(outcome.table, "clean")
