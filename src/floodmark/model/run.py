"""A run's options and its report: the contract's `sync` document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import reduce
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

from floodmark.model.errors import FloodmarkError, exit_code
from floodmark.model.times import compact, parse_time
from floodmark.model.typed import Result, plain

if TYPE_CHECKING:  # the command line imports this module before it needs the model
    from floodmark.model.lineage import ColumnChange
    from floodmark.model.results import PlanResult, Watermark
    from floodmark.model.table import Table

Strategy = Literal["sequential", "inter-table", "intra-table"]
STRATEGIES = ("auto", *get_args(Strategy))  # as options
Stage = Literal["extract", "load"]
EXTRACT: tuple[Stage, ...] = ("extract",)
LOAD: tuple[Stage, ...] = ("load",)
# More rows than any table has, but still within the integers of MySQL and Arrow.
MOST_ROWS = 10**15
# A drop below this fraction needs --force, unless there were fewer rows than this to begin with.
IMPLAUSIBLE = 0.1
IMPLAUSIBLE_FROM = 100


@dataclass(frozen=True, init=False)
class Lag(Result):
    """How far the source is ahead of a table's position: in seconds of its cursor, or in ids."""

    __pydantic_config__: ClassVar[Any] = {"allow_inf_nan": False}  # a stored one may be anybody's
    seconds: float | None = None
    ids: int | None = None

    def __init__(self, seconds: float | None = None, ids: int | None = None) -> None:
        super().__init__(seconds=seconds, ids=ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What was read, written and loaded: in a run, on a day, or in all."""

    rows_extracted: int = 0
    rows_reread: int = 0
    rows_loaded: int = 0
    rows_deleted: int = 0
    files_written: int = 0
    bytes_written: int = 0

    def counts(self) -> dict[str, int]:
        """The counts alone, by name."""
        return {f.name: getattr(self, f.name) for f in fields(Counts)}

    def plus(self, other: Counts) -> Self:
        """This one with the other's counts added."""
        return replace(self, **{name: getattr(self, name) + more for name, more in other.counts().items()})

    @property
    def log_fields(self) -> dict[str, Any]:
        """The counts as log lines and traces name them (docs/logs.md)."""
        rows = {"rows": self.rows_extracted, "rows_reread": self.rows_reread, "rows_loaded": self.rows_loaded}
        return {**rows, "files": self.files_written, "bytes": self.bytes_written}


@dataclass(frozen=True, init=False)
class Finding(Result):
    """One discrepancy, or one thing that the user should know about a run; `more` has the fields of its kind."""

    kind: str
    table: str
    detail: str
    more: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self, kind: str, table: str, detail: str, more: Mapping[str, Any] | None = None, **rest: Any
    ) -> None:
        super().__init__(kind=kind, table=table, detail=detail, more={**(more or {}), **rest})

    @property
    def given(self) -> dict[str, Any]:
        return {"kind": self.kind, "table": self.table, "detail": self.detail, **self.more}


def new_run() -> str:
    """A run's id: `20250819_153000_ab12`."""
    return f"{compact(datetime.now(UTC))}_{token_hex(2)}"


@dataclass(frozen=True)
class SyncOptions:
    """The options of a run."""

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
    repeated: bool = False  # run by a resident sync, which checks for changes before it reads a whole table
    # Not set by the user but filled in for each table: its slice size, and the number of tables in the run.
    slice_rows: int = 250_000
    tables: int = 1

    @property
    def reads_source(self) -> bool:
        """Whether tasks may read the source's rows."""
        return not self.dry_run and (not self.load_only or self.verify_data)

    @property
    def chunk(self) -> int | None:
        """Rows in one chunk, if the run is limited in rows."""
        if self.limit is not None:
            return min(self.limit, MOST_ROWS)
        return self.slice_rows if self.max_chunks is not None else None

    @property
    def most(self) -> int | None:
        """The maximum number of rows that the run may extract."""
        return None if self.chunk is None else min(self.chunk * (self.max_chunks or 1), MOST_ROWS)

    def after(self, rows: int) -> SyncOptions:
        """What is left of the request once so many rows are extracted."""
        return self if self.most is None else replace(self, limit=max(0, self.most - rows), max_chunks=None)

    @property
    def in_order(self) -> bool:
        """Whether slices are read one after another."""
        return self.strategy in ("sequential", "inter-table")

    def mistake(self) -> str | None:
        """Which options can't be combined, in one sentence."""
        if self.backup_only and self.load_only:
            return "--backup-only and --redshift-only can't be combined; leave both out to extract and load"
        if self.verify_data and self.backup_only:
            return "--verify-data needs a load, which --backup-only skips"
        if self.until is not None and self.since is None:
            return "--until needs --since"
        if self.since and self.until and parse_time(self.until) <= parse_time(self.since):
            return f"--until {self.until} is not after --since {self.since}"
        if self.since is not None and self.load_only:
            return "--since reads rows from MySQL, which --redshift-only never does"
        return None


