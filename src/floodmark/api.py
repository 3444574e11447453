"""Floodmark as a library: what the commands do, for notebooks and orchestrators.

Every method takes what its command takes and returns a typed result; `as_json()` is the document that the command
prints with `--json`. A failure raises a FloodmarkError, whose `code` is the command's exit code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from floodmark.config import load as configuration
from floodmark.config.load import Config
from floodmark.config.values import duration
from floodmark.model.errors import ConfigError, FloodmarkError, exit_code
from floodmark.model.events import Callback, Emit, to_all, watching
from floodmark.model.log_lines import LogLines
from floodmark.model.results import RunHistory, RunRow, SyncResult, VerifyResult
from floodmark.model.run import STRATEGIES, SyncOptions, new_run
from floodmark.model.times import begun, compact, timestamp
from floodmark.model.typed import html_table

if TYPE_CHECKING:  # each call imports what it needs: the command line is built on them
    from floodmark.clean.choose import Selection
    from floodmark.model import results
    from floodmark.spark.context import Spark, WarmSpark


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

    def __init__(
        self, config: Config | Path | str | None = None, *, spark: object = None, run: str | None = None
    ) -> None:
        """Takes a configuration or its path; by default, finds it as the command does.

        `spark` is a SparkSession or SparkContext to run on; it is left running. `run`: one id for all calls.
        """
        given = Path(config) if isinstance(config, str) else config
        self.config: Config = given if isinstance(given, Config) else configuration.load(given)
        self._given_spark = spark
        self._run = run
        self._warm: WarmSpark | None = None

    def __enter__(self) -> Self:
        from floodmark.spark.context import WarmSpark

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

    @property
    def _run_id(self) -> str:
        """The id under which a call writes to the store."""
        return self._run or new_run()

    @contextmanager
    def _running(
        self, spark: object, progress: Callback | object | None
    ) -> Iterator[tuple[Spark | WarmSpark | None, Emit]]:
        """Spark, and who is told what happens."""
        from floodmark.status.run import Observer

        with self._spark(spark) as running, Observer(self.config) as observer:
            yield running, to_all(LogLines(), watching(progress), observer)

    # rows

    def sync(
        self, *tables: str, all_tables: bool = False, check: bool = True, progress: Callback | object | None = None,
        spark: object = None, **options: Any,
    ) -> SyncResult:  # fmt: skip
        """Brings tables up to date: `sync("shop.orders", limit=1000)`, or `sync(all_tables=True)`.

        The options are those of `SyncOptions`. Raises SyncFailed if a table fails; its `report` has every table.
        With `check=False` the result is returned in any case.
        """
        from floodmark.sync.run import sync

        _check(tables, all_tables)
        chosen = _options(options)
        with self._running(spark, progress) as (running, emit):
            report = sync(self.config, tables, all_tables, chosen, emit, self._run_id, running)
        result = SyncResult.of(report.as_json())
        if check and not report.ok:
            raise SyncFailed(result)
        return result

    def plan(self, table: str, **options: Any) -> results.PlanResult:
        """What the next sync of a table would do; writes nothing."""
        from floodmark.sync.preview import plan

        return plan(self.config, table, _options({"dry_run": True, **options})).result

    def verify(
        self, *tables: str, all_tables: bool = False, show: int = 20, repair: bool = False, force: bool = False,
        progress: Callback | object | None = None, spark: object = None,
    ) -> VerifyResult:  # fmt: skip
        """Compares source and warehouse, down to the rows; differences are in the result, failures are raised."""
        from floodmark.sync.run import repairing
        from floodmark.verify.run import verify

        _check(tables, all_tables)
        one = repairing(force) if repair else None
        with self._running(spark, progress) as (running, emit):
            result, _ = verify(
                self.config,
                tables,
                emit,
                self._run_id,
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
        from floodmark.store.store import Store

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
    def watermark_get(self, table: None = None) -> results.SystemWatermark: ...
    @overload
    def watermark_get(self, table: str, *, show_files: bool = False) -> results.Watermark: ...
    def watermark_get(
        self, table: str | None = None, *, show_files: bool = False
    ) -> results.Watermark | results.SystemWatermark:
        """One table's watermark, or the system watermark."""
        if table is None:
            from floodmark.log.pipeline import system_get

            return system_get(self.config)
        from floodmark.watermark.show import watermark_get

        return watermark_get(self.config, table, show_files)

    def watermark_list(self, *tables: str) -> results.WatermarkList:
        """The watermarks of all tables, or of the given ones."""
        from floodmark.watermark.show import watermark_list

        return watermark_list(self.config, tables)

    @overload
    def watermark_set(
        self, table: None = None, *, preset: str | None = None, timestamp: str | None = None,
        id: int | str | None = None, force: bool = False,
    ) -> results.SystemWatermark: ...  # fmt: skip
    @overload
    def watermark_set(
        self, table: str, *, timestamp: str | None = None, id: int | str | None = None,
        preset: str | None = None, force: bool = False,
    ) -> results.Watermark: ...  # fmt: skip
    def watermark_set(
        self, table: str | None = None, *, timestamp: str | None = None, id: int | str | None = None,
        preset: str | None = None, force: bool = False,
    ) -> results.Watermark | results.SystemWatermark:  # fmt: skip
        """Sets where a table's next sync starts; without a table, sets the system watermark."""
        if table is None:
            if id is not None:
                raise ConfigError("id needs a table: the system watermark is a time")
            return self._set_system(preset, timestamp)
        if preset is not None:
            said = "presets are only for the system watermark; for a table, pass a timestamp"
            raise ConfigError(said, table=table)
        from floodmark.watermark.set_reset import watermark_set

        key = None if id is None else str(id)
        return watermark_set(self.config, table, timestamp, key, self._run_id, force)

    def _set_system(self, preset: str | None, timestamp: str | None = None) -> results.SystemWatermark:
        from floodmark.log.pipeline import system_set

        return system_set(self.config, preset, timestamp)

    @overload
    def watermark_reset(
        self, table: None = None, *, preset: str | None = None, force: bool = False
    ) -> results.SystemWatermark: ...
    @overload
    def watermark_reset(
        self, table: str, *, mysql_only: bool = False, redshift_only: bool = False,
        preset: str | None = None, force: bool = False,
    ) -> results.Watermark: ...  # fmt: skip
    def watermark_reset(
        self, table: str | None = None, *, preset: str | None = None, mysql_only: bool = False,
        redshift_only: bool = False, force: bool = False,
    ) -> results.Watermark | results.SystemWatermark:  # fmt: skip
        """Puts a table back to the start, in one stage or both; without a table, sets the system watermark to a preset."""
        if table is None:
            return self._set_system(preset)
        if preset is not None:
            raise ConfigError("presets are only for the system watermark", table=table)
        from floodmark.watermark.set_reset import watermark_reset

        stages = {"mysql_only": mysql_only, "redshift_only": redshift_only}
        return watermark_reset(self.config, table, self._run_id, **stages, force=force)

    def watermark_clear(self) -> results.SystemWatermark:
        """Removes the system watermark: tables without a position then start at `start`."""
        from floodmark.log.pipeline import system_clear

        return system_clear(self.config)

    def watermark_accept(self, table: str, *, force: bool = False) -> results.Watermark:
        """Continues with changes that `schema_changes: ask` asks about; if there are none, with a source that was replaced.

        In the second case all of it is read again, and merged by key.
        """
        from floodmark.watermark.set_reset import watermark_accept

        return watermark_accept(self.config, table, self._run_id, force=force)

    def watermark_retire(self, table: str) -> results.Watermark:
        """Leaves the table out of `sync --all`; its log, files and rows stay, and syncing it by name brings it back."""
        from floodmark.watermark.set_reset import watermark_retire

        return watermark_retire(self.config, table, self._run_id)

    def watermark_history(self, table: str) -> results.History:
        """The table's commits, newest first."""
        from floodmark.watermark.history import watermark_history

        return watermark_history(self.config, table)

    def watermark_restore(
        self, table: str, *, commit: int | None = None, file: Path | str | None = None, force: bool = False
    ) -> results.Watermark:
        """Restores the extraction's position after an earlier commit, or from a document that `watermark get` printed."""
        from floodmark.watermark.history import watermark_restore

        path = None if file is None else Path(file)
        return watermark_restore(self.config, table, self._run_id, commit=commit, file=path, force=force)

    def watermark_backups(self, table: str) -> results.Backups:
        """Where the copies of a table's watermark are, which are valid, and the latest recoveries."""
        from floodmark.watermark.backups import watermark_backups

        return watermark_backups(self.config, table)

    def watermark_drill(self, *tables: str, all_tables: bool = False) -> results.DrillResult:
        """Rehearses the recovery from lost copies, logs and stores; `ok` is False if something can't be recovered."""
        from floodmark.watermark.backups import watermark_drill

        _check(tables, all_tables)
        return watermark_drill(self.config, tables, all_tables=all_tables)

    def watermark_cleanup(self, days: int = 7, *, dry_run: bool = False) -> results.CleanupResult:
        """Removes daily and session copies older than `days`."""
        from floodmark.watermark.backups import watermark_cleanup

        return watermark_cleanup(self.config, days, dry_run)

    def watermark_validate(self, *tables: str, repair: bool = False) -> results.ValidateResult:
        """Checks tracked files, rows and positions against store and warehouse; `ok` is False if there are findings."""
        from floodmark.watermark.validate import watermark_validate

        return watermark_validate(self.config, tables, repair=repair, run=self._run_id)

    def watermark_move(self) -> results.MoveResult:
        """Moves the store's pipeline to the configured warehouse; returns what waits to be loaded there."""
        from floodmark.watermark.set_reset import watermark_move

        return watermark_move(self.config, self._run_id)

    # staged files

    def s3clean_list(
        self, *tables: str, older_than: str | None = None, pattern: str | None = None
    ) -> results.StagedFiles:
        """The staged files of all tables, or of the given ones: rows, bytes, commit, and whether they are loaded."""
        from floodmark.clean.command import s3clean_list

        return s3clean_list(self.config, tables, _wanted(older_than, pattern))

    def s3clean_clean(
        self, *tables: str, all_tables: bool = False, older_than: str | None = None, pattern: str | None = None,
        include_pending: bool = False, dry_run: bool = False, force: bool = False,
    ) -> results.CleanResult:  # fmt: skip
        """Removes files whose rows are in the warehouse: `s3clean_clean("shop.orders", older_than="7d")`.

        Doesn't ask for confirmation. `force` lets `include_pending` move a table without a key back.
        """
        from floodmark.clean.command import s3clean_clean

        _check(tables, all_tables)
        wanted = _wanted(older_than, pattern, include_pending)
        return s3clean_clean(
            self.config, tables, self._run_id, wanted, all_tables=all_tables, dry_run=dry_run, force=force
        )

    def s3clean_orphans(
        self, *tables: str, older_than: str | None = None, pattern: str | None = None, dry_run: bool = False
    ) -> results.CleanResult:
        """Removes files that no commit names and no run can commit any more. Doesn't ask for confirmation."""
        from floodmark.clean.command import s3clean_orphans

        if not tables:
            raise ConfigError("name the tables")
        return s3clean_orphans(
            self.config, tables, self._run_id, _wanted(older_than, pattern), dry_run=dry_run
        )


