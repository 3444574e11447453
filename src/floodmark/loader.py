"""The load stage of one table in one run: beside the extraction, in a thread of its own, or after it.

A failed load leaves the extraction alone: its commits stay pending and load with the next run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from floodmark.described import loaded_as
from floodmark.errors import ConfigError, DataError, FloodmarkError
from floodmark.load import Choice, Loaded, ledger_for, load_pending, pending
from floodmark.model import Finding, Table, replace
from floodmark.report import LOAD, TableReport
from floodmark.state import Log, State, Watermark
from floodmark.state.loaded import Loaded as LoadedBefore
from floodmark.units import counted
from floodmark.warehouse import Ledger, LoadOutcome
from floodmark.warehouse.decide import check_elsewhere, check_holder
from floodmark.work import Work


class Loader:
    """Loads what the log has and the ledger has not."""

    def __init__(self, work: Work, log: Log, watermark: Watermark, report: TableReport) -> None:
        self._work = work
        self._log = log
        self._watermark = watermark
        self._report = report
        self._offered: State | None = None
        self._table: Table | None = None
        self._closing = False
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.ledger: Ledger | None = None
        self.loaded: list[int] = []  # the commits that this run has loaded
        self.repairs = (
            False  # whether source and target are compared: rows that others changed don't stop a load
        )
        self.expected = 0  # rows that the extraction is about to hand over
        self._shown = False
        self._known: tuple[LoadedBefore | None] | None = (
            None  # what was known to be loaded when this run began
        )
        self._loaded: str | None = None  # the state up to which this run has loaded, by its digest

    @property
    def failed(self) -> bool:
        """Whether the load stage is what failed."""
        return self._error is not None

    def foresee(self, state: State, table: Table) -> None:
        """Raises before rows are read what would refuse them for good: a wrong address, columns that don't fit.

        A pipeline begins here, once its warehouse has answered: an address that is mistyped never claims the store.
        """
        if self._work.options.backup_only:
            return
        self._recall(state)
        try:
            ledger = ledger_for(self._work.warehouse(), state, table.target)
        except ConfigError:
            raise
        except FloodmarkError:
            return  # until the load it may be well again; if not, the rows wait
        try:
            loaded = loaded_as(self._log, state, ledger)
            self._work.warehouse().changes(table, loaded, anew=not ledger.rows)
        except (ConfigError, DataError):
            raise
        except FloodmarkError:
            return
        check_elsewhere(ledger, state.load_epoch, table.name, table.target)
        # Of a log that is about to begin there is nothing yet. The load itself looks once more, under the target's lock.
        # Once it has begun (with a window that was left open), it knows better what the ledger has.
        if self._thread is None:
            self.ledger = ledger
        identity = self._work.known_identity()
        if not self._work.options.force:
            check_holder(ledger.holder, identity.id if identity else "", state.log, table.name, table.target)
        self._work.identity()

    def lacks_target(self, state: State, table: Table) -> bool:
        """Whether the target is still to be made, and by this run; raises what would refuse its rows."""
        if self._work.options.backup_only or self._work.options.dry_run:
            return False
        self.foresee(state, table)
        return any(change.kind == "create" for change in self._work.warehouse().changes(table))

    def offer(self, state: State, table: Table) -> None:
        """There are new commits: load them while the extraction goes on."""
        with self._news:
            self._offered, self._table = state, table
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name=f"load {table.name}", daemon=True)
                self._thread.start()
            self._news.notify()

    def finish(self, state: State, claim: Callable[[State], State]) -> None:
        """Loads the rest, and raises what went wrong meanwhile."""
        self.close()
        if self._error is not None:
            raise self._error
        table = self._table or self.aimed_anew(state) or state.table
        if table is None:
            return  # the log holds no data yet
        manual = self._manual(state)
        superseded = manual is not None
        self._recall(state)
        try:
            fresh = self.ledger if self._loaded == state.digest else None
            self.ledger = ledger_for(self._work.warehouse(), state, table.target, fresh, whole=superseded)
            check_elsewhere(self.ledger, state.load_epoch, table.name, table.target)
            data = self._log.data(state, self.ledger.rows, superseded=superseded)
            if pending(data, self.ledger, state.load_epoch, superseded=superseded):
                self._load(claim(state), table)
            elif manual is not None:
                self._say_manual(manual, 0, 0)
            self._hide()
        except FloodmarkError as error:
            self._error = error
            raise

    def accept_rows(self, state: State) -> None:
        """The target has been found or made equal to the source: later loads go on with the rows that it has."""
        if state.table is not None:
            self._work.warehouse().recount(state.log, state.table.target)

    def aimed_anew(self, state: State) -> Table | None:
        """The table with the configuration's target, where the log knows another one; else None."""
        if state.table is None:
            return None
        target = (self._work.config.options(state.table_name).target or state.table.table).lower()
        return replace(state.table, target=target) if target != state.table.target else None

    def close(self) -> None:
        """Waits until what was offered has been loaded; no more is offered."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    def abandon(self) -> None:
        """Stops after the transaction that runs now."""
        with self._news:
            self._offered = None
        self.close()
        self._hide()

    def _follow(self) -> None:
        while True:
            with self._news:
                while self._offered is None and not self._closing:
                    self._news.wait()
                state, table, self._offered = self._offered, self._table, None
            if state is None or table is None:
                return
            try:
                self._load(state, table)
            except BaseException as error:
                self._error = error
                return

    def _manual(self, state: State) -> str | None:
        """The time after which files load, where a manual watermark says so."""
        return state.manual_timestamp if self._work.options.load_only and state.manual else None

    def _say_manual(self, manual: str, found: int, chosen: int) -> None:
        self._note(f"Using manual watermark-based incremental Redshift loading: files after {manual}")
        self._note(f"Found {found} files, filtered to {chosen} files for loading")

    def _say_again(self, choice: Choice) -> None:
        """Files that were loaded before load once more after those that come now: they don't count again."""
        files = sum(d.files for d in choice.commits if (d.n, d.digest) in choice.retake)
        if files:
            self._note(
                f"{counted(files, 'later file')} loaded before will load again after them: the later read wins"
            )

    def _recall(self, state: State) -> None:
        """Remembers what was known to be loaded, before this run publishes anything."""
        if self._known is None:
            self._known = (self._watermark.loaded_before(state),)

    def _say_missing(self, choice: Choice) -> None:
        """Files that were in the warehouse and are no longer: it was set back, or is another file."""
        before = self._known[0] if self._known else None
        if before is None:
            return
        files = sum(
            d.files
            for d in choice.commits
            if not d.superseded and (d.n, d.digest) not in choice.retake and before.has(d.n)
        )
        if files:
            self._note(
                f"{counted(files, 'file')} loaded before {'is' if files == 1 else 'are'} missing in the warehouse, "
                f"which was replaced or set back: {'it loads' if files == 1 else 'they load'} again from the store"
            )

    def _load(self, state: State, table: Table) -> None:
        options = self._work.options
        manual = self._manual(state)
        sizes: dict[int, int] = {}
        repeated: set[tuple[int, str]] = set()

        def chosen(choice: Choice) -> None:
            if manual is not None:
                self._say_manual(manual, choice.found, choice.files)
            self._say_again(choice)
            self._say_missing(choice)
            repeated.update(choice.retake)
            if choice.commits:
                sizes.update({d.n: d.bytes for d in choice.commits})
                self._show(sum(d.rows for d in choice.commits))

        def loaded(outcome: LoadOutcome) -> None:
            first = [row for row in outcome.loaded if row.identity not in repeated]
            self._report.rows_loaded += sum(row.rows for row in first)
            self._report.files_loaded += sum(row.files for row in first)
            size = sum(sizes.get(row.n, 0) for row in outcome.loaded)
            self._work.progress.advance(table.name, "load", outcome.rows, outcome.files, size)

        with self._work.loading:
            if self.ledger is None and self._work.known_identity() is None:
                # No pipeline begins before its warehouse has answered.
                self.ledger = ledger_for(self._work.warehouse(), state, table.target)
            result: Loaded = load_pending(
                self._work.warehouse(),
                self._log,
                state,
                table,
                pipeline=self._work.identity().id,
                run=self._work.run,
                manual=manual,
                limit=options.limit if options.load_only else None,
                adopt=options.force,
                repair=self.repairs,
                ledger=self.ledger,
                on_choice=chosen,
                on_group=loaded,
            )
        self.ledger, self._loaded = result.ledger, state.digest
        self.loaded += result.commits
        self._add(result.findings)
        self._watermark.publish(state, result.ledger.rows, succeeded=LOAD)

    def _show(self, rows: int) -> None:
        """The loads of one run are one stage to whoever watches."""
        if not self._shown:
            self._shown = True
            self._work.progress.begin(self._report.table, "load", max(rows, self.expected))

    def _hide(self) -> None:
        if self._shown:
            self._shown = False
            self._work.progress.end(self._report.table, "load")

    def _note(self, text: str) -> None:
        self._report.notes.append(text)
        self._work.progress.note(self._report.table, text)

    def _add(self, findings: tuple[Finding, ...]) -> None:
        self._report.findings += [f for f in findings if f not in self._report.findings]
