"""A table's state as the fold of its commit log. Pure: no store, no clock.

The fold is also the judge: a commit that breaks the chain, or that was written by a run that did not hold the
newest claim, raises DataError. Folding a checkpoint's newer commits gives exactly the fold of the whole log, and a
state does not grow with it: old data commits are summed up, old file names dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from floodmark.errors import DataError
from floodmark.model import Commit, LoadAs, Origin, Owner, Position, Seconds, Span, Table, Window, Zone
from floodmark.state.older import NO_ROWS, NOTHING_OLDER, Counted, Older, counted
from floodmark.state.spans import merged, within

RECENT_COMMITS = 500  # that a state holds one by one; those before are summed up in `older`
RECENT_FILES = 1000  # that a state names; the published document shows at most as many


class Damaged(DataError):
    """The log can't be read whole, and no copy makes up for it."""


class NothingLeft(Damaged):
    """There are signs that the table had state, and none of it is left."""


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
    """A commit that has something to load."""

    n: int
    digest: str
    rows: int
    files: int
    bytes: int
    at: str
    load_as: LoadAs
    schema: str | None
    described: int  # the claim whose `table` describes these files
    superseded: bool = False  # from before a reset of both stages, or given up: does not load by itself
    cleaned: bool = False  # files of it were removed: can't load again
    beside: bool = False  # rows that were read beside windows


class FileRef(NamedTuple):
    """A file and the commit that names it."""

    n: int
    path: str


@dataclass(frozen=True)
class State:
    """Everything that a table's log says."""

    table_name: str
    log: str = ""
    n: int = -1  # the last commit; -1: there is no log yet
    digest: str = ""
    claim: ClaimInfo | None = None
    # extraction
    position: Position | None = None
    started: bool = False  # whether a position was ever given, by reading or by hand, since the last reset
    began: Position | None = None  # where reading began: what lies before was never promised
    window: Window | None = None  # open: not all slices are committed
    done: tuple[int, ...] = ()  # its committed slices
    bound: Seconds | None = None  # of the last window that was closed
    ahead: Seconds | None = None  # how far the source's clock was ahead of the reader's at that bound
    zone: Zone | None = None  # of the cursors, as the last claim that read has seen it
    overlap: str | None = None
    reread: Window | None = None  # open: rows that are read again, once, because columns came or changed
    strategy: str | None = None
    origin: Origin | None = None  # the source that rows were last read from
    manual: bool = False
    manual_timestamp: str | None = None
    table: Table | None = None  # as last described by a claim
    described: int = -1  # the number of that claim
    # epochs: numbers of the commits that reset a stage
    extract_epoch: int = 0
    load_epoch: int = 0
    superseded: int = 0  # data commits below this number no longer load by themselves
    # sums since extract_epoch
    rows: int = 0
    files: int = 0
    bytes: int = 0
    batches: int = 0
    seconds: Seconds = 0.0
    # what there is to load
    data: tuple[DataCommit, ...] = ()
    older: Older = NOTHING_OLDER
    apart: bool = False  # whether rows of windows are told from others; earlier versions did not
    cleaned: tuple[Span, ...] = ()  # data commits in these have lost files to a clean
    dropped: tuple[Span, ...] = ()  # of these, those that were pending, since the last reset of both stages
    recent_files: tuple[FileRef, ...] = ()
    # clock times
    created_at: str | None = None
    updated_at: str | None = None
    last_extraction_time: str | None = None
    moved_at: str | None = None  # the last set, reset or restore, or clean that moved the position
    deletes_at: str | None = None  # the last look for rows that the source no longer has
    retired: bool = False  # no longer meant by `sync --all`

    @property
    def read_upto(self) -> Position | None:
        """The highest position of which rows may have been read; None: none were, or only whole copies."""
        left = self.window if self.done and self.window and self.window.by != "snapshot" else None
        return left.high if left else self.position

    @property
    def looked_at(self) -> bool:
        """Whether a sync has looked at the source since the position was last taken away, if only to find no row."""
        return self.started or (self.last_extraction_time or "") > (self.moved_at or "")

    @property
    def extracted(self) -> Counted:
        """Rows read since the last reset of the extraction; those of files that were given up are not among them."""
        if not self.apart:
            return Counted(self.rows)
        since = (d for d in self.data if d.n > self.extract_epoch and not d.superseded)
        return counted(self.older.extracted, since)

    @property
    def live(self) -> tuple[DataCommit, ...]:
        """The data commits, of those held one by one, that load by themselves."""
        return tuple(d for d in self.data if not d.superseded)

    @property
    def live_files(self) -> int:
        """Files of all commits that load by themselves."""
        return self.older.files + sum(d.files for d in self.data if not d.superseded)


