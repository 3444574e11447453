"""The load stage of one table in one run, in the background during the extraction or after it.

A failed load does not affect the extraction: its commits stay pending and load with the next run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from floodmark.load import preview
from floodmark.load.decide import check_elsewhere
from floodmark.load.pending import Choice, choose_pending, ledger_for, pending, read_now, requests
from floodmark.load.preview import LoadPreview
from floodmark.log.fold import State
from floodmark.model import events
from floodmark.model.errors import FloodmarkError
from floodmark.model.run import LOAD, Finding, Step, Wait
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.times import stamp
from floodmark.sync.work import TableRun, hold

# How many seconds an extraction waits for the loads in the background; another table's may come first.
PATIENCE = 5.0


def foresee(run: TableRun, table: Table) -> LoadPreview:
    """Raises, before rows are read, what would make the load refuse them: a wrong URL, columns that don't fit.

    Creates the pipeline once the warehouse has answered, so that a mistyped URL never claims the store.
    """
    if run.asked.backup_only:
        return LoadPreview()
    with _waiting(run):
        seen = look(run, table, count=False)
    if seen.refused is not None and run.loads.begun:
        # A load in the background may have added columns between the two looks at ledger and target.
        load(run)
        seen = look(run, table, count=False)
    if seen.refused is not None:
        raise seen.refused
    if seen.unknown is None:  # else it may have recovered by the time of the load; if not, the rows wait
        # A new log has no ledger rows yet. The load itself checks again, under the target's lock. If it is
        # already running (resuming an open window), its view of the ledger is the newer one.
        if not run.loads.begun:
            run.loads.ledger = seen.ledger
        run.work.pipeline.begun(stamp())
    return seen


def look(run: TableRun, table: Table, *, count: bool = True) -> LoadPreview:
    """What the load would find and do."""
    if run.asked.backup_only:
        return LoadPreview()
    ours = None if run.asked.force else run.work.pipeline.known_id
    return preview.look(run.services.warehouse(), run.held.log, run.state, table, ours, count=count)


def lacks_target(run: TableRun, table: Table) -> bool:
    """Whether this run has yet to create the target; raises what would make the load refuse its rows."""
    if run.asked.backup_only or run.asked.dry_run:
        return False
    changes = foresee(run, table).changes
    if changes is None:  # an unavailable warehouse is an error now: there may be nothing to load later
        changes = run.services.warehouse().changes(table)
    return any(change.kind == "create" for change in changes)


def offer(run: TableRun) -> None:
    """Loads new commits in the background while the extraction continues."""
    if not run.asked.backup_only:
        run.loads.offer(run.state, partial(_load, run))


def caught_up(run: TableRun) -> bool:
    """Waits a little for the loads in the background; whether the target then holds all that the log has."""
    state, loads = run.state, run.loads
    if not loads.idle(PATIENCE) or run.asked.backup_only or loads.ledger is None or state.table is None:
        return False
    ledger = ledger_for(run.services.warehouse(), state, state.table.target, loads.ledger)
    return not pending(run.held.log.data(state, ledger.rows), ledger, state.load_epoch)


def load(run: TableRun) -> None:
    """Loads everything still pending, once we hold the table; raises an error that occurred in the background."""
    loads, state, log = run.loads, run.state, run.held.log
    loads.close()
    if loads.error is not None:
        raise loads.error
    retargeted = _retargeted(run)
    table = retargeted or state.table
    if table is None:
        return  # the log holds no data yet
    manual = _manual(run)
    superseded = manual is not None
    try:
        fresh = loads.ledger if loads.upto == state.digest else None
        with _waiting(run):
            warehouse = run.services.warehouse()
            loads.ledger = ledger = ledger_for(warehouse, state, table.target, fresh, whole=superseded)
        check_elsewhere(ledger, state.load_epoch, table.name, table.target)
        data = log.data(state, ledger.rows, superseded=superseded)
        if pending(data, ledger, state.load_epoch, superseded=superseded):
            hold(run, "load", retargeted)
            _load(run, run.state)
        elif manual is not None:
            _note_manual(run, manual, 0, 0)
        _hide(run)
    except FloodmarkError as error:
        loads.error = error
        raise


def accept_rows(run: TableRun) -> None:
    """Accepts the target's row count, once a comparison or repair has shown it equal to the source."""
    if run.state.table is not None:
        identity = run.work.pipeline.begun(stamp())
        run.services.warehouse().recount(identity.id, run.state.log, run.state.table.target)


def abandon(run: TableRun) -> None:
    """Stops after the current transaction."""
    run.loads.abandon()
    _hide(run)


