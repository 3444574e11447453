"""What a DuckDB file says of itself to whoever could write to it. Looks, and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from floodmark.warehouse import LEDGER, quote
from floodmark.warehouse.duckdb_file import DatabaseFile
from floodmark.warehouse.duckdb_ledger import kind_of


@dataclass(frozen=True)
class FileFacts:
    """An existing database file."""

    version: str  # of the library
    commits: int | None  # in the ledger; None: there is no ledger yet


def look(path: Path, schema: str, lock_seconds: float) -> FileFacts:
    """Open the file as a load would; raises who locks it, or why it can't be opened."""
    with DatabaseFile(path, memory=200_000_000, lock_seconds=lock_seconds).writing() as con:
        # Closing would move what a crash left in the .wal file: the next load's business.
        con.execute("PRAGMA disable_checkpoint_on_shutdown")
        version = con.execute("SELECT version()").fetchone()
        commits = None
        if kind_of(con, schema, LEDGER) is not None:
            found = con.execute(f"SELECT count(*) FROM {quote(schema, LEDGER)}").fetchone()
            commits = int(found[0]) if found else 0
        return FileFacts(str(version[0]) if version else "", commits)
