"""What the library returns: the documents of docs/formats.md with their fields as attributes.

A field that a document may lack is None, or empty if it is a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform

from floodmark.model.typed import Moment, Result, Rows

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
def _typed_result(kind: type[T]) -> type[T]:
    return dataclass(frozen=True, kw_only=True, eq=False)(kind)


@_typed_result
class Lag(Result):
    """How far a table is behind its source: in seconds of its cursor, or in ids."""

    seconds: float | None
    ids: int | None


@_typed_result
class Failure(Result):
    """Why something failed; `code` is the exit code."""

    code: int
    kind: str
    table: str | None
    message: str
    hint: str | None


@_typed_result
class Finding(Result):
    """One discrepancy; the document may have more fields, by its kind."""

    kind: str
    table: str
    detail: str


@_typed_result
class Activity(Result):
    """What is happening to a table: `state` is idle, running or interrupted."""

    state: str
    run: str | None
    host: str | None
    pid: int | None
    since: Moment | None
    stage: str | None
    rows: int | None


@_typed_result
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
    last_error: str | None
    last_error_time: Moment | None
    created_at: Moment | None
    updated_at: Moment | None
    redshift_status_as_of: Moment | None
    next_start: str | None
    next_start_by: str | None
    retired: bool | None
    activity: Activity | None
    metadata: dict[str, Any]
    backup_metadata: dict[str, Any]
    # After a command that changed the table.
    undo: str | None
    notes: tuple[str, ...]
    files_to_load: int | None
    rows_read_again: int | None
    accepted: tuple[str, ...]


@_typed_result
class SystemWatermark(Result):
    """Where tables without a position begin."""

    timestamp: str | None
    undo: str | None


@_typed_result
class OlderWatermark(Result):
    """A watermark of the older tool that the first sync of its table takes over."""

    table_name: str
    timestamp: str | None
    uri: str


@_typed_result
class WatermarkList(Rows):
    """The watermarks of several tables."""

    tables: tuple[Watermark, ...]
    older_watermarks: tuple[OlderWatermark, ...]


@_typed_result
class TableResult(Result):
    """One table's part of a sync."""

    table: str
    ok: bool
    exit_code: int
    strategy: str | None
    rows_extracted: int
    rows_reread: int
    rows_deleted: int
    rows_loaded: int
    files_written: int
    bytes_written: int
    files_loaded: int
    files_cleaned: int
    bytes_cleaned: int
    seconds: float
    lag_before: Lag | None
    lag_after: Lag | None
    commits: tuple[int, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    held_back_by: tuple[str, ...]
    error: Failure | None
    plan: Plan | None
    watermark: Watermark | None


@_typed_result
class SyncResult(Rows):
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


@_typed_result
class RunRow(Result):
    """One table's part of an earlier run."""

    run: str
    at: Moment
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


@_typed_result
class RunHistory(Rows):
    """The runs that the store remembers, newest first: a row for each table of each run."""

    runs: tuple[RunRow, ...]
    ROWS: ClassVar[str] = "runs"


@_typed_result
class PlanColumn(Result):
    """A column, with its type at each step."""

    column: str
    mysql: str | None
    parquet: str | None
    warehouse: str | None
    target: str | None
    mark: str | None


@_typed_result
class Plan(Rows):
    """What the next sync of a table would do; its rows are the columns."""

    table: str | None
    target: str | None
    mode: str | None
    key: tuple[str, ...]
    cursor: str | None
    commit: int | None
    strategy: str | None
    reason: str | None
    rows: int | None
    slices: int | None
    files: int | None
    nothing_to_do: bool | None
    window: dict[str, Any] | None
    recipe: tuple[dict[str, Any], ...]
    read_again: tuple[dict[str, Any], ...]
    start: str | None
    rows_before_start: int | None
    held_back_by: tuple[str, ...]
    notes: tuple[str, ...]
    columns: tuple[PlanColumn, ...]
    excluded: tuple[str, ...]
    pending: dict[str, Any] | None
    ddl: tuple[str, ...]
    refused: Failure | None
    warehouse_unknown: str | None
    ROWS: ClassVar[str] = "columns"


@_typed_result
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
    repaired: int | None
    seconds: float
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    error: Failure | None


@_typed_result
class VerifyResult(Rows):
    """Source against warehouse; `ok` is False where rows differ."""

    ok: bool
    tables: tuple[VerifiedTable, ...]


@_typed_result
class CommitRow(Result):
    """One commit of a table's log."""

    n: int
    kind: str
    at: Moment
    run: str | None
    rows: int | None
    files: int | None
    position: tuple[Any, ...]
    purpose: str | None
    stages: tuple[str, ...]
    removed: int | None


@_typed_result
class History(Rows):
    """A table's commits, newest first."""

    table_name: str
    commits: tuple[CommitRow, ...]
    ROWS: ClassVar[str] = "commits"


@_typed_result
class Backups(Result):
    """Where the copies of a table's watermark are."""

    table_name: str
    backup_locations: dict[str, Any]
    recoveries: tuple[dict[str, Any], ...]


@_typed_result
class Drill(Result):
    """One loss, rehearsed."""

    lost: tuple[str, ...]
    left: str | None
    recovered: bool
    from_: str | None
    copy: str | None
    commit: int | None
    seconds: float | None
    commits_put_back: int | None
    commits_lost: int | None
    detail: str | None


@_typed_result
class DrilledTable(Result):
    """How a table would be recovered from each loss."""

    table: str
    ok: bool
    commit: int | None
    drills: tuple[Drill, ...]
    error: Failure | None


@_typed_result
class DrillResult(Rows):
    """The rehearsed recoveries; `ok` is False if something can't be recovered."""

    ok: bool
    exit_code: int
    tables: tuple[DrilledTable, ...]


@_typed_result
class CleanupResult(Result):
    """Copies that were removed."""

    cleaned_daily_backups: int
    cleaned_session_backups: int
    cleaned_recoveries: int
    bytes: int
    dry_run: bool


@_typed_result
class ValidatedTable(Result):
    """A table's tracked state, compared with what is there."""

    table: str
    rows_source: int | None
    rows_warehouse: int | None
    rows_extracted: int | None
    rows_reread: int | None
    findings: tuple[Finding, ...]
    repaired: tuple[str, ...]


@_typed_result
class ValidateResult(Rows):
    """`ok` is False when there are findings."""

    ok: bool
    tables: tuple[ValidatedTable, ...]


@_typed_result
class MovedTable(Result):
    """What the new warehouse lacks of a table."""

    table: str
    files: int
    rows: int
    files_gone: int


@_typed_result
class MoveResult(Rows):
    """A pipeline that has moved to another warehouse."""

    pipeline: str
    from_: str
    to: str
    tables: tuple[MovedTable, ...]
    undo: str


@_typed_result
class StagedFile(Result):
    """A data file in the store."""

    table: str
    uri: str
    rows: int | None
    bytes: int | None
    created_at: Moment | None
    commit: int | None
    state: str


@_typed_result
class StagedFiles(Rows):
    """The staged files of some tables."""

    files: tuple[StagedFile, ...]
    deleted: int
    bytes: int
    notes: tuple[str, ...]
    ROWS: ClassVar[str] = "files"


@_typed_result
class CleanedTable(Result):
    """One table's part of a removal."""

    table: str
    ok: bool
    exit_code: int
    deleted: int
    bytes: int
    notes: tuple[str, ...]
    error: Failure | None


@_typed_result
class CleanResult(Rows):
    """Staged files that were removed, or would be."""

    ok: bool
    exit_code: int
    dry_run: bool
    deleted: int
    bytes: int
    files: tuple[StagedFile, ...]
    tables: tuple[CleanedTable, ...]
    ROWS: ClassVar[str] = "files"