WaitKind = Literal["settling", "open_work", "spark", "turn", "warehouse", "lock"]


@dataclass(frozen=True)
class Wait:
    """What a table is waiting for: settling rows, an open transaction, Spark, its turn, the warehouse or a lock."""

    kind: WaitKind
    who: str = ""  # the owner of the transaction or lock, or the kind of warehouse, if known
    coming: bool = field(default=False, compare=False)  # rows will be read when it is over


StepKind = Literal["check", "copy", "merge", "insert", "commit"]


@dataclass(frozen=True)
class Step:
    """What a load is doing inside its transaction; `done` of `total` files where it goes through files."""

    kind: StepKind
    done: int = 0
    total: int = 0


# What a table's document has, in this order; the last two only where there is something.
_SHOWN = (
    "table", "ok", "exit_code", "strategy", "rows_extracted", "rows_reread", "bytes_written", "files_written",
    "rows_deleted", "rows_loaded", "files_loaded", "files_cleaned", "bytes_cleaned", "commits", "seconds",
    "stage_seconds", "lag_before", "lag_after", "watermark", "findings", "notes", "error", "held_back_by", "plan",
)  # fmt: skip


@dataclass(frozen=True)
class TableReport(Counts):
    """One table's part of a run: the fold of its events (`model/events.py`)."""

    table: str
    strategy: str | None = None
    files_loaded: int = 0
    files_cleaned: int = 0  # by `keep_files`
    bytes_cleaned: int = 0
    commits: tuple[int, ...] = ()
    watermark: Watermark | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    held_back_by: tuple[str, ...] = ()  # open work that newer rows wait for
    error: FloodmarkError | None = None
    seconds: float = 0.0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)  # for extract, load, verify
    schema_changes: tuple[ColumnChange, ...] = ()  # in the source, since the previous run
    described: Table | None = None  # the table as the newest claim describes it
    plan: PlanResult | None = None  # in a dry run
    left_out: bool = False  # retired, and not named on the command line
    lag_before: Lag | None = None  # lag behind the source when the run began, and when it ended
    lag_after: Lag | None = None
    complete_at: float | None = None  # all that was committed before is extracted; None if unknown
    stopped: bool = False  # its error is only that the run was interrupted
    looked: str | None = None  # when the source was last checked for rows to read
    changed: Mapping[str, int] = field(default_factory=dict)  # values that policies have changed, by column

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def exit_code(self) -> int:
        return self.error.code if self.error else 0

    @property
    def idle(self) -> bool:
        """Whether the run changed nothing for this table."""
        return not self.commits and not self.files_loaded and self.error is None

    def as_json(self) -> dict[str, Any]:
        shown = {name: plain(getattr(self, name)) for name in _SHOWN}
        shown["stage_seconds"] = {stage: round(spent, 3) for stage, spent in self.stage_seconds.items()}
        shown["seconds"] = round(self.seconds, 3)
        return {name: value for name, value in shown.items() if value or name not in ("held_back_by", "plan")}


@dataclass(frozen=True)
class SyncReport:
    """The outcome of a run over all its tables."""

    run: str
    seconds: float
    tables: tuple[TableReport, ...]
    new_tables: tuple[str, ...] = ()  # of the source, not in `tables`, and not named by an earlier run

    @property
    def exit_code(self) -> int:
        return exit_code([t.exit_code for t in self.tables])

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def log_fields(self) -> dict[str, Any]:
        """What the tables add up to, as log lines name it."""
        failed = sum(table.error is not None for table in self.tables)
        counts = reduce(Counts.plus, self.tables, Counts())
        return {"tables": len(self.tables), "failed": failed, **counts.log_fields}

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "tables": [t.as_json() for t in self.tables],
            **({"new_tables": list(self.new_tables)} if self.new_tables else {}),
        }


def implausible(before: int, now: int) -> bool:
    """Whether a snapshot, or the rows left after deletes, are too few to be plausible."""
    return before >= IMPLAUSIBLE_FROM and now < before * IMPLAUSIBLE
