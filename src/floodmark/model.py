"""The words of Floodmark as frozen values: table, position, window, slice, file, commit.

Nothing here acts or talks to a service. All values survive a round trip through JSON (`dump`, `load`),
because they are what the commit log is written in.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import Field, TypeAdapter

T = TypeVar("T")

# A value of an order or key column in MySQL's own terms: int for integer columns, text for all others
# (temporal values with the session in UTC; binary as "0x" and hex digits).
Value = int | str

# A place in a table's change order: the values of its order columns (cursor, then key). A shorter tuple is
# the place after every row that shares that prefix: (x,) as a low bound means cursor > x.
Position = tuple[Value, ...]

# The values of a row's key columns; None is NULL.
Key = tuple[Value | None, ...]

# JSON has no NaN and no infinity; what holds one was not written by `dump`.
Seconds = Annotated[float, Field(allow_inf_nan=False)]

Mode = Literal["upsert", "append", "full"]
Strategy = Literal["sequential", "inter-table", "intra-table"]


@dataclass(frozen=True)
class Column:
    """One replicated column, as information_schema describes it."""

    name: str
    type: str  # "decimal(18,4) unsigned", "varchar(64)", "enum('a','b')"
    data_type: str  # "decimal", "varchar", "enum", …, lower case
    nullable: bool = True
    characters: int | None = None
    octets: int | None = None
    precision: int | None = None
    scale: int | None = None
    fraction: int | None = None  # sub-second digits of temporal types
    charset: str | None = None
    collation: str | None = None
    default: str | None = None
    extra: str = ""  # "auto_increment", "on update current_timestamp()", "stored generated", …
    # What every row that was read before the column came has in it, as text; None: NULL.
    fill: str | None = None
    generated: str | None = None  # the expression of a generated column, "" of any other; None: not known

    @property
    def unsigned(self) -> bool:
        return "unsigned" in self.type

    @property
    def auto_increment(self) -> bool:
        return "auto_increment" in self.extra.lower()

    @property
    def maintained(self) -> bool:
        """Whether the server's clock writes it whenever a row changes."""
        return "on update current_timestamp" in self.extra.lower()


