"""What commands and the library return: the documents of docs/formats.md with their fields as attributes.

A field with a default may be missing in the document.
"""

from __future__ import annotations

from typing import Any, ClassVar

from floodmark.model.errors import FloodmarkError
from floodmark.model.run import Finding, Lag
from floodmark.model.typed import Moment, Result, RowsResult


class Failure(Result):
    """Why something failed; `code` is the exit code."""

    code: int
    kind: str
    table: str | None
    message: str
    hint: str | None

    @classmethod
    def by(cls, error: FloodmarkError | None) -> Failure | None:
        """The same as a document."""
        return None if error is None else cls.of(error.as_json())


class Activity(Result):
    """What is happening to a table: `state` is idle, running or interrupted."""

    state: str
    run: str | None
    host: str | None
    pid: int | None
    since: Moment | None
    stage: str | None
    rows: int | None


class WatermarkMetadata(Result):
    """How a table's position came about."""

    manual_watermark: bool
    total_processing_time_seconds: float
    average_batch_size: int


class Watermark(Result):
    """The watermark document of a table."""

    table_name: str
    commit: int | None
    mode: str | None
    not_followed: tuple[str, ...]
    mysql_status: str
    redshift_status: str
    last_mysql_data_timestamp: str | None
    last_mysql_data_id: tuple[Any, ...]
    binlog: dict[str, Any] | None
    mysql_rows_extracted: int
    mysql_rows_reread: int
    redshift_rows_loaded: int
    redshift_rows_reloaded: int
    last_mysql_extraction_time: Moment | None
    last_redshift_load_time: Moment | None
    last_check_time: Moment | None
    health: str | None
    lag_seconds: float | None
    lag_ids: int | None
    backup_strategy: str | None
    s3_file_count: int
    processed_s3_files: tuple[str, ...]
    pending_s3_files: tuple[str, ...]
    pending_s3_files_truncated: bool | None
    last_error: str | None
    last_error_time: Moment | None
    created_at: Moment | None
    updated_at: Moment | None
    redshift_status_as_of: Moment | None
    next_start: str | None
    next_start_by: str | None
    retired: bool | None
    activity: Activity | None
    metadata: WatermarkMetadata | None
    backup_metadata: dict[str, Any]
    # After a command that changed the table.
    undo: str | None
    notes: tuple[str, ...]
    files_to_load: int | None
    files_to_load_by_hand: int | None
    rows_read_again: int | None
    accepted: tuple[str, ...]

    @property
    def warehouse_answered(self) -> bool:
        """Whether the load stage is as it is now, not as it was last known."""
        return "redshift_status_as_of" not in self

    @property
    def manual(self) -> bool:
        """Whether its position was set by hand."""
        return bool(self.metadata and self.metadata.manual_watermark)

    @property
    def whole(self) -> bool:
        """Whether every sync reads the whole table."""
        return self.mode == "full"

    @property
    def no_rows(self) -> bool:
        """Whether a sync has looked at the table and found no row."""
        position = None if self.binlog else self.last_mysql_data_timestamp or self.last_mysql_data_id
        return self.mysql_status == "success" and not position and not self.mysql_rows_extracted

    @property
    def log_place(self) -> str | None:
        """How far it has followed the binary log: `binlog.000042:1234`."""
        return f"{self.binlog['file']}:{self.binlog['position']}" if self.binlog else None


class SystemWatermark(Result):
    """Where tables without a position begin."""

    timestamp: str | None
    undo: str | None = None


class OlderWatermark(Result):
    """A watermark of the older tool that the first sync of its table takes over."""

    table_name: str
    timestamp: str | None
    uri: str


class WatermarkList(RowsResult):
    """The watermarks of several tables."""

    tables: tuple[Watermark, ...]
    older_watermarks: tuple[OlderWatermark, ...] = ()


class RunMoment(Result):
    """A run, and when it began."""

    run: str
    at: Moment


