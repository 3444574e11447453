"""A third warehouse, to prove docs/add-a-warehouse.md: PostgreSQL, complete but for speed. Nothing in src knows of it.

A load is one transaction: lock, ledger, COPY into a staging table, merge, ledger rows, COMMIT. DDL is part of it, too.
The lock is taken before anything is read, so whoever waited for another load sees what it left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.config.load import WarehouseSpec
from floodmark.host.temp import scratched
from floodmark.load import merge
from floodmark.load.canonical import TargetSql, numbers
from floodmark.load.columns import (
    TargetChange,
    TargetColumn,
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
from floodmark.load.files import check_footer, fetch, file_fields
from floodmark.load.ledger import (
    KEYED,
    ORDER,
    Count,
    LedgerDialect,
    LedgerSql,
    Row,
    ledger_in,
    load_sums,
)
from floodmark.load.merge import STAGE, Do, Heap, Put
from floodmark.load.protocol import (
    COUNTS,
    DELETED_AT,
    FRESHNESS,
    KEYS,
    TARGETS,
    Freshness,
    LoadOutcome,
    LoadRequest,
    data_files,
    quote,
)
from floodmark.model.canonical import DIGITS, Dialect
from floodmark.model.commit import LoadAs, by_key
from floodmark.model.errors import (
    ConfigError,
    DataError,
    FloodmarkError,
    TransientError,
    UnknownOutcome,
    about,
)
from floodmark.model.ledger import SUMMED_DIGITS, Ledger, LoadSum, Part, TargetFiller
from floodmark.model.names import OURS
from floodmark.model.run import Step, Wait
from floodmark.model.table import Table
from floodmark.model.types import KEY_FIELD, fields
from floodmark.model.warehouse import UNLIMITED, Descriptor
from tests.support.redshift.backend import Backend, python
from tests.support.redshift.wire import Gone, SqlError

CAN = replace(
    UNLIMITED, label="PostgreSQL", holds="postgresql", nul=False,
    types={**UNLIMITED.types, "float": "REAL", "double": "DOUBLE PRECISION", "bytes": "BYTEA", "weight": "BYTEA"},
)  # fmt: skip
DESCRIPTOR = Descriptor(
    CAN, "public", "postgres://user:password@host:5432/database", "tests.support.postgres:opened", port=5432
)
WORDS = LedgerDialect(
    moment="""to_char({}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')""",
    total="CAST(sum(CASE WHEN \"digest\" ~ '^[0-9a-f]{64}$' THEN "
    f"('x0' || right(\"digest\", {SUMMED_DIGITS}))::bit(64)::bigint END) AS VARCHAR)",
)
_DOUBLE = "encode(float8send({0}), 'hex')"
_US = "to_char({}, 'YYYY-MM-DD HH24:MI:SS.US')"
DIALECT = Dialect(
    prints={
        **numbers("CAST({} AS VARCHAR)"),
        "float": "upper(" + " || ".join(f"substr({_DOUBLE}, {at}, 2)" for at in range(15, 0, -2)) + ")",
        "day": "to_char({}, 'YYYY-MM-DD')",
        "moment": _US,
        "instant": _US.format("{} AT TIME ZONE 'UTC'"),
        "bytes": "upper(encode({}, 'hex'))",
    },
    sized="CAST(octet_length({0}) AS VARCHAR) || ':' || {0}",
    size="CAST(octet_length({}) AS VARCHAR)",
    cut="substr({}, {}, {})",
    hash=f"substr(encode(sha256(convert_to({{}}, 'UTF8')), 'hex'), 1, {DIGITS})",
    number="('x0' || substr({}, 1, 15))::bit(64)::bigint",
)
_COMMIT, _ROW = f"{OURS}commit", f"{OURS}row"  # in the staging table
_HIGHEST = (1 << 63) - 1


# ---------------------------------------------------------------- a session