@dataclass(frozen=True)
class Table:
    """One replicated table: what is read, in which order, and where it goes."""

    schema: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    cursor: str | None
    mode: Mode
    target: str
    where: str | None = None
    key_index: str | None = None  # the index that is the key ("PRIMARY")
    cursor_index: str | None = None  # an index that begins with the cursor
    crooked: tuple[str, ...] = ()  # those of the two that give their order only when they are sorted
    zero_dates: Literal["error", "null", "keep"] = "error"
    overflow: Literal["error", "truncate", "null"] = "error"
    notes: tuple[str, ...] = ()  # what the user should know, said by plan and sync
    dist_key: str | None = None  # of a target that Redshift creates; None: AUTO
    sort_key: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()  # as the configuration declares them
    # What became of the columns since the log began; `lineage` carries it from claim to claim.
    carried: bool = False
    renamed: tuple[tuple[str, str], ...] = ()  # old and new name, in the order in which it happened
    dropped: tuple[Column, ...] = ()
    owed: tuple[str, ...] = ()  # columns for which rows that were read before have to be read again
    owed_parts: tuple[str, ...] = ()  # other parts of the recipe for which they have to be
    deletes: Literal["ignore", "hard", "soft"] | None = None  # None: not known
    # What the cursor counts, where its integers tell the time since 1970.
    unix: Literal["s", "ms", "us", "ns"] | None = None

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def order(self) -> tuple[str, ...]:
        """The columns of a position: the cursor, then the rest of the key."""
        if self.cursor is None:
            return ()
        return (self.cursor, *(k for k in self.key if k != self.cursor))

    def column(self, name: str) -> Column:
        return next(c for c in self.columns if c.name == name)

    @property
    def fingerprint(self) -> str:
        """Identifies what a data file of this table looks like."""
        shape: list[Any] = [[c.name, c.type, c.charset, c.nullable] for c in self.columns]
        shape.append([list(self.key), self.zero_dates, self.overflow])
        return hashlib.sha256(json.dumps(shape).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Window:
    """The frozen interval (low, high] of positions, and the edges that cut it into slices.

    `by` says in which order the edges run: the cursor's (positions) or the key's (key values). Slice i lies
    after edge i-1 and up to edge i; the first has no lower and the last no upper edge but the window's.
    """

    id: str
    low: Position | None
    high: Position | None  # None only for snapshots
    by: Literal["cursor", "key", "snapshot"]
    edges: tuple[Position, ...] = ()
    bound: Seconds | None = None  # the moment (UTC, epoch seconds) below which the source was settled
    rows: int = 0  # an estimate
    done: tuple[
        int, ...
    ] = ()  # slices that were committed before the window was cut finer, under its earlier id
    ahead: Seconds | None = None  # the source's clock minus ours, in seconds, when the bound was taken
    whole: bool = False  # its rows are committed at once, and take the place of all that the target has

    @property
    def slices(self) -> int:
        return len(self.edges) + 1


@dataclass(frozen=True)
class Zone:
    """The zone of a table's cursors as a sync saw it: its offset from UTC, in seconds, at a moment."""

    at: int
    offset: int
    # Offsets of the zones before it: connections keep the zone that they began with.
    others: tuple[int, ...] = ()
    behind: int = 0  # by how many seconds sessions in zones of their own write earlier cursors


@dataclass(frozen=True)
class Slice:
    """What one Spark task reads: a range of a window, or rows that are read again."""

    kind: Literal["window", "overlap", "loose", "since", "snapshot", "keys"]
    number: int
    by: Literal["cursor", "key", "snapshot"] = "cursor"
    after: Position | None = None  # in the order of `by`, exclusive
    upto: Position | None = None  # in the order of `by`, inclusive
    low: Position | None = None  # the window, filtered where `by` is the key
    high: Position | None = None
    beyond: Value | None = None  # loose rows: cursor IS NULL, or at or after this value
    zero: bool = False  # loose rows: also those with a cursor of 0000-00-00
    keys: tuple[Key, ...] = ()  # the rows of these keys
    rows: int = 0  # an estimate


@dataclass(frozen=True)
class DataFile:
    """One Parquet file, as the task that wrote it describes it."""

    path: str  # below the store's prefix
    rows: int
    bytes: int
    checksum: str  # SHA-256 of the object
    slice: int
    first: Position | None = None  # the lowest and highest position inside, NULL cursors left out
    last: Position | None = None
    truncated: int = 0  # values changed by the `overflow` or `zero_dates` policies
    created_at: str = ""
    etag: str | None = None  # what the store said when the file was put


class Witness(NamedTuple):
    """A row as the source had it: its position, and checksums of some of its cells, by `witnesses.mark`."""

    position: Position
    cells: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True)
class Origin:
    """What tells a source from another one. Each part may be unknown."""

    server: str | None = None  # its UUID
    gtids: str | None = None  # what it had executed: MySQL's set, or MariaDB's position
    table_id: int | None = None  # InnoDB's number for the table
    created: str | None = None  # when the table was made
    witnesses: tuple[Witness, ...] = ()  # rows of it, those with the highest positions last


CommitKind = Literal["open", "claim", "batch", "deletes", "set", "reset", "restore", "clean"]

# Numbers of a log, from the first to the last, both included.
Span = tuple[int, int]

# How the rows of a data commit go into the target; `delete` and `mark` are files of keys, whose rows are removed
# or only marked as deleted.
LoadAs = Literal["merge", "insert", "replace", "delete", "mark"]


@dataclass(frozen=True)
class Owner:
    """Who holds a claim."""

    host: str
    boot: str
    pid: int
    started: str


