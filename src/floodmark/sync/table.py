"""One table's run: plan → extract → commit → load → verify. Nothing else moves a watermark.

A crash on the way leaves committed files that the next run loads, an open window that it finishes, and
orphans that no commit names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from floodmark.clean.after_load import due_files, superseded
from floodmark.clean.remove import Outcome
from floodmark.clean.remove import remove as remove_files
from floodmark.load.pending import ledger_for
from floodmark.log.claim import Changed, Claimed, decide_and_claim, refuse_if_held
from floodmark.log.fold import State, restarted_by
from floodmark.model import events
from floodmark.model.column_changes import column_changes
from floodmark.model.commit import Batch, Clean, LoadAs, Restore
from floodmark.model.errors import ConflictError, FloodmarkError, Interrupted, bug
from floodmark.model.note_words import sentence
from floodmark.model.policies import changed_values
from floodmark.model.position import Key
from floodmark.model.results import Watermark
from floodmark.model.run import SyncOptions, TableReport, Wait
from floodmark.model.table import Table
from floodmark.model.text import counted, duration, size
from floodmark.model.times import stamp
from floodmark.model.window import Intent
from floodmark.plan import takeover as legacy
from floodmark.plan.decide import TablePlan, again, check_begun, load_as, reason
from floodmark.plan.lag import measured
from floodmark.source.describe import discover_with_notes
from floodmark.source.read import bounded, check_lengths
from floodmark.source.session import Session
from floodmark.sync import deletes, loads
from floodmark.sync.outcome import Ending, fail, leave_status, succeed, verify
from floodmark.sync.passes import append, check_gives_way, only_if_changed, read, remove
from floodmark.sync.preview import Preview, load_plan, preview, source_of
from floodmark.sync.work import TableRun, hold
from floodmark.verify.compare import check_compared, compare, described
from floodmark.verify.lookup import Differences

logger = logging.getLogger("floodmark")


def sync_table(run: TableRun) -> TableReport:
    """The whole run; an error goes into the report and does not affect other tables."""
    began, before, ending, asked = time.monotonic(), None, Ending(), run.asked
    twice = partial(run.services.sources.twice, run.name)
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
                run.account.note(f"{counted(left, 'row')} no longer matching `where`: {_deleted(run)}")
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
        ending = succeed(run)
        with run.account.timed("verify"):
            verify(run)
    except FloodmarkError as error:
        ending = fail(run, error.of(run.name))
    except Exception as error:  # a bug in one table must not lose the others' reports
        logger.debug("unexpected", exc_info=True, extra={"table": run.name})
        ending = fail(run, bug(error).of(run.name))
    finally:
        run.held.release()
    table = run.state.table
    found = changed_values(table, run.report.changed)
    run.account(events.Found(run.name, (*run.held.log.findings, *found)))
    seconds, changes = time.monotonic() - began, column_changes(before, table)
    report = replace(run.report, seconds=seconds, described=table, schema_changes=changes)
    leave_status(run, report, ending)
    return _ended(run, report)


def _ended(run: TableRun, report: TableReport) -> TableReport:
    run.work.ended.append(report)
    run.account(events.Ended(run.name, report, run.state.position if run.held.known else None))
    return report


def refuse_table(run: TableRun, error: FloodmarkError) -> Watermark | None:
    """Reports an error that came before the table's turn; returns the watermark as far as it is known."""
    try:
        if not run.held.read().retired:
            ending = fail(run, error)
            leave_status(run, run.report, ending)
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
    for _ in range(2):  # first a window left open, then what has arrived since
        plan = decide_and_claim(run.held.log, run.state, partial(_planned, run, request))
        if plan is None or plan.empty:
            return plan
        read(run, plan)
        if not plan.resumed or request.most is not None:
            break
    return None


def _planned(run: TableRun, request: SyncOptions, state: State) -> TablePlan | Changed | None:
    """The plan to read, under our claim unless there is nothing to read; None: this is a dry run."""
    run.held.state, dry = state, run.asked.dry_run
    run.account(events.StageBegan(run.name, "plan"))
    began, moment = time.monotonic(), time.time()
    try:
        made = _preview(run, request)
    finally:
        run.account(events.StageEnded(run.name, "plan"))
    plan = made.plan
    for text in made.takeover.notes:
        run.account.note(text)
    if made.takeover.position is not None and not dry:
        return _take_over(run, made)
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
    _warm_up(run)
    loads.foresee(run, plan.table)
    can = run.services.config.warehouse.can
    # While Spark starts, since a large read would stumble over overlong values late.
    if plan.window and not plan.resumed and len(plan.slices) > 1 and bounded(plan.table, can):
        with run.services.session("plan") as session:
            check_lengths(session, plan.table, plan.window, can)
    taken = run.held.claim(plan.claim)
    return taken if isinstance(taken, Changed) else plan


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
        _measure_lag(run, session, found.table)
        looks, doubted = services.looks(session), services.sources.doubted(run.name)
        source = source_of(session, found, run.state, run.options, looks, waits, doubted)
        made = preview(source, found, services.config, log, request, run.work.starts, run.old)
        services.sources.expect(run.name, made.plan.source)
    if not run.asked.repeated:
        return made
    return replace(made, plan=only_if_changed(services, made.plan, made.state))


