"""How far the binary log may be read: the end before which everything that was logged can be seen by a SELECT.

Logged does not mean visible. A position that the server shows may lie behind transactions that wait for a disk, for
a replica's answer or for their turn; a SELECT would miss their rows. docs/decisions/0025-the-end-of-the-log.md has
the rule for each server, and how often simpler ones fail.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from floodmark.model.changes import FollowedTo, LogEnd, LogIdentity, LogPlace
from floodmark.model.errors import ConfigError, DataError, TransientError
from floodmark.model.origin import server_parts, several_servers
from floodmark.source import open_work
from floodmark.source.binlog.gtid import GtidSet
from floodmark.source.server import first_server
from floodmark.source.session import Session, as_text, version

# Where a file's first event begins.
FIRST = 4
# Seconds that `log_end` waits for transactions that are committing.
PATIENCE = 30.0
# Seconds between two looks at them: InnoDB renews its list only if nobody has read it for 0.1 s.
PAUSE = 0.12
_SHORT_PAUSE = 0.02
# Whoever has been committing for this many seconds is named.
_LONG = 2
# A number and the thread that owns it, in MySQL's gtid_owned ("uuid:7#12:8#13").
_OWNED = re.compile(r"\d+#\d+")


class LogFile(NamedTuple):
    """A file of the log."""

    name: str
    size: int


class LogGone(DataError):
    """The log no longer has what we want to read: it was purged or reset, or is another server's."""


# ---------------------------------------------------------------- what the server shows


def show_status(session: Session) -> str:
    """The statement that shows the binary log's end, and its filters."""
    known = version(session)
    newer = not known.mariadb and known.numbers >= (8, 2)
    return "SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS"


def logged_place(session: Session) -> LogPlace | None:
    """Where the log ends: nothing that is visible lies behind it. None: there is no log."""
    for file, position, *_ in session.rows(show_status(session)):
        return LogPlace(as_text(file), int(position or 0))
    return None


def snapshot_place(session: Session) -> LogPlace | None:
    """MariaDB: the place of the session's snapshot, before which everything is visible; without one, of a snapshot taken now."""
    found = session.variables("SHOW STATUS LIKE 'binlog_snapshot_%'")
    file, position = found.get("binlog_snapshot_file"), found.get("binlog_snapshot_position")
    return LogPlace(file, int(position)) if file and position else None


def log_identity(session: Session) -> LogIdentity:
    """Whose log it is."""
    known = server_parts(first_server(session))
    own = known.get("server_uuid") or known.get("server_uid")
    place = "/".join(known.get(name, "") for name in ("hostname", "port", "server_id"))
    return LogIdentity(own or place, version(session).mariadb)


def log_files(session: Session) -> tuple[LogFile, ...]:
    """The files that the server still has, oldest first."""
    try:
        rows = session.rows("SHOW BINARY LOGS")
    except DataError as refused:  # 1381: it has none
        raise no_log() from refused
    return tuple(LogFile(as_text(name), int(size or 0)) for name, size, *_ in rows)


def no_log() -> ConfigError:
    """The error for a server without a log."""
    return ConfigError(
        "the source writes no binary log",
        hint="start it with log_bin, or give the table a cursor column instead",
    )


# ---------------------------------------------------------------- the end


def log_end(session: Session, *, patience: float = PATIENCE, before: LogEnd | None = None) -> LogEnd:
    """The end up to which the log may be read, as of now; the session must not have a transaction open.

    Who keeps it from being later is named. If nothing is certain within `patience` seconds, `before` is still the end;
    without one, TransientError.
    """
    if version(session).mariadb:
        return _mariadb_end(session, patience, before)
    # In this order: what is executed by now is logged before the place that is asked for later.
    executed, owned = _executed(session)
    place = logged_place(session)
    if place is None:
        raise no_log()
    if executed is None:
        return _waited(session, place, patience, before)
    return LogEnd(place, executed, executed, _owners(session, owned))