def fold(state: State | None, commit: Commit, digest: str) -> State:
    """The state after one more commit, whose bytes have the given digest."""
    before = state if state is not None else State(commit.table_name)
    _check(before, commit)
    seconds = before.seconds + commit.seconds
    after = replace(before, n=commit.n, digest=digest, updated_at=commit.at, seconds=seconds)
    match commit.kind:
        case "open":
            return replace(after, log=commit.log, created_at=commit.at, apart=True)
        case "claim":
            return _claim(after, commit)
        case "batch" | "deletes":
            return _data(after, commit, digest)
        case "set":
            if not commit.position:
                raise _broken(commit, "sets no position")
            said = commit.position[0] if isinstance(commit.position[0], str) else None
            # Whoever sets a position by hand answers for what the source was before.
            after = replace(_moved(after, commit), origin=None)
            return replace(after, started=True, manual=True, manual_timestamp=said)
        case "restore":
            return replace(_moved(after, commit), started=commit.position is not None, zone=before.zone)
        case "reset":
            return _reset(after, commit)
        case "clean":
            return _clean(after, commit)


def _check(state: State, commit: Commit) -> None:
    if commit.table_name != state.table_name:
        raise _broken(commit, f"belongs to {commit.table_name}", state.table_name)
    if commit.n != state.n + 1:
        raise _broken(commit, f"follows commit {state.n}")
    if commit.prev != state.digest:
        raise _broken(commit, "does not continue the commit before it")
    if (commit.kind == "open") != (state.n < 0):
        raise _broken(commit, f"is of kind {commit.kind}")
    if state.n >= 0 and commit.log != state.log:
        raise _broken(commit, f"belongs to another log ({commit.log})")
    if commit.kind not in ("open", "claim") and (state.claim is None or state.claim.run != commit.run):
        holder = state.claim.run if state.claim else "nobody"
        raise _broken(commit, f"is by run {commit.run}, but the table was claimed by {holder}")


def _broken(commit: Commit, why: str, table: str | None = None) -> Damaged:
    return Damaged(
        f"the commit log is damaged: commit {commit.n} {why}",
        hint="restore the table's commits/ objects from a backup of the store",
        table=table or commit.table_name,
    )


def _claim(state: State, commit: Commit) -> State:
    claim = ClaimInfo(commit.n, commit.id, commit.run, commit.at, commit.owner, commit.purpose)
    # The claim by which a table is retired says so by its purpose; the next sync brings it back.
    retired = commit.purpose == "retire" or (state.retired and commit.purpose != "sync")
    strategy, zone = commit.strategy or state.strategy, commit.zone or state.zone
    origin = commit.origin or state.origin
    state = replace(state, claim=claim, strategy=strategy, retired=retired, zone=zone, origin=origin)
    if commit.table is not None:
        if state.table is not None and state.table.where != commit.table.where:
            state = replace(state, deletes_at=None)  # rows may have left it: the next sync looks
        state = replace(begun_anew(state, commit.table), table=commit.table, described=commit.n)
    if commit.reread is not None and (state.reread is None or commit.reread.id != state.reread.id):
        state = replace(state, reread=commit.reread)
    if commit.window is None:  # a load, a set, …: an open window waits for the next extraction
        return state
    if state.position is None and not state.started:
        state = replace(state, began=commit.window.low)
    if state.window is None or commit.window.id != state.window.id:
        return replace(state, window=commit.window, done=commit.window.done)
    if commit.window != state.window:
        raise _broken(commit, f"changes the open window {state.window.id}")
    return state


def begun_anew(state: State, table: Table) -> State:
    """The state of a table that was read whole and now is by its cursor: a position from before says nothing."""
    if state.table is None or state.table.mode != "full" or table.mode == "full":
        return state
    return replace(
        state, position=None, began=None, started=False, window=None, done=(), bound=None, ahead=None, overlap=None,
        reread=None, manual=False, manual_timestamp=None,
    )  # fmt: skip


def _data(state: State, commit: Commit, digest: str) -> State:
    if commit.window_id is not None:
        state = _mark(state, commit)
    if state.reread is not None and commit.reread_id == state.reread.id:
        left = replace(state.reread, done=tuple(sorted({*state.reread.done, *commit.slices})))
        state = replace(state, reread=left if len(left.done) < left.slices else None)
    if commit.kind == "batch":
        state = replace(state, last_extraction_time=commit.at, overlap=commit.overlap or state.overlap)
    else:
        state = replace(state, deletes_at=commit.at)
    data = data_commit(commit, digest, state.described)
    if data is None:
        return state
    names = tuple(FileRef(commit.n, f.path) for f in commit.files[-RECENT_FILES:])
    return _compact(
        replace(
            state,
            rows=state.rows + data.rows,
            files=state.files + data.files,
            bytes=state.bytes + data.bytes,
            batches=state.batches + 1,
            data=(*state.data, data),
            recent_files=(*state.recent_files, *names)[-RECENT_FILES:],
        )
    )