class TableFigures(Result):
    """What a run did to a table."""

    table: str
    ok: bool
    exit_code: int
    rows_extracted: int
    rows_reread: int
    rows_deleted: int
    rows_loaded: int
    files_written: int
    bytes_written: int
    seconds: float
    lag_before: Lag | None
    lag_after: Lag | None
    error: Failure | None


class TableResult(TableFigures):
    """One table's part of a sync."""

    strategy: str | None
    files_loaded: int
    files_cleaned: int
    bytes_cleaned: int
    commits: tuple[int, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    held_back_by: tuple[str, ...]
    plan: PlanResult | None
    watermark: Watermark | None


class SyncResult(RowsResult):
    """What a sync did."""

    run: str
    ok: bool
    seconds: float
    tables: tuple[TableResult, ...]
    new_tables: tuple[str, ...]

    @property
    def rows_loaded(self) -> int:
        """Rows that all tables together have loaded."""
        return sum(table.rows_loaded for table in self.tables)


class RunRow(TableFigures, RunMoment):
    """One table's part of an earlier run."""


class RunHistory(RowsResult):
    """The runs that the store remembers, newest first: a row for each table of each run."""

    runs: tuple[RunRow, ...]
    ROWS: ClassVar[str] = "runs"


class PlanColumn(Result):
    """A column, with its type at each step."""

    column: str
    mysql: str
    parquet: str
    warehouse: str
    target: str | None
    mark: str | None


class RowsReadAgain(Result):
    """Rows that a sync reads beside its window."""

    kind: str
    rows: int


class FilesToLoad(Result):
    """Files that wait to be loaded."""

    files: int
    rows: int


class PlanResult(RowsResult):
    """What the next sync of a table would do; its rows are the columns."""

    table: str | None
    target: str | None
    mode: str | None
    key: tuple[str, ...]
    changes: str | None
    cursor: str | None
    commit: int | None
    strategy: str | None
    reason: str | None
    rows: int | None
    slices: int | None
    files: int | None
    nothing_to_do: bool | None
    window: dict[str, Any] | None
    follows: dict[str, Any] | None
    recipe: tuple[dict[str, Any], ...]
    read_again: tuple[RowsReadAgain, ...]
    start: str | None
    rows_before_start: int | None
    held_back_by: tuple[str, ...]
    notes: tuple[str, ...]
    columns: tuple[PlanColumn, ...]
    excluded: tuple[str, ...]
    pending: FilesToLoad | None
    ddl: tuple[str, ...]
    refused: Failure | None
    warehouse_unknown: str | None
    ROWS: ClassVar[str] = "columns"


class LogPosition(Result):
    """A place in the source's binary log."""

    file: str
    position: int


class ChangedTable(Result):
    """What the binary log says of one table."""

    table: str
    inserts: int
    updates: int
    deletes: int
    bytes: int
    statements: tuple[str, ...]


class ChangesResult(RowsResult):
    """What the next sync would follow in the source's binary log; its rows are the tables."""

    ok: bool
    begin: LogPosition
    begin_by: str
    end: LogPosition
    held_back_by: tuple[str, ...]
    bytes: int
    files: int
    transactions: int
    first_commit: Moment | None
    last_commit: Moment | None
    tables: tuple[ChangedTable, ...]
    statements: tuple[str, ...]
    prepared: int
    notes: tuple[str, ...]
    seconds: float
    ROWS: ClassVar[str] = "tables"


class VerifiedTable(Result):
    """One table, compared."""

    table: str
    ok: bool
    rows_source: int | None
    rows_warehouse: int | None
    rows_left_out: int | None
    missing: int
    extra: int
    different: int
    loose: int
    rows_changed: int
    compared_with: str
    findings: tuple[Finding, ...]
    repaired: int | None = None
    notes: tuple[str, ...]
    seconds: float
    error: Failure | None


class VerifyResult(RowsResult):
    """Source against warehouse; `ok` is False where rows differ."""

    ok: bool
    tables: tuple[VerifiedTable, ...]


class CommitRow(Result):
    """One commit of a table's log."""

    n: int
    kind: str
    at: Moment
    run: str | None
    rows: int | None
    files: int | None
    position: tuple[Any, ...]
    purpose: str | None = None
    stages: tuple[str, ...] = ()
    removed: int | None = None
    binlog: str | None = None  # how far the table had followed it: `binlog.000042:1234`


class History(RowsResult):
    """A table's commits, newest first."""

    table_name: str
    cursor: str | None
    commits: tuple[CommitRow, ...]
    ROWS: ClassVar[str] = "commits"


class BackupCopy(Result):
    """One copy of a table's watermark: `status` is valid, missing, damaged or unknown."""

    uri: str
    status: str
    bytes: int
    commit: int | None
    saved_at: Moment | None
    detail: str | None = None


class BackupPlace(Result):
    """The copies in one place, newest first."""

    status: str
    bytes: int
    commit: int | None
    count: int | None = None
    valid: int | None = None
    copies: tuple[BackupCopy, ...]
    places: tuple[dict[str, Any], ...] = ()


class RecoveryRow(Result):
    """One recovery of a table's state."""

    table_name: str
    at: Moment
    success: bool
    source: str
    copy: str | None
    commit: int | None
    seconds: float
    wrong: tuple[str, ...]
    done: tuple[str, ...]


class Backups(Result):
    """Where the copies of a table's watermark are."""

    table_name: str
    backup_locations: dict[str, BackupPlace]
    recoveries: tuple[RecoveryRow, ...]


class Drill(Result):
    """One loss, rehearsed."""

    lost: tuple[str, ...]
    left: str | None  # of several further places, the only one that was left
    recovered: bool
    from_: str | None  # primary, daily, session, copies_to, log, files; None: nothing was recovered
    copy: str | None
    commit: int | None
    seconds: float
    commits_put_back: int
    commits_lost: int  # older ones, of which the sums survive; only `history` misses them
    detail: str | None


class DrilledTable(Result):
    """How a table would be recovered from each loss."""

    table: str
    ok: bool
    commit: int | None
    drills: tuple[Drill, ...]
    error: Failure | None


class DrillResult(RowsResult):
    """The rehearsed recoveries; `ok` is False if something can't be recovered."""

    ok: bool
    exit_code: int
    tables: tuple[DrilledTable, ...]


class CleanupResult(Result):
    """Copies that were removed."""

    cleaned_daily_backups: int
    cleaned_session_backups: int
    cleaned_recoveries: int
    bytes: int
    dry_run: bool


class ValidatedTable(Result):
    """A table's tracked state, compared with what is there."""

    table: str
    rows_source: int | None
    rows_warehouse: int | None
    rows_extracted: int | None
    rows_reread: int | None
    findings: tuple[Finding, ...]
    repaired: tuple[str, ...]


class ValidateResult(RowsResult):
    """`ok` is False when there are findings."""

    ok: bool
    tables: tuple[ValidatedTable, ...]


class MovedTable(Result):
    """What the new warehouse lacks of a table."""

    table: str
    files: int
    rows: int
    files_gone: int


class MoveResult(RowsResult):
    """A pipeline that has moved to another warehouse."""

    pipeline: str
    from_: str
    to: str
    tables: tuple[MovedTable, ...]
    undo: str


class StagedFile(Result):
    """A data file in the store."""

    table: str
    uri: str
    rows: int | None
    bytes: int
    created_at: Moment
    commit: int | None
    state: str


class StagedFiles(RowsResult):
    """The staged files of some tables."""

    files: tuple[StagedFile, ...]
    deleted: int
    bytes: int
    notes: tuple[str, ...]
    ROWS: ClassVar[str] = "files"


class CleanedTable(Result):
    """One table's part of a removal."""

    table: str
    ok: bool
    exit_code: int
    deleted: int
    bytes: int
    notes: tuple[str, ...]
    error: Failure | None


class CleanResult(RowsResult):
    """Staged files that were removed, or would be."""

    ok: bool
    exit_code: int
    dry_run: bool
    deleted: int
    bytes: int
    files: tuple[StagedFile, ...]
    tables: tuple[CleanedTable, ...]
    ROWS: ClassVar[str] = "files"
