"""Checks the source: that it can be reached, the login, and what the server says about itself.

Thin functions query, pure ones decide (`check_server`). Checks say what a missing privilege or a replica costs, not just
that it is so.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from pathlib import Path

from floodmark.config.load import Config, SourceSpec, TableOptions
from floodmark.model.errors import FloodmarkError
from floodmark.model.text import duration, size
from floodmark.plan.overlap import MEMBERSHIPS, OVERLAP_SECONDS
from floodmark.setup.doctor.check import Check, Section, bastion, nearby, reach
from floodmark.setup.doctor.tables import examine_tables
from floodmark.source.server import Server, look
from floodmark.source.session import Session
from floodmark.source.version import parsed

SECTION = Section("source")
TABLES = Section("tables")
CONNECT_SECONDS = 4
ANSWER_SECONDS = 8
SKEW_SECONDS = 30.0
# The proposed overlap is this many times as long as the longest transaction.
PROPOSED = 2
SMALL_PACKET = 16 << 20
# Connections besides the tasks': for planning several tables at once, and for queries about locks and lag.
BESIDE = 5
_LATER = ("TLS", "version", "clock", "zones", "privileges", "role", "transactions", "limits")


def examine_source(config: Config, names: tuple[str, ...], file_lock: threading.Lock) -> Iterator[Check]:
    """The source, then its tables, over one connection."""
    spec, opened = config.source, list[Session]()
    failed = yield from SECTION.in_order(_way(spec, opened), ("log-in", *_LATER))
    if failed is not None:
        yield from TABLES.skipped("tables", f"see {failed} of the source")
        return
    with opened[0] as session:
        try:
            yield from check_server(look(session), spec, TableOptions(**config.defaults).overlap_seconds)
        except FloodmarkError as error:
            yield SECTION.failed("answer", error)
            yield from TABLES.skipped("tables", "the source does not answer")
            return
        yield from examine_tables(session, config, names, file_lock)


# ---------------------------------------------------------------- the way there


def _way(spec: SourceSpec, opened: list[Session]) -> Iterator[Check]:
    """Each step needs the one before; the last one opens the session."""
    if spec.socket is not None:
        if not Path(spec.socket).is_socket():
            hint = "check ?socket= in source.url, and that MySQL is running"
            yield SECTION.failure("socket", f"there is no socket {spec.socket}", hint)
        yield SECTION.ok("socket", spec.socket)
    elif spec.ssh is not None:
        yield from bastion(SECTION, spec.ssh, spec.host, spec.port)
    else:
        yield from reach(SECTION, spec.host, spec.port)
    try:
        opened.append(
            Session(spec, read_timeout=ANSWER_SECONDS, connect_timeout=CONNECT_SECONDS, purpose="doctor")
        )
    except FloodmarkError as error:
        yield SECTION.log_in_failed(error)
    else:
        database = f", database {spec.database}" if spec.database else ""
        yield SECTION.ok("log-in", f"as {spec.user}{database}")


# ---------------------------------------------------------------- what the server says


def check_server(server: Server, spec: SourceSpec, overlap: float | None = None) -> Iterator[Check]:
    """The server's facts as checks. `overlap`: the configured `overlap_seconds`."""
    yield encryption(server, spec)
    yield _version(server)
    yield clock(server.skew, server.unsure, server.zone)
    yield _zones(server)
    yield _privileges(server, spec)
    yield _role(server)
    yield _transactions(server, OVERLAP_SECONDS if overlap is None else overlap)
    yield from _limits(server, spec)


