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
from floodmark.clean.remove import Cleaning, remove
from floodmark.config.load import TableOptions
from floodmark.load.pending import ledger_for
from floodmark.log.claim import Changed, Claimed, decide_and_claim, refuse_if_held
from floodmark.log.document import StageFailure
from floodmark.log.fold import State, restarted_by
from floodmark.log.held import HeldTable
from floodmark.log.status import write_run, write_verify
from floodmark.model import events
from floodmark.model.account import Account
from floodmark.model.commit import Batch, Clean, LoadAs, Restore, WithFiles
from floodmark.model.errors import (
    ConflictError,
    FloodmarkError,
    Interrupted,
    VerificationError,
    bug,
)
from floodmark.model.lineage import Known, column_changes, suspects
from floodmark.model.note_words import sentence
from floodmark.model.policies import changed_values
from floodmark.model.position import Key
from floodmark.model.results import Watermark
from floodmark.model.run import TableReport
from floodmark.model.table import Table
from floodmark.model.text import counted, duration, size
from floodmark.model.times import stamp
from floodmark.plan import takeover as legacy
from floodmark.plan.decide import Plan, check_begun, reason, strategy_of
from floodmark.plan.lag import measured
from floodmark.plan.reread import check as check_recipe
from floodmark.plan.reread import known_rows, question
from floodmark.source.describe import discover_with_notes
from floodmark.source.session import Session
from floodmark.source.too_long import bounded, check_lengths
from floodmark.sync import deletes, outcome
from floodmark.sync.extraction import Extraction, committed
from floodmark.sync.loader import Loader
from floodmark.sync.preview import Preview, load_plan
from floodmark.sync.preview import preview as preview_table
from floodmark.sync.repair import check_repairable, to_repair
from floodmark.sync.resources import Work
from floodmark.sync.snapshots import only_if_changed
from floodmark.verify.after_sync import verify_loaded
from floodmark.verify.compare import Differences, check_compared, compare, described
from floodmark.verify.run import Verified, status_of

log = logging.getLogger("floodmark")


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


