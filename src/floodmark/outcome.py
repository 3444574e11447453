"""What people see of a table's run when it ends: success or failure, and when it looked.

Every failed attempt is told, also one that never got as far as a plan; but only by a run that may speak for the table:
while another one holds it, that one does.
"""

from __future__ import annotations

import contextlib
import logging
from datetime import datetime, timedelta
from typing import Any, Protocol

from floodmark.errors import ConflictError, FloodmarkError
from floodmark.lag import measured
from floodmark.loader import Loader
from floodmark.report import EXTRACT, LOAD, Stage
from floodmark.state import Failure, Lease, Log, Watermark, holder, stamp
from floodmark.state.activity import activity
from floodmark.state.checks import Check, read_check, write_check
from floodmark.work import Run

log = logging.getLogger("floodmark")

# How often the same failure of a table is published again.
TOLD_EVERY = timedelta(minutes=5)


class Ending(Run, Protocol):
    """The run of one table that comes to its end."""

    log: Log
    loader: Loader
    watermark: Watermark
    lease: Lease | None
    seen: bool
    looked: str | None  # when the source was last asked what there is to read


def succeeded(run: Ending) -> None:
    """The run ended well: what people see is up to date, and written only if something changed."""
    options, report = run.work.options, run.report
    report.lag_after = report.lag_before
    if report.rows_extracted and run.state.table is not None:
        with contextlib.suppress(FloodmarkError), run.work.session("lag") as session:
            report.lag_after = measured(
                session, run.state.table, run.state.position, run.options.cursor_timezone
            )
    stages: tuple[Stage, ...] = (
        *(() if options.load_only else EXTRACT),
        *(() if options.backup_only else LOAD),
    )
    overcome = any(f.stage in stages for f in run.watermark.failures)
    # Until a new count is published, every run counts the whole log once more.
    untold = not options.dry_run and (overcome or run.watermark.counts_as_before(run.state))
    # A claim is a commit too.
    if not report.idle or run.lease is not None or (untold and _may_speak(run)):
        shown = run.watermark.publish(run.state, _ledger_rows(run), succeeded=stages)
    else:
        shown = run.watermark.current(run.state, _ledger_rows(run))
    if run.looked is not None:
        write_check(run.work.store, Check(run.name, run.work.run, run.looked))
    report.watermark = _with_activity(run, shown, run.looked or _last_look(run))


def failed(run: Ending, error: FloodmarkError) -> None:
    """The run failed: the reason is told with the watermark, unless another run holds the table."""
    run.report.error = error
    if run.work.interrupted or not run.seen:
        return  # the table did not fail, or there is no store to write to
    try:
        looked = run.looked or _last_look(run)
        conflict = error.code == ConflictError.code
        if conflict or run.work.options.dry_run or not _may_speak(run):
            shown = run.watermark.current(run.state, _ledger_rows(run))
        else:
            failure = Failure("load" if run.loader.failed else "extract", error.message, stamp())
            if run.state.n < 0:  # there is no log that a copy could be of
                write_check(run.work.store, Check(run.name, run.work.run, looked, failure))
                shown = run.watermark.current(run.state, _ledger_rows(run), failure)
            elif run.lease is None and any(_same(f, failure) for f in run.watermark.failures):
                shown = run.watermark.current(run.state, _ledger_rows(run), failure)
            else:
                shown = run.watermark.publish(run.state, _ledger_rows(run), failure=failure)
        run.report.watermark = _with_activity(run, shown, looked)
    except FloodmarkError as other:
        log.info("the failure could not be published: %s", other.message, extra={"table": run.name})


def told(run: Ending, error: FloodmarkError) -> dict[str, Any] | None:
    """Tells of an error that came before the table had its turn; the watermark with it, as far as it is known."""
    with contextlib.suppress(FloodmarkError):
        run.state = run.log.read()
        run.seen = True
        if not run.state.retired:
            failed(run, error)
    return run.report.watermark


def _may_speak(run: Ending) -> bool:
    """Whether no other run holds the table; what others have done since it was read is taken note of."""
    if run.lease is not None:
        return True
    before = run.state.digest
    run.state = run.log.read()
    if run.state.digest != before:  # by others: what we knew of the copies and of the ledger is out of date
        run.watermark, run.loader.ledger = run.work.watermark(run.log), None
    held = holder(run.work.store, run.name, run.state.claim)
    return held is None or not held.alive or held.run == run.work.run


def _same(known: Failure, now: Failure) -> bool:
    """Whether a failure was told just before: a resident sync leaves no copies behind with every cycle that fails."""
    if (known.stage, known.message) != (now.stage, now.message):
        return False
    age = datetime.fromisoformat(now.at) - datetime.fromisoformat(known.at)
    return timedelta(0) <= age < TOLD_EVERY


def _last_look(run: Ending) -> str | None:
    check = read_check(run.work.store, run.name)
    return check.last_check_time if check else None


def _ledger_rows(run: Ending) -> Any:
    return run.loader.ledger.rows if run.loader.ledger is not None else None


def _with_activity(run: Ending, shown: dict[str, Any], looked: str | None) -> dict[str, Any]:
    """The document as `watermark get` would show it once the run has let the table go."""
    ours = run.lease is not None
    held = None if ours else holder(run.work.store, run.name, run.state.claim)
    return {**shown, "activity": activity(run.state, held), "last_check_time": looked}
