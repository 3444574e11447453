"""How far a table can be read without losing a row: the settled bound and who holds it back.

A row is read once, so everything below the bound must be final: nothing that is still running may commit a row
there later. The bound is the server's clock at the run's start, lowered to the start of the oldest transaction
that has changed rows or runs a statement, and of the oldest running statement (one that waits for a metadata
lock is in no transaction yet, but its NOW() is fixed). What can never write holds nothing back: idle readers,
read-only transactions, our own sessions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex

from floodmark import clock
from floodmark.errors import ConfigError, TransientError
from floodmark.mysql.connect import LABEL, Row, Session

# trx_started has whole seconds and is set a moment after the statement's NOW().
TRX_SLACK = 1.0
# How often the list of transactions is asked for until it is a fresh one; the pauses grow to this many seconds.
LOOKS = 16
PAUSE = 1.5
# By how much clocks go back: an hour, half of one on Lord Howe Island, two at Troll.
_SHIFTS = (7200, 3600, 1800)
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
    trx: str  # its id, or "" for a statement
    who: str
    modified: bool = False  # it has written rows, in this table or another

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
        # It asks for the same privilege as innodb_trx, whose copy of the transactions would be renewed by a look.
        session.rows("SELECT 1 FROM information_schema.innodb_cmp LIMIT 1")
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
    # Statements first: a thread that is in a read-only transaction afterwards has ended what it ran before.
    found = _statements(session)
    if process:
        transactions, readers = _transactions(session)
        found = [h for h in found if h.thread not in readers] + transactions
    return sorted(found, key=lambda h: h.start)


def _transactions(session: Session) -> tuple[list[Holder], set[int]]:
    """The transactions that may write, and the threads whose transaction can't."""
    # trx_started is in the system's zone whatever the session's. In the hour that a clock shows twice, the
    # earlier of the two moments is the safe one.
    moment = "UNIX_TIMESTAMP(trx_started)"
    earlier = " ".join(
        f"WHEN FROM_UNIXTIME({moment} - {by}) = trx_started THEN {moment} - {by}" for by in _SHIFTS
    )
    session.rows("SET time_zone = 'SYSTEM'")
    try:
        rows = _fresh(
            session,
            f"CASE {earlier} ELSE {moment} END, trx_mysql_thread_id, trx_id, IFNULL(p.USER, ''), IFNULL(p.HOST, ''),"
            " trx_rows_modified, trx_is_read_only, trx_query IS NOT NULL OR trx_state <> 'RUNNING'"
            " FROM information_schema.innodb_trx LEFT JOIN information_schema.processlist p"
            " ON p.ID = trx_mysql_thread_id",
        )
    finally:
        session.rows("SET time_zone = '+00:00'")
    found, readers = [], set()
    for start, thread, trx, user, host, modified, read_only, busy in rows:
        if int(read_only or 0) and not int(modified or 0):
            readers.add(int(thread or 0))
        # A thread of 0 is a transaction that was prepared (XA) and left by its connection.
        elif int(modified or 0) or int(busy or 0) or not int(thread or 0):
            found.append(
                Holder(
                    float(start or 0) - TRX_SLACK,
                    int(thread or 0),
                    _text(trx),
                    _who(user, host),
                    bool(int(modified or 0)) or not int(thread or 0),
                )
            )
    return found, readers


def _fresh(session: Session, columns: str) -> list[Row]:
    """What innodb_trx holds now, without ourselves.

    InnoDB answers from a copy, and renews it only when nobody has read it for 0.1 s: under frequent questions it
    grows old without end. So a list counts only when it shows this very question.
    """
    for look in range(LOOKS):
        mark = token_hex(8)
        session.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")  # to be in the list
        try:
            rows = session.rows(
                f"SELECT /* {mark} */ trx_mysql_thread_id = CONNECTION_ID(), trx_query, {columns}"
            )
        finally:
            session.rows("COMMIT")
        if any(int(mine or 0) and mark.encode() in (query or b"") for mine, query, *_ in rows):
            return [
                tuple(rest)
                for mine, query, *rest in rows
                if not int(mine or 0) and not (query or b"").startswith(LABEL.encode())
            ]
        time.sleep(random.uniform(0.11, 0.15) + random.uniform(0, min(PAUSE, 0.1 * 2**look)))
    raise TransientError(
        "the source's list of transactions is never current: someone asks for it more than ten times a second",
        hint="find who polls information_schema.innodb_trx, or try again",
    )


def _statements(session: Session) -> list[Holder]:
    # MariaDB counts milliseconds; elsewhere whole seconds, of which up to one may be missing. The clock is read
    # before the ages are, so that a start is rather too early than too late.
    mariadb = b"MariaDB" in (session.rows("SELECT VERSION()")[0][0] or b"")
    age = "TIME_MS / 1000" if mariadb else "TIME + 1"
    seen = now(session)
    rows = session.rows(
        f"SELECT {age}, ID, USER, HOST FROM information_schema.processlist"
        f" WHERE ID <> CONNECTION_ID() AND COMMAND NOT IN {_BACKGROUND} AND USER <> 'system user'"
        f" AND IFNULL(INFO, '') NOT LIKE '{LABEL}%'"
    )
    return [
        Holder(seen - float(age or 0), int(thread or 0), "", _who(user, host))
        for age, thread, user, host in rows
    ]


def _text(cell: bytes | None) -> str:
    return (cell or b"").decode(errors="replace")


def _who(user: bytes | None, host: bytes | None) -> str:
    return f"{_text(user) or 'unknown'}@{_text(host).rpartition(':')[0] or _text(host) or 'unknown'}"


def wait_for_ids(session: Session, look: Callable[[], list[Holder]], seconds: float) -> list[Holder]:
    """Waits until everything that was open at the call has ended; returns what has not in time.

    An id has no clock: a row with a smaller id may be committed by whoever is open now.
    """
    deadline = time.monotonic() + seconds
    started = now(session)
    waited_for = look()
    writing = {h.thread for h in waited_for if h.modified}
    waited_for = [h for h in waited_for if h.modified or h.thread not in writing]
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
