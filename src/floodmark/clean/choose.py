"""Decides which staged files may be removed. Pure: takes what log, store and ledger say, returns the files and the
commit that names them.

A file is removed only when its rows are in the warehouse (loaded) or will never be needed (superseded). A loaded file
stays while an earlier commit is pending, because it would have to load again after that one. Pending commits go whole
or not at all, and only when the user gives them up: the position then moves back to before their lowest row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Literal

from floodmark.log.fold import State, around, within
from floodmark.model.commit import CleanedFiles, DataFile, Deletes, GivenUp, WithFiles
from floodmark.model.position import Position
from floodmark.model.times import ago, just_before, parse_moment, sortable

FileState = Literal["loaded", "pending", "superseded", "orphan", "unknown"]


@dataclass(frozen=True)
class StoredObject:
    """An object in the store."""

    bytes: int
    modified: str  # UTC


@dataclass(frozen=True)
class Facts:
    """What log, store and ledger say about one table's files at one moment."""

    state: State
    commits: tuple[
        tuple[WithFiles, str], ...
    ]  # those with something to load that were read, and their digests
    objects: Mapping[str, StoredObject]  # by path; what lies in the table's folders
    loaded: (
        Mapping[tuple[int, str], str] | None
    )  # commits in the ledger, and when; None: the warehouse does not answer
    unreadable: tuple[int, ...] = ()  # commits that are lost or damaged
    under_way: str | None = None  # the run that holds the table: its files may still be committed
    after: int = -1  # no commit up to this one was read
    upto: int | None = None  # the last commit that was read; None: all were

    def state_of(self, commit: WithFiles, digest: str) -> FileState:
        """What a commit's files are to the load stage."""
        if self.loaded is not None and (commit.n, digest) in self.loaded:
            return "loaded"
        if commit.n < self.state.data.superseded or within(self.state.data.dropped, commit.n):
            return "superseded"
        return "unknown" if self.loaded is None else "pending"


@dataclass(frozen=True)
class Staged:
    """One file in the store, as it is listed."""

    path: str
    bytes: int
    created_at: str
    state: FileState
    commit: int | None = None
    rows: int | None = None
    place: int = 0  # among the commit's files


@dataclass(frozen=True)
class Selection:
    """What the user wants removed."""

    older_than: float | None = None  # seconds
    pattern: str | None = None
    include_pending: bool = False
    since_load: bool = False  # the age counts from the load, not from the file's creation
    only: frozenset[str] | None = None  # nothing but these, which were shown to the user

    def fits(self, path: str, since: str, now: datetime) -> bool:
        """Whether a file is old enough, and its name, its path below the prefix or the end of that matches the pattern."""
        if self.older_than is not None and parse_moment(since) > ago(now, self.older_than):
            return False
        return self.pattern is None or any(fnmatchcase(path, p) for p in (self.pattern, f"*/{self.pattern}"))

    def includes(self, path: str) -> bool:
        """Whether a file is among those that were shown."""
        return self.only is None or path in self.only


@dataclass(frozen=True)
class Removal:
    """What is removed, and the commit that says so first."""

    files: tuple[Staged, ...] = ()
    clean: CleanedFiles = field(default_factory=CleanedFiles)
    position: Position | None = None  # where the extraction goes back to, when `clean.moved`
    kept: int = 0  # loaded files that stay because an earlier commit is pending

    @property
    def empty(self) -> bool:
        return not self.files and not self.clean.given_up


def staged(facts: Facts) -> tuple[Staged, ...]:
    """Every file in the store, in the log's order; those that no commit names come last."""
    found: list[Staged] = []
    named: set[str] = set()
    for commit, digest in facts.commits:
        state = facts.state_of(commit, digest)
        for place, file in enumerate(commit.files):
            named.add(file.path)
            there = facts.objects.get(file.path)
            if there is not None:
                made = file.created_at or commit.at
                found.append(Staged(file.path, there.bytes, made, state, commit.n, file.rows, place))
    for path in sorted(set(facts.objects) - named):
        there = facts.objects[path]
        state = "orphan"
        if facts.unreadable:
            state = "unknown"  # a lost commit may have named it
        elif facts.under_way is not None and f"/{facts.under_way}/" in path:
            state = "pending"
        found.append(Staged(path, there.bytes, there.modified, state))
    return tuple(found)


def orphans(facts: Facts, wanted: Selection, now: datetime) -> Removal:
    """The files that no commit names and that no run can commit any more."""
    found = (f for f in staged(facts) if f.state == "orphan" and wanted.includes(f.path))
    return Removal(tuple(f for f in found if wanted.fits(f.path, f.created_at, now)))