def encryption(server: Server, spec: SourceSpec) -> Check:
    """Whether someone in between could read the traffic or pose as the server."""
    mode = spec.tls.mode if spec.tls else None
    private = spec.socket is not None or nearby(spec.host)
    if not server.cipher:
        if private:
            return SECTION.ok("TLS", "not encrypted; not needed, because the server is on this machine")
        if spec.ssh is not None:
            said = f"encrypted by SSH up to {spec.ssh.host}, but not from there to {spec.host}"
            return SECTION.ok("TLS", said)
        return SECTION.warning(
            "TLS",
            f"passwords and rows travel to {spec.host} in plain text",
            "enable TLS on the server and set source.tls: {mode: verify_identity, ca: …}",
        )
    how = f"{server.tls_version}, {server.cipher}"
    if spec.tls is not None and (mode in ("verify_ca", "verify_identity") or spec.tls.ca is not None):
        named = mode == "verify_identity" or spec.tls.ca is None
        checked = "authority and host name" if named else "its authority, not its host name"
        return SECTION.ok("TLS", f"{how}; certificate verified ({checked})")
    wrong = f"{how}, but the certificate is not verified: another server could pose as {spec.host}"
    hint = "set source.tls: {mode: verify_identity, ca: the server's CA}"
    fine = private and mode is None
    return SECTION.check("TLS", f"{how}; certificate not verified", None if fine else wrong, hint)


def _version(server: Server) -> Check:
    least = (10, 3) if server.mariadb else (5, 6)
    old = server.numbers and server.numbers < least
    wrong = f"{server.version} is older than any version Floodmark is tested with" if old else None
    hint = f"upgrade to {'MariaDB 10.11' if server.mariadb else 'MySQL 8'} or later"
    return SECTION.check("version", f"{'' if server.mariadb else 'MySQL '}{server.version}", wrong, hint)


def clock(skew: float, unsure: float, zone: str) -> Check:
    """The server's clock against this machine's."""
    way, wrong = "ahead of" if skew > 0 else "behind", None
    if abs(skew) - unsure > SKEW_SECONDS:
        wrong = f"the server's clock is {duration(abs(skew))} {way} this machine's; its zone is {zone}"
    hint = "synchronize both clocks (NTP): presets such as `watermark set today` use this machine's clock"
    return SECTION.check("clock", f"{abs(skew):.2f} s off this machine's; zone {zone}", wrong, hint)


def _zones(server: Server) -> Check:
    """Whether sessions write DATETIME cursors in a zone other than the server's."""
    zones, assumed = server.zones, f"DATETIME cursors are assumed to be in {server.zone}"
    if zones is None:
        return SECTION.ok("zones", f"the server does not show its sessions' time zones: {assumed}")
    if not zones:
        return SECTION.ok("zones", "all sessions are in the server's time zone")
    return SECTION.warning(
        "zones",
        f"some sessions use other time zones ({', '.join(zones)}): the CURRENT_TIMESTAMP that they write to a DATETIME"
        " cursor may be before the watermark, so every sync reads that many hours again",
        "set the table's cursor_timezone to its writers' zone, or use TIMESTAMP, which has no zone",
    )


def _privileges(server: Server, spec: SourceSpec) -> Check:
    sight = server.trust.sight
    if sight.process and (sight.locks or not parsed(server.version).shows_locks):
        also = ", and what they have locked" if sight.locks else ""
        return SECTION.ok("privileges", f"open transactions are visible{also}")
    if sight.process:
        return SECTION.warning(
            "privileges",
            "performance_schema can't be read or is off, so an open transaction that writes to any table, or a long report"
            " in READ COMMITTED, holds back the new rows of all tables",
            f"GRANT SELECT ON performance_schema.* TO '{spec.user}'@'…'",
        )
    return SECTION.warning(
        "privileges",
        "no PROCESS privilege: open transactions can't be seen, so every sync reads the last "
        f"{OVERLAP_SECONDS:g} s before the watermark again",
        f"GRANT PROCESS ON *.* TO '{spec.user}'@'…'",
    )


