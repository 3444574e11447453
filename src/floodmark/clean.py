"""Which staged files may go. Pure: what log, store and ledger say in, the files and the commit that names them out.

A file goes only when its rows are in the warehouse or will never be asked for: loaded, or superseded. A loaded file
stays while an earlier commit is pending, because it would have to load again after that one. Pending commits go whole
or not at all, and only when they are given up: the position then goes back to before their lowest row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Literal

from floodmark import clock
from floodmark.model import Clean, Commit, DataFile, GivenUp, Position, Table, Value
from floodmark.plan import temporal
from floodmark.state.fold import State
from floodmark.state.spans import around, within

FileState = Literal["loaded", "pending", "superseded", "orphan", "unknown"]


@dataclass(frozen=True)
class Found:
    """An object in the store."""

    bytes: int
    modified: str  # UTC


@dataclass(frozen=True)
class Facts:
    """What log, store and ledger say of one table's files at one moment."""

    state: State
    commits: tuple[tuple[Commit, str], ...]  # those with something to load that were read, and their digests
    objects: Mapping[str, Found]  # by path; what lies in the table's folder
    loaded: Mapping[tuple[int, str], str] | None  # commits in the ledger, and when; None: it can't be asked
    unreadable: tuple[int, ...] = ()  # commits that are lost or damaged
    under_way: str | None = None  # the run that holds the table: its files may still be committed
    upto: int | None = None  # the last commit that was asked for; None: all of them

    def state_of(self, commit: Commit, digest: str) -> FileState:
        """What a commit's files are to the load stage."""
        if self.loaded is not None and (commit.n, digest) in self.loaded:
            return "loaded"
        if commit.n < self.state.superseded or within(self.state.dropped, commit.n):
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
class Wanted:
    """What the user wants to go."""

    older_than: float | None = None  # seconds
    pattern: str | None = None
    include_pending: bool = False
    since_load: bool = False  # the age counts from the load, not from the file's creation
    only: frozenset[str] | None = None  # nothing but these, which were shown to the user


@dataclass(frozen=True)
class Removal:
    """What goes, and what the log says of it first."""

    files: tuple[Staged, ...] = ()
    clean: Clean = field(default_factory=Clean)
    position: Position | None = None  # where the extraction goes back to, when `clean.moved`
    kept: int = 0  # loaded files that stay for the sake of an earlier pending commit

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.files)

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


def orphans(facts: Facts, wanted: Wanted, now: datetime) -> Removal:
    """The files that no commit names and that nobody can commit any more."""
    test = _Test(wanted, now)
    files = tuple(
        f
        for f in staged(facts)
        if f.state == "orphan" and test.file(f.path, f.created_at) and test.shown(f.path)
    )
    return Removal(files, Clean(files=len(files), bytes=sum(f.bytes for f in files)))


def choose(facts: Facts, wanted: Wanted, now: datetime) -> Removal:
    """What goes under these facts; the ledger must have been asked."""
    assert facts.loaded is not None
    test = _Test(wanted, now)
    pending = [(c, d) for c, d in facts.commits if facts.state_of(c, d) == "pending"]
    given_up = [(c, d) for c, d in pending if wanted.include_pending and _may_be_given_up(facts, c, test)]
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
            and test.file(file.path, moments.get(file.commit, file.created_at))
        ):
            if file.state == "loaded" and barrier is not None and file.commit > barrier:
                kept += 1
            elif test.shown(file.path):
                files.append(file)
    moved = bool(given_up) and facts.state.table is not None and facts.state.table.mode != "full"
    return Removal(
        files=tuple(files),
        clean=_named(facts, files, given_up, moved),
        position=before(facts.state, [f for c, _ in given_up for f in c.files]) if moved else None,
        kept=kept,
    )


