"""`watermark validate`: the log, the copies, the store's objects and the warehouse against each other.

What decides is pure: facts in, findings out. Rows that were read again (overlap, --since, a repair) move no position
and are not findings. A repair loses nothing: copies are published again from the log, lost commits are restored from
copies or files. Anything that needs a decision (orphans, missing files) is only reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from floodmark.clean.remove import documents
from floodmark.config.load import Config
from floodmark.load.protocol import Warehouse, open_warehouse
from floodmark.log import copies
from floodmark.log.claim import claim, decide_and_claim
from floodmark.log.copies import Publisher
from floodmark.log.document import Copy, Flaw, condense
from floodmark.log.fold import Damaged, State, fold, merged, within
from floodmark.log.lease import holder
from floodmark.log.log import Log, logs
from floodmark.model.commit import Batch, Changes, Claim, Clean, Commit, DataFile, WithFiles, files_of
from floodmark.model.errors import DataError
from floodmark.model.ledger import Ledger
from floodmark.model.position import Position
from floodmark.model.results import ValidatedTable, ValidateResult
from floodmark.model.run import Finding
from floodmark.model.table import Table
from floodmark.model.text import counted, place
from floodmark.model.window import Window
from floodmark.plan.tables import full_name, must_exist
from floodmark.store.places import finish
from floodmark.store.store import Store, file_folders
from floodmark.watermark.backups import flaw
from floodmark.watermark.set_reset import back

# Names that one finding lists: it is one line.
NAMED = 5


@dataclass(frozen=True)
class Chain:
    """The whole log as the store has it."""

    commits: tuple[tuple[Commit, str], ...]  # those that can be read, with their digests
    damaged: Mapping[int, str]  # those that can't be read, and why
    refolded: State | None  # the fold of all of them; None when some are missing
    findings: tuple[Finding, ...]  # about windows


def chain(table_name: str, documents: Iterable[tuple[int, Commit, str] | tuple[int, None, str]]) -> Chain:
    """The log from commit 0 on, folded; notes where it breaks and where windows don't join."""
    read: list[tuple[Commit, str]] = []
    damaged: dict[int, str] = {}
    found: list[Finding] = []
    state: State | None = State(table_name)
    for n, commit, digest in documents:
        if commit is None:
            damaged[n], state = digest, None
            continue
        read.append((commit, digest))
        if state is None:
            continue
        found += _joins(state, commit)
        try:
            state = fold(state, commit, digest)
        except Damaged as error:
            damaged[n], state = error.message, None
    return Chain(tuple(read), damaged, state, tuple(found))


def _joins(state: State, commit: Commit) -> Iterable[Finding]:
    """Yields a finding unless a new window begins at the position."""
    window, stood = commit.window if isinstance(commit, Claim) else None, state.position
    known = state.window is not None and window is not None and state.window.id == window.id
    if window is None or window.by == "snapshot" or known or stood is None or window.low == stood:
        return
    kind = "overlap" if window.low is None or back(stood, window.low) else "gap"
    what = "rows in between are read twice" if kind == "overlap" else "rows in between are skipped"
    detail = f"the window of commit {commit.n} begins at {_place(window.low)}, but the position was {_place(stood)}: {what}"
    yield Finding(kind, state.table_name, detail, {"commit": commit.n})


def _place(position: Position | None) -> str:
    return place(position) if position else "the start"


def log_findings(table_name: str, state: State, log: Chain) -> list[Finding]:
    """Commits that can't be read, and sums that differ from the log's."""
    found = [
        Finding("damaged_log", table_name, f"commit {n}: {why}", {"commit": n})
        for n, why in sorted(log.damaged.items())
    ]
    rebuilt = any(c.stands_for for c, _ in log.commits)
    if log.refolded is not None and log.refolded.n == state.n and log.refolded != state and not rebuilt:
        detail = (
            f"up to commit {state.n} the published watermark counts {state.totals.rows:,} rows "
            f"in {state.totals.files:,} files, "
            f"the log {log.refolded.totals.rows:,} in {log.refolded.totals.files:,}"
        )
        found.append(Finding("count_mismatch", table_name, detail))
    return [*found, *log.findings]


