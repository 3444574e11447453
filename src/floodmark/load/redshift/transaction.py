"""Whole transactions, retried until one is committed, and how a COMMIT whose answer was lost is resolved.

The invariant: nothing is guessed. A lost answer is settled by taking the target's lock, which is free only
once the old transaction has ended, one way or the other, and reading the ledger under it. If someone holds
the lock, we wait for it, then take it from a dead session of ours, or name its holder.

A loader whose host died leaves a backend that sits in its transaction for hours. It is ended only if it is
certainly ours: a session that this process has lost, or one of the same database user whose statements carry
the same label (pipeline and target) and that has been idle for a while. An active load, however slow, is left
alone. A slow COMMIT may look idle. So a session that has written to the ledger's tables is never ended: a load or a
reset writes them last, and holds a lock on them until the end, which everyone sees at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TypeVar

from floodmark.host.retry import Retries
from floodmark.load.ledger import ORDER, ledger_rows
from floodmark.load.protocol import LEDGER, TARGETS, Numbered
from floodmark.load.redshift.catalog import literal
from floodmark.load.redshift.ledger import RedshiftLedger
from floodmark.load.redshift.steps import Busy, Lock, RedshiftSession, Row, StatementFailed, Transport
from floodmark.model.errors import FloodmarkError, TransientError, UnknownOutcome
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
        tables: RedshiftLedger,
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
            except StatementFailed as failed:
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
            except StatementFailed as failed:
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
            except StatementFailed as failed:
                # Only a backend lost before COMMIT may be ended later; any other may be committing.
                if failed.lost and failed.stage in ("lock", "steps") and session.pid is not None:
                    self._lost[target] = self._lost.get(target, frozenset()) | {session.pid}
                    self._hurried.add(target)
                raise

    def loaded(self, pipeline: str, target: str, log: str, epoch: int, new: Sequence[Numbered]) -> bool:
        """Whether commits were loaded although the answer to COMMIT was lost: by the ledger, under the lock."""
        label = _label(pipeline, target)
        since = Part(epoch, min(commit.n for commit, _ in new) - 1)
        question = f"{self._tables.sql.each_of(log, since)} {ORDER}"
        problem = ""
        for _ in self._retries:
            try:
                with closing(self._transport.open(label)) as session:
                    rows = ledger_rows(session.query(question, self.lock(target)))
            except StatementFailed as failed:
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
        except StatementFailed as failed:
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


@dataclass(frozen=True)
class Keeper:
    """A session that holds the lock."""

    pid: int
    user: str
    ours: bool = False  # its statements carry our label
    # Seconds since its last statement ended; None: one is running, or nothing is known.
    idle: float | None = None
    wrote: bool = False  # it has written to the ledger's tables, so it may be committing


def keepers(session: RedshiftSession, schema: str, lock_table: str, label: str) -> tuple[Keeper, ...]:
    """The sessions that hold the lock, except this one."""
    held, writers = {}, set()
    for pid, owner, granted, table in _users(session, schema, (lock_table, LEDGER, TARGETS)):
        if str(table) in (LEDGER, TARGETS):
            writers.add(int(pid))
        elif str(granted).lower()[:1] == "t":
            held[int(pid)] = str(owner).strip()
    held.pop(session.pid or 0, None)
    labelled = _labelled(session, sorted(held), label)
    found = []
    for pid, user in held.items():
        ours, idle, wrote = labelled.get(pid, (False, None, False))
        found.append(Keeper(pid, user, ours, idle, wrote or pid in writers))
    return tuple(found)


def _users(session: RedshiftSession, schema: str, tables: Sequence[str]) -> list[Row]:
    """The sessions that hold a lock on these tables, or wait for one: pid, owner, whether it is granted, table."""
    names = ", ".join(literal(name) for name in tables)
    return session.query(
        "SELECT t.pid, t.txn_owner, t.granted, c.relname FROM svv_transactions AS t "
        "JOIN pg_catalog.pg_class AS c ON c.oid = t.relation JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
        f"WHERE n.nspname = {literal(schema.lower())} AND c.relname IN ({names})"
    )


def _labelled(
    session: RedshiftSession, pids: Sequence[int], label: str
) -> dict[int, tuple[bool, float | None, bool]]:
    """Of these sessions, those with the label: how long idle, and whether they wrote to the ledger."""
    if not pids:
        return {}
    listed = ", ".join(str(pid) for pid in pids)
    written = " OR ".join(f"query_text LIKE {literal(f'INSERT INTO %{name}%')}" for name in (LEDGER, TARGETS))
    try:
        rows = session.query(
            "SELECT session_id, sum(CASE WHEN status IN ('planning', 'queued', 'running', 'returning') THEN 1 ELSE 0 END), "
            "extract(epoch FROM getdate()) - extract(epoch FROM max(end_time)), "
            f"sum(CASE WHEN {written} THEN 1 ELSE 0 END) FROM sys_query_history "
            f"WHERE session_id IN ({listed}) AND query_label = {literal(label[:320])} GROUP BY session_id"
        )
    except StatementFailed as failed:
        if failed.lost:
            raise
        return {}  # without the history, no session is known to be ours
    return {
        int(pid): (True, None if int(running or 0) or idle is None else float(idle), bool(int(wrote or 0)))
        for pid, running, idle, wrote in rows
    }


def naming_users(session: RedshiftSession, schema: str, tables: Sequence[str], busy: Busy) -> StatementFailed:
    """The failure of a change that waited too long for users of the tables, with the names of their sessions."""
    try:
        rows = _users(session, schema, tables)
    except StatementFailed:
        rows = []
    found = [f"session {pid} of {str(owner).strip()}" for pid, owner, *_ in rows if int(pid) != session.pid]
    who = ", ".join(dict.fromkeys(found)) or "sessions that Redshift does not show to this user"
    return StatementFailed(Busy(busy.sql, busy.seconds, who))


def end_stale(
    session: RedshiftSession, held: Sequence[Keeper], lost: frozenset[int], idle_seconds: float
) -> tuple[int, ...]:
    """End our dead sessions among those that hold the lock; returns their pids.

    `lost`: sessions that this process lost before it sent COMMIT.
    """
    ended = []
    for keeper in held:
        dead = keeper.ours and not keeper.wrote and keeper.idle is not None and keeper.idle >= idle_seconds
        if keeper.pid in lost or dead:
            try:
                session.query(f"SELECT pg_terminate_backend({keeper.pid})")
            except StatementFailed as failed:
                if failed.lost:
                    raise
                continue
            ended.append(keeper.pid)
    return tuple(ended)


def kept(target: str, held: Sequence[Keeper], slow: FloodmarkError | None = None) -> TransientError:
    """The error for a target's lock that someone holds: who it is, or how to find out.

    `slow`: a query took too long, which may also mean that Redshift is busy.
    """
    if held:
        who = ", ".join(f"session {keeper.pid} of {keeper.user}" for keeper in held)
        if held[0].wrote:
            return TransientError(
                f"another load or reset of {target} has written to the ledger and may be committing ({who})",
                hint="run again when it is done; only if it never finishes, end it: "
                f"SELECT pg_terminate_backend({held[0].pid})",
            )
        return TransientError(
            f"another load holds the lock on {target} ({who})",
            hint=f"run again when it is done; to end it: SELECT pg_terminate_backend({held[0].pid})",
        )
    # SVV_TRANSACTIONS shows ordinary users only their own sessions.
    unseen = "in a session that Redshift does not show to this user"
    return TransientError(
        f"{slow.message}; either Redshift is busy, or {target} is locked {unseen}"
        if slow
        else f"another load holds the lock on {target}, {unseen}",
        hint="run again; svv_transactions shows a superuser who holds a lock; to see it here: "
        "ALTER USER … SYSLOG ACCESS UNRESTRICTED (floodmark doctor prints it in full)",
    )
