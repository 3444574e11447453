"""Extract and commit: reads a plan's passes as Spark tasks, and commits their files under the table's claim.

A commit gathers the slices of a few seconds, so that a crash costs little and the log stays short. Committed
files are loaded while reading continues.

A resident sync skips a snapshot whose rows have the same fingerprint as the last one's. It is computed from the very
rows that are written; the commit stores it with the number of the claim it was made under, so it identifies that one
snapshot, whichever run has made another since.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Literal

import pyarrow as pa

from floodmark.extract.keys import write_keys
from floodmark.extract.task import SliceJob, SliceResult
from floodmark.log.fold import State
from floodmark.model import events
from floodmark.model.canonical import Digest
from floodmark.model.commit import (
    WIDE_BYTES,
    Batch,
    Commit,
    Deletes,
    SnapshotDigest,
    WithFiles,
    files_of,
    wide,
)
from floodmark.model.errors import FloodmarkError, TransientError
from floodmark.model.notes import Note, sentence
from floodmark.model.run import EXTRACT, Counts, Wait
from floodmark.model.statements import STATEMENTS, log_statement
from floodmark.model.table import Table
from floodmark.model.window import Slice
from floodmark.plan.decide import Pass, TablePlan, check_snapshot
from floodmark.plan.decide import slices as whole
from floodmark.services import Services
from floodmark.source.errors import as_discovered
from floodmark.source.sql import selects
from floodmark.sync import deletes, loads
from floodmark.sync.shared_snapshot import read_shared
from floodmark.sync.work import TableRun

COMMIT_EVERY = 2.0
# How often a snapshot is begun with several connections, if tasks are lost; then with one.
SHARED = 2
# A table with this few rows to read costs less than a Spark job of its own; fewer if a row may have megabytes.
SMALL_ROWS = 20_000
SMALL_WIDE_ROWS = 1_000
_WIDE = {"mediumtext", "longtext", "mediumblob", "longblob", "json", "geometry"}


@as_discovered()
def read(run: TableRun, plan: TablePlan) -> None:
    """Extracts and commits what the plan says, under our claim; loads run in parallel."""
    if plan.rows:
        with events.waiting(run.account, run.name, Wait("spark")), run.work.turns.stepping_aside():
            run.services.spark()  # its start must not count in rates and times left
    run.account(events.StageBegan(run.name, "extract", plan.rows))
    run.loads.expected = plan.rows
    for number, one in enumerate(plan.passes):
        for results in _read(run, plan, one):
            _commit(run, plan, one, results, plan.passes[number + 1 :])
    run.account(events.StageEnded(run.name, "extract"))


def append(
    run: TableRun,
    commit: Commit,
    changed: Sequence[tuple[str, int]] = (),
    **counts: int,
) -> None:
    """Appends a commit to the log, and has the watermark published: soon, as a load or the run's end often follows.

    `changed`: values that policies have changed in it, by column. `counts`: the rows that it adds to the report.
    """
    run.account(events.CommitBegan(run.name))
    run.held.append(commit)
    files, seconds = files_of(commit), commit.seconds if isinstance(commit, WithFiles) else 0.0
    written = Counts(files_written=len(files), bytes_written=sum(file.bytes for file in files), **counts)
    rows, state = sum(file.rows for file in files), run.state
    run.account(
        events.Committed(
            run.name, state.n, commit.kind, state.position, rows, seconds, written, tuple(changed)
        )
    )
    ledger = run.loads.ledger  # read late: a parallel load may have ended meanwhile
    run.held.watermark.publish_soon(state, ledger.rows if ledger else None, succeeded=EXTRACT)


def remove(
    run: TableRun,
    table: Table,
    keys: pa.Table,
    rows: int,
    purpose: Literal["where"] | None = None,
) -> None:
    """Commits the keys of rows that leave the target: `rows` of them, as far as is known."""
    state = run.state
    assert state.claim is not None
    files = write_keys(
        run.services.store, table, keys,
        run=run.held.run, claim=state.claim.n, log=state.log, kind=purpose or "deletes",
    )  # fmt: skip
    commit = run.held.draft(
        Deletes,
        schema=table.fingerprint,
        files=files,
        load_as="mark" if table.recipe.deletes == "soft" else "delete",
        purpose=purpose,
    )
    append(run, commit, rows_deleted=rows)


def check_gives_way(run: TableRun, plan: TablePlan, rows: int) -> None:
    """Refuses to replace the target's rows with so few, unless the user insists.

    Called before the commit, because a commit moves the position. The load checks again, and sees what we
    can't.
    """
    before = next((d.rows for d in reversed(run.state.data.commits) if d.load_as == "replace"), 0)
    if plan.table.mode != "full" and not run.asked.backup_only and not run.asked.force:
        with suppress(TransientError):
            before = max(before, run.services.warehouse().rows(plan.table.target))
    check_snapshot(before, rows, run.asked.force)


# ---------------------------------------------------------------- reading


def jobs(services: Services, plan: TablePlan, one: Pass, state: State, repeated: bool) -> list[SliceJob]:
    """The Spark tasks that read the slices of a pass under a claim."""
    can, table = services.config.warehouse.can, plan.table
    hashed = table.mode == "full" and can.embedded
    key = snapshot_key(state) if hashed else None
    return [
        SliceJob(
            source=services.config.source,
            store=replace(services.config.store, copies_to=()),  # a task writes data, not copies
            table=table,
            slice=piece,
            run=services.run,
            claim=state.n,
            max_file_rows=services.config.options(table.name).slice_rows,
            log=state.log,
            window=plan.window.id if plan.window else None,
            # Without an index, it may take a full scan to reach the first row.
            read_timeout=60 if _along(table) else 600,
            limits=can,
            fingerprint=repeated and piece.kind == "snapshot",
            hash_key=key if piece.kind == "snapshot" else None,
            outside=one.outside and piece.outside,
            expected=services.sources.expected(table.name),
        )
        for piece in one.slices
    ]


def _along(table: Table) -> str | None:
    """The index of the order that the table is read in."""
    return table.source.key_index if table.follows else table.source.cursor_index


def small(table: Table, pieces: Sequence[Slice]) -> bool:
    """Whether the pieces are so quickly read, as far as is known, that other tables may wait for them."""
    wide = any(column.data_type in _WIDE for column in table.columns)
    along = any(piece.by == "cursor" and piece.kind != "keys" for piece in pieces)
    scans = along and table.source.cursor_index is None
    few = 0 < sum(piece.rows for piece in pieces) <= (SMALL_WIDE_ROWS if wide else SMALL_ROWS)
    return len(pieces) == 1 and few and not scans


def _read(run: TableRun, plan: TablePlan, one: Pass) -> Iterator[Sequence[SliceResult]]:
    """Reads the slices of a pass; yields the results that are committed together."""
    if one.commits == "once" and len(one.slices) > 1 and plan.table.mode == "full":
        yield _snapshot(run, plan, one)
    elif one.commits == "once":
        yield list(_slices(run, plan, one)) if one.slices else []
    elif one.commits == "each":
        for piece in one.slices:
            yield list(_slices(run, plan, replace(one, slices=(piece,))))
    else:
        waiting: list[SliceResult] = []
        for result in _slices(run, plan, one):
            waiting.append(result)
            if time.monotonic() - run.held.last_commit >= COMMIT_EVERY or _wide(waiting):
                yield waiting
                waiting = []
        if waiting:
            yield waiting


def _slices(run: TableRun, plan: TablePlan, one: Pass) -> Iterator[SliceResult]:
    """Runs each slice as a Spark task; yields results as they finish, if they are of the source that was planned for."""
    made = jobs(run.services, plan, one, run.state, run.asked.repeated)
    for piece in one.slices:
        run.account(events.SliceBegan(run.name, piece))
    shares = small(plan.table, one.slices)
    with closing(run.services.submit(made, run.name, _underway(run), small=shares)) as submitted:
        results: Iterator[SliceResult] = submitted
        if shares:
            with run.work.turns.stepping_aside():
                results = iter(list(submitted))
        for result in results:
            _note_slice(run, plan, result)
            yield result


def _snapshot(run: TableRun, plan: TablePlan, one: Pass) -> list[SliceResult]:
    """Reads a snapshot with several connections at one moment; with one if that can't be done."""
    assert plan.window is not None
    made = jobs(run.services, plan, one, run.state, False)
    for _ in range(SHARED):
        for piece in one.slices:
            run.account(events.SliceBegan(run.name, piece))
        results, obstacle = read_shared(run.services, made, _underway(run))
        if results is not None or obstacle != "lost":
            break
    if obstacle is not None:
        run.account.note(sentence(Note("one_connection", obstacle=obstacle)))
    if results is None:
        return list(_slices(run, plan, replace(one, slices=whole(plan.window))))
    for result in results:
        _note_slice(run, plan, result)
    return list(results)


