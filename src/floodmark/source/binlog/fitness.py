"""Whether the source's binary log can be followed: what the server says of it, and a judgement. The judgement is pure.

A log is refused if changes may be missing from it without a trace, or if we may not read it. Everything else is a note:
it costs comparisons of whole tables, or time. docs/binlog.md has the list, with what to set on each platform.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from floodmark.model.changes import LogPlace
from floodmark.model.errors import ConfigError
from floodmark.model.open_work import MEMBERSHIPS, Trust
from floodmark.model.text import counted, duration, size
from floodmark.source.binlog.dump import dump
from floodmark.source.binlog.end import FIRST, LogFile, log_files, show_status
from floodmark.source.binlog.events import FORMAT_DESCRIPTION
from floodmark.source.errors import translated
from floodmark.source.open_work import now
from floodmark.source.rows.packets import MySQLError, lost
from floodmark.source.server import channels
from floodmark.source.session import Session, Version, version

HOUR, DAY = 3600.0, 86400.0
# Logs that are kept for less are noted: a weekend without syncs would lose changes.
SHORT_DAYS = 3
# And logs that are kept for fewer syncs than this.
SHORT_SYNCS = 10

Reason = Literal[
    # Refused.
    "no_binlog",
    "format",  # some changes are logged as statements
    "filters",  # some databases are left out
    "replica",  # it doesn't log what it replicates
    "role",  # it may be such a replica: the user can't see it
    "cluster",  # of a kind whose nodes commit in ways of their own
    "proxy",
    "position",  # the user may not see positions and files
    "dump",  # the user may not read the log
    "open_work",  # transactions that a read has to wait for, which the user can't see: only MySQL's GTIDs tell
    # Noted.
    "metadata",  # no names and no key in the log
    "row_image",
    "sync_binlog",
    "no_gtids",
    "retention",
]
REFUSED: tuple[Reason, ...] = (
    "no_binlog", "format", "filters", "replica", "role", "cluster", "proxy", "position", "dump", "open_work",
)  # fmt: skip


# ---------------------------------------------------------------- what the server says


@dataclass(frozen=True)
class LogSettings:
    """How a server writes its binary log."""

    variables: Mapping[str, str]  # in upper case
    # Its end and its filters; empty: there is no log; None: the user may not see it.
    status: Sequence[Mapping[str, str | None]] | None

    @property
    def on(self) -> bool:
        return self.variables.get("log_bin") == "ON"

    @property
    def gtids(self) -> bool:
        return self.variables.get("gtid_mode") == "ON"

    @property
    def replicated(self) -> bool:
        """Whether changes that arrive from another server are logged, too."""
        newer = self.variables.get("log_replica_updates")
        return (newer or self.variables.get("log_slave_updates")) == "ON"

    @property
    def filters(self) -> dict[str, tuple[str, ...]]:
        """The databases of `binlog_do_db` and `binlog_ignore_db`, where they are set."""
        said = self.status[0] if self.status else {}
        listed = {name: said.get(name) or "" for name in ("binlog_do_db", "binlog_ignore_db")}
        return {
            name: tuple(part.strip() for part in text.split(",")) for name, text in listed.items() if text
        }


@dataclass(frozen=True)
class LogFacts:
    """The settings, and what else decides whether the log can be followed."""

    settings: LogSettings
    trust: Trust
    version: Version
    user: str = ""
    replicates: bool | None = False  # asked only where it matters; None: the user may not see it
    readable: bool = True  # whether the server sends the log to the user
    files: int = 0
    bytes: int = 0
    began: float | None = None  # seconds since the oldest file was begun; None: unknown
    rds_hours: float | None = None  # RDS's `binlog retention hours`; None: unknown, or not on RDS

    @property
    def aurora(self) -> bool:
        return self.trust.member_of == "aurora"

    @property
    def rds(self) -> bool:
        """Whether it is run by Amazon RDS, but not Aurora."""
        return "RDSDB" in self.settings.variables.get("basedir", "") and not self.aurora

    @property
    def kept(self) -> float | None:
        """For how many seconds files are kept; infinity: until someone removes them; None: unknown."""
        variables = self.settings.variables
        if self.rds or self.aurora:
            return None if self.rds_hours is None else self.rds_hours * HOUR
        if variables.get("binlog_expire_logs_auto_purge") == "OFF":
            return math.inf
        seconds = float(variables.get("binlog_expire_logs_seconds") or 0)
        return seconds or float(variables.get("expire_logs_days") or 0) * DAY or math.inf


_SETTINGS = (
    "basedir", "binlog_expire_logs_auto_purge", "binlog_expire_logs_seconds", "binlog_format",
    "binlog_optimize_thread_scheduling", "binlog_row_image", "binlog_row_metadata", "expire_logs_days", "gtid_mode",
    "log_bin", "log_replica_updates", "log_slave_updates", "max_binlog_total_size", "secure_timestamp", "sync_binlog",
)  # fmt: skip


def log_settings(session: Session) -> LogSettings:
    """How the server writes its log, in two queries."""
    listed = ", ".join(f"'{name}'" for name in _SETTINGS)
    variables = session.variables(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
    status: list[dict[str, str | None]] | None = None
    with suppress(ConfigError):
        status = session.records(show_status(session))
    return LogSettings({name: value.upper() for name, value in variables.items()}, status)


def log_facts(session: Session, trust: Trust, connect: Callable[[], Session] | None = None) -> LogFacts:
    """What the judgement needs, in a few short queries.

    `connect` opens another session, over which the beginning of the oldest file is read; without it, the right to read
    the log and the file's age stay unknown.
    """
    settings = log_settings(session)
    facts = LogFacts(settings, trust, version(session), session.spec.user)
    if not settings.on:
        return facts
    files: tuple[LogFile, ...] = ()
    with suppress(ConfigError):  # no privilege
        files = log_files(session)
    replicates: bool | None = False
    if not settings.replicated:
        try:
            replicates = bool(channels(session))
        except ConfigError:
            replicates = None
    readable, began = True, None
    if connect is not None:
        with connect() as other:
            try:
                began = now(session) - _begun(other)
            except ConfigError:
                readable = False
    return replace(
        facts,
        replicates=replicates,
        readable=readable,
        files=len(files),
        bytes=sum(file.size for file in files),
        began=began,
        rds_hours=_rds_hours(session) if facts.rds or facts.aurora else None,
    )


def _begun(session: Session) -> float:
    """When the oldest file was begun; ConfigError if the user may not read it. The session can't be used afterwards."""
    try:
        for event in dump(session, LogPlace("", FIRST)):  # no name: the oldest file
            if event.kind == FORMAT_DESCRIPTION:
                return float(event.timestamp)
    except MySQLError as error:
        raise translated(error, session.spec) from error
    raise lost()


