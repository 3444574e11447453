"""Whole transactions, retried until one is committed, and how a COMMIT whose answer was lost is resolved.

The invariant: nothing is guessed. A lost answer is settled by taking the target's lock, which is free only
once the old transaction has ended, one way or the other, and reading the ledger under it. If someone holds
the lock, we wait for it, then take it from a dead session of ours, or name its holder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import TypeVar

from floodmark.host.retry import Retries
from floodmark.load.protocol import Numbered
from floodmark.load.redshift.ledger import LedgerTables, ledger_rows
from floodmark.load.redshift.lock import end_stale, keepers, kept
from floodmark.load.redshift.steps import Failed, Lock, RedshiftSession, Transport
from floodmark.model.errors import FloodmarkError, UnknownOutcome
from floodmark.model.ledger import Part
from floodmark.model.run import Wait

T = TypeVar("T")
_UNKNOWN = "run again: the ledger shows whether it was committed"
_IMPATIENT = 5.0  # seconds to wait for a lock that a backend we lost may hold


class Tries:
    """Sessions with one database, each for one try."""

    def __init__(
        self,
        transport: Transport,
        tables: LedgerTables,
        waits: Callable[[Wait | None], None] = lambda on: None,
    ) -> None:
        self._waits = waits
        self._transport = transport
        self._limits = transport.limits
        self._retries = Retries(self._limits.attempts, self._limits.pause, longest=10.0, jitter=0.5)
        self._tables = tables
        # By target: backends whose sessions broke, and which will never continue.
        self._lost: dict[str, frozenset[int]] = {}
        self._hurried: set[str] = set()  # targets whose lock such a backend may hold

    def asked(self, question: Callable[[RedshiftSession], T]) -> T:
        """The answer to a query; a broken connection is retried a few times."""
        for _ in Retries(min(3, self._limits.attempts), self._limits.pause, factor=1):
            try:
                with closing(self._transport.open()) as session:
                    return question(session)
            except Failed as failed:
                if not failed.again:
                    raise failed.error from failed
                error = failed
        raise error.error from error

    def lock(self, target: str) -> Lock:
        """The target's lock, and how long to wait for it."""
        seconds = self._limits.lock
        seconds = min(seconds, _IMPATIENT) if target in self._hurried else seconds
        return Lock(self._tables.lock_path(target), seconds, self._waits)

    def run(
        self,
        pipeline: str,
        target: str,
        attempt: Callable[[RedshiftSession], None],
        happened: Callable[[], bool] | None = None,
    ) -> None:
        """Try whole transactions, each in a new session, until one is committed or retrying is pointless.

        `happened` tells whether a COMMIT without an answer took effect; without it, the transaction is simply
        repeated.
        """
        label = _label(pipeline, target)
        for _ in self._retries:
            try:
                self._try(target, label, attempt)
                break
            except Failed as failed:
                error = failed.error
                if failed.unknown and happened is not None:
                    if happened():
                        break
                elif failed.unknown:
                    error = UnknownOutcome(error.message, hint=_UNKNOWN)
                elif failed.canceled and failed.stage in ("", "lock"):
                    error = self._unlock(target, label, None if failed.stage else error)
                elif not failed.again:
                    raise error from failed
        else:
            raise error
        self._lost.pop(target, None)  # we have had the lock, so they are gone
        self._hurried.discard(target)

    def _try(self, target: str, label: str, attempt: Callable[[RedshiftSession], None]) -> None:
        with closing(self._transport.open(label)) as session:
            try:
                attempt(session)
            except Failed as failed:
                # Only a backend lost before COMMIT may be ended later; any other may be committing.
                if failed.lost and failed.stage in ("lock", "steps") and session.pid is not None:
                    self._lost[target] = self._lost.get(target, frozenset()) | {session.pid}
                    self._hurried.add(target)
                raise

    def loaded(self, pipeline: str, target: str, log: str, epoch: int, new: Sequence[Numbered]) -> bool:
        """Whether commits were loaded although the answer to COMMIT was lost: by the ledger, under the lock."""
        label = _label(pipeline, target)
        since = Part(epoch, min(commit.n for commit, _ in new) - 1)
        question = self._tables.rows_query(log, since)
        problem = ""
        for _ in self._retries:
            try:
                with closing(self._transport.open(label)) as session:
                    rows = ledger_rows(session.query(question, self.lock(target)))
            except Failed as failed:
                problem = failed.error.message
                if failed.canceled:
                    with suppress(FloodmarkError):
                        self._unlock(target, label)
                continue
            found = {row.identity for row in rows if row.epoch == epoch and row.target == target}
            return all((commit.n, digest) in found for commit, digest in new)
        raise UnknownOutcome(
            f"the answer to COMMIT was lost, and the ledger can't be read: {problem}", hint=_UNKNOWN
        )

    def _unlock(self, target: str, label: str, slow: FloodmarkError | None = None) -> FloodmarkError:
        """Someone holds the target's lock: end a dead session of ours, else raise who holds it.

        Returns the error to raise if no later try gets further. `slow`: a query took too long, which may also
        mean that Redshift is busy; so if nobody is seen holding the lock, a later try may succeed.
        """
        self._hurried.discard(target)  # a lost backend that holds the lock is ended here
        try:
            with closing(self._transport.open(label)) as session:
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
    """The label of our statements in Redshift's query history."""
    return f"floodmark:{pipeline}:{target}"