def _underway(run: TableRun) -> Callable[[int], None]:
    """Reports rows of unfinished tasks. Spark may keep it for a moment after the run, so it must not keep the run."""
    account, name = run.account, run.name
    return lambda rows: account(events.Underway(name, "extract", rows))


def _note_slice(run: TableRun, plan: TablePlan, result: SliceResult) -> None:
    """A slice has been read, of the source that was planned for."""
    run.services.sources.check(run.name, result.source)
    if STATEMENTS.isEnabledFor(logging.DEBUG):
        for question in selects(plan.table, result.slice):
            log_statement("mysql", question, result.seconds)
    rows, files, size = result.rows, len(result.files), result.bytes
    run.account(events.SliceRead(run.name, result.slice, rows, files, size, result.seconds))
    run.account(events.Advanced(run.name, "extract", rows, files, size))


def _wide(results: Sequence[SliceResult]) -> bool:
    """Whether these are wide rows, and enough of them for a commit."""
    size = sum(r.bytes for r in results)
    return size >= WIDE_BYTES and wide(sum(r.rows for r in results), size)


# ---------------------------------------------------------------- committing


def _commit(
    run: TableRun, plan: TablePlan, one: Pass, results: Sequence[SliceResult], later: Sequence[Pass]
) -> None:
    """Commits the files of these slices of a pass, and offers them to the load; `later`: the passes after it."""
    rows, table, claim, state = sum(r.rows for r in results), plan.table, plan.claim, run.state
    if one.kind == "window" and one.load_as == "replace":
        check_gives_way(run, plan, rows + sum(after.rows for after in later))
    # Before the rows, whose commit moves the position: a crash in between repeats the slices, keys included.
    left = _commit_outside(run, table, results)
    files = tuple(f for r in results for f in r.files)
    left += _commit_absent(run, table, one, results)
    if left and not files:
        loads.offer(run)
    window_id = claim.window.id if claim.window is not None and one.kind == "window" else None
    reread_id = claim.reread.id if claim.reread is not None and one.kind == "columns" else None
    if not (files or window_id or reread_id or one.overlap is not None or one.followed_to):
        return
    snapshot = table.mode == "full" and one.kind == "window"
    commit = run.held.draft(
        Batch,
        schema=table.fingerprint,
        files=files,
        load_as=one.load_as,
        seconds=round(time.monotonic() - run.held.last_commit, 3),
        window_id=window_id,
        reread_id=reread_id,
        slices=tuple(sorted(r.slice.number for r in results)) if window_id or reread_id else (),
        overlap=mark(state, results[0].fingerprint) if snapshot else one.overlap,
        snapshot=_held_by(state, results) if snapshot else None,
        followed_to=one.followed_to,
    )
    changed = [values for result in results for values in result.changed]
    counts = {"rows_reread" if commit.beside else "rows_extracted": rows}
    append(run, commit, changed, **counts)
    # Rows that replace all others are loaded together with those of later passes.
    if (files or plan.gives_way) and not (later and one.load_as == "replace"):
        loads.offer(run)


