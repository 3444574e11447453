"""A table's state as the fold of its commit log. Pure: no store, no clock.

The fold also validates: a commit that breaks the chain, or whose run did not hold the newest claim, raises
DataError. Folding newer commits onto a checkpoint gives exactly the fold of the whole log. A state does not
grow with the log: old data commits are reduced to totals, old file names dropped, commits that were cleaned
are kept as spans (first and last number; the spans of a set are sorted and never adjoin).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from pydantic import Field

from floodmark.log.changes import SourceState, contradiction, source_after
from floodmark.model.changes import SOURCE_LOG, FollowedTo
from floodmark.model.commit import (
    Batch,
    Changes,
    Claim,
    Clean,
    Commit,
    Deletes,
    GivenUp,
    LoadAs,
    Open,
    Owner,
    Reset,
    Restore,
    Set,
    Span,
    WithFiles,
    by_key,
)
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.json import Flat, Seconds
from floodmark.model.origin import Origin
from floodmark.model.position import Position
from floodmark.model.table import Table
from floodmark.model.window import Window
from floodmark.model.zones import Zone

RECENT_COMMITS = 500  # data commits that a state lists individually; earlier ones are totalled in `older`
RECENT_FILES = 1000  # file names that a state keeps; the published document shows no more than these


class Damaged(DataError):
    """The log can't be read completely, and no copy fills the gap."""


class NothingLeft(Damaged):
    """There are signs that the table had state, but none of it is left."""


@dataclass(frozen=True)
class ClaimInfo:
    """The newest claim: who may commit."""

    n: int
    id: str
    run: str
    at: str
    owner: Owner | None
    purpose: str | None


# Named tuples, because they become arrays in JSON: a checkpoint holds hundreds of them.
class DataCommit(NamedTuple):
    """A commit with something to load."""

    n: int
    digest: str
    rows: int
    files: int
    bytes: int
    at: str
    load_as: LoadAs
    schema: str | None
    described: int  # the claim whose `table` describes these files
    superseded: bool = False  # from before a reset of both stages, or given up: no longer loads automatically
    cleaned: bool = False  # some of its files were removed: can't load again
    beside: bool = False  # its rows were read outside windows


class Counted(NamedTuple):
    """Row counts as shown to people; keys of deleted rows are not counted."""

    rows: int = 0  # of windows
    reread: int = 0  # read outside windows, most of them for the second time


NO_ROWS = Counted()


def counted(so_far: Counted, data: Iterable[DataCommit | GivenUp]) -> Counted:
    """The count after these data commits, in log order; a complete snapshot replaces all rows before it."""
    rows, reread = so_far
    for d in data:
        if d.load_as == "replace":
            rows, reread = d.rows, 0
        elif d.beside and not by_key(d.load_as):
            reread += d.rows
        elif not by_key(d.load_as):
            rows += d.rows
    return Counted(rows, reread)


def _without(count: Counted, gone: GivenUp) -> Counted:
    one = counted(NO_ROWS, (gone,))
    return Counted(max(0, count.rows - one.rows), max(0, count.reread - one.reread))


@dataclass(frozen=True)
class Older:
    """Totals of the data commits up to `upto`, which are no longer listed; superseded ones excluded."""

    upto: int = 0
    commits: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    check: str = ""  # sum of the digests: equal only for the same set of commits
    counted: Counted = NO_ROWS
    extracted: Counted = NO_ROWS  # the same since the last reset of the extraction

    def plus(self, d: DataCommit, *, extracted: bool) -> Older:
        """The totals including the next commit."""
        return Older(
            d.n,
            self.commits + 1,
            self.rows + d.rows,
            self.files + d.files,
            self.bytes + d.bytes,
            sum_digests([self.check, d.digest]),
            counted(self.counted, (d,)),
            counted(self.extracted, (d,)) if extracted else self.extracted,
        )

    def minus(self, gone: GivenUp, *, extracted: bool) -> Older:
        """The totals without a commit that was given up."""
        return replace(
            self,
            commits=self.commits - 1,
            rows=self.rows - gone.rows,
            files=self.files - gone.files,
            bytes=self.bytes - gone.bytes,
            check=without_digest(self.check, gone.digest),
            counted=_without(self.counted, gone),
            extracted=_without(self.extracted, gone) if extracted else self.extracted,
        )


