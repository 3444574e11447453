"""Redshift: one transaction per load, which begins by locking the target's own lock table.

The decision is made from what is read beforehand; under the lock, the transaction proves that it still holds,
or ends. A COMMIT that was not answered is settled by taking the same lock and reading the ledger: the lock is
free only once the old transaction has ended, one way or the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeVar

from floodmark.config.load import WarehouseSpec
from floodmark.load.canonical import REDSHIFT, TargetSql
from floodmark.load.columns import (
    TargetChange,
    TargetColumn,
    arrived,
    check_nullable,
    check_strangers,
    may_be_null,
    placed,
    wanted_columns,
)
from floodmark.load.decide import Decision, check_new_epoch, count_after, decide, guarded, touched
from floodmark.load.files import file_fields
from floodmark.load.protocol import FRESHNESS, KEYS, Freshness, LoadOutcome, LoadRequest, data_files
from floodmark.load.redshift.catalog import (
    Relation,
    checked_columns,
    checked_target,
    folded,
    numbered,
    path,
    relations,
)
from floodmark.load.redshift.facts import naming_rights
from floodmark.load.redshift.files import WriteManifest, manifests, prove
from floodmark.load.redshift.ledger import ROWS, RedshiftLedger, check_still, write_freshness
from floodmark.load.redshift.merge import put
from floodmark.load.redshift.shape import (
    altered,
    check_large_strings,
    check_parsed,
    check_replaceable,
    fitted,
    keys_query,
    replaced,
    replacing,
    shape,
)
from floodmark.load.redshift.steps import (
    Busy,
    Do,
    Expect,
    Limits,
    RedshiftSession,
    Row,
    StatementFailed,
    Step,
    TooLong,
    Transport,
)
from floodmark.load.redshift.transaction import Tries, naming_users
from floodmark.model.errors import FloodmarkError, about
from floodmark.model.ledger import Ledger, LedgerRow, LoadSum, Part, TargetFiller
from floodmark.model.run import Finding, StepKind, Wait
from floodmark.model.run import Step as Doing
from floodmark.model.table import Table
from floodmark.model.types import fields
from floodmark.model.warehouse import REDSHIFT as CAN

T = TypeVar("T")


class Redshift:
    """The Warehouse in a Redshift database. Threads may share it: every call opens its own session."""

    wide_bytes: int | None = None

    def __init__(
        self,
        transport: Transport,
        schema: str = "public",
        *,
        iam_role: str | None = None,
        large_strings: bool = False,
        waits: Callable[[Wait | None], None] = lambda on: None,
    ) -> None:
        self.schema = schema
        self._transport = transport
        self._iam_role = iam_role
        self._large_strings = large_strings
        self._limits = transport.limits
        self._tables = RedshiftLedger(schema)
        self._tries = Tries(transport, self._tables, waits)

    def ledger(self, log: str, target: str, part: Part | None = None) -> Ledger:
        """What was loaded from a log, and who fills the target; empty while there is no ledger."""
        return self._asked(target, lambda session: self._tables.read(session, log, target, part))

    def load_sums(self) -> list[LoadSum]:
        """The whole ledger, summed up by log and load epoch."""
        return self._tries.asked(self._tables.sums)

    def ledger_sums(self, free: Callable[[], bool]) -> list[LoadSum]:
        """The whole ledger, summed up by log and load epoch; waits for no load."""
        return self._tries.asked(self._tables.sums)

    def rows(self, target: str) -> int:
        """How many rows the target has; 0 when it does not exist."""
        name = folded(target)

        def ask(session: RedshiftSession) -> int:
            there = self._columns(session, name, target)
            return 0 if there is None else self._count(session, name)

        return self._asked(target, ask)

    def recount(self, pipeline: str, log: str, target: str) -> None:
        """Accept the rows that the target has now: the next load expects that many."""

        def attempt(session: RedshiftSession) -> None:
            name = folded(target)
            found = relations(session, self.schema, (*self._tables.needed(target), name))
            if not {*self._tables.needed(target), name} <= found.keys():
                return
            if not found[self._tables.lock_table(target)].has("token"):
                return  # the lock table of an earlier release, which kept no count
            lock = self._tries.lock(target)
            seen = self._tables.seen(session, log, target, found, name=name, seconds=lock.seconds)
            ledger = seen.ledger
            if ledger.counted in (None, self._count(session, name, self._limits.statement)):
                return
            commits, _ = ledger.last(target, ledger.epoch)
            steps = (
                self._tables.unchanged(target, seen.version),
                *self._tables.recounted(target, seen.version, commits),
            )
            session.transaction(lock, steps)

        with self._rights(target):
            self._tries.run(pipeline, target, attempt)  # doing it twice does no harm

    def changes(
        self,
        table: Table,
        loaded: Table | None = None,
        shaped: Table | None = None,
        *,
        first_load: bool = False,
    ) -> tuple[TargetChange, ...]:
        """The changes that a load of the table as it is now would first make; `first_load`: nothing loaded yet."""
        name = checked_target(table.target)

        def ask(session: RedshiftSession) -> tuple[TargetChange, ...]:
            found = self._columns(session, name, table.target)
            if found is not None:
                wanted = wanted_columns(fields(table), CAN, table)
                check_strangers(name, found, wanted, arrived(shaped, table), self._has(session, name))
            known = placed(loaded, table) if loaded else ()
            fit = shape(table, self.schema, name, fields(table), found, known=known)
            if self._large_strings:
                check_parsed(self.schema, name, fields(table), fit)
                if fit.parsed:
                    check_large_strings(session)
            made = fit.changes
            self._check_replaceable(session, name, made)
            if first_load and found is not None:
                where = path(self.schema, name)
                check_nullable(
                    name, found, may_be_null(table), lambda c: "; ".join(replacing(where, c.name, c.type))
                )
            return made

        with about(table.name):
            return self._asked(table.target, ask)

    def types(self, target: str) -> Mapping[str, str] | None:
        """The types of the target's columns, by lower-case name; None: there is no target."""
        found = self._asked(target, lambda session: self._columns(session, folded(target), target))
        return None if found is None else {column.name.lower(): column.type for column in found}

    def ask(self, target: str, words: Callable[[TargetSql], Sequence[str]]) -> list[Row] | None:
        """The rows that queries about the target, in Redshift's SQL, return; None: there is no target."""

        def question(session: RedshiftSession) -> list[Row] | None:
            name = folded(target)
            found = relations(session, self.schema, (name,))
            if name not in found:
                return None
            types = {column.name: column.type for column in found[name].columns}
            place = TargetSql(REDSHIFT, path(self.schema, name), types, self._transport.longest)
            seconds = self._limits.statement
            return [row for sql in words(place) for row in session.query(sql, seconds=seconds)]

        return self._asked(target, question)

    def note_freshness(self, rows: Sequence[Freshness]) -> None:
        """Advance these targets in `floodmark_freshness`, all at once."""
        with naming_rights(self._transport, self.schema, (FRESHNESS,)):
            self._tries.asked(lambda session: write_freshness(session, self.schema, rows, self._limits))

    def set_epoch(self, holder: TargetFiller, target: str, *, adopt: bool = False) -> None:
        """Begin a new load epoch, which stops loads of earlier ones; ConflictError if a later one exists."""

        def attempt(session: RedshiftSession) -> None:
            found = relations(session, self.schema, self._tables.needed(target))
            self._tables.versioned(session, target, found, self._limits.lock)
            self._tables.create(session, target, found, self._limits.lock)
            lock = self._tries.lock(target)
            seen = self._tables.seen(
                session, holder.log, target, self._tables.needed(target), rows=False, seconds=lock.seconds
            )
            check_new_epoch(seen.ledger, holder, target, adopt)
            steps = (
                self._tables.unchanged(target, seen.version),
                *self._tables.renewed(target, seen.version),
                *self._tables.sql.set_holder(target, holder, seen.ledger.holder),
            )
            session.transaction(lock, steps)

        with about(holder.table), self._rights(target):
            self._tries.run(holder.pipeline, target, attempt)  # doing it twice does no harm

    def shares(self, request: LoadRequest) -> bool:
        """Never: COPY fills one table."""
        return False

    def load(self, request: LoadRequest) -> LoadOutcome:
        """Load the commits that the ledger does not have, in one transaction."""
        began = time.monotonic()
        with about(request.table.name):
            checked_target(request.target)
            with self._rights(request.target):
                outcome = self._load_all(request)
        return replace(outcome, seconds=time.monotonic() - began)

    def close(self) -> None:
        """Nothing is kept open between calls."""

    # a load

    def _load_all(self, request: LoadRequest) -> LoadOutcome:
        """Load the commits in one transaction, or in several if the transport can't take that much at once.

        Several are as good: each holds whole commits and their ledger rows, in the log's order, and leaves
        the rest pending. The first also takes back the ledger rows that must go.
        """
        try:
            return self._load(request)
        except TooLong:
            if len(request.commits) == 1 or request.commits[-1][0].load_as == "replace":
                raise
        half = len(request.commits) // 2
        parts = (
            self._load_all(replace(request, commits=request.commits[:half])),
            self._load_all(replace(request, commits=request.commits[half:], retake=frozenset())),
        )
        return LoadOutcome(
            tuple(row for part in parts for row in part.loaded),
            tuple(n for part in parts for n in part.already),
            parts[0].retaken,
            findings=tuple(dict.fromkeys(finding for part in parts for finding in part.findings)),
        )

    def _load(self, request: LoadRequest) -> LoadOutcome:
        tried: list[tuple[Decision, tuple[LedgerRow, ...]]] = []
        after: list[str] = []

        def attempt(session: RedshiftSession) -> None:
            try:
                self._try(session, request, tried, after)
            except StatementFailed as failed:
                if not isinstance(failed.error, Busy):
                    raise
                names = (folded(request.target), folded(request.target, KEYS))
                raise naming_users(session, self.schema, names, failed.error) from failed

        def happened() -> bool:
            new = tried[-1][0].new
            return self._tries.loaded(request.pipeline, request.target, request.log, request.epoch, new)

        try:
            self._tries.run(request.pipeline, request.target, attempt, happened)
        finally:
            findings = self._restored(request.table.name, after)
        decision, loaded = tried[-1]
        return LoadOutcome(
            loaded,
            decision.already,
            request.retake if loaded else frozenset(),
            findings=(*decision.findings, *findings),
        )

    def _restored(self, table: str, statements: Sequence[str]) -> tuple[Finding, ...]:
        """Restore what the load took from the target; rows are right anyway, so a failure is a finding."""
        for statement in dict.fromkeys(statements):

            def restore(session: RedshiftSession, sql: str = statement) -> None:
                session.execute(sql)

            try:
                self._tries.asked(restore)
            except FloodmarkError as error:
                detail = f"the target has lost its DISTKEY, so merges are slower ({error.message}); run: {statement}"
                return (Finding("dist_key", table, detail),)
        return ()

    def _try(
        self,
        session: RedshiftSession,
        request: LoadRequest,
        tried: list[tuple[Decision, tuple[LedgerRow, ...]]],
        after: list[str],
    ) -> None:
        """One transaction. `tried` collects what it was to load, `after` the statements for the very end.

        Tables shared with loads of other targets are read before it and written at its end, never both
        inside: under SERIALIZABLE isolation, two such loads would conflict.
        """
        target, side = folded(request.target), folded(request.target, KEYS)
        found = relations(session, self.schema, (*self._tables.needed(request.target), target, side))
        there = checked_columns(found.get(target), request.target)
        self._tables.versioned(session, request.target, found, self._limits.lock)
        lock = self._tries.lock(request.target)
        seen = self._tables.seen(
            session, request.log, request.target, found, request.part, name=target, seconds=lock.seconds
        )
        ledger, count = seen.ledger, seen.rows
        tables = {name: found[name] for name in (target, side) if name in found}
        if there is None and (self._tables.lock_table(request.target) in found or ledger.rows):
            check_still(session, self.schema, (target, side), tables)
        if count and (not ledger.rows or request.commits[-1][0].load_as == "replace"):
            count = self._count(session, target)
        decision = decide(request, replace(ledger, counted=None), count)
        loaded = request.ledger_rows(decision.new)
        tried.append((decision, loaded))
        if not decision.new:
            return
        # The check that the target still has the rows of the last load runs under the lock. A load that
        # restores or removes rows needs to know beforehand how many there are.
        left, rule = ledger.counted, ROWS
        untouched: tuple[Step, ...] = ()
        if left is not None and count is not None and guarded(request, decision):
            untouched = (self._untouched(request, left),)
        elif left is not None and decision.way != "replace" and not request.adopt:
            count = self._count(session, target, self._limits.statement) if count else count
            rule = count_after(request, ledger, decision, count, ROWS)
        self._tables.create(session, request.target, found, self._limits.lock)
        with manifests(request.store, request.table, request.run) as manifest:
            rows = self._rows(session, request, decision, manifest, tables, after)
            steps: list[Step] = [
                self._tables.unchanged(request.target, seen.version),
                *untouched,
                *rows,
                *self._tables.recounted(
                    request.target,
                    seen.version,
                    ledger.last(request.target, request.epoch)[0] + len(loaded) - len(request.retake),
                    rule,
                ),
            ]
            if decision.set_holder:
                steps += self._tables.sql.set_holder(request.target, request.holder, ledger.holder)
            steps += self._tables.sql.record([(request, loaded)])
            files = len(data_files(decision.staged))

            def at_work(kind: StepKind) -> None:
                request.at_work(Doing(kind, total=files if kind == "copy" else 0), 0)

            session.transaction(replace(lock, at_work=at_work), steps)

    def _rows(
        self,
        session: RedshiftSession,
        request: LoadRequest,
        decision: Decision,
        manifest: WriteManifest,
        found: Mapping[str, Relation],
        after: list[str],
    ) -> tuple[Step, ...]:
        """The steps that make the target fit and put the rows into it; `found`: target and weights."""
        table, way = request.table, decision.way
        target, side = checked_target(request.target), folded(request.target, KEYS)
        # Find out about a missing file before anything is locked.
        files = data_files(decision.staged)

        def checked(number: int) -> None:
            request.at_work(Doing("check", number, len(files)), 0)

        proven = iter(prove(request.store, files, file_fields(table, way, request.now), table.name, checked))
        commits = [[next(proven) for _ in commit.files] for commit, _ in decision.staged]
        there, beside = (found[name].columns if name in found else None for name in (target, side))
        try:
            if there is not None and request.keeps_rows(way):
                check_strangers(
                    target, there, wanted_columns(placed(table, request.now), CAN, request.now),
                    arrived(request.shaped, request.now), self._has(session, target), described=table.name,
                )  # fmt: skip
            fit = fitted(request, way, self.schema, (target, side), (there, beside))
        except FloodmarkError:
            check_still(session, self.schema, (target, side), found)
            raise
        if there is not None and (fit.before or fit.inside):
            check_still(session, self.schema, (target, side), found)
        self._check_replaceable(session, target, fit.replaced)
        documents = fit.put.documents if self._large_strings else frozenset()
        if documents:
            check_large_strings(session)
        after += fit.after
        kept, fixed = fit.put.kept, {c.name for c in there or () if c.default and not c.nullable}
        if fixed.intersection(kept):
            unwritable = numbered(session, self.schema, target)
            kept = tuple(name for name in kept if name not in unwritable)
        spec = replace(fit.put, iam_role=self._iam_role, manifest=manifest, documents=documents, kept=kept)
        seconds = self._limits.lock
        instead = [statement for change in fit.before for statement in altered(session, change, seconds)]
        steps = [
            Do(statement, seconds=seconds if statement.startswith(("ALTER", "DROP")) else None)
            for statement in (*fit.inside, *instead)
        ]
        return (*steps, *put(spec, way, commits, [commit.at for commit, _ in decision.staged]))

    # queries

    def _asked(self, target: str, question: Callable[[RedshiftSession], T]) -> T:
        """The answer to a question about a target."""
        with self._rights(target):
            return self._tries.asked(question)

    def _rights(self, target: str) -> AbstractContextManager[None]:
        """Report missing rights with the statements that grant them."""
        names = (folded(target), folded(target, KEYS), *self._tables.needed(target))
        return naming_rights(self._transport, self.schema, names)

    def _untouched(self, request: LoadRequest, counted: int) -> Step:
        """Check that the target has as many rows as the last load left."""
        return Expect(
            f"SELECT count(*) FROM {path(self.schema, folded(request.target))}",
            counted,
            lambda found: touched(request, counted, None if found is None else int(str(found))),
        )

    def _count(self, session: RedshiftSession, name: str, seconds: float | None = None) -> int:
        return int(session.query(f"SELECT count(*) FROM {path(self.schema, name)}", seconds=seconds)[0][0])

    def _has(self, session: RedshiftSession, name: str) -> Callable[[str], bool]:
        """A function that tells whether any row of a table meets a condition."""

        def has(condition: str) -> bool:
            return bool(session.query(f"SELECT 1 FROM {path(self.schema, name)} WHERE {condition} LIMIT 1"))

        return has

    def _check_replaceable(
        self, session: RedshiftSession, name: str, changes: Sequence[TargetChange]
    ) -> None:
        """Refuse to replace the target's key columns; queries the keys only if a column is to be replaced."""
        if replaced(changes):
            keys = session.query(keys_query(self.schema, name))
            check_replaceable(self.schema, name, changes, keys)

    def _columns(self, session: RedshiftSession, name: str, target: str) -> tuple[TargetColumn, ...] | None:
        """The target's columns; None when it does not exist."""
        return checked_columns(relations(session, self.schema, (name,)).get(name), target)


def opened(
    spec: WarehouseSpec, *, linger: float, seconds: float | None, waits: Callable[[Wait | None], None]
) -> Redshift:
    """The Redshift of a configuration; see `open_warehouse`."""
    return Redshift(
        transport(spec, seconds),
        spec.schema,
        iam_role=spec.iam_role,
        large_strings=spec.large_strings,
        waits=waits,
    )


def transport(spec: WarehouseSpec, seconds: float | None) -> Transport:
    """The way to a Redshift; its driver, or AWS's, is imported only now. `seconds`: as in `open_warehouse`."""
    limits = Limits() if seconds is None else Limits(connect=seconds, question=seconds, grace=1.0, attempts=1)
    if spec.statement_timeout is not None:
        limits = replace(limits, statement=spec.statement_timeout)
    if spec.transport == "data_api":
        from floodmark.load.redshift.data_api import DataApiTransport

        return DataApiTransport(spec, limits)
    from floodmark.load.redshift.socket import SocketTransport

    return SocketTransport(spec, limits)