def _commit_outside(run: TableRun, table: Table, results: Sequence[SliceResult]) -> int:
    """Commits deletes for the rows of these slices that are outside `where` and in the target; returns their number.

    If the target can't be asked, or does not hold yet what was committed earlier, all keys are named: a key
    that it lacks does no harm.
    """
    keys = [r.outside for r in results if r.outside is not None and r.outside.num_rows]
    if not keys:
        return 0
    leaving, found = pa.concat_tables(keys), 0
    with suppress(TransientError):
        if loads.caught_up(run):
            leaving = deletes.in_target(run.services, table, leaving)
            found = leaving.num_rows
    if leaving.num_rows:
        remove(run, table, leaving, found, "where")
    return leaving.num_rows


def _commit_absent(run: TableRun, table: Table, one: Pass, results: Sequence[SliceResult]) -> int:
    """Commits deletes for those keys of these slices that the source lacks; returns their number."""
    keys = [r.absent for r in results if r.absent is not None and r.absent.num_rows]
    if one.deletion is None or not keys:
        return 0
    absent = pa.concat_tables(keys)
    if one.deletion.rows is not None and not run.asked.force:
        deletes.check_plausible(run.services, table, absent.num_rows, one.deletion.rows)
    remove(run, table, absent, absent.num_rows)
    return absent.num_rows