def _check(tables: tuple[str, ...], all_tables: bool) -> None:
    if bool(tables) == all_tables:
        raise ConfigError("name the tables, or pass all_tables=True")


def _wanted(older_than: str | None, pattern: str | None, include_pending: bool = False) -> Selection:
    from floodmark.clean.choose import Selection

    try:
        return Selection(None if older_than is None else duration(older_than), pattern, include_pending)
    except ValueError as error:
        raise ConfigError(f"older_than {error}") from None


def _options(given: Mapping[str, Any]) -> SyncOptions:
    """The options of a sync, checked as the command line checks them."""
    names = [name for name in SyncOptions.__dataclass_fields__ if name not in ("slice_rows", "tables")]
    if unknown := sorted(set(given) - set(names)):
        raise ConfigError(f"sync has no option {', '.join(unknown)}", hint=f"its options: {', '.join(names)}")
    for name in ("limit", "max_chunks", "max_workers"):
        value = given.get(name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")
    times = {name: str(given[name]) for name in ("since", "until") if given.get(name) is not None}
    try:
        options = SyncOptions(**{**given, **{name: timestamp(text) for name, text in times.items()}})
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if options.strategy not in STRATEGIES:
        said = f"{', '.join(STRATEGIES[:-1])} or {STRATEGIES[-1]}"
        raise ConfigError(f"unknown strategy {options.strategy!r}", hint=f"use {said}")
    if mistake := options.mistake():
        raise ConfigError(mistake)
    return options
