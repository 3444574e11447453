"""One table's run: plan → extract → commit → load → verify. Nothing else moves a watermark.

A crash on the way leaves committed files that the next run loads, an open window that it finishes, and
orphans that no commit names. Every failed attempt is published, even one that failed before planning. While another
run holds the table, that run reports on it, and this one stays silent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NoReturn

from floodmark.clean.remove import Cleaning, due_files, superseded
from floodmark.clean.remove import remove as remove_files
from floodmark.extract.keys import key_table, with_weights
from floodmark.load.pending import ledger_for
from floodmark.log.claim import Changed, decide_and_claim, refuse_if_held
from floodmark.log.document import StageFailure
from floodmark.log.fold import State, restarted_by
from floodmark.log.lease import activity, holder
from floodmark.log.status import read_status, write_run, write_verify
from floodmark.model import events
from floodmark.model.commit import Batch, Clean, LoadAs, Restore, WithFiles
from floodmark.model.errors import ConflictError, FloodmarkError, Interrupted, VerificationError, bug
from floodmark.model.ledger import LedgerRow
from floodmark.model.lineage import column_changes
from floodmark.model.notes import sentence
from floodmark.model.policies import changed_values
from floodmark.model.results import Watermark
from floodmark.model.run import EXTRACT, LOAD, Lag, Stage, SyncOptions, TableReport, Wait
from floodmark.model.table import Table
from floodmark.model.text import counted, duration, size
from floodmark.model.times import parse_moment, stamp
from floodmark.model.window import Intent
from floodmark.plan import takeover as legacy
from floodmark.plan.decide import Deletion, TablePlan, check_begun, load_as, reason
from floodmark.plan.followed import FollowStep, TableNews, followed_lag, untouched
from floodmark.plan.lag import measured
from floodmark.source.binlog.end import await_end
from floodmark.source.describe import discover_with_notes
from floodmark.source.read import bounded, check_lengths
from floodmark.source.session import Session
from floodmark.sync import deletes, loads
from floodmark.sync.passes import append, check_gives_way, only_if_changed, read, remove
from floodmark.sync.preview import Preview, load_plan, preview, source_of
from floodmark.sync.reconcile import fate, follow, read_keys, reconcile
from floodmark.sync.untouched import left_alone
from floodmark.sync.work import TableRun, hold
from floodmark.verify.changed import set_apart, unexplained
from floodmark.verify.compare import check_compared, compare, described
from floodmark.verify.lookup import Differences
from floodmark.verify.run import Verified, status_of, verify_loaded

logger = logging.getLogger("floodmark")

# Minimum time before the same failure of a table is published again.
TOLD_EVERY = timedelta(minutes=5)


@dataclass(frozen=True)
class Ending:
    """How a run ended, for the table's status."""

    ours: bool = False  # whether it is up to us to report it
    failure: StageFailure | None = None  # goes into the status only, because there is no log


def sync_table(run: TableRun) -> TableReport:
    """The whole run; an error goes into the report and does not affect other tables."""
    began, before, ending, asked = time.monotonic(), None, Ending(), run.asked
    twice = run.services.sources.twice
    try:
        before = run.held.read(run.old).table
        if run.state.retired and run.work.all_tables:
            return _ended(run, replace(run.report, left_out=True))
        run.work.pipeline.known()
        nothing: TablePlan | None = None
        if not asked.load_only:
            with run.account.timed("extract"):
                nothing = twice(partial(extract, run))
            if left := run.report.rows_deleted:
                gone = (
                    "no longer at the source"
                    if run.options.changes == "binlog"
                    else "no longer matching `where`"
                )
                run.account.note(f"{counted(left, 'row')} {gone}: {fate(run)}")
            if run.state.retired and not asked.dry_run:
                run.held.hold("sync")  # brings it back
        elif asked.dry_run and run.state.table is not None:
            seen = loads.look(run, run.state.table)
            run.account(events.Previewed(run.name, load_plan(seen)))
        if not asked.backup_only and not asked.dry_run:
            loads.load(run)
            if not asked.load_only and twice(partial(sweep, run), partial(_sweep_again, run)):
                run.loads.repairs = True  # every key of the target was compared with the source's
                loads.load(run)
                loads.accept_rows(run)
            _remove_due(run)
        if nothing is not None and not run.state.has_had_rows:
            check_begun(nothing)
        ending = _succeed(run)
        with run.account.timed("verify"):
            _verify(run)
    except FloodmarkError as error:
        ending = _fail(run, error.of(run.name))
    except Exception as error:  # a bug in one table must not lose the others' reports
        logger.debug("unexpected", exc_info=True, extra={"table": run.name})
        ending = _fail(run, bug(error).of(run.name))
    finally:
        run.held.release()
    table = run.state.table
    found = changed_values(table, run.report.changed)
    run.account(events.Found(run.name, (*run.held.log.findings, *found)))
    seconds, changes = time.monotonic() - began, column_changes(before, table)
    report = replace(run.report, seconds=seconds, described=table, schema_changes=changes)
    _leave_status(run, report, ending)
    return _ended(run, report)


