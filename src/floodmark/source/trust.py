"""Whether a server shows all work that can still commit, and what tells it from another server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from floodmark.model.errors import ConfigError
from floodmark.source import open_work
from floodmark.source.open_work import Sight
from floodmark.source.server_load import channels
from floodmark.source.session import Session, as_text
from floodmark.source.version import parsed

# What a server may be part of, with members that it shows nothing of.
ClusterKind = Literal["aurora", "galera", "group_replication", "distributed", "proxy"]

# Engines all of whose work can be seen: InnoDB lists its transactions, and the others have none, so that their rows
# are there as soon as their statement ends. Others may have transactions, or keep their rows on another server.
_SEEN = ("innodb", "myisam", "aria", "memory", "csv", "archive", "mrg_myisam", "blackhole")
# MariaDB 12 knows several ways to be read-only.
_READ_ONLY = ("read_only", "super_read_only", "innodb_read_only", "transaction_read_only", "tx_read_only")
_OFF = ("OFF", "0", "")
_DISTRIBUTED = ("TIDB", "VITESS", "PLANETSCALE", "OCEANBASE")


@dataclass(frozen=True)
class Trust:
    """Whether the source's view of open work is complete, and what it may lack."""

    sight: Sight
    replica: bool = False  # or unable to write: its rows come from elsewhere
    member_of: ClusterKind | None = None
    server: str | None = None  # what tells it from another one
    numbers: tuple[int, ...] = ()  # of its version
    gtids: str | None = None  # SQL expression for the executed GTIDs, if they can be compared
    own: str | None = None  # the source id in GTIDs of transactions that originated here
    engine: str = "InnoDB"  # of the table to be read

    @property
    def complete(self) -> bool:
        return self.sight.process and not self.replica and self.member_of is None and self.sees_engine

    @property
    def sees_engine(self) -> bool:
        """Whether the server shows all open work of the table's engine."""
        return self.engine.lower() in _SEEN


def can_write(variables: Mapping[str, str]) -> bool:
    """Whether a server with these variables, in upper case, accepts writes. Pure."""
    return all(variables.get(name, "OFF") in _OFF for name in _READ_ONLY)


def membership(variables: Mapping[str, str], direct: bool) -> ClusterKind | None:
    """What a server with these variables, in upper case, is part of. Pure.

    `direct`: whether the server itself, and no proxy, accepted our connection.
    """
    if any(name.startswith("aurora_") for name in variables):
        return "aurora"
    # A node that has been taken out for a while still has its provider.
    if variables.get("wsrep_on") == "ON" or variables.get("wsrep_provider", "NONE") not in ("", "NONE"):
        return "galera"
    if variables.get("group_replication_group_name"):
        return "group_replication"
    if any(name in variables.get("version", "") for name in _DISTRIBUTED):
        return "distributed"
    return None if direct else "proxy"


_PLACE = ("hostname", "port", "server_id")
_NAMES = (*_PLACE, "server_uid", "server_uuid", "version")
_IDENTITY = ", ".join(f"'{name}'" for name in _NAMES)
_MODES = ", ".join(f"'{name}'" for name in _READ_ONLY)


def server_parts(server: str) -> dict[str, str]:
    """The variables in the answer to `server_sql`, by name, and perhaps pieces of a uid with slashes. Pure."""
    return dict(part.partition("=")[::2] for part in server.split("/") if part)


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
    version = parsed(variables.get("version", ""))
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