def _role(server: Server) -> Check:
    again = f"the last {OVERLAP_SECONDS:g} s are read again by every sync"
    replica, kind = server.replication, server.trust.member_of
    member = MEMBERSHIPS[kind] if kind else None
    if replica is not None and not replica.running:
        return SECTION.warning(
            "role",
            f"a replica whose replication is not running: {replica.error or 'it was stopped'}",
            "START REPLICA (START SLAVE): until then nothing new arrives; if it is the primary now, RESET REPLICA ALL",
        )
    if replica is not None or server.trust.replica:
        what = "a replica, or read-only" if replica is None else "a replica"
        what += f", {member}" if member else ""
        lag = "lag unknown" if replica else "lag unknown (REPLICATION CLIENT or SLAVE MONITOR would show it)"
        if replica is not None and replica.behind is not None:
            lag = f"{replica.behind:g} s behind its primary"
        said = f"{what}, {lag}; rows arrive later than their cursor says, so {again}"
        return SECTION.warning(
            "role", said, "keep overlap_seconds above the largest lag, or read from the primary"
        )
    wrong = f"{member}, whose other members' transactions can't be seen, so {again}" if member else None
    return SECTION.check("role", "primary", wrong)


def _transactions(server: Server, overlap: float) -> Check:
    """How long transactions stay open, where the overlap has to cover what can't be seen of them."""
    if server.trust.complete:
        return SECTION.ok("transactions", "open ones are seen, and waited for however long they stay open")
    limit = (
        f"rows of a transaction that stays open for more than {overlap:g} s can be missed (overlap_seconds)"
    )
    if server.longest is None:
        return SECTION.warning(
            "transactions",
            f"{limit}, and the server does not show how long they stay open",
            "find out how long they do, and set defaults.overlap_seconds above that; where performance_schema is readable and"
            " its consumer events_transactions_history_long is enabled, doctor measures it",
        )
    longest, whose = (
        server.longest.seconds,
        "this server's, not its primary's, " if server.trust.replica else "",
    )
    known = "that the server remembers" if server.longest.remembered else "open right now"
    said = f"{limit}; the longest one {known} ({whose}as far as the user sees): {duration(longest)}"
    proposed = math.ceil(PROPOSED * longest / OVERLAP_SECONDS) * OVERLAP_SECONDS
    wrong = said if PROPOSED * longest > overlap else None
    return SECTION.check("transactions", said, wrong, f"set defaults.overlap_seconds: {proposed:g}")


def _limits(server: Server, spec: SourceSpec) -> Iterator[Check]:
    fine = f"max_allowed_packet is {size(server.max_allowed_packet)}"
    wrong = f"{fine}: longer values stop the sync (exit code 6)"
    hint = "SET GLOBAL max_allowed_packet = 67108864, and set it in the server's configuration"
    yield SECTION.check(
        "packet size", fine, wrong if server.max_allowed_packet < SMALL_PACKET else None, hint
    )
    yield _connections(server, spec)
    limit, idle = "no limit on statements", server.wait_timeout
    if server.statement_seconds:
        limit = f"the server ends statements after {duration(server.statement_seconds)}, except ours"
    wrong = f"the server closes connections that are idle for {idle} s"
    fine = f"wait_timeout {idle} s, {limit}"
    yield SECTION.check("timeouts", fine, wrong if idle < 60 else None, "raise wait_timeout to 600 or more")


def _connections(server: Server, spec: SourceSpec) -> Check:
    needed = spec.max_connections + BESIDE
    free = server.max_connections - server.connected
    if server.user_connections is not None and server.user_connections < needed:
        return SECTION.warning(
            "connections",
            f"{spec.user} is limited to {server.user_connections} connections, but a sync may need {needed}",
            f"lower source.max_connections to {max(1, server.user_connections - BESIDE)}, or raise the user's limit",
        )
    used, most = server.connected, server.max_connections
    wrong = f"{used} of the server's {most} connections are in use, and a sync may need {needed} more"
    hint = f"raise the server's max_connections, or lower source.max_connections ({spec.max_connections})"
    fine = f"{free} of {most} free; the tasks of a sync use up to {spec.max_connections}"
    return SECTION.check("connections", fine, wrong if free < needed else None, hint)
