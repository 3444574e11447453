"""What a MySQL server says about itself: which one it is, its version, clock, limits, load and role. Facts, not judgements."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from floodmark.model.errors import ConfigError
from floodmark.model.open_work import READ_ONLY, Sight, Trust, can_write, membership
from floodmark.model.origin import server_parts
from floodmark.source import open_work, time_zones
from floodmark.source.session import Session, as_text, parse_version, version

_PLACE = ("hostname", "port", "server_id")
_NAMES = (*_PLACE, "server_uid", "server_uuid", "version")
_IDENTITY = ", ".join(f"'{name}'" for name in _NAMES)
_MODES = ", ".join(f"'{name}'" for name in READ_ONLY)


def server_sql(session: Session, like: str = "") -> str:
    """An expression for all that tells a server from another one: an address may lead to several.

    `like` is the answer of a server that has the same variables: this one need not be asked which it has.
    """
    asked = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({_IDENTITY})"
    known = set(server_parts(like)) or {as_text(name) for name, _ in session.once(asked)}
    parts = ", '/', ".join(f"'{name}=', @@global.{name}" for name in _NAMES if name in known)
    return f"CONCAT({parts or repr('')})"


def server_of(session: Session, like: str = "") -> str:
    """The server that answers the session, by that expression."""
    try:
        return as_text(session.rows(f"SELECT {server_sql(session, like)}")[0][0])
    except ConfigError:  # it is of another kind and lacks a variable
        if not like:
            raise
        return server_of(session)


def first_server(session: Session) -> str:
    """The server that has answered the session first; asked only once."""
    return as_text(session.once(f"SELECT {server_sql(session)}")[0][0])


def trust_in(session: Session) -> Trust:
    """Checks whether this server shows every transaction that can still commit."""
    process = True
    try:
        # This needs the same privilege as innodb_trx, but doesn't count as a read of its list of
        # transactions.
        session.rows("SELECT 1 FROM information_schema.innodb_cmp LIMIT 1")
    except ConfigError:
        process = False
    shown = session.variables(
        "SHOW GLOBAL VARIABLES WHERE Variable_name LIKE 'aurora\\_%' OR Variable_name IN"
        " ('wsrep_on', 'wsrep_provider', 'group_replication_group_name', 'gtid_executed',"
        f" 'gtid_binlog_state', {_IDENTITY}, {_MODES})"
    )
    variables = {name: value.upper() for name, value in shown.items()}
    replica = not can_write(variables) or _replicates(session)
    member_of = membership(variables, _direct(session))
    version = parse_version(variables.get("version", ""))
    locks = process and version.shows_locks and open_work.shows_locks(session)
    server = variables.get("server_uuid") or variables.get("server_uid")
    if not server and variables.get("server_id"):
        server = "/".join(variables.get(part, "") for part in _PLACE)
    gtids, own = "@@global.gtid_executed", variables.get("server_uuid")
    if version.mariadb:
        gtids = "CONCAT_WS(',', @@global.gtid_binlog_state, @@global.gtid_slave_pos)"
        own = variables.get("server_id")
    known = "gtid_binlog_state" in variables or "gtid_executed" in variables
    if not known or member_of == "galera":  # each node of a cluster counts its own
        gtids = ""
    sight = Sight(process, version.mariadb, locks)
    return Trust(sight, replica, member_of, server or None, version.numbers, gtids or None, own)


def _direct(session: Session) -> bool:
    """Whether the connection that we were given at the log-in is the server's own."""
    # Some proxies answer a bare CONNECTION_ID() themselves. At the log-in, its lower 32 bits were sent.
    return int(session.rows("SELECT CONNECTION_ID() + 0")[0][0] or 0) % 2**32 == session.connection_id


def _replicates(session: Session) -> bool:
    """Whether rows may arrive from another server: even stopped replication may be started again."""
    with suppress(ConfigError):  # no privilege: fall back to the threads that are running
        if channels(session):
            return True
    threads = session.rows(
        "SELECT COUNT(*) FROM information_schema.processlist "
        "WHERE USER = 'system user' AND COMMAND IN ('Slave_IO', 'Slave_SQL', 'Slave_worker', 'Connect', 'Query') "
        "AND COMMAND <> 'Daemon'"
    )
    return int(threads[0][0] or 0) > 0


def threads_running(session: Session) -> int:
    """How many threads are running something now, not counting this one."""
    found = session.rows("SHOW GLOBAL STATUS LIKE 'Threads_running'")
    return max(0, int(found[0][1] or 1) - 1) if found else 0


def replica_lag(session: Session) -> float | None:
    """This replica's lag in seconds, the maximum over its channels; None if stopped, or not a replica."""
    told = [channel.get("seconds_behind_source") for channel in channels(session)]
    return max((float(each) for each in told if each is not None), default=None)


def channels(session: Session) -> list[dict[str, str | None]]:
    """A replica's status for each server it replicates, under MySQL's newer names in lower case.

    Empty if it isn't a replica; raises ConfigError without the privilege.
    """
    try:
        rows = session.records(
            "SHOW ALL SLAVES STATUS" if version(session).mariadb else "SHOW REPLICA STATUS"
        )
    except ConfigError as refused:
        try:
            rows = session.records("SHOW SLAVE STATUS")  # before MySQL 8.0.22
        except ConfigError:
            raise refused from None
    return [in_newer_words(row) for row in rows]


def in_newer_words(row: dict[str, str | None]) -> dict[str, str | None]:
    """A channel's status under the names that MySQL uses today, in lower case."""
    return {n.lower().replace("slave", "replica").replace("master", "source"): v for n, v in row.items()}


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
class ServerFacts:
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
        return parse_version(self.version).mariadb

    @property
    def numbers(self) -> tuple[int, ...]:
        """The version's first two numbers."""
        return parse_version(self.version).numbers


def server_facts(session: Session) -> ServerFacts:
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
    return ServerFacts(
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
