"""`warehouse.freshness`: how fresh each target is after a run, told to the warehouse in one go.

A table is as fresh as alerts and metrics see it: when a sync last looked, less the lag that it left, and no fresher than
the bound that open work held back. A run that was limited, or that failed, says nothing new about a table. It is derived: a warehouse that can't be told fails no sync.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from floodmark.commit.checks import Check, read_check
from floodmark.model.errors import FloodmarkError
from floodmark.model.run import Lag, SyncOptions, SyncReport, TableReport
from floodmark.model.times import parse_moment
from floodmark.services.warehouse.freshness import Freshness
from floodmark.sync.resources import Work


def tell_freshness(work: Work, report: SyncReport) -> None:
    """Writes the run's targets to `floodmark_freshness`, if the configuration wants that."""
    options, services = work.options, work.services
    if not services.config.warehouse.freshness or options.dry_run or options.backup_only:
        return
    found = []
    for table in report.tables:
        # A run that only loads does not look at the source: what counts is the look of the one that extracted.
        check = read_check(services.store, table.table) if options.load_only and not table.error else None
        if (row := freshness(table, options, report.run, check)) is not None:
            found.append(row)
    if not found:
        return
    try:
        services.warehouse().note_freshness(found)
    except FloodmarkError as error:
        services.progress.note("", f"warning: floodmark_freshness was not written: {error.message}")


def freshness(
    report: TableReport, options: SyncOptions, run: str, check: Check | None = None
) -> Freshness | None:
    """How fresh a target is after this run; None: no fresher than it was, or nobody knows."""
    shown, table = report.watermark, report.described
    if report.error or report.left_out or shown is None or table is None or shown["pending_s3_files"]:
        return None
    looked, lag = shown.get("last_check_time"), report.lag_after
    if options.load_only:
        looked, lag = (check.caught_up_at, check.lag) if check else (None, None)
    behind = lag or Lag()
    if report.held and report.held_at is None:
        return None
    if looked is None or (options.most is not None and (lag is None or behind.seconds or behind.ids)):
        return None
    at = parse_moment(looked)
    as_of = at - timedelta(seconds=max(behind.seconds or 0.0, 0.0))
    if report.held and report.held_at is not None:
        as_of = min(as_of, datetime.fromtimestamp(report.held_at, UTC))
    mark = shown["last_mysql_data_timestamp"]
    return Freshness(table.target, report.table, as_of, at, mark, shown["commit"], run)
