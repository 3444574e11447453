"""One run: its tables in parallel, each in a `TableRun`; its report, left in the store if it did anything."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from floodmark.clean.copies import Keep, clean_daily
from floodmark.commit.live import LiveProgress
from floodmark.config.load import Config
from floodmark.model.errors import FloodmarkError, Interrupted
from floodmark.model.run import Progress, SyncOptions, SyncReport
from floodmark.services.run import Services
from floodmark.services.spark.context import Spark
from floodmark.services.spark.on_demand import WarmSpark
from floodmark.services.store.store import Store
from floodmark.sync.resources import Work
from floodmark.sync.table import TableRun, log_end
from floodmark.verify.run import Verified, findings

log = logging.getLogger("floodmark")


def sync(
    config: Config,
    names: Sequence[str],
    all_tables: bool,
    options: SyncOptions,
    progress: Progress,
    run: str,
    spark: Spark | WarmSpark | None = None,
) -> SyncReport:
    """Brings the tables up to date; the report has every table's outcome, whatever happened to the others.

    If the caller passes a running Spark, it is used and left running.
    """
    began = time.monotonic()
    with (
        LiveProgress(Store(config.store), run, progress) as live,
        Services(config, live, run, spark) as services,
    ):
        work = Work(services, options, live)
        try:
            tables, unknown = work.resolve(names, all_tables)
        except FloodmarkError as error:
            if not isinstance(error, Interrupted):
                known = work.stored.known(names, all_tables)
                # Don't bind the runs to a name: they keep the error, whose traceback would keep them and
                # their connections.
                work.side_by_side(
                    [partial(TableRun(work, name, len(known)).not_begun, error) for name in known]
                )
            raise
        progress.tables([*(one.table for one in unknown), *tables])
        for one in unknown:
            if one.error is not None and one.table in work.stored.names():
                one.watermark = TableRun(work, one.table, 1).not_begun(one.error)
            progress.finished(one)
            log_end(one)
        done = work.side_by_side([TableRun(work, name, len(tables)).go for name in tables])
        reports = [*unknown, *(one for one in done if not one.left_out)]
        report = SyncReport(run, time.monotonic() - began, tuple(reports))
        _leave(work, report)
    return report


def repairing(force: bool = False) -> Callable[[Services, str, int], Verified]:
    """The repair function for the tables of one `verify --repair`: says what was repaired, what is left."""
    shared: list[Work] = []  # one for all tables, so that no two of them fill the same target

    def repair(services: Services, name: str, named: int) -> Verified:
        if not shared:
            shared.append(Work(services, SyncOptions(force=force)))
        began = time.monotonic()
        try:
            done = TableRun(shared[0], name, 1).repair()
        except FloodmarkError as error:
            services.progress.end(name, "verify")
            return Verified(name, seconds=time.monotonic() - began, error=error.of(name))
        seconds = time.monotonic() - began
        return Verified(
            name, done.after, findings(done.table, done.after, named), seconds, repaired=done.rows
        )

    return repair


def _leave(work: Work, report: SyncReport) -> None:
    """Writes the run's report to the store, unless nothing changed or the store couldn't even be read."""
    if work.options.dry_run or all(t.idle or t.watermark is None for t in report.tables):
        return
    try:
        clean_daily(work.services.store, Keep.configured(work.services.config))
        work.write_run(report)
    except FloodmarkError as error:
        if report.ok:
            raise
        log.info("the run's report could not be written: %s", error.message)