def _rds_hours(session: Session) -> float | None:
    """RDS's own setting; 0: files are removed as soon as RDS itself has no use for them."""
    with suppress(ConfigError):  # no privilege
        asked = "SELECT value FROM mysql.rds_configuration WHERE name = 'binlog retention hours'"
        for (value,) in session.rows(asked):
            return float(value or 0)
    return None


# ---------------------------------------------------------------- the judgement


@dataclass(frozen=True)
class LogFinding:
    """One thing that keeps a log from being followed, or makes that costly, and what to set."""

    reason: Reason
    what: str
    remedy: str

    @property
    def refused(self) -> bool:
        return self.reason in REFUSED


@dataclass(frozen=True)
class Fitness:
    """Whether a log can be followed."""

    findings: tuple[LogFinding, ...]
    kept: str  # for how long, in words; empty: the log is off

    @property
    def refused(self) -> tuple[LogFinding, ...]:
        return tuple(found for found in self.findings if found.refused)

    @property
    def said(self) -> tuple[LogFinding, ...]:
        """What refuses it, else what is noted."""
        return self.refused or self.findings

    def as_json(self) -> dict[str, Any]:
        return {"fit": not self.refused, "findings": [asdict(found) for found in self.findings]}

    def require(self) -> None:
        """Raises ConfigError if the log can't be followed."""
        if self.refused:
            raise ConfigError(
                f"the source's binary log can't be followed: {joined(f.what for f in self.refused)}",
                hint=joined(found.remedy for found in self.refused),
            )


def joined(parts: Iterable[str]) -> str:
    """Several clauses as one; each only once."""
    return "; ".join(dict.fromkeys(parts))


