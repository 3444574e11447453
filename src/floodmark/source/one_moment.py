"""Proves that consistent snapshots in several sessions show one moment, without a lock that stops writers.

Two sides: before the first snapshot is opened, everything in the binary log is visible; after the last one,
nothing has been added to it. Then no transaction became visible between them, so all see the same rows. One
side alone proves nothing: the log's position moves before a commit is visible, and GTIDs follow after it.
docs/decisions/0017-several-snapshots-of-one-moment.md has the proof for each server, and what it can't see.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from floodmark.model.notes import Obstacle
from floodmark.model.open_work import Trust
from floodmark.model.table import Table
from floodmark.source import sql
from floodmark.source.binlog.end import logged_place, snapshot_place
from floodmark.source.binlog.fitness import LogSettings, log_settings
from floodmark.source.session import Session

# Seconds that a snapshot waits for the table's metadata lock: an ALTER goes first.
DDL_PATIENCE = 3

# The oldest MySQL whose way to commit was examined: before, XA transactions commit differently.
PROVEN = (8, 4)

# A subquery may read tables that have no snapshots.
_SUBQUERY = re.compile(r"\bselect\b", re.IGNORECASE)


# ---------------------------------------------------------------- whether it can be proven here


def unfit(table: Table) -> Obstacle | None:
    """Why the table, as described, can't be read by several sessions at once; None if it can. Pure."""
    if not table.key or table.source.key_index is None:
        return "no_key"
    if any(table.column(name).nullable for name in table.key):
        return "no_key"  # no range of keys would have the rows without one
    if table.source.key_index in table.source.needs_sort:
        return "key_order"  # the server would sort the whole table to cut it
    if table.recipe.where and _SUBQUERY.search(table.recipe.where):
        return "subquery"
    return None


def obstacle(session: Session, table: Table, trust: Trust) -> Obstacle | None:
    """Why snapshots of this table can't be proven to be of one moment on this server; None if they can."""
    return unprovable(log_settings(session), trust, with_clock=bool(table.recipe.where))


def unprovable(log: LogSettings, trust: Trust, *, with_clock: bool = False) -> Obstacle | None:
    """The same from what the server says. Pure.

    `with_clock`: NOW() must be the same for all.
    """
    if trust.engine.lower() != "innodb":
        return "engine"
    if not log.on:
        return "no_binlog"
    if trust.member_of is not None:
        return "cluster"
    if not trust.sight.mariadb and trust.numbers < PROVEN:
        return "version"
    if log.variables.get("binlog_optimize_thread_scheduling") == "OFF":
        return "commit_threads"
    if with_clock and log.variables.get("secure_timestamp", "NO") != "NO":
        return "clock"
    if log.status is None or not trust.sight.process:  # without it, we can't tell whether this is a replica
        return "privilege"
    if trust.replica and not log.replicated:
        return "replica"
    if not trust.sight.mariadb and not log.gtids:
        return "no_gtids"
    if not log.status:
        return "no_binlog"
    return "filters" if log.filters else None


# ---------------------------------------------------------------- the sessions that read


def open_snapshot(session: Session) -> None:
    """Opens a snapshot, in place of the session's last one."""
    session.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")


def one_server(servers: Sequence[str]) -> bool:
    """Whether sessions on these servers, as `server_of` tells them, are on one and the same. Pure."""
    return len(set(servers)) == 1 and "" not in servers


def hold(session: Session, table: Table) -> None:
    """Keeps the table's definition as it is until the session's transaction ends; raises if it is changing."""
    session.rows(f"SET SESSION lock_wait_timeout = {DDL_PATIENCE}")
    session.rows(f"SELECT 1 FROM {sql.source(table)} LIMIT 0")


def at_moment(session: Session, moment: str) -> None:
    """Makes NOW() the same for all sessions that read the table."""
    session.rows(f"SET timestamp = {float(moment):.6f}")


# ---------------------------------------------------------------- the proof


def same_end(before: str, after: str) -> bool:
    """Whether two looks at the log saw the same end; empty: there is no log. Pure."""
    return bool(before) and before == after


class MySQLProof:
    """For Oracle's MySQL with GTIDs, in a session of its own.

    A transaction owns its GTID from before it is written to the log until after it has become visible. So if
    no GTID is owned, everything logged by then is visible.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before = ""

    def before(self) -> bool:
        """Whether everything logged so far is visible; to be called before the first snapshot is opened."""
        self._before = self._end()
        return not (self._session.rows("SELECT @@GLOBAL.gtid_owned")[0][0] or b"").strip()

    def meanwhile(self) -> None:
        """To be called while the others open their snapshots."""

    def after(self) -> bool:
        """Whether nothing was logged since `before`, nor became visible; to be called after the last one."""
        return same_end(self._before, self._end())

    def _end(self) -> str:
        return str(logged_place(self._session) or "")  # the log may have been closed


class MariaDBProof:
    """The same for MariaDB, where commits become visible and move the log under one mutex, and a snapshot knows its place.

    Only prepared XA transactions commit in two steps, in the log and in InnoDB; they are listed as prepared until
    both are done.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._before = ""

    def before(self) -> bool:
        open_snapshot(self._session)
        return not self._prepared()

    def meanwhile(self) -> None:
        self._before = self._place()

    def after(self) -> bool:
        if self._prepared():
            return False
        open_snapshot(self._session)
        return same_end(self._before, self._place())

    def _place(self) -> str:
        """The exact place of the session's snapshot in the log: everything visible is before it."""
        return str(snapshot_place(self._session) or "")

    def _prepared(self) -> bool:
        return bool(self._session.rows("XA RECOVER"))


Proof = MySQLProof | MariaDBProof


def proof(session: Session, mariadb: bool) -> Proof:
    """The proof for this server, with a session of its own."""
    return MariaDBProof(session) if mariadb else MySQLProof(session)


def moment_of(session: Session) -> str:
    """The server's clock, as `at_moment` takes it."""
    return (session.rows("SELECT UNIX_TIMESTAMP(NOW(6))")[0][0] or b"0").decode()
