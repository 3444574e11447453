"""Whole transactions, tried until one is committed, and what becomes of a COMMIT that was not answered.

The invariant: nothing is guessed. A lost answer is settled by taking the target's lock, which is free only when the
old transaction has ended, one way or the other, and reading the ledger under it. A lock that somebody keeps is waited
for, then taken from a dead session of ours, or its holder is named.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from floodmark.errors import FloodmarkError, TransientError, UnknownOutcome
from floodmark.warehouse import Numbered, Part
from floodmark.warehouse.redshift_ledger import LedgerTables, ledger_rows
from floodmark.warehouse.redshift_stale import end_stale, keepers, kept
from floodmark.warehouse.redshift_steps import Failed, Limits, Lock, Outcome, Session, Transport

T = TypeVar("T")
_IMPATIENT = 5.0  # seconds for the lock of a backend that we have lost ourselves


class Tries:
    """Sessions of one database, each for one try."""

    def __init__(self, transport: Transport, limits: Limits, tables: LedgerTables) -> None:
        self._transport = transport
        self._limits = limits
        self._tables = tables
        # By target: backends whose sessions broke, with which nobody will ever go on.
        self._lost: dict[str, frozenset[int]] = {}
        self._hurried: set[str] = set()  # targets whose lock such a backend may have

    @contextlib.contextmanager
    def session(self, label: str = "") -> Iterator[Session]:
        """A session for the time of a `with`."""
        session = self._transport.open(label)
        try:
            yield session
        finally:
            session.close()

    def asked(self, question: Callable[[Session], T]) -> T:
        """The answer to a question; connections that break are tried again a few times."""
        for left in reversed(range(min(3, self._limits.attempts))):
            try:
                with self.session() as session:
                    return question(session)
            except Failed as failed:
                if not failed.again or not left:
                    raise failed.error from failed
                time.sleep(self._limits.pause)
        raise AssertionError

    def lock(self, target: str) -> Lock:
        """The target's lock, and how long to wait for it."""
        seconds = self._limits.lock
        return self._tables.lock(target, min(seconds, _IMPATIENT) if target in self._hurried else seconds)

    def run(
        self,
        pipeline: str,
        target: str,
        attempt: Callable[[Session], Outcome],
        happened: Callable[[], bool] | None = None,
    ) -> None:
        """Try whole transactions, each in a new session, until one is committed or trying again is of no use.

        `happened` tells whether a COMMIT without an answer was one; without it, the transaction is simply repeated.
        """
        label = _label(pipeline, target)
        error: FloodmarkError = TransientError("the load was not tried")
        for number in range(self._limits.attempts):
            self._wait(number)
            try:
                with self.session(label) as session:
                    outcome = attempt(session)
                    # One that may be committing is never ended, and one that never can was lost before.
                    if outcome.lost and outcome.state != "unknown" and session.pid is not None:
                        self._lost[target] = self._lost.get(target, frozenset()) | {session.pid}
                        self._hurried.add(target)
                if outcome.state == "unknown" and happened is not None:
                    done = happened()
                    outcome = replace(outcome, state="committed" if done else "rolled back", again=True)
                if outcome.state == "committed":
                    self._lost.pop(target, None)  # who has had the lock knows that they are gone
                    self._hurried.discard(target)
                    return
            except Failed as failed:
                if failed.canceled:
                    error = self._unlock(target, label, failed.error)
                elif failed.again:
                    error = failed.error
                else:
                    raise failed.error from failed
                continue
            if outcome.locked:
                error = self._unlock(target, label)
                continue
            error = outcome.error or error
            if outcome.state == "unknown":
                error = UnknownOutcome(error.message, hint="run again: the ledger will tell")
            elif not outcome.again:
                raise error
        raise error

    def loaded(self, pipeline: str, target: str, log: str, epoch: int, new: Sequence[Numbered]) -> bool:
        """COMMIT was not answered: whether these commits were loaded, by the ledger under the lock."""
        label = _label(pipeline, target)
        since = Part(epoch, min(commit.n for commit, _ in new) - 1)
        question = self._tables.rows_query(log, since)
        problem = ""
        for number in range(self._limits.attempts):
            self._wait(number)
            try:
                with self.session(label) as session:
                    rows = ledger_rows(session.query(question, self.lock(target)))
            except Failed as failed:
                problem = failed.error.message
                if failed.canceled:
                    with contextlib.suppress(FloodmarkError):
                        self._unlock(target, label)
                continue
            found = {row.identity for row in rows if row.epoch == epoch and row.target == target}
            return all((commit.n, digest) in found for commit, digest in new)
        raise UnknownOutcome(
            f"COMMIT was not answered, and the ledger can't be read: {problem}",
            hint="run again: the ledger will tell",
        )

    def _wait(self, number: int) -> None:
        """The pause before an attempt: none before the first, then twice as long each time."""
        if number:
            time.sleep(min(self._limits.pause * 2 ** (number - 1), 10.0) * random.uniform(0.5, 1.0))

    def _unlock(self, target: str, label: str, slow: FloodmarkError | None = None) -> FloodmarkError:
        """Somebody keeps the target's lock: end a dead session of ours, else raise who it is.

        Returns what to say if no later try gets further. `slow`: a question took too long, which a busy Redshift may
        explain as well; so when nobody is seen to have the lock, a later try may do.
        """
        self._hurried.discard(target)  # a backend of ours that has the lock is ended here
        try:
            with self.session(label) as session:
                held = keepers(session, self._tables.schema, self._tables.lock_table(target), label)
                ended = end_stale(session, held, self._lost.get(target, frozenset()), self._limits.idle)
        except Failed as failed:
            if failed.again or failed.canceled:
                return failed.error
            raise failed.error from failed
        error = kept(target, held, slow)
        if ended or (slow and not held):
            return error
        raise error


def _label(pipeline: str, target: str) -> str:
    """What our statements carry in Redshift's own history."""
    return f"floodmark:{pipeline}:{target}"