def fitness(facts: LogFacts, schemas: Iterable[str] = (), every: float = 0.0) -> Fitness:
    """The judgement. `schemas`: those of the followed tables; `every`: seconds between syncs, if known. Pure."""
    refused = list(_refused(facts, tuple(schemas)))
    if not facts.settings.on:
        return Fitness(tuple(refused), "")
    return Fitness((*refused, *_noted(facts, every)), _kept(facts))


def _refused(facts: LogFacts, schemas: tuple[str, ...]) -> Iterator[LogFinding]:
    log, trust = facts.settings, facts.trust
    if trust.member_of == "proxy":
        said = "source.url leads to a proxy, which does not pass the log on"
        yield LogFinding("proxy", said, "name the server itself in source.url")
    if trust.member_of in ("galera", "distributed"):
        said = f"the source is {MEMBERSHIPS[trust.member_of]}, each of whose members logs in its own order"
        yield LogFinding("cluster", said, "keep following its tables by cursors")
    if not log.on:
        yield LogFinding("no_binlog", "it is off (log_bin)", _switch_on(facts))
        return
    form = log.variables.get("binlog_format", "ROW")
    if form != "ROW":
        said = f"binlog_format is {form}, which logs changes as statements that don't say which rows they changed"
        remedy = f"{_to_set(facts, 'binlog_format', 'ROW')}; then let all writers connect again"
        yield LogFinding("format", said, remedy)
    if log.filters:
        names = " and ".join(log.filters)
        hidden = [schema for schema in schemas if _hidden(schema, log.filters)]
        said = f"{names} hides the changes of {', '.join(hidden)}"
        if not hidden:
            said = f"with {names}, a TRUNCATE or ALTER of any table is not logged if another database was selected"
        yield LogFinding("filters", said, f"remove {names} from the server's configuration, and restart it")
    updates = "log_slave_updates" if facts.version.mariadb else "log_replica_updates"
    if facts.replicates:
        said = f"it is a replica that does not log what it replicates ({updates} is OFF)"
        remedy = f"{_to_set(facts, updates, 'ON', restart=True)}; or read from its primary"
        if facts.rds or facts.aurora:
            remedy = "enable automated backups on the replica, or read from its primary"
        yield LogFinding("replica", said, remedy)
    hidden_work = not trust.sight.process and (facts.version.mariadb or not log.gtids)
    lacking: tuple[tuple[bool, Reason, str, str], ...] = (
        (not facts.readable, "dump", "the user may not read it", "REPLICATION SLAVE"),
        (log.status is None, "position", "the user may not see its positions and files", "BINLOG MONITOR"),
        (
            facts.replicates is None,
            "role",
            f"{updates} is OFF, and the user can't see whether the server replicates from another one",
            "SLAVE MONITOR",
        ),
        (
            hidden_work,
            "open_work",
            "the user can't see other connections' transactions, which a read may have to wait for",
            "PROCESS",
        ),
    )
    rights = [right for lacks, _, _, right in lacking if lacks]
    for lacks, reason, said, _ in lacking:
        if lacks:
            yield LogFinding(reason, said, _grant(facts, *rights))


def _noted(facts: LogFacts, every: float) -> Iterator[LogFinding]:
    variables = facts.settings.variables
    metadata = variables.get("binlog_row_metadata")  # None: the server is too old to have it
    if metadata is not None and metadata != "FULL":
        said = f"binlog_row_metadata is {metadata}: only FULL proves which key rows had before a DDL"
        yield LogFinding("metadata", said, _to_set(facts, "binlog_row_metadata", "FULL"))
    image = variables.get("binlog_row_image", "FULL")
    if image == "MINIMAL":
        said = "binlog_row_image is MINIMAL: an update need not tell a key that is not the primary key"
        yield LogFinding("row_image", said, _to_set(facts, "binlog_row_image", "NOBLOB"))
    synced = variables.get("sync_binlog", "1")
    if synced != "1":
        said = f"sync_binlog is {synced}: if its machine crashes, it may lose transactions that were already read"
        yield LogFinding("sync_binlog", said, _to_set(facts, "sync_binlog", "1"))
    if not facts.version.mariadb and not facts.settings.gtids:
        said = "gtid_mode is not ON: a read waits for open transactions, and can't go on at another server"
        yield LogFinding("no_gtids", said, _gtids(facts))
    least = max(SHORT_DAYS * DAY, SHORT_SYNCS * every)
    if facts.kept is None and (facts.rds or facts.aurora):
        said = "how long RDS keeps it can't be seen (SELECT on mysql.rds_configuration)"
        yield LogFinding("retention", said, _keep(facts, least))
    elif facts.kept is not None and facts.kept < least:
        why = f"syncs run every {duration(every)}" if least > SHORT_DAYS * DAY else "a weekend is longer"
        said = f"files are kept for {duration(facts.kept)} only, and {why}"
        if not facts.kept:
            said = "RDS removes files as soon as it has no use for them"
        yield LogFinding("retention", said, _keep(facts, least))


