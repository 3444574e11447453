"""Values of the binary log: places in it, what one read of it found, and how a table's keys are recognized. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from floodmark.model.errors import DataError
from floodmark.model.table import Column, Table

# The name of the source's log of changes among the logs of the store; a table's has a dot.
SOURCE_LOG = "source"


class LogPlace(NamedTuple):
    """A place in the binary log: between two events of a file."""

    file: str  # "binlog.000042"; files sort by their number
    position: int

    @property
    def number(self) -> tuple[int, int]:
        """For comparing: names have six digits, and more after 999,999."""
        return _file_number(self.file), self.position

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"


@lru_cache(maxsize=64)  # every event's place is compared with the end
def _file_number(file: str) -> int:
    return int(file.rpartition(".")[2])


@dataclass(frozen=True)
class LogIdentity:
    """Which binary log a place is in: a reset begins file names again on the same server."""

    server: str  # MySQL: server_uuid; MariaDB: all that tells it from others, as `server_of` has it
    mariadb: bool
    created: int = 0  # the timestamp of the file's Format_description; 0: unknown


@dataclass(frozen=True)
class LogEnd:
    """How far the log may be read: what lies before `place` and in `visible` can be seen by a SELECT."""

    place: LogPlace
    visible: str | None = None  # MySQL's GTID set; None: everything before the place
    gtid: str | None = None  # the same moment as a GTID set or MariaDB's GTID position, for another server
    held_back_by: tuple[str, ...] = ()  # who kept it from being later


@dataclass(frozen=True)
class FollowedTo:
    """How far a table has followed the source's log of changes: it has everything up to there."""

    log: str  # the id of the source's log
    n: int  # its last commit of which everything has been followed
    digest: str
    place: LogPlace  # where that had read the binary log to: another log can go on there
    identity: LogIdentity
    at: str | None = None  # when the last transaction before that place was committed, as a commit's time
    gtid: str | None = None  # the same place for another server


class UnknownEvent(DataError):
    """The log has an event that this version does not know, so that what it says is not known either."""


class DoesNotFit(Exception):
    """A table's description is not the one that its row events were written under; the text says why."""


RowKind = Literal["insert", "update", "delete"]


@dataclass(frozen=True)
class TableMap:
    """How row events of one table are laid out, from the Table_map event before them."""

    schema: str
    table: str
    types: bytes  # MySQL's column type codes
    metadata: tuple[int, ...]  # per column, as the type wants it
    nullable: bytes  # bitmap
    # With binlog_row_metadata=FULL; else None.
    names: tuple[str, ...] | None = None
    key: tuple[int, ...] | None = None  # the primary key's ordinals
    unsigned: tuple[bool, ...] | None = None  # per column; False for those that are not numbers
    unknown: int | None = None  # a type that this version does not know: then `metadata` is empty

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True)
class KeyDescription:
    """What a table's row events are decoded by, as described at the beginning of a stretch of the log."""

    name: str  # schema.table
    columns: tuple[
        tuple[str, str], ...
    ]  # every column in the server's order, replicated or not: name and type
    key: tuple[Column, ...]

    @classmethod
    def of(cls, table: Table) -> KeyDescription:
        """As the table is now."""
        columns = table.source.layout or tuple((column.name, column.type) for column in table.columns)
        return cls(table.name, columns, tuple(table.column(name) for name in table.key))

    @property
    def ordinals(self) -> tuple[int, ...]:
        """The key's columns among all, in the key's order."""
        names = [name for name, _ in self.columns]
        return tuple(names.index(column.name) for column in self.key)


# Why a table must be compared with its copy, because the log can't tell which rows have changed.
Reconcile = Literal[
    "statement",  # DML as a statement, or one that names the table and is not understood
    "ddl",  # the layout of earlier row events isn't proven
    "truncate",
    "incomplete",  # a changed key that the row event doesn't hold
    "unprepared",  # XA COMMIT of a transaction whose rows were not read
    "unlisted",  # nobody listened for it in an earlier read
    "lost",  # the log was purged, reset, or may have lost transactions in a crash
]


@dataclass(frozen=True)
class TableChanges:
    """What one read of the log says of one table."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    bytes: int = 0  # of its row events
    # DDL and other statements that name it: their first words, without values.
    statements: tuple[str, ...] = ()
    reconcile: tuple[Reconcile, ...] = ()
    # The key files that hold these rows' keys: of this commit, or of an earlier one for an XA transaction prepared then.
    files: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return self.inserts + self.updates + self.deletes


@dataclass(frozen=True)
class PreparedXa:
    """An XA transaction that was prepared in the log and has not ended: its rows are not visible yet."""

    xid: str  # as `XA RECOVER` has it: format, gtrid and bqual in hex
    tables: Mapping[str, TableChanges]
    begin: LogPlace  # where its rows begin


@dataclass(frozen=True)
class FollowedChanges:
    """What one read of the log found, and where the next one begins."""

    begin: LogPlace
    next_start: LogPlace  # never inside a transaction, and not after one that was left out
    tables: Mapping[str, TableChanges] = field(default_factory=dict)
    prepared: tuple[PreparedXa, ...] = ()  # all that are open at its end, whichever read found them
    reconcile: tuple[Reconcile, ...] = ()  # why every table must be; "lost" also lets it begin anywhere
    transactions: int = 0
    events: int = 0
    bytes: int = 0
    gtids: str = ""  # those seen
    last_commit: float | None = None  # UTC, of the newest transaction: MySQL's immediate_commit_timestamp
