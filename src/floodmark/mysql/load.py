"""How busy the server is: running threads, and how far it is behind the server that it replicates."""

from __future__ import annotations

from floodmark.mysql.connect import Session

_LAG = ("seconds_behind_source", "seconds_behind_master")


def threads_running(session: Session) -> int:
    """How many threads run something now, without this one."""
    found = session.rows("SHOW GLOBAL STATUS LIKE 'Threads_running'")
    return max(0, int(found[0][1] or 1) - 1) if found else 0


def replica_lag(session: Session) -> float | None:
    """The seconds that this replica is behind, of several channels the most; None for no replica, or a stopped one."""
    mariadb = b"MariaDB" in (session.rows("SELECT VERSION()")[0][0] or b"")
    channels = session.records("SHOW ALL SLAVES STATUS" if mariadb else "SHOW REPLICA STATUS")
    told = [channel.get(name) for channel in channels for name in _LAG if channel.get(name) is not None]
    return max((float(each) for each in told if each is not None), default=None)