def _hidden(schema: str, filters: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether the filters leave a schema's changes out; in doubt about upper and lower case, they do."""
    only, not_these = filters.get("binlog_do_db"), filters.get("binlog_ignore_db", ())
    if only is not None:  # then the server does not look at the other one
        return schema not in only
    return schema.lower() in {name.lower() for name in not_these}


# ---------------------------------------------------------------- in words


def verdict(log: Fitness) -> str:
    """`could be followed; kept for 30 d; 3 files, 120.0 MB`, or `can't be followed`."""
    return "can't be followed" if log.refused else f"could be followed; {log.kept}"


def _kept(facts: LogFacts) -> str:
    """`kept for 30 d; 3 files, 120.0 MB, the oldest from 2 d 4 h ago`."""
    said = {None: "kept for an unknown time", math.inf: "kept until someone removes it", 0.0: "not kept"}
    kept = said.get(facts.kept) or f"kept for {duration(facts.kept or 0)}"
    if facts.files:
        kept += f"; {counted(facts.files, 'file')}, {size(facts.bytes)}"
    if facts.began is not None:
        kept += f", {'the oldest ' if facts.files > 1 else ''}from {duration(facts.began)} ago"
    return kept


def _to_set(facts: LogFacts, name: str, value: str, *, restart: bool = False) -> str:
    """How to set a variable on this platform."""
    if facts.aurora or facts.rds:
        group = "cluster parameter group" if facts.aurora else "DB parameter group"
        return f"set {name} = {value} in the {group}" + (", and restart the instance" if restart else "")
    if restart:
        return f"set {name} = {value} in the server's configuration, and restart it"
    if facts.version.mariadb or facts.version.numbers < (8, 0):
        return f"SET GLOBAL {name} = {value}, and set it in the server's configuration"
    return f"SET PERSIST {name} = {value}"


def _switch_on(facts: LogFacts) -> str:
    if facts.aurora:
        return "set binlog_format = ROW in the cluster parameter group, and restart the writer; a reader has no log"
    if facts.rds:
        return "enable automated backups (a retention of at least a day); set binlog_format = ROW in the DB parameter group"
    if facts.version.mariadb or facts.version.numbers < (8, 0):
        return (
            "set log_bin, binlog_format = ROW and a server_id in the server's configuration, and restart it"
        )
    return "remove skip-log-bin (disable-log-bin) from the server's configuration, and restart it"


def _gtids(facts: LogFacts) -> str:
    if facts.aurora or facts.rds:
        return f"{_to_set(facts, 'gtid-mode', 'ON')}, with enforce_gtid_consistency = ON"
    return "set enforce_gtid_consistency = ON, then gtid_mode = OFF_PERMISSIVE, ON_PERMISSIVE and ON, one after the other"


def _keep(facts: LogFacts, least: float) -> str:
    if facts.rds or facts.aurora:
        return f"CALL mysql.rds_set_configuration('binlog retention hours', {math.ceil(least / HOUR)})"
    older = facts.version.numbers < ((10, 6) if facts.version.mariadb else (8, 0))
    if older:
        return _to_set(facts, "expire_logs_days", f"{math.ceil(least / DAY)}")
    return _to_set(facts, "binlog_expire_logs_seconds", f"{math.ceil(least)}")


def _grant(facts: LogFacts, *rights: str) -> str:
    """The statement; rights are named as in MariaDB 10.5 and newer."""
    if not facts.version.mariadb or facts.version.numbers < (10, 5):
        older = {"BINLOG MONITOR": "REPLICATION CLIENT", "SLAVE MONITOR": "REPLICATION CLIENT"}
        rights = tuple(older.get(right, right) for right in rights)
    return f"GRANT {', '.join(dict.fromkeys(rights))} ON *.* TO '{facts.user}'@'…'"
