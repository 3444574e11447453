"""`watermark validate`: gathers the facts about a table, has `findings` compare them, and repairs what it can.

A repair loses nothing: copies are published again from the log, lost commits are restored from copies or files.
Anything that needs a decision (orphans, missing files) is only reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress

from floodmark.clean.remove import documents
from floodmark.config.load import Config
from floodmark.load.protocol import Warehouse, open_warehouse
from floodmark.log import copies
from floodmark.log.claim import Changed, claim, decide_and_claim
from floodmark.log.copies import Publisher
from floodmark.log.document import Copy, Flaw, condense
from floodmark.log.fold import Damaged, State
from floodmark.log.lease import holder
from floodmark.log.log import Log, tables
from floodmark.model.commit import files_of
from floodmark.model.errors import DataError
from floodmark.model.ledger import Ledger
from floodmark.model.results import ValidatedTable, ValidateResult
from floodmark.model.run import Finding
from floodmark.model.text import counted
from floodmark.plan.tables import full_name, must_exist
from floodmark.store.places import finish
from floodmark.store.store import Store, file_folders
from floodmark.watermark import findings
from floodmark.watermark.backups import flaw

# How long a repair waits for the further places: a whole log may have to go there.
REPAIR_SECONDS = 60.0


def watermark_validate(
    config: Config, names: Sequence[str] = (), *, repair: bool = False, run: str
) -> ValidateResult:
    """All findings for the given tables, or for all that have a log; with `repair`, what is left afterwards."""
    store = Store(config.store)
    chosen = [full_name(config, store, n) for n in names] if names else tables(store)
    results = []
    with closing(open_warehouse(config.warehouse)) as warehouse:
        for name in chosen:
            found = _examined(config, store, name, warehouse)
            if repair and found.findings:
                done = _repair(store, name, warehouse, found, run)
                found = _examined(config, store, name, warehouse).but(repaired=tuple(done))
            results.append(found)
    return ValidateResult(ok=not any(r.findings for r in results), tables=tuple(results))


def _examined(config: Config, store: Store, name: str, warehouse: Warehouse) -> ValidatedTable:
    """The findings of one table; writes nothing."""
    log = Log(store, name, repairs=False)
    stored = [copies.primary(store, name), *copies.backups(store, name)]
    try:
        state = log.read()
    except DataError as error:
        detail = error.message + (f"; {error.hint}" if error.hint else "")
        return _table(State(name), [Finding("damaged_log", name, detail)])
    if state.n < 0:
        if name not in config.tables:
            must_exist(config, name)
        return _table(state, [])
    # In this order: the second look at the log finds what was committed in between.
    objects = {o.path: o.bytes for folder in file_folders(name) for o in store.list(folder)}
    held = holder(store, name, state.claim)
    live = held is not None and held.alive
    chain = findings.chain(name, documents(log, range(state.n + 1)))
    newer = {f.path for c in map(log.readable, log.numbers(state.n)) if c for f in files_of(c)}
    under_way = {p for p in objects if held and live and f"/{held.run}/" in p} | newer
    found = findings.log_findings(name, state, chain)
    ledger, rows = Ledger(), None
    if state.table is not None:
        ledger = warehouse.ledger(state.log, state.table.target)
        rows = warehouse.rows(state.table.target)
    loaded = ledger.loaded(state.load_epoch)
    found += findings.file_findings(state, chain, objects, under_way, loaded)
    of_ledger = findings.ledger_findings(name, state, chain, ledger)
    found += of_ledger or findings.count_findings(state, ledger)
    if state.table is not None and rows is not None and not live:
        found += findings.row_findings(name, state.table, chain, loaded, rows)
    found += _copy_findings(log, state, ledger, stored, live)
    if not live and (state.data.commits or state.progress.moved_at):
        found += _place_findings(log, state, ledger)
    return _table(state, found, rows)


def _table(state: State, found: Sequence[Finding], rows: int | None = None) -> ValidatedTable:
    return ValidatedTable(
        table=state.table_name,
        rows_source=None,  # `verify` reads the source
        rows_warehouse=rows,
        rows_extracted=state.extracted.rows,
        rows_reread=state.extracted.reread,
        findings=tuple(found),
        repaired=(),
    )


def _copy_findings(
    log: Log, state: State, ledger: Ledger, stored: Sequence[copies.Stored], live: bool
) -> list[Finding]:
    """Damaged copies, and the newest of each place if it is behind; not while a run is about to publish."""
    found: list[Finding] = []
    seen: set[str] = set()
    # Sessions of the same second have names in no order: one current copy is enough for its place.
    current = {c.place for c in stored if isinstance(c.found, Copy) and _behind(c, state, ledger) is None}
    for copy in stored:
        newest, wrong = copy.place not in seen, flaw(log, copy)
        seen.add(copy.place)
        if wrong is None and newest and copy.place not in current and not live:
            wrong = _behind(copy, state, ledger)
        if wrong is None:
            continue
        if wrong.kind == "missing" and (live or not (state.data.commits or state.progress.moved_at)):
            continue  # nothing was published yet
        if wrong.kind == "other_version" and copy.place in current:
            continue  # an older version wrote it before the update
        found.append(_stale(log, copy, wrong, newest))
    return found


def _place_findings(log: Log, state: State, ledger: Ledger) -> list[Finding]:
    """Further places whose newest copy is missing, damaged, behind, or can't be read."""
    found = []
    for copy in copies.elsewhere(log.store, log.table_name, daily=False):
        wrong = flaw(log, copy) or _behind(copy, state, ledger)
        if wrong is not None:
            found.append(_stale(log, copy, wrong, True))
    return found


