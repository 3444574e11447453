"""`s3clean`: lists a table's staged files and removes those that may go.

A removal is in the log before the first file is deleted: first the claim, so that no other run works on the table, then
a commit that names the files, then the deletions. After a crash at any point no commit waits for a deleted file, and a
second clean removes what the first one left. Commits, leases and other tables' files are never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from floodmark.clean.choose import Facts, Removal, Selection, Staged, choose, orphans, staged
from floodmark.clean.remove import Cleaning, gather, listed, loaded_at, remove
from floodmark.config.load import Config
from floodmark.load.preview import Ledgers
from floodmark.log.claim import claim, decide_and_claim, refuse_if_held
from floodmark.log.copies import Publisher
from floodmark.log.fold import State, duplicates, would_duplicate
from floodmark.log.log import Log, draft, tables
from floodmark.model.commit import Clean
from floodmark.model.errors import DataError, FloodmarkError, Interrupted, exit_code
from floodmark.model.events import Emit, ignore
from floodmark.model.ledger import Ledger
from floodmark.model.results import CleanedTable, CleanResult, Failure, StagedFile, StagedFiles
from floodmark.model.text import counted, place
from floodmark.model.typed import Moment
from floodmark.plan.tables import full_name, must_exist
from floodmark.store.places import finish
from floodmark.store.store import Store

Confirm = Callable[[Sequence[Cleaning]], None]


def s3clean_list(config: Config, names: Sequence[str] = (), wanted: Selection | None = None) -> StagedFiles:
    """The staged files of the tables, or of all that have a log, as far as they are `wanted`; writes nothing."""
    store, now = Store(config.store), datetime.now(UTC)
    wanted = _below_prefix(wanted or Selection(), store)
    files: list[StagedFile] = []
    notes: list[str] = []
    with Ledgers(config) as ledgers:
        for name in _names(config, store, names):
            log = Log(store, name, repairs=False)
            objects = listed(store, name)  # before the log, which then names whatever was committed since
            state = log.read()
            ledger = ledgers.of(state)
            facts = gather(log, state, objects, ledger)
            if ledger is None and facts.commits:
                notes.append(
                    f"{name}: can't tell which files are loaded, because the warehouse does not answer"
                )
            if facts.unreadable:
                notes.append(
                    f"{name}: some commits can't be read, and may name these files; run floodmark watermark validate"
                )
            files += [_shown(store, name, f) for f in staged(facts) if wanted.fits(f.path, f.created_at, now)]
    return StagedFiles(files=tuple(files), deleted=0, bytes=sum(f.bytes for f in files), notes=tuple(notes))


def s3clean_clean(
    config: Config,
    names: Sequence[str],
    run: str,
    wanted: Selection,
    *,
    all_tables: bool = False,
    dry_run: bool = False,
    force: bool = False,
    confirm: Confirm = lambda outcomes: None,
    emit: Emit = ignore,
) -> CleanResult:
    """Removes the files that are loaded or superseded; `confirm` may object by raising."""

    def decide(facts: Facts, wanted: Selection, now: datetime) -> Removal:
        removal, table = choose(facts, wanted, now), facts.state.table
        if removal.clean.moved and table is not None and would_duplicate(table, facts.state) and not force:
            raise duplicates(table)
        return removal

    chosen = () if all_tables else names
    with Ledgers(config) as ledgers:
        return _clean(config, chosen, run, wanted, ledgers.read, decide, dry_run, confirm, emit)


def s3clean_orphans(
    config: Config,
    names: Sequence[str],
    run: str,
    wanted: Selection,
    *,
    dry_run: bool = False,
    confirm: Confirm = lambda outcomes: None,
    emit: Emit = ignore,
) -> CleanResult:
    """Removes the files that no commit names and that no run can commit any more."""

    def decide(facts: Facts, wanted: Selection, now: datetime) -> Removal:
        if facts.unreadable:
            raise DataError(
                f"commit {facts.unreadable[0]} can't be read, so the files that it names look like orphans",
                hint=f"floodmark watermark validate -t {facts.state.table_name} --repair restores what it can",
                table=facts.state.table_name,
            )
        return orphans(facts, wanted, now)

    with Ledgers(config) as ledgers:
        return _clean(config, names, run, wanted, ledgers.of, decide, dry_run, confirm, emit)


def _clean(
    config: Config,
    names: Sequence[str],
    run: str,
    wanted: Selection,
    ask: Callable[[State], Ledger | None],
    decide: Callable[[Facts, Selection, datetime], Removal],
    dry_run: bool,
    confirm: Confirm,
    emit: Emit,
) -> CleanResult:
    """Looks at all tables, asks once, then removes table by table what was shown to the user."""
    store, now = Store(config.store), datetime.now(UTC)
    wanted = _below_prefix(wanted, store)
    seen: dict[str, Facts] = {}
    outcomes = [Cleaning(name) for name in _names(config, store, names)]

    def look(log: Log, state: State | None = None) -> Facts:
        """The facts of a table. `state`: the one that is claimed next, so that nothing is committed in between."""
        # Before the log, which then names whatever was committed since.
        objects = listed(store, log.table_name)
        state = state or log.read()
        return gather(log, state, objects, ask(state))

    def act(outcome: Cleaning, facts: Facts, state: State) -> None:
        """Removes what still may be removed under our claim."""
        log = Log(store, outcome.table)
        only = frozenset(f.path for f in outcome.removal.files)
        found = facts if state is facts.state else look(log, state)
        taken = claim(log, state, run=run, purpose="clean")
        with taken.lease:
            # A file that was listed before the claim and is not committed by now never will be.
            state, ledger = taken.state, ask(taken.state)
            found = replace(found, state=state, loaded=loaded_at(state, ledger))
            outcome.removal = removal = decide(found, replace(wanted, only=only), now)
            outcome.notes = _notes(removal)
            if removal.clean.whole or removal.clean.some:  # the log never named orphans
                named = draft(state, Clean, run, clean=removal.clean, position=removal.position)
                state = log.append(state, named)
            Publisher(store, outcome.table, run).publish(state, ledger.rows if ledger is not None else None)
            remove(store, outcome, emit)
        finish(store.places)

    for outcome in outcomes:
        with _caught(outcome, len(outcomes) == 1):
            log = Log(store, outcome.table)
            seen[outcome.table] = facts = look(log)
            if not dry_run:
                refuse_if_held(log, facts.state, None)
            outcome.removal = decide(facts, wanted, now)
            outcome.notes = _notes(outcome.removal)
    if not dry_run:
        confirm(outcomes)
        for outcome in outcomes:
            if outcome.error is None and not outcome.removal.empty:
                with _caught(outcome, len(outcomes) == 1):
                    facts = seen.pop(outcome.table)
                    decide_and_claim(Log(store, outcome.table), facts.state, partial(act, outcome, facts))
    return _document(store, outcomes, dry_run)


@contextmanager
def _caught(outcome: Cleaning, alone: bool) -> Iterator[None]:
    """Keeps an error in its table's outcome, so that the others are cleaned; with one table it is raised."""
    try:
        yield
    except Interrupted:
        raise
    except FloodmarkError as error:
        outcome.error = error.of(outcome.table)
        if alone:
            raise