def _ended(run: TableRun, report: TableReport) -> TableReport:
    run.work.ended.append(report)
    run.account(events.Ended(run.name, report, run.state.position if run.held.known else None))
    return report


def refuse_table(run: TableRun, error: FloodmarkError) -> Watermark | None:
    """Reports an error that came before the table's turn; returns the watermark as far as it is known."""
    try:
        if not run.held.read().retired:
            ending = _fail(run, error)
            _leave_status(run, run.report, ending)
    except FloodmarkError:
        pass  # there is no store to report it to
    return run.report.watermark


# ---------------------------------------------------------------- plan, extract, commit


def extract(run: TableRun) -> TablePlan | None:
    """Plans, claims and reads until the run has nothing left to read; returns the plan that found nothing."""
    rows = run.report.rows_extracted
    request = run.asked.after(rows) if rows else run.asked  # some were extracted at the first attempt
    if request.most == 0:
        return None
    news, looks = run.news, request.since is not None or request.dry_run
    if news is not None and not looks and untouched(run.state, run.options, news):
        _leave_alone(run, news)
        return None
    for _ in range(3):  # first a window left open and rows to read again, then what has arrived since
        plan = decide_and_claim(run.held.log, run.state, partial(_planned, run, request))
        if plan is None or plan.empty:
            return plan
        if plan.passes:
            read(run, plan)
            _create_target(run, plan)
        elif plan.step is not None:
            _step(run, plan.table, plan.step)
        if not (plan.resumed or (plan.passes and plan.steps)) or request.most is not None:
            break
    return None


def _leave_alone(run: TableRun, news: TableNews) -> None:
    """Nothing is asked of the source about a table that nobody has touched, and nothing is committed."""
    until = time.time() if news.until is None else news.until
    run.account(events.LagMeasured(run.name, Lag(seconds=0.0)))
    run.account(left_alone(run.name, run.state.extraction.strategy or "", until, stamp()))


def _step(run: TableRun, table: Table, step: FollowStep) -> None:
    """What a table that follows the source's log does besides being copied."""
    if step.do == "reconcile":
        reconcile(run, table, step)
    else:
        follow(run, table, step)


def _create_target(run: TableRun, plan: TablePlan) -> None:
    """Creates the target of a table whose first copy has found no row."""
    copied = plan.step is not None and plan.table.follows and run.state.window is None
    if copied and not run.state.has_data and loads.lacks_target(run, plan.table):
        append(run, run.held.draft(Batch, schema=plan.table.fingerprint, load_as="replace"))