class TableRun:
    """One table's run."""

    def __init__(self, work: Work, name: str, tables: int) -> None:
        self._work = work
        self._services = work.services
        self._asked = asked = work.options
        self._name = name
        self._options: TableOptions = work.services.config.options(name)
        self._request = replace(asked, slice_rows=self._options.slice_rows, tables=tables)
        self._account = account = Account(name, work.services.emit)
        self._glance = work.glance(name)
        self._held = held = HeldTable(work.services.store, name, work.services.run)
        self._loader = Loader(work, held, account)
        self._extraction = Extraction(work, held, self._loader, account)
        self._empty_plan: Plan | None = None  # the plan, if there was nothing to read
        self._looked: str | None = None  # when the source was last checked for rows to read
        self._described_before: Table | None = None  # the table as the last run knew it
        self._ours = False  # whether it is up to us to report how the run ended
        self._unlogged: StageFailure | None = None  # a failure of a table that has no log yet
        self.ended = False

    @property
    def report(self) -> TableReport:
        """The report, as far as the run has got."""
        return self._account.report

    def go(self) -> TableReport:
        """The whole run; an error goes into the report and does not affect other tables."""
        began = time.monotonic()
        try:
            state = self._held.read(self._glance)
            self._described_before = state.table
            if state.retired and self._work.all_tables:
                return self._end(replace(self.report, left_out=True))
            self._work.pipeline.known()
            if not self._asked.load_only:
                with self._account.timed("extract"):
                    self._services.sources.twice(self._name, self._extract)
                if left := self._extraction.left:
                    self._account.note(f"{counted(left, 'row')} no longer matching `where`: {self._deleted}")
                if self._held.state.retired and not self._asked.dry_run:
                    self._held.hold("sync")  # brings it back
            if self._asked.load_only and self._asked.dry_run and self._held.state.table is not None:
                seen = self._loader.look(self._held.state, self._held.state.table)
                self._account(events.Previewed(self._name, load_plan(seen)))
            if not self._asked.backup_only and not self._asked.dry_run:
                self._load()
                if not self._asked.load_only and self._services.sources.twice(
                    self._name, self._sweep, self._sweep_again
                ):
                    self._loader.repairs = True  # every key of the target was compared with the source's
                    self._load()
                    self._loader.accept_rows(self._held.state)
                self._remove_due()
            if self._empty_plan is not None and not self._held.state.has_had_rows:
                check_begun(self._empty_plan)
            self._succeed()
            with self._account.timed("verify"):
                self._verify()
        except FloodmarkError as error:
            self._fail(error.of(self._name))
        except Exception as error:  # a bug in one table must not lose the others' reports
            log.debug("unexpected", exc_info=True, extra={"table": self._name})
            self._fail(bug(error).of(self._name))
        finally:
            self._held.release()
        table = self._held.state.table
        found = changed_values(table, self._extraction.changed)
        self._account(events.Found(self._name, (*self._held.log.findings, *found)))
        seconds, changes = time.monotonic() - began, column_changes(self._described_before, table)
        report = replace(self.report, seconds=seconds, described=table, schema_changes=changes)
        self._leave_status(report)
        return self._end(report)

    def _end(self, report: TableReport) -> TableReport:
        self.ended = True
        self._account(
            events.Ended(self._name, report, self._held.state.position if self._held.known else None)
        )
        return report

    def repair(self) -> Repaired:
        """Loads what is pending, compares, repairs the differences, and compares again."""
        self._loader.repairs = True
        try:
            self._held.read()
            self._work.pipeline.known()
            return self._services.sources.twice(self._name, self._repaired)
        except ConflictError:
            self._held.watermark.drop_due()
            raise
        finally:
            self._loader.abandon()
            self._held.release()

    def _repaired(self) -> Repaired:
        self._load()
        with self._services.session("verify") as session:
            table = described(self._services, session, self._name)
        known = self._held.state.table
        found = after = compare(self._services, table, self._held.state)
        check_compared(table, found)
        if found:
            self._repair(table, found)
            self._load()
            # The same columns as before: those that are new at the source are for the next sync.
            after = compare(self._services, table, replace(self._held.state, table=known))
        if not after:
            self._loader.accept_rows(self._held.state)
        return Repaired(table, found, after, self.report)

    def not_begun(self, error: FloodmarkError) -> Watermark | None:
        """Reports an error that came before the table's turn; returns the watermark as far as it is known."""
        try:
            if not self._held.read().retired:
                self._fail(error)
                self._leave_status(self.report)
        except FloodmarkError:
            pass  # there is no store to report it to
        return self.report.watermark

    # plan, extract, commit

    def _extract(self) -> None:
        """Plans, claims and reads until the run has nothing left to read."""
        if self.report.rows_extracted:  # the second attempt
            self._request = self._request.after(self.report.rows_extracted)
        if self._request.most == 0:
            return
        for _ in range(2):  # first a window left open, then what has arrived since
            plan = decide_and_claim(self._held.log, self._held.state, self._planned)
            if plan is None:
                return
            self._extraction.read(plan)
            if not plan.resumed or self._request.most is not None:
                return

    def _planned(self, state: State) -> Plan | Changed | None:
        """The plan to read, under our claim; None if there is nothing to read, or this is a dry run."""
        self._held.state = state
        self._account(events.StageBegan(self._name, "plan"))
        began, moment = time.monotonic(), time.time()
        try:
            preview = self._preview()
        finally:
            self._account(events.StageEnded(self._name, "plan"))
        plan = preview.plan
        for text in preview.takeover.notes:
            self._account.note(text)
        if preview.takeover.position is not None and not self._asked.dry_run:
            return self._take_over(preview)
        self._account(self._event_of(plan, moment, time.monotonic() - began))
        if not self._asked.dry_run:
            self._looked = stamp()
        # Notes on the table itself appear in `plan` and when a sync reads it this way for the first time, not in every
        # run from cron.
        before = self._held.state.table
        first = before is None or (before.mode, before.cursor) != (plan.table.mode, plan.table.cursor)
        for note in plan.about:
            self._account.note(sentence(note), aloud=first)
        for text in (*plan.notes, *(f"{change}." for change in plan.recipe if self._asked.dry_run)):
            self._account.note(text)
        if self._asked.dry_run:
            preview = replace(preview, load=self._loader.look(self._held.state, plan.table))
            self._account(events.Previewed(self._name, preview.result))
            if preview.refused is not None:
                raise preview.refused
            return None
        if plan.reread_slices or (plan.window is not None and plan.window.whole):
            for text in plan.notes:
                # Printed before the rows are read too, not only in the result: the operator may want to stop it.
                self._services.emit(events.Noted("", f"{self._name}: {text}"))
        if plan.empty:
            self._nothing_to_read(plan)
            self._empty_plan = plan
            return None
        if plan.gives_way:
            self._extraction.check_gives_way(plan, plan.rows)
        self._warm_up()
        self._loader.foresee(self._held.state, plan.table)
        self._check_lengths(plan)
        taken = self._held.claim(
            "sync", table=plan.table, window=plan.window, reread=plan.reread,
            strategy=plan.strategy, zone=plan.zone, origin=plan.origin,
        )  # fmt: skip
        return taken if isinstance(taken, Changed) else plan

    def _check_lengths(self, plan: Plan) -> None:
        """Looks for overlong values while Spark starts, since a large read would stumble over them late."""
        can = self._services.config.warehouse.can
        large = plan.window is not None and not plan.resumed and len(plan.slices) > 1
        if large and bounded(plan.table, can):
            with self._services.session("plan") as session:
                check_lengths(session, plan.table, plan.window, can)

    def _preview(self) -> Preview:
        """What this run is going to do, as its log and the source are now."""
        account, name = self._account, self._name
        with self._services.session("plan") as session:
            database = self._services.config.source.database
            found = discover_with_notes(session, self._name, self._options, database)
            self._work.check_target(found.table)
            self._measure_lag(session, found.table)
            made = preview_table(
                session,
                self._services.config,
                found,
                self._held.log,
                self._held.state,
                self._request,
                self._work.starts,
                expected=self._warm_up,
                looks=self._services.looks(session),
                waiting=lambda on: account(events.Waiting(name, on)),
                doubted=self._services.sources.doubted(self._name),
                old=self._glance,
            )
            self._services.sources.expect(self._name, made.plan.source)
        if not self._asked.repeated:
            return made
        return replace(made, plan=only_if_changed(self._services, made.plan, made.state))

    def _measure_lag(self, session: Session, table: Table) -> None:
        position = restarted_by(self._held.state, table).position
        if position is None or self.report.lag_before is not None:
            return
        if (lag := measured(session, table, position, self._options.cursor_timezone)) is not None:
            self._account(events.LagMeasured(self._name, lag))

    def _event_of(self, plan: Plan, moment: float, seconds: float) -> events.Planned:
        """The event of a plan that was begun at that moment."""
        whole = self._request.most is None and self._request.since is None
        return events.Planned(
            self._name, plan.strategy, plan.empty, plan.rows,
            len(plan.pieces), seconds, plan.window, plan.resumed,
            plan.read_again, reason(self._request, plan), plan.held if plan.newer_wait else (),
            plan.complete_at(moment) if whole else None,
        )  # fmt: skip

    def _warm_up(self) -> None:
        """Starts Spark in the background for a table with rows; ConflictError if another run holds it."""
        if not self._asked.dry_run:
            refuse_if_held(self._held.log, self._held.state, self._held.run)
            self._services.warm_up()

    def _take_over(self, preview: Preview) -> Changed:
        """Commits the older tool's position, before anything else: the next plan continues from it."""
        taken = self._held.claim("sync", table=preview.plan.table)
        if isinstance(taken, Changed):
            return taken
        position, note = preview.takeover.position, "; ".join(preview.takeover.notes)
        moved = self._held.draft(Restore, position=position, note=note)
        self._held.append(moved)
        self._account(committed(moved, self._held.state))
        return Changed(self._held.state)

    def _nothing_to_read(self, plan: Plan) -> None:
        """Creates the target of a table that was never read, and commits once that it was looked at."""
        state, schema = self._held.state, plan.table.fingerprint
        if legacy.untouched(state) and self._loader.lacks_target(state, plan.table):
            way: LoadAs = "replace"
        elif not plan.waits and self._request.since is None and not state.looked_at:
            way = plan.load_as
        else:
            if state.window is not None and self._request.since is None:
                self._held.claim("sync")  # gives it up: what it was to read is gone
            return
        taken = self._held.claim("sync", table=plan.table)
        if isinstance(taken, Claimed):  # otherwise another run has changed the table meanwhile
            self._extraction.append(self._held.draft(Batch, schema=schema, load_as=way))

    # load

    def _load(self) -> None:
        """Loads everything still pending."""
        self._loader.finish(partial(self._hold, "load"))

    def _hold(self, purpose: str, table: Table | None = None) -> None:
        """Makes sure that we hold the table, as described; refuses one that no longer fits its rows."""
        state, known = self._held.state, list[Known]()
        if table is not None:
            check_recipe(table, state, self._options)
            if state.table is not None and suspects(state.table, table):
                with self._services.session(purpose) as session:
                    known = known_rows(session, state.table, table, state)
            asks = question(table, state, self._options, known)
            if asks is not None:
                raise asks
        self._held.hold(purpose, table, known)

    # changes that no cursor reveals

    def _sweep(self) -> bool:
        """Looks for deletes and cascades if due; returns whether there is something to load now.

        A search that finds nothing leaves a commit without files, which records its time. A crash before that
        commit means that the search is repeated.
        """
        found = deletes.look(self._services, self._held.state, self._options, self._asked.force)
        if found is None:
            return False
        self._read_keys(found.table, (*found.back, *found.changed), "deletes")
        if found.back:
            rows = counted(len(found.back), "row")
            self._account.note(f"{rows} missing from the target, though unchanged at the source: read again")
        removed = self._remove(found.table, found.gone, found.rows, "deletes", always=True)
        if found.changed:
            self._account.note(f"{counted(len(found.changed), 'row')} changed by foreign keys: read again")
        if removed:
            self._account.note(f"{counted(removed, 'row')} no longer at the source: {self._deleted}")
        return bool(removed or found.back or found.changed)

    @property
    def _deleted(self) -> str:
        return "marked as deleted" if self._options.deletes == "soft" else "deleted"

    def _sweep_again(self) -> bool:
        """The same with another plan, which says whether the source is the one that was read before."""
        if self._request.most is None and self._request.since is None:
            self._extract()
            self._load()
        else:
            self._preview()  # what was asked for has been read
        return self._sweep()

    def _read_keys(self, table: Table, keys: Sequence[Key], purpose: str) -> None:
        """Reads and commits the rows of these keys under our claim; they move no position."""
        if pieces := deletes.slices(keys):
            self._hold(purpose, table)
            strategy = strategy_of(self._request, len(pieces))
            self._extraction.read(Plan(table, strategy, again=pieces, load_as="merge"))

    def _remove(
        self, table: Table, keys: Sequence[Key], rows: int, purpose: str, *, always: bool = False
    ) -> int:
        """Commits deletes for those keys that the source lacks when queried now; returns their number.

        `rows` is the warehouse's row count. With `always` there is a commit even without deletes, to record
        the time.
        """
        if not keys and not always:
            return 0
        began = time.monotonic()
        self._hold(purpose, table)
        absent = deletes.lacking(self._services, table, keys, rows, self._asked.force)
        if absent.num_rows or always:
            self._extraction.remove(table, absent, absent.num_rows, began=began)
        return absent.num_rows

    def _repair(self, table: Table, found: Differences) -> None:
        """Reads missing and differing rows again, and removes extra ones."""
        if table.mode == "full":
            self._extract()  # a new snapshot replaces everything
            return
        check_repairable(self._services, table, self._held.state, self._options)
        self._hold("repair", table)
        there, absent = to_repair(self._services, table, found)
        self._read_keys(table, there, "repair")
        self._remove(table, absent, found.rows_warehouse, "repair")

    def _remove_due(self) -> None:
        """Removes the files of superseded snapshots, and loaded ones whose time is up (`keep_files`)."""
        keep, ledger, table = self._options.keep_files, self._loader.ledger, self._held.state.table
        if ledger is None or table is None:
            return
        held, warehouse, now = self._held, self._services.warehouse(), datetime.now(UTC)
        removal, _ = due_files(warehouse, held.log, held.state, ledger, keep, now)
        if removal.empty:
            return
        held.hold("clean")
        # Read again under the claim: another run may have reset the table meanwhile.
        self._loader.ledger = ledger = ledger_for(warehouse, held.state, table.target)
        removal, self._loader.ledger = due_files(warehouse, held.log, held.state, ledger, keep, now)
        if removal.empty:
            return
        gone, lost = Cleaning(self._name, removal), None
        replaced = bool(superseded(held.state, ledger))
        self._extraction.append(held.draft(Clean, clean=removal.clean))
        try:
            remove(self._services.store, gone)
        except FloodmarkError as error:
            if not replaced or isinstance(error, Interrupted):
                raise
            lost = error  # nobody asked for this removal, and all rows are loaded
        finally:
            self._account(events.Cleaned(self._name, gone.deleted, gone.bytes))
        if lost is None and not replaced and keep is not None:
            what = f"{counted(gone.deleted, 'file')} ({size(gone.bytes)})"
            self._account.note(f"removed {what} loaded more than {duration(keep)} ago (keep_files)")
        if lost is not None:
            of = counted(len(removal.files), "file")
            again = "the sync that loads the next snapshot tries again"
            self._account.note(
                f"removed {gone.deleted:,} of {of} of superseded snapshots: {lost.message}; {again}"
            )
        for note in gone.notes:
            self._account.note(note)
        if replaced and keep is not None:
            self._remove_due()  # what else is due: files from before the table was read whole

    # the end

    def _succeed(self) -> None:
        report, state = self.report, self._held.state
        self._ours = not self._asked.dry_run
        lag = report.lag_before
        if report.rows_extracted and state.table is not None:
            try:
                with self._services.session("lag") as session:
                    zone = self._options.cursor_timezone
                    lag = measured(session, state.table, state.position, zone)
            except FloodmarkError:
                pass  # the rows were read and committed anyway
        shown = outcome.succeeded(
            self._held, self._loader, self._asked, idle=report.idle, looked=self._looked
        )
        self._account(events.Succeeded(self._name, shown, lag))

    def _fail(self, error: FloodmarkError) -> None:
        self._loader.abandon()
        shown, stopped = None, self._services.interrupted
        if self._held.known and not stopped:  # the table failed, and there is a store to write to
            told = outcome.failed(
                self._held,
                self._loader,
                self._asked,
                error,
                looked=self._looked,
                ours=self._work.pipeline.ours(),
            )
            shown, self._ours, self._unlogged = told.shown, told.ours, told.failure
        self._account(events.Failed(self._name, error, stopped, shown))

    def _leave_status(self, report: TableReport) -> None:
        """Records in the store how the run ended, if that is up to us."""
        if self._ours and not self._services.interrupted:
            write_run(
                self._held.log.store.recently(self._glance), report, self._held.run,
                looked=self._looked, failure=self._unlogged, killed=self._held.killed,
            )  # fmt: skip

    def _verify(self) -> None:
        """`--verify-data`: differences become the report's findings and its error."""
        if not self._asked.verify_data or not self._loader.loaded:
            return
        loaded = self._held.log.commits(self._loader.loaded)
        commits = [commit for commit, _ in loaded if isinstance(commit, WithFiles)]
        checked = verify_loaded(self._services, self._name, self._held.state, commits)
        if checked.waiting:
            self._account.note(f"not verified: {counted(checked.waiting, 'row')} not loaded yet")
        if checked.compared is not None:
            self._account.note(f"verified: {counted(checked.compared, 'row')} compared with the source")
        if found := checked.findings:
            self._account(events.Found(self._name, tuple(found)))
            result = Verified(self._name, checked.differences or Differences(agree=False), found)
            # Only if it found something: it saw part of the table, and must not hide the findings of a full
            # verify.
            write_verify(self._services.store, replace(status_of(result, self._held.run), by="sync"))
            error = VerificationError(
                f"the rows that this run loaded differ from the source: {found[0].detail}"
                + (f", and {counted(len(found) - 1, 'more finding')}" if len(found) > 1 else ""),
                hint=f"floodmark verify -t {self._name} checks the whole table; with --repair it fixes what differs",
                table=self._name,
            )
            self._account(events.Failed(self._name, error))