def _measure_lag(run: TableRun, session: Session, table: Table) -> None:
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


def _take_over(run: TableRun, made: Preview) -> Changed:
    """Commits the older tool's position, before anything else: the next plan continues from it."""
    taken = run.held.claim(Intent("sync", made.plan.table))
    if isinstance(taken, Changed):
        return taken
    note = "; ".join(made.takeover.notes)
    append(run, run.held.draft(Restore, position=made.takeover.position, note=note))
    return Changed(run.state)


def _nothing_to_read(run: TableRun, request: SyncOptions, plan: TablePlan) -> None:
    """Creates the target of a table that was never read, and commits once that it was looked at."""
    state = run.state
    if legacy.untouched(state) and loads.lacks_target(run, plan.table):
        way: LoadAs = "replace"
    elif not plan.waits and request.since is None and not state.looked_at:
        way = load_as(plan.table)
    else:
        if state.window is not None and request.since is None:
            run.held.claim(Intent("sync"))  # gives it up: what it was to read is gone
        return
    taken = run.held.claim(Intent("sync", plan.table))
    if isinstance(taken, Claimed):  # otherwise another run has changed the table meanwhile
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
    _read_keys(run, found.table, (*found.back, *found.changed), "deletes")
    if found.back:
        rows = counted(len(found.back), "row")
        run.account.note(f"{rows} missing from the target, though unchanged at the source: read again")
    removed = _remove_keys(run, found.table, found.gone, found.rows, "deletes", always=True)
    if found.changed:
        run.account.note(f"{counted(len(found.changed), 'row')} changed by foreign keys: read again")
    if removed:
        run.account.note(f"{counted(removed, 'row')} no longer at the source: {_deleted(run)}")
    return bool(removed or found.back or found.changed)


def _sweep_again(run: TableRun) -> bool:
    """The same with another plan, which says whether the source is the one that was read before."""
    if run.asked.most is None and run.asked.since is None:
        extract(run)
        loads.load(run)
    else:
        _preview(run, run.asked)  # what was asked for has been read
    return sweep(run)


def _read_keys(run: TableRun, table: Table, keys: Sequence[Key], purpose: str) -> None:
    """Reads and commits the rows of these keys under our claim; they move no position."""
    if pieces := deletes.slices(keys):
        hold(run, purpose, table)
        read(run, TablePlan(Intent(purpose, table), again(table, pieces)))


def _remove_keys(
    run: TableRun, table: Table, keys: Sequence[Key], rows: int, purpose: str, *, always: bool = False
) -> int:
    """Commits deletes for those keys that the source lacks when queried now; returns their number.

    `rows` is the warehouse's row count. With `always` there is a commit even without deletes, to record
    the time.
    """
    if not keys and not always:
        return 0
    began = time.monotonic()
    hold(run, purpose, table)
    absent = deletes.lacking(run.services, table, keys, rows, run.asked.force)
    if absent.num_rows or always:
        remove(run, table, absent, absent.num_rows, began=began)
    return absent.num_rows


def _deleted(run: TableRun) -> str:
    return "marked as deleted" if run.options.deletes == "soft" else "deleted"


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
        return run.services.sources.twice(run.name, partial(_repaired, run))
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
    found = after = compare(run.services, table, run.state)
    check_compared(table, found)
    if found:
        if table.mode == "full":
            extract(run)  # a new snapshot replaces everything
        else:
            deletes.check_repairable(run.services, table, run.state, run.options)
            hold(run, "repair", table)
            there, absent = deletes.to_repair(run.services, table, found)
            _read_keys(run, table, there, "repair")
            _remove_keys(run, table, absent, found.rows_warehouse, "repair")
        loads.load(run)
        # The same columns as before: those that are new at the source are for the next sync.
        after = compare(run.services, table, replace(run.state, table=known))
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
    gone, lost = Outcome(run.name, removal), None
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