def _load(run: TableRun, state: State) -> None:
    """Loads pending commits; the time counts towards the load stage, even during an extraction."""
    loads, log, asked, account = run.loads, run.held.log, run.asked, run.account
    if state.table is None:
        return
    with account.timed("load"):
        warehouse, manual = run.services.warehouse(), _manual(run)
        if loads.ledger is None and run.work.pipeline.known() is None:
            # Don't create a pipeline before its warehouse has answered.
            loads.ledger = ledger_for(warehouse, state, state.table.target)
        pipeline = run.work.pipeline.begun(stamp()).id
        limit = asked.limit if asked.load_only else None
        choice = choose_pending(
            warehouse,
            log,
            state,
            pipeline,
            manual=manual,
            limit=limit,
            adopt=asked.force,
            ledger=loads.ledger,
        )
        _note_choice(run, state, choice)
        sizes = {d.n: d.bytes for d in read_now(choice.commits)}
        if choice.commits and not loads.shown:  # all loads of one run are one stage
            loads.shown = True
            rows = max(sum(d.rows for d in read_now(choice.commits)), loads.expected)
            account(events.StageBegan(run.name, "load", rows))

        def at_work(step: Step, rows: int) -> None:
            account(events.Underway(run.name, "load", rows, step))

        ledger, commits, findings = choice.ledger, list[int](), list[Finding](choice.findings)
        for request in requests(
            log, state, choice, pipeline, run.services.run,
            wide_bytes=warehouse.wide_bytes, adopt=asked.force, repair=loads.repairs, at_work=at_work,
        ):  # fmt: skip
            with _turn(run, warehouse.shares(request)):
                done = warehouse.load(request)
            ledger = ledger.after(state.load_epoch, done.retaken, done.loaded)
            commits += [row.n for row in done.loaded]
            findings += done.findings
            read = [row for row in done.loaded if row.n in sizes]
            first = [row for row in read if row.identity not in choice.retake]
            account(events.Loaded(run.name, sum(row.rows for row in first), sum(row.files for row in first)))
            account(events.Underway(run.name, "load", 0))
            rows, files = sum(row.rows for row in read), sum(row.files for row in read)
            account(events.Advanced(run.name, "load", rows, files, sum(sizes[row.n] for row in read)))
        loads.ledger, loads.upto = ledger, state.digest
        loads.commits += commits
        account(events.Found(run.name, tuple(findings)))
        run.held.watermark.publish(state, ledger.rows, succeeded=LOAD)


@contextmanager
def _turn(run: TableRun, shares: bool) -> Iterator[None]:
    """One load at a time; those that may share a transaction only wait for the one that is running."""
    loading = run.services.loading
    with events.waiting(run.account, run.name, Wait("turn")):
        loading.acquire()
    if shares:
        loading.release()
    try:
        yield
    finally:
        if not shares:
            loading.release()


@contextmanager
def _waiting(run: TableRun) -> Iterator[None]:
    """Waits for the warehouse's answer inside."""
    with events.waiting(run.account, run.name, Wait("warehouse", run.services.config.warehouse.kind)):
        yield


def _hide(run: TableRun) -> None:
    if run.loads.shown:
        run.loads.shown = False
        run.account(events.StageEnded(run.name, "load"))


def _retargeted(run: TableRun) -> Table | None:
    """The table with the configured target, if the log has another one; else None."""
    table = run.state.table
    if table is None:
        return None
    target = (run.options.target or table.source.table).lower()
    return replace(table, recipe=replace(table.recipe, target=target)) if target != table.target else None


def _manual(run: TableRun) -> str | None:
    """The time after which files load, if a manual watermark sets one."""
    progress = run.state.progress
    return progress.manual_timestamp if run.asked.load_only and progress.manual else None


# ---------------------------------------------------------------- in words


def _note_manual(run: TableRun, manual: str, found: int, chosen: int) -> None:
    for text in (
        f"Using manual watermark-based incremental Redshift loading: files after {manual}",
        f"Found {found} files, filtered to {chosen} files for loading",
    ):
        run.account.note(text)
        # Printed before the load too, not only in its result: the operator may want to stop it.
        run.services.emit(events.Noted("", f"{run.name}: {text}"))


def _note_choice(run: TableRun, state: State, choice: Choice) -> None:
    """Notes what is unusual about the files that load now."""
    if (manual := _manual(run)) is not None:
        _note_manual(run, manual, choice.found, choice.files)
    # They don't count twice.
    if files := sum(d.files for d in choice.repeated):
        run.account.note(
            f"{counted(files, 'later file')} will load again, because an earlier one loads only now: the later read wins"
        )
    before = run.held.watermark.loaded_before(state)
    lost = (d.files for d in choice.first if before is not None and not d.superseded and before.has(d.n))
    if files := sum(lost):
        run.account.note(
            f"{counted(files, 'file')} loaded earlier {'is' if files == 1 else 'are'} missing from the warehouse, which "
            f"was replaced or restored: loading {'it' if files == 1 else 'them'} again from the store"
        )
