"""The state of the source's log of changes: how far the binary log was read, and for which tables. Pure.

It is folded like a table's (`fold`), and does not grow with the log: four numbers per table, of which the last that
touched it makes a table that nobody touched cost nothing. Descriptions stay in the commits that brought them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from floodmark.model.changes import FollowedChanges, LogEnd, LogIdentity, LogPlace, PreparedXa, TableChanges
from floodmark.model.commit import Changes


class Listening(NamedTuple):
    """What the state keeps of one table that is listened for: numbers of commits."""

    since: int  # the one that began to listen for it
    described: int  # the one with its description
    touched: int  # the last one that says anything of it
    reconcile: int = -1  # the last one in which the log could not tell what has changed


class OpenXa(NamedTuple):
    """A prepared XA transaction, and the commit whose read found it."""

    n: int
    xa: PreparedXa


@dataclass(frozen=True)
class SourceState:
    """What the source's log of changes says."""

    began: LogPlace  # from here on nothing is missing: where the log began, or went on after a loss or a failover
    since: int  # the last commit that stands there still
    next_start: LogPlace
    end: LogEnd  # of the last read
    identity: LogIdentity
    prepared: tuple[OpenXa, ...] = ()
    reconcile: int = -1  # the last commit after which every table must be
    cleaned_at: str | None = None
    last_commit: float | None = None  # UTC, of the newest transaction that was read
    tables: Mapping[str, Listening] = field(default_factory=dict)


def contradiction(before: SourceState | None, commit: Changes) -> str | None:
    """Why a commit can't follow this state, to continue the sentence `commit 7 …`; None if it can."""
    read = commit.followed
    if before is not None and read.begin != before.next_start and not _elsewhere(before, commit):
        return f"begins at {read.begin}, but the binary log was read to {before.next_start}"
    known = {f.path for f in commit.files}
    for open_xa in before.prepared if before is not None else ():
        known.update(key_files(open_xa.xa.tables))
    named = [*key_files(read.tables), *(path for xa in read.prepared for path in key_files(xa.tables))]
    if strange := next((path for path in named if path not in known), None):
        return f"names {strange}, which it does not have"
    return None


def _elsewhere(before: SourceState, commit: Changes) -> bool:
    """Whether it says itself why it doesn't begin where the last read ended: a loss, or a failover."""
    return "lost" in commit.followed.reconcile or commit.identity.server != before.identity.server


def key_files(tables: Mapping[str, TableChanges]) -> list[str]:
    """The paths that these changes name."""
    return [path for changes in tables.values() for path in changes.files]


def source_after(before: SourceState | None, commit: Changes) -> SourceState:
    """The state after a commit that can follow it."""
    read, n = commit.followed, commit.n
    began, since = read.begin, n
    if before is not None and not _elsewhere(before, commit):
        began, since = before.began, before.since
    tables = dict(before.tables) if before is not None else {}
    for name, changes in read.tables.items():
        if name in tables:
            marks = {"reconcile": n} if changes.reconcile else {}
            tables[name] = tables[name]._replace(touched=n, **marks)
    for one in commit.described:
        tables[one.name] = tables.get(one.name, Listening(n, n, n))._replace(described=n)
    for name in commit.left:
        tables.pop(name, None)
    earlier = {x.xa.xid: x.n for x in before.prepared} if before is not None else {}
    return SourceState(
        began=began,
        since=n if read.next_start == began else since,
        next_start=read.next_start,
        end=commit.end,
        identity=commit.identity,
        prepared=tuple(OpenXa(earlier.get(xa.xid, n), xa) for xa in read.prepared),
        reconcile=n if read.reconcile else before.reconcile if before is not None else -1,
        cleaned_at=before.cleaned_at if before is not None else commit.at,
        last_commit=read.last_commit or (before.last_commit if before is not None else None),
        tables=tables,
    )


def with_late_tables(before: SourceState | None, read: FollowedChanges) -> FollowedChanges:
    """What a read found, and the tables that were added while an XA transaction that has ended now was prepared.

    Nobody listened for them when its rows were logged, and their copies may have been read before it was committed.
    """
    if before is None:
        return read
    left = {xa.xid for xa in read.prepared}
    oldest = min((x.n for x in before.prepared if x.xa.xid not in left), default=None)
    late = [] if oldest is None else [name for name, table in before.tables.items() if table.since > oldest]
    tables = dict(read.tables)
    for name in late:
        known = tables.get(name, TableChanges())
        if "unlisted" not in known.reconcile:
            tables[name] = replace(known, reconcile=(*known.reconcile, "unlisted"))
    return replace(read, tables=tables) if late else read
