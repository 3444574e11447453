"""What a server shows of work that may still commit a row; `model.open_work` says what it means."""

from __future__ import annotations

import random
import time
from secrets import token_hex

from floodmark.model.errors import ConfigError, TransientError
from floodmark.model.open_work import Name, OpenWork, Sight, Transaction, may_still_commit
from floodmark.source.session import LABEL, Row, Session, as_text

# How many times to query the list of transactions until it is fresh; the pauses grow to this many seconds.
LOOKS = 16
PAUSE = 1.5
# By how many seconds clocks go back: an hour, half an hour on Lord Howe Island, two hours at Troll.
_SHIFTS = (7200, 3600, 1800)
_BACKGROUND = (
    "('Sleep', 'Daemon', 'Binlog Dump', 'Binlog Dump GTID', 'Slave_IO', 'Slave_SQL', 'Slave_worker')"
)
# A statement in one of these states has opened its tables, and those of all functions and triggers it can
# reach.
_EXECUTING = "('executing', 'Sending data', 'Sending to client', 'Creating sort index', 'User sleep')"
# One in these has not begun to commit: before that, its state becomes "query end".
_WRITING = (
    b"executing",
    b"Sending data",
    b"User sleep",
    b"update",
    b"updating",
    b"Searching rows for update",
)
_MAY_READ = "('statement/sql/select', 'statement/sql/execute_sql', 'statement/com/Execute')"
_READ_LOCKS = "('INTENTION_EXCLUSIVE', 'SHARED', 'SHARED_HIGH_PRIO', 'SHARED_READ')"
# Connections that are committing an XA transaction, in the process list.
XA_COMMITS = "UPPER(IFNULL(INFO, '')) LIKE '%XA%COMMIT%' AND ID <> CONNECTION_ID()"
# The server's clock when the statement gets there, not when it began.
CLOCK = "UNIX_TIMESTAMP(SYSDATE(6))"


def all_open_work(session: Session, sight: Sight) -> list[OpenWork]:
    """Everything that may still commit a row, oldest first.

    The order of the queries matters: a statement that ends between two of them has either committed, or the
    later queries see its transaction and locks.
    """
    running = _statements(session, sight)
    executing = _executing(session) if sight.locks else frozenset[int]()
    transactions = _transactions(session) if sight.process else []
    locks = _write_locks(session) if sight.locks else None
    if locks is not None and _lost(session):  # an incomplete list of locks proves nothing
        locks = None
    return may_still_commit(running, executing, transactions, locks, sight.mariadb)


def _statements(session: Session, sight: Sight) -> list[OpenWork]:
    # MariaDB counts milliseconds; other servers count whole seconds and may be short by up to one. The clock
    # is read before the ages, so that a computed start is too early rather than too late.
    age = "TIME_MS / 1000" if sight.mariadb else "TIME + 1"
    seen = now(session)
    # A connection that is still logging in has no user name and runs nothing.
    rows = session.rows(
        f"SELECT {age}, ID, USER, HOST FROM information_schema.processlist"
        f" WHERE ID <> CONNECTION_ID() AND COMMAND NOT IN {_BACKGROUND} AND USER <> 'system user'"
        " AND NOT (USER = 'unauthenticated user' AND COMMAND = 'Connect' AND INFO IS NULL)"
        f" AND IFNULL(INFO, '') NOT LIKE '{LABEL}%'"
    )
    return [
        OpenWork(seen - float(age or 0), int(thread or 0), "", who(user, host))
        for age, thread, user, host in rows
    ]


def _executing(session: Session) -> frozenset[int]:
    """Connections whose statement may only be reading, and has acquired every lock it ever will."""
    rows = session.rows(
        "SELECT t.PROCESSLIST_ID FROM performance_schema.threads t"
        " JOIN performance_schema.events_statements_current s ON s.THREAD_ID = t.THREAD_ID"
        f" WHERE t.PROCESSLIST_ID IS NOT NULL AND t.PROCESSLIST_STATE IN {_EXECUTING}"
        f" AND s.NESTING_EVENT_LEVEL = 0 AND s.END_EVENT_ID IS NULL AND s.EVENT_NAME IN {_MAY_READ}"
    )
    return frozenset(int(thread or 0) for (thread,) in rows)


def _transactions(session: Session) -> list[Transaction]:
    # trx_started is in the system's zone, whatever the session's. In the hour that a clock shows twice, the
    # earlier moment is the safe one.
    moment = "UNIX_TIMESTAMP(trx_started)"
    earlier = " ".join(
        f"WHEN FROM_UNIXTIME({moment} - {by}) = trx_started THEN {moment} - {by}" for by in _SHIFTS
    )
    session.rows("SET time_zone = 'SYSTEM'")
    try:
        rows = _fresh(
            session,
            f"CASE {earlier} ELSE {moment} END, trx_mysql_thread_id, trx_id, IFNULL(p.USER, ''), IFNULL(p.HOST, ''),"
            " trx_rows_modified, trx_is_read_only, trx_isolation_level"
            " FROM information_schema.innodb_trx LEFT JOIN information_schema.processlist p"
            " ON p.ID = trx_mysql_thread_id",
        )
    finally:
        session.rows("SET time_zone = '+00:00'")
    return [
        Transaction(
            float(start or 0),
            int(thread or 0),
            as_text(trx),
            who(user, host),
            bool(int(modified or 0)),
            bool(int(read_only or 0)),
            as_text(isolation),
        )
        for start, thread, trx, user, host, modified, read_only, isolation in rows
    ]


