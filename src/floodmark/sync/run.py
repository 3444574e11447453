"""One run: its tables in parallel; its report, left in the store if it did anything; how fresh its targets are now.

A target (`warehouse.freshness`) is as fresh as the bound of the last window that it holds: rows committed later may be
missing. A run that was limited, or that failed, does not change a table's freshness. It is derived: a failure to write
it fails no sync.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from floodmark.clean.copies import Keep, clean_daily
from floodmark.config.load import Config
from floodmark.load.protocol import Freshness
from floodmark.log.status import TableStatus, first_named, read_status
from floodmark.model import events
from floodmark.model.errors import FloodmarkError, Interrupted
from floodmark.model.run import SyncOptions, SyncReport, TableReport
from floodmark.model.times import parse_moment
from floodmark.plan.tables import said_new
from floodmark.services import Services
from floodmark.spark.context import Spark, WarmSpark
from floodmark.status.live import LiveDocuments
from floodmark.store.store import Store
from floodmark.sync.changes import clean_log, follow_log
from floodmark.sync.news import LogNews, news_of, stored_news
from floodmark.sync.table import refuse_table, repair_table, sync_table
from floodmark.sync.untouched import Untouched
from floodmark.sync.work import Work
from floodmark.verify.run import Verified, findings

logger = logging.getLogger("floodmark")

# Seconds that the report of an interrupted run may take.
STOP_SECONDS = 2.0
# Seconds between two reports of a failure that lasts.
EVERY = 3600.0


@dataclass
class Reported:
    """Which runs of a resident sync leave a report: all that did something, and one an hour for a failure that lasts.

    A failure lasts until its table, or the run as a whole, succeeds: the next one is reported at once.
    """

    # By table and exit code, because messages may differ each time.
    _at: dict[tuple[str | None, int], float] = field(default_factory=dict)

    def wanted(self, report: SyncReport, error: FloodmarkError | None, now: float) -> bool:
        """Whether a run leaves its report; if so, its failures count as reported. `error`: of the run as a whole."""
        failed: list[tuple[str | None, int]] = [(t.table, t.exit_code) for t in report.tables if t.error]
        if error is not None:
            failed.append((None, error.code))
        over = {t.table for t in report.tables if not t.error} | (set() if error else {None})
        self._at = {one: at for one, at in self._at.items() if one[0] not in over and now - at < EVERY}
        did_something = any(t.commits or t.files_loaded for t in report.tables)
        if failed and all(one in self._at for one in failed) and not did_something:
            return False
        self._at |= dict.fromkeys(failed, now)
        return True


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
                    shown = refuse_table(work.table(one.table), one.error)
                    unknown[number] = one = replace(one, watermark=shown)
                emit(events.Ended(one.table, one))
            _read_log(work, tables)
            untouched = Untouched(work, [n for n in tables if config.options(n).changes == "binlog"])
            runs = [work.table(name, len(tables)) for name in tables if name not in untouched.reports]
            try:
                done = {
                    one.table: one for one in work.side_by_side([partial(sync_table, run) for run in runs])
                }
            except Interrupted as error:
                _stopped(work, tables, error)
                raise
            done |= untouched.reports
            reports = [*unknown, *(done[name] for name in tables if not done[name].left_out)]
            new: list[str] = []
            if work.stored.new and any(one.error is None for one in reports):
                new = first_named(services.store, work.stored.new, keep=not options.dry_run)
            if new:
                emit(events.Noted("", f"{said_new(new)} (`new_tables`)"))
            untouched.keep(runs)
            _clean_log(work)
            report = work.report(reports, new)
            if reported is None or reported.wanted(report, None, time.monotonic()):
                _leave(work, report)
            note_freshness(work, report)
    except FloodmarkError as error:
        if not isinstance(error, Interrupted) and not options.dry_run:
            emit(events.RunEnded("", None, error))
        raise
    if not options.dry_run:
        emit(events.RunEnded("", report))
    return report


def _read_log(work: Work, tables: Sequence[str]) -> None:
    """Reads the source's binary log once, for all tables that follow it; if it fails, the others still have their turn."""
    services, options = work.services, work.options
    following = [name for name in tables if services.config.options(name).changes == "binlog"]
    if not following or (options.load_only and not options.verify_data):
        return
    began = time.time()
    try:
        if options.dry_run:
            work.news = stored_news(services.store, lambda: services.session("changes"))
        else:
            state = follow_log(services, following)
            held_back = state.source is not None and bool(state.source.end.held_back_by)
            work.news = news_of(services.store, state, None if held_back else began)
    except Interrupted:
        raise
    except FloodmarkError as error:
        work.news = LogNews(error=error)


