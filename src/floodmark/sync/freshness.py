"""`warehouse.freshness`: how fresh each target is after a run, written to the warehouse at once.

A target is as fresh as the bound of the last window that it holds: rows committed later may be missing. A run that was
limited, or that failed, does not change a table's freshness. It is derived: a failure to write it fails no sync.
"""

from __future__ import annotations

from datetime import UTC, datetime

from floodmark.load.protocol import Freshness
from floodmark.log.status import TableStatus, read_status
from floodmark.model.errors import FloodmarkError
from floodmark.model.events import Noted
from floodmark.model.run import SyncOptions, SyncReport, TableReport
from floodmark.model.times import parse_moment
from floodmark.sync.resources import Work


def tell_freshness(work: Work, report: SyncReport) -> None:
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
        services.emit(Noted("", f"warning: floodmark_freshness was not written: {error.message}"))


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