def _stale(log: Log, copy: copies.Stored, wrong: Flaw, newest: bool) -> Finding:
    more = {"copy": copy.path, "newest": newest}
    return Finding("stale_copy", log.table_name, f"{copy.path}: {wrong}", more)


def _behind(copy: copies.Stored, state: State, ledger: Ledger) -> Flaw | None:
    """What a copy does not show yet of the log or the ledger."""
    assert isinstance(copy.found, Copy)
    shown = copy.found.checkpoint
    if shown.state.n != state.n:
        return Flaw("behind", f"shows commit {shown.state.n}, the log is at {state.n}")
    now = condense(state, ledger.rows)
    if shown.load.as_of is None and (shown.load.commits, shown.load.rows) != (now.commits, now.rows):
        return Flaw("behind", f"shows {shown.load.rows:,} loaded rows, the ledger has {now.rows:,}")
    return None


def _repair(store: Store, name: str, warehouse: Warehouse, found: ValidatedTable, run: str) -> list[str]:
    """Repairs what can be repaired without loss; returns what it did."""
    done: list[str] = []
    log = Log(store, name)
    try:
        state = log.read()
    except DataError:
        return done  # the finding says what to do
    damaged = [f.more["commit"] for f in found.findings if f.kind == "damaged_log" and "commit" in f.more]
    for n in damaged:
        if log.readable(n) is None:
            with suppress(Damaged):
                log.commit(n)
    done += [finding.detail for finding in log.findings]
    stale = [f for f in found.findings if f.kind == "stale_copy"]
    if stale or any(f.kind == "count_mismatch" and not f.more for f in found.findings):
        state = _claimed_and_published(log, state, warehouse, run)
        done.append(f"the watermark was published again, at commit {state.n}")
    worthless = [c.path for c in copies.backups(store, name) if stale and c.damaged]
    if worthless:
        store.delete(worthless)
        done.append(f"removed {counted(len(worthless), 'damaged backup')}")
    return done


def _claimed_and_published(log: Log, state: State, warehouse: Warehouse, run: str) -> State:
    """Publishes the log's own state to all places, under a claim, so that no other run publishes meanwhile."""

    def publish(state: State) -> State | Changed:
        taken = claim(log, state, run=run, purpose="repair")
        if isinstance(taken, Changed):
            return taken
        state = taken.state
        with taken.lease:
            target = state.table.target if state.table else None
            rows = warehouse.ledger(state.log, target).rows if target else ()
            with suppress(Damaged):  # unless parts of it are lost for good, the fold of the whole log
                state = log.fold_on(State(log.table_name))
            Publisher(log.store, log.table_name, run).publish(state, rows)
        finish(log.store.places, REPAIR_SECONDS)
        return state

    return decide_and_claim(log, state, publish)
