"""The commits of a table's log or of the source's log of changes, and the files they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from floodmark.model.changes import FollowedChanges, FollowedTo, KeyDescription, LogEnd, LogIdentity
from floodmark.model.json import Seconds, load
from floodmark.model.origin import Origin
from floodmark.model.position import Position
from floodmark.model.table import Table
from floodmark.model.window import Window
from floodmark.model.zones import Zone


@dataclass(frozen=True)
class DataFile:
    """One Parquet file, as described by the task that wrote it."""

    path: str  # relative to the store's prefix
    rows: int
    bytes: int
    checksum: str  # SHA-256 of the object
    slice: int
    first: Position | None = None  # the lowest and highest position in the file, ignoring NULL cursors
    last: Position | None = None
    truncated: int = 0  # values changed by the `overflow` or `zero_dates` policies
    created_at: str = ""
    etag: str | None = None  # as returned by the store when the file was put


# Bytes per row in files, on average, from which rows are wide: commits and loads then have fewer of them.
WIDE_ROW = 16_384
# Bytes in files of wide rows that a commit has, and a load that is held in memory: a commit is never split over loads.
WIDE_BYTES = 16_000_000


def wide(rows: int, size: int) -> bool:
    """Whether so many rows, of so many bytes in files, are wide on average."""
    return size >= rows * WIDE_ROW


@dataclass(frozen=True)
class SnapshotDigest:
    """The rows that a snapshot held: the sum of their keyed hashes (`row_hash`), and the key; both in hex."""

    key: str
    sum: str


# Commit numbers from the first to the last, both included.
Span = tuple[int, int]

# How a data commit is applied to the target; the files of `delete` and `mark` hold keys, whose rows are
# removed or marked as deleted.
LoadAs = Literal["merge", "insert", "replace", "delete", "mark"]


@dataclass(frozen=True)
class Owner:
    """The process that holds a claim."""

    host: str
    boot: str
    pid: int
    started: str


class GivenUp(NamedTuple):
    """A pending commit that a clean gives up, with the numbers to subtract from the log's totals."""

    n: int
    digest: str
    rows: int
    files: int
    bytes: int
    load_as: LoadAs = "merge"
    beside: bool = False  # its rows were read outside windows


@dataclass(frozen=True)
class CleanedFiles:
    """The files that a clean removes, recorded in the log before the first one is deleted.

    Whole commits are recorded as spans of numbers, so that ten thousand files take no more room than ten.
    """

    whole: tuple[Span, ...] = ()  # every file of every data commit in these spans
    some: tuple[tuple[int, tuple[int, ...]], ...] = ()  # else a commit's number and indexes into its `files`
    given_up: tuple[GivenUp, ...] = ()  # pending commits that will never load
    dropped: tuple[Span, ...] = ()  # the same commits: every data commit in these spans
    moved: bool = False  # whether the position goes back to the commit's `position`
    files: int = 0  # totals of what is removed
    bytes: int = 0


# The JSON keys of every stored commit, with the defaults for those that its kind does not use.
_STORED: Mapping[str, Any] = {
    **dict.fromkeys(("n", "id", "log", "kind", "table_name", "run", "at", "prev", "schema", "owner", "purpose", "table")),
    **dict.fromkeys(("window", "reread", "strategy", "zone", "origin", "window_id", "reread_id")),
    "slices": [], "files": [], "load_as": "merge", "overlap": None, "seconds": 0.0, "position": None, "stages": [],
    "clean": None, "note": None, "stands_for": None,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Commit:
    """One numbered document of a table's log: the fields common to all kinds."""

    n: int
    id: str
    log: str
    kind: str
    table_name: str
    run: str
    at: str  # UTC, "2025-08-14T16:45:33.123456Z"
    prev: str  # digest of commit n-1, "" for commit 0
    note: str | None = None
    stands_for: str | None = None  # the digest of the lost commit that this one replaces

    @model_serializer(mode="wrap")
    def _stored(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A commit from before a key existed is written as it was read: its digest is in the one after it.
        return {**_STORED, **{k: v for k, v in plain(self).items() if k in _STORED or v is not None}}


@dataclass(frozen=True, kw_only=True)
class Open(Commit):
    """The first commit of a log."""

    kind: Literal["open"] = "open"


@dataclass(frozen=True, kw_only=True)
class Claim(Commit):
    """A run takes the table: until the next claim, only its commits may follow."""

    kind: Literal["claim"] = "claim"
    owner: Owner | None = None
    purpose: str | None = None  # sync, load, deletes, set, reset, restore, clean, repair, retire, changes
    table: Table | None = None  # the table as read under this claim
    window: Window | None = None  # the window that this claim opens or resumes
    reread: Window | None = None  # the same for rows reread because of column changes
    strategy: str | None = None
    zone: Zone | None = None  # the time zone of the cursors read under this claim
    origin: Origin | None = None  # the source read under this claim


@dataclass(frozen=True, kw_only=True)
class WithFiles(Commit):
    """A commit that may have something to load."""

    schema: str | None = None  # fingerprint of the data files
    files: tuple[DataFile, ...] = ()
    load_as: LoadAs = "merge"
    seconds: Seconds = 0.0

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files)

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.files)

    @property
    def beside(self) -> bool:
        """Whether its rows were read outside windows, so that it moves no position."""
        return True


