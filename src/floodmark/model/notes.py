"""What the user should know about a table, as found by discovery: values, and their wording, all in one place. Pure.

Notes travel alongside the table to the code that shows them. They are never stored, and don't affect table
equality.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from floodmark.model.table import Cascade, Column, Table

Kind = Literal[
    "unfit_index",  # a unique index that can't be the key
    "no_unique_index",  # for the configured key
    "no_key",  # so its cursor is useless
    "no_key_and_no_cursor",
    "whole_if_changed",  # no key, but the binary log tells whether there is anything to read
    "no_cursor",
    "not_a_time",  # a column named like a cursor
    "likely_cursor",  # a column that could be the cursor if configured
    "hidden_columns",  # the MySQL user may not read them
    "unseen_excludes",  # excluded columns that the MySQL user can't see
    "cascades",  # foreign keys that change columns without touching the cursor
    "unlogged_cascades",  # foreign keys by which rows change without a trace in the binary log
    "nullable_cursor",
    "nullable_cursor_without_key",
    "unindexed_cursor",
    "whole_seconds",
    "unmaintained_cursor",  # MySQL does not keep it current
    "deletes",  # are not followed
    "updates",  # are not followed: only new rows are read
    "unknown_collation",  # of the key
    "unsteady_where",  # rows match, or don't, without a change of their own
    "one_connection",  # reads the whole table, though it is large
]

# Why a column, or an index, can't be the key.
Unfit = Literal["nullable", "inexact", "unknown_collation", "in_part"]

# Why a snapshot is read with one connection.
Obstacle = Literal[
    "no_key",  # to cut the table by
    "key_order",  # its index doesn't yield the key's order
    "subquery",  # in `where`
    "engine",  # not InnoDB
    "no_binlog",
    "no_gtids",
    "filters",  # some changes are not in the binary log
    "replica",  # the same: it doesn't log what it replicates
    "cluster",  # or a server that commits in a way of its own
    "version",  # of MySQL, older than what was examined
    "commit_threads",  # MariaDB, if each thread commits by itself
    "clock",  # the server lets nobody set NOW(), which `where` may use
    "servers",  # the source's address leads to several servers
    "privilege",  # to see the binary log's position
    "unproven",  # at every attempt, something was committed meanwhile
    "lost",  # a task was lost, and its snapshot with it
]


@dataclass(frozen=True)
class Note:
    """One note. Fields that its kind does not use keep their defaults."""

    kind: Kind
    column: Column | None = None  # the subject; for `cascades`, the cursor
    columns: tuple[str, ...] = ()  # the key's, those that cascades change, or what makes a `where` unsteady
    index: str | None = None
    unfit: Unfit | None = None
    cascades: tuple[Cascade, ...] = ()
    obstacle: Obstacle | None = None


def not_followed(table: Table, deletes: str | None) -> tuple[Kind, ...]:
    """The kinds of changes that never reach the target, by how the table is read and by `deletes`."""
    if table.mode == "full":
        return ()
    found: list[Kind] = ["deletes"] if deletes == "ignore" else []
    if table.mode == "append" and not (table.cursor and table.column(table.cursor).maintained):
        found.append("updates")
    return tuple(found)


# ---------------------------------------------------------------- in words


def sentence(note: Note) -> str:
    """`No index starts with updated_at: every sync scans the whole table to find changes.`"""
    said = clause(note)
    # Don't capitalize a column name at the beginning.
    return f"{said if note.kind in _OF_COLUMNS else said[0].upper() + said[1:]}."


def clause(note: Note) -> str:
    """The same as part of a longer sentence: no capital, no full stop."""
    if note.kind in _OF_COLUMNS:
        names = ", ".join(note.columns) or _column(note).name
        return f"{names} {_OF_COLUMNS[note.kind](note)}"
    return _OTHERS[note.kind](note)


def why_unfit(unfit: Unfit, column: Column | None) -> str:
    """Why a column, or an index, can't be the key."""
    if unfit == "in_part" or column is None:
        return "it covers only part of a column, or an expression"
    return {
        "nullable": "it can be NULL",
        "inexact": f"{column.data_type} values can't be compared exactly",
        "unknown_collation": f"only MySQL can compare {column.type} values in collation {column.collation}",
    }[unfit]