def cleaned_files(log: Chain) -> set[str]:
    """The files that were removed by cleans, as their commits name them."""
    files = {c.n: [f.path for f in c.files] for c, _ in log.commits if isinstance(c, WithFiles)}
    cleans = [c.clean for c, _ in log.commits if isinstance(c, Clean) and c.clean]
    spans = merged(span for clean in cleans for span in clean.whole)
    found = {path for n, paths in files.items() if within(spans, n) for path in paths}
    for clean in cleans:
        found.update(files[n][place] for n, places in clean.some if n in files for place in places)
    return found


def file_findings(
    state: State,
    log: Chain,
    objects: Mapping[str, int],
    uncommitted: Collection[str],
    loaded: Collection[tuple[int, str]],
) -> list[Finding]:
    """The files that the log names against the objects (path and size); `uncommitted`: files of a running sync.

    A cleaned file is missing only if the warehouse no longer has its rows, they were not given up, and no later
    snapshot replaces them.
    """
    table_name = state.table_name
    named: dict[str, tuple[Commit, str, DataFile]] = {
        f.path: (c, digest, f) for c, digest in log.commits for f in files_of(c)
    }
    cleaned = cleaned_files(log)
    snapshots = (c.n for c, _ in log.commits if isinstance(c, Batch) and c.load_as == "replace")
    whole = max((n for n in snapshots if not within(state.data.dropped, n)), default=0)
    found = []
    for path, (commit, digest, file) in named.items():
        size = objects.get(path)
        more = {"file": path, "commit": commit.n, "loaded": (commit.n, digest) in loaded}
        given_up = commit.n < max(whole, state.data.superseded) or within(state.data.dropped, commit.n)
        if size is None and (path not in cleaned or not (more["loaded"] or given_up)):
            what = "its rows are in the warehouse" if more["loaded"] else "its rows are not in the warehouse"
            if isinstance(commit, Changes):
                what = "tables that have not followed it will be compared with their copies"
            why = "was cleaned" if path in cleaned else "is not in the store"
            detail = f"{path} of commit {commit.n} {why}; {what}"
            found.append(Finding("missing_file", table_name, detail, more))
        elif size is not None and size != file.bytes:
            detail = f"{path} has {size:,} bytes, but its commit {commit.n} says {file.bytes:,}"
            found.append(Finding("count_mismatch", table_name, detail, more))
    if log.damaged:
        return found  # files of lost commits can't be told from orphans
    for path in sorted(set(objects) - set(named) - set(uncommitted)):
        more = {"file": path, "bytes": objects[path]}
        found.append(Finding("orphan", table_name, f"no commit names {path}", more))
    return found


def ledger_findings(table_name: str, state: State, log: Chain, ledger: Ledger) -> list[Finding]:
    """The warehouse's ledger against the log's commits."""
    known = {(c.n, digest): c for c, digest in log.commits if isinstance(c, WithFiles)}
    found = []
    ahead = []
    for row in ledger.rows:
        if row.epoch != state.load_epoch:
            continue
        commit = known.get(row.identity)
        if commit is None:
            if row.n not in log.damaged:
                ahead.append(row.n)
        elif (row.rows, row.files) != (commit.rows, len(commit.files)):
            detail = (
                f"for commit {row.n} the ledger has {row.rows:,} rows in {row.files} files, "
                f"but the commit has {commit.rows:,} in {len(commit.files)}"
            )
            found.append(Finding("count_mismatch", table_name, detail, {"commit": row.n}))
    if ahead:
        numbers = ", ".join(map(str, ahead[:NAMED])) + (", …" if len(ahead) > NAMED else "")
        detail = f"the warehouse has loaded commits that the log does not have: {numbers}"
        found.append(Finding("ledger_ahead", table_name, detail, {"commits": ahead}))
    return found


def count_findings(state: State, ledger: Ledger) -> list[Finding]:
    """More loaded rows than the log has."""
    loaded = [
        row
        for row in ledger.rows
        if row.epoch == state.load_epoch
        and row.n > state.data.superseded
        and not within(state.data.dropped, row.n)
    ]
    rows, there = sum(row.rows for row in loaded), state.data.older.rows + sum(d.rows for d in state.live)
    commits, known = sum(row.commits for row in loaded), state.data.older.commits + len(state.live)
    if rows <= there and commits <= known:
        return []
    detail = (
        f"the ledger has {rows:,} rows in {commits:,} commits as loaded, "
        f"but the log has only {there:,} rows in {known:,} commits"
    )
    return [Finding("count_mismatch", state.table_name, detail, {"loaded": rows, "extracted": there})]