def translated(error: Exception) -> FloodmarkError:
    """Our error, by what the operator does next."""
    if not isinstance(error, SqlError):
        return TransientError(f"the connection to PostgreSQL was lost: {error}", hint="run again")
    said = f"PostgreSQL refused: {error}"
    if error.code[:2] in ("08", "40", "53", "55", "57"):
        return TransientError(said, hint="run again: nothing is lost")
    if error.code[:2] in ("28", "3D", "3F") or error.code == "42501":
        return ConfigError(said, hint="check warehouse.url and the user's rights")
    return DataError(said) if error.code[:2] in ("22", "23", "2B", "0A") else FloodmarkError(said)


class Session:
    """One connection. What is not committed when it closes is rolled back."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.run("SET standard_conforming_strings = on")
        self.run("SET timezone = 'UTC'")

    def query(self, sql: str) -> list[Row]:
        rows, types, _ = self._backend.run(sql)
        return [tuple(python(cell, kind) for cell, kind in zip(row, types, strict=True)) for row in rows]

    def one(self, sql: str) -> Any:
        return next((row[0] for row in self.query(sql)), None)

    def run(self, *statements: str) -> int:
        """Run some statements; returns how many rows the last one changed."""
        tag = ""
        for sql in statements:
            _, _, tag = self._backend.run(sql)
        return int(tag.split()[-1]) if tag[-1:].isdigit() else 0

    def copy(self, into: str, names: Sequence[str], batches: Iterator[pa.RecordBatch], more: str) -> int:
        """COPY; returns the number of rows. `more`: the value of the last column."""
        columns = ", ".join(quote(name) for name in names)
        lines = (_lines(batch, more) for batch in batches)
        return self._backend.copy(f"COPY {into} ({columns}) FROM STDIN", lines)

    def close(self) -> None:
        self._backend.close()


def _lines(batch: pa.RecordBatch, more: str) -> bytes:
    columns = [_texts(column) for column in batch.columns]
    rows = ("\t".join((*row, more)) for row in zip(*columns, strict=True))
    return "".join(f"{row}\n" for row in rows).encode()


def _texts(column: pa.Array[Any]) -> list[str]:
    """Values as COPY reads them; an instant and a wall clock are both written as if UTC, as the file has them."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return ["\\N" if value is None else "\\\\x" + value.hex() for value in column.to_pylist()]
    escapes = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
    found = column.cast(pa.string()).to_pylist()
    return ["\\N" if value is None else value.translate(escapes) for value in found]


# ---------------------------------------------------------------- a target, and rows on their way into it


@dataclass(frozen=True)
class Target:
    """A table, seen in one session."""

    session: Session
    schema: str
    written: str

    @property
    def name(self) -> str:
        return self.written.lower()

    @property
    def sql(self) -> str:
        return quote(self.schema, self.name)

    def columns(self) -> tuple[TargetColumn, ...] | None:
        """Its columns; None when there is no such table. ConfigError if it is anything but a table."""
        where = f"n.nspname = {WORDS.literal(self.schema)} AND c.relname = {WORDS.literal(self.name)}"
        found = self.session.query(
            "SELECT c.relkind::text, a.attname::text, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, "
            "pg_get_expr(d.adbin, d.adrelid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            f"LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum WHERE {where} ORDER BY a.attnum"
        )
        if found and found[0][0] != "r":
            what = {"v": "view"}.get(found[0][0], "relation of another kind")
            raise ConfigError(f"the target {self.name} is a {what}, not a table", hint="set another `target`")
        return tuple(TargetColumn(*row[1:]) for row in found if row[1] is not None) if found else None

    def generated(self) -> frozenset[str]:
        """Its columns that nobody can write to."""
        found = self.session.query(
            f"SELECT attname::text FROM pg_attribute WHERE attrelid = '{self.sql}'::regclass AND "
            "(attgenerated <> '' OR attidentity = 'a')"
        )
        return frozenset(name for (name,) in found)

    def count(self) -> int | None:
        """How many rows it has; None when there is no such table."""
        there = self.columns() is not None
        return int(self.session.one(f"SELECT count(*) FROM {self.sql}")) if there else None

    def has(self, condition: str) -> bool:
        return bool(self.session.query(f"SELECT 1 FROM {self.sql} WHERE {condition} LIMIT 1"))


