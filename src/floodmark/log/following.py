"""What a table has not followed of the source's log of changes, and what of that log nobody needs any more. Pure.

Pending for a table is the log's changes minus what the table's own commits say that it has followed. Where the log can't
tell which rows have changed, the answer is a reason to compare the table with its copy, never silence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from floodmark.log.changes import key_files
from floodmark.log.fold import State, within
from floodmark.model.changes import FollowedTo, Reconcile, TableChanges
from floodmark.model.commit import Changes, Commit, DataFile
from floodmark.model.times import stamp


@dataclass(frozen=True)
class Unfollowed:
    """What the source's log says of a table that the table has not followed yet."""

    upto: FollowedTo  # what the table's last commit says, once all of it is followed
    files: tuple[DataFile, ...] = ()  # key files, in the log's order
    reconcile: tuple[Reconcile, ...] = ()  # why the keys don't tell everything


def here(state: State) -> FollowedTo | None:
    """Where the source's log stands, as a table's commit names it; None before its first read."""
    if state.source is None:
        return None
    source = state.source
    at = None if source.last_commit is None else stamp(datetime.fromtimestamp(source.last_commit, UTC))
    return FollowedTo(
        state.log, state.n, state.digest, source.next_start, source.identity, at, source.end.gtid
    )


def unread(state: State, name: str, followed: FollowedTo | None) -> int | Reconcile | None:
    """The commit after which the log has something for a table (-1: from its start), or why the log is no use to it.

    None: the table has followed everything, which is told without reading a commit.
    """
    source, table = state.source, state.source.tables.get(name) if state.source else None
    if source is None or table is None or followed is None:
        return "unlisted"
    last = max(table.touched, source.reconcile)
    if followed.log == state.log:
        if followed.n > state.n:
            return "lost"
        if table.since > followed.n:
            return "unlisted"
        return followed.n if last > followed.n else None
    # The log that it followed is lost. This one tells everything if it began no later, and with this table.
    same = followed.identity.server == source.identity.server
    if not same or followed.place.number < source.began.number or table.since > source.since:
        return "lost"
    return -1 if last > source.since else None


def to_read(state: State, followed: Mapping[str, FollowedTo | None]) -> range:
    """The numbers of the commits that `unfollowed` wants: from the lowest that a table stands at to the last that touches one.

    Where a table stands is included: the digest proves that it followed this log.
    """
    found = {name: n for name, place in followed.items() if isinstance(n := unread(state, name, place), int)}
    if not found or state.source is None:
        return range(0)
    last = max(state.source.reconcile, *(state.source.tables[name].touched for name in found))
    return range(max(0, min(found.values())), last + 1)


def unfollowed(
    state: State, followed: Mapping[str, FollowedTo | None], commits: Iterable[tuple[Commit, str]]
) -> dict[str, Unfollowed]:
    """What these tables have not followed, without those that have followed everything; `commits`: see `to_read`."""
    upto = here(state)
    assert upto is not None, "the source's log must have begun before a table follows it"
    starts = {name: n for name, place in followed.items() if (n := unread(state, name, place)) is not None}
    # Dictionaries, as sets that keep their order.
    files: dict[str, dict[str, DataFile]] = {name: {} for name in starts}
    reasons: dict[str, dict[Reconcile, None]] = {
        name: {n: None} if isinstance(n, str) else {} for name, n in starts.items()
    }
    standing: dict[object, list[str]] = defaultdict(list)
    for name, n in starts.items():
        standing[n].append(name)
    for commit, digest in commits:
        for name in standing[commit.n]:
            if (place := followed[name]) is not None and place.digest != digest:
                reasons[name]["lost"] = None  # the store went back to an earlier state, and on from there
        if not isinstance(commit, Changes):
            continue
        read, known = commit.followed, {f.path: f for f in commit.files}
        for name in starts if read.reconcile else read.tables.keys() & starts.keys():
            start, found = starts[name], read.tables.get(name, TableChanges())
            if isinstance(start, int) and commit.n > start:
                files[name].update({path: known[path] for path in found.files if path in known})
                reasons[name].update(dict.fromkeys((*read.reconcile, *found.reconcile)))
                if not known.keys() >= {*found.files} or (
                    found.files and within(state.data.cleaned, commit.n)
                ):
                    reasons[name]["lost"] = None
    return {name: Unfollowed(upto, tuple(files[name].values()), tuple(reasons[name])) for name in starts}


def first_of(
    found: Unfollowed,
    state: State,
    name: str,
    stands: FollowedTo,
    commits: Iterable[tuple[Commit, str]],
    most: int,
) -> Unfollowed:
    """What a run of at most so many rows follows: whole commits of the log, at least one that has keys.

    A table that must be compared is compared whole.
    """
    start = unread(state, name, stands)
    if found.reconcile or not isinstance(start, int):
        return found
    files, rows, upto = list[DataFile](), 0, found.upto
    at = stands.at
    for commit, digest in commits:
        if not isinstance(commit, Changes) or commit.n <= start:
            continue
        named = commit.followed.tables.get(name, TableChanges()).files
        more = [file for file in commit.files if file.path in named]
        if rows and rows + sum(file.rows for file in more) > most:
            return Unfollowed(upto, tuple(dict.fromkeys(files)))
        files, rows = [*files, *more], rows + sum(file.rows for file in more)
        if commit.followed.last_commit is not None:
            at = stamp(datetime.fromtimestamp(commit.followed.last_commit, UTC))
        upto = FollowedTo(
            state.log, commit.n, digest, commit.followed.next_start, commit.identity, at, commit.end.gtid
        )
    return found


def lowest(named: Iterable[FollowedTo], server: str) -> FollowedTo | None:
    """Where a new log begins when the source's is lost: at the lowest place that a table names on this server."""
    return min((f for f in named if f.identity.server == server), key=lambda f: f.place.number, default=None)


def followed_by_all(state: State, followed: Mapping[str, FollowedTo | None]) -> int:
    """The last commit whose keys no table needs any more.

    A table that is missing from `followed` needs all of them; one that has followed nothing (None) needs none, because it
    will be read or compared as a whole.
    """
    upto = state.n
    for name in state.source.tables if state.source else ():
        place = followed.get(name)
        if name not in followed or (place is not None and unread(state, name, place) is not None):
            upto = min(upto, place.n if place is not None and place.log == state.log else 0)
    return upto


def wanted_files(state: State, commits: Iterable[tuple[Commit, str]], upto: int) -> set[str]:
    """The key files that later commits still name, or will: those of XA transactions."""
    prepared = state.source.prepared if state.source else ()
    found = {path for each in prepared for path in key_files(each.xa.tables)}
    for commit, _ in commits:
        if isinstance(commit, Changes) and commit.n > upto:
            found.update(key_files(commit.followed.tables))
    return found
