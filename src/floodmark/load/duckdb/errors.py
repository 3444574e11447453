"""DuckDB's exceptions as ours, by what the operator does next.

Locks, conflicts, memory, disk and I/O: TransientError. A missing or read-only folder, missing permissions:
ConfigError. A file that is damaged or not a database, values that don't fit: DataError. SIGINT inside a
statement: Interrupted. Anything else, such as SQL that does not parse, is a bug: FloodmarkError.
"""

from __future__ import annotations

import re
from pathlib import Path

import duckdb

from floodmark.model.errors import ConfigError, DataError, FloodmarkError, Interrupted, TransientError

# A row violates a primary key or another constraint of the table.
AlreadyThere = duckdb.ConstraintException
# An unknown name; a known one, but without that column.
NotThere = duckdb.CatalogException
Unlike = duckdb.BinderException

_TRY_AGAIN = (duckdb.TransactionException, duckdb.ConnectionException, duckdb.ResourceInUseException)
_DAMAGED = ("not a valid duckdb database file", "version number", "corrupt", "checksum", "deserializ")
_PATH = ("no such file or", "is a directory", "not a directory", "permission denied", "read-only file")
_VALUES = (
    duckdb.ConversionException, duckdb.ConstraintException, duckdb.OutOfRangeException, duckdb.DependencyException,
    duckdb.InvalidInputException, duckdb.TypeMismatchException, duckdb.SerializationException, duckdb.DataError,
    duckdb.IntegrityError,
)  # fmt: skip


# How DuckDB begins what it says through Arrow, which knows only OSError; anything else counts as I/O.
_SAID = {
    "Conversion Error": duckdb.ConversionException, "Fatal Error": duckdb.FatalException,
    "FATAL Error": duckdb.FatalException, "INTERRUPT Error": duckdb.InterruptException,
    "Invalid Input Error": duckdb.InvalidInputException, "Out of Memory Error": duckdb.OutOfMemoryException,
    "Out of Range Error": duckdb.OutOfRangeException, "Serialization Error": duckdb.SerializationException,
}  # fmt: skip


def said_through_arrow(error: Exception) -> duckdb.Error:
    """DuckDB's own error, from the one that Arrow raises when a running query fails."""
    text = str(error)
    return _SAID.get(text.partition(":")[0], duckdb.IOException)(text)


def is_lock(error: duckdb.Error) -> bool:
    """Whether the file is merely locked by someone else for now."""
    # A connection in this process with other settings causes a ConnectionException instead.
    return "could not set lock" in str(error).lower() or isinstance(error, duckdb.ConnectionException)


def lock_holder(error: duckdb.Error) -> str:
    """Who holds the lock, as in `process 4711 (/usr/bin/python3)`."""
    by = re.search(r"held in (\S+) \(PID (\d+)\)", str(error))
    return f"process {by[2]} ({by[1]})" if by else "another connection"


def translated(error: duckdb.Error, path: Path) -> FloodmarkError:
    """The error that an operator sees."""
    said = str(error).split("\n")[0]
    text = said.lower()
    if is_lock(error):
        return TransientError(
            f"the warehouse {path} is locked by {lock_holder(error)}", hint="close it there, then run again"
        )
    if "no space left" in text or "disk quota" in text:
        return TransientError(
            f"no space left for the warehouse {path}", hint="free some space, then run again: nothing is lost"
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return TransientError(
            f"the warehouse {path} ran out of memory: {said}",
            hint="free some memory or disk space, then run again",
        )
    if "wal does not match" in text or "replaying wal" in text:
        return DataError(
            f"the warehouse {path} and its log {path.name}.wal don't match: {said}",
            hint="restore both from one backup; or, if the other file was replaced, move the .wal file away: what is "
            "missing then loads again from the store",
        )
    if isinstance(error, duckdb.IOException) and ".parquet" in text:
        return DataError(
            f"a data file can't be read: {said}", hint="run again; floodmark watermark validate says more"
        )
    if any(word in text for word in _DAMAGED):
        return DataError(
            f"the warehouse {path} can't be read as a DuckDB database: {said}",
            hint="restore it from a backup or move it away; what is missing then loads again from the store",
        )
    if isinstance(error, duckdb.PermissionException) or any(word in text for word in _PATH):
        return ConfigError(
            f"the warehouse {path} can't be opened: {said}",
            hint="check warehouse.url and its folder's permissions",
        )
    if isinstance(error, duckdb.InterruptException):
        return Interrupted("interrupted while loading; the load was rolled back")
    if isinstance(error, (*_TRY_AGAIN, duckdb.IOException, duckdb.FatalException)):
        return TransientError(f"the warehouse {path} failed: {said}", hint="run again: nothing is lost")
    if isinstance(error, _VALUES):
        return DataError(f"the warehouse refused the rows: {said}")
    return FloodmarkError(f"unexpected error from DuckDB: {said}")
