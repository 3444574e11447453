"""Removes the key files of the source's log of changes that every table has followed, and those that no commit names.

The same rules and the same order as for a table's files: under a claim, named by a commit before the first is deleted.
At most once an hour; until then, nothing is read or listed. Key files are written under the claim that commits them, so
what no commit names, and is not ours, never will be named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from floodmark.clean.choose import Facts, Removal, Selection, Staged, StoredObject, choose
from floodmark.clean.remove import SLACK, Cleaning, documents, listed, remove
from floodmark.log.claim import HeldTable
from floodmark.log.fold import State, within
from floodmark.log.following import followed_by_all, wanted_files
from floodmark.model.changes import SOURCE_LOG, FollowedTo
from floodmark.model.commit import Changes, Clean, Commit, files_of
from floodmark.model.times import ago, parse_moment


def due(state: State, followed: Mapping[str, FollowedTo | None], now: datetime) -> int | None:
    """The last commit whose key files may go; None while a removal is not worth a commit."""
    source = state.source
    if source is None or (source.cleaned_at and parse_moment(source.cleaned_at) > ago(now, SLACK)):
        return None
    upto = followed_by_all(state, followed)
    touched = max((t.touched for t in source.tables.values() if t.touched <= upto), default=0)
    return upto if touched and not within(state.data.cleaned, touched) else None


def removable(
    state: State, commits: Iterable[tuple[Commit, str]], upto: int, now: datetime, lost: Sequence[int] = ()
) -> Removal:
    """The key files up to a commit that nobody needs; `commits`: all that no clean has named, also later ones, but the lost."""
    found = [(c, digest) for c, digest in commits if isinstance(c, Changes)]
    wanted = wanted_files(state, found, upto)
    old = tuple((c, digest) for c, digest in found if c.n <= upto)
    free = [c for c, _ in old if wanted.isdisjoint(f.path for f in c.files)]
    objects = {f.path: StoredObject(f.bytes, c.at) for c in free for f in c.files}
    followed = {(c.n, digest): c.at for c, digest in old}
    return choose(Facts(state, old, objects, followed, tuple(lost), upto=upto), Selection(), now)


def clean_changes(
    held: HeldTable, followed: Mapping[str, FollowedTo | None], now: datetime
) -> Cleaning | None:
    """Removes what is due of the log that we hold; `followed`: how far every table that is listened for has followed it."""
    state = held.state
    if (upto := due(state, followed, now)) is None:
        return None
    cleaned = state.data.cleaned
    found = documents(held.log, [n for n in range(1, state.n + 1) if not within(cleaned, n)])
    commits = [(c, digest) for _, c, digest in found if c is not None]
    lost = [n for n, c, _ in found if c is None]
    if max(lost, default=0) > upto:  # it may name files of an earlier commit
        return None
    removal = removable(state, commits, upto, now, lost)
    if removal.empty:
        return None
    held.append(held.draft(Clean, clean=removal.clean))
    held.watermark.publish_soon(held.state, ())
    named = {f.path for c, _ in commits for f in files_of(c)}
    orphans = (
        Staged(path, each.bytes, each.modified, "orphan")
        for path, each in listed(held.log.store, SOURCE_LOG).items()
        if path not in named and f"/{held.run}/" not in path and not lost
    )
    outcome = Cleaning(SOURCE_LOG, replace(removal, files=(*removal.files, *orphans)))
    remove(held.log.store, outcome)
    return outcome
