"""`s3clean`: what lies staged for a table, and removing what may go.

A removal is in the log before the first file goes: first the claim, so that nobody else works on the table, then a
commit that names the files, then the files. Whatever dies on the way, no commit waits for a file that is gone, and a
second clean removes what the first one left. Commits, leases and other tables' files are never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from floodmark.clean import Facts, Removal, Staged, Wanted, choose, orphans, staged
from floodmark.config import Config
from floodmark.errors import ConflictError, DataError, FloodmarkError, exit_code
from floodmark.moves import doubled, doubles
from floodmark.report import Progress
from floodmark.staging import Outcome, gather, listed, loaded_at, remove
from floodmark.state import Changed, Log, State, Watermark, claim, draft, pipeline, refuse_if_held
from floodmark.state.log import tables
from floodmark.store import Store
from floodmark.warehouse import Ledger, Warehouse
from floodmark.warehouse.open import open_warehouse
from floodmark.watermarks import Ledgers, full_name, must_exist

# How often it is looked anew because another run's commit came between.
ATTEMPTS = 3

Confirm = Callable[[Sequence[Outcome]], None]


def s3clean_list(config: Config, names: Sequence[str] = ()) -> dict[str, Any]:
    """Every staged file of the tables, or of all that have a log; writes nothing."""
    store = Store(config.store)
    files: list[dict[str, Any]] = []
    notes: list[str] = []
    with Ledgers(config) as ledgers:
        for name in _names(config, store, names):
            log = Log(store, name, mend=False)
            objects = listed(store, name)  # first: what is committed meanwhile is named by the log
            state = log.read()
            ledger = ledgers.of(state)
            facts = gather(log, state, objects, ledger)
            if ledger is None and facts.commits:
                notes.append(f"{name}: the warehouse can't be asked now which files it has loaded")
            if facts.unreadable:
                notes.append(
                    f"{name}: commits that can't be read may name some files; see watermark validate"
                )
            files += [_shown(store, name, f) for f in staged(facts)]
    return {"files": files, "deleted": 0, "bytes": sum(f["bytes"] for f in files), "notes": notes}


def s3clean_clean(
    config: Config,
    names: Sequence[str],
    run: str,
    wanted: Wanted,
    *,
    all_tables: bool = False,
    dry_run: bool = False,
    force: bool = False,
    confirm: Confirm = lambda outcomes: None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Removes the files that are loaded or superseded; `confirm` may object by raising."""
    with ExitStack() as stack:
        warehouse: Warehouse | None = None

        def ask(state: State) -> Ledger:
            nonlocal warehouse
            if state.table is None:
                return Ledger()
            if warehouse is None:
                pipeline.check(Store(config.store), config.warehouse.label)
                warehouse = open_warehouse(config.warehouse)
                stack.callback(warehouse.close)
            return warehouse.ledger(state.log, state.table.target)

        def decide(facts: Facts, wanted: Wanted, now: datetime) -> Removal:
            removal, table = choose(facts, wanted, now), facts.state.table
            if removal.clean.moved and table is not None and doubles(table, facts.state) and not force:
                raise doubled(table)
            return removal

        work = _Work(config, run, wanted, ask, decide, True, progress)
        return work.go(_names(config, work.store, () if all_tables else names), dry_run, confirm)