def sum_digests(digests: Iterable[str]) -> str:
    """The sum of the digests: equal for equal sets, in any order."""
    return f"{sum(int(d or '0', 16) for d in digests) % (1 << 256):064x}"


def without_digest(check: str, digest: str) -> str:
    """The sum of digests without one of them."""
    return f"{(int(check or '0', 16) - int(digest, 16)) % (1 << 256):064x}"


class FileRef(NamedTuple):
    """A file and the commit that names it."""

    n: int
    path: str


@dataclass(frozen=True)
class Progress:
    """How far the source has been read. A set, a restore or a reset of the extraction starts a new one."""

    position: Position | None = None
    started: bool = False  # whether a position was set, by reading or by hand, since the last reset
    began: Position | None = None  # where reading began: rows before it were never promised
    window: Window | None = None  # open: not all slices are committed
    done: tuple[int, ...] = ()  # its committed slices
    bound: Seconds | None = None  # of the last closed window
    ahead: Seconds | None = None  # how far the source's clock was ahead of the reader's at that bound
    zone: Zone | None = None  # the cursors' time zone, as seen by the last claim that read
    overlap: str | None = None
    manual: bool = False
    manual_timestamp: str | None = None
    moved_at: str | None = None  # the last set, reset or restore, or a clean that moved the position
    followed_to: FollowedTo | None = None  # how far the source's log of changes has been followed

    @property
    def scattered(self) -> bool:
        """Whether slices were committed that no position covers: a new window would read them a second time."""
        window, done = self.window, self.done
        return window is not None and bool(done) and (window.by == "key" or done != tuple(range(len(done))))


@dataclass(frozen=True)
class Extraction:
    """How and when the source was read. A reset of the extraction starts a new one."""

    epoch: Annotated[int, Field(alias="extract_epoch")] = 0  # the number of the commit that reset it
    strategy: str | None = None
    origin: Origin | None = None  # the source that rows were last read from
    reread: Window | None = None  # open: rows being reread once because columns were added or changed
    last_extraction_time: str | None = None
    deletes_at: str | None = None  # the last check for rows deleted at the source


