"""Floodmark as a library: what the commands do, for notebooks and orchestrators.

Every method takes what its command takes and returns a typed result; `as_json()` is the document that the command
prints with `--json`. A failure raises a FloodmarkError, whose `code` is the command's exit code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from floodmark.clean import command as s3clean
from floodmark.clean.choose import Selection
from floodmark.config import load as configuration
from floodmark.config.load import Config
from floodmark.config.values import duration
from floodmark.log import pipeline
from floodmark.model.errors import ConfigError, FloodmarkError, exit_code
from floodmark.model.events import to_all
from floodmark.model.log_lines import LogLines
from floodmark.model.results import (
    Backups,
    CleanResult,
    CleanupResult,
    DrillResult,
    History,
    MoveResult,
    Plan,
    RunHistory,
    RunRow,
    StagedFiles,
    SyncResult,
    SystemWatermark,
    ValidateResult,
    VerifyResult,
    Watermark,
    WatermarkList,
)
from floodmark.model.run import SyncOptions, new_run
from floodmark.model.times import begun, compact, timestamp
from floodmark.model.typed import html_table
from floodmark.model.watching import Callback, watching
from floodmark.store.store import Store
from floodmark.sync import preview as planview
from floodmark.watermark import backups, history, set_reset, show, validate

if TYPE_CHECKING:
    from floodmark.spark.context import Spark
    from floodmark.spark.on_demand import WarmSpark


class SyncFailed(FloodmarkError):
    """One or more tables of a sync or a verify failed; `report` is the result with every table's outcome."""

    def __init__(self, report: SyncResult | VerifyResult) -> None:
        failed = [table.error for table in report.tables if table.error]
        code = exit_code([error.code for error in failed])
        worst = next(error for error in failed if error.code == code)
        tables = len(report.tables)
        others = f" ({len(failed)} of {tables} tables failed)" if tables > 1 else ""
        super().__init__(f"{worst.message}{others}", hint=worst.hint, table=worst.table)
        self.code, self.kind = code, worst.kind
        self.report = report

    def __reduce__(self) -> tuple[object, ...]:
        # An orchestrator may run the sync in another process.
        return (SyncFailed, (self.report,))