def log_start(session: Session, *, patience: float = PATIENCE) -> LogEnd:
    """An end without exceptions, to follow the log from: everything before its place is visible, and in its set.

    An end by `log_end` won't do: what lies before its place and was not visible yet would never be read.
    """
    if version(session).mariadb:
        end = log_end(session, patience=patience)
        return replace(end, gtid=gtid_at(session, end.place))
    if _executed(session)[0] is None:
        return log_end(session, patience=patience)
    place = logged_place(session)
    if place is None:
        raise no_log()
    until = time.monotonic() + patience
    first: frozenset[str] | None = None
    while True:
        executed, owned = _executed(session)
        # Whoever has logged a transaction before the place owns its GTID until it is visible.
        now = frozenset(_OWNED.findall(owned))
        first = now if first is None else first & now
        if not first:
            return LogEnd(place, executed, executed)
        if time.monotonic() > until:
            return _held(None, _owners(session, owned) or ("a transaction that is committing",))
        time.sleep(_SHORT_PAUSE)


def _executed(session: Session) -> tuple[str | None, str]:
    """The executed transactions, and those that have a GTID but aren't executed yet; None if not all have GTIDs."""
    if version(session).numbers < (5, 6):
        return None, ""
    [(mode, executed, owned)] = session.rows(
        "SELECT @@GLOBAL.gtid_mode, @@GLOBAL.gtid_executed, @@GLOBAL.gtid_owned"
    )
    return ("".join(as_text(executed).split()) if mode == b"ON" else None), as_text(owned)


def _mariadb_end(session: Session, patience: float, before: LogEnd | None) -> LogEnd:
    # By default, one thread commits in InnoDB for a whole group and moves the place, under one lock.
    [(together,)] = session.once("SELECT @@GLOBAL.binlog_optimize_thread_scheduling")
    place = snapshot_place(session) if together == b"1" else logged_place(session)
    if place is None:
        raise no_log()
    if together != b"1":
        return _waited(session, place, patience, before)
    # Only XA COMMIT logs first and commits later; until then, the transaction is listed as prepared.
    first = left = _xa_commits(session) if session.rows("XA RECOVER") else {}
    until = time.monotonic() + patience
    while left:
        if time.monotonic() > until:
            return _held(before, [*left.values()])
        time.sleep(_SHORT_PAUSE)
        left = {statement: first[statement] for statement in left if statement in _xa_commits(session)}
    waiting = "(STATE LIKE '%semi-sync%' OR STATE LIKE '%commit%')"
    return LogEnd(place, held_back_by=_named(session, waiting))


def _xa_commits(session: Session) -> dict[bytes, str]:
    """MariaDB's connections that are committing an XA transaction, by statement."""
    rows = _processes(session, open_work.XA_COMMITS, "QUERY_ID, ID, USER, HOST")
    return {
        statement or b"": f"XA COMMIT of connection {as_text(number)} ({open_work.who(user, host)})"
        for statement, number, user, host in rows
    }


def _waited(session: Session, place: LogPlace, patience: float, before: LogEnd | None) -> LogEnd:
    """The place, once the transactions that may be committing by now have ended."""
    until = time.monotonic() + patience
    first = left = open_work.perhaps_committing(session)
    while left:
        if time.monotonic() > until:
            now = open_work.now(session)
            return _held(before, [one.describe(now) for one in left.values()])
        time.sleep(PAUSE)
        later = open_work.perhaps_committing(session)
        left = {trx: first[trx] for trx in left if trx in later}
    return LogEnd(place)


def _held(before: LogEnd | None, who: Sequence[str]) -> LogEnd:
    """The end before; an error if there is none."""
    if before is not None:
        return replace(before, held_back_by=tuple(sorted(who)))
    raise TransientError(
        f"no end of the source's binary log can be read yet: held back by {', '.join(sorted(who))}",
        hint="run again once it has ended: nothing is lost",
    )


def _owners(session: Session, owned: str) -> tuple[str, ...]:
    """Who has had a GTID for long without being executed."""
    threads = {one.partition("#")[2] for one in _OWNED.findall(owned)}
    return _named(session, f"ID IN ({', '.join(threads)})") if threads else ()