class GivenUp(NamedTuple):
    """A pending commit that a clean gives up, with what sums over the log have to leave out."""

    n: int
    digest: str
    rows: int
    files: int
    bytes: int
    load_as: LoadAs = "merge"
    beside: bool = False  # rows that were read beside windows


@dataclass(frozen=True)
class Clean:
    """The files that a clean removes, named in the log before the first of them goes.

    Whole commits are named by spans of the log, so that ten thousand files take no more room than ten.
    """

    whole: tuple[Span, ...] = ()  # every file of every data commit inside
    some: tuple[tuple[int, tuple[int, ...]], ...] = ()  # else a commit's number and places in its `files`
    given_up: tuple[GivenUp, ...] = ()  # commits that were pending and will never load
    dropped: tuple[Span, ...] = ()  # the same commits: every data commit inside
    moved: bool = False  # whether the position goes back to the commit's `position`
    files: int = 0  # what goes
    bytes: int = 0


@dataclass(frozen=True)
class Commit:
    """One numbered document of a table's log. Fields that a kind does not use keep their defaults."""

    n: int
    id: str
    log: str
    kind: CommitKind
    table_name: str
    run: str
    at: str  # UTC, "2025-08-14T16:45:33.123456Z"
    prev: str  # digest of commit n-1, "" for commit 0
    schema: str | None = None  # fingerprint of the data files
    # claim
    owner: Owner | None = None
    purpose: str | None = None  # sync, load, deletes, set, reset, restore, clean, repair, retire
    table: Table | None = None  # the table as it is read under this claim
    window: Window | None = None  # the window that this claim opens or resumes
    reread: Window | None = None  # the same for rows that are read again because of their columns
    strategy: str | None = None
    zone: Zone | None = None  # of the cursors that are read under this claim
    origin: Origin | None = None  # the source that is read under this claim
    # batch, deletes
    window_id: str | None = None  # None: rows read again, which move no position
    reread_id: str | None = None  # the re-read whose slices these are
    slices: tuple[int, ...] = ()
    files: tuple[DataFile, ...] = ()
    load_as: LoadAs = "merge"
    overlap: str | None = None  # fingerprint of the overlap that was read again
    seconds: Seconds = 0.0
    # set, reset, restore, clean
    position: Position | None = None
    stages: tuple[Literal["extract", "load"], ...] = ()
    clean: Clean | None = None
    note: str | None = None
    stands_for: str | None = None  # the digest of a lost commit that this one was rebuilt for

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files)

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.files)

    @property
    def is_data(self) -> bool:
        return self.kind in ("batch", "deletes")


def by_key(load_as: LoadAs) -> bool:
    """Whether the files hold keys only."""
    return load_as in ("delete", "mark")


@dataclass(frozen=True)
class Lag:
    """What the source has behind a table's position: seconds of its cursor, or ids."""

    seconds: float | None = None
    ids: int | None = None

    def as_json(self) -> dict[str, float | int | None]:
        return {"seconds": self.seconds, "ids": self.ids}


@dataclass(frozen=True)
class Finding:
    """One discrepancy, or one thing that the user should know of a run."""

    kind: str
    table: str
    detail: str
    more: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "table": self.table, "detail": self.detail, **self.more}


_adapters: dict[type[Any], TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def dump(value: object) -> bytes:
    """The value as canonical JSON: its bytes are what digests are made of."""
    plain = _adapter(type(value)).dump_python(value, mode="json")
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()


def load(kind: type[T], data: bytes) -> T:
    """The value that `dump` wrote; raises ValueError when the bytes are anything else."""
    result: T = _adapter(kind).validate_json(data)
    return result


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


__all__ = [
    "Clean", "Column", "Commit", "CommitKind", "DataFile", "Finding", "GivenUp", "Key", "Lag", "LoadAs", "Mode", "Origin",
    "Owner", "Position", "Seconds", "Slice", "Span", "Strategy", "Table", "Value", "Window", "Witness", "Zone",
    "by_key", "digest", "dump", "load", "replace",
]  # fmt: skip
