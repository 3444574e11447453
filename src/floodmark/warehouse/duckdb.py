"""The embedded warehouse: a DuckDB file, open only while a load runs or the ledger is read.

One load is one transaction of one connection. DuckDB commits a transaction that was aborted without a word, so
nothing is ever committed after an exception; a COMMIT that fails is settled by reading the ledger.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from floodmark.errors import ConflictError, FloodmarkError, TransientError, UnknownOutcome
from floodmark.types import fields
from floodmark.warehouse import Holder, Ledger, LedgerRow, LoadOutcome, LoadRequest, Numbered, data_files
from floodmark.warehouse import duckdb_rows as put
from floodmark.warehouse.columns import changes
from floodmark.warehouse.decide import Decision, check_holder, decide
from floodmark.warehouse.duckdb_errors import translated
from floodmark.warehouse.duckdb_file import Connection, DatabaseFile
from floodmark.warehouse.duckdb_ledger import LedgerTables
from floodmark.warehouse.files import fetch, file_fields


class DuckDB:
    """The Warehouse in a DuckDB file. One object may be used by several threads; loads take turns."""

    def __init__(
        self, path: Path, schema: str = "main", *, memory: int = 2_000_000_000, lock_seconds: float = 5.0
    ) -> None:
        self.path = path
        self.schema = schema
        self._file = DatabaseFile(path, memory=memory, lock_seconds=lock_seconds)

    def ledger(self, log: str, target: str) -> Ledger:
        """What was loaded of a log, and who fills the target; empty when there is no warehouse yet."""
        with self._file.reading() as con:
            return LedgerTables(con, self.schema).read(log, target) if con else Ledger()

    def rows(self, target: str) -> int:
        """How many rows the target has; 0 when it is not there."""
        with self._file.reading() as con:
            return (put.Target(con, self.schema, target).count() or 0) if con else 0

    def set_epoch(
        self, pipeline: str, log: str, table: str, target: str, epoch: int, *, adopt: bool = False
    ) -> None:
        """Begin a new load epoch; loads of an earlier one stop. A later epoch there is a ConflictError."""
        with self._file.writing() as con:
            con.execute("BEGIN")
            tables = LedgerTables(con, self.schema)
            tables.create()
            ledger = tables.read(log, target)
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
            # Decided twice: now, so that no file is fetched in vain, and again inside the transaction.
            with self._file.reading() as con:
                decision = decide(request, *self._seen(con, request))
            outcome = self._load(request, decision)
        except FloodmarkError as error:
            error.of(request.table.name)
            raise
        return replace(outcome, seconds=time.monotonic() - began)

    def close(self) -> None:
        """Nothing is kept open between calls."""

    def _load(self, request: LoadRequest, decision: Decision) -> LoadOutcome:
        if not decision.new:
            return LoadOutcome((), decision.already, findings=decision.findings)
        files = data_files(decision.staged)
        loaded = _ledger_rows(request, decision.new)
        with tempfile.TemporaryDirectory(prefix="floodmark-load-") as folder:
            paths = fetch(request.store, files, Path(folder), request.table.name)
            staged = put.Staged(
                request.table, file_fields(request.table, decision.way), decision.staged, tuple(paths)
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
        with self._file.writing() as con:
            con.execute("BEGIN")
            tables = LedgerTables(con, self.schema)
            tables.create()
            ledger, rows = self._seen(con, request)
            if decide(request, ledger, rows) != decision:
                raise ConflictError("the warehouse was changed by another load meanwhile", hint="run again")
            self._put(con, request, decision, staged, rows)
            tables.record(request, loaded)
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
        target = put.Target(con, self.schema, request.target)
        if decision.way != "delete" or rows is None:
            wanted = put.columns_for(fields(request.table))
            for change in changes(self.schema, request.target, wanted, target.columns()):
                con.execute(change.statement)
        count = put.check_files(con, staged)
        self._file.make_room(con, put.widest(con, staged))
        match decision.way:
            case "merge":
                put.merge(target, staged, count, filled=bool(rows))
            case "insert":
                put.insert(target, staged, count)
            case "replace":
                put.replace(target, staged, count)
            case "delete":
                put.delete(target, staged)

    def _commit(self, con: Connection) -> None:
        con.execute("COMMIT")

    def _settle(self, request: LoadRequest, new: tuple[Numbered, ...], cause: BaseException | None) -> None:
        """COMMIT failed: the ledger says whether it happened. Returns when it did."""
        try:
            loaded = self.ledger(request.log, request.target).loaded(request.epoch)
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

    def _seen(self, con: Connection | None, request: LoadRequest) -> tuple[Ledger, int | None]:
        """What a decision needs to know: the ledger, and how many rows the target has."""
        if con is None:
            return Ledger(), None
        ledger = LedgerTables(con, self.schema).read(request.log, request.target)
        return ledger, put.Target(con, self.schema, request.target).count()


class _Unanswered(Exception):
    """COMMIT failed; whether it happened is not known yet."""


def _ledger_rows(request: LoadRequest, new: tuple[Numbered, ...]) -> tuple[LedgerRow, ...]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return tuple(
        LedgerRow(commit.n, digest, request.epoch, commit.rows, len(commit.files), now, request.target)
        for commit, digest in new
    )