def perhaps_committing(session: Session) -> dict[str, OpenWork]:
    """The transactions that may be in their commit by now, by their ids.

    Not those that have only written so far: what an idle connection, or one in the middle of a statement, has not
    committed yet will be logged later. A prepared XA transaction has no connection, and is committed by another one.
    """
    rows = _fresh(
        session,
        f"{CLOCK} - IFNULL(p.TIME, 0), trx_mysql_thread_id, trx_id, IFNULL(p.USER, ''), IFNULL(p.HOST, ''),"
        " trx_rows_modified, p.COMMAND, p.STATE FROM information_schema.innodb_trx"
        " LEFT JOIN information_schema.processlist p ON p.ID = trx_mysql_thread_id",
    )
    found: dict[str, OpenWork] = {}
    prepared: dict[str, OpenWork] = {}
    for start, number, trx, user, host, modified, command, state in rows:
        thread = int(number or 0)
        if not int(modified or 0) or command == b"Sleep" or state in _WRITING:
            continue
        known = found if thread else prepared
        known[as_text(trx)] = OpenWork(
            float(start or 0), thread, as_text(trx), who(user, host), modified=True
        )
    if prepared and session.rows(f"SELECT 1 FROM information_schema.processlist WHERE {XA_COMMITS} LIMIT 1"):
        found |= prepared
    return found


def _fresh(session: Session, columns: str) -> list[Row]:
    """The current rows of innodb_trx, without our own.

    InnoDB answers from a copy that it renews only if nobody has read it for 0.1 s: under frequent queries the
    copy gets ever older. So a list counts only if it shows this very query.
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
        "the source's list of transactions is never current: someone queries it more than ten times a second",
        hint="find out who polls information_schema.innodb_trx, or try again",
    )


def _write_locks(session: Session) -> dict[int, frozenset[Name]]:
    """The tables on which each connection has, or waits for, more than a read lock; 0: no connection.

    A prepared (XA) transaction leaves its connection at once. Its locks still show as that connection's; once
    it is gone, as those of no thread, and after a crash as those of the server's first thread.
    """
    rows = session.rows(
        "SELECT t.PROCESSLIST_ID, l.OBJECT_SCHEMA, l.OBJECT_NAME FROM performance_schema.metadata_locks l"
        " LEFT JOIN performance_schema.threads t ON t.THREAD_ID = l.OWNER_THREAD_ID"
        f" WHERE l.OBJECT_TYPE = 'TABLE' AND l.LOCK_TYPE NOT IN {_READ_LOCKS}"
    )
    found: dict[int, set[Name]] = {}
    for thread, schema, name in rows:
        found.setdefault(int(thread or 0), set()).add((as_text(schema).lower(), as_text(name).lower()))
    return {thread: frozenset(names) for thread, names in found.items()}


def shows_locks(session: Session) -> bool:
    """Whether performance_schema lists every lock: it is on, readable, and has lost nothing so far.

    For Oracle's MySQL from 8.0 on. An instrument that was switched off and on again since the start leaves no
    trace.
    """
    try:
        [(enabled,)] = session.rows(
            "SELECT (SELECT COUNT(*) FROM performance_schema.setup_instruments"
            " WHERE NAME = 'wait/lock/metadata/sql/mdl' AND ENABLED = 'YES')"
            " * (SELECT COUNT(*) FROM performance_schema.setup_consumers"
            " WHERE NAME = 'global_instrumentation' AND ENABLED = 'YES')"
            " * @@performance_schema"
        )
        _write_locks(session)
        _executing(session)
        return int(enabled or 0) == 1 and not _lost(session)
    except ConfigError:
        return False


def _lost(session: Session) -> bool:
    """Whether the server has run out of room for a lock or a thread since its start."""
    [(lost,)] = session.rows(
        "SELECT SUM(VARIABLE_VALUE) FROM performance_schema.global_status WHERE VARIABLE_NAME IN"
        " ('Performance_schema_metadata_lock_lost', 'Performance_schema_thread_instances_lost')"
    )
    return float(lost or 1) != 0


def now(session: Session) -> float:
    """The server's clock."""
    return float(session.rows(f"SELECT {CLOCK}")[0][0] or 0)


def who(user: bytes | None, host: bytes | None) -> str:
    """A connection's user and host, for people."""
    return f"{as_text(user) or 'unknown'}@{as_text(host).rpartition(':')[0] or as_text(host) or 'unknown'}"