def _clean_log(work: Work) -> None:
    """Removes key files that are no longer needed; a failure changes nothing for the tables."""
    if work.news.state is not None and not work.options.dry_run:
        try:
            clean_log(work.services)
        except Interrupted:
            raise
        except FloodmarkError as error:
            logger.info("key files could not be removed: %s", error.message)


def repairing(force: bool = False) -> Callable[[Services, str, int], Verified]:
    """The repair function for the tables of one `verify --repair`: says what was repaired, what is left."""
    shared: list[Work] = []  # one for all tables, so that no two of them fill the same target

    def repair(services: Services, name: str, named: int) -> Verified:
        if not shared:
            shared.append(Work(services, SyncOptions(force=force)))
        began = time.monotonic()
        try:
            done = repair_table(shared[0].table(name))
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
    runs = [work.table(name, len(known)) for name in known]
    work.side_by_side([partial(refuse_table, run, error) for run in runs])
    report = work.report(run.report for run in runs if run.report.error is not None)
    if reported is None or reported.wanted(report, error, time.monotonic()):
        _leave(work, report, error)


def _stopped(work: Work, names: Sequence[str], error: Interrupted) -> None:
    """Reports a run that was interrupted: its tables as far as they had got."""
    found = {one.table: one for one in work.ended}
    tables = [found.get(name) or TableReport(name, stopped=True) for name in names]
    report = work.report(
        replace(one, error=error) if one.stopped else one for one in tables if not one.left_out
    )
    # An unreachable store must not delay the end of an interrupted run.
    writing = threading.Thread(target=_leave, args=(work, report, error), daemon=True)
    writing.start()
    writing.join(STOP_SECONDS)


def _leave(work: Work, report: SyncReport, error: FloodmarkError | None = None) -> None:
    """Writes the run's report to the store, unless nothing changed; `error`: of the run as a whole.

    A run that failed leaves one also before the first sync. But it creates no folder, and writes nothing into the store
    of a pipeline with another warehouse.
    """
    store, busy = work.services.store, [t for t in report.tables if not t.idle]
    if work.options.dry_run or not (error or busy):
        return
    stored = error is None and any(t.watermark is not None for t in busy)
    try:
        if not stored and store.exists():
            work.pipeline.known()
            work.write_run(report, error)
        elif stored and work.pipeline.ours():
            clean_daily(store, Keep.configured(work.services.config))
            work.write_run(report)
    except FloodmarkError as other:
        if stored and report.ok:
            raise
        logger.info("the run's report could not be written: %s", other.message)


# ---------------------------------------------------------------- freshness


def note_freshness(work: Work, report: SyncReport) -> None:
    """Writes the run's targets to `floodmark_freshness`, if the configuration wants that."""
    options, services = work.options, work.services
    if not services.config.warehouse.freshness or options.dry_run or options.backup_only:
        return
    try:
        found = []
        for table in report.tables:
            # A run that only loads does not check the source: the look of the run that extracted counts.
            status = (
                read_status(services.store, table.table) if options.load_only and not table.error else None
            )
            if (row := freshness(table, options, report.run, status)) is not None:
                found.append(row)
        if found:
            services.warehouse().note_freshness(found)
    except FloodmarkError as error:
        services.emit(events.Noted("", f"warning: floodmark_freshness was not written: {error.message}"))


def freshness(
    report: TableReport, options: SyncOptions, run: str, status: TableStatus | None = None
) -> Freshness | None:
    """How fresh a target is after this run; None: no fresher than before, or unknown."""
    shown, table = report.watermark, report.described
    if report.error or report.left_out or shown is None or table is None or shown.pending_s3_files:
        return None
    looked: str | None = shown.last_check_time
    complete = report.complete_at
    if options.load_only:
        looked, complete = (status.caught_up_at, status.complete_at) if status else (None, None)
    if looked is None or complete is None:
        return None
    as_of, mark = datetime.fromtimestamp(complete, UTC), shown.last_mysql_data_timestamp
    return Freshness(table.target, report.table, as_of, parse_moment(looked), mark, shown.commit, run)
