"""Who keeps a target's lock, and the end of sessions of ours that will never give it back.

A loader whose host died leaves a backend that waits in its transaction, for hours. It is ended only when it is ours
for certain: a session that this process has lost, or one of the same database user whose statements carry the same
label (pipeline and target) and that has done nothing for a while. Whoever loads, even slowly, is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.errors import TransientError
from floodmark.warehouse.redshift_names import literal
from floodmark.warehouse.redshift_steps import Failed, Session


@dataclass(frozen=True)
class Keeper:
    """A session that has the lock."""

    pid: int
    user: str
    ours: bool = False  # its statements carry our label
    idle: float | None = (
        None  # seconds since its last statement ended; None: one is running, or nothing is known
    )


def keepers(session: Session, schema: str, lock_table: str, label: str) -> tuple[Keeper, ...]:
    """The sessions that hold the lock, this one left out."""
    rows = session.query(
        "SELECT t.pid, t.txn_owner, t.granted FROM svv_transactions AS t WHERE t.relation = (SELECT c.oid FROM "
        "pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace "
        f"WHERE n.nspname = {literal(schema.lower())} AND c.relname = {literal(lock_table)})"
    )
    held = {int(pid): str(owner).strip() for pid, owner, granted in rows if str(granted).lower()[:1] == "t"}
    held.pop(session.pid or 0, None)
    labelled = _labelled(session, sorted(held), label)
    return tuple(Keeper(pid, user, *labelled.get(pid, (False, None))) for pid, user in held.items())


def _labelled(session: Session, pids: Sequence[int], label: str) -> dict[int, tuple[bool, float | None]]:
    """The sessions among these whose statements carry the label, and how long they have been idle."""
    if not pids:
        return {}
    listed = ", ".join(str(pid) for pid in pids)
    try:
        rows = session.query(
            "SELECT session_id, sum(CASE WHEN status IN ('planning', 'queued', 'running', 'returning') THEN 1 ELSE 0 END), "
            "extract(epoch FROM getdate()) - extract(epoch FROM max(end_time)) FROM sys_query_history "
            f"WHERE session_id IN ({listed}) AND query_label = {literal(label[:320])} GROUP BY session_id"
        )
    except Failed as failed:
        if failed.lost:
            raise
        return {}  # without the history nobody is known to be ours
    return {
        int(pid): (True, None if int(running or 0) or idle is None else float(idle))
        for pid, running, idle in rows
    }


def end_stale(
    session: Session, held: Sequence[Keeper], lost: frozenset[int], idle_seconds: float
) -> tuple[int, ...]:
    """End the dead sessions of ours among those that hold the lock; which ones it were."""
    ended = []
    for keeper in held:
        dead = keeper.ours and keeper.idle is not None and keeper.idle >= idle_seconds
        if keeper.pid in lost or dead:
            try:
                session.query(f"SELECT pg_terminate_backend({keeper.pid})")
            except Failed as failed:
                if failed.lost:
                    raise
                continue
            ended.append(keeper.pid)
    return tuple(ended)


def kept(target: str, held: Sequence[Keeper]) -> TransientError:
    """Somebody keeps the target's lock: who it is, or how to find out."""
    if held:
        who = ", ".join(f"session {keeper.pid} of {keeper.user}" for keeper in held)
        return TransientError(
            f"another load keeps {target} locked ({who})",
            hint=f"run again when it is done; to end it: SELECT pg_terminate_backend({held[0].pid})",
        )
    # SVV_TRANSACTIONS shows ordinary users their own sessions only.
    return TransientError(
        f"another load keeps {target} locked, in a session that Redshift does not show to this user",
        hint="run again when it is done; a superuser sees it in svv_transactions; to have it named here: "
        "ALTER USER … SYSLOG ACCESS UNRESTRICTED (floodmark doctor prints it in full)",
    )
