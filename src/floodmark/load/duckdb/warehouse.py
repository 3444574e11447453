"""The embedded warehouse: a DuckDB file, open only while a load runs or the ledger is read, or just after.

A load is one transaction on one connection, and small loads of several tables share one. DuckDB accepts COMMIT
for an aborted transaction without complaint, so nothing is ever committed after an exception; a COMMIT that fails
is settled by reading the ledger.

Rows leave as Arrow columns, in batches bounded by bytes and in portions bounded by time: while a query runs, no other
process can open the file for writing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from floodmark.config.load import WarehouseSpec
from floodmark.host.temp import scratched
from floodmark.host.threads import SharedCalls
from floodmark.load.canonical import DUCKDB, TargetSql
from floodmark.load.columns import (
    TargetChange,
    arrived,
    changes,
    check_nullable,
    check_strangers,
    constants,
    left_alone,
    literal,
    may_be_null,
    placed,
    relaxing,
    renamed,
    renamings,
    target_renames,
    wanted_columns,
)
from floodmark.load.decide import Decision, check_new_epoch, count_after, decide
from floodmark.load.duckdb import merge as put
from floodmark.load.duckdb.file import (
    BULKY,
    ROW_GROUP,
    VECTOR,
    AlreadyThere,
    Connection,
    DatabaseFile,
    NotThere,
    Volume,
    said_through_arrow,
)
from floodmark.load.duckdb.ledger import DuckDBLedger, Question, ledger_sums
from floodmark.load.duckdb.merge import check_itself, refused_rows
from floodmark.load.files import fetch, file_fields
from floodmark.load.ledger import Count
from floodmark.load.protocol import COUNTS, KEYS, Freshness, LoadOutcome, LoadRequest, data_files, quote
from floodmark.model.commit import WIDE_BYTES, by_key
from floodmark.model.errors import (
    ConfigError,
    ConflictError,
    DataError,
    FloodmarkError,
    TransientError,
    UnknownOutcome,
    about,
)
from floodmark.model.ledger import Ledger, LedgerRow, LoadSum, Part, TargetFiller
from floodmark.model.run import Step, Wait
from floodmark.model.statements import statement
from floodmark.model.table import Table
from floodmark.model.types import fields
from floodmark.model.warehouse import DUCKDB as CAN

# How long a run waits for a file that another process has open: several times what one holds it.
LOCK_SECONDS = 10.0
# Rows and bytes per batch that is handed out.
HANDED_OUT = 8 * VECTOR
BATCH_BYTES = 64_000_000
# Rows of a batch as long as nobody knows how wide they are, but they may be very wide.
UNKNOWN = 128
# Seconds for which rows are handed out before others may have the file, and how much more the next portion may have.
PORTION_SECONDS = 1.0
GROWTH = 8


@dataclass(frozen=True)
class Portion:
    """Rows that are handed out without releasing the file: so many, by DuckDB's row numbers."""

    first: int
    rows: int
    seen: int = 0  # bytes of a row in the batches before it, on average; 0: nothing was handed out yet

    def of(self, table: str, last: bool) -> str:
        """The table, or query in its place, that has these rows; the last portion has all that follow."""
        ends = [f"rowid >= {self.first}"] if self.first else []
        ends += [] if last else [f"rowid < {self.first + self.rows}"]
        return f"(SELECT * FROM {table} WHERE {' AND '.join(ends)})" if ends else table

    def next(self, seconds: float, seen: int = 0) -> Portion:
        """The portion after this one, which took so long and had rows of so many bytes."""
        rows = int(self.rows * min(GROWTH, PORTION_SECONDS / max(seconds, 0.001)))
        return Portion(self.first + self.rows, max(VECTOR, rows // VECTOR * VECTOR), max(seen, self.seen))


def first_portion(width: int) -> Portion:
    """The first rows; only a batch of them if they may be wide."""
    rows = batch_rows(width)
    return Portion(0, 4 * ROW_GROUP if rows == HANDED_OUT else max(VECTOR, rows))


def batch_rows(width: int, seen: int = 0) -> int:
    """Rows per batch, if a row has up to `width` bytes, and had `seen` so far: whole vectors unless they are wide."""
    if width * VECTOR <= BATCH_BYTES:
        return min(HANDED_OUT, BATCH_BYTES // max(1, width) // VECTOR * VECTOR)
    return min(VECTOR, max(1, BATCH_BYTES // seen)) if seen else UNKNOWN


def streamed(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The batches of a running query; if it fails, DuckDB's error."""
    try:
        yield from reader
    except (OSError, pa.ArrowException) as error:
        raise said_through_arrow(error) from error


# Loads of at most this many rows, and bytes in files, may share a transaction: the work for each transaction and each
# target outweighs that for the rows.
SMALL_ROWS = 20_000
SMALL_BYTES = 4_000_000


@dataclass(frozen=True)
class Ready:
    """A load that was decided, with its files on this machine."""

    request: LoadRequest
    decision: Decision
    staged: put.DuckDBPut
    loaded: tuple[LedgerRow, ...]  # the ledger rows to write
    volume: Volume

    @property
    def small(self) -> bool:
        """Whether it may share a transaction; not if its files, of repeated values, unpack to many times their size."""
        return small(self.request) and self.volume.bytes < BULKY

    def is_in(self, ledger: Ledger) -> bool:
        """Whether the ledger has all its commits."""
        there = ledger.loaded(self.request.epoch)
        return all((commit.n, digest) in there for commit, digest in self.decision.new)


def small(request: LoadRequest) -> bool:
    """Whether a request is so small that its load may share a transaction with others."""
    commits = [commit for commit, _ in request.commits]
    return sum(c.rows for c in commits) <= SMALL_ROWS and sum(c.bytes for c in commits) <= SMALL_BYTES


def write(con: Connection, schema: str, loads: Sequence[Ready]) -> None:
    """Write the rows and ledger rows of all loads, inside a transaction; raises if one is no longer as decided.

    Each load is decided by what was there before the transaction, so no two of them may be about the same log or target.
    """
    for same in ({one.request.log for one in loads}, {one.request.target for one in loads}):
        if len(same) < len(loads):
            raise ConflictError("two loads of one table or into one target can't share a transaction")
    tables = DuckDBLedger(con, schema).create()
    ledgers = tables.read_each([one.request.question for one in loads])
    done = [_write_rows(con, schema, *each) for each in zip(loads, ledgers, strict=True)]
    tables.record([(one.request, one.loaded) for one in loads])
    tables.keep_counts([count for _, count in done])
    tables.set_holders([
        (one.request.target, one.request.holder)
        for one, (decision, _) in zip(loads, done, strict=True) if decision.set_holder
    ])  # fmt: skip
    for one in loads:
        one.request.at_work(Step("commit"), one.volume.rows)


def _write_rows(con: Connection, schema: str, one: Ready, ledger: Ledger) -> tuple[Decision, Count]:
    """Put the rows of a load into its target; returns what was decided, and how many it should have from now on."""
    request, target = one.request, put.DuckDBTarget(con, schema, one.request.target)
    with about(request.table.name):
        rows = target.count()
        decision = decide(request, ledger, rows)
        if replace(decision, set_holder=one.decision.set_holder) != one.decision:
            raise ConflictError("another load has changed the warehouse in the meantime", hint="run again")
        check_itself(con, one.staged.paths)
        _put(con, schema, one, rows)
        rule = count_after(request, ledger, decision, rows, "count(*)")
        kept = target.number(f"SELECT {rule} FROM {target.sql}")
    left = ledger.after(request.epoch, request.retake, one.loaded).last(request.target, request.epoch)
    return decision, Count(request.target, request.log, request.epoch, *left, kept)


def _put(con: Connection, schema: str, one: Ready, rows: int | None) -> None:
    """Make the target fit, then put the rows into it; `rows`: how many it has, None when there is no target."""
    request, decision, staged, count = one.request, one.decision, one.staged, one.volume.rows
    target = put.DuckDBTarget(con, schema, request.target)
    found = None if rows is None else target.columns()
    renames = target_renames(request.now)
    if by_key(decision.way) and found is not None:
        fit = renamings(target.sql, found, renames)
    else:
        wanted = wanted_columns(placed(request.table, request.now), CAN, request.now)
        if request.keeps_rows(decision.way):
            new = arrived(request.shaped, request.now)
            check_strangers(
                request.target, found or (), wanted, new, target.has, described=request.table.name
            )
        packed = dict.fromkeys(put.packed(con, staged), " USING COMPRESSION zstd") if found is None else {}
        known = put.known(None if decision.way == "replace" else request.loaded, request.now)
        fit = changes(target.sql, request.target, wanted, found, renames, known, packed=packed)
    target.check_alterable(fit)
    if renames:
        side = target.weights
        fit += renamings(side.sql, side.columns() or (), renames)
    for sql in (s for change in fit for s in change.statements):
        con.execute(sql)
    there = {name.lower(): name for _, name in renamed(found or (), renames)}
    given = tuple(c for c in constants(request.table, request.now) if c.target in there)
    kept = left_alone(there.values(), staged.fields, given)
    if kept:
        computed = target.generated()
        kept = tuple(name for name in kept if name.lower() not in computed)
    staged = replace(
        staged,
        constants=tuple((c.target, literal(c.type(CAN), c.value)) for c in given),
        kept=kept,
        filled=bool(rows),
        side_filled=staged.weighed and bool(target.weights.count()),
    )
    target = replace(target, at_work=request.at_work)
    try:
        put.put(target, staged, decision.way, count)
    except AlreadyThere as error:
        with con.cursor() as beside:  # this transaction is aborted and takes no more queries
            same, said = replace(target, con=beside), str(error).partition("\n")[0]
            columns = same.columns() or ()
            raise refused_rows(schema, request.target, columns, same.held(), said) from error


class DuckDB:
    """The Warehouse in a DuckDB file. Threads may share one object; large loads take turns."""

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
        self._ledger = SharedCalls(self._ledgers)
        self._look = SharedCalls(self._looked)
        self._small = SharedCalls(self._loaded)

    def ledger(self, log: str, target: str, part: Part | None = None) -> Ledger:
        """What was loaded from a log, and who fills the target; empty while there is no warehouse."""
        return self._ledger.ask((log, target, part))

    def _ledgers(self, questions: Sequence[Question]) -> list[Ledger]:
        """The same for the tables of several threads; without the counts, which a load asks for itself."""
        with self._file.reading() as con:
            if con is not None:
                tables = DuckDBLedger(con, self.schema)
                con.execute("BEGIN TRANSACTION")  # all of one moment
                try:
                    return tables.read_all(questions)
                except NotThere:
                    con.execute("ROLLBACK")
                    if tables.there():  # some of them, but not all
                        raise
        return [Ledger()] * len(questions)

    def load_sums(self) -> list[LoadSum]:
        """The whole ledger, summed up by log and load epoch; empty while there is no warehouse."""
        with self._file.reading() as con:
            return DuckDBLedger(con, self.schema).sums() if con is not None else []

    def ledger_sums(self, free: Callable[[], bool]) -> list[LoadSum]:
        """The whole ledger, summed up by log and load epoch; opens the file for 100 ms at most, if it is free."""
        return ledger_sums(self.path, self.schema, free)

    def rows(self, target: str) -> int:
        """How many rows the target has; 0 when it does not exist."""
        with self._file.reading() as con:
            return (put.DuckDBTarget(con, self.schema, target).count() or 0) if con else 0

    def recount(self, pipeline: str, log: str, target: str) -> None:
        """Accept the rows that the target has now: the next load expects that many."""
        with self._file.reading() as con:
            tables = DuckDBLedger(con, self.schema) if con else None
            counted = tables.in_sums(log, target).counted if tables and tables.there(COUNTS) else None
        if counted is None or counted == self.rows(target):
            return  # nothing to correct
        with self._file.writing() as con:
            con.execute("BEGIN")
            tables = DuckDBLedger(con, self.schema).create()
            rows, ledger = put.DuckDBTarget(con, self.schema, target).count(), tables.in_sums(log, target)
            if rows is not None and ledger.epoch is not None:
                left = ledger.last(target, ledger.epoch)
                tables.keep_counts([Count(target, log, ledger.epoch, *left, rows)])
            con.execute("COMMIT")

    def changes(
        self,
        table: Table,
        loaded: Table | None = None,
        shaped: Table | None = None,
        *,
        first_load: bool = False,
    ) -> tuple[TargetChange, ...]:
        """The changes that a load of the table as it is now would first make; `first_load`: nothing loaded yet."""
        with about(table.name), self._file.reading() as con:
            target = put.DuckDBTarget(con, self.schema, table.target) if con else None
            wanted = wanted_columns(fields(table), CAN, table)
            if target is None or not target.is_table():
                return changes(quote(self.schema, table.target), table.target, wanted, None)
            found = target.columns() or ()
            check_strangers(table.target, found, wanted, arrived(shaped, table), target.has)
            known, where = put.known(loaded, table), target.sql
            made = changes(where, table.target, wanted, found, target_renames(table), known)
            target.check_alterable(made)
            if first_load:
                check_nullable(table.target, found, may_be_null(table), lambda c: relaxing(where, c.name))
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
    def _reading(self, target: str) -> Iterator[tuple[Connection, put.DuckDBTarget, dict[str, str]] | None]:
        """The open file, the target in it and its columns' types by lower-case name; None: there is no target."""
        with self._file.reading() as con:
            found = put.DuckDBTarget(con, self.schema, target) if con else None
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
        last = False
        while not last and not stop():
            with self._reading(target) as read:
                if read is None:
                    return
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
                con.execute(
                    "SET arrow_large_buffer_size = true"
                )  # else no column of a batch may exceed 2 GiB
                with statement("duckdb", sql):
                    for batch in streamed(con.sql(sql).to_arrow_reader(size)):
                        widest = max(widest, batch.nbytes // max(1, batch.num_rows))
                        each(batch)
                        if stop():
                            return
            if portion is not None:
                portion = portion.next(time.monotonic() - began, widest)

    def set_epoch(self, holder: TargetFiller, target: str, *, adopt: bool = False) -> None:
        """Begin a new load epoch, which stops loads of earlier ones; ConflictError if a later one exists."""
        with self._file.writing() as con:
            con.execute("BEGIN")
            tables = DuckDBLedger(con, self.schema).create()
            check_new_epoch(tables.about(holder.log, target), holder, target, adopt)
            tables.set_holders([(target, holder)])
            con.execute("COMMIT")

    def shares(self, request: LoadRequest) -> bool:
        """Whether a load is so small that it may share its transaction with those of other tables."""
        return small(request)

    def load(self, request: LoadRequest) -> LoadOutcome:
        """Load the commits that the ledger does not have, in one transaction; a small load may share it."""
        began = time.monotonic()
        outcome = None
        with about(request.table.name):
            if small(request):
                # Not looking first whether the ledger has its commits takes less time than fetching its files. Inside
                # the transaction it is decided in any case. Refused, nothing was loaded: looking first tells why.
                with suppress(ConfigError, ConflictError, DataError):
                    outcome = self._load(request, decide(request, Ledger(), None))
            if outcome is None:
                # Decided twice: now, so that no file is fetched needlessly, and again inside the transaction.
                decision = decide(request, *self._look.ask(request))
                outcome = self._load(request, decision)
        return replace(outcome, seconds=time.monotonic() - began)

    def note_freshness(self, rows: Sequence[Freshness]) -> None:
        """Advance these targets in `floodmark_freshness`, all at once."""
        with self._file.writing() as con:
            DuckDBLedger(con, self.schema).note_freshness(rows)

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def _load(self, request: LoadRequest, decision: Decision) -> LoadOutcome:
        if not decision.new:
            return LoadOutcome((), decision.already, findings=decision.findings)
        files = data_files(decision.staged)
        loaded = request.ledger_rows(decision.new)
        here = bool(files) and request.store.local(files[0].path) is not None

        def ready_files(number: int) -> None:
            request.at_work(Step("check" if here else "copy", number, len(files)), 0)

        if files:
            ready_files(0)
        with scratched("floodmark-load-") as folder:
            paths = fetch(request.store, files, folder, request.table.name, ready_files)
            staged = put.DuckDBPut(
                table=request.table,
                schema=self.schema,
                target=request.target,
                side=KEYS + request.target,
                fields=file_fields(request.table, decision.way, request.now),
                commits=decision.staged,
                paths=tuple(paths),
            )
            ready = Ready(request, decision, staged, loaded, put.volume(staged))
            failed = self._small.ask(ready) if ready.small else self._loaded([ready])[0]
            if failed is not None:
                raise failed
        return LoadOutcome(loaded, decision.already, request.retake, findings=decision.findings)

    def _loaded(self, loads: Sequence[Ready]) -> list[FloodmarkError | None]:
        """Load them in one transaction; for each None, or the error after a COMMIT that failed.

        Raises if none of them was loaded: `SharedCalls` then tries each of several by itself.
        """
        try:
            self._transaction(loads)
        except _Unanswered as unanswered:
            failed = self._not_committed(loads, unanswered.__cause__)
            certain = [one for one in failed if one is not None and not isinstance(one, UnknownOutcome)]
            if len(certain) == len(loads):
                raise certain[0] from unanswered.__cause__
            return failed
        return [None] * len(loads)

    def _transaction(self, loads: Sequence[Ready]) -> None:
        """Write the rows and ledger rows of all loads, or nothing; _Unanswered when COMMIT, or what follows it, fails."""
        committing = False
        try:
            with (
                self._file.writing() as con,
                self._file.threads_for(con, max(one.volume.rows for one in loads)),
                self._file.room_for(con, [one.volume for one in loads]),
            ):
                con.execute("BEGIN")
                for one in loads:
                    self._file.set_apart(con, f"{self.schema}.{one.request.target}", one.volume)
                write(con, self.schema, loads)
                committing = True
                self._commit(con)
        except Exception as error:
            if committing:
                raise _Unanswered from error
            raise

    def _commit(self, con: Connection) -> None:
        con.execute("COMMIT")

    def _not_committed(
        self, loads: Sequence[Ready], cause: BaseException | None
    ) -> list[FloodmarkError | None]:
        """COMMIT failed: the ledger says whether it happened. For each load None if it did, else the error."""
        try:
            ledgers = self._ledgers([one.request.question for one in loads])
        except FloodmarkError as error:
            said = f"the answer to COMMIT was lost, and the ledger can't be read: {error.message}"
            hint = "run again: the ledger shows whether it was committed"
            return [_because(cause, UnknownOutcome(said, hint=hint)) for _ in loads]
        return [
            None if one.is_in(ledger) else self._failed_commit(cause)
            for one, ledger in zip(loads, ledgers, strict=True)
        ]

    def _failed_commit(self, cause: BaseException | None) -> FloodmarkError:
        """The error of a load that was not committed."""
        if isinstance(cause, FloodmarkError):
            return _because(cause, type(cause)(cause.message, hint=cause.hint))
        return _because(
            cause, TransientError(f"the load was not committed: {cause}", hint="run again: nothing is lost")
        )

    def _looked(self, requests: Sequence[LoadRequest]) -> list[tuple[Ledger, int | None]]:
        """What decisions need before their transaction: the ledger, and the target's row count."""
        with self._file.reading(about_to_write=True) as con:
            if con is None:
                return [(Ledger(), None)] * len(requests)
            tables = DuckDBLedger(con, self.schema)
            asked = [one.question for one in requests]
            try:
                ledgers = tables.read_each(asked)
            except NotThere:  # a new file, or one of an earlier version without COUNTS
                ledgers = tables.read_all(asked) if tables.there() else [Ledger()] * len(requests)
            counts = [put.DuckDBTarget(con, self.schema, one.target).count() for one in requests]
        return list(zip(ledgers, counts, strict=True))


def _because(cause: BaseException | None, error: FloodmarkError) -> FloodmarkError:
    error.__cause__ = cause
    return error


class _Unanswered(Exception):
    """COMMIT failed; whether it happened is not known yet."""


def opened(
    spec: WarehouseSpec, *, linger: float, seconds: float | None, waits: Callable[[Wait | None], None]
) -> DuckDB:
    """The DuckDB of a configuration; see `open_warehouse`."""
    assert spec.path is not None
    patience = LOCK_SECONDS if seconds is None else seconds
    return DuckDB(spec.path, spec.schema, linger=linger, lock_seconds=patience, waits=waits)