def _planned(run: TableRun, request: SyncOptions, state: State) -> TablePlan | None:
    """The plan to read, under our claim unless there is nothing to read; None: this is a dry run."""
    run.held.state, dry = state, run.asked.dry_run
    run.account(events.StageBegan(run.name, "plan"))
    began, moment = time.monotonic(), time.time()
    try:
        made = _preview(run, request)
    finally:
        run.account(events.StageEnded(run.name, "plan"))
    plan = made.plan
    for text in made.older:
        run.account.note(text)
    if made.older and made.state.position is not None and not dry:
        _take_over(run, made)
    whole = request.most is None and request.since is None
    run.account(
        events.Planned(
            run.name, plan.strategy, plan.empty, plan.rows,
            len(plan.pieces), time.monotonic() - began, plan.window, plan.resumed,
            plan.read_again, reason(request, plan), plan.held if plan.newer_wait else (),
            plan.complete_at(moment) if whole else None, None if dry else stamp(),
        )
    )  # fmt: skip
    _note(run, plan)
    if dry:
        made = replace(made, load=loads.look(run, plan.table))
        run.account(events.Previewed(run.name, made.result))
        if made.refused is not None:
            raise made.refused
        return None
    if plan.empty:
        _nothing_to_read(run, request, plan)
        return plan
    if plan.gives_way:
        check_gives_way(run, plan, plan.rows)
    if plan.rows:
        _warm_up(run)
    loads.foresee(run, plan.table)
    can = run.services.config.warehouse.can
    # While Spark starts, since a large read would stumble over overlong values late.
    if plan.window and not plan.resumed and len(plan.slices) > 1 and bounded(plan.table, can):
        with run.services.session("plan") as session:
            check_lengths(session, plan.table, plan.window, can)
    run.held.claim(plan.claim)
    return plan


def _preview(run: TableRun, request: SyncOptions) -> Preview:
    """What this run is going to do, as its log and the source are now."""
    services, log = run.services, run.held.log

    def waits(on: Wait | None) -> None:
        run.account(events.Waiting(run.name, on))
        if on is not None and on.coming:
            _warm_up(run)

    with services.session("plan") as session:
        found = discover_with_notes(session, run.name, run.options, services.config.source.database)
        run.work.check_target(found.table)
        news = run.news
        if news is not None:
            await_end(session, news.newest)
        _measure_lag(run, session, found.table)
        looks, doubted = services.looks(session), services.sources.doubted(run.name)
        source = source_of(session, found, run.state, run.options, looks, waits, doubted, news)
        made = preview(source, found, services.config, log, request, run.work.starts, run.old)
        if (
            run.news is not None
            and run.asked.dry_run
            and (unread := run.work.news.unread(session)) is not None
        ):
            made = replace(made, plan=replace(made.plan, notes=(*made.plan.notes, unread)))
        services.sources.expect(run.name, made.plan.source)
    if not run.asked.repeated:
        return made
    return replace(made, plan=only_if_changed(services, made.plan, made.state))


def _measure_lag(run: TableRun, session: Session, table: Table) -> None:
    if run.news is not None and (behind := followed_lag(run.state.followed_to, run.news)) is not None:
        run.account(events.LagMeasured(run.name, behind))
    position = restarted_by(run.state, table).position
    if position is None or run.report.lag_before is not None:
        return
    if (lag := measured(session, table, position, run.options.cursor_timezone)) is not None:
        run.account(events.LagMeasured(run.name, lag))


def _note(run: TableRun, plan: TablePlan) -> None:
    """Notes what the user should know about the table, and about this run."""
    # Notes on the table itself appear in `plan` and when a sync reads it this way for the first time, not in every
    # run from cron.
    before, dry = run.state.table, run.asked.dry_run
    first = before is None or (before.mode, before.cursor) != (plan.table.mode, plan.table.cursor)
    for note in plan.about:
        run.account.note(sentence(note), aloud=first)
    for text in (*plan.notes, *(f"{change}." for change in plan.recipe if dry)):
        run.account.note(text)
    columns = any(one.kind == "columns" for one in plan.passes)
    if not dry and (columns or (plan.window is not None and plan.window.whole)):
        for text in plan.notes:
            # Printed before the rows are read too, not only in the result: the operator may want to stop it.
            run.services.emit(events.Noted("", f"{run.name}: {text}"))