# ---------------------------------------------------------------- snapshots


def snapshot_key(state: State) -> bytes:
    """The key of the hashes of a snapshot's rows: nobody who writes rows can guess it."""
    return hashlib.sha256(f"{state.log} {state.described}".encode()).digest()[:16]


def _held_by(state: State, results: Sequence[SliceResult]) -> SnapshotDigest | None:
    """The digest of all rows of a snapshot; None if some were not hashed."""
    found = [result.digest for result in results if result.digest is not None]
    total = sum(found, Digest())
    return SnapshotDigest(snapshot_key(state).hex(), f"{total.sum:x}") if len(found) == len(results) else None


def mark(state: State, found: str | None) -> str | None:
    """The fingerprint as a snapshot's commit stores it."""
    return None if found is None else f"snapshot {state.described} {found}"


def known(state: State) -> str | None:
    """The fingerprint of the last snapshot, if that was the last thing committed."""
    last = state.data.commits[-1] if state.data.commits else None
    if last is None or last.load_as != "replace" or last.superseded:
        return None
    begin, kept = f"snapshot {last.described} ", state.progress.overlap or ""
    return kept.removeprefix(begin) if kept.startswith(begin) else None


@as_discovered()
def only_if_changed(services: Services, plan: TablePlan, state: State) -> TablePlan:
    """The plan without its snapshot, if that would repeat the last one and the target still has it.

    Finding out costs one extra read of all rows, by a task that writes nothing.
    """
    before = known(state)
    if plan.table.mode != "full" or before is None or not plan.slices or state.window is not None:
        return plan  # an open window has to be closed
    try:
        there = services.warehouse().rows(plan.table.target)
    except FloodmarkError:
        there = state.data.commits[-1].rows  # the load will say what is wrong
    if plan.table != state.table or there != state.data.commits[-1].rows:
        return plan
    looks = [
        replace(job, only_look=True, hash_key=None)
        for job in jobs(services, plan, plan.passes[0], state, True)
    ]
    [result] = services.submit(looks, plan.table.name)
    services.sources.check(plan.table.name, result.source)
    return (
        plan
        if result.fingerprint != before
        else replace(plan, claim=replace(plan.claim, window=None), passes=())
    )