@dataclass(frozen=True, kw_only=True)
class Batch(WithFiles):
    """Rows read from the source."""

    kind: Literal["batch"] = "batch"
    window_id: str | None = None  # None: reread rows
    reread_id: str | None = None  # the reread that these slices belong to
    slices: tuple[int, ...] = ()
    overlap: str | None = None  # fingerprint of the reread overlap
    snapshot: SnapshotDigest | None = None  # None: no snapshot, or its rows were not hashed
    followed_to: FollowedTo | None = (
        None  # where the table stands now: in the last commit of a pass over changes
    )

    @property
    def beside(self) -> bool:
        return self.window_id is None and self.followed_to is None


@dataclass(frozen=True, kw_only=True)
class Deletes(WithFiles):
    """Keys of rows that the source no longer has, or that no longer match `where`."""

    kind: Literal["deletes"] = "deletes"
    purpose: Literal["where"] | None = None  # outside it, as rows were read; None: a search found them
    followed_to: FollowedTo | None = None


@dataclass(frozen=True, kw_only=True)
class Changes(WithFiles):
    """What one read of the source's binary log found; its files hold the keys of changed rows."""

    kind: Literal["changes"] = "changes"
    followed: FollowedChanges
    end: LogEnd
    identity: LogIdentity  # of the log at `followed.next_start`
    # From that place on: the tables that are listened for, or described anew, besides those of earlier commits,
    described: tuple[KeyDescription, ...] = ()
    left: tuple[str, ...] = ()  # and those that no longer are.


@dataclass(frozen=True, kw_only=True)
class Set(Commit):
    """A position set by hand."""

    kind: Literal["set"] = "set"
    position: Position | None = None


@dataclass(frozen=True, kw_only=True)
class Reset(Commit):
    """Stages that start over."""

    kind: Literal["reset"] = "reset"
    stages: tuple[Literal["extract", "load"], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Restore(Commit):
    """A position restored from the table's past, or taken over from another tool."""

    kind: Literal["restore"] = "restore"
    position: Position | None = None
    followed_to: FollowedTo | None = None


@dataclass(frozen=True, kw_only=True)
class Clean(Commit):
    """Removal of files."""

    kind: Literal["clean"] = "clean"
    clean: CleanedFiles | None = None
    position: Position | None = None  # where reading resumes, if the clean moves the position
    followed_to: FollowedTo | None = None


_ANY: Any = Annotated[
    Open | Claim | Batch | Deletes | Changes | Set | Reset | Restore | Clean, Field(discriminator="kind")
]


def read_commit(data: bytes) -> Commit:
    """The commit in these bytes; ValueError if they hold anything else."""
    found: Commit = load(_ANY, data)
    return found


def files_of(commit: Commit) -> tuple[DataFile, ...]:
    """The files named by a commit of any kind."""
    return commit.files if isinstance(commit, WithFiles) else ()


def by_key(load_as: LoadAs) -> bool:
    """Whether the files hold only keys."""
    return load_as in ("delete", "mark")
