"""What a MySQL server says about itself: version, clock, limits, role, encryption. Facts, not judgements."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from floodmark.model.errors import ConfigError
from floodmark.source import open_work, time_zones
from floodmark.source.open_work import Sight
from floodmark.source.server_load import channels
from floodmark.source.session import Session, as_text
from floodmark.source.trust import Trust, trust_in
from floodmark.source.version import parsed

_VARIABLES = (
    "version", "time_zone", "system_time_zone", "max_allowed_packet", "max_connections", "wait_timeout",
    "max_statement_time", "max_execution_time",
)  # fmt: skip
_STATUS = ("ssl_cipher", "ssl_version", "threads_connected")


@dataclass(frozen=True)
class Replication:
    """A replica's own view of its progress."""

    running: bool
    behind: float | None  # seconds; None if unknown
    error: str = ""


@dataclass(frozen=True)
class LongestTransaction:
    """The longest transaction that a server shows."""

    seconds: float
    remembered: bool  # among those that have ended, too; otherwise only among those open now


@dataclass(frozen=True)
class Server:
    """The facts."""

    version: str
    zone: str  # of the DATETIME values that the server writes
    skew: float  # its clock minus this machine's, in seconds
    unsure: float  # half the round-trip time of the query
    max_allowed_packet: int
    max_connections: int
    connected: int
    user_connections: int | None  # this user's own limit; None if there is none
    wait_timeout: int
    statement_seconds: float  # the server's time limit per statement; 0: none
    cipher: str  # empty: not encrypted
    tls_version: str
    trust: Trust
    replication: Replication | None  # None: not a replica, or it doesn't say
    zones: tuple[str, ...] | None = None  # of writing sessions, if not the server's; None: not shown
    longest: LongestTransaction | None = None  # None: it shows none

    @property
    def mariadb(self) -> bool:
        return parsed(self.version).mariadb

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version's first two numbers."""
        return parsed(self.version).numbers


def look(session: Session) -> Server:
    """Collects the facts, one query after the other."""
    variables = _named(session, "SHOW GLOBAL VARIABLES", _VARIABLES)
    status = _named(session, "SHOW SESSION STATUS", _STATUS)
    skew, unsure = _skew(session)
    zone = variables.get("time_zone", "")
    if zone.upper() == "SYSTEM":
        zone = f"SYSTEM ({variables.get('system_time_zone', 'unknown')})"
    # MariaDB counts seconds, MySQL milliseconds.
    seconds = (
        _number(variables.get("max_statement_time")) or _number(variables.get("max_execution_time")) / 1000
    )
    trust = trust_in(session)
    own = _number(as_text(session.rows("SELECT @@session.max_user_connections")[0][0]))
    return Server(
        version=variables.get("version", ""),
        zone=zone,
        skew=skew,
        unsure=unsure,
        max_allowed_packet=int(_number(variables.get("max_allowed_packet"))),
        max_connections=int(_number(variables.get("max_connections"))),
        connected=int(_number(status.get("threads_connected"))),
        user_connections=int(own) or None,
        wait_timeout=int(_number(variables.get("wait_timeout"))),
        statement_seconds=seconds,
        cipher=status.get("ssl_cipher", ""),
        tls_version=status.get("ssl_version", ""),
        trust=trust,
        replication=_replication(session),
        zones=time_zones.zones_beside(session),
        longest=_longest(session, trust.sight),
    )


def _longest(session: Session, sight: Sight) -> LongestTransaction | None:
    """The longest transaction that performance_schema remembers, else the longest one open now."""
    with suppress(ConfigError):  # no privilege, or the server has no such tables
        listed = " UNION ".join(
            f"SELECT TIMER_WAIT FROM performance_schema.events_transactions_{part} WHERE ACCESS_MODE = 'READ WRITE'"
            for part in ("history_long", "history", "current")
        )
        longest = session.rows(f"SELECT MAX(TIMER_WAIT) / 1e12 FROM ({listed}) seen")[0][0]
        if longest is not None:
            return LongestTransaction(float(longest), remembered=True)
    found = open_work.all_open_work(session, sight)
    return LongestTransaction(open_work.now(session) - found[0].start, remembered=False) if found else None


def _named(session: Session, show: str, names: Sequence[str]) -> dict[str, str]:
    listed = ", ".join(f"'{name}'" for name in names)
    return session.variables(f"{show} WHERE Variable_name IN ({listed})")


def _skew(session: Session) -> tuple[float, float]:
    """The clock skew from the fastest of three queries, and its uncertainty."""
    found = []
    for _ in range(3):
        before, tick = time.time(), time.monotonic()
        server = open_work.now(session)
        took = time.monotonic() - tick
        found.append((took / 2, server - (before + took / 2)))
    unsure, skew = min(found)
    return skew, unsure


def _replication(session: Session) -> Replication | None:
    with suppress(ConfigError):  # no privilege
        rows = channels(session)
        return replication(rows) if rows else None
    return None


def replication(rows: Sequence[dict[str, str | None]]) -> Replication:
    """The state of a replica's `channels`: all must be running, and the slowest counts."""
    running, behind, error = True, 0.0, ""
    for said in rows:
        running = (
            running and said.get("replica_io_running") == "Yes" and said.get("replica_sql_running") == "Yes"
        )
        seconds = said.get("seconds_behind_source")
        behind = -1.0 if seconds is None or behind < 0 else max(behind, float(seconds))
        error = error or said.get("last_io_error") or said.get("last_sql_error") or ""
    return Replication(running, None if behind < 0 else behind, " ".join(error.split()))


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
