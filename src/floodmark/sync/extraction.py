"""Extract and commit: runs a plan's slices as Spark tasks, and commits their files under the table's claim.

A commit gathers the slices of a few seconds, so that a crash costs little and the log stays short. Committed
files are loaded while reading continues.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Literal

import pyarrow as pa

from floodmark.extract.jobs import jobs, small, snapshot_key
from floodmark.extract.key_file import write_keys
from floodmark.extract.task import SliceResult
from floodmark.log.fold import State
from floodmark.log.held import HeldTable
from floodmark.model import events
from floodmark.model.account import Account
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
from floodmark.model.errors import TransientError
from floodmark.model.note_words import sentence
from floodmark.model.notes import Note
from floodmark.model.run import EXTRACT, Counts, Wait
from floodmark.model.statements import STATEMENTS, log_statement
from floodmark.model.table import Table
from floodmark.plan.decide import Pass, Plan, check_snapshot
from floodmark.plan.window import slices as whole
from floodmark.source.errors import as_discovered
from floodmark.source.sql import selects
from floodmark.sync import deletes
from floodmark.sync.loader import Loader
from floodmark.sync.resources import Work
from floodmark.sync.shared_snapshot import read_shared
from floodmark.sync.snapshots import mark

COMMIT_EVERY = 2.0
# How often a snapshot is begun with several connections, if tasks are lost; then with one.
SHARED = 2


class Extraction:
    """Reads one table as its plans say, and commits the result."""

    def __init__(self, work: Work, held: HeldTable, loader: Loader, account: Account) -> None:
        self._services = work.services
        self._asked = work.options
        self._turns = work.turns
        self._held = held
        self._loader = loader
        self._account = account
        self._name = name = held.log.table_name
        # Not a method: Spark's reports may keep it for a moment after the run, and with it the run's connections.
        self._underway = lambda rows: account(events.Underway(name, "extract", rows))
        self._slice_rows = work.services.config.options(self._name).slice_rows
        self.changed: Counter[str] = Counter()  # values changed by policies, per column
        self.left = 0  # rows that no longer match `where`

    @as_discovered()
    def read(self, plan: Plan) -> None:
        """Extracts and commits what the plan says, under our claim; loads run in parallel."""
        if plan.rows:
            with events.waiting(self._account, self._name, Wait("spark")), self._turns.stepping_aside():
                self._services.spark()  # its start must not count in rates and times left
        self._account(events.StageBegan(self._name, "extract", plan.rows))
        self._loader.expected = plan.rows
        for number, one in enumerate(plan.passes):
            for results in self._read(plan, one):
                self._commit(plan, one, results, plan.passes[number + 1 :])
        self._account(events.StageEnded(self._name, "extract"))

    def append(self, commit: Commit, **counts: int) -> None:
        """Appends a commit to the log, and has the watermark published: soon, as a load or the run's end often follows.

        `counts`: the rows that it adds to the report.
        """
        self._account(events.CommitBegan(self._name))
        self._held.append(commit)
        self._account(committed(commit, self._held.state, **counts))
        ledger = self._loader.ledger  # read late: a parallel load may have ended meanwhile
        self._held.watermark.publish_soon(
            self._held.state, ledger.rows if ledger else None, succeeded=EXTRACT
        )

    def remove(
        self,
        table: Table,
        keys: pa.Table,
        rows: int,
        purpose: Literal["where"] | None = None,
        *,
        began: float | None = None,
    ) -> None:
        """Commits the keys of rows that leave the target: `rows` of them, as far as is known."""
        state, run = self._held.state, self._held.run
        assert state.claim is not None
        files = write_keys(
            self._services.store, table, keys, run=run, claim=state.claim.n, log=state.log, kind=purpose or "deletes"
        )  # fmt: skip
        commit = self._held.draft(
            Deletes,
            schema=table.fingerprint,
            files=files,
            load_as="mark" if table.recipe.deletes == "soft" else "delete",
            purpose=purpose,
            seconds=0.0 if began is None else round(time.monotonic() - began, 3),
        )
        self.append(commit, rows_deleted=rows)

    def check_gives_way(self, plan: Plan, rows: int) -> None:
        """Refuses to replace the target's rows with so few, unless the user insists.

        Called before the commit, because a commit moves the position. The load checks again, and sees what we
        can't.
        """
        before = next((d.rows for d in reversed(self._held.state.data.commits) if d.load_as == "replace"), 0)
        if plan.table.mode != "full" and not self._asked.backup_only and not self._asked.force:
            with suppress(TransientError):
                before = max(before, self._services.warehouse().rows(plan.table.target))
        check_snapshot(before, rows, self._asked.force)

    def _read(self, plan: Plan, one: Pass) -> Iterator[Sequence[SliceResult]]:
        """Reads the slices of a pass; yields the results that are committed together."""
        if one.commits == "once" and len(plan.slices) > 1 and plan.table.mode == "full":
            yield self._snapshot(plan, one)
        elif one.commits == "once":
            yield list(self._slices(plan, one)) if one.slices else []
        elif one.commits == "each":
            for piece in one.slices:
                yield list(self._slices(plan, replace(one, slices=(piece,))))
        else:
            waiting: list[SliceResult] = []
            for result in self._slices(plan, one):
                waiting.append(result)
                if time.monotonic() - self._held.last_commit >= COMMIT_EVERY or _wide(waiting):
                    yield waiting
                    waiting = []
            if waiting:
                yield waiting

    def _snapshot(self, plan: Plan, one: Pass) -> list[SliceResult]:
        """Reads a snapshot with several connections at one moment; with one if that can't be done."""
        assert plan.window is not None
        made = jobs(self._services, plan, one, self._held.state, self._slice_rows, False)
        for _ in range(SHARED):
            for piece in one.slices:
                self._account(events.SliceBegan(self._name, piece))
            read = read_shared(self._services, made, self._underway)
            if read.results is not None or read.obstacle != "lost":
                break
        if read.obstacle is not None:
            self._account.note(sentence(Note("one_connection", obstacle=read.obstacle)))
        if read.results is None:
            return list(self._slices(plan, replace(one, slices=whole(plan.window))))
        for result in read.results:
            self._took(plan, result)
        return list(read.results)

    def _slices(self, plan: Plan, one: Pass) -> Iterator[SliceResult]:
        """Runs each slice as a Spark task; yields results as they finish, if they are of the source that was planned for."""
        made = jobs(self._services, plan, one, self._held.state, self._slice_rows, self._asked.repeated)
        for piece in one.slices:
            self._account(events.SliceBegan(self._name, piece))
        shares = small(plan.table, one.slices)
        with closing(self._services.submit(made, self._name, self._underway, small=shares)) as submitted:
            results: Iterator[SliceResult] = submitted
            if shares:
                with self._turns.stepping_aside():
                    results = iter(list(submitted))
            for result in results:
                self._took(plan, result)
                yield result

    def _took(self, plan: Plan, result: SliceResult) -> None:
        """A slice has been read, of the source that was planned for."""
        self._services.sources.check(self._name, result.source)
        if STATEMENTS.isEnabledFor(logging.DEBUG):
            for question in selects(plan.table, result.slice):
                log_statement("mysql", question, result.seconds)
        rows, files, size = result.rows, len(result.files), result.bytes
        self._account(events.SliceRead(self._name, result.slice, rows, files, size, result.seconds))
        self._account(events.Advanced(self._name, "extract", rows, files, size))

    def _commit(self, plan: Plan, one: Pass, results: Sequence[SliceResult], later: Sequence[Pass]) -> None:
        """Commits the files of these slices of a pass, and offers them to the loader; `later`: the passes after it."""
        rows = sum(r.rows for r in results)
        if one.load_as == "replace" and one.kind == "window":
            self.check_gives_way(plan, rows + sum(after.rows for after in later))
        # Before the rows, whose commit moves the position: a crash in between repeats the slices, keys included.
        left = self._commit_outside(plan, results)
        files, claim, state = tuple(f for r in results for f in r.files), plan.claim, self._held.state
        if left and not files and not self._asked.backup_only:
            self._loader.offer(state, plan.table)
        window_id = claim.window.id if claim.window is not None and one.kind == "window" else None
        reread_id = claim.reread.id if claim.reread is not None and one.kind == "columns" else None
        if not (files or window_id or reread_id or one.overlap is not None):
            return
        full = plan.table.mode == "full" and one.kind == "window"
        commit = self._held.draft(
            Batch,
            schema=plan.table.fingerprint,
            files=files,
            load_as=one.load_as,
            seconds=round(time.monotonic() - self._held.last_commit, 3),
            window_id=window_id,
            reread_id=reread_id,
            slices=tuple(sorted(r.slice.number for r in results)) if window_id or reread_id else (),
            overlap=mark(state, results[0].fingerprint) if full else one.overlap,
            snapshot=_held_by(state, results) if full else None,
        )
        self.append(commit, **{"rows_reread" if commit.beside else "rows_extracted": rows})
        for result in results:
            self.changed.update(dict(result.changed))
        # Rows that replace all others are loaded together with those of later passes.
        if (
            (files or plan.gives_way)
            and not (later and one.load_as == "replace")
            and not self._asked.backup_only
        ):
            self._loader.offer(self._held.state, plan.table)

    def _commit_outside(self, plan: Plan, results: Sequence[SliceResult]) -> int:
        """Commits deletes for the rows of these slices that are outside `where` and in the target; returns their number.

        If the target can't be asked, or does not hold yet what was committed earlier, all keys are named: a key
        that it lacks does no harm.
        """
        keys = [r.outside for r in results if r.outside is not None and r.outside.num_rows]
        if not keys:
            return 0
        leaving, found = pa.concat_tables(keys), 0
        with suppress(TransientError):
            if self._loader.caught_up(self._held.state, plan.table):
                leaving = deletes.in_target(self._services, plan.table, leaving)
                found = leaving.num_rows
        if not leaving.num_rows:
            return 0
        self.remove(plan.table, leaving, found, "where")
        self.left += found
        return leaving.num_rows


def committed(commit: Commit, state: State, **counts: int) -> events.Committed:
    """The event of a commit that has led to this state; `counts`: the rows that it adds to the report."""
    files, seconds = files_of(commit), commit.seconds if isinstance(commit, WithFiles) else 0.0
    size = sum(file.bytes for file in files)
    return events.Committed(
        state.table_name, state.n, commit.kind, state.position, sum(file.rows for file in files), seconds,
        Counts(files_written=len(files), bytes_written=size, **counts),
    )  # fmt: skip


def _wide(results: Sequence[SliceResult]) -> bool:
    """Whether these are wide rows, and enough of them for a commit."""
    size = sum(r.bytes for r in results)
    return size >= WIDE_BYTES and wide(sum(r.rows for r in results), size)


def _held_by(state: State, results: Sequence[SliceResult]) -> SnapshotDigest | None:
    """The digest of all rows of a snapshot; None if some were not hashed."""
    found = [result.digest for result in results if result.digest is not None]
    total = sum(found, Digest())
    return SnapshotDigest(snapshot_key(state).hex(), f"{total.sum:x}") if len(found) == len(results) else None
