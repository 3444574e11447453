"""Facts about a DuckDB file, for a user who wants to write to it. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from floodmark.load.duckdb.file import DatabaseFile
from floodmark.load.duckdb.ledger import kind_of
from floodmark.load.protocol import LEDGER, quote


@dataclass(frozen=True)
class FileFacts:
    """An existing database file."""

    version: str  # of the library
    commits: int | None  # in the ledger; None: there is no ledger yet


def look(path: Path, schema: str, lock_seconds: float) -> FileFacts:
    """Open the file as a load would; the error says who has it locked, or why it can't be opened."""
    with DatabaseFile(path, memory=200_000_000, lock_seconds=lock_seconds).writing() as con:
        # Closing would checkpoint what a crash left in the .wal file: that is the next load's job.
        con.execute("PRAGMA disable_checkpoint_on_shutdown")
        version = con.execute("SELECT version()").fetchone()
        commits = None
        if kind_of(con, schema, LEDGER) is not None:
            found = con.execute(f"SELECT count(*) FROM {quote(schema, LEDGER)}").fetchone()
            commits = int(found[0]) if found else 0
        return FileFacts(str(version[0]) if version else "", commits)
