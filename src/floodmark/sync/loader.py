"""The load stage of one table in one run, in a background thread during the extraction or after it.

A failed load does not affect the extraction: its commits stay pending and load with the next run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from floodmark.load.decide import check_elsewhere
from floodmark.load.pending import Choice, ledger_for, load_pending, pending, read_now
from floodmark.load.preview import LoadPreview, look
from floodmark.load.protocol import LoadOutcome
from floodmark.log.fold import State
from floodmark.log.held import HeldTable
from floodmark.model import events
from floodmark.model.account import Account
from floodmark.model.errors import FloodmarkError
from floodmark.model.ledger import Ledger
from floodmark.model.run import LOAD, Step, Wait
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.times import stamp
from floodmark.sync.resources import Work

# How many seconds an extraction waits for the loads in the background; another table's may come first.
PATIENCE = 5.0


class Loader:
    """Loads the commits that the log has and the ledger lacks."""

    def __init__(self, work: Work, held: HeldTable, account: Account) -> None:
        self._services = work.services
        self._pipeline = work.pipeline
        self._asked = work.options
        self._held = held
        self._log = held.log
        self._name = held.log.table_name
        self._answer = Wait("warehouse", work.services.config.warehouse.kind)
        self._account = account
        self._offered: State | None = None
        self._table: Table | None = None
        self._closing = False
        self._busy = False  # a load is under way in the background
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.ledger: Ledger | None = None
        self.loaded: list[int] = []  # the commits loaded by this run
        # Whether source and target are being compared: then rows changed by others don't stop a load.
        self.repairs = False
        self.expected = 0  # rows that the extraction is about to deliver
        self._shown = False
        self._loaded: str | None = None  # digest of the state up to which this run has loaded

    @property
    def failed(self) -> bool:
        """Whether the load stage failed."""
        return self._error is not None

    def foresee(self, state: State, table: Table) -> LoadPreview:
        """Raises, before rows are read, what would make the load refuse them: a wrong URL, columns that don't fit.

        Creates the pipeline once the warehouse has answered, so that a mistyped URL never claims the store.
        """
        if self._asked.backup_only:
            return LoadPreview()
        with events.waiting(self._account, self._name, self._answer):
            seen = self.look(state, table, count=False)
        if seen.refused is not None:
            raise seen.refused
        if seen.unknown is None:  # else it may have recovered by the time of the load; if not, the rows wait
            # A new log has no ledger rows yet. The load itself checks again, under the target's lock. If it is
            # already running (resuming an open window), its view of the ledger is the newer one.
            if self._thread is None:
                self.ledger = seen.ledger
            self._pipeline.begun(stamp())
        return seen

    def look(self, state: State, table: Table, *, count: bool = True) -> LoadPreview:
        """What the load would find and do."""
        if self._asked.backup_only:
            return LoadPreview()
        ours = None if self._asked.force else self._pipeline.known_id
        return look(self._services.warehouse(), self._log, state, table, ours, count=count)

    def lacks_target(self, state: State, table: Table) -> bool:
        """Whether this run has yet to create the target; raises what would make the load refuse its rows."""
        if self._asked.backup_only or self._asked.dry_run:
            return False
        changes = self.foresee(state, table).changes
        if changes is None:  # an unavailable warehouse is an error now: there may be nothing to load later
            changes = self._services.warehouse().changes(table)
        return any(change.kind == "create" for change in changes)

    def offer(self, state: State, table: Table) -> None:
        """Loads new commits in the background while the extraction continues."""
        with self._news:
            self._offered, self._table = state, table
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name=f"load {table.name}", daemon=True)
                self._thread.start()
            self._news.notify()

    def caught_up(self, state: State, table: Table) -> bool:
        """Waits a little for the loads in the background; whether the target then holds all that the log has."""

        def idle() -> bool:
            return not (self._thread and self._thread.is_alive() and (self._offered or self._busy))

        with self._news:
            done = self._news.wait_for(idle, PATIENCE)
        if not done or self._asked.backup_only or self.failed or self.ledger is None:
            return False
        ledger = ledger_for(self._services.warehouse(), state, table.target, self.ledger)
        return not pending(self._log.data(state, ledger.rows), ledger, state.load_epoch)

    def finish(self, hold: Callable[[Table | None], None]) -> None:
        """Loads the rest, of a table that we `hold` by then; raises an error that occurred in the background."""
        self.close()
        if self._error is not None:
            raise self._error
        state = self._held.state
        retargeted = self._retargeted(state)
        table = self._table or retargeted or state.table
        if table is None:
            return  # the log holds no data yet
        manual = self._manual(state)
        superseded = manual is not None
        try:
            fresh = self.ledger if self._loaded == state.digest else None
            with events.waiting(self._account, self._name, self._answer):
                self.ledger = ledger_for(
                    self._services.warehouse(), state, table.target, fresh, whole=superseded
                )
            check_elsewhere(self.ledger, state.load_epoch, table.name, table.target)
            data = self._log.data(state, self.ledger.rows, superseded=superseded)
            if pending(data, self.ledger, state.load_epoch, superseded=superseded):
                hold(retargeted)
                self._load(self._held.state, table)
            elif manual is not None:
                self._say_manual(manual, 0, 0)
            self._hide()
        except FloodmarkError as error:
            self._error = error
            raise

    def accept_rows(self, state: State) -> None:
        """Accepts the target's row count, once a comparison or repair has shown it equal to the source."""
        if state.table is not None:
            identity = self._pipeline.begun(stamp())
            self._services.warehouse().recount(identity.id, state.log, state.table.target)

    def _retargeted(self, state: State) -> Table | None:
        """The table with the configured target, if the log has another one; else None."""
        if state.table is None:
            return None
        table = state.table
        target = (self._services.config.options(state.table_name).target or table.source.table).lower()
        return replace(table, recipe=replace(table.recipe, target=target)) if target != table.target else None

    def close(self) -> None:
        """Waits until everything offered has been loaded; accepts no more."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join()

    def abandon(self) -> None:
        """Stops after the current transaction."""
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
                self._busy = state is not None
            if state is None or table is None:
                return
            try:
                self._load(state, table)
            except BaseException as error:
                self._error = error
                return
            finally:
                with self._news:
                    self._busy = False
                    self._news.notify_all()

    def _manual(self, state: State) -> str | None:
        """The time after which files load, if a manual watermark sets one."""
        return state.progress.manual_timestamp if self._asked.load_only and state.progress.manual else None

    def _say_manual(self, manual: str, found: int, chosen: int) -> None:
        for text in (
            f"Using manual watermark-based incremental Redshift loading: files after {manual}",
            f"Found {found} files, filtered to {chosen} files for loading",
        ):
            self._account.note(text)
            # Printed before the load too, not only in its result: the operator may want to stop it.
            self._services.emit(events.Noted("", f"{self._name}: {text}"))

    def _say_again(self, choice: Choice) -> None:
        """Notes that later files will load again after those loading now; they don't count twice."""
        files = sum(d.files for d in choice.commits if (d.n, d.digest) in choice.retake)
        if files:
            self._account.note(
                f"{counted(files, 'later file')} will load again, because an earlier one loads only now: the later read wins"
            )

    def _say_missing(self, state: State, choice: Choice) -> None:
        """Notes files loaded earlier that the warehouse lacks: it was restored or replaced."""
        before = self._held.watermark.loaded_before(state)
        if before is None:
            return
        files = sum(
            d.files
            for d in choice.commits
            if not d.superseded and (d.n, d.digest) not in choice.retake and before.has(d.n)
        )
        if files:
            self._account.note(
                f"{counted(files, 'file')} loaded earlier {'is' if files == 1 else 'are'} missing from the warehouse, which "
                f"was replaced or restored: loading {'it' if files == 1 else 'them'} again from the store"
            )

    def _load(self, state: State, table: Table) -> None:
        """Loads pending commits; the time counts towards the load stage, even during an extraction."""
        manual = self._manual(state)
        sizes: dict[int, int] = {}
        repeated: set[tuple[int, str]] = set()

        def chosen(choice: Choice) -> None:
            if manual is not None:
                self._say_manual(manual, choice.found, choice.files)
            self._say_again(choice)
            self._say_missing(state, choice)
            repeated.update(choice.retake)
            if read := read_now(choice.commits):
                sizes.update({d.n: d.bytes for d in read})
                self._show(sum(d.rows for d in read))

        def loaded(outcome: LoadOutcome) -> None:
            read = [row for row in outcome.loaded if row.n in sizes]
            first = [row for row in read if row.identity not in repeated]
            rows, files = sum(row.rows for row in read), sum(row.files for row in read)
            self._account(
                events.Loaded(self._name, sum(row.rows for row in first), sum(row.files for row in first))
            )
            self._account(events.Underway(self._name, "load", 0))
            self._account(events.Advanced(self._name, "load", rows, files, sum(sizes[row.n] for row in read)))

        def at_work(step: Step, rows: int) -> None:
            self._account(events.Underway(self._name, "load", rows, step))

        with self._account.timed("load"):
            if self.ledger is None and self._pipeline.known() is None:
                # Don't create a pipeline before its warehouse has answered.
                self.ledger = ledger_for(self._services.warehouse(), state, table.target)
            result = load_pending(
                self._services.warehouse(),
                self._log,
                state,
                table,
                pipeline=self._pipeline.begun(stamp()).id,
                run=self._services.run,
                manual=manual,
                limit=self._asked.limit if self._asked.load_only else None,
                adopt=self._asked.force,
                repair=self.repairs,
                ledger=self.ledger,
                on_choice=chosen,
                on_group=loaded,
                on_step=at_work,
                turn=self._turn,
            )
            self.ledger, self._loaded = result.ledger, state.digest
            self.loaded += result.commits
            self._account(events.Found(self._name, result.findings))
            self._held.watermark.publish(state, result.ledger.rows, succeeded=LOAD)

    @contextmanager
    def _turn(self, shares: bool) -> Iterator[None]:
        """One load at a time; those that may share a transaction only wait for the one that is running."""
        with events.waiting(self._account, self._name, Wait("turn")):
            self._services.loading.acquire()
        if shares:
            self._services.loading.release()
        try:
            yield
        finally:
            if not shares:
                self._services.loading.release()

    def _show(self, rows: int) -> None:
        """Reports all loads of one run as a single stage."""
        if not self._shown:
            self._shown = True
            self._account(events.StageBegan(self._name, "load", max(rows, self.expected)))

    def _hide(self) -> None:
        if self._shown:
            self._shown = False
            self._account(events.StageEnded(self._name, "load"))