def choose(facts: Facts, wanted: Selection, now: datetime) -> Removal:
    """What may be removed under these facts; the ledger must be known."""
    assert facts.loaded is not None
    pending = [(c, d) for c, d in facts.commits if facts.state_of(c, d) == "pending"]
    given_up = [
        (c, d) for c, d in pending if wanted.include_pending and _may_be_given_up(facts, c, wanted, now)
    ]
    dropped = {c.n for c, _ in given_up}
    barrier = min((c.n for c, _ in pending if c.n not in dropped), default=None)
    moments = {n: at for (n, _), at in facts.loaded.items()} if wanted.since_load else {}
    files: list[Staged] = []
    kept = 0
    for file in staged(facts):
        if file.commit in dropped:
            files.append(file)
        elif (
            file.commit is not None
            and file.state in ("loaded", "superseded")
            and wanted.fits(file.path, moments.get(file.commit, file.created_at), now)
        ):
            if file.state == "loaded" and barrier is not None and file.commit > barrier:
                kept += 1
            elif wanted.includes(file.path):
                files.append(file)
    moved = bool(given_up) and facts.state.table is not None and facts.state.table.mode != "full"
    return Removal(
        files=tuple(files),
        clean=_named(facts, files, given_up, moved),
        position=before(facts.state, [f for c, _ in given_up for f in c.files]) if moved else None,
        kept=kept,
    )


def _may_be_given_up(facts: Facts, commit: WithFiles, wanted: Selection, now: datetime) -> bool:
    """Whether the user wants all files of a pending commit removed."""
    if not commit.files or not all(
        wanted.fits(f.path, f.created_at or commit.at, now)
        and (wanted.includes(f.path) or f.path not in facts.objects)
        for f in commit.files
    ):
        return False
    # Deleted keys can't be read again from the source: their commit stays until it is loaded, unless its files are gone.
    gone = within(facts.state.data.cleaned, commit.n) or any(
        f.path not in facts.objects for f in commit.files
    )
    return not isinstance(commit, Deletes) or gone


def _named(
    facts: Facts, files: Iterable[Staged], given_up: Iterable[tuple[WithFiles, str]], moved: bool
) -> CleanedFiles:
    """The files as the commit names them: whole commits as spans of numbers."""
    places: dict[int, set[int]] = {}
    count = size = 0
    for file in files:
        assert file.commit is not None
        places.setdefault(file.commit, set()).add(file.place)
        count, size = count + 1, size + file.bytes
    gone = tuple(GivenUp(c.n, d, c.rows, len(c.files), c.bytes, c.load_as, c.beside) for c, d in given_up)
    dropped = {g.n for g in gone}
    lengths = {c.n: len(c.files) for c, _ in facts.commits}
    whole = dropped | {n for n, inside in places.items() if len(inside) == lengths[n]}
    # A span may run across commits that have no files, or none any more.
    kept = {c.n for c, _ in facts.commits if any(f.path in facts.objects for f in c.files)} - whole
    kept |= {n for n, length in lengths.items() if length and not within(facts.state.data.cleaned, n)} - whole
    kept |= {*facts.unreadable, facts.after}
    last = facts.state.n if facts.upto is None else facts.upto
    # Earlier cleans' commits were not read: they were loaded, and stay what they are.
    cleaned = facts.state.data.cleaned
    others = {*lengths, *facts.unreadable, *(n for span in cleaned for n in span)}
    others |= {n + step for n in dropped if within(cleaned, n) for step in (-1, 1)}
    return CleanedFiles(
        whole=around(whole, kept, last),
        some=tuple(sorted((n, tuple(sorted(inside))) for n, inside in places.items() if n not in whole)),
        given_up=gone,
        dropped=around(dropped, others - dropped, last),
        moved=moved,
        files=count,
        bytes=size,
    )


def before(state: State, files: Collection[DataFile]) -> Position | None:
    """The position before every row of the files, and not after the present one; None: from the start."""
    here = state.position if state.position is not None else state.progress.began
    if here is None or state.table is None:
        return None
    firsts = [f.first[0] for f in files if f.first]
    if not firsts:
        return here  # rows without a cursor value are read by every sync
    lowest = just_before(state.table, *firsts)
    if lowest is None:
        return state.progress.began
    return (lowest,) if sortable(lowest) < sortable(here[0]) else here