class Pipeline:
    """One configuration and its commands.

    Holds no connection between calls. In a `with` block, Spark starts once, when it is first needed, and serves all
    calls until the block ends.
    """

    def __init__(self, config: Config | Path | str | None = None, *, spark: object = None) -> None:
        """Takes a configuration or its path; by default, finds it as the command does.

        `spark` is a SparkSession or SparkContext to run on; it is left running.
        """
        given = Path(config) if isinstance(config, str) else config
        self.config: Config = given if isinstance(given, Config) else configuration.load(given)
        self._given_spark = spark
        self._warm: WarmSpark | None = None

    def __enter__(self) -> Self:
        from floodmark.spark.on_demand import WarmSpark

        if self._warm is None and self._given_spark is None:
            self._warm = WarmSpark(self.config, "floodmark")
        return self

    def __exit__(self, *error: object) -> None:
        warm, self._warm = self._warm, None
        if warm is not None:
            warm.stop()

    def _repr_html_(self) -> str:
        source = self.config.source
        shown = {
            "configuration": self.config.path,
            "source": f"mysql://{source.host}:{source.port}/{source.database or ''}",
            "store": self.config.store.url,
            "warehouse": self.config.warehouse.label,
            "tables": ", ".join(self.config.tables) or "those of the source",
        }
        return html_table(shown)

    @contextmanager
    def _spark(self, given: object) -> Iterator[Spark | WarmSpark | None]:
        """The user's Spark, left running; that of the `with` block; None: one is started when needed."""
        chosen = self._given_spark if given is None else given
        if chosen is None:
            if self._warm is not None:
                self._warm.renew()  # one that died must not fail every later call
            yield self._warm
            return
        from floodmark.spark.context import Spark

        spark = Spark.over(chosen)
        try:
            yield spark
        finally:
            if spark is not chosen:
                spark.stop()  # stops what we put around the user's context; the context keeps running

    # rows

    def sync(
        self,
        *tables: str,
        all_tables: bool = False,
        check: bool = True,
        progress: Callback | object | None = None,
        spark: object = None,
        **options: Any,
    ) -> SyncResult:
        """Brings tables up to date: `sync("shop.orders", limit=1000)`, or `sync(all_tables=True)`.

        The options are those of `SyncOptions`. Raises SyncFailed if a table fails; its `report` has every table.
        With `check=False` the result is returned in any case.
        """
        from floodmark.status.run import Observer
        from floodmark.sync.run import sync  # imports Spark, which nothing else here needs

        _check(tables, all_tables)
        chosen = _options(options)
        with self._spark(spark) as running, Observer(self.config) as observer:
            emit = to_all(LogLines(), watching(progress), observer)
            report = sync(self.config, tables, all_tables, chosen, emit, new_run(), running)
        result = SyncResult.of(report.as_json())
        if check and not report.ok:
            raise SyncFailed(result)
        return result

    def plan(self, table: str, **options: Any) -> Plan:
        """What the next sync of a table would do; writes nothing."""
        return planview.plan(self.config, table, _options({"dry_run": True, **options})).result

    def verify(
        self,
        *tables: str,
        all_tables: bool = False,
        show: int = 20,
        repair: bool = False,
        force: bool = False,
        progress: Callback | object | None = None,
        spark: object = None,
    ) -> VerifyResult:
        """Compares source and warehouse, down to the rows; differences are in the result, failures are raised."""
        from floodmark.status.run import Observer
        from floodmark.sync.run import repairing
        from floodmark.verify.run import verify

        _check(tables, all_tables)
        one = repairing(force) if repair else None
        with self._spark(spark) as running, Observer(self.config) as observer:
            emit = to_all(LogLines(), watching(progress), observer)
            result, _ = verify(
                self.config,
                tables,
                emit,
                new_run(),
                named=show,
                spark=running,
                one=one,
                all_tables=all_tables,
            )
        if any(table.error for table in result.tables):
            raise SyncFailed(result)
        return result

    def runs(self, *tables: str, days: float = 7) -> RunHistory:
        """The runs of the last days that did something, newest first; the store keeps their reports for 30 days."""
        store = Store(self.config.store)
        since = compact(datetime.now(UTC) - timedelta(days=days))
        found = [store.get(one.path) for one in store.list("runs/", start_after=f"runs/{since}")]
        documents = [json.loads(report) for report in reversed(found) if report]
        rows = (
            RunRow.of({"run": document["run"], "at": begun(document["run"]), **table})
            for document in documents
            for table in document["tables"]
            if not tables or table["table"] in tables
        )
        return RunHistory(runs=tuple(rows))

    # watermarks

    @overload
    def watermark_get(self, table: None = None) -> SystemWatermark: ...
    @overload
    def watermark_get(self, table: str, *, show_files: bool = False) -> Watermark: ...
    def watermark_get(
        self, table: str | None = None, *, show_files: bool = False
    ) -> Watermark | SystemWatermark:
        """One table's watermark, or the system watermark."""
        if table is None:
            return pipeline.system_get(self.config)
        return show.watermark_get(self.config, table, show_files)

    def watermark_list(self, *tables: str) -> WatermarkList:
        """The watermarks of all tables, or of the given ones."""
        return show.watermark_list(self.config, tables)

    @overload
    def watermark_set(
        self, table: None = None, *, preset: str | None = None, timestamp: str | None = None,
        id: int | str | None = None, force: bool = False,
    ) -> SystemWatermark: ...  # fmt: skip
    @overload
    def watermark_set(
        self, table: str, *, timestamp: str | None = None, id: int | str | None = None,
        preset: str | None = None, force: bool = False,
    ) -> Watermark: ...  # fmt: skip
    def watermark_set(
        self,
        table: str | None = None,
        *,
        timestamp: str | None = None,
        id: int | str | None = None,
        preset: str | None = None,
        force: bool = False,
    ) -> Watermark | SystemWatermark:
        """Sets where a table's next sync starts; without a table, sets the system watermark."""
        if table is None:
            if id is not None:
                raise ConfigError("id needs a table: the system watermark is a time")
            return pipeline.system_set(self.config, preset, timestamp)
        if preset is not None:
            raise ConfigError(
                "presets are only for the system watermark; for a table, pass a timestamp", table=table
            )
        key = None if id is None else str(id)
        return set_reset.watermark_set(self.config, table, timestamp, key, new_run(), force)

    @overload
    def watermark_reset(
        self, table: None = None, *, preset: str | None = None, force: bool = False
    ) -> SystemWatermark: ...
    @overload
    def watermark_reset(
        self, table: str, *, mysql_only: bool = False, redshift_only: bool = False,
        preset: str | None = None, force: bool = False,
    ) -> Watermark: ...  # fmt: skip
    def watermark_reset(
        self,
        table: str | None = None,
        *,
        preset: str | None = None,
        mysql_only: bool = False,
        redshift_only: bool = False,
        force: bool = False,
    ) -> Watermark | SystemWatermark:
        """Puts a table back to the start, in one stage or both; without a table, sets the system watermark to a preset."""
        if table is None:
            return pipeline.system_set(self.config, preset)
        if preset is not None:
            raise ConfigError("presets are only for the system watermark", table=table)
        return set_reset.watermark_reset(
            self.config, table, new_run(), mysql_only=mysql_only, redshift_only=redshift_only, force=force
        )

    def watermark_clear(self) -> SystemWatermark:
        """Removes the system watermark: tables without a position then start at `start`."""
        return pipeline.system_clear(self.config)

    def watermark_accept(self, table: str, *, force: bool = False) -> Watermark:
        """Continues with changes that `schema_changes: ask` asks about; if there are none, with a source that was replaced.

        In the second case all of it is read again, and merged by key.
        """
        return set_reset.watermark_accept(self.config, table, new_run(), force=force)

    def watermark_retire(self, table: str) -> Watermark:
        """Leaves the table out of `sync --all`; its log, files and rows stay, and syncing it by name brings it back."""
        return set_reset.watermark_retire(self.config, table, new_run())

    def watermark_history(self, table: str) -> History:
        """The table's commits, newest first."""
        return history.watermark_history(self.config, table)

    def watermark_restore(
        self, table: str, *, commit: int | None = None, file: Path | str | None = None, force: bool = False
    ) -> Watermark:
        """Restores the extraction's position after an earlier commit, or from a document that `watermark get` printed."""
        path = None if file is None else Path(file)
        return history.watermark_restore(self.config, table, new_run(), commit=commit, file=path, force=force)

    def watermark_backups(self, table: str) -> Backups:
        """Where the copies of a table's watermark are, which are valid, and the latest recoveries."""
        return backups.watermark_backups(self.config, table)

    def watermark_drill(self, *tables: str, all_tables: bool = False) -> DrillResult:
        """Rehearses the recovery from lost copies, logs and stores; `ok` is False if something can't be recovered."""
        _check(tables, all_tables)
        return backups.watermark_drill(self.config, tables, all_tables=all_tables)

    def watermark_cleanup(self, days: int = 7, *, dry_run: bool = False) -> CleanupResult:
        """Removes daily and session copies older than `days`."""
        return backups.watermark_cleanup(self.config, days, dry_run)

    def watermark_validate(self, *tables: str, repair: bool = False) -> ValidateResult:
        """Checks tracked files, rows and positions against store and warehouse; `ok` is False if there are findings."""
        return validate.watermark_validate(self.config, tables, repair=repair, run=new_run())

    def watermark_move(self) -> MoveResult:
        """Moves the store's pipeline to the configured warehouse; returns what waits to be loaded there."""
        return set_reset.watermark_move(self.config, new_run())

    # staged files

    def s3clean_list(
        self, *tables: str, older_than: str | None = None, pattern: str | None = None
    ) -> StagedFiles:
        """The staged files of all tables, or of the given ones: rows, bytes, commit, and whether they are loaded."""
        return s3clean.s3clean_list(self.config, tables, Selection(_seconds(older_than), pattern))

    def s3clean_clean(
        self,
        *tables: str,
        all_tables: bool = False,
        older_than: str | None = None,
        pattern: str | None = None,
        include_pending: bool = False,
        dry_run: bool = False,
        force: bool = False,
    ) -> CleanResult:
        """Removes files whose rows are in the warehouse: `s3clean_clean("shop.orders", older_than="7d")`.

        Doesn't ask for confirmation. `force` lets `include_pending` move a table without a key back.
        """
        _check(tables, all_tables)
        wanted = Selection(_seconds(older_than), pattern, include_pending)
        return s3clean.s3clean_clean(
            self.config, tables, new_run(), wanted, all_tables=all_tables, dry_run=dry_run, force=force
        )

    def s3clean_orphans(
        self,
        *tables: str,
        older_than: str | None = None,
        pattern: str | None = None,
        dry_run: bool = False,
    ) -> CleanResult:
        """Removes files that no commit names and no run can commit any more. Doesn't ask for confirmation."""
        if not tables:
            raise ConfigError("name the tables")
        wanted = Selection(_seconds(older_than), pattern)
        return s3clean.s3clean_orphans(self.config, tables, new_run(), wanted, dry_run=dry_run)


def _check(tables: tuple[str, ...], all_tables: bool) -> None:
    if bool(tables) == all_tables:
        raise ConfigError("name the tables, or pass all_tables=True")


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else duration(text)
    except ValueError as error:
        raise ConfigError(f"older_than {error}") from None


def _options(given: dict[str, Any]) -> SyncOptions:
    """The options of a sync, checked as the command line checks them."""
    names = [name for name in SyncOptions.__dataclass_fields__ if name not in ("slice_rows", "tables")]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise ConfigError(f"sync has no option {', '.join(unknown)}", hint=f"its options: {', '.join(names)}")
    for name in ("since", "until"):
        if given.get(name) is not None:
            try:
                given[name] = timestamp(str(given[name]))
            except ValueError as error:
                raise ConfigError(str(error)) from None
    for name in ("limit", "max_chunks", "max_workers"):
        value = given.get(name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")
    options = SyncOptions(**given)
    if options.strategy not in ("auto", "sequential", "inter-table", "intra-table"):
        raise ConfigError(
            f"unknown strategy {options.strategy!r}",
            hint="use auto, sequential, inter-table or intra-table",
        )
    if mistake := options.mistake():
        raise ConfigError(mistake)
    return options
