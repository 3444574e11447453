"""Whether a server shows all work that can still commit, and what tells it from another server."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from floodmark.model.errors import ConfigError
from floodmark.services.mysql import open_work
from floodmark.services.mysql.open_work import Sight
from floodmark.services.mysql.server_load import channels
from floodmark.services.mysql.session import Session
from floodmark.services.mysql.version import parsed


@dataclass(frozen=True)
class Trust:
    """Whether the source's view of open work is complete, and what it may lack."""

    sight: Sight
    replica: bool = False
    cluster: bool = False  # with several primaries
    server: str | None = None  # what tells it from another one
    numbers: tuple[int, ...] = ()  # of its version
    gtids: str | None = None  # SQL expression for the executed GTIDs, if they can be compared
    own: str | None = None  # the source id in GTIDs of transactions that originated here

    @property
    def complete(self) -> bool:
        return self.sight.process and not self.replica and not self.cluster


_PLACE = ("hostname", "port", "server_id")
_NAMES = (*_PLACE, "server_uid", "server_uuid")
_IDENTITY = ", ".join(f"'{name}'" for name in _NAMES)


def server_sql(session: Session) -> str:
    """An expression for all that tells a server from another one: an address may lead to several."""
    known = {name for name, _ in session.once(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({_IDENTITY})")}
    parts = ", '/', ".join(f"'{name}=', @@global.{name}" for name in _NAMES if name.encode() in known)
    return f"CONCAT({parts or repr('')})"


def server_of(session: Session) -> str:
    """The server that answers the session, by that expression."""
    return (session.rows(f"SELECT {server_sql(session)}")[0][0] or b"").decode(errors="replace")


def trust_in(session: Session) -> Trust:
    """Checks whether this server shows every transaction that can still commit."""
    process = True
    try:
        # This needs the same privilege as innodb_trx, but doesn't count as a read of its list of
        # transactions.
        session.rows("SELECT 1 FROM information_schema.innodb_cmp LIMIT 1")
    except ConfigError:
        process = False
    variables = {
        (name or b"").decode().lower(): (value or b"").decode().upper()
        for name, value in session.rows(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN"
            " ('version', 'wsrep_on', 'read_only', 'group_replication_group_name', 'gtid_executed',"
            f" 'gtid_binlog_state', {_IDENTITY})"
        )
    }
    replica = variables.get("read_only") == "ON" or _replicates(session)
    cluster = variables.get("wsrep_on") == "ON" or bool(variables.get("group_replication_group_name"))
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
    if not known or variables.get("wsrep_on") == "ON":  # each node of a cluster counts its own
        gtids = ""
    sight = Sight(process, version.mariadb, locks)
    return Trust(sight, replica, cluster, server or None, version.numbers, gtids or None, own)


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
