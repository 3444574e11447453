"""Twelve writers at full speed, and what a SELECT misses of the log that it should see.

Each writer counts in a row of its own, one transaction after the other, so that one number says which of its
transactions are visible. The row holds the number as text as well, which is found in the log without decoding rows.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from floodmark.model.changes import LogEnd, LogPlace
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source.binlog.dump import LogEvents
from floodmark.source.binlog.events import (
    GTID,
    GTID_TAGGED,
    MARIADB_GTID,
    QUERY,
    ROWS,
    XA_PREPARE,
    XID,
    LogEvent,
    gtid,
)
from floodmark.source.binlog.gtid import GtidSet
from floodmark.source.session import Session, as_text

WRITERS = 12
XA_WRITERS = 2  # of these
Rule = Callable[[Session], LogEnd]

_MARK = re.compile(rb"<(\d\d):(\d{10})>")
_XA_COMMIT = re.compile(rb"XA COMMIT X'([0-9a-f]+)'")
_WITHIN = re.compile(rb"BEGIN$|XA (START|END)")
_PROCEDURE = """
    CREATE PROCEDURE work(me INT) BEGIN
        WHILE (SELECT stop FROM control) = 0 DO
            UPDATE counters SET n = n + 1, mark = CONCAT('<', LPAD(me, 2, '0'), ':', LPAD(n, 10, '0'), '>') WHERE w = me;
        END WHILE;
    END"""


def create(server: DatabaseServer) -> None:
    """The database `d` with the writers' tables."""
    server.execute("CREATE DATABASE d")
    server.execute(
        "CREATE TABLE control (stop INT) ENGINE=InnoDB",
        "CREATE TABLE counters (w INT PRIMARY KEY, n BIGINT NOT NULL, mark CHAR(20) NOT NULL) ENGINE=InnoDB",
        _PROCEDURE,
        "INSERT INTO control VALUES (1)",
        "INSERT INTO counters VALUES " + ", ".join(f"({w}, 0, '')" for w in range(WRITERS)),
        database="d",
    )


@contextmanager
def writing(server: DatabaseServer) -> Iterator[None]:
    """All of them write while the block runs."""
    server.execute("UPDATE control SET stop = 0", database="d")
    failed: list[Exception] = []
    stop = threading.Event()

    def write(me: int) -> None:
        link = server.connect("d", autocommit=True)
        try:
            cursor = link.cursor()
            if me < WRITERS - XA_WRITERS:
                cursor.execute(f"CALL work({me})")
            while me >= WRITERS - XA_WRITERS and not stop.is_set():
                cursor.execute(f"SELECT n + 1 FROM counters WHERE w = {me}")
                mark = f"<{me:02}:{cursor.fetchone()[0]:010}>"
                for statement in (
                    f"XA START '{mark}'",
                    f"UPDATE counters SET n = n + 1, mark = '{mark}' WHERE w = {me}",
                    f"XA END '{mark}'",
                    f"XA PREPARE '{mark}'",
                    f"XA COMMIT '{mark}'",
                ):
                    cursor.execute(statement)
        except Exception as error:
            failed.append(error)
        finally:
            link.close()

    running = [threading.Thread(target=write, args=(me,)) for me in range(WRITERS)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        server.execute("UPDATE control SET stop = 1", database="d")
        for thread in running:
            thread.join()
    assert not failed, failed


@dataclass
class Look:
    """An end of the log, and what a SELECT made after it saw of each writer."""

    rule: str
    end: LogEnd
    seen: dict[int, int]


def look(name: str, rule: Rule, session: Session, other: Session) -> Look:
    """Takes an end, and then selects in another session."""
    end = rule(session)
    return Look(name, end, {int(w or 0): int(n or 0) for w, n in other.rows("SELECT w, n FROM d.counters")})


@dataclass
class Logged:
    """One writer's transactions, as the log has them in its order."""

    ends: list[tuple[int, int]] = field(default_factory=list)  # the place behind each
    numbers: list[int] = field(default_factory=list)
    gtids: list[str] = field(default_factory=list)

    def last(self, end: LogEnd, visible: GtidSet | None) -> int:
        """The number of the last one that the end promises."""
        at = bisect_right(self.ends, end.place.number)
        while at and visible is not None and not visible.contains(self.gtids[at - 1]):
            at -= 1
        return self.numbers[at - 1] if at else 0


class Read:
    """What the log says, read once for many looks."""

    def __init__(self, connect: Callable[[], Session], start: LogPlace, end: LogPlace) -> None:
        self.writers = {w: Logged() for w in range(WRITERS)}
        self.order: list[tuple[tuple[int, int], str]] = []  # every GTID, and the place behind its transaction
        self._gtid, self._mark = "", b""
        events = LogEvents(connect, start, end)
        for event in events:
            self._take(event, events.place)

    def _take(self, event: LogEvent, behind: LogPlace) -> None:
        body = bytes(event.body)
        if event.kind in (GTID, GTID_TAGGED, MARIADB_GTID):
            self._gtid, self._mark = gtid(event).text, b""
        elif event.kind in ROWS:
            self._mark = [b"", *(found.group() for found in _MARK.finditer(body))][-1]
        elif event.kind == XA_PREPARE:
            self._mark = b""  # its rows are not visible before the commit
            self._end(behind)
        elif event.kind == QUERY and (found := _XA_COMMIT.search(body)):
            self._mark = bytes.fromhex(found[1].decode())
            self._end(behind)
        elif event.kind == XID or (event.kind == QUERY and not _WITHIN.search(body)):
            self._end(behind)

    def _end(self, behind: LogPlace) -> None:
        if found := _MARK.fullmatch(self._mark):
            writer = self.writers[int(found[1])]
            writer.ends.append(behind.number)
            writer.numbers.append(int(found[2]))
            writer.gtids.append(self._gtid)
        if self._gtid:
            self.order.append((behind.number, self._gtid))
        self._gtid, self._mark = "", b""

    def missed(self, look: Look) -> int:
        """How many transactions the SELECT should have seen, and did not."""
        visible = None if look.end.visible is None else GtidSet.parse(look.end.visible)
        last = {w: logged.last(look.end, visible) for w, logged in self.writers.items()}
        return sum(max(0, last[w] - look.seen[w]) for w in last)

    def unaccounted(self, looks: Sequence[Look], before: GtidSet) -> int:
        """How many looks have transactions in their end's set that the log doesn't have before their place."""
        found, at, seen = 0, 0, GtidSet()
        for each in sorted(looks, key=lambda one: one.end.place.number):
            while at < len(self.order) and self.order[at][0] <= each.end.place.number:
                seen.add(self.order[at][1])
                at += 1
            left = GtidSet.parse(each.end.visible or "").minus(before).minus(seen)
            found += bool(left)
        return found


@dataclass
class Tally:
    """How often a rule was tried, and how often a SELECT missed something."""

    looks: int = 0
    missing: int = 0  # looks that missed at least one transaction
    transactions: int = 0
    unaccounted: int = 0


def binlog_pos(session: Session) -> LogEnd:
    """MariaDB's @@gtid_binlog_pos, taken for what is visible: a naive rule."""
    [(position,)] = session.rows("SELECT @@GLOBAL.gtid_binlog_pos")
    [(file, place, *_)] = session.rows("SHOW MASTER STATUS")
    return LogEnd(LogPlace(as_text(file), int(place or 0)), visible=as_text(position))