@dataclass(frozen=True)
class Totals:
    """What was written since the last reset of the extraction."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    batches: int = 0
    seconds: Seconds = 0.0


@dataclass(frozen=True)
class Data:
    """The commits with something to load, and what became of their files."""

    load_epoch: int = 0  # the number of the commit that reset the load
    superseded: int = 0  # data commits below this number no longer load automatically
    commits: Annotated[tuple[DataCommit, ...], Field(alias="data")] = ()
    older: Older = Older()
    apart: bool = False  # whether rows of windows are counted apart from others; version 0.1.0 did not
    cleaned: tuple[Span, ...] = ()  # data commits in these spans have lost files to a clean
    dropped: tuple[Span, ...] = ()  # of these, pending when cleaned; since the last reset of both stages
    recent_files: tuple[FileRef, ...] = ()


@dataclass(frozen=True)
class State(Flat):
    """Everything that a table's log records, or the source's."""

    PARTS = ("progress", "extraction", "totals", "data")
    STORED = (
        "table_name", "log", "n", "digest", "claim", "position", "started", "began", "window", "done", "bound", "ahead",
        "zone", "overlap", "reread", "strategy", "origin", "manual", "manual_timestamp", "table", "described",
        "extract_epoch", "load_epoch", "superseded", "rows", "files", "bytes", "batches", "seconds", "data", "older",
        "apart", "cleaned", "dropped", "recent_files", "created_at", "updated_at", "last_extraction_time", "moved_at",
        "deletes_at", "retired",
    )  # fmt: skip
    WHERE_USED = ("followed_to", "source")

    table_name: str
    log: str = ""
    n: int = -1  # the last commit; -1: there is no log yet
    digest: str = ""
    claim: ClaimInfo | None = None
    table: Table | None = None  # as last described by a claim
    described: int = -1  # the number of that claim
    retired: bool = False  # left out of `sync --all`
    created_at: str | None = None
    updated_at: str | None = None
    progress: Progress = Progress()
    extraction: Extraction = Extraction()
    totals: Totals = Totals()
    data: Data = Data()
    source: SourceState | None = None  # only in the source's log of changes

    # Shortcuts that nearly every step uses.

    @property
    def position(self) -> Position | None:
        return self.progress.position

    @property
    def window(self) -> Window | None:
        return self.progress.window

    @property
    def load_epoch(self) -> int:
        return self.data.load_epoch

    @property
    def followed_to(self) -> FollowedTo | None:
        return self.progress.followed_to

    @property
    def follows_from(self) -> FollowedTo | None:
        """From where on the table needs the source's log: where it stands, or the copy that is left open was begun."""
        return self.followed_to or (self.window.followed_to if self.window is not None else None)

    @property
    def has_read(self) -> bool:
        """Whether rows may have been read since the last reset, not counting full snapshots."""
        if self.table is not None and self.table.mode == "full":
            return self.read_upto is not None
        copying = bool(self.progress.done) and self.window is not None and self.window.followed_to is not None
        return self.read_upto is not None or self.followed_to is not None or copying

    @property
    def read_upto(self) -> Position | None:
        """The highest position whose rows may have been read; None: no rows were, or only full snapshots."""
        left = self.window if self.progress.done and self.window and self.window.by != "snapshot" else None
        return left.high if left else self.position

    @property
    def looked_at(self) -> bool:
        """Whether a sync has looked at the source since the position was removed, even if it found no rows."""
        last = self.extraction.last_extraction_time or ""
        return self.progress.started or last > (self.progress.moved_at or "")

    @property
    def extracted(self) -> Counted:
        """Rows read since the last reset of the extraction, without those in files that were given up."""
        since = (d for d in self.live if d.n > self.extraction.epoch)
        return counted(self.data.older.extracted, since)

    @property
    def has_data(self) -> bool:
        """Whether any commit, superseded or not, had something to load."""
        return bool(self.data.commits or self.data.older.upto)

    @property
    def has_had_rows(self) -> bool:
        """Whether any row was ever committed, before a reset or after it."""
        return bool(self.data.older.upto) or any(d.rows for d in self.data.commits)

    @property
    def live(self) -> tuple[DataCommit, ...]:
        """The individually listed data commits that load automatically."""
        return tuple(d for d in self.data.commits if not d.superseded)

    @property
    def live_files(self) -> int:
        """Number of files in all commits that load automatically."""
        return self.data.older.files + sum(d.files for d in self.live)


def would_duplicate(table: Table, state: State) -> bool:
    """Whether reading or loading rows a second time would duplicate them in the target."""
    return state.has_data and table.mode == "append" and not table.key


def duplicates(table: Table) -> ConfigError:
    return ConfigError(
        f"{table.name} has no key: rows that are read or loaded again would be duplicated",
        hint=f"empty {table.target} first, then repeat the command with --force",
        table=table.name,
    )


def fold(before: State, commit: Commit, digest: str) -> State:
    """The state after one more commit, whose bytes have the given digest."""
    _check(before, commit)
    after = replace(before, n=commit.n, digest=digest, updated_at=commit.at)
    match commit:
        case Open():
            data = replace(after.data, apart=True)
            return replace(after, log=commit.log, created_at=commit.at, data=data)
        case Claim():
            return _claim(after, commit)
        case Changes():
            return _changes(after, commit)
        case WithFiles():
            return _data(after, commit, digest)
        case Set():
            if not commit.position:
                raise _broken(commit, "sets no position")
            said = commit.position[0] if isinstance(commit.position[0], str) else None
            by_hand = Progress(
                commit.position, started=True, manual=True, manual_timestamp=said, moved_at=commit.at
            )
            # A position set by hand applies to whatever source is configured: forget the previous one.
            return replace(after, progress=by_hand, extraction=replace(after.extraction, origin=None))
        case Restore():
            return replace(after, progress=_moved(commit, zone=before.progress.zone))
        case Reset():
            return _reset(after, commit)
        case Clean():
            return _clean(after, commit)
    raise _broken(commit, f"is of kind {commit.kind}")


