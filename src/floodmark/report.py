"""What a run was asked to do and what it reports: the contract's `sync` document."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, Protocol

from floodmark.errors import FloodmarkError, exit_code

if TYPE_CHECKING:  # the command line asks for this module before it needs the model
    from floodmark.model import Finding, Lag

Stage = Literal["extract", "load"]
EXTRACT: tuple[Stage, ...] = ("extract",)
LOAD: tuple[Stage, ...] = ("load",)


def new_run() -> str:
    """A run's id: `20250819_153000_ab12`."""
    return f"{datetime.now(UTC):%Y%m%d_%H%M%S}_{token_hex(2)}"


@dataclass(frozen=True)
class SyncOptions:
    """What the user asks of `sync`."""

    strategy: Literal["auto", "sequential", "inter-table", "intra-table"] = "auto"
    limit: int | None = None
    max_chunks: int | None = None
    backup_only: bool = False
    load_only: bool = False
    dry_run: bool = False
    since: str | None = None
    until: str | None = None
    max_workers: int | None = None
    verify_data: bool = False
    force: bool = False
    repeated: bool = False  # by a resident sync, which looks before it reads a table whole

    def mistake(self) -> str | None:
        """What does not go together, in one sentence."""
        if self.backup_only and self.load_only:
            return "--backup-only and --redshift-only exclude each other; give neither for both"
        if self.verify_data and self.backup_only:
            return "--verify-data compares with the warehouse, --backup-only loads nothing"
        if self.until is not None and self.since is None:
            return "--until needs --since"
        if self.since is not None and self.until is not None and _exact(self.until) <= _exact(self.since):
            return f"--until {self.until} is not after --since {self.since}"
        if self.since is not None and self.load_only:
            return "--since reads rows from MySQL, --redshift-only reads none"
        return None


def _exact(timestamp: str) -> str:
    return timestamp.ljust(26, "0") if "." in timestamp else f"{timestamp}.000000"


class Progress(Protocol):
    """Whoever watches a run."""

    def note(self, table: str, text: str) -> None: ...
    def begin(self, table: str, stage: str, rows: int | None) -> None: ...
    def advance(self, table: str, stage: str, rows: int, files: int, bytes: int) -> None: ...
    def end(self, table: str, stage: str) -> None: ...


@dataclass
class TableReport:
    """One table's part of a run, filled in as the run goes."""

    table: str
    strategy: str | None = None
    rows_extracted: int = 0
    rows_reread: int = 0
    bytes_written: int = 0
    files_written: int = 0
    rows_deleted: int = 0
    rows_loaded: int = 0
    files_loaded: int = 0
    files_cleaned: int = 0  # by `keep_files`
    bytes_cleaned: int = 0
    commits: list[int] = field(default_factory=list)
    watermark: dict[str, Any] | None = None
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: FloodmarkError | None = None
    seconds: float = 0.0
    left_out: bool = False  # retired, and not asked for by name
    lag_before: Lag | None = None  # behind the source, when the run began and when it ended
    lag_after: Lag | None = None

    @property
    def exit_code(self) -> int:
        return self.error.code if self.error else 0

    @property
    def idle(self) -> bool:
        """Whether the run changed nothing for this table."""
        return not self.commits and not self.files_loaded and self.error is None

    def as_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "ok": self.error is None,
            "exit_code": self.exit_code,
            "strategy": self.strategy,
            "rows_extracted": self.rows_extracted,
            "rows_reread": self.rows_reread,
            "bytes_written": self.bytes_written,
            "files_written": self.files_written,
            "rows_deleted": self.rows_deleted,
            "rows_loaded": self.rows_loaded,
            "files_loaded": self.files_loaded,
            "files_cleaned": self.files_cleaned,
            "bytes_cleaned": self.bytes_cleaned,
            "commits": self.commits,
            "seconds": round(self.seconds, 3),
            "lag_before": self.lag_before.as_json() if self.lag_before else None,
            "lag_after": self.lag_after.as_json() if self.lag_after else None,
            "watermark": self.watermark,
            "findings": [f.as_json() for f in self.findings],
            "notes": self.notes,
            "error": self.error.as_json() if self.error else None,
        }


@dataclass(frozen=True)
class SyncReport:
    """What a run did, for all of its tables."""

    run: str
    seconds: float
    tables: tuple[TableReport, ...]

    @property
    def exit_code(self) -> int:
        return exit_code([t.exit_code for t in self.tables])

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "tables": [t.as_json() for t in self.tables],
        }
