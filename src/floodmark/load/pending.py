"""Pending commits: finding them, grouping them, loading them.

Pending means the log's data commits minus the ledger's rows of the load epoch, by number and digest. Commits
load in log order. If an earlier one loads after later ones (because a manual watermark had left its files
out), the later ones' ledger rows are removed in the same transaction and they load again: the later read
wins, crash or not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from floodmark.load.descriptions import description, descriptions, loaded_as, shaped
from floodmark.load.protocol import LoadRequest, Numbered, Warehouse
from floodmark.log.document import accounts_for_older
from floodmark.log.fold import DataCommit, State
from floodmark.log.log import Log
from floodmark.model import log_lines
from floodmark.model.commit import Commit, WithFiles, by_key, files_of, wide
from floodmark.model.errors import ConflictError, DataError
from floodmark.model.ledger import Ledger, LedgerRow, Part, TargetFiller
from floodmark.model.run import Finding, Step
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.times import parse_moment

logger = logging.getLogger("floodmark")

# Limits of one transaction, so that progress is visible and a crash costs little.
MAX_ROWS = 5_000_000
MAX_BYTES = 2_000_000_000
# Spans of cleaned commits passed to a ledger query; leaving some out only makes the result more conservative.
MAX_SPANS = 20


@dataclass(frozen=True)
class Choice:
    """The commits to load now."""

    ledger: Ledger
    data: tuple[DataCommit, ...]  # all data commits that the state and the ledger leave to choose from
    commits: tuple[DataCommit, ...] = ()  # in log order
    retake: frozenset[tuple[int, str]] = frozenset()  # ledger rows to remove with the first of them
    found: int = 0  # pending files
    skipped: tuple[DataCommit, ...] = ()  # left out by a manual watermark; still pending
    lost: tuple[LedgerRow, ...] = ()  # in the ledger but not in the log
    findings: tuple[Finding, ...] = ()

    @property
    def files(self) -> int:
        """Files that load for the first time."""
        return sum(d.files for d in self.first)

    @property
    def first(self) -> list[DataCommit]:
        """Those that load for the first time."""
        return [d for d in self.commits if (d.n, d.digest) not in self.retake]

    @property
    def repeated(self) -> list[DataCommit]:
        """Those that load again, because an earlier one loads only now."""
        return [d for d in self.commits if (d.n, d.digest) in self.retake]


def part_of(state: State) -> Part | None:
    """The part of the ledger to fetch row by row: the commits that the state lists."""
    if state.data.older.upto == 0:
        return None  # the state lists every commit
    named = state.data.recent_files[0].n if state.data.recent_files else state.n + 1
    return Part(
        state.load_epoch,
        min(state.data.older.upto, named - 1),
        superseded=state.data.superseded,
        cleaned=state.data.cleaned[:MAX_SPANS],
        proven=state.data.older.commits > 0,
    )


def ledger_for(
    warehouse: Warehouse, state: State, target: str, ledger: Ledger | None = None, *, whole: bool = False
) -> Ledger:
    """Enough of the ledger to decide which of the state's commits are loaded; `ledger` is the last known one.

    While the warehouse's totals match the state's, that is a part whose size does not depend on the history.
    Otherwise every row is fetched, so that lost, added or changed rows are found as if there were no totals.
    """
    if ledger is None and not whole:
        ledger = warehouse.ledger(state.log, target, part_of(state))
    if ledger is None or (ledger.part is not None and (whole or not _suffices(ledger, ledger.part, state))):
        return warehouse.ledger(state.log, target)
    return ledger


def _suffices(ledger: Ledger, part: Part, state: State) -> bool:
    """Whether a part of the ledger covers the commits that the state lists and matches its totals."""
    wanted = part_of(state)
    return (
        wanted is not None
        and (part.epoch, part.superseded) == (wanted.epoch, wanted.superseded)
        and part.after <= wanted.after
        and accounts_for_older(state, ledger.rows)
    )


def pending(
    data: Iterable[DataCommit], ledger: Ledger, epoch: int, *, superseded: bool = False
) -> tuple[DataCommit, ...]:
    """The commits that the ledger lacks; superseded ones only on request and while they still have files."""
    loaded = ledger.loaded(epoch)
    summed = ledger.part.after if ledger.part is not None else -1
    found = tuple(
        d
        for d in data
        if (d.n, d.digest) not in loaded and (not d.superseded or (superseded and not d.cleaned))
    )
    if any(d.n <= summed for d in found):
        raise ValueError(f"commits up to {summed} were checked by sums only")
    return found


def created_after(commits: Iterable[Commit], moment: str) -> frozenset[int]:
    """The numbers of commits whose files were all created after a moment (UTC)."""
    limit = parse_moment(moment)
    return frozenset(
        c.n
        for c in commits
        if all(parse_moment(f.created_at or c.at) > limit for f in files_of(c)) and parse_moment(c.at) > limit
    )


def first_rows(commits: Sequence[DataCommit], limit: int | None) -> tuple[DataCommit, ...]:
    """Whole commits in order, until `limit` rows are reached."""
    before = accumulate((d.rows for d in commits), initial=0)
    return tuple(d for d, rows in zip(commits, before, strict=False) if limit is None or rows < limit)


def lost(state: State, data: Sequence[DataCommit], ledger: Ledger) -> tuple[LedgerRow, ...]:
    """Ledger rows of this epoch whose commits the log lacks: the ledger is ahead of the log."""
    known = {(d.n, d.digest) for d in data} | {(d.n, d.digest) for d in state.data.commits}
    # Commits held only as totals are known if the totals match; superseded ones may not be listed at all.
    summed = state.data.older.upto if accounts_for_older(state, ledger.rows) else 0
    floor = max(summed, state.data.superseded)
    return tuple(
        row for row in ledger.rows
        if row.epoch == state.load_epoch and row.identity not in known and (row.n > floor or row.n > state.n)
    )  # fmt: skip


def again(
    chosen: Sequence[DataCommit], data: Sequence[DataCommit], ledger: Ledger, epoch: int, keyed: bool
) -> tuple[DataCommit, ...]:
    """The loaded commits that must load again because an earlier one loads now."""
    if not chosen:
        return ()
    loaded = ledger.loaded(epoch)
    # Insert-only rows need no order, and without a key loading them again would duplicate them.
    added = not keyed and all(d.load_as == "insert" for d in chosen)
    return tuple(d for d in data if (d.n, d.digest) in loaded and d.n > chosen[0].n and not added)


def choose(
    state: State,
    data: Sequence[DataCommit],
    ledger: Ledger,
    *,
    keyed: bool,
    after: frozenset[int] | None = None,
    limit: int | None = None,
) -> Choice:
    """What to load now; `after` holds the numbers that a manual watermark admits, superseded ones included."""
    epoch = state.load_epoch
    waiting = pending(data, ledger, epoch, superseded=after is not None)
    passed = tuple(d for d in waiting if after is None or d.n in after)
    skipped = tuple(d for d in waiting if after is not None and d.n not in after)
    chosen = first_rows(passed, limit)
    repeated = again(chosen, data, ledger, epoch, keyed)
    gone = lost(state, data, ledger)
    retake = frozenset((d.n, d.digest) for d in repeated)
    if chosen:
        retake |= {row.identity for row in gone}
    commits = tuple(sorted((*chosen, *repeated), key=lambda d: d.n))
    return Choice(ledger, tuple(data), commits, retake, sum(d.files for d in waiting), skipped, gone)


def groups(
    commits: Sequence[DataCommit],
    shape: Callable[[DataCommit], object] = lambda d: d.schema,
    wide_bytes: int | None = None,
) -> tuple[tuple[DataCommit, ...], ...]:
    """The commits in groups that each load in one transaction; `wide_bytes`: at most so many bytes of wide rows.

    Commits of a group have the same shape and load the same way. A snapshot makes everything before it
    pointless, so all of that is one group with it, of which only the snapshot's files are read.
    """
    snapshot = max((i + 1 for i, d in enumerate(commits) if d.load_as == "replace"), default=0)
    made = [list(commits[:snapshot])] if snapshot else []
    group: list[DataCommit] = []
    for commit in commits[snapshot:]:
        rows = sum(d.rows for d in group) + commit.rows
        size = sum(d.bytes for d in group) + commit.bytes
        most = MAX_BYTES if wide_bytes is None or not wide(rows, size) else wide_bytes
        full = group and (
            (shape(commit), commit.load_as) != (shape(group[0]), group[0].load_as)
            or rows > MAX_ROWS
            or size > most
        )
        if full:
            made.append(group)
            group = []
        group.append(commit)
    if group:
        made.append(group)
    return tuple(tuple(g) for g in made)


def read_now(commits: Sequence[DataCommit]) -> Sequence[DataCommit]:
    """The commits whose files a load of these reads: a snapshot replaces everything before it."""
    return commits[max((i for i, d in enumerate(commits) if d.load_as == "replace"), default=0) :]


def choose_pending(
    warehouse: Warehouse,
    log: Log,
    state: State,
    pipeline: str,
    *,
    manual: str | None = None,
    limit: int | None = None,
    adopt: bool = False,
    ledger: Ledger | None = None,
) -> Choice:
    """What to load of a table now; completes a reset that crashed before it reached the warehouse.

    With `manual`, only files created after that time (UTC) load. `ledger` is the last known one, if it is fresh.
    """
    table = _described(state)
    ledger = ledger or ledger_for(warehouse, state, table.target)
    ledger = _same_epoch(warehouse, log, state, ledger, pipeline, adopt)
    ledger = ledger_for(warehouse, state, table.target, ledger, whole=manual is not None)
    data = log.data(state, ledger.rows, superseded=manual is not None)
    after = None
    if manual is not None:
        waiting = pending(data, ledger, state.load_epoch, superseded=True)
        after = created_after((c for c, _ in log.commits(d.n for d in waiting)), manual)
    choice = choose(state, data, ledger, keyed=bool(table.key), after=after, limit=limit)
    choice = replace(choice, findings=_findings(log, state, choice, adopt))
    _log_choice(state, choice)
    _check_there(state, choice)
    return choice


def requests(
    log: Log,
    state: State,
    choice: Choice,
    pipeline: str,
    run: str,
    *,
    wide_bytes: int | None = None,
    adopt: bool = False,
    repair: bool = False,
    at_work: Callable[[Step, int], None] = lambda step, rows: None,
) -> Iterator[LoadRequest]:
    """The loads of the chosen commits, group by group, each made when the one before it is loaded."""
    described = descriptions(log, state, choice.commits)

    def shape(d: DataCommit) -> object:
        # The cursor decides which of two rows in a commit is the later one.
        return (d.schema, described[d.described].cursor if d.described in described else None)

    retake, data = choice.retake, choice.data
    before, shape_before = loaded_as(log, state, choice.ledger), shaped(log, state, choice.ledger)
    kept = _kept(state, choice)
    for group in groups(choice.commits, shape, wide_bytes):
        table = description(described, group[-1], log.table_name)
        yield LoadRequest(
            pipeline=pipeline,
            log=state.log,
            table=table,
            target=_described(state).target,
            epoch=state.load_epoch,
            commits=_documents(log, group),
            store=log.store,
            run=run,
            retake=retake,
            adopt=adopt,
            newest=state.table,
            loaded=before,
            shaped=shape_before.table,
            kept=kept,
            rows_to_follow=sum(d.rows for d in data if d.n > group[-1].n and not by_key(d.load_as)),
            repair=repair,
            at_work=at_work,
        )
        retake = frozenset()
        if not by_key(group[-1].load_as):  # key files bring no columns
            before = table
        shape_before = shape_before.after(group[-1], table)


def _described(state: State) -> Table:
    assert state.table is not None  # else the log holds no data
    return state.table


def _log_choice(state: State, choice: Choice) -> None:
    """Logs which files load now, which don't, and why."""

    def said(commits: Sequence[DataCommit]) -> str:
        numbers = ", ".join(str(d.n) for d in commits[:10]) + (", …" if len(commits) > 10 else "")
        return f"{counted(sum(d.files for d in commits), 'file')} (commits {numbers or 'none'})"

    parts = [f"{said(choice.first)} of {counted(choice.found, 'waiting file')} to load"]
    if choice.repeated:
        parts.append(f"{said(choice.repeated)} to load again after them, because the later read wins")
    if choice.skipped:
        parts.append(f"{said(choice.skipped)} left out: created before the manual watermark")
    loading = {d.n for d in (*choice.commits, *choice.skipped)}
    if there := [d for d in choice.data if d.n not in loading and not d.superseded]:
        parts.append(f"{said(there)} already in the ledger, or beyond --limit")
    log_lines.tell(
        logger, logging.DEBUG, "decision", "; ".join(parts), table=state.table_name, step="load", files=choice.files
    )  # fmt: skip