def _may_be_given_up(facts: Facts, commit: Commit, test: _Test) -> bool:
    """Whether all of a pending commit is wanted gone."""
    if not commit.files or not all(
        test.file(f.path, f.created_at or commit.at) and (test.shown(f.path) or f.path not in facts.objects)
        for f in commit.files
    ):
        return False
    # No row brings deleted keys back to mind: they wait until they can load, unless they are gone already.
    gone = within(facts.state.cleaned, commit.n) or any(f.path not in facts.objects for f in commit.files)
    return commit.kind != "deletes" or gone


def _named(
    facts: Facts, files: Iterable[Staged], given_up: Iterable[tuple[Commit, str]], moved: bool
) -> Clean:
    """The files as the log names them: whole commits by spans of it."""
    places: dict[int, set[int]] = {}
    count = size = 0
    for file in files:
        assert file.commit is not None
        places.setdefault(file.commit, set()).add(file.place)
        count, size = count + 1, size + file.bytes
    gone = tuple(
        GivenUp(c.n, d, c.rows, len(c.files), c.bytes, c.load_as, c.window_id is None) for c, d in given_up
    )
    dropped = {g.n for g in gone}
    lengths = {c.n: len(c.files) for c, _ in facts.commits}
    whole = dropped | {n for n, inside in places.items() if len(inside) == lengths[n]}
    # A span may run across commits that have no files, or none any more.
    kept = {c.n for c, _ in facts.commits if any(f.path in facts.objects for f in c.files)} - whole
    kept |= {n for n, length in lengths.items() if length and not within(facts.state.cleaned, n)} - whole
    kept |= set(facts.unreadable)
    last = facts.state.n if facts.upto is None else facts.upto
    return Clean(
        whole=around(whole, kept, last),
        some=tuple(sorted((n, tuple(sorted(inside))) for n, inside in places.items() if n not in whole)),
        given_up=gone,
        dropped=around(dropped, {*lengths, *facts.unreadable} - dropped, last),
        moved=moved,
        files=count,
        bytes=size,
    )


def before(state: State, files: Collection[DataFile]) -> Position | None:
    """The position before every row of the files, and not after the present one; None: from the start."""
    here = state.position if state.position is not None else state.began
    if here is None or state.table is None:
        return None
    firsts = [f.first[0] for f in files if f.first]
    if not firsts:
        return here  # rows without a place in the order are read again by every sync
    lowest = below(state.table, min(firsts, key=_comparable))
    if lowest is None:
        return state.began
    return (lowest,) if _comparable(lowest) < _comparable(here[0]) else here


def _comparable(value: Value) -> tuple[int, str]:
    return (value, "") if isinstance(value, int) else (0, value)


def below(table: Table, value: Value) -> Value | None:
    """A cursor's value right before another one; None when there is no telling."""
    if isinstance(value, int):
        return value - 1
    if not temporal(table) or table.cursor is None:
        return None
    try:
        if table.column(table.cursor).data_type == "date":
            return clock.shifted(value, -86_400)[:10]
        return clock.shifted(value, -1e-6)
    except ValueError:  # a zero date
        return None


class _Test:
    """Whether a file is old enough, fits the pattern, and was shown to the user."""

    def __init__(self, wanted: Wanted, now: datetime) -> None:
        self._wanted = wanted
        self._limit = None if wanted.older_than is None else ago(now, wanted.older_than)

    def file(self, path: str, since: str) -> bool:
        if self._limit is not None and moment(since) > self._limit:
            return False
        pattern = self._wanted.pattern
        # The name, the path below the store's prefix, or its end as far as someone has written it.
        return pattern is None or fnmatchcase(path, pattern) or fnmatchcase(path, f"*/{pattern}")

    def shown(self, path: str) -> bool:
        return self._wanted.only is None or path in self._wanted.only


def ago(now: datetime, seconds: float) -> datetime:
    """The moment so long ago; before time began, when that is what it takes."""
    try:
        return now - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def moment(text: str) -> datetime:
    """A clock time of the log or of a listing."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
