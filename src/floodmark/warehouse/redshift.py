"""Redshift: one transaction per load, begun with the lock of the target's own lock table.

What to do is decided from what is seen before; the transaction proves, under the lock, that it still holds, and
ends otherwise. A COMMIT that was not answered is settled by taking the same lock and reading the ledger: the lock
is free only when the old transaction has ended, one way or the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from floodmark.errors import ConflictError, FloodmarkError
from floodmark.model import Finding, Table
from floodmark.types import fields
from floodmark.warehouse import (
    KEYS,
    Holder,
    Ledger,
    LedgerRow,
    LoadOutcome,
    LoadRequest,
    Part,
    data_files,
)
from floodmark.warehouse.canonical import REDSHIFT, Place
from floodmark.warehouse.columns import Change, TargetColumn, check_nullable
from floodmark.warehouse.decide import Decision, check_holder, decide
from floodmark.warehouse.files import file_fields
from floodmark.warehouse.places import may_be_null, placed
from floodmark.warehouse.redshift_catalog import Relation, checked_columns, relations
from floodmark.warehouse.redshift_ddl import (
    check_parsed,
    check_replaceable,
    keys_query,
    replaced,
    replacing,
    shape,
)
from floodmark.warehouse.redshift_files import Manifests, manifests, prove
from floodmark.warehouse.redshift_fit import altered, check_large_strings, fitted
from floodmark.warehouse.redshift_ledger import LedgerTables, check_still
from floodmark.warehouse.redshift_names import checked_target, folded, path
from floodmark.warehouse.redshift_rights import naming_rights
from floodmark.warehouse.redshift_rows import put
from floodmark.warehouse.redshift_stage import Put
from floodmark.warehouse.redshift_stale import naming_users
from floodmark.warehouse.redshift_steps import (
    Busy,
    Do,
    Failed,
    Limits,
    Outcome,
    Row,
    Session,
    Step,
    TooLong,
    Transport,
)
from floodmark.warehouse.redshift_tries import Tries


@dataclass(frozen=True)
class _Tried:
    """A transaction that has been tried, and what it was to load."""

    outcome: Outcome
    decision: Decision
    loaded: tuple[LedgerRow, ...]


class Redshift:
    """The Warehouse in a Redshift database. Threads may share it: every call has a session of its own."""

    def __init__(
        self,
        transport: Transport,
        schema: str = "public",
        *,
        iam_role: str | None = None,
        limits: Limits | None = None,
        large_strings: bool = False,
    ) -> None:
        self.schema = schema
        self._transport = transport
        self._iam_role = iam_role
        self._large_strings = large_strings
        self._limits = limits or Limits()
        self._tables = LedgerTables(schema)
        self._tries = Tries(transport, self._limits, self._tables)

    def ledger(self, log: str, target: str, part: Part | None = None) -> Ledger:
        """What was loaded of a log, and who fills the target; empty when there is no ledger yet."""
        with self._rights(target):
            return self._tries.asked(lambda session: self._tables.read(session, log, target, part))

    def rows(self, target: str) -> int:
        """How many rows the target has; 0 when it is not there."""
        name = folded(target)

        def ask(session: Session) -> int:
            there = self._columns(session, name, target)
            return 0 if there is None else self._count(session, name)

        with self._rights(target):
            return self._tries.asked(ask)

    def recount(self, log: str, target: str) -> None:
        """Nothing to do: rows are not counted here, because that would read a column of the whole table."""

    def changes(self, table: Table, loaded: Table | None = None, *, anew: bool = False) -> tuple[Change, ...]:
        """What a load of the table as it is now would do to its target first; `anew`: none of it was loaded yet."""
        name = checked_target(table.target)

        def ask(session: Session) -> tuple[Change, ...]:
            found = self._columns(session, name, table.target)
            known = placed(loaded, table) if loaded else ()
            fit = shape(table, self.schema, name, fields(table), found, known=known)
            if self._large_strings:
                check_parsed(self.schema, name, fields(table), fit)
                if fit.parsed:
                    check_large_strings(session)
            made = fit.changes
            self._check_replaceable(session, name, made)
            if anew and found is not None:
                where = path(self.schema, name)
                check_nullable(
                    name, found, may_be_null(table), lambda c: "; ".join(replacing(where, c.name, c.type))
                )
            return made

        try:
            with self._rights(table.target):
                return self._tries.asked(ask)
        except FloodmarkError as error:
            error.of(table.name)
            raise

    def ask(self, target: str, words: Callable[[Place], Sequence[str]]) -> list[Row] | None:
        """The answers to questions about the target, put in Redshift's words; None: there is no target."""

        def question(session: Session) -> list[Row] | None:
            name = folded(target)
            found = relations(session, self.schema, (name,))
            if name not in found:
                return None
            types = {column.name: column.type for column in found[name].columns}
            place = Place(REDSHIFT, path(self.schema, name), types, self._transport.longest)
            seconds = self._limits.statement
            return [row for sql in words(place) for row in session.query(sql, seconds=seconds)]

        with self._rights(target):
            return self._tries.asked(question)

    def set_epoch(
        self, pipeline: str, log: str, table: str, target: str, epoch: int, *, adopt: bool = False
    ) -> None:
        """Begin a new load epoch; loads of an earlier one stop. A later epoch there is a ConflictError."""

        def attempt(session: Session) -> Outcome:
            found = relations(session, self.schema, self._tables.needed(target))
            self._tables.versioned(session, target, found, self._limits.lock)
            self._tables.create(session, target, found, self._limits.lock)
            lock = self._tries.lock(target)
            seen = self._tables.seen(
                session, log, target, self._tables.needed(target), rows=False, seconds=lock.seconds
            )
            ledger = seen.ledger
            if not adopt:
                check_holder(ledger.holder, pipeline, log, table, target)
            if ledger.epoch is not None and ledger.epoch > epoch:
                raise ConflictError(f"the load stage of {table} was reset by a later commit ({ledger.epoch})")
            holder = Holder(pipeline, log, table, epoch)
            steps = (
                self._tables.unchanged(target, seen.version),
                self._tables.renewed(target, seen.version),
                *self._tables.set_holder(target, holder, ledger.holder),
            )
            return session.transaction(lock, steps)

        try:
            with self._rights(target):
                self._tries.run(pipeline, target, attempt)  # doing it twice does no harm
        except FloodmarkError as error:
            error.of(table)
            raise

    def load(self, request: LoadRequest) -> LoadOutcome:
        """Load the commits that the ledger does not have, in one transaction."""
        began = time.monotonic()
        try:
            checked_target(request.target)
            with self._rights(request.target):
                outcome = self._load_all(request)
        except FloodmarkError as error:
            error.of(request.table.name)
            raise
        return replace(outcome, seconds=time.monotonic() - began)

    def close(self) -> None:
        """Nothing is kept open between calls."""

    # a load

    def _load_all(self, request: LoadRequest) -> LoadOutcome:
        """The commits in one transaction, or in several where this way in does not take so much at once.

        Those are as good: each holds whole commits and their ledger rows, in the log's order, and leaves the rest
        pending. What is to be taken back is taken back by the first.
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
            rows=sum(part.rows for part in parts),
            files=sum(part.files for part in parts),
            findings=tuple(dict.fromkeys(finding for part in parts for finding in part.findings)),
        )

    def _load(self, request: LoadRequest) -> LoadOutcome:
        tried: list[_Tried] = []
        after: list[str] = []

        def attempt(session: Session) -> Outcome:
            try:
                found = self._try(session, request, after)
                if isinstance(found.outcome.error, Busy):
                    raise Failed(found.outcome.error)
            except Failed as failed:
                names = (folded(request.target), folded(request.target, KEYS))
                raise naming_users(session, self.schema, names, failed) from failed
            tried.append(found)
            return found.outcome

        def happened() -> bool:
            new = tried[-1].decision.new
            return self._tries.loaded(request.pipeline, request.target, request.log, request.epoch, new)

        try:
            self._tries.run(request.pipeline, request.target, attempt, happened)
        finally:
            findings = self._restored(request.table.name, after)
        decision, loaded = tried[-1].decision, tried[-1].loaded
        return LoadOutcome(
            loaded,
            decision.already,
            request.retake if loaded else frozenset(),
            rows=sum(row.rows for row in loaded),
            files=sum(row.files for row in loaded),
            findings=(*decision.findings, *findings),
        )

    def _restored(self, table: str, statements: Sequence[str]) -> tuple[Finding, ...]:
        """Give the target back what was taken from it for the load. Rows are right without it: a failure is only told."""
        for statement in dict.fromkeys(statements):

            def restore(session: Session, sql: str = statement) -> None:
                session.execute(sql)

            try:
                self._tries.asked(restore)
            except FloodmarkError as error:
                detail = f"the target has lost its DISTKEY, and merges are slower ({error.message}); run: {statement}"
                return (Finding("dist_key", table, detail),)
        return ()

    def _try(self, session: Session, request: LoadRequest, after: list[str]) -> _Tried:
        """One transaction; nothing to load is as good as committed. `after` gets what is to be done at the very end.

        Tables that loads of other targets share are read before it and written at its end, never both inside: under
        SERIALIZABLE isolation two loads would each be in the other's way.
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
        decision = decide(request, ledger, count)
        if not decision.new:
            return _Tried(Outcome("committed"), decision, ())
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        loaded = tuple(
            LedgerRow(commit.n, digest, request.epoch, commit.rows, len(commit.files), now, request.target)
            for commit, digest in decision.new
        )
        self._tables.create(session, request.target, found, self._limits.lock)
        with manifests(request.store, request.table, request.run) as made:
            rows = self._rows(session, request, decision, made, tables, after)
            steps: list[Step] = [
                self._tables.unchanged(request.target, seen.version),
                *rows,
                self._tables.renewed(request.target, seen.version),
            ]
            if decision.set_holder:
                holder = Holder(request.pipeline, request.log, request.table.name, request.epoch)
                steps += self._tables.set_holder(request.target, holder, ledger.holder)
            steps += self._tables.record(request, loaded)
            outcome = session.transaction(lock, steps)
        return _Tried(outcome, decision, loaded)

    def _rows(
        self,
        session: Session,
        request: LoadRequest,
        decision: Decision,
        made: Manifests,
        found: Mapping[str, Relation],
        after: list[str],
    ) -> tuple[Step, ...]:
        """The steps that make the target fit and put the rows into it; `found`: the target and its keys."""
        table, way = request.table, decision.way
        target, side = checked_target(request.target), folded(request.target, KEYS)
        # A missing file is known before anything is locked.
        files = data_files(decision.staged)
        proven = iter(prove(request.store, files, file_fields(table, way), table.name))
        commits = [[next(proven) for _ in commit.files] for commit, _ in decision.staged]
        there, beside = (found[name].columns if name in found else None for name in (target, side))
        try:
            fit = fitted(request, way, self.schema, (target, side), (there, beside))
        except FloodmarkError:
            check_still(session, self.schema, (target, side), found)
            raise
        if there is not None and (fit.before or fit.inside):
            check_still(session, self.schema, (target, side), found)
        self._check_replaceable(session, target, fit.replaced)
        large = self._large_strings and bool(fit.documents)
        if large:
            check_large_strings(session)
        after += fit.after
        seconds = self._limits.lock
        instead = [statement for change in fit.before for statement in altered(session, change, seconds)]
        spec = Put(
            table=table,
            schema=self.schema,
            target=target,
            side=side,
            fields=fit.fields,
            parsed=fit.parsed,
            constants=fit.constants,
            iam_role=self._iam_role,
            filled=there is not None,
            side_filled=beside is not None and fit.weighed,
            manifest=made.write,
            dist_key=fit.dist_key,
            created=fit.created,
            direct=fit.direct,
            documents=fit.documents if large else frozenset(),
        )
        steps = [
            Do(statement, seconds=seconds if statement.startswith(("ALTER", "DROP")) else None)
            for statement in (*fit.inside, *instead)
        ]
        return (*steps, *put(spec, way, commits, [commit.at for commit, _ in decision.staged]))

    # questions

    def _rights(self, target: str) -> AbstractContextManager[None]:
        """Missing rights are named with the statements that grant them."""
        names = (folded(target), folded(target, KEYS), *self._tables.needed(target))
        return naming_rights(self._transport, self.schema, names)

    def _count(self, session: Session, name: str) -> int:
        return int(session.query(f"SELECT count(*) FROM {path(self.schema, name)}")[0][0])

    def _check_replaceable(self, session: Session, name: str, changes: Sequence[Change]) -> None:
        """Refuse changes of the target's keys; they are asked for only where a column has to be replaced."""
        if replaced(changes):
            keys = session.query(keys_query(self.schema, name))
            check_replaceable(self.schema, name, changes, keys)

    def _columns(self, session: Session, name: str, target: str) -> tuple[TargetColumn, ...] | None:
        """The target's columns; None when it is not there."""
        return checked_columns(relations(session, self.schema, (name,)).get(name), target)
