"""Who holds a target's lock, and how sessions of ours that will never release it are ended.

A loader whose host died leaves a backend that sits in its transaction for hours. It is ended only if it is
certainly ours: a session that this process has lost, or one of the same database user whose statements carry
the same label (pipeline and target) and that has been idle for a while. An active load, however slow, is left
alone.

A slow COMMIT may look idle. So a session that has written to the ledger's tables is never ended: a load or a
reset writes them last, and holds a lock on them until the end, which everyone sees at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.load.protocol import LEDGER, TARGETS
from floodmark.load.redshift.names import literal
from floodmark.load.redshift.steps import Busy, Failed, RedshiftSession, Row
from floodmark.model.errors import FloodmarkError, TransientError


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
    except Failed as failed:
        if failed.lost:
            raise
        return {}  # without the history, no session is known to be ours
    return {
        int(pid): (True, None if int(running or 0) or idle is None else float(idle), bool(int(wrote or 0)))
        for pid, running, idle, wrote in rows
    }


def naming_users(session: RedshiftSession, schema: str, tables: Sequence[str], busy: Busy) -> Failed:
    """The failure of a change that waited too long for users of the tables, with the names of their sessions."""
    try:
        rows = _users(session, schema, tables)
    except Failed:
        rows = []
    found = [f"session {pid} of {str(owner).strip()}" for pid, owner, *_ in rows if int(pid) != session.pid]
    who = ", ".join(dict.fromkeys(found)) or "sessions that Redshift does not show to this user"
    return Failed(Busy(busy.sql, busy.seconds, who))


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
            except Failed as failed:
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