@dataclass(frozen=True, kw_only=True)
class PostgresPut(Put):
    """A target, and the staging table; `commit`: only the rows of this one of its commits."""

    commit: int | None = None

    @property
    def staged(self) -> Heap:
        if self.commit is None:
            return merge.STAGED
        some = f"SELECT * FROM {quote(STAGE)} WHERE {quote(_COMMIT)} = {self.commit}"
        return Heap(STAGE, f"({some}) AS {quote(STAGE)}")

    def without(self, other: str) -> str:
        there = f"SELECT 1 FROM {quote(other)} WHERE {self.same(other)}"
        return f"{self.staged.path} WHERE NOT EXISTS ({there})"


def stage(session: Session, spec: PostgresPut, request: LoadRequest, decision: Decision, folder: Path) -> int:
    """Bring the files' rows into the staging table, each file proven to be what its commit says; returns their number."""
    files = data_files(decision.staged)

    def done(number: int) -> None:
        request.at_work(Step("copy", number, len(files)), 0)

    paths = iter(fetch(request.store, files, folder, request.table.name, done))
    names = [KEY_FIELD if field.file_only else field.target for field in spec.fields]
    types = [f"{quote(name)} {CAN.type_of(field)}" for name, field in zip(names, spec.fields, strict=True)]
    more = f"{quote(_COMMIT)} INTEGER, {quote(_ROW)} BIGSERIAL"
    session.run(f"CREATE TEMP TABLE {quote(STAGE)} ({', '.join([*types, more])}) ON COMMIT DROP")
    total = 0
    for number, (commit, _) in enumerate(decision.staged):
        for file in commit.files:
            with pq.ParquetFile(next(paths)) as parquet:
                check_footer(parquet.metadata, file, spec.fields, file.path)
                batches = parquet.iter_batches(columns=[field.name for field in spec.fields])
                rows = session.copy(quote(STAGE), [*names, _COMMIT], batches, str(number))
            if rows != file.rows:
                raise DataError(f"{rows:,} rows of {file.path} went in instead of {file.rows:,}")
            total += rows
    return total


def newest_only(session: Session, spec: PostgresPut, rows: int) -> int:
    """Keep the newest row of each key: of the later commit, then with the higher cursor; returns how many are left."""
    cursor = [f.target for f in spec.columns if f.name == f.column == spec.table.cursor]
    order = [f"{quote(name)} DESC NULLS LAST" for name in (_COMMIT, *cursor, _ROW)]
    by = ", ".join(quote(name) for name in spec.identity)
    ranked = (
        f"SELECT {quote(_ROW)}, row_number() OVER (PARTITION BY {by} ORDER BY {', '.join(order)}) AS place "
        f"FROM {quote(STAGE)}"
    )
    older = f"SELECT {quote(_ROW)} FROM ({ranked}) AS ranked WHERE place > 1"
    return rows - session.run(f"DELETE FROM {quote(STAGE)} WHERE {quote(_ROW)} IN ({older})")