def data_commit(commit: Commit, digest: str, described: int) -> DataCommit | None:
    """What there is to load of a commit, or None.

    Slices without rows have nothing to load; an empty snapshot has: it empties the target.
    """
    if not commit.is_data or (not commit.files and commit.load_as != "replace"):
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
        beside=commit.window_id is None,
    )


def _mark(state: State, commit: Commit) -> State:
    """Slices of the open window are committed: the position goes on as far as nothing is missing before it."""
    window = state.window
    if window is None or window.id != commit.window_id:
        raise _broken(commit, f"has slices of window {commit.window_id}, which is not open")
    state = replace(state, started=True, manual=False, manual_timestamp=None)
    closed = replace(state, window=None, done=(), bound=window.bound, ahead=window.ahead)
    if window.by == "snapshot":
        return closed
    done = {*state.done, *commit.slices}
    if len(done) != len(state.done) + len(commit.slices):
        raise _broken(commit, f"commits a slice of window {window.id} a second time")
    if any(i < 0 or i >= window.slices for i in done):
        raise _broken(commit, f"has a slice that window {window.id} does not have")
    if len(done) == window.slices:
        # The bound moves only now: until the window is closed, rows may still wait to be read again before it.
        return replace(closed, position=window.high)
    prefix = next(i for i in range(window.slices) if i not in done)
    if window.by == "cursor" and prefix:
        state = replace(state, position=window.edges[prefix - 1])
    return replace(state, done=tuple(sorted(done)))


def _compact(state: State) -> State:
    """Sums up the data commits that are too many to be held one by one."""
    surplus = len(state.data) - RECENT_COMMITS
    if surplus <= 0:
        return state
    older = state.older
    for d in state.data[:surplus]:
        if d.superseded:
            older = replace(older, upto=d.n)
        else:
            older = older.plus(d, extracted=d.n > state.extract_epoch)
    return replace(state, data=state.data[surplus:], older=older)


def _clean(state: State, commit: Commit) -> State:
    """Files are no longer there; commits that were given up are as if they had been superseded."""
    clean = commit.clean
    if clean is None:
        raise _broken(commit, "cleans nothing")
    cleaned = merged((*state.cleaned, *clean.whole, *((n, n) for n, _ in clean.some)))
    older = state.older
    for gone in clean.given_up:
        if gone.n <= older.upto:
            older = older.minus(gone, extracted=gone.n > state.extract_epoch)
    state = replace(
        state,
        cleaned=cleaned,
        dropped=merged((*state.dropped, *clean.dropped)),
        data=tuple(
            d._replace(
                cleaned=d.files > 0 and within(cleaned, d.n),
                superseded=d.superseded or within(clean.dropped, d.n),
            )
            for d in state.data
        ),
        older=older,
        recent_files=tuple(f for f in state.recent_files if not within(clean.dropped, f.n)),
        # Keys among what is given up are found again only by another look.
        deletes_at=None if clean.given_up else state.deletes_at,
    )
    if not clean.moved:
        return state
    started = commit.position is not None
    return replace(_moved(state, commit), began=state.began, started=started, zone=state.zone)


def _moved(state: State, commit: Commit) -> State:
    """The extraction's position is another one; no file is forgotten by it."""
    return replace(
        state,
        position=commit.position,
        began=None,
        window=None,
        done=(),
        bound=None,
        ahead=None,
        zone=None,
        overlap=None,
        manual=False,
        manual_timestamp=None,
        moved_at=commit.at,
    )


def _reset(state: State, commit: Commit) -> State:
    if not commit.stages:
        raise _broken(commit, "resets no stage")
    state = replace(state, moved_at=commit.at, deletes_at=None)
    if "load" in commit.stages:
        state = replace(state, load_epoch=commit.n)
    if "extract" not in commit.stages:
        return state
    state = replace(
        _moved(state, replace(commit, position=None)),
        started=False,
        reread=None,
        strategy=None,
        origin=None,
        extract_epoch=commit.n,
        rows=0,
        files=0,
        bytes=0,
        batches=0,
        seconds=0.0,
        older=replace(state.older, extracted=NO_ROWS),
        last_extraction_time=None,
    )
    if "load" not in commit.stages:  # what was extracted before still loads
        return state
    return replace(
        state,
        superseded=commit.n,
        data=tuple(d._replace(superseded=True) for d in state.data),
        older=Older(state.older.upto),
        dropped=(),
    )