def _kept(state: State, choice: Choice) -> bool:
    """Whether rows were loaded and none ever deleted, so that the target can't be empty."""
    rows = (r for r in choice.ledger.rows if r.epoch == state.load_epoch and r.identity not in choice.retake)
    table = state.table
    # Rows leave `where` with their updates, and the target with them.
    filtered = table is not None and table.mode == "upsert" and table.recipe.where is not None
    deleted = (
        filtered or state.extraction.deletes_at is not None or any(by_key(d.load_as) for d in choice.data)
    )
    return sum(r.rows for r in rows) > 0 and not deleted


def _same_epoch(
    warehouse: Warehouse, log: Log, state: State, ledger: Ledger, pipeline: str, adopt: bool
) -> Ledger:
    """The ledger in the log's epoch; completes a reset that crashed before it reached the warehouse."""
    if ledger.epoch is not None and ledger.epoch > state.n and log.read().n < ledger.epoch:
        raise DataError(
            f"the warehouse has recorded a reset of {state.table_name} (commit {ledger.epoch}) that the log does not have",
            hint=f"restore the log from a backup of the store; to continue without it, delete the row with log_id "
            f"'{state.log}' from floodmark_targets in the warehouse",
        )
    if ledger.epoch is not None and ledger.epoch > state.load_epoch:
        raise ConflictError(
            f"the load stage of {state.table_name} was reset during this run", hint="run the command again"
        )
    if state.load_epoch > (ledger.epoch or 0):
        target = _described(state).target
        holder = TargetFiller(pipeline, state.log, state.table_name, state.load_epoch)
        warehouse.set_epoch(holder, target, adopt=adopt)
        return ledger_for(warehouse, state, target)
    return ledger


