"""How far a table can be read without losing a row: the server's clock and zones, and whether it tells of all open work.

A row is read once, so everything below the bound must be final: nothing that is still running may commit a row
there later. The bound is the server's clock at the run's start, lowered to the start of the oldest open work
(`open_work`) that may write to the table.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from floodmark import clock
from floodmark.errors import ConfigError, TransientError
from floodmark.mysql import open_work
from floodmark.mysql.connect import Session
from floodmark.mysql.load import channels
from floodmark.mysql.open_work import Holder, Sight
from floodmark.mysql.open_work import now as now  # part of this module, too
from floodmark.mysql.version import parsed

# A cursor this far ahead of the clock is in the future; less is a writer's clock that runs ahead a little.
FUTURE_SLACK = 60.0


@dataclass(frozen=True)
class Trust:
    """Whether the source's own view of open work is complete; if not, why."""

    sight: Sight
    reasons: tuple[str, ...]
    replica: bool = False
    server: str | None = None  # what tells it from another one
    numbers: tuple[int, ...] = ()  # of its version
    gtids: str | None = None  # the expression of what it has executed, where that can be compared
    own: str | None = None  # the source that is named in what it has executed of its own

    @property
    def complete(self) -> bool:
        return not self.reasons


def offsets(session: Session, moments: Sequence[int]) -> list[int]:
    """The offsets of the session's own zone at the given moments."""
    asked = ", ".join(f"FROM_UNIXTIME({int(m)})" for m in moments)
    row = session.rows(f"SELECT {asked}")[0]
    return [_wall_seconds(cell or b"") - m for cell, m in zip(row, moments, strict=True)]


def _wall_seconds(cell: bytes) -> int:
    wall = datetime.fromisoformat(cell.decode())
    return int((wall - datetime(1970, 1, 1)).total_seconds())


def zone_offsets(session: Session, zone: str) -> clock.Offsets:
    """The offsets of a cursor's zone: the server's default for DATETIME, or the one that the user named."""
    if zone.upper() == "UTC":
        return clock.utc
    if zone != "server":
        return clock.named(zone)

    named: list[bytes | None] = []

    def of_server(moments: Sequence[int]) -> list[int]:
        with _inside(session, "@@global.time_zone"):
            named.append(session.rows("SELECT @@session.time_zone")[0][0])
            if named[0] != named[-1]:
                raise TransientError(
                    f"the source's time zone changed while it was looked at, to {(named[-1] or b'').decode()}",
                    hint="try again; rows that were written meanwhile may have cursors of either zone",
                )
            return offsets(session, moments)

    return of_server


@contextmanager
def _inside(session: Session, zone: str) -> Iterator[None]:
    """The session is in a zone for a while; its name is an SQL expression."""
    session.rows(f"SET time_zone = {zone}")
    try:
        yield
    finally:
        session.rows("SET time_zone = '+00:00'")


def behind(session: Session, zones: Iterable[str], ours: Mapping[int, int]) -> int:
    """By how many seconds at most the clocks of these zones show less than the cursor's, whose offsets are given."""
    widest = 0
    for zone in zones:
        with suppress(ConfigError), _inside(session, f"CONVERT(X'{zone.encode().hex()}' USING utf8mb4)"):
            theirs = offsets(session, list(ours))
            widest = max(widest, *(ours[m] - there for m, there in zip(ours, theirs, strict=True)))
    return widest


def zones_beside(session: Session) -> tuple[str, ...] | None:
    """The time zones of sessions that may write, where they are not the server's; None: the server does not show them.

    Ours, and others that only read, have said so. MySQL takes 0.3 ms for each session.
    """
    try:
        rows = session.rows(
            "SELECT DISTINCT zone, read_only = 'OFF' AND zone <> @@global.time_zone FROM ("
            "SELECT MAX(IF(VARIABLE_NAME = 'time_zone', VARIABLE_VALUE, NULL)) AS zone,"
            " MAX(IF(VARIABLE_NAME = 'time_zone', NULL, VARIABLE_VALUE)) AS read_only"
            " FROM performance_schema.variables_by_thread"
            " WHERE VARIABLE_NAME IN ('time_zone', 'transaction_read_only') GROUP BY THREAD_ID) AS sessions"
        )
    except ConfigError:
        return None
    if not rows:  # not even this session: it is switched off
        return None
    return tuple(sorted((zone or b"").decode(errors="replace") for zone, other in rows if int(other or 0)))


