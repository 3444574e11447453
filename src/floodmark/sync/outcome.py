"""What people see when a table's run ends: success or failure, and when it looked.

Every failed attempt is published, even one that failed before planning. While another run holds the table,
that run reports on it, and this one stays silent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from floodmark.log.activity import activity
from floodmark.log.document import Failure
from floodmark.log.lease import holder
from floodmark.log.status import read_status, write_run, write_verify
from floodmark.model import events
from floodmark.model.commit import WithFiles
from floodmark.model.errors import ConflictError, FloodmarkError, VerificationError
from floodmark.model.ledger import LedgerRow
from floodmark.model.results import Watermark
from floodmark.model.run import EXTRACT, LOAD, Stage, TableReport
from floodmark.model.text import counted
from floodmark.model.times import parse_moment, stamp
from floodmark.plan.lag import measured
from floodmark.sync import loads
from floodmark.sync.work import TableRun
from floodmark.verify.lookup import Differences
from floodmark.verify.run import Verified, status_of, verify_loaded

logger = logging.getLogger("floodmark")

# Minimum time before the same failure of a table is published again.
TOLD_EVERY = timedelta(minutes=5)


@dataclass(frozen=True)
class Ending:
    """How a run ended, for the table's status."""

    ours: bool = False  # whether it is up to us to report it
    failure: Failure | None = None  # goes into the status only, because there is no log


def succeed(run: TableRun) -> Ending:
    """Publishes a success, if something changed, and measures how far the table lags behind now."""
    report, state, asked, watermark = run.report, run.state, run.asked, run.held.watermark
    lag = report.lag_before
    if report.rows_extracted and state.table is not None:
        try:
            with run.services.session("lag") as session:
                lag = measured(session, state.table, state.position, run.options.cursor_timezone)
        except FloodmarkError:
            pass  # the rows were read and committed anyway
    stages: tuple[Stage, ...] = (
        *(() if asked.load_only else EXTRACT),
        *(() if asked.backup_only else LOAD),
    )
    overcome = any(f.stage in stages for f in watermark.failures)
    # Until a count of version 0.1.0 is published anew, every run has to read the whole log.
    unsaid = not asked.dry_run and (overcome or run.held.log.counted_anew)
    # A claim is a commit, too.
    if not report.idle or run.held.lease is not None or (unsaid and _may_speak(run)):
        shown = run.held.watermark.publish(run.state, _ledger(run), succeeded=stages)
    else:
        shown = run.held.watermark.current(run.state, _ledger(run))
    run.account(events.Succeeded(run.name, _with_activity(run, shown, _looked(run)), lag))
    return Ending(ours=not asked.dry_run)


def fail(run: TableRun, error: FloodmarkError) -> Ending:
    """Ends the run; publishes the reason with the watermark, unless another run holds the table or the pipeline."""
    loads.abandon(run)
    shown, ending, stopped = None, Ending(), run.services.interrupted
    if run.held.known and not stopped:  # the table failed, and there is a store to write to
        try:
            shown, ending = _published(run, error)
        except FloodmarkError as other:
            logger.info("the failure could not be published: %s", other.message, extra={"table": run.name})
    run.account(events.Failed(run.name, error, stopped, shown))
    return ending


def _published(run: TableRun, error: FloodmarkError) -> tuple[Watermark, Ending]:
    ours = run.work.pipeline.ours()
    conflict = error.code == ConflictError.code
    if conflict:
        run.held.watermark.drop_due()
    looked = _looked(run)
    if conflict or run.asked.dry_run or not ours or not _may_speak(run):
        run.held.watermark.drop_due()
        return _with_activity(run, run.held.watermark.current(run.state, _ledger(run)), looked), Ending()
    failure = Failure("load" if run.loads.error else "extract", error.message, stamp())
    watermark, unlogged = run.held.watermark, run.state.n < 0  # then there is no copy of a log to publish
    if unlogged or (run.held.lease is None and any(_same(f, failure) for f in watermark.failures)):
        shown = watermark.current(run.state, _ledger(run), failure)
    else:
        shown = watermark.publish(run.state, _ledger(run), failure=failure)
    return _with_activity(run, shown, looked), Ending(True, failure if unlogged else None)


def leave_status(run: TableRun, report: TableReport, ending: Ending) -> None:
    """Records in the store how the run ended, if that is up to us."""
    if ending.ours and not run.services.interrupted:
        write_run(
            run.held.log.store, report, run.held.run,
            looked=report.looked, failure=ending.failure, killed=run.held.killed, old=run.old,
        )  # fmt: skip


def verify(run: TableRun) -> None:
    """`--verify-data`: differences become the report's findings and its error."""
    if not run.asked.verify_data or not run.loads.commits:
        return
    loaded = run.held.log.commits(run.loads.commits)
    commits = [commit for commit, _ in loaded if isinstance(commit, WithFiles)]
    checked = verify_loaded(run.services, run.name, run.state, commits)
    if checked.waiting:
        run.account.note(f"not verified: {counted(checked.waiting, 'row')} not loaded yet")
    if checked.differences is not None:
        rows = checked.differences.rows_source
        run.account.note(f"verified: {counted(rows, 'row')} compared with the source")
    if found := checked.findings:
        run.account(events.Found(run.name, tuple(found)))
        result = Verified(run.name, checked.differences or Differences(agree=False), found)
        # Only if it found something: it saw part of the table, and must not hide the findings of a full
        # verify.
        write_verify(run.services.store, replace(status_of(result, run.held.run), by="sync"))
        error = VerificationError(
            f"the rows that this run loaded differ from the source: {found[0].detail}"
            + (f", and {counted(len(found) - 1, 'more finding')}" if len(found) > 1 else ""),
            hint=f"floodmark verify -t {run.name} checks the whole table; with --repair it fixes what differs",
            table=run.name,
        )
        run.account(events.Failed(run.name, error))


def _may_speak(run: TableRun) -> bool:
    """Whether no other run holds the table."""
    before = run.state.digest
    free = run.held.may_speak()
    if run.state.digest != before:  # changed by another run: our copy of the ledger is out of date
        run.loads.ledger = None
    return free


def _same(known: Failure, now: Failure) -> bool:
    """Whether the failure was published recently: a resident sync must not leave a copy per failed cycle."""
    if replace(known, at=now.at) != now:
        return False
    age = parse_moment(now.at) - parse_moment(known.at)
    return timedelta(0) <= age < TOLD_EVERY


def _looked(run: TableRun) -> str | None:
    """When a run last looked at the source."""
    if run.report.looked is not None:
        return run.report.looked
    status = read_status(run.held.log.store, run.name)
    return status.last_check_time if status else None


def _ledger(run: TableRun) -> Iterable[LedgerRow] | None:
    return run.loads.ledger.rows if run.loads.ledger is not None else None


def _with_activity(run: TableRun, shown: dict[str, Any], looked: str | None) -> Watermark:
    """The document as `watermark get` would show it once the run has released the table."""
    other = holder(run.held.log.store, run.name, run.state.claim) if run.held.lease is None else None
    return Watermark.of({**shown, "activity": activity(run.state, other), "last_check_time": looked})