def s3clean_orphans(
    config: Config,
    names: Sequence[str],
    run: str,
    wanted: Wanted,
    *,
    dry_run: bool = False,
    confirm: Confirm = lambda outcomes: None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Removes the files that no commit names and that nobody can commit any more."""

    def decide(facts: Facts, wanted: Wanted, now: datetime) -> Removal:
        if facts.unreadable:
            raise DataError(
                f"commit {facts.unreadable[0]} can't be read: the files that it names look like orphans",
                hint=f"floodmark watermark validate -t {facts.state.table_name} --repair mends what can be mended",
                table=facts.state.table_name,
            )
        return orphans(facts, wanted, now)

    with Ledgers(config) as ledgers:
        work = _Work(config, run, wanted, ledgers.of, decide, False, progress)
        return work.go(_names(config, work.store, names), dry_run, confirm)


class _Work:
    """One command over one or more tables: look at all, ask once, then remove table by table."""

    def __init__(
        self,
        config: Config,
        run: str,
        wanted: Wanted,
        ask: Callable[[State], Ledger | None],
        decide: Callable[[Facts, Wanted, datetime], Removal],
        commits: bool,
        progress: Progress | None,
    ) -> None:
        self.store = Store(config.store)
        self.run = run
        # A pattern that was copied from the listing, or from there without the store's address.
        base, pattern = self.store.uri(""), wanted.pattern
        self.wanted = replace(wanted, pattern=pattern and pattern.removeprefix(base).lstrip("/"))
        self.now = datetime.now(UTC)
        self._ask = ask
        self._decide = decide
        self._commits = commits  # whether what goes is named in the log: orphans never were
        self._progress = progress

    def go(self, names: Sequence[str], dry_run: bool, confirm: Confirm) -> dict[str, Any]:
        seen: dict[str, Facts] = {}
        outcomes = [Outcome(name) for name in names]
        for outcome in outcomes:
            with _caught(outcome, len(outcomes) == 1):
                log = Log(self.store, outcome.table)
                seen[outcome.table] = self._look(log)
                if not dry_run:
                    refuse_if_held(log, seen[outcome.table].state, None)
                self._judge(outcome, seen[outcome.table], self.wanted)
        if not dry_run:
            confirm(outcomes)
            for outcome in outcomes:
                if outcome.error is None and not outcome.removal.empty:
                    with _caught(outcome, len(outcomes) == 1):
                        self._act(outcome, seen.pop(outcome.table))
        return _document(self.store, outcomes, dry_run)

    def _look(self, log: Log) -> Facts:
        objects = listed(self.store, log.table_name)
        state = log.read()
        return gather(log, state, objects, self._ask(state))

    def _judge(self, outcome: Outcome, facts: Facts, wanted: Wanted) -> None:
        outcome.removal = removal = self._decide(facts, wanted, self.now)
        outcome.notes = _notes(removal)

    def _act(self, outcome: Outcome, facts: Facts) -> None:
        """Removes what was shown, as far as it still may go under our claim."""
        log = Log(self.store, outcome.table)
        wanted = replace(self.wanted, only=frozenset(f.path for f in outcome.removal.files))
        for _ in range(ATTEMPTS):
            taken = claim(log, facts.state, run=self.run, purpose="clean")
            if isinstance(taken, Changed):
                facts = self._look(log)
                continue
            with taken.lease:
                # Whatever was listed before the claim and is not committed by now never will be.
                state, ledger = taken.state, self._ask(taken.state)
                self._judge(outcome, replace(facts, state=state, loaded=loaded_at(state, ledger)), wanted)
                removal = outcome.removal
                if self._commits and not removal.empty:
                    named = draft(state, "clean", self.run, clean=removal.clean, position=removal.position)
                    state = log.append(state, named)
                rows = ledger.rows if ledger is not None else None
                Watermark(self.store, outcome.table, self.run).publish(state, rows)
                remove(self.store, outcome, self._progress)
            return
        raise ConflictError(
            "other runs keep changing the table", hint="try again when they are done", table=outcome.table
        )


class _caught:
    """An error ends up in its table's outcome, not in the others'; with one table it is the command's."""

    def __init__(self, outcome: Outcome, alone: bool) -> None:
        self._outcome = outcome
        self._alone = alone

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, FloodmarkError) or error.code in (130, 143):
            return False
        self._outcome.error = error.of(self._outcome.table)
        return not self._alone


def _names(config: Config, store: Store, names: Sequence[str]) -> list[str]:
    """The full names of the tables; of all that have a log when none is given."""
    if not names:
        return tables(store)
    chosen = list(dict.fromkeys(full_name(config, store, n) for n in names))
    known = set(tables(store))
    for name in chosen:
        if name not in known and name not in config.tables:
            must_exist(config, name)
    return chosen


def _notes(removal: Removal) -> list[str]:
    """What the user should know of a removal."""
    notes = []
    if removal.kept:
        notes.append(f"{removal.kept:,} loaded files stay until the pending ones before them are loaded")
    if removal.clean.given_up:
        rows = sum(g.rows for g in removal.clean.given_up)
        where = ""
        if removal.clean.moved:
            where = f" after {removal.position[0]}" if removal.position else " from the start"
        notes.append(f"{rows:,} rows that were not loaded are read again by the next sync{where}")
    return notes


def _shown(store: Store, name: str, file: Staged) -> dict[str, Any]:
    return {
        "table": name,
        "uri": store.uri(file.path),
        "rows": file.rows,
        "bytes": file.bytes,
        "created_at": file.created_at,
        "commit": file.commit,
        "state": file.state,
    }


def _document(store: Store, outcomes: Sequence[Outcome], dry_run: bool) -> dict[str, Any]:
    """What the command prints with `--json`; in a dry run `files` and `bytes` are what would go."""
    files = [_shown(store, o.table, f) for o in outcomes for f in o.removal.files]
    return {
        "ok": all(o.error is None for o in outcomes),
        "exit_code": exit_code([o.error.code for o in outcomes if o.error]),
        "dry_run": dry_run,
        "files": files,
        "deleted": sum(o.deleted for o in outcomes),
        "bytes": sum(f["bytes"] for f in files) if dry_run else sum(o.bytes for o in outcomes),
        "tables": [o.as_json() for o in outcomes],
    }