def _check(state: State, commit: Commit) -> None:
    if commit.table_name != state.table_name:
        raise _broken(commit, f"belongs to {commit.table_name}", state.table_name)
    if commit.n != state.n + 1:
        raise _broken(commit, f"follows commit {state.n}")
    if commit.prev != state.digest:
        raise _broken(commit, "does not continue the commit before it")
    if isinstance(commit, Open) != (state.n < 0):
        raise _broken(commit, f"is of kind {commit.kind}")
    if state.n >= 0 and commit.log != state.log:
        raise _broken(commit, f"belongs to another log ({commit.log})")
    if not isinstance(commit, Open | Claim | Clean) and (state.table_name == SOURCE_LOG) != isinstance(
        commit, Changes
    ):
        raise _broken(commit, f"is of kind {commit.kind}, which is not of this log")
    if not isinstance(commit, Open | Claim) and (state.claim is None or state.claim.run != commit.run):
        holder = state.claim.run if state.claim else "nobody"
        raise _broken(commit, f"is by run {commit.run}, but the table was claimed by {holder}")


def _broken(commit: Commit, why: str, table: str | None = None) -> Damaged:
    return Damaged(
        f"the commit log is damaged: commit {commit.n} {why}",
        hint="restore the table's commits/ objects from a backup of the store",
        table=table or commit.table_name,
    )


def _claim(state: State, commit: Claim) -> State:
    claim = ClaimInfo(commit.n, commit.id, commit.run, commit.at, commit.owner, commit.purpose)
    # A claim with the purpose `retire` retires the table; the next sync brings it back.
    retired = commit.purpose == "retire" or (state.retired and commit.purpose != "sync")
    extraction = replace(
        state.extraction,
        strategy=commit.strategy or state.extraction.strategy,
        origin=commit.origin or state.extraction.origin,
    )
    progress = replace(state.progress, zone=commit.zone or state.progress.zone)
    state = replace(state, claim=claim, retired=retired, extraction=extraction, progress=progress)
    if commit.table is not None:
        if state.table is not None and state.table.recipe.where != commit.table.recipe.where:
            # Rows may no longer match: the next sync checks for deletes.
            state = replace(state, extraction=replace(extraction, deletes_at=None))
        state = replace(restarted_by(state, commit.table), table=commit.table, described=commit.n)
    reread = state.extraction.reread
    if commit.reread is not None and (reread is None or commit.reread.id != reread.id):
        state = replace(state, extraction=replace(state.extraction, reread=commit.reread))
    progress = state.progress
    if commit.window is None:  # a load, a set, …: leave an open window for the next extraction
        left = progress.window
        if commit.purpose == "sync" and left is not None and left.by != "snapshot" and not left.whole:
            # The sync planned none: a window of which nothing was read is given up.
            progress = replace(progress, window=left if progress.done else None)
        return replace(state, progress=progress)
    if progress.position is None and not progress.started:
        progress = replace(progress, began=commit.window.low)
    if progress.window is None or commit.window.id != progress.window.id:
        progress = replace(progress, window=commit.window, done=commit.window.done)
        if commit.window.followed_to is not None:
            # A copy finds no row that was deleted before it began: a search for deletes follows it.
            state = replace(state, extraction=replace(state.extraction, deletes_at=None))
    elif commit.window != progress.window:
        raise _broken(commit, f"changes the open window {progress.window.id}")
    return replace(state, progress=progress)


def restarted_by(state: State, table: Table) -> State:
    """The state after a switch from full mode: the old position no longer means anything."""
    if state.table is None or state.table.mode != "full" or table.mode == "full":
        return state
    fresh = Progress(zone=state.progress.zone, moved_at=state.progress.moved_at)
    return replace(state, progress=fresh, extraction=replace(state.extraction, reread=None))


def _changes(state: State, commit: Changes) -> State:
    if why := contradiction(state.source, commit):
        raise _broken(commit, why)
    totals = replace(
        state.totals,
        rows=state.totals.rows + commit.rows,
        files=state.totals.files + len(commit.files),
        bytes=state.totals.bytes + commit.bytes,
        batches=state.totals.batches + 1,
        seconds=state.totals.seconds + commit.seconds,
    )
    return replace(state, source=source_after(state.source, commit), totals=totals)


