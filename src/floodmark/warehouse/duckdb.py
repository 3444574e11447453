"""The embedded warehouse: a DuckDB file, open only while a load runs or the ledger is read, and a moment longer.

One load is one transaction of one connection. DuckDB commits a transaction that was aborted without a word, so
nothing is ever committed after an exception; a COMMIT that fails is settled by reading the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from floodmark.errors import ConflictError, FloodmarkError, TransientError, UnknownOutcome
from floodmark.model import Table, by_key
from floodmark.scratch import scratched
from floodmark.types import fields
from floodmark.warehouse import (
    Holder,
    Ledger,
    LedgerRow,
    LoadOutcome,
    LoadRequest,
    Numbered,
    Part,
    data_files,
)
from floodmark.warehouse import duckdb_rows as put
from floodmark.warehouse.canonical import DUCKDB, Place
from floodmark.warehouse.columns import Change, check_nullable, renamed
from floodmark.warehouse.decide import Decision, check_holder, count_after, decide
from floodmark.warehouse.duckdb_ddl import changes, refused_rows, renamings
from floodmark.warehouse.duckdb_errors import AlreadyThere, translated
from floodmark.warehouse.duckdb_file import Connection, DatabaseFile
from floodmark.warehouse.duckdb_ledger import LedgerTables
from floodmark.warehouse.files import fetch, file_fields
from floodmark.warehouse.places import constants, fills, may_be_null, placed, target_renames


class DuckDB:
    """The Warehouse in a DuckDB file. One object may be used by several threads; loads take turns."""

    def __init__(
        self,
        path: Path,
        schema: str = "main",
        *,
        memory: int = 2_000_000_000,
        lock_seconds: float = 5.0,
        linger: float = 0.0,
    ) -> None:
        self.path = path
        self.schema = schema
        self._file = DatabaseFile(path, memory=memory, lock_seconds=lock_seconds, linger=linger)

    def ledger(self, log: str, target: str, part: Part | None = None) -> Ledger:
        """What was loaded of a log, and who fills the target; empty when there is no warehouse yet."""
        with self._file.reading() as con:
            tables = LedgerTables(con, self.schema) if con else None
            return tables.read(log, target, part) if tables and tables.there() else Ledger()

    def rows(self, target: str) -> int:
        """How many rows the target has; 0 when it is not there."""
        with self._file.reading() as con:
            return (put.Target(con, self.schema, target).count() or 0) if con else 0

    def recount(self, log: str, target: str) -> None:
        """Accept the rows that the target has now: the next load expects as many."""
        with self._file.reading() as con:
            tables = LedgerTables(con, self.schema) if con else None
            counted = tables.counted(log, target) if tables and tables.there() else None
        if counted is None or counted == self.rows(target):
            return  # the next load expects nothing else
        with self._file.writing() as con:
            con.execute("BEGIN")
            tables = LedgerTables(con, self.schema).create()
            rows, epoch = put.Target(con, self.schema, target).count(), tables.about(log, target).epoch
            if rows is not None and epoch is not None:
                tables.keep_count(log, target, epoch, rows)
            con.execute("COMMIT")

    def changes(self, table: Table, loaded: Table | None = None, *, anew: bool = False) -> tuple[Change, ...]:
        """What a load of the table as it is now would do to its target first; `anew`: none of it was loaded yet."""
        try:
            with self._file.reading() as con:
                target = put.Target(con, self.schema, table.target) if con else None
                found = target.columns() if target and target.is_table() else None
                wanted = put.wanted(fields(table), fills(table))
                known = put.known(loaded, table)
                made = changes(self.schema, table.target, wanted, found, target_renames(table), known=known)
                if target is not None and found is not None:
                    target.check_alterable(made)
                    if anew:
                        check_nullable(table.target, found, may_be_null(table), target.relaxing)
                return made
        except FloodmarkError as error:
            error.of(table.name)
            raise

    def ask(self, target: str, words: Callable[[Place], Sequence[str]]) -> list[tuple[Any, ...]] | None:
        """The answers to questions about the target, put in DuckDB's words; None: there is no target."""
        with self._file.reading() as con:
            found = put.Target(con, self.schema, target) if con else None
            columns = found.columns() if found else None
            if con is None or found is None or columns is None:
                return None
            types = {column.name.lower(): column.type for column in columns}
            questions = words(Place(DUCKDB, found.sql, types))
            return [row for question in questions for row in con.execute(question).fetchall()]

    def set_epoch(
        self, pipeline: str, log: str, table: str, target: str, epoch: int, *, adopt: bool = False
    ) -> None:
        """Begin a new load epoch; loads of an earlier one stop. A later epoch there is a ConflictError."""
        with self._file.writing() as con:
            con.execute("BEGIN")
            tables = LedgerTables(con, self.schema).create()
            ledger = tables.about(log, target)
            if not adopt:
                check_holder(ledger.holder, pipeline, log, table, target)
            if ledger.epoch is not None and ledger.epoch > epoch:
                raise ConflictError(f"the load stage of {table} was reset by a later commit ({ledger.epoch})")
            tables.set_holder(target, Holder(pipeline, log, table, epoch))
            con.execute("COMMIT")

    def load(self, request: LoadRequest) -> LoadOutcome:
        """Load the commits that the ledger does not have, in one transaction."""
        began = time.monotonic()
        try:
            # Decided twice: now, so that no file is fetched in vain, and again inside the transaction. Opened to be
            # written already: to open it anew would take longer than to fetch what a small load needs.
            with self._file.writing() if self.path.exists() else self._file.reading() as con:
                decision = decide(request, *self._looked(con, request))
            outcome = self._load(request, decision)
        except FloodmarkError as error:
            error.of(request.table.name)
            raise
        return replace(outcome, seconds=time.monotonic() - began)

    def close(self) -> None:
        """Lets the file go."""
        self._file.close()

    def _load(self, request: LoadRequest, decision: Decision) -> LoadOutcome:
        if not decision.new:
            return LoadOutcome((), decision.already, findings=decision.findings)
        files = data_files(decision.staged)
        loaded = _ledger_rows(request, decision.new)
        with scratched("floodmark-load-") as folder:
            paths = fetch(request.store, files, folder, request.table.name)
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
                self._settle(request, decision.new, unanswered.__cause__)
        return LoadOutcome(
            loaded,
            decision.already,
            request.retake,
            rows=sum(row.rows for row in loaded),
            files=sum(row.files for row in loaded),
            findings=decision.findings,
        )

    def _transaction(
        self, request: LoadRequest, decision: Decision, staged: put.Staged, loaded: tuple[LedgerRow, ...]
    ) -> None:
        """Rows and ledger rows, or neither; _Unanswered when COMMIT fails."""
        count = sum(commit.rows for commit, _ in staged.commits)
        with self._file.writing() as con, self._file.threads_for(con, count):
            con.execute("BEGIN")
            tables = LedgerTables(con, self.schema).create()
            rows = put.Target(con, self.schema, request.target).count()
            ledger = tables.read(request.log, request.target, request.part)
            if decide(request, ledger, rows) != decision:
                raise ConflictError("the warehouse was changed by another load meanwhile", hint="run again")
            self._put(con, request, decision, staged, rows)
            tables.record(request, loaded)
            after = put.Target(con, self.schema, request.target).rows()
            kept = count_after(request, ledger, decision, rows, after)
            tables.keep_count(request.log, request.target, request.epoch, kept)
            if decision.set_holder:
                holder = Holder(request.pipeline, request.log, request.table.name, request.epoch)
                tables.set_holder(request.target, holder)
            try:
                self._commit(con)
            except Exception as error:
                raise _Unanswered from error

    def _put(
        self, con: Connection, request: LoadRequest, decision: Decision, staged: put.Staged, rows: int | None
    ) -> None:
        """The rows into the target, which is made to fit first."""
        count = put.check_files(con, staged)
        target = put.Target(con, self.schema, request.target)
        found, renames = target.columns(), target_renames(request.now)
        if by_key(decision.way) and found is not None:
            fit = renamings(self.schema, request.target, found, renames)
        else:
            wanted = put.wanted(placed(request.table, request.now), fills(request.now))
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
        self._file.make_room(con, put.widest(staged))
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
            with con.cursor() as beside:  # this transaction answers no more questions
                same, said = replace(target, con=beside), str(error).partition("\n")[0]
                columns = same.columns() or ()
                raise refused_rows(self.schema, request.target, columns, same.held(), said) from error

    def _commit(self, con: Connection) -> None:
        con.execute("COMMIT")

    def _settle(self, request: LoadRequest, new: tuple[Numbered, ...], cause: BaseException | None) -> None:
        """COMMIT failed: the ledger says whether it happened. Returns when it did."""
        try:
            loaded = self.ledger(request.log, request.target, request.part).loaded(request.epoch)
        except FloodmarkError as error:
            raise UnknownOutcome(
                f"COMMIT was not answered, and the ledger can't be read: {error.message}",
                hint="run again: the ledger will tell",
            ) from cause
        if all((commit.n, digest) in loaded for commit, digest in new):
            return
        if isinstance(cause, duckdb.Error):
            raise translated(cause, self.path) from cause
        raise TransientError(
            f"the load was not committed: {cause}", hint="run again: nothing is lost"
        ) from cause

    def _looked(self, con: Connection | None, request: LoadRequest) -> tuple[Ledger, int | None]:
        """What a decision needs to know, before the transaction: the ledger, and how many rows the target has."""
        if con is None:
            return Ledger(), None
        tables = LedgerTables(con, self.schema)
        there = tables.there()
        ledger = tables.read(request.log, request.target, request.part) if there else Ledger()
        return ledger, put.Target(con, self.schema, request.target).count()


class _Unanswered(Exception):
    """COMMIT failed; whether it happened is not known yet."""


def _ledger_rows(request: LoadRequest, new: tuple[Numbered, ...]) -> tuple[LedgerRow, ...]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return tuple(
        LedgerRow(commit.n, digest, request.epoch, commit.rows, len(commit.files), now, request.target)
        for commit, digest in new
    )
