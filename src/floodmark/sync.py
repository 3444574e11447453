"""The pipeline, top to bottom: plan → extract → commit → load. Nothing else moves a watermark.

One `TableRun` takes one table through it. Whatever dies on the way leaves committed files that the next run
loads, an open window that it finishes, and orphans that no commit names.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from floodmark import legacy, no_rows
from floodmark.config import Config, TableOptions
from floodmark.copies import Keep, clean_daily
from floodmark.deletes import check as check_deletes
from floodmark.deletes import sweep
from floodmark.errors import ConflictError, FloodmarkError, Interrupted, bug
from floodmark.extract import SliceResult
from floodmark.lag import measured
from floodmark.lineage import carried
from floodmark.loader import Loader
from floodmark.model import Commit, LoadAs, Slice, Table, replace
from floodmark.moved import verify_moved
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import discover
from floodmark.mysql.failures import as_discovered
from floodmark.origin import check_still
from floodmark.outcome import failed, succeeded, told
from floodmark.plan import Plan, Request
from floodmark.policies import changed_values
from floodmark.report import EXTRACT, Progress, SyncOptions, SyncReport, TableReport
from floodmark.reread import check as check_recipe
from floodmark.retention import remove_due
from floodmark.snapshots import mark, only_if_changed
from floodmark.spark import Spark
from floodmark.state import Changed, Lease, State, begun_anew, claim, draft, stamp
from floodmark.survey import survey
from floodmark.system import Start
from floodmark.warm import WarmSpark
from floodmark.work import Work

log = logging.getLogger("floodmark")

# A commit gathers the slices of about this long, so that a crash costs little and the log stays short.
COMMIT_EVERY = 2.0
# How often a plan is made anew because another run's commit came between.
REPLANS = 3


def sync(
    config: Config,
    names: Sequence[str],
    all_tables: bool,
    options: SyncOptions,
    progress: Progress,
    run: str,
    spark: Spark | WarmSpark | None = None,
) -> SyncReport:
    """Brings the tables up to date; every table's outcome is in the report, whatever became of the others.

    A Spark that the caller has running already is used and left running.
    """
    began = time.monotonic()
    with Work(config, options, progress, run, spark) as work:
        try:
            tables, unknown = work.resolve(names, all_tables)
        except FloodmarkError as error:
            if not isinstance(error, Interrupted):
                known = work.stored.known(names, all_tables)
                work.side_by_side([partial(told, TableRun(work, name, len(known)), error) for name in known])
            raise
        for one in unknown:
            if one.error is not None and one.table in work.stored.names():
                one.watermark = told(TableRun(work, one.table, 1), one.error)
        runs = [TableRun(work, name, len(tables)) for name in tables]
        done = work.side_by_side([one.go for one in runs])
        reports = [*unknown, *(one for one in done if not one.left_out)]
        report = SyncReport(run, time.monotonic() - began, tuple(reports))
        _leave(work, report)
    return report


def _leave(work: Work, report: SyncReport) -> None:
    """Leaves the run's report in the store, unless nothing changed or the store could not even be read."""
    if work.options.dry_run or all(t.idle or t.watermark is None for t in report.tables):
        return
    try:
        clean_daily(work.store, Keep.configured(work.config))
        work.write_run(report)
    except FloodmarkError as error:
        if report.ok:
            raise
        log.info("the run's report could not be written: %s", error.message)


