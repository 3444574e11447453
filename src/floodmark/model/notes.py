"""What the user should know about a table, as found by discovery: values, worded by `note_words`. Pure.

Notes travel alongside the table to the code that shows them. They are never stored, and don't affect table
equality.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from floodmark.model.table import Cascade, Column, Table

Kind = Literal[
    "unfit_index",  # a unique index that can't be the key
    "no_unique_index",  # for the configured key
    "no_key",  # so its cursor is useless
    "no_key_and_no_cursor",
    "no_cursor",
    "not_a_time",  # a column named like a cursor
    "likely_cursor",  # a column that could be the cursor if configured
    "hidden_columns",  # the MySQL user may not read them
    "unseen_excludes",  # excluded columns that the MySQL user can't see
    "cascades",  # foreign keys that change columns without touching the cursor
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