def put(session: Session, spec: PostgresPut, way: LoadAs, rows: int, at: Sequence[str]) -> None:
    """Bring the staged rows, which are so many, into the target; `at`: the commits' times."""

    def run(*steps: Do) -> int:
        return sum(session.run(step.sql) for step in steps)

    if way == "mark":
        for number, moment in enumerate(at):
            run(*merge.mark(replace(spec, commit=number), moment))
        return
    if way == "delete":
        run(*merge.delete(spec), *merge.forget_weights(spec))
        return
    merges = bool(spec.table.key) and (way == "merge" or (way == "replace" and spec.table.mode != "full"))
    rows = newest_only(session, spec, rows) if merges else rows
    saved = bool(spec.filled and spec.kept and spec.keys and way != "insert")
    if saved:
        run(merge.save_kept(spec))
    if way == "replace":
        session.run(f"DELETE FROM {spec.into}", f"DROP TABLE IF EXISTS {spec.beside}")
        spec = replace(spec, filled=False, side_filled=False)
    elif merges and spec.filled:
        run(*merge.delete(spec))
    if spec.weighed:
        columns = [f"{quote(f.target)} {CAN.type_of(f)}" for f in spec.keys]
        session.run(
            f"CREATE TABLE IF NOT EXISTS {spec.beside} ({quote(spec.weight)} BYTEA, {', '.join(columns)})"
        )
        run(*merge.forget_weights(spec), merge.store_weights(spec))
    *inserts, last = merge.insert_with_kept(spec, rows) if saved else [merge.insert(spec, rows)]
    done = run(*inserts) if saved else run(last)
    if saved:
        run(last)  # drops what was saved
    if done != rows:
        raise DataError(f"{done:,} rows went into {spec.target} instead of {rows:,}")


# ---------------------------------------------------------------- the warehouse


def _relaxing(where: str, column: TargetColumn) -> str:
    return relaxing(where, column.name)