_OBSTACLES: dict[Obstacle, str] = {
    "no_key": "it has no key, free of NULLs and with an index, to cut it by",
    "key_order": "the server would have to sort it to cut it by its key (ENUM, SET or BIT columns, or ASC and DESC mixed)",
    "subquery": "its `where` has a subquery",
    "engine": "it is not an InnoDB table",
    "no_binlog": "the source writes no binary log, which could prove that several connections see one moment",
    "no_gtids": "the source has no GTIDs (gtid_mode = ON), which could prove that several connections see one moment",
    "filters": "the source's binary log leaves some databases out (binlog_do_db, binlog_ignore_db)",
    "replica": "the source is a replica that doesn't log what it replicates (log_replica_updates)",
    "cluster": "on a cluster, nothing proves that several connections see one moment",
    "version": "only MySQL 8.4 or newer is known to prove that several connections see one moment",
    "commit_threads": "the source has binlog_optimize_thread_scheduling = OFF, so nothing proves that several connections"
    " see one moment",
    "clock": "it has a `where`, and secure_timestamp forbids several connections to share one NOW()",
    "servers": "source.url leads to several servers, which never show one moment",
    "privilege": "the user may not see the binary log's position (PROCESS, REPLICATION CLIENT)",
    "unproven": "the source committed something each time that several connections tried to see one moment",
    "lost": "a task that had to hold one of its snapshots was lost, or can't reach the driver",
}


def _one_connection(note: Note) -> str:
    assert note.obstacle is not None
    return f"the table is read with one connection: {_OBSTACLES[note.obstacle]}"


def _column(note: Note) -> Column:
    assert note.column is not None
    return note.column


def _unfit_index(note: Note) -> str:
    assert note.unfit is not None
    because = f" because of {note.column.name}" if note.column else ""
    return f"unique index {note.index} can't be the key{because}: {why_unfit(note.unfit, note.column)}"


def _unlogged(note: Note) -> str:
    by = ", ".join(dict.fromkeys(f"{' and '.join(c.rules)} from {c.parent}" for c in note.cascades))
    return (
        f"this server does not write to its binary log what foreign keys do ({by}): such changes are not followed."
        " Set `cascades: follow`, which looks for them every `deletes_every`"
    )


def _cascades(note: Note) -> str:
    by = ", ".join(dict.fromkeys(f"{' and '.join(c.rules)} from {c.parent}" for c in note.cascades))
    return (
        f"can change without {_column(note).name}, through {by}: such changes go unnoticed."
        " Set `cascades: follow`, or run `verify --repair` from time to time"
    )


# Predicates that follow the column names.
_OF_COLUMNS: dict[Kind, Callable[[Note], str]] = {
    "not_a_time": lambda note: (
        f"is {_column(note).type}, not a time, so it isn't used as the cursor unless you set it"
    ),
    "likely_cursor": lambda note: (
        "looks like the time of a row's last change, but isn't used unless you say so:"
        f" if every change sets it, configure `cursor: {_column(note).name}` and `mode: upsert`"
    ),
    "cascades": _cascades,
    "unseen_excludes": lambda _: "in `exclude`: not visible to the user (hidden, or missing)",
    "nullable_cursor": lambda _: "can be NULL: every sync reads rows without a value again",
    "nullable_cursor_without_key": lambda _: (
        "can be NULL: without a key, rows without a value can't be read, and stop the sync"
    ),
    "whole_seconds": lambda _: "has no fractional seconds: many rows can share one value",
}

_OTHERS: dict[Kind, Callable[[Note], str]] = {
    "unfit_index": _unfit_index,
    "unlogged_cascades": _unlogged,
    "no_unique_index": lambda note: (
        f"no unique index guarantees that ({', '.join(note.columns)}) identifies a row"
    ),
    "no_key": lambda _: "the table has no key: every sync reads all of it (mode full)",
    "no_key_and_no_cursor": lambda _: "the table has no key: every sync reads all of it",
    "whole_if_changed": lambda _: (
        "the table has no key: a sync reads all of it once the binary log shows a change (mode full)"
    ),
    "no_cursor": lambda _: (
        "no column shows which rows have changed: every sync reads the whole table (mode full)"
    ),
    "hidden_columns": lambda _: "the user may not read every column: those it can't see are left out",
    "unindexed_cursor": lambda note: (
        f"no index starts with {_column(note).name}: every sync scans the whole table to find changes"
    ),
    "unmaintained_cursor": lambda note: (
        f"MySQL doesn't maintain {_column(note).name} (no ON UPDATE CURRENT_TIMESTAMP):"
        " a change that doesn't set it goes unnoticed"
    ),
    "deletes": lambda _: "deleted rows stay in the target",
    "updates": lambda _: "changes to old rows are not seen (no update column)",
    "unsteady_where": lambda note: (
        f"`where` uses {', '.join(note.columns)}: rows that start or stop matching without a change of their own go unnoticed"
    ),
    "unknown_collation": lambda _: "only MySQL can compare keys in this collation",
    "one_connection": _one_connection,
}
