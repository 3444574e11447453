"""How far a table can be read without losing a row: the settled bound and who holds it back.

A row is read once, so everything below the bound must be final: nothing that is still running may commit a row
there later. The bound is the server's clock at the run's start, lowered to the start of the oldest transaction
that has changed rows or runs a statement, and of the oldest running statement (one that waits for a metadata
lock is in no transaction yet, but its NOW() is fixed).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from floodmark import clock
from floodmark.errors import ConfigError
from floodmark.mysql.connect import Session

# trx_started has whole seconds and is set a moment after the statement's NOW().
TRX_SLACK = 1.0
# A cursor this far ahead of the clock is in the future; less is a writer's clock that runs ahead a little.
FUTURE_SLACK = 60.0

_BACKGROUND = (
    "('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID', 'Slave_IO', 'Slave_SQL', 'Slave_worker')"
)


@dataclass(frozen=True)
class Holder:
    """A transaction or statement that may still commit rows with an earlier cursor."""

    start: float
    thread: int
    trx: str  # its id, or "" for a statement outside of any transaction
    who: str

    def describe(self, now: float) -> str:
        what = "transaction" if self.trx else "statement"
        return f"{what} of connection {self.thread} ({self.who}), open for {max(0, int(now - self.start))} s"


@dataclass(frozen=True)
class Trust:
    """Whether the source's own view of open work is complete; if not, why."""

    process: bool
    reasons: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return not self.reasons


def now(session: Session) -> float:
    """The server's clock."""
    return float(session.rows("SELECT UNIX_TIMESTAMP(SYSDATE(6))")[0][0] or 0)


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

    def of_server(moments: Sequence[int]) -> list[int]:
        session.rows("SET time_zone = @@global.time_zone")
        try:
            return offsets(session, moments)
        finally:
            session.rows("SET time_zone = '+00:00'")

    return of_server


def trust(session: Session) -> Trust:
    """Looks whether this server tells us about every transaction that can still commit."""
    reasons = []
    process = True
    try:
        session.rows("SELECT 1 FROM information_schema.innodb_trx LIMIT 1")
    except ConfigError:
        process = False
        reasons.append("the user has no PROCESS privilege, so open transactions can't be seen")
    variables = {
        (name or b"").decode().lower(): (value or b"").decode().upper()
        for name, value in session.rows(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'read_only', 'group_replication_group_name')"
        )
    }
    if variables.get("read_only") == "ON" or _replicates(session):
        reasons.append("the server is a replica, whose rows arrive later than their cursor says")
    if variables.get("wsrep_on") == "ON" or variables.get("group_replication_group_name"):
        reasons.append("the server is part of a multi-primary cluster, whose other members can't be seen")
    return Trust(process, tuple(reasons))


def _replicates(session: Session) -> bool:
    threads = session.rows(
        "SELECT COUNT(*) FROM information_schema.processlist "
        "WHERE USER = 'system user' AND COMMAND IN ('Slave_IO', 'Slave_SQL', 'Slave_worker', 'Connect', 'Query') "
        "AND COMMAND <> 'Daemon'"
    )
    return int(threads[0][0] or 0) > 0


def holders(session: Session, process: bool) -> list[Holder]:
    """Every transaction and statement that may still commit a row, oldest first."""
    found = _statements(session)
    if process:
        found += _transactions(session)
    return sorted(found, key=lambda h: h.start)


def _transactions(session: Session) -> list[Holder]:
    # trx_started is in the system's zone whatever the session's. In the hour that a clock shows twice, the
    # earlier of the two moments is the safe one.
    session.rows("SET time_zone = 'SYSTEM'")
    try:
        rows = session.rows(
            "SELECT IF(FROM_UNIXTIME(UNIX_TIMESTAMP(trx_started) - 3600) = trx_started,"
            " UNIX_TIMESTAMP(trx_started) - 3600, UNIX_TIMESTAMP(trx_started)),"
            " trx_mysql_thread_id, trx_id, IFNULL(p.USER, ''), IFNULL(p.HOST, '')"
            " FROM information_schema.innodb_trx LEFT JOIN information_schema.processlist p"
            " ON p.ID = trx_mysql_thread_id"
            " WHERE trx_mysql_thread_id <> CONNECTION_ID()"
            " AND (trx_rows_modified > 0 OR trx_query IS NOT NULL OR trx_state <> 'RUNNING')"
        )
    finally:
        session.rows("SET time_zone = '+00:00'")
    return [
        Holder(float(start or 0) - TRX_SLACK, int(thread or 0), _text(trx), _who(user, host))
        for start, thread, trx, user, host in rows
    ]


def _statements(session: Session) -> list[Holder]:
    # MariaDB counts milliseconds; elsewhere whole seconds, of which up to one may be missing.
    mariadb = b"MariaDB" in (session.rows("SELECT VERSION()")[0][0] or b"")
    age = "TIME_MS / 1000" if mariadb else "TIME + 1"
    rows = session.rows(
        f"SELECT UNIX_TIMESTAMP(SYSDATE(6)) - ({age}), ID, USER, HOST FROM information_schema.processlist"
        f" WHERE ID <> CONNECTION_ID() AND COMMAND NOT IN {_BACKGROUND} AND USER <> 'system user'"
    )
    return [
        Holder(float(start or 0), int(thread or 0), "", _who(user, host))
        for start, thread, user, host in rows
    ]


def _text(cell: bytes | None) -> str:
    return (cell or b"").decode(errors="replace")


def _who(user: bytes | None, host: bytes | None) -> str:
    return f"{_text(user) or 'unknown'}@{_text(host).rpartition(':')[0] or _text(host) or 'unknown'}"


def wait_for_ids(session: Session, process: bool, seconds: float) -> list[Holder]:
    """Waits until everything that was open at the call has ended; returns what has not in time.

    An id has no clock: a row with a smaller id may be committed by whoever is open now.
    """
    deadline = time.monotonic() + seconds
    started = now(session)
    open_at_start = {(h.thread, h.trx): h for h in holders(session, process)}
    while open_at_start:
        if time.monotonic() >= deadline:
            return sorted(open_at_start.values(), key=lambda h: h.start)
        time.sleep(0.1)
        still = {(h.thread, h.trx): h for h in holders(session, process)}
        open_at_start = {
            k: h
            for k, h in open_at_start.items()
            # A transaction keeps its id; a statement that began after the call is another one.
            if k in still and (h.trx or still[k].start <= started)
        }
    return []
