"""The pipeline, top to bottom: plan → extract → commit → load. Nothing else moves a watermark.

One `TableRun` takes one table through it. Whatever dies on the way leaves committed files that the next run
loads, an open window that it finishes, and orphans that no commit names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from floodmark import legacy
from floodmark import plan as planning
from floodmark.config import Config, TableOptions
from floodmark.copies import Keep, clean_daily
from floodmark.errors import ConflictError, DataError, FloodmarkError, Interrupted
from floodmark.extract import SliceJob, SliceResult
from floodmark.loader import Loader
from floodmark.model import LoadAs, Slice, Table, replace
from floodmark.mysql.connect import Session
from floodmark.mysql.convert import REDSHIFT, UNLIMITED
from floodmark.mysql.discover import discover
from floodmark.plan import Plan, Request
from floodmark.report import EXTRACT, Progress, Stage, SyncOptions, SyncReport, TableReport
from floodmark.spark import Spark
from floodmark.state import Changed, Failure, Lease, State, claim, draft, stamp
from floodmark.survey import survey
from floodmark.system import Start
from floodmark.warehouse import LedgerRow
from floodmark.work import Work

log = logging.getLogger("floodmark")

# A commit gathers the slices of about this long, so that a crash costs little and the log stays short.
COMMIT_EVERY = 2.0
# How often a plan is made anew because another run's commit came between.
REPLANS = 3
# How long an interrupted run may take to leave its tables in good order.
GRACE = 5.0


def sync(
    config: Config,
    names: Sequence[str],
    all_tables: bool,
    options: SyncOptions,
    progress: Progress,
    run: str,
    spark: Spark | None = None,
) -> SyncReport:
    """Brings the tables up to date; every table's outcome is in the report, whatever became of the others.

    A Spark that the caller has running already is used and left running.
    """
    began = time.monotonic()
    with Work(config, options, progress, run, spark) as work:
        tables, unknown = work.resolve(names, all_tables)
        reports = [*unknown, *_each(work, tables)]
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


def _each(work: Work, tables: Sequence[str]) -> list[TableReport]:
    """The tables side by side where the strategy allows it, else one after the other."""
    side_by_side = work.options.strategy in ("auto", "inter-table")
    workers = min(len(tables), work.options.max_workers or work.tables_at_once) if side_by_side else 1
    runs = [TableRun(work, name, len(tables)) for name in tables]
    pool = ThreadPoolExecutor(max(1, workers), thread_name_prefix="table")
    futures = [pool.submit(run.go) for run in runs]
    try:
        # Short waits keep the main thread open to signals.
        while not all(f.done() for f in futures):
            wait(futures, timeout=0.5, return_when=FIRST_EXCEPTION)
    except (Interrupted, KeyboardInterrupt):
        pool.shutdown(wait=False, cancel_futures=True)
        work.interrupt()
        wait(futures, GRACE)  # who still waits for a service then is left behind
        raise
    pool.shutdown()
    return [f.result() for f in futures]


class TableRun:
    """One table's way through one run."""

    def __init__(self, work: Work, name: str, tables: int) -> None:
        self.work = work
        self.name = name
        self.options: TableOptions = work.config.options(name)
        asked = work.options
        self.request = Request(
            strategy=asked.strategy,
            limit=asked.limit,
            max_chunks=asked.max_chunks,
            since=asked.since,
            until=asked.until,
            slice_rows=self.options.slice_rows,
            tables=tables,
            force=asked.force,
        )
        self.report = TableReport(name)
        self.log = work.log(name)
        self.watermark = work.watermark(name)
        self.loader = Loader(work, self.log, self.watermark, self.report)
        self.state = State(name)
        self.seen = False  # whether the store has told us the state
        self.lease: Lease | None = None
        self.last_commit = time.monotonic()

    def go(self) -> TableReport:
        """The whole way; an error ends up in the report, not in the other tables."""
        began = time.monotonic()
        try:
            self.state = self.log.read()
            self.seen = True
            self.work.known_identity()
            if not self.work.options.load_only:
                self._extract()
            if not self.work.options.backup_only and not self.work.options.dry_run:
                self.loader.finish(self.state, self._claim_load)
            self._settle()
        except FloodmarkError as error:
            self.loader.abandon()
            self._fail(error.of(self.name))
        except Exception as error:  # a bug in one table must not take the others' reports with it
            log.debug("unexpected", exc_info=True, extra={"table": self.name})
            self.loader.abandon()
            self._fail(FloodmarkError(f"a bug in Floodmark: {type(error).__name__}: {error}", table=self.name,
                                      hint="run with --debug for the traceback"))  # fmt: skip
        finally:
            if self.lease is not None:
                self.lease.release()
        self.report.findings += self.log.findings
        self.report.seconds = time.monotonic() - began
        return self.report

    # plan, extract, commit

    def _extract(self) -> None:
        for _ in range(REPLANS):
            plan = self._plan()
            if not plan.empty or self.report.strategy is None:
                self.report.strategy = plan.strategy
            # What a table is like is said by its first sync and by plan, not by every run from cron.
            told = () if self.state.position is None else plan.table.notes
            self._say(plan.notes, told)
            if plan.empty or self.work.options.dry_run:
                return
            self.loader.foresee(self.state, plan.table)
            if not self._claim("sync", plan):
                continue
            self._read(plan)  # who does not get the table has not started Spark for it
            if not plan.resumed or self.request.most is not None:
                return
            # The window that was left open is closed; now what has arrived since.

    def _plan(self) -> Plan:
        with self.work.session("plan") as session:
            table = discover(session, self.name, self.options, self.work.config.source.database)
            self.work.check_target(table)
            state, start = self.state, None
            if state.position is None:
                start = self.work.start(self.name)
                state = self._taken_over(session, table, start)
            return survey(session, table, state, self.options, self.request, start)

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

    def _say(self, notes: Sequence[str], told: Sequence[str] = ()) -> None:
        for note in notes:
            if note not in self.report.notes:
                self.report.notes.append(note)
                if note not in told:
                    self.work.progress.note(self.name, note)

    def _claim(self, purpose: str, plan: Plan | None = None, table: Table | None = None) -> bool:
        """Takes the table, with the plan's window; False when it has changed since it was read: plan again."""
        self.work.identity()
        taken = claim(
            self.log,
            self.state,
            run=self.work.run,
            purpose=purpose,
            table=plan.table if plan else table,
            window=plan.window if plan else None,
            strategy=plan.strategy if plan else None,
        )
        self.state = taken.state
        if isinstance(taken, Changed):
            return False
        if self.lease is not None:
            self.lease.release()
        self.lease = taken.lease
        self.last_commit = time.monotonic()
        return True

    def _claim_load(self, state: State) -> State:
        """The state under a claim of ours, for a load."""
        self.state = state
        for _ in range(REPLANS):
            if self.lease is not None or self._claim("load"):
                return self.state
        raise ConflictError("other runs keep changing the table", hint="try again when they are done")

    def _read(self, plan: Plan) -> None:
        self.work.spark()  # rates and times of arrival are without its start
        self.work.progress.begin(self.name, "extract", plan.rows)
        self.loader.expected = plan.rows
        if plan.again:
            results = list(self._slices(plan, plan.again))
            load_as: LoadAs = "merge" if plan.table.key else plan.load_as
            self.report.rows_reread += sum(r.rows for r in results)
            self._commit(plan, results, window_id=None, load_as=load_as, overlap=plan.overlap)
        if plan.slices:
            self._read_window(plan)
        self.work.progress.end(self.name, "extract")

    def _read_window(self, plan: Plan) -> None:
        assert plan.window is not None
        if plan.in_order:
            for piece in plan.slices:
                self._commit_window(plan, list(self._slices(plan, [piece])))
            return
        waiting: list[SliceResult] = []
        for result in self._slices(plan, plan.slices):
            waiting.append(result)
            if time.monotonic() - self.last_commit >= COMMIT_EVERY:
                self._commit_window(plan, waiting)
                waiting = []
        if waiting:
            self._commit_window(plan, waiting)

    def _slices(self, plan: Plan, pieces: Sequence[Slice]) -> Iterator[SliceResult]:
        """The pieces, each a Spark task, as they finish."""
        jobs = [
            SliceJob(
                source=self.work.config.source,
                store=self.work.config.store,
                table=plan.table,
                slice=piece,
                run=self.work.run,
                claim=self.state.n,
                max_file_rows=max(self.request.slice_rows, 1),
                log=self.state.log,
                window=plan.window.id if plan.window else None,
                # Where no index leads to the rows, the first one may be a whole scan away.
                read_timeout=60 if plan.table.cursor_index else 600,
                limits=REDSHIFT if self.work.config.warehouse.kind == "redshift" else UNLIMITED,
            )
            for piece in pieces
        ]
        for result in self.work.spark().submit(jobs, self.name):
            self.work.progress.advance(self.name, "extract", result.rows, len(result.files), result.bytes)
            yield result

    def _commit_window(self, plan: Plan, results: Sequence[SliceResult]) -> None:
        assert plan.window is not None
        rows = sum(r.rows for r in results)
        if plan.table.mode == "full":
            self._check_plausible(rows)
        self.report.rows_extracted += rows
        self._commit(plan, results, window_id=plan.window.id, load_as=plan.load_as)

    def _check_plausible(self, rows: int) -> None:
        """A truncated or wrong source must not empty the warehouse."""
        before = next((d.rows for d in reversed(self.state.data) if d.load_as == "replace"), 0)
        if planning.implausible(before, rows) and not self.request.force:
            raise DataError(
                f"the table has {rows:,} rows where the last snapshot had {before:,}: not swapped in",
                hint="if that is right, run the sync again with --force",
            )

    def _commit(
        self,
        plan: Plan,
        results: Sequence[SliceResult],
        *,
        window_id: str | None,
        load_as: LoadAs,
        overlap: str | None = None,
    ) -> None:
        """Makes the files of these slices true, then shows it."""
        files = tuple(f for r in results for f in r.files)
        if not files and window_id is None and overlap is None:
            return
        now = time.monotonic()
        commit = draft(
            self.state,
            "batch",
            self.work.run,
            schema=plan.table.fingerprint,
            window_id=window_id,
            slices=tuple(sorted(r.slice.number for r in results)) if window_id else (),
            files=files,
            load_as=load_as,
            overlap=overlap,
            seconds=round(now - self.last_commit, 3),
        )
        self.state = self.log.append(self.state, commit)
        self.last_commit = now
        self.report.commits.append(self.state.n)
        self.report.files_written += len(files)
        self.report.bytes_written += sum(f.bytes for f in files)
        log.debug("committed", extra={"table": self.name, "commit": self.state.n, "step": "commit"})
        self.watermark.publish(self.state, self._ledger_rows(), succeeded=EXTRACT)
        if files and not self.work.options.backup_only:
            self.loader.offer(self.state, plan.table)

    # reporting

    def _ledger_rows(self) -> Sequence[LedgerRow] | None:
        return self.loader.ledger.rows if self.loader.ledger is not None else None

    def _settle(self) -> None:
        """The run ended well: what people see is up to date, and written only if something changed."""
        publish = not self.report.idle
        rows = self._ledger_rows()
        if publish:
            self.report.watermark = self.watermark.publish(self.state, rows, succeeded=EXTRACT)
        else:
            self.report.watermark = self.watermark.current(self.state, rows)

    def _fail(self, error: FloodmarkError) -> None:
        self.report.error = error
        if self.work.interrupted or not self.seen:
            return  # the table did not fail, or there is no store to write to
        try:
            rows = self._ledger_rows()
            if error.code == ConflictError.code or self.work.options.dry_run or self.state.n < 0:
                # Another run's table: it speaks for itself. A table without a log has nothing to be published.
                self.report.watermark = self.watermark.current(self.state, rows)
                return
            stage: Stage = "load" if self.loader.failed else "extract"
            failure = Failure(stage, error.message, stamp())
            self.report.watermark = self.watermark.publish(self.state, rows, failure=failure)
        except FloodmarkError as other:
            log.info("the failure could not be published: %s", other.message, extra={"table": self.name})
