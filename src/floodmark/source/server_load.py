"""How busy the server is: its running threads, and its replication lag."""

from __future__ import annotations

from floodmark.model.errors import ConfigError
from floodmark.source.session import Session
from floodmark.source.version import version


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
