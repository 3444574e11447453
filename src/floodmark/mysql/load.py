"""How busy the server is: running threads, and how far it is behind the server that it replicates."""

from __future__ import annotations

from floodmark.errors import ConfigError
from floodmark.mysql.connect import Session
from floodmark.mysql.version import version


def threads_running(session: Session) -> int:
    """How many threads run something now, without this one."""
    found = session.rows("SHOW GLOBAL STATUS LIKE 'Threads_running'")
    return max(0, int(found[0][1] or 1) - 1) if found else 0


def replica_lag(session: Session) -> float | None:
    """The seconds that this replica is behind, of several channels the most; None for no replica, or a stopped one."""
    told = [channel.get("seconds_behind_source") for channel in channels(session)]
    return max((float(each) for each in told if each is not None), default=None)


def channels(session: Session) -> list[dict[str, str | None]]:
    """What a replica says of each server that it replicates, in MySQL's newer words and lower case.

    None for no replica; ConfigError without the right to ask.
    """
    try:
        rows = session.named("SHOW ALL SLAVES STATUS" if version(session).mariadb else "SHOW REPLICA STATUS")
    except ConfigError as refused:
        try:
            rows = session.named("SHOW SLAVE STATUS")  # before MySQL 8.0.22
        except ConfigError:
            raise refused from None
    return [in_newer_words(row) for row in rows]


def in_newer_words(row: dict[str, str | None]) -> dict[str, str | None]:
    """A channel's state under the names that MySQL uses today, in lower case."""
    return {n.lower().replace("slave", "replica").replace("master", "source"): v for n, v in row.items()}