def trust(session: Session) -> Trust:
    """Looks whether this server tells us about every transaction that can still commit."""
    reasons = []
    process = True
    try:
        # It asks for the same privilege as innodb_trx, whose copy of the transactions would be renewed by a look.
        session.rows("SELECT 1 FROM information_schema.innodb_cmp LIMIT 1")
    except ConfigError:
        process = False
        reasons.append("the user has no PROCESS privilege, so open transactions can't be seen")
    variables = {
        (name or b"").decode().lower(): (value or b"").decode().upper()
        for name, value in session.rows(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN"
            " ('version', 'wsrep_on', 'read_only', 'group_replication_group_name', 'server_uuid', 'server_uid',"
            " 'hostname', 'port', 'server_id', 'gtid_executed', 'gtid_binlog_state')"
        )
    }
    replica = variables.get("read_only") == "ON" or _replicates(session)
    if replica:
        reasons.append("the server is a replica, whose rows arrive later than their cursor says")
    if variables.get("wsrep_on") == "ON" or variables.get("group_replication_group_name"):
        reasons.append("the server is part of a multi-primary cluster, whose other members can't be seen")
    version = parsed(variables.get("version", ""))
    locks = process and version.shows_locks and open_work.shows_locks(session)
    server = variables.get("server_uuid") or variables.get("server_uid")
    if not server and variables.get("server_id"):
        server = "/".join(variables.get(part, "") for part in ("hostname", "port", "server_id"))
    gtids, own = "@@global.gtid_executed", variables.get("server_uuid")
    if version.mariadb:
        gtids = "CONCAT_WS(',', @@global.gtid_binlog_state, @@global.gtid_slave_pos)"
        own = variables.get("server_id")
    known = "gtid_binlog_state" in variables or "gtid_executed" in variables
    if not known or variables.get("wsrep_on") == "ON":  # nodes of a cluster count for themselves
        gtids = ""
    sight = Sight(process, version.mariadb, locks)
    return Trust(sight, tuple(reasons), replica, server or None, version.numbers, gtids or None, own)


def _replicates(session: Session) -> bool:
    """Whether rows may arrive from another server: one that was stopped may be started again."""
    with suppress(ConfigError):  # no right to ask: what runs is seen
        if channels(session):
            return True
    threads = session.rows(
        "SELECT COUNT(*) FROM information_schema.processlist "
        "WHERE USER = 'system user' AND COMMAND IN ('Slave_IO', 'Slave_SQL', 'Slave_worker', 'Connect', 'Query') "
        "AND COMMAND <> 'Daemon'"
    )
    return int(threads[0][0] or 0) > 0


def wait_for_ids(session: Session, look: Callable[[], list[Holder]], seconds: float) -> list[Holder]:
    """Waits until everything that was open at the call has ended; returns what has not in time.

    An id has no clock: a row with a smaller id may be committed by whoever is open now.
    """
    started = now(session)
    found = look()
    writing = {h.thread for h in found if h.modified}
    return wait_for([h for h in found if h.modified or h.thread not in writing], look, started, seconds)


def wait_for(
    open_now: Iterable[Holder], look: Callable[[], list[Holder]], started: float, seconds: float
) -> list[Holder]:
    """Waits until these have ended, which were open at `started`; returns those that have not in time."""
    deadline = time.monotonic() + seconds
    waited_for = list(open_now)
    while waited_for and time.monotonic() < deadline:
        # A fresh list of transactions takes a pause of 0.1 s, by everyone who asks.
        time.sleep(random.uniform(0.15, 0.3))
        still = look()
        transactions = {h.trx for h in still if h.trx}
        threads = {h.thread for h in still if h.start <= started}
        # A transaction that writes keeps its id. Others get one when they begin to write, and a statement may go
        # on as a transaction: they have ended when their thread has nothing that began before the call.
        waited_for = [h for h in waited_for if (h.trx in transactions if h.modified else h.thread in threads)]
    return waited_for
