"""The check object: the outcome of a table's last run, whether or not there was work to do.

One small object per table, overwritten by each run. It is derived, so losing it does no harm. For a table
without a log it also records why the last attempt failed; once there is a log, the published copies record
that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from floodmark.commit.document import Failure
from floodmark.commit.status import Day, Killed, put
from floodmark.model.column_changes import ColumnChange
from floodmark.model.json import Seconds, dump, load
from floodmark.model.run import Lag, TableReport
from floodmark.services.store.store import Store, encode

CHECKS = "status/checks/"
MOST_KILLED = 5


@dataclass(frozen=True)
class LastWork:
    """The last run that changed something, or tried to."""

    run: str
    at: str  # when it ended
    exit_code: int
    rows_extracted: int = 0
    rows_reread: int = 0
    rows_loaded: int = 0
    rows_deleted: int = 0
    files: int = 0
    bytes: int = 0
    seconds: Seconds = 0.0
    stages: dict[str, Seconds] = field(default_factory=dict)  # seconds of extract, load, verify


@dataclass(frozen=True)
class Check:
    """One table's last run, and the values carried over from run to run."""

    table_name: str
    run: str
    last_check_time: str | None  # when a sync last looked at the source, changes or not; None: never
    failure: Failure | None = None
    at: str | None = None  # when the last run ended; None: written by an earlier version
    exit_code: int | None = None
    error: str | None = None  # why it failed
    success_at: str | None = None  # when a run last ended with exit code 0
    caught_up_at: str | None = None  # when a run last read and committed everything it set out to read
    lag: Lag | None = None  # how far behind the source the table was then
    failing_since: str | None = None  # since when every run has failed; None: the last one did not
    pending_since: str | None = None  # since when files have been waiting to load, as far as runs saw it
    work: LastWork | None = None
    schema_at: str | None = None  # when a column change was last seen; the changes follow
    schema_changes: tuple[ColumnChange, ...] = ()
    total: Day = field(default_factory=Day)  # all runs since this object was created
    today: Day | None = None  # one day's idle runs, not yet added to the month's object
    killed: tuple[Killed, ...] = ()  # killed runs, oldest first
    complete_at: Seconds | None = None  # all that was committed before is extracted


def check_path(table_name: str) -> str:
    """The path of a table's check object."""
    return f"{CHECKS}{encode(table_name)}.json"


def read_check(store: Store, table_name: str, old: float = 0.0) -> Check | None:
    """The table's check object; None if it is missing, at most `old` seconds ago, or unreadable."""
    found = parse_check(store.get_recent(check_path(table_name), old))
    return found if found is not None and found.table_name == table_name else None


def parse_check(data: bytes | None) -> Check | None:
    """The check in these bytes; None if they hold anything else."""
    try:
        return load(Check, data or b"")
    except ValueError:
        return None


def write_check(store: Store, check: Check) -> None:
    """Overwrites the check object; a failed write is logged and stops nothing."""
    put(store, check_path(check.table_name), dump(check), "the check")


# ---------------------------------------------------------------- what a run adds


def checked(
    before: Check | None,
    report: TableReport,
    run: str,
    now: str,
    *,
    looked: str | None = None,
    failure: Failure | None = None,
    killed: Killed | None = None,
) -> tuple[Check, tuple[Day, ...]]:
    """The check object after a run, and the days to add to their months.

    A day's idle runs accumulate in the check object, so that each costs only one write.
    """
    last = before or Check(report.table, run, None)
    code = report.exit_code
    day = day_of(report, now)
    gathered = [day]
    if last.today is not None:
        gathered = [last.today.plus(day)] if last.today.day == day.day else [last.today, day]
    # A run that did work goes into the month at once, together with the idle runs accumulated so far.
    kept = gathered.pop() if report.idle else None
    caught_up = looked is not None and code in (0, 7)
    return (
        Check(
            report.table,
            run,
            looked or last.last_check_time,
            failure,
            at=now,
            exit_code=code,
            error=report.error.message if report.error else None,
            success_at=now if code == 0 else last.success_at,
            caught_up_at=looked if caught_up else last.caught_up_at,
            lag=report.lag_after if caught_up else last.lag,
            failing_since=None if code in (0, 7) else last.failing_since or now,
            pending_since=_pending_since(last, report, now),
            work=last.work if report.idle else _work(report, run, now),
            schema_at=now if report.schema_changes else last.schema_at,
            schema_changes=report.schema_changes or last.schema_changes,
            total=replace(last.total.plus(day), worst_lag_seconds=None, worst_lag_ids=None),
            today=kept,
            killed=(*last.killed, killed)[-MOST_KILLED:] if killed else last.killed,
            complete_at=report.complete_at if caught_up and report.complete_at else last.complete_at,
        ),
        tuple(gathered),
    )


def day_of(report: TableReport, now: str) -> Day:
    """One run as its contribution to its day."""
    lag = report.lag_before
    return Day(
        now[:10],
        runs=1,
        idle=int(report.idle),
        failures=int(report.exit_code != 0),
        rows_extracted=report.rows_extracted,
        rows_reread=report.rows_reread,
        rows_loaded=report.rows_loaded,
        rows_deleted=report.rows_deleted,
        files_written=report.files_written,
        bytes_written=report.bytes_written,
        seconds=round(report.seconds, 3),
        worst_lag_seconds=lag.seconds if lag else None,
        worst_lag_ids=lag.ids if lag else None,
        exit_codes={str(report.exit_code): 1},
    )


def _work(report: TableReport, run: str, now: str) -> LastWork:
    return LastWork(
        run,
        now,
        report.exit_code,
        report.rows_extracted,
        report.rows_reread,
        report.rows_loaded,
        report.rows_deleted,
        report.files_written,
        report.bytes_written,
        round(report.seconds, 3),
        {stage: round(seconds, 3) for stage, seconds in report.stage_seconds.items()},
    )


def _pending_since(last: Check, report: TableReport, now: str) -> str | None:
    """Since when files have been waiting; unchanged if the run could not tell."""
    if report.watermark is None:
        return last.pending_since
    if not report.watermark["pending_s3_files"]:
        return None
    return last.pending_since or now