class TableRun:
    """One table's way through one run."""

    def __init__(self, work: Work, name: str, tables: int) -> None:
        self.work = work
        self.name = name
        self.options: TableOptions = work.config.options(name)
        asked = work.options
        self.request = Request(
            strategy=asked.strategy, limit=asked.limit, max_chunks=asked.max_chunks, since=asked.since, until=asked.until,
            slice_rows=self.options.slice_rows, tables=tables, force=asked.force,
        )  # fmt: skip
        self.report = TableReport(name)
        self.log = work.log(name)
        self.watermark = work.watermark(self.log)
        self.loader = Loader(work, self.log, self.watermark, self.report)
        self.state = State(name)
        self.seen = False  # whether the store has told us the state
        self.looked: str | None = None  # when the source was asked what there is to read
        self.lease: Lease | None = None
        self.changed: Counter[str] = Counter()  # values that policies have changed, by column
        self.last_commit = time.monotonic()

    def go(self) -> TableReport:
        """The whole way; an error ends up in the report, not in the other tables."""
        began = time.monotonic()
        try:
            self.state = self.log.read()
            self.seen = True
            if self.state.retired and self.work.all_tables:
                self.report.left_out = True
                return self.report
            self.work.known_identity()
            if not self.work.options.load_only:
                self.extract()
                if self.state.retired and not self.work.options.dry_run:
                    self.hold("sync")  # brings it back
            if not self.work.options.backup_only and not self.work.options.dry_run:
                self.load()
                if not self.work.options.load_only and sweep(self, force=self.request.force):
                    self.loader.repairs = True  # every key of the target was compared with the source's
                    self.load()
                    self.loader.accept_rows(self.state)
                remove_due(self)
            succeeded(self)
            verify_moved(self)
        except FloodmarkError as error:
            self.loader.abandon()
            failed(self, error.of(self.name))
        except Exception as error:  # a bug in one table must not take the others' reports with it
            log.debug("unexpected", exc_info=True, extra={"table": self.name})
            self.loader.abandon()
            failed(self, bug(error).of(self.name))
        finally:
            self.release()
        self.report.findings += [*self.log.findings, *changed_values(self.state.table, self.changed)]
        self.report.seconds = time.monotonic() - began
        return self.report

    # plan, extract, commit

    def extract(self) -> None:
        """Plans, claims and reads until nothing is left of what the run is to read."""
        for _ in range(REPLANS):
            plan = self._plan()
            if not self.work.options.dry_run:
                self.looked = stamp()
            if not plan.empty or self.report.strategy is None:
                self.report.strategy = plan.strategy
            # What a table is like is said by its first sync and by plan, not by every run from cron.
            told = () if self.state.position is None else plan.table.notes
            changes = [f"{change}." for change in plan.recipe] if self.work.options.dry_run else []
            self._say([*plan.notes, *changes], told)
            if self.work.options.dry_run:
                return
            if plan.empty:
                no_rows.settle(self, plan, partial(self._claim, "sync", table=plan.table))
                return
            if plan.gives_way:
                no_rows.check_gives_way(self, plan, plan.rows)
            self.work.warm_up_for(self.log, self.state)
            self.loader.foresee(self.state, plan.table)
            if not self._claim("sync", plan):
                continue
            self.read(plan)
            if not plan.resumed or self.request.most is not None:
                return
            # The window that was left open is closed; now what has arrived since.

    def _plan(self) -> Plan:
        with self.work.session("plan") as session:
            table = discover(session, self.name, self.options, self.work.config.source.database)
            self.work.check_target(table)
            check_deletes(table, self.options)
            state, start = begun_anew(self.state, table), None
            if state.position is None:
                start = self.work.start(self.name)
                state = begun_anew(self._taken_over(session, table, start), table)
            elif self.report.lag_before is None:
                self.report.lag_before = measured(
                    session, table, state.position, self.options.cursor_timezone
                )
            expected = partial(self.work.warm_up_for, self.log, self.state)
            plan = survey(
                session, table, state, self.options, self.request, self.log, start, expected, self.work.looks
            )
        return only_if_changed(self.work, plan, state) if self.work.options.repeated else plan

    def _taken_over(self, session: Session, table: Table, start: Start) -> State:
        """The state, with the older tool's position when the table has none of ours; a commit, but for a dry run."""
        while legacy.untouched(self.state) and self.request.since is None:
            found = legacy.takeover(session, self.work.store, table, self.options, start)
            if found is None:
                break
            self._say(found.notes)
            if found.position is None:
                break
            if self.work.options.dry_run:
                return replace(self.state, position=found.position, started=True)
            if self._claim("sync", table=table):
                moved = draft(
                    self.state, "restore", self.work.run, position=found.position, note="; ".join(found.notes)
                )
                self.state = self.log.append(self.state, moved)
                self.report.commits.append(self.state.n)
        return self.state

    def tell(self, note: str) -> None:
        """Says something of this run."""
        self._say((note,))

    def _say(self, notes: Sequence[str], told: Sequence[str] = ()) -> None:
        for note in notes:
            if note not in self.report.notes:
                self.report.notes.append(note)
                if note not in told:
                    self.work.progress.note(self.name, note)

    def _claim(self, purpose: str, plan: Plan | None = None, table: Table | None = None) -> bool:
        """Takes the table, with the plan's window; False when it has changed since it was read: plan again."""
        taken = claim(
            self.log,
            self.state,
            run=self.work.run,
            purpose=purpose,
            table=plan.table if plan else table,
            window=plan.window if plan else None,
            reread=plan.reread if plan else None,
            strategy=plan.strategy if plan else None,
            zone=plan.zone if plan else None,
            origin=plan.origin if plan else None,
        )
        self.state = taken.state
        if isinstance(taken, Changed):
            return False
        if self.lease is not None:
            self.lease.release()
        self.lease = taken.lease
        self.last_commit = time.monotonic()
        return True

    def load(self) -> None:
        """Loads what is left to be loaded."""
        self.loader.finish(self.state, self._claim_load)

    def _claim_load(self, state: State) -> State:
        """The state under a claim of ours, for a load."""
        self.state = state
        self.hold("load", self.loader.aimed_anew(state))
        return self.state

    def hold(self, purpose: str, table: Table | None = None) -> None:
        """Makes sure that the table is ours, as it is described; refuses one that its rows no longer go with."""
        if table is not None:
            check_recipe(table, self.state, self.options)
        for _ in range(REPLANS):
            same = table is None or carried(self.state.table, table) == self.state.table
            held = self.lease is not None and same
            if held or self._claim(purpose, table=table):
                return
        raise ConflictError("other runs keep changing the table", hint="try again when they are done")

    @as_discovered()
    def read(self, plan: Plan) -> None:
        """Extracts and commits what the plan says, under our claim; loads run beside it."""
        if plan.rows:
            self.work.spark()  # rates and times of arrival are without its start
        self.work.progress.begin(self.name, "extract", plan.rows)
        self.loader.expected = plan.rows
        if plan.reread_slices:
            self._gather(plan, plan.reread_slices, self._commit_reread)
        if plan.again and plan.load_as != "replace":
            self._read_again(plan)
        if plan.slices:
            self._gather(plan, plan.slices, self._commit_window)
        if plan.gives_way:
            self._commit_window(plan, list(self._slices(plan, plan.again)) if plan.again else [])
        elif plan.again and plan.load_as == "replace":  # after what takes the place of all rows
            self._read_again(plan)
        self.work.progress.end(self.name, "extract")

    def _read_again(self, plan: Plan) -> None:
        results = list(self._slices(plan, plan.again))
        way: LoadAs = "merge" if plan.table.key else plan.load_as
        self.report.rows_reread += sum(r.rows for r in results)
        self._commit(plan, results, window_id=None, load_as=way, overlap=plan.overlap)

    def _gather(
        self, plan: Plan, pieces: Sequence[Slice], commit: Callable[[Plan, Sequence[SliceResult]], None]
    ) -> None:
        """Reads the pieces and commits them a few at a time, or as the plan says: one by one, or all at once."""
        if plan.load_as == "replace":
            commit(plan, list(self._slices(plan, pieces)))
            return
        if plan.in_order:
            for piece in pieces:
                commit(plan, list(self._slices(plan, [piece])))
            return
        waiting: list[SliceResult] = []
        for result in self._slices(plan, pieces):
            waiting.append(result)
            if time.monotonic() - self.last_commit >= COMMIT_EVERY:
                commit(plan, waiting)
                waiting = []
        if waiting:
            commit(plan, waiting)

    def _slices(self, plan: Plan, pieces: Sequence[Slice]) -> Iterator[SliceResult]:
        """The pieces, each a Spark task, as they finish."""
        jobs = self.work.jobs(plan, pieces, self.state, self.request.slice_rows)
        for result in self.work.submit(jobs, self.name):
            self.work.progress.advance(self.name, "extract", result.rows, len(result.files), result.bytes)
            yield result

    def _commit_window(self, plan: Plan, results: Sequence[SliceResult]) -> None:
        assert plan.window is not None
        rows, marked = sum(r.rows for r in results), None
        if plan.table.mode == "full":
            marked = mark(self.state, results[0].fingerprint)
        if plan.load_as == "replace":
            no_rows.check_gives_way(
                self, plan, rows + (0 if plan.gives_way else sum(s.rows for s in plan.again))
            )
        check_still(self.work.session, plan, self.state, len(results), self.work.looks)
        self.report.rows_extracted += rows
        self._commit(plan, results, window_id=plan.window.id, load_as=plan.load_as, overlap=marked)

    def _commit_reread(self, plan: Plan, results: Sequence[SliceResult]) -> None:
        assert plan.reread is not None
        self.report.rows_reread += sum(r.rows for r in results)
        self._commit(plan, results, window_id=None, load_as="merge", reread_id=plan.reread.id)

    def _commit(
        self,
        plan: Plan,
        results: Sequence[SliceResult],
        *,
        window_id: str | None,
        load_as: LoadAs,
        overlap: str | None = None,
        reread_id: str | None = None,
    ) -> None:
        """Makes the files of these slices true, then shows it."""
        files = tuple(f for r in results for f in r.files)
        if not files and window_id is None and overlap is None and reread_id is None:
            return
        now = time.monotonic()
        commit = draft(
            self.state,
            "batch",
            self.work.run,
            schema=plan.table.fingerprint,
            window_id=window_id,
            reread_id=reread_id,
            slices=tuple(sorted(r.slice.number for r in results)) if window_id or reread_id else (),
            files=files,
            load_as=load_as,
            overlap=overlap,
            seconds=round(now - self.last_commit, 3),
        )
        self.append(commit)
        for result in results:
            self.changed.update(dict(result.changed))
        more = load_as == "replace" and plan.again and not plan.gives_way  # which the load wants to know of
        if (files or plan.gives_way) and not more and not self.work.options.backup_only:
            self.loader.offer(self.state, plan.table)

    def release(self) -> None:
        """Lets the table go."""
        if self.lease is not None:
            self.lease.release()

    def append(self, commit: Commit) -> None:
        """Makes a commit true, then shows it."""
        self.state = self.log.append(self.state, commit)
        self.last_commit = time.monotonic()
        self.report.commits.append(self.state.n)
        self.report.files_written += len(commit.files)
        self.report.bytes_written += commit.bytes
        log.debug("committed", extra={"table": self.name, "commit": self.state.n, "step": "commit"})
        ledger = self.loader.ledger
        self.watermark.publish(self.state, ledger.rows if ledger else None, succeeded=EXTRACT)
