"""Redshift: one transaction per load, begun with the lock of the target's own lock table.

What to do is decided from what is seen before; the transaction proves, under the lock, that it still holds, and
ends otherwise. A COMMIT that was not answered is settled by taking the same lock and reading the ledger: the lock
is free only when the old transaction has ended, one way or the other.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from floodmark.errors import ConflictError, FloodmarkError, TransientError, UnknownOutcome
from floodmark.types import fields
from floodmark.warehouse import (
    KEYS,
    Holder,
    Ledger,
    LedgerRow,
    LoadOutcome,
    LoadRequest,
    Numbered,
    data_files,
)
from floodmark.warehouse.columns import TargetColumn
from floodmark.warehouse.decide import Decision, check_holder, decide
from floodmark.warehouse.files import file_fields, key_fields
from floodmark.warehouse.redshift_ddl import Shape, columns_query, found_column, shape
from floodmark.warehouse.redshift_files import Manifests, manifests, prove
from floodmark.warehouse.redshift_ledger import LedgerTables, check_kind, ledger_rows
from floodmark.warehouse.redshift_names import checked_target, folded, path
from floodmark.warehouse.redshift_rows import Put, put
from floodmark.warehouse.redshift_stale import end_stale, keepers
from floodmark.warehouse.redshift_steps import (
    Do,
    Failed,
    Limits,
    Lock,
    Outcome,
    Session,
    Step,
    TooLong,
    Transport,
)

T = TypeVar("T")


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
    ) -> None:
        self.schema = schema
        self._transport = transport
        self._iam_role = iam_role
        self._limits = limits or Limits()
        self._tables = LedgerTables(schema)
        self._lost: set[int] = set()  # backends whose sessions broke: nobody will ever go on with them

    def ledger(self, log: str, target: str) -> Ledger:
        """What was loaded of a log, and who fills the target; empty when there is no ledger yet."""
        return self._asked(lambda session: self._tables.read(session, log, target))

    def rows(self, target: str) -> int:
        """How many rows the target has; 0 when it is not there."""
        return self._asked(lambda session: self._count(session, target, exact=True) or 0)

    def set_epoch(
        self, pipeline: str, log: str, table: str, target: str, epoch: int, *, adopt: bool = False
    ) -> None:
        """Begin a new load epoch; loads of an earlier one stop. A later epoch there is a ConflictError."""

        def attempt(session: Session, ledger_too: bool) -> Outcome:
            self._tables.create(session, target)
            ledger = self._tables.read(session, log, target)
            if not adopt:
                check_holder(ledger.holder, pipeline, log, table, target)
            if ledger.epoch is not None and ledger.epoch > epoch:
                raise ConflictError(f"the load stage of {table} was reset by a later commit ({ledger.epoch})")
            holder = Holder(pipeline, log, table, epoch)
            steps = (*self._tables.unchanged(log, target, ledger), *self._tables.set_holder(target, holder))
            return session.transaction(self._lock(target, ledger_too), steps)

        try:
            self._tried(pipeline, target, attempt, None)  # doing it twice does no harm
        except FloodmarkError as error:
            error.of(table)
            raise

    def load(self, request: LoadRequest) -> LoadOutcome:
        """Load the commits that the ledger does not have, in one transaction."""
        began = time.monotonic()
        try:
            checked_target(request.target)
            outcome = self._load_all(request)
        except FloodmarkError as error:
            error.of(request.table.name)
            raise
        return replace(outcome, seconds=time.monotonic() - began)

    def close(self) -> None:
        """Nothing is kept open between calls."""

    # a load

    def _load_all(self, request: LoadRequest) -> LoadOutcome:
        try:
            return self._load(request)
        except TooLong:
            if len(request.commits) == 1 or request.commits[-1][0].load_as == "replace":
                raise
        # Short transactions one after the other are as good: each leaves the rest pending.
        parts: list[LoadOutcome] = []
        for i, commit in enumerate(request.commits):
            retake = request.retake if not i else frozenset()
            parts.append(self._load(replace(request, commits=(commit,), retake=retake)))
        return LoadOutcome(
            tuple(row for part in parts for row in part.loaded),
            tuple(n for part in parts for n in part.already),
            request.retake,
            rows=sum(part.rows for part in parts),
            files=sum(part.files for part in parts),
            findings=tuple(dict.fromkeys(finding for part in parts for finding in part.findings)),
        )

    def _load(self, request: LoadRequest) -> LoadOutcome:
        tried: list[_Tried] = []

        def attempt(session: Session, ledger_too: bool) -> Outcome:
            found = self._try(session, request, ledger_too)
            tried.append(found)
            return found.outcome

        def happened() -> bool:
            return self._happened(request, tried[-1].decision.new)

        self._tried(request.pipeline, request.target, attempt, happened)
        decision, loaded = tried[-1].decision, tried[-1].loaded
        return LoadOutcome(
            loaded,
            decision.already,
            request.retake if loaded else frozenset(),
            rows=sum(row.rows for row in loaded),
            files=sum(row.files for row in loaded),
            findings=decision.findings,
        )

    def _try(self, session: Session, request: LoadRequest, ledger_too: bool) -> _Tried:
        """One transaction; nothing to load is as good as committed."""
        ledger = self._tables.read(session, request.log, request.target)
        count = self._count(session, request.target, exact=not ledger.rows)
        decision = decide(request, ledger, count)
        if not decision.new:
            return _Tried(Outcome("committed"), decision, ())
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        loaded = tuple(
            LedgerRow(commit.n, digest, request.epoch, commit.rows, len(commit.files), now, request.target)
            for commit, digest in decision.new
        )
        self._tables.create(session, request.target)
        with manifests(request.store, request.table, request.run) as made:
            rows = self._rows(session, request, decision, made, exists=count is not None)
            steps: list[Step] = [
                *self._tables.unchanged(request.log, request.target, ledger),
                self._tables.absent(request, ledger, decision.new),
                *rows,
                *self._tables.record(request, loaded),
            ]
            if decision.set_holder:
                holder = Holder(request.pipeline, request.log, request.table.name, request.epoch)
                steps += self._tables.set_holder(request.target, holder)
            outcome = session.transaction(self._lock(request.target, ledger_too), steps)
        return _Tried(outcome, decision, loaded)

    def _rows(
        self, session: Session, request: LoadRequest, decision: Decision, made: Manifests, exists: bool
    ) -> tuple[Step, ...]:
        """The steps that make the target fit and put the rows into it."""
        table, way = request.table, decision.way
        target, side = checked_target(request.target), folded(request.target, KEYS)
        read = file_fields(table, way)
        # A missing file is known before anything is locked.
        proven = iter(prove(request.store, data_files(decision.staged), read, table.name))
        commits = [[next(proven) for _ in commit.files] for commit, _ in decision.staged]
        fit = Shape()
        if way != "delete" or not exists:
            fit = self._shape(session, request, target, exists)
        key = key_fields(table, read)
        weighed = any(field.file_only for field in read)
        beside = self._columns(session, side)
        about = shape(table, self.schema, side, key, beside, side=True) if weighed else Shape()
        for statement in (*fit.before, *about.before):
            self._alter(session, statement)
        steps: list[Step] = [Do(statement) for statement in (*fit.inside, *about.inside)]
        if beside is not None and not weighed and way != "delete":
            steps.append(Do(f"DROP TABLE {path(self.schema, side)}"))
        spec = Put(
            table=table,
            schema=self.schema,
            target=target,
            side=side,
            fields=read,
            parsed=fit.parsed,
            iam_role=self._iam_role,
            filled=exists,
            side_filled=beside is not None and weighed,
            manifest=made.write,
        )
        return (*steps, *put(spec, way, commits))

    def _shape(self, session: Session, request: LoadRequest, target: str, exists: bool) -> Shape:
        found = self._columns(session, target) if exists else None
        return shape(request.table, self.schema, target, fields(request.table), found)

    def _alter(self, session: Session, statement: str) -> None:
        """A change that Redshift makes only outside a transaction; somebody else may have made it just now."""
        try:
            session.execute(statement)
        except Failed as failed:
            if "target column size should be different" not in failed.error.message:
                raise

    # trying and settling

    def _tried(
        self,
        pipeline: str,
        target: str,
        attempt: Callable[[Session, bool], Outcome],
        happened: Callable[[], bool] | None,
    ) -> None:
        """Try whole transactions, each in a new session, until one is committed or trying again is of no use.

        `happened` tells whether a COMMIT without an answer was one; without it, the transaction is simply repeated.
        """
        label = f"floodmark:{pipeline}:{target}"
        error: FloodmarkError = TransientError("the load was not tried")
        ledger_too = False
        for number in range(self._limits.attempts):
            self._wait(number)
            try:
                with self._session(label) as session:
                    outcome = attempt(session, ledger_too)
                    if outcome.lost and session.pid is not None:
                        self._lost.add(session.pid)
                if outcome.state == "unknown" and happened is not None:
                    done = happened()
                    outcome = replace(outcome, state="committed" if done else "rolled back", again=True)
                if outcome.state == "committed":
                    return
                if outcome.locked:
                    self._unlock(target, label)
            except Failed as failed:
                if not failed.again:
                    raise failed.error from failed
                error = failed.error
                continue
            error = outcome.error or error
            if outcome.state == "unknown":
                error = UnknownOutcome(error.message, hint="run again: the ledger will tell")
            elif not (outcome.again or outcome.locked):
                raise error
            # Loads of other targets write to the same ledger; where Redshift is SERIALIZABLE, that is a conflict.
            ledger_too = ledger_too or (outcome.again and not outcome.lost)
        raise error

    def _wait(self, number: int) -> None:
        """The pause before an attempt: none before the first, then twice as long each time."""
        if number:
            time.sleep(min(self._limits.pause * 2 ** (number - 1), 10.0) * random.uniform(0.5, 1.0))

    def _happened(self, request: LoadRequest, new: tuple[Numbered, ...]) -> bool:
        """COMMIT was not answered: whether it happened, by the ledger under the lock."""
        label = f"floodmark:{request.pipeline}:{request.target}"
        question, problem = self._tables.rows_query(request.log), ""
        for number in range(self._limits.attempts):
            self._wait(number)
            try:
                with self._session(label) as session:
                    rows = ledger_rows(session.query(question, self._lock(request.target, False)))
            except Failed as failed:
                problem = failed.error.message
                if failed.canceled:
                    with contextlib.suppress(Failed, TransientError):
                        self._unlock(request.target, label)
                continue
            loaded = {row.identity for row in rows if row.epoch == request.epoch}
            return all((commit.n, digest) in loaded for commit, digest in new)
        raise UnknownOutcome(
            f"COMMIT was not answered, and the ledger can't be read: {problem}",
            hint="run again: the ledger will tell",
        )

    def _unlock(self, target: str, label: str) -> None:
        """Somebody keeps the target's lock: end a dead session of ours, else say who it is."""
        with self._session(label) as session:
            held = keepers(session, self.schema, self._tables.lock_table(target), label)
            if end_stale(session, held, frozenset(self._lost), self._limits.idle):
                return
        who = ", ".join(f"session {keeper.pid} of {keeper.user}" for keeper in held)
        raise TransientError(
            f"another load keeps {target} locked" + (f" ({who})" if who else ""),
            hint="run again when it is done"
            + (f"; to end it: SELECT pg_terminate_backend({held[0].pid})" if held else ""),
        )

    # questions

    def _lock(self, target: str, ledger_too: bool) -> Lock:
        seconds = self._limits.lock
        # A backend that we have lost ourselves is not worth the whole wait.
        return self._tables.lock(target, min(seconds, 5.0) if self._lost else seconds, ledger_too=ledger_too)

    def _count(self, session: Session, target: str, *, exact: bool) -> int | None:
        """How many rows the target has, or whether it has any; None when there is no such table."""
        name = folded(target)
        if not check_kind(self._tables.kinds(session, (name,)).get(name), target):
            return None
        rows = path(self.schema, name)
        inner = rows if exact else f"(SELECT 1 FROM {rows} LIMIT 1) AS first_row"
        return int(session.query(f"SELECT count(*) FROM {inner}")[0][0])

    def _columns(self, session: Session, name: str) -> tuple[TargetColumn, ...] | None:
        rows = session.query(columns_query(self.schema, name))
        return tuple(found_column(row) for row in rows) or None

    def _asked(self, question: Callable[[Session], T]) -> T:
        """The answer to a question; connections that break are tried again a few times."""
        for left in reversed(range(min(3, self._limits.attempts))):
            try:
                with self._session() as session:
                    return question(session)
            except Failed as failed:
                if not failed.again or not left:
                    raise failed.error from failed
                time.sleep(self._limits.pause)
        raise AssertionError

    @contextlib.contextmanager
    def _session(self, label: str = "") -> Iterator[Session]:
        session = self._transport.open(label)
        try:
            yield session
        finally:
            session.close()