class Postgres:
    """The Warehouse in a PostgreSQL database. Threads may share it: every call opens its own session."""

    wide_bytes: int | None = None

    def __init__(self, connect: Callable[[], Backend], schema: str = "public", wait: float = 30.0) -> None:
        self.schema = schema
        self._connect = connect
        self._wait = wait
        self._sql = LedgerSql(schema, WORDS)

    @contextmanager
    def _session(self, lock: str | None = None) -> Iterator[Session]:
        """A session; with a lock, in a transaction that begins by taking it."""
        try:
            session = Session(self._connect())
            try:
                if lock is not None:
                    session.run("BEGIN", f"SET LOCAL lock_timeout = {int(self._wait * 1000)}")
                    name = WORDS.literal(f"floodmark {self.schema} {lock}")
                    session.run(f"SELECT pg_advisory_xact_lock(hashtextextended({name}, 0))")
                yield session
            finally:
                session.close()
        except (SqlError, Gone, OSError) as error:
            raise translated(error) from error

    def _commit(self, session: Session) -> None:
        session.run("COMMIT")

    def _created(self, *names: str) -> None:
        """Create our tables, if they don't exist, in a transaction of their own."""
        with self._session() as session:
            if all(Target(session, self.schema, name).columns() for name in names):
                return
        with self._session("tables") as session:
            session.run(f"CREATE SCHEMA IF NOT EXISTS {quote(self.schema)}")
            for name in names:
                session.run(f"CREATE TABLE IF NOT EXISTS {quote(self.schema, name)} ({KEYED[name]})")
            session.run("COMMIT")

    # the ledger

    def _ledger(self, session: Session, log: str, target: str, part: Part | None) -> Ledger:
        if Target(session, self.schema, COUNTS).columns() is None:
            return Ledger()
        question = f"{self._sql.rows_of(log, part)} UNION ALL {self._sql.holders_of(log, target)} {ORDER}"
        ledger = ledger_in(session.query(question), log, target, part)
        counts = [Count._make(row) for row in session.query(self._sql.counts_of([target]))]
        return replace(ledger, counted=next((one.rows for one in counts if one.valid(ledger, log)), None))

    def ledger(self, log: str, target: str, part: Part | None = None) -> Ledger:
        with self._session() as session:
            return self._ledger(session, log, target, part)

    def load_sums(self) -> list[LoadSum]:
        return self.ledger_sums(lambda: True)

    def ledger_sums(self, free: Callable[[], bool]) -> list[LoadSum]:
        with self._session() as session:
            there = Target(session, self.schema, TARGETS).columns()
            return load_sums(session.query(self._sql.sums())) if there else []

    def set_epoch(self, holder: TargetFiller, target: str, *, adopt: bool = False) -> None:
        self._created(*KEYED)
        with about(holder.table), self._session(target) as session:
            check_new_epoch(self._ledger(session, holder.log, target, None), holder, target, adopt)
            session.run(self._sql.upsert(TARGETS, [(target, *astuple(holder))]))
            self._commit(session)

    def recount(self, pipeline: str, log: str, target: str) -> None:
        with self._session(target) as session:
            ledger, rows = (
                self._ledger(session, log, target, None),
                Target(session, self.schema, target).count(),
            )
            if ledger.counted is not None and rows is not None and ledger.epoch is not None:
                count = Count(target, log, ledger.epoch, *ledger.last(target, ledger.epoch), rows)
                session.run(self._sql.upsert(COUNTS, [count.row]))
                self._commit(session)

    def note_freshness(self, rows: Sequence[Freshness]) -> None:
        self._created(FRESHNESS)
        with self._session("freshness") as session:
            values = [tuple(vars(row).values()) for row in rows]
            session.run(self._sql.upsert(FRESHNESS, values, "as_of"))
            self._commit(session)

    # the target

    def rows(self, target: str) -> int:
        with self._session() as session:
            return Target(session, self.schema, target).count() or 0

    def types(self, target: str) -> Mapping[str, str] | None:
        with self._session() as session:
            found = Target(session, self.schema, target).columns()
            return None if found is None else {column.name.lower(): column.type for column in found}

    def ask(self, target: str, words: Callable[[TargetSql], Sequence[str]]) -> list[Row] | None:
        with self._session() as session:
            place = Target(session, self.schema, target)
            found = place.columns()
            if found is None:
                return None
            questions = words(TargetSql(DIALECT, place.sql, {c.name: c.type for c in found}))
            return [row for sql in questions for row in session.query(sql)]

    def changes(
        self,
        table: Table,
        loaded: Table | None = None,
        shaped: Table | None = None,
        *,
        first_load: bool = False,
    ) -> tuple[TargetChange, ...]:
        with about(table.name), self._session() as session:
            target = Target(session, self.schema, table.target)
            found, wanted = target.columns(), wanted_columns(fields(table), CAN, table)
            if found is not None:
                check_strangers(table.target, found, wanted, arrived(shaped, table), target.has)
            if found is not None and first_load:
                relax = partial(_relaxing, target.sql)
                check_nullable(table.target, found, may_be_null(table), relax)
            return self._changes(target, wanted, found, target_renames(table), loaded, table)

    def _changes(
        self, target: Target, wanted: Any, found: Any, renames: Any, loaded: Table | None, now: Table
    ) -> tuple[TargetChange, ...]:
        known = {w.name: w.type for w in (wanted_columns(placed(loaded, now), CAN) if loaded else ())}
        encode = "convert_to({}, 'UTF8')"
        return changes(target.sql, target.name, wanted, found, renames, known, encode=encode)

    # a load

    def shares(self, request: LoadRequest) -> bool:
        return False

    def load(self, request: LoadRequest) -> LoadOutcome:
        began = time.monotonic()
        with about(request.table.name), scratched("floodmark-load-") as folder:
            self._created(*KEYED)
            outcome = self._load(request, folder)
        return replace(outcome, seconds=time.monotonic() - began)

    def _load(self, request: LoadRequest, folder: Path) -> LoadOutcome:
        with self._session(request.target) as session:
            target = Target(session, self.schema, request.target)
            ledger, rows = self._ledger(session, *request.question), target.count()
            decision = decide(request, ledger, rows)
            if not decision.new:
                return LoadOutcome((), decision.already, findings=decision.findings)
            loaded = request.ledger_rows(decision.new)
            self._put(session, target, request, decision, rows, folder)
            rule = count_after(request, ledger, decision, rows, "count(*)")
            count = session.one(f"SELECT {rule} FROM {target.sql}")
            for step in self._sql.record([(request, loaded)]):
                session.run(step.sql)
            left = ledger.after(request.epoch, request.retake, loaded).last(request.target, request.epoch)
            kept = Count(request.target, request.log, request.epoch, *left, int(count))
            session.run(self._sql.upsert(COUNTS, [kept.row]))
            if decision.set_holder:
                session.run(self._sql.upsert(TARGETS, [(request.target, *astuple(request.holder))]))
            request.at_work(Step("commit"), 0)
            try:
                self._commit(session)
            except (Gone, OSError) as error:
                self._settle(request, decision, error)
        return LoadOutcome(loaded, decision.already, request.retake, findings=decision.findings)

    def _settle(self, request: LoadRequest, decision: Decision, lost: Exception) -> None:
        """The answer to COMMIT was lost: the ledger, read under the lock, says whether it happened."""
        try:
            with self._session(request.target) as session:
                there = self._ledger(session, *request.question).loaded(request.epoch)
        except FloodmarkError as error:
            said = f"the answer to COMMIT was lost, and the ledger can't be read: {error.message}"
            raise UnknownOutcome(said, hint="run again: the ledger shows whether it was committed") from error
        if not all((commit.n, digest) in there for commit, digest in decision.new):
            raise TransientError("the load was not committed", hint="run again: nothing is lost") from lost

    def _put(
        self, session: Session, target: Target, request: LoadRequest, decision: Decision, rows: int | None,
        folder: Path,
    ) -> None:  # fmt: skip
        """Make the target fit, then put the rows into it."""
        table, now, way = request.table, request.now, decision.way
        found, renames = target.columns(), target_renames(now)
        if by_key(way) and found is not None:
            made = renamings(target.sql, found, renames)
        else:
            wanted = wanted_columns(placed(table, now), CAN, now)
            if request.keeps_rows(way):
                new = arrived(request.shaped, now)
                check_strangers(request.target, found or (), wanted, new, target.has, described=table.name)
            loaded = None if way == "replace" else request.loaded
            made = self._changes(target, wanted, found, renames, loaded, now)
        side = Target(session, self.schema, KEYS + request.target)
        made += renamings(side.sql, side.columns() or (), renames)
        session.run(*(sql for change in made for sql in change.statements))
        if way == "mark":
            session.run(f"ALTER TABLE {target.sql} ADD COLUMN IF NOT EXISTS {quote(DELETED_AT)} TIMESTAMP")
        there = {name.lower(): name for _, name in renamed(found or (), renames)}
        read = file_fields(table, way, now)
        given = tuple(c for c in constants(table, now) if c.target in there)
        weighed = any(field.file_only for field in read)
        spec = PostgresPut(
            table=table,
            schema=self.schema,
            target=target.name,
            side=side.name,
            fields=read,
            constants=tuple((c.target, literal(c.type(CAN), c.value)) for c in given),
            kept=tuple(
                name
                for name in left_alone(there.values(), read, given)
                if name not in (target.generated() if found else ())
            ),
            filled=bool(rows),
            side_filled=weighed and bool(side.count()),
        )
        staged = stage(session, spec, request, decision, folder)
        request.at_work(Step("merge"), 0)
        put(session, spec, way, staged, [commit.at for commit, _ in decision.staged])

    def close(self) -> None:
        """Nothing is kept open between calls."""


def opened(
    spec: WarehouseSpec, *, linger: float, seconds: float | None, waits: Callable[[Wait | None], None]
) -> Postgres:
    """The PostgreSQL of a configuration, by its socket: PGHOST is the folder that it is in."""
    folder, database = Path(os.environ.get("PGHOST", spec.host or "")), spec.database or ""
    return Postgres(lambda: Backend.own(folder, database), spec.schema, seconds or 30.0)
