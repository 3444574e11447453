"""The wording of notes, all in one place. Pure; nothing in the program depends on the text."""

from __future__ import annotations

from collections.abc import Callable

from floodmark.model.notes import Kind, Note, Obstacle, Unfit
from floodmark.model.table import Column


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
    "no_unique_index": lambda note: (
        f"no unique index guarantees that ({', '.join(note.columns)}) identifies a row"
    ),
    "no_key": lambda _: "the table has no key: every sync reads all of it (mode full)",
    "no_key_and_no_cursor": lambda _: "the table has no key: every sync reads all of it",
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