def _warm_up(run: TableRun) -> None:
    """Starts Spark in the background for a table with rows; ConflictError if another run holds it."""
    if not run.asked.dry_run:
        refuse_if_held(run.held.log, run.state, run.held.run)
        run.services.warm_up()


def _take_over(run: TableRun, made: Preview) -> NoReturn:
    """Commits the older tool's position, before anything else: the next plan continues from it."""
    run.held.claim(Intent("sync", made.plan.table))
    append(run, run.held.draft(Restore, position=made.state.position, note="; ".join(made.older)))
    raise Changed(run.state)


def _nothing_to_read(run: TableRun, request: SyncOptions, plan: TablePlan) -> None:
    """Creates the target of a table that was never read, and commits once that it was looked at."""
    state = run.state
    if legacy.untouched(state) and loads.lacks_target(run, plan.table):
        way: LoadAs = "replace"
    elif not plan.waits and request.since is None and not state.looked_at:
        way = load_as(plan.table)
    else:
        if state.window is not None and request.since is None:
            with suppress(Changed):
                run.held.claim(Intent("sync"))  # gives it up: what it was to read is gone
        return
    try:
        run.held.claim(Intent("sync", plan.table))
    except Changed:  # by another run, meanwhile
        return
    append(run, run.held.draft(Batch, schema=plan.table.fingerprint, load_as=way))


# ---------------------------------------------------------------- changes that no cursor reveals


def sweep(run: TableRun) -> bool:
    """Looks for deletes and cascades if due; returns whether there is something to load now.

    A search that finds nothing leaves a commit without files, which records its time. A crash before that
    commit means that the search is repeated.
    """
    found = deletes.look(run.services, run.state, run.options, run.asked.force)
    if found is None:
        return False
    keys, removes = (*found.back, *found.changed, *found.gone), run.options.deletes != "ignore"
    removed = read_keys(run, found.table, keys, "deletes", Deletion(found.rows) if removes else None)
    if not removed:
        # Records the time.
        hold(run, "deletes", found.table)
        remove(run, found.table, with_weights(found.table, key_table(found.table, ()), ()), 0)
    if found.back:
        rows = counted(len(found.back), "row")
        run.account.note(f"{rows} missing from the target, though unchanged at the source: read again")
    if found.changed:
        run.account.note(f"{counted(len(found.changed), 'row')} changed by foreign keys: read again")
    if removed:
        run.account.note(f"{counted(removed, 'row')} no longer at the source: {fate(run)}")
    return bool(removed or found.back or found.changed)


def _sweep_again(run: TableRun) -> bool:
    """The same with another plan, which says whether the source is the one that was read before."""
    if run.asked.most is None and run.asked.since is None:
        extract(run)
        loads.load(run)
    else:
        _preview(run, run.asked)  # what was asked for has been read
    return sweep(run)


# ---------------------------------------------------------------- verify --repair


@dataclass(frozen=True)
class Repaired:
    """What a repair found, did, and left."""

    table: Table
    before: Differences
    after: Differences
    report: TableReport

    @property
    def rows(self) -> int:
        """Rows that were read again or removed."""
        return self.report.rows_reread + self.report.rows_extracted + self.report.rows_deleted


def repair_table(run: TableRun) -> Repaired:
    """Loads what is pending, compares, repairs the differences, and compares again."""
    run.loads.repairs = True
    try:
        run.held.read()
        run.work.pipeline.known()
        return run.services.sources.twice(partial(_repaired, run))
    except ConflictError:
        run.held.watermark.drop_due()
        raise
    finally:
        loads.abandon(run)
        run.held.release()


