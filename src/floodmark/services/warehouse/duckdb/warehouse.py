"""The embedded warehouse: a DuckDB file, open only while a load runs or the ledger is read, or just after.

One load is one transaction on one connection. DuckDB accepts COMMIT for an aborted transaction without
complaint, so nothing is ever committed after an exception; a COMMIT that fails is settled by reading the
ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from floodmark.model import events
from floodmark.model.commit import WIDE_BYTES, DataFile, by_key
from floodmark.model.errors import ConflictError, FloodmarkError, TransientError, UnknownOutcome, about
from floodmark.model.ledger import Ledger, LedgerRow, LoadSum, Part, TargetFiller
from floodmark.model.run import Step, Wait
from floodmark.model.table import Table
from floodmark.model.types import fields
from floodmark.services.temp import scratched
from floodmark.services.together import Together
from floodmark.services.warehouse.column_mapping import (
    arrived,
    constants,
    fills,
    may_be_null,
    placed,
    target_renames,
)
from floodmark.services.warehouse.columns import Change, check_nullable, check_strangers, renamed
from floodmark.services.warehouse.decide import Decision, check_new_epoch, count_after, decide
from floodmark.services.warehouse.duckdb import freshness
from floodmark.services.warehouse.duckdb import merge as put
from floodmark.services.warehouse.duckdb.ddl import changes, refused_rows, renamings
from floodmark.services.warehouse.duckdb.errors import AlreadyThere, NotThere, translated
from floodmark.services.warehouse.duckdb.file import Connection, DatabaseFile
from floodmark.services.warehouse.duckdb.glance import ledger_sums
from floodmark.services.warehouse.duckdb.handing_out import Portion, batch_rows, first_portion, streamed
from floodmark.services.warehouse.duckdb.ledger import LedgerTables, Question
from floodmark.services.warehouse.files import fetch, file_fields
from floodmark.services.warehouse.freshness import Freshness
from floodmark.services.warehouse.protocol import LoadOutcome, LoadRequest, Numbered, data_files
from floodmark.services.warehouse.row_text import DUCKDB, TargetSql


class DuckDB:
    """The Warehouse in a DuckDB file. Threads may share one object; loads take turns."""

    # A load is held in memory twice, uncompressed, and makes one row group.
    wide_bytes: int | None = WIDE_BYTES

    def __init__(
        self,
        path: Path,
        schema: str = "main",
        *,
        memory: int = 2_000_000_000,
        lock_seconds: float = 5.0,
        linger: float = 0.0,
        waits: Callable[[Wait | None], None] = lambda on: None,
    ) -> None:
        self.path = path
        self.schema = schema
        self._file = DatabaseFile(path, memory=memory, lock_seconds=lock_seconds, linger=linger, waits=waits)
        self._ledger = Together(self._ledgers)

    def ledger(self, log: str, target: str, part: Part | None = None) -> Ledger:
        """What was loaded from a log, and who fills the target; empty while there is no warehouse."""
        return self._ledger.ask((log, target, part))

    def _ledgers(self, questions: Sequence[Question]) -> list[Ledger]:
        """The same for the tables of several threads; without the counts, which a load asks for itself."""
        with self._file.reading() as con:
            if con is not None:
                tables = LedgerTables(con, self.schema)
                con.execute("BEGIN TRANSACTION")  # all of one moment
                try:
                    return tables.read_all(questions)
                except NotThere:
                    con.execute("ROLLBACK")
                    if tables.there():  # some of them, but not all
                        raise
        return [Ledger()] * len(questions)

    def ledger_sums(self, free: Callable[[], bool]) -> list[LoadSum]:
        """The whole ledger, summed up by log and load epoch; opens the file for 100 ms at most, if it is free."""
        return ledger_sums(self.path, self.schema, free)

    def rows(self, target: str) -> int:
        """How many rows the target has; 0 when it does not exist."""
        with self._file.reading() as con:
            return (put.Target(con, self.schema, target).count() or 0) if con else 0

    def recount(self, pipeline: str, log: str, target: str) -> None:
        """Accept the rows that the target has now: the next load expects that many."""
        with self._file.reading() as con:
            tables = LedgerTables(con, self.schema) if con else None
            counted = tables.counted(log, target) if tables and tables.there() else None
        if counted is None or counted == self.rows(target):
            return  # nothing to correct
        with self._file.writing() as con:
            con.execute("BEGIN")
            tables = LedgerTables(con, self.schema).create()
            rows, epoch = put.Target(con, self.schema, target).count(), tables.about(log, target).epoch
            if rows is not None and epoch is not None:
                tables.keep_count(log, target, epoch, rows)
            con.execute("COMMIT")

    def changes(
        self,
        table: Table,
        loaded: Table | None = None,
        shaped: Table | None = None,
        *,
        first_load: bool = False,
    ) -> tuple[Change, ...]:
        """The changes that a load of the table as it is now would first make; `first_load`: nothing loaded yet."""
        with about(table.name), self._file.reading() as con:
            target = put.Target(con, self.schema, table.target) if con else None
            found = target.columns() if target and target.is_table() else None
            wanted = put.wanted(fields(table), fills(table))
            if target is not None and found is not None:
                check_strangers(table.target, found, wanted, arrived(shaped, table), target.has)
            known = put.known(loaded, table)
            made = changes(self.schema, table.target, wanted, found, target_renames(table), known=known)
            if target is not None and found is not None:
                target.check_alterable(made)
                if first_load:
                    check_nullable(table.target, found, may_be_null(table), target.relaxing)
            return made

    def ask(self, target: str, words: Callable[[TargetSql], Sequence[str]]) -> list[tuple[Any, ...]] | None:
        """The rows that queries about the target, in DuckDB's SQL, return; None: there is no target."""
        with self._reading(target) as read:
            if read is None:
                return None
            con, found, types = read
            questions = words(TargetSql(DUCKDB, found.sql, types))
            return [row for question in questions for row in con.execute(question).fetchall()]

    def types(self, target: str) -> Mapping[str, str] | None:
        """The types of the target's columns, by lower-case name; None: there is no target."""
        with self._reading(target) as read:
            return None if read is None else read[2]

    @contextmanager
    def _reading(self, target: str) -> Iterator[tuple[Connection, put.Target, dict[str, str]] | None]:
        """The open file, the target in it and its columns' types by lower-case name; None: there is no target."""
        with self._file.reading() as con:
            found = put.Target(con, self.schema, target) if con else None
            columns = found.columns() if found else None
            if con is None or found is None or columns is None:
                yield None
            else:
                yield con, found, {column.name.lower(): column.type for column in columns}

    def hand_out(
        self,
        target: str,
        words: Callable[[TargetSql], str],
        each: Callable[[pa.RecordBatch], None],
        *,
        width: int = 0,
        at_once: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Calls `each` with the rows that a query about the target returns, in batches, as they come.

        Between portions of about a second each, anyone who waits for the file gets it; rows that move meanwhile
        may be missed or come twice. With `at_once` nobody does.
        """
        portion = None if at_once else first_portion(width)
        while (portion := self._hand_out(target, words, each, width, portion, stop)) and not stop():
            pass

    def _hand_out(
        self,
        target: str,
        words: Callable[[TargetSql], str],
        each: Callable[[pa.RecordBatch], None],
        width: int,
        portion: Portion | None,
        stop: Callable[[], bool],
    ) -> Portion | None:
        """Hands out the rows of a portion, or all; returns the next portion."""
        with self._reading(target) as read:
            if read is None:
                return None
            con, found, types = read
            if portion is not None and ("rowid" in types or not found.is_table()):
                portion = None
            rows, last = found.sql, True
            if portion is not None:
                [highest] = con.execute(f"SELECT max(rowid) FROM {found.sql}").fetchone() or (None,)
                last = highest is None or portion.first + portion.rows > highest
                rows = portion.of(found.sql, last)
            began, widest = time.monotonic(), 0
            size = batch_rows(width, portion.seen if portion else 0)
            sql = words(TargetSql(DUCKDB, rows, types))
            con.execute("SET arrow_large_buffer_size = true")  # else no column of a batch may exceed 2 GiB
            with events.statement("duckdb", sql):
                for batch in streamed(con.sql(sql).to_arrow_reader(size)):
                    widest = max(widest, batch.nbytes // max(1, batch.num_rows))
                    each(batch)
                    if stop():
                        return None
        return None if portion is None or last else portion.next(time.monotonic() - began, widest)

    def set_epoch(
        self, pipeline: str, log: str, table: str, target: str, epoch: int, *, adopt: bool = False
    ) -> None:
        """Begin a new load epoch, which stops loads of earlier ones; ConflictError if a later one exists."""
        with self._file.writing() as con:
            con.execute("BEGIN")
            tables = LedgerTables(con, self.schema).create()
            holder = TargetFiller(pipeline, log, table, epoch)
            check_new_epoch(tables.about(log, target), holder, target, adopt)
            tables.set_holder(target, holder)
            con.execute("COMMIT")

    def load(self, request: LoadRequest) -> LoadOutcome:
        """Load the commits that the ledger does not have, in one transaction."""
        began = time.monotonic()
        with about(request.table.name):
            # Decided twice: now, so that no file is fetched needlessly, and again inside the transaction. Opened
            # for writing already: reopening would take longer than fetching the files of a small load.
            with self._file.writing() if self.path.exists() else self._file.reading() as con:
                decision = decide(request, *self._looked(con, request))
            outcome = self._load(request, decision)
        return replace(outcome, seconds=time.monotonic() - began)

    def note_freshness(self, rows: Sequence[Freshness]) -> None:
        """Advance these targets in `floodmark_freshness`, all at once."""
        with self._file.writing() as con:
            freshness.write(con, self.schema, rows)

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _load(self, request: LoadRequest, decision: Decision) -> LoadOutcome:
        if not decision.new:
            return LoadOutcome((), decision.already, findings=decision.findings)
        files = data_files(decision.staged)
        loaded = request.ledger_rows(decision.new)
        with scratched("floodmark-load-") as folder:
            paths = fetch(request.store, files, folder, request.table.name, self._fetching(request, files))
            places = {field.name: field.target for field in placed(request.table, request.now)}
            read = file_fields(request.table, decision.way)
            staged = put.Staged(
                request.table,
                tuple(replace(field, target=places[field.name]) for field in read),
                decision.staged,
                tuple(paths),
            )
            try:
                self._transaction(request, decision, staged, loaded)
            except _Unanswered as unanswered:
                self._ask_whether_committed(request, decision.new, unanswered.__cause__)
        return LoadOutcome(loaded, decision.already, request.retake, findings=decision.findings)

    def _fetching(self, request: LoadRequest, files: Sequence[DataFile]) -> Callable[[int], None]:
        """Reports how many files are ready: copied to this machine, or checked in place."""
        here = bool(files) and request.store.local(files[0].path) is not None

        def done(number: int) -> None:
            request.at_work(Step("check" if here else "copy", number, len(files)), 0)

        if files:
            done(0)
        return done

    def _transaction(
        self, request: LoadRequest, decision: Decision, staged: put.Staged, loaded: tuple[LedgerRow, ...]
    ) -> None:
        """Write rows and ledger rows, or neither; _Unanswered when COMMIT fails."""
        count, load = sum(commit.rows for commit, _ in staged.commits), put.volume(staged)
        with (
            self._file.writing() as con,
            self._file.threads_for(con, count),
            self._file.room_for(con, load),
        ):
            con.execute("BEGIN")
            self._file.set_apart(con, f"{self.schema}.{request.target}", load)
            tables = LedgerTables(con, self.schema).create()
            rows = put.Target(con, self.schema, request.target).count()
            ledger = tables.read(request.log, request.target, request.part)
            if decide(request, ledger, rows) != decision:
                raise ConflictError(
                    "another load has changed the warehouse in the meantime", hint="run again"
                )
            self._put(con, request, decision, staged, rows)
            tables.record(request, loaded)
            after = put.Target(con, self.schema, request.target).rows()
            kept = count_after(request, ledger, decision, rows, after)
            tables.keep_count(request.log, request.target, request.epoch, kept)
            if decision.set_holder:
                tables.set_holder(request.target, request.holder)
            request.at_work(Step("commit"), count)
            try:
                self._commit(con)
            except Exception as error:
                raise _Unanswered from error

    def _put(
        self, con: Connection, request: LoadRequest, decision: Decision, staged: put.Staged, rows: int | None
    ) -> None:
        """Make the target fit, then put the rows into it."""
        count = put.check_files(con, staged)
        target = put.Target(con, self.schema, request.target)
        found, renames = target.columns(), target_renames(request.now)
        if by_key(decision.way) and found is not None:
            fit = renamings(self.schema, request.target, found, renames)
        else:
            wanted = put.wanted(placed(request.table, request.now), fills(request.now))
            if request.keeps_rows(decision.way):
                new = arrived(request.shaped, request.now)
                check_strangers(
                    request.target, found or (), wanted, new, target.has, described=request.table.name
                )
            zstd = put.packed(con, staged) if found is None else ()
            known = put.known(None if decision.way == "replace" else request.loaded, request.now)
            fit = changes(self.schema, request.target, wanted, found, renames, zstd, known)
        target.check_alterable(fit)
        side = target.weights
        fit += renamings(self.schema, side.name, side.columns() or (), renames)
        for statement in (s for change in fit for s in change.statements):
            con.execute(statement)
        there = {name.lower() for _, name in renamed(found or (), renames)}
        staged = replace(
            staged, constants=tuple(c for c in constants(request.table, request.now) if c.target in there)
        )
        target = replace(target, at_work=request.at_work)
        try:
            match decision.way:
                case "merge":
                    put.merge(target, staged, count, filled=bool(rows))
                case "insert":
                    put.insert(target, staged, count)
                case "replace":
                    put.replace(target, staged, count)
                case "delete":
                    put.delete(target, staged)
                case "mark":
                    put.mark(target, staged)
        except AlreadyThere as error:
            with con.cursor() as beside:  # this transaction is aborted and takes no more queries
                same, said = replace(target, con=beside), str(error).partition("\n")[0]
                columns = same.columns() or ()
                raise refused_rows(self.schema, request.target, columns, same.held(), said) from error

    def _commit(self, con: Connection) -> None:
        con.execute("COMMIT")

    def _ask_whether_committed(
        self, request: LoadRequest, new: tuple[Numbered, ...], cause: BaseException | None
    ) -> None:
        """COMMIT failed: the ledger says whether it happened. Returns if it did, else raises."""
        try:
            loaded = self.ledger(request.log, request.target, request.part).loaded(request.epoch)
        except FloodmarkError as error:
            raise UnknownOutcome(
                f"the answer to COMMIT was lost, and the ledger can't be read: {error.message}",
                hint="run again: the ledger shows whether it was committed",
            ) from cause
        if all((commit.n, digest) in loaded for commit, digest in new):
            return
        if isinstance(cause, duckdb.Error):
            raise translated(cause, self.path) from cause
        raise TransientError(
            f"the load was not committed: {cause}", hint="run again: nothing is lost"
        ) from cause

    def _looked(self, con: Connection | None, request: LoadRequest) -> tuple[Ledger, int | None]:
        """What a decision needs before the transaction: the ledger, and the target's row count."""
        if con is None:
            return Ledger(), None
        tables = LedgerTables(con, self.schema)
        there = tables.there()
        ledger = tables.read(request.log, request.target, request.part) if there else Ledger()
        return ledger, put.Target(con, self.schema, request.target).count()


class _Unanswered(Exception):
    """COMMIT failed; whether it happened is not known yet."""