def row_findings(
    table_name: str, table: Table, log: Chain, loaded: Collection[tuple[int, str]], rows: int
) -> list[Finding]:
    """The target's rows against what was loaded: exactly where rows are not merged, else at least."""
    commits = [c for c, d in log.commits if isinstance(c, WithFiles) and (c.n, d) in loaded]
    if not commits or log.damaged:
        return []
    snapshot = next((c for c in reversed(commits) if c.load_as == "replace"), None)
    if snapshot is not None:
        commits = commits[commits.index(snapshot) :]  # the snapshot has replaced all earlier rows
    if table.mode == "full" and snapshot is not None and commits[-1] is snapshot:
        expected, exact = snapshot.rows, True
    elif not table.key:
        expected, exact = sum(c.rows for c in commits), True
    elif any(c.load_as == "delete" for c in commits):
        return []
    else:
        windows = {c.window.id: c.window for c, _ in log.commits if isinstance(c, Claim) and c.window}
        expected, exact = _at_least(table, windows, commits), False
    if rows == expected or (rows > expected and not exact):
        return []
    word = "" if exact else "at least "
    detail = f"{table.target} has {rows:,} rows, but the loaded files have {word}{expected:,}"
    return [Finding("count_mismatch", table_name, detail, {"rows": rows, "expected": expected})]


def _at_least(table: Table, windows: Mapping[str, Window], commits: Sequence[WithFiles]) -> int:
    """Rows that certainly have different keys: those of one window in which no row can be in two slices."""
    cursor = table.column(table.cursor) if table.cursor else None
    still = cursor is not None and (
        cursor.name in table.key or cursor.auto_increment or "current_timestamp" in cursor.extra.lower()
    )
    sums: dict[object, int] = {}
    for commit in commits:
        if not isinstance(commit, Batch) or commit.window_id is None:
            continue
        window = windows.get(commit.window_id)
        whole = still or (window is not None and (window.by == "key" or window.slices == 1))
        for file in commit.files:
            group = commit.window_id if whole else (commit.window_id, file.slice)
            sums[group] = sums.get(group, 0) + file.rows
    return max(sums.values(), default=0)


# How long a repair waits for the further places: a whole log may have to go there.
REPAIR_SECONDS = 60.0


def watermark_validate(
    config: Config, names: Sequence[str] = (), *, repair: bool = False, run: str
) -> ValidateResult:
    """All findings for the given tables, or for all that have a log; with `repair`, what is left afterwards."""
    store = Store(config.store)
    chosen = [full_name(config, store, n) for n in names] if names else logs(store)
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
    whole = chain(name, documents(log, range(state.n + 1)))
    newer = {f.path for c in map(log.readable, log.numbers(state.n)) if c for f in files_of(c)}
    under_way = {p for p in objects if held and live and f"/{held.run}/" in p} | newer
    found = log_findings(name, state, whole)
    ledger, rows = Ledger(), None
    if state.table is not None:
        ledger = warehouse.ledger(state.log, state.table.target)
        rows = warehouse.rows(state.table.target)
    loaded: Collection[tuple[int, str]] = ledger.loaded(state.load_epoch)
    if state.source is not None:  # a clean names key files only when every table has followed them
        loaded = {(c.n, digest) for c, digest in whole.commits}
    found += file_findings(state, whole, objects, under_way, loaded)
    of_ledger = ledger_findings(name, state, whole, ledger)
    found += of_ledger or count_findings(state, ledger)
    if state.table is not None and rows is not None and not live:
        found += row_findings(name, state.table, whole, loaded, rows)
    found += _copy_findings(log, state, ledger, stored, live)
    if not live and (state.data.commits or state.progress.moved_at or state.source):
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

    def publish(state: State) -> State:
        taken = claim(log, state, run=run, purpose="repair")
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