def _repaired(run: TableRun) -> Repaired:
    loads.load(run)
    with run.services.session("verify") as session:
        table = described(run.services, session, run.name)
    known = run.state.table
    found = compare(run.services, table, run.state)
    check_compared(table, found)
    # Where the log can't tell what has changed since, all that differs is read again.
    after = found = set_apart(run.services, table, run.state, found)[0]
    if found:
        if table.mode == "full":
            extract(run)  # a new snapshot replaces everything
        else:
            deletes.check_repairable(run.services, table, run.state, run.options)
            hold(run, "repair", table)
            # Extra rows that the source has exist twice, or their key reads differently.
            keys = (*found.missing, *(key for key, _ in found.different), *found.extra)
            read_keys(run, table, keys, "repair", Deletion(found.rows_warehouse))
        loads.load(run)
        # The same columns as before: those that are new at the source are for the next sync.
        then = replace(run.state, table=known)
        after = unexplained(run.services, table, then, compare(run.services, table, then))
    if not after:
        loads.accept_rows(run)
    return Repaired(table, found, after, run.report)


# ---------------------------------------------------------------- staged files


def _remove_due(run: TableRun) -> None:
    """Removes the files of superseded snapshots, and loaded ones whose time is up (`keep_files`)."""
    keep, held, now = run.options.keep_files, run.held, datetime.now(UTC)
    ledger, table = run.loads.ledger, run.state.table
    if ledger is None or table is None:
        return
    warehouse = run.services.warehouse()
    removal, _ = due_files(warehouse, held.log, held.state, ledger, keep, now)
    if removal.empty:
        return
    held.hold("clean")
    # Read again under the claim: another run may have reset the table meanwhile.
    run.loads.ledger = ledger = ledger_for(warehouse, held.state, table.target)
    removal, run.loads.ledger = due_files(warehouse, held.log, held.state, ledger, keep, now)
    if removal.empty:
        return
    gone, lost = Cleaning(run.name, removal), None
    replaced = bool(superseded(held.state, ledger))
    append(run, held.draft(Clean, clean=removal.clean))
    try:
        remove_files(run.services.store, gone)
    except FloodmarkError as error:
        if not replaced or isinstance(error, Interrupted):
            raise
        lost = error  # nobody asked for this removal, and all rows are loaded
    finally:
        run.account(events.Cleaned(run.name, gone.deleted, gone.bytes))
    if lost is None and not replaced and keep is not None:
        what = f"{counted(gone.deleted, 'file')} ({size(gone.bytes)})"
        run.account.note(f"removed {what} loaded more than {duration(keep)} ago (keep_files)")
    if lost is not None:
        of = counted(len(removal.files), "file")
        run.account.note(
            f"removed {gone.deleted:,} of {of} of superseded snapshots: {lost.message}; "
            "the sync that loads the next snapshot tries again"
        )
    for note in gone.notes:
        run.account.note(note)
    if replaced and keep is not None:
        _remove_due(run)  # what else is due: files from before the table was read whole


# ---------------------------------------------------------------- what people see when a run ends


def _succeed(run: TableRun) -> Ending:
    """Publishes a success, if something changed, and measures how far the table lags behind now."""
    report, state, asked, watermark = run.report, run.state, run.asked, run.held.watermark
    lag = report.lag_before
    if run.news is not None and state.followed_to is not None:
        lag = followed_lag(state.followed_to, run.news)
    elif report.rows_extracted and state.table is not None:
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


def _fail(run: TableRun, error: FloodmarkError) -> Ending:
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
    failure = StageFailure("load" if run.loads.error else "extract", error.message, stamp())
    watermark, unlogged = run.held.watermark, run.state.n < 0  # then there is no copy of a log to publish
    if unlogged or (run.held.lease is None and any(_same(f, failure) for f in watermark.failures)):
        shown = watermark.current(run.state, _ledger(run), failure)
    else:
        shown = watermark.publish(run.state, _ledger(run), failure=failure)
    return _with_activity(run, shown, looked), Ending(True, failure if unlogged else None)


def _leave_status(run: TableRun, report: TableReport, ending: Ending) -> None:
    """Records in the store how the run ended, if that is up to us."""
    if ending.ours and not run.services.interrupted:
        write_run(
            run.held.log.store.recently(run.old), report, run.held.run,
            looked=report.looked, failure=ending.failure, killed=run.held.killed,
        )  # fmt: skip


def _verify(run: TableRun) -> None:
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


def _same(known: StageFailure, now: StageFailure) -> bool:
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