def _named(session: Session, which: str) -> tuple[str, ...]:
    """Those of the connections that have been at it for long."""
    columns = "ID, USER, HOST, TIME, STATE"
    return tuple(
        f"connection {as_text(number)} ({open_work.who(user, host)}), committing for {as_text(seconds)} s: {as_text(state)}"
        for number, user, host, seconds, state in _processes(
            session, f"{which} AND TIME >= {_LONG} AND COMMAND <> 'Sleep'", columns
        )
    )


def _processes(session: Session, which: str, columns: str) -> list[tuple[bytes | None, ...]]:
    return session.rows(f"SELECT {columns} FROM information_schema.processlist WHERE {which}")


def await_end(session: Session, newest: FollowedTo, patience: float = PATIENCE) -> None:
    """Returns once the session's server has executed what was read of the log: its own, or another server's at the same address.

    Rows that a SELECT misses there would pass for deleted ones.
    """
    if log_identity(session).server == newest.identity.server:
        return
    until = time.monotonic() + patience
    while newest.gtid is not None:
        if has_executed(session, newest.gtid):
            return
        if time.monotonic() > until:
            break
        time.sleep(PAUSE)
    raise several_servers(
        [first_server(session)], ", and this one lacks transactions that the binary log of another one has"
    )


def has_executed(session: Session, gtids: str) -> bool:
    """Whether a SELECT on this server sees all of these transactions, by its own account."""
    wanted = GtidSet.parse(gtids)
    if not version(session).mariadb:
        executed, _ = _executed(session)
        return executed is not None and GtidSet.parse(executed).contains(wanted)
    if not GtidSet.parse(_mariadb_state(session)).has_logged(wanted):
        return False
    place = snapshot_place(session)  # logged does not mean visible
    return place is not None and GtidSet.parse(gtid_at(session, place)).contains(wanted)


def _mariadb_state(session: Session) -> str:
    """The last transaction of each server in each domain, logged or replicated."""
    [(text,)] = session.rows("SELECT CONCAT_WS(',', @@GLOBAL.gtid_binlog_state, @@GLOBAL.gtid_slave_pos)")
    return as_text(text).strip(",")


# ---------------------------------------------------------------- which file has what


def gtid_at(session: Session, place: LogPlace) -> str:
    """MariaDB's GTID position of a place in the log. The server reads the file up to there."""
    [(gtid,)] = session.rows(f"SELECT BINLOG_GTID_POS('{place.file}', {place.position})")
    return as_text(gtid)


def file_of(session: Session, gtids: str) -> LogPlace:
    """Where to begin on this server if these transactions have been read, on it or on another one; LogGone if it was purged.

    All transactions that the log has before that place are among them.
    """
    read = GtidSet.parse(gtids)
    if version(session).mariadb:
        # By domain and server: an unknown domain, or a server that has diverged, would go unnoticed.
        lacks = not GtidSet.parse(_mariadb_state(session)).has_logged(read)
    else:
        executed, _ = _executed(session)
        if executed is None:
            raise ConfigError(
                "a place in another server's log is only known by GTIDs, but gtid_mode is not ON",
                hint="set gtid_mode = ON",
            )
        lacks = not GtidSet.parse(executed).contains(read)
    if lacks:
        raise DataError(
            "the source lacks transactions that were already read from another server",
            hint="wait until it has caught up; if it never will, floodmark watermark accept",
        )
    files = log_files(session)
    low, high = 0, len(files)  # files before `low` may be begun at, those from `high` on may not
    while low < high:
        middle = (low + high) // 2
        if read.contains(_before(session, files[middle].name)):
            low = middle + 1
        else:
            high = middle
    if not low:
        raise LogGone(
            f"the source has purged transactions that were not read yet: its oldest file is {files[0].name}",
            hint="keep the log for longer (binlog_expire_logs_seconds); what it no longer says is compared row by row",
        )
    return LogPlace(files[low - 1].name, FIRST)


def _before(session: Session, file: str) -> GtidSet:
    """The transactions logged before a file, as its beginning says."""
    rows = session.rows(f"SHOW BINLOG EVENTS IN '{file}' LIMIT 3")
    for _, _, kind, _, _, text in rows:
        if kind in (b"Previous_gtids", b"Gtid_list"):
            return GtidSet.parse(as_text(text).strip("[]"))
    return GtidSet()