def _below_prefix(wanted: Selection, store: Store) -> Selection:
    """The same with a pattern that was copied from the listing, or from there without the store's address."""
    pattern = wanted.pattern
    return replace(wanted, pattern=pattern and pattern.removeprefix(store.uri("")).lstrip("/"))


def _names(config: Config, store: Store, names: Sequence[str]) -> list[str]:
    """The full names of the tables; of all that have a log if none is given."""
    if not names:
        return tables(store)
    chosen = list(dict.fromkeys(full_name(config, store, n) for n in names))
    known = set(tables(store))
    for name in chosen:
        if name not in known and name not in config.tables:
            must_exist(config, name)
    return chosen


def _notes(removal: Removal) -> list[str]:
    """What the user should know about a removal."""
    notes = []
    if removal.kept:
        stay = "1 loaded file stays" if removal.kept == 1 else f"{removal.kept:,} loaded files stay"
        notes.append(f"{stay} until earlier pending files are loaded")
    if removal.clean.given_up:
        rows = sum(g.rows for g in removal.clean.given_up)
        where = ""
        if removal.clean.moved:
            where = f", starting after {place(removal.position)}" if removal.position else ", from the start"
        notes.append(
            f"{counted(rows, 'row')} that were not loaded will be read again by the next sync{where}"
        )
    return notes


def _shown(store: Store, name: str, file: Staged) -> StagedFile:
    return StagedFile(
        table=name,
        uri=store.uri(file.path),
        rows=file.rows,
        bytes=file.bytes,
        created_at=Moment(file.created_at),
        commit=file.commit,
        state=file.state,
    )


def _document(store: Store, outcomes: Sequence[Cleaning], dry_run: bool) -> CleanResult:
    """The result; in a dry run, `files` and `bytes` are what would be removed."""
    files = tuple(_shown(store, o.table, f) for o in outcomes for f in o.removal.files)
    tables = tuple(
        CleanedTable(
            table=o.table,
            ok=o.error is None,
            exit_code=o.error.code if o.error else 0,
            deleted=o.deleted,
            bytes=o.bytes,
            notes=tuple(o.notes),
            error=Failure.by(o.error),
        )
        for o in outcomes
    )
    return CleanResult(
        ok=all(t.ok for t in tables),
        exit_code=exit_code([t.exit_code for t in tables]),
        dry_run=dry_run,
        files=files,
        deleted=sum(t.deleted for t in tables),
        bytes=sum(f.bytes for f in files) if dry_run else sum(t.bytes for t in tables),
        tables=tables,
    )