def _data(state: State, commit: WithFiles, digest: str) -> State:
    if isinstance(commit, Batch | Deletes) and commit.followed_to is not None:
        state = replace(state, progress=_stands(commit, state.progress, commit.followed_to))
    if isinstance(commit, Batch):
        state = _batch(state, commit)
    elif not (isinstance(commit, Deletes) and commit.purpose == "where"):
        state = replace(state, extraction=replace(state.extraction, deletes_at=commit.at))
    totals = replace(state.totals, seconds=state.totals.seconds + commit.seconds)
    new = data_commit(commit, digest, state.described)
    if new is None:
        return replace(state, totals=totals)
    names = tuple(FileRef(commit.n, f.path) for f in commit.files[-RECENT_FILES:])
    totals = replace(
        totals,
        rows=totals.rows + new.rows,
        files=totals.files + new.files,
        bytes=totals.bytes + new.bytes,
        batches=totals.batches + 1,
    )
    data = replace(
        state.data,
        commits=(*state.data.commits, new),
        recent_files=(*state.data.recent_files, *names)[-RECENT_FILES:],
    )
    return replace(state, totals=totals, data=_compact(data, state.extraction.epoch))


def _batch(state: State, commit: Batch) -> State:
    progress, extraction = state.progress, state.extraction
    if commit.window_id is not None:
        progress = _mark(progress, commit)
    progress = replace(progress, overlap=commit.overlap or progress.overlap)
    if extraction.reread is not None and commit.reread_id == extraction.reread.id:
        left = replace(extraction.reread, done=tuple(sorted({*extraction.reread.done, *commit.slices})))
        extraction = replace(extraction, reread=left if len(left.done) < left.slices else None)
    return replace(state, progress=progress, extraction=replace(extraction, last_extraction_time=commit.at))


def _stands(commit: Commit, progress: Progress, now: FollowedTo) -> Progress:
    """The progress of a table that has followed the source's log so far; a position that it had means nothing any more.

    A table never follows a log backwards.
    """
    before = progress.followed_to
    if before is not None and before.log == now.log and now.n < before.n:
        raise _broken(commit, f"follows the source's log to {now.n}, but it was followed to {before.n}")
    if progress.position is None:
        return replace(progress, started=True, followed_to=now)
    return Progress(started=True, moved_at=progress.moved_at, followed_to=now)


def data_commit(commit: Commit, digest: str, described: int) -> DataCommit | None:
    """What a commit has to load, or None.

    Slices without rows have nothing to load. An empty snapshot does: loading it empties the target.
    """
    if not isinstance(commit, WithFiles) or (not commit.files and commit.load_as != "replace"):
        return None
    return DataCommit(
        n=commit.n,
        digest=digest,
        rows=commit.rows,
        files=len(commit.files),
        bytes=commit.bytes,
        at=commit.at,
        load_as=commit.load_as,
        schema=commit.schema,
        described=described,
        beside=commit.beside,
    )


def _mark(progress: Progress, commit: Batch) -> Progress:
    """Marks slices of the open window as committed; the position advances as far as there are no gaps."""
    window = progress.window
    if window is None or window.id != commit.window_id:
        raise _broken(commit, f"has slices of window {commit.window_id}, which is not open")
    progress = replace(progress, started=True, manual=False, manual_timestamp=None)
    closed = replace(progress, window=None, done=(), bound=window.bound, ahead=window.ahead)
    if window.by == "snapshot":
        return replace(closed, followed_to=window.followed_to)
    done = {*progress.done, *commit.slices}
    if len(done) != len(progress.done) + len(commit.slices):
        raise _broken(commit, f"commits a slice of window {window.id} a second time")
    if any(i < 0 or i >= window.slices for i in done):
        raise _broken(commit, f"has a slice that window {window.id} does not have")
    if len(done) == window.slices and window.followed_to is not None:
        return _stands(commit, closed, window.followed_to)
    if len(done) == window.slices:
        # The bound moves only now: until the window closes, rows before it may still have to be reread.
        return replace(closed, position=window.high)
    prefix = next(i for i in range(window.slices) if i not in done)
    if window.by == "cursor" and prefix:
        progress = replace(progress, position=window.edges[prefix - 1])
    return replace(progress, done=tuple(sorted(done)))


