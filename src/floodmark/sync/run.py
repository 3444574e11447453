"""One run: its tables in parallel, each in a `TableRun`; its report, left in the store if it did anything."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from floodmark.clean.copies import Keep, clean_daily
from floodmark.config.load import Config
from floodmark.log.status import first_named
from floodmark.model import events
from floodmark.model.errors import FloodmarkError, Interrupted
from floodmark.model.run import SyncOptions, SyncReport, TableReport
from floodmark.plan.tables import said_new
from floodmark.services import Services
from floodmark.spark.context import Spark, WarmSpark
from floodmark.status.live import LiveDocuments
from floodmark.store.store import Store
from floodmark.sync.freshness import tell_freshness
from floodmark.sync.reported import Reported
from floodmark.sync.resources import Work
from floodmark.sync.table import TableRun
from floodmark.verify.run import Verified, findings

log = logging.getLogger("floodmark")

# Seconds that the report of an interrupted run may take.
STOP_SECONDS = 2.0


def sync(
    config: Config,
    names: Sequence[str],
    all_tables: bool,
    options: SyncOptions,
    emit: events.Emit,
    run: str,
    spark: Spark | WarmSpark | None = None,
    reported: Reported | None = None,
) -> SyncReport:
    """Brings the tables up to date; the report has every table's outcome, whatever happened to the others.

    If the caller passes a running Spark, it is used and left running. `reported`: what a resident sync has reported.
    """
    emit(events.RunBegan("", run, dry=options.dry_run))
    try:
        with (
            LiveDocuments(Store(config.store), run) as live,
            Services(config, events.to_all(emit, live), run, spark) as services,
        ):
            work = Work(services, options)
            try:
                if options.reads_source:
                    services.need_spark()
                tables, unknown = work.resolve(names, all_tables)
            except FloodmarkError as error:
                if not isinstance(error, Interrupted):
                    _refused(work, names, all_tables, error, reported)
                raise
            emit(events.TablesChosen("", (*(one.table for one in unknown), *tables)))
            for number, one in enumerate(unknown):
                if one.error is not None and one.table in work.stored.names():
                    shown = TableRun(work, one.table, 1).not_begun(one.error)
                    unknown[number] = one = replace(one, watermark=shown)
                emit(events.Ended(one.table, one))
            runs = [TableRun(work, name, len(tables)) for name in tables]
            try:
                done = work.side_by_side([one.go for one in runs])
            except Interrupted as error:
                _stopped(work, tables, [one.report for one in runs if one.ended], error)
                raise
            reports = [*unknown, *(report for report in done if not report.left_out)]
            new: list[str] = []
            if work.stored.new and any(one.error is None for one in reports):
                new = first_named(services.store, work.stored.new, keep=not options.dry_run)
            if new:
                emit(events.Noted("", f"{said_new(new)} (`new_tables`)"))
            report = work.report(reports, new)
            if reported is None or reported.wanted(report, None, time.monotonic()):
                _leave(work, report)
            tell_freshness(work, report)
    except FloodmarkError as error:
        if not isinstance(error, Interrupted) and not options.dry_run:
            emit(events.RunEnded("", None, error))
        raise
    if not options.dry_run:
        emit(events.RunEnded("", report))
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
            services.emit(events.StageEnded(name, "verify"))
            return Verified(name, seconds=time.monotonic() - began, error=error.of(name))
        seconds = time.monotonic() - began
        return Verified(
            name, done.after, findings(done.table, done.after, named), seconds, repaired=done.rows
        )

    return repair


def _refused(
    work: Work, names: Sequence[str], all_tables: bool, error: FloodmarkError, reported: Reported | None
) -> None:
    """Reports an error that came before any table's turn: for each table that is known, and of the run.

    A function of its own: the runs keep the error, and its traceback must not keep them and their connections.
    """
    known = work.stored.known(names, all_tables)
    runs = [TableRun(work, name, len(known)) for name in known]
    work.side_by_side([partial(run.not_begun, error) for run in runs])
    report = work.report(run.report for run in runs if run.report.error is not None)
    if reported is None or reported.wanted(report, error, time.monotonic()):
        _leave_failed(work, report, error)


def _stopped(work: Work, names: Sequence[str], done: Sequence[TableReport], error: Interrupted) -> None:
    """Reports a run that was interrupted: its tables as far as they had got."""
    found = {one.table: one for one in done}
    tables = [found.get(name) or TableReport(name, stopped=True) for name in names]
    report = work.report(
        replace(one, error=error) if one.stopped else one for one in tables if not one.left_out
    )
    # An unreachable store must not delay the end of an interrupted run.
    writing = threading.Thread(target=_leave_failed, args=(work, report, error), daemon=True)
    writing.start()
    writing.join(STOP_SECONDS)


def _leave_failed(work: Work, report: SyncReport, error: FloodmarkError | None) -> None:
    """Writes the report of a run that failed as a whole: also before the first sync, but it creates no folder."""
    store = work.services.store
    if work.options.dry_run or not store.exists():
        return
    try:
        work.pipeline.known()  # not into the store of a pipeline with another warehouse
        work.write_run(report, error)
    except FloodmarkError as other:
        log.info("the run's report could not be written: %s", other.message)


def _leave(work: Work, report: SyncReport) -> None:
    """Writes the run's report to the store, unless nothing changed, or the store is another pipeline's or can't be read."""
    busy = [t for t in report.tables if not t.idle]
    if work.options.dry_run or not busy or not work.pipeline.ours():
        return
    if all(t.watermark is None for t in busy):  # none of them is in the store
        _leave_failed(work, report, None)
        return
    try:
        clean_daily(work.services.store, Keep.configured(work.services.config))
        work.write_run(report)
    except FloodmarkError as error:
        if report.ok:
            raise
        log.info("the run's report could not be written: %s", error.message)