def _findings(log: Log, state: State, choice: Choice, adopt: bool) -> tuple[Finding, ...]:
    """The finding if the ledger is ahead of the log; raises DataError if there is no key to merge rows by."""
    if not choice.lost:
        return ()
    table = _described(state)
    fresh = log.read()
    if fresh.n != state.n or fresh.digest != state.digest:
        raise ConflictError(f"another run took {state.table_name} while this one was loading it")
    numbers = ", ".join(str(row.n) for row in choice.lost[:10])
    detail = (
        f"the warehouse has loaded commits that the log does not have ({numbers}; the log ends at {state.n})"
    )
    if not table.key and table.mode == "append" and choice.commits and not adopt:
        raise DataError(
            f"{detail}, and without a key their rows can't be told from new ones",
            hint="restore the log from a backup of the store; or continue with --force, which may duplicate rows",
        )
    return (Finding("ledger_ahead", state.table_name, detail, {"commits": [row.n for row in choice.lost]}),)


def _check_there(state: State, choice: Choice) -> None:
    """Raises DataError if files that must load again (the warehouse was set back) have been cleaned."""
    gone = [d for d in read_now(choice.commits) if d.cleaned]
    if not gone:
        return
    name, numbers = state.table_name, ", ".join(str(d.n) for d in gone[:10])
    more = f" and {len(gone) - 10} more" if len(gone) > 10 else ""
    if any(d.superseded for d in choice.commits):
        hint = "a sync without --redshift-only skips superseded files"
    else:
        hint = f"to read just their rows again: floodmark s3clean clean -t {name} --include-pending"
    raise DataError(
        f"commits that were loaded before have to load again, but their files were cleaned: {numbers}{more}",
        hint=f"{hint}; to read the whole table again: floodmark watermark reset -t {name}",
    )


def _documents(log: Log, group: Sequence[DataCommit]) -> tuple[Numbered, ...]:
    """A group's commits as the log has them now."""
    found: list[Numbered] = []
    for (commit, digest), expected in zip(log.made([d.n for d in group]), group, strict=True):
        if digest != expected.digest or not isinstance(commit, WithFiles):
            raise DataError(f"commit {commit.n} of {commit.table_name} has changed since it was first read")
        found.append((commit, digest))
    return tuple(found)