def _compact(data: Data, extract_epoch: int) -> Data:
    """Reduces the oldest data commits to totals once there are too many to list."""
    surplus = len(data.commits) - RECENT_COMMITS
    if surplus <= 0:
        return data
    older = data.older
    for d in data.commits[:surplus]:
        older = replace(older, upto=d.n) if d.superseded else older.plus(d, extracted=d.n > extract_epoch)
    return replace(data, commits=data.commits[surplus:], older=older)


def _clean(state: State, commit: Clean) -> State:
    """Records removed files; commits that were given up count as superseded."""
    clean, data = commit.clean, state.data
    if clean is None:
        raise _broken(commit, "cleans nothing")
    cleaned = merged((*data.cleaned, *clean.whole, *((n, n) for n, _ in clean.some)))
    older = data.older
    for gone in clean.given_up:
        if gone.n <= older.upto:
            older = older.minus(gone, extracted=gone.n > state.extraction.epoch)
    data = replace(
        data,
        cleaned=cleaned,
        dropped=merged((*data.dropped, *clean.dropped)),
        commits=tuple(
            d._replace(
                cleaned=d.files > 0 and within(cleaned, d.n),
                superseded=d.superseded or within(clean.dropped, d.n),
            )
            for d in data.commits
        ),
        older=older,
        recent_files=tuple(f for f in data.recent_files if not within(clean.dropped, f.n)),
    )
    state = replace(state, data=data)
    if state.source is not None:
        return replace(state, source=replace(state.source, cleaned_at=commit.at))
    if clean.given_up:
        # Commits that were given up may hold deleted keys; only another check for deletes finds those again.
        state = replace(state, extraction=replace(state.extraction, deletes_at=None))
    if not clean.moved:
        return state
    return replace(state, progress=_moved(commit, zone=state.progress.zone, began=state.progress.began))


def _moved(commit: Restore | Clean, zone: Zone | None, began: Position | None = None) -> Progress:
    """The progress from the position that a commit goes back to; None: from the start."""
    started = commit.position is not None or commit.followed_to is not None
    return Progress(
        commit.position, started, began, zone=zone, moved_at=commit.at, followed_to=commit.followed_to
    )


def _reset(state: State, commit: Reset) -> State:
    if not commit.stages:
        raise _broken(commit, "resets no stage")
    data = state.data
    if "load" in commit.stages:
        data = replace(data, load_epoch=commit.n)
    if "extract" not in commit.stages:
        progress = replace(state.progress, moved_at=commit.at)
        return replace(
            state, progress=progress, extraction=replace(state.extraction, deletes_at=None), data=data
        )
    if "load" not in commit.stages:  # data extracted before the reset still loads
        data = replace(data, older=replace(data.older, extracted=NO_ROWS))
    else:
        data = replace(
            data,
            superseded=commit.n,
            commits=tuple(d._replace(superseded=True) for d in data.commits),
            older=Older(data.older.upto),
            dropped=(),
        )
    return replace(
        state,
        progress=Progress(moved_at=commit.at),
        extraction=Extraction(epoch=commit.n),
        totals=Totals(),
        data=data,
    )


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The set of all numbers in the spans."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def within(spans: Sequence[Span], n: int) -> bool:
    """Whether a number is in the set."""
    i = bisect_right(spans, (n, float("inf"))) - 1
    return i >= 0 and spans[i][1] >= n


def around(chosen: Collection[int], kept: Iterable[int], last: int) -> tuple[Span, ...]:
    """The chosen numbers in as few spans as possible: each extends to the nearest kept numbers on both sides.

    So claims between two commits don't split a span. No span goes beyond `last`.
    """
    found: list[Span] = []
    barriers = sorted({-1, *kept, last + 1})
    for n in chosen:
        i = bisect_left(barriers, n)
        found.append((barriers[i - 1] + 1, min(barriers[i] - 1, last)))
    return merged(found)
