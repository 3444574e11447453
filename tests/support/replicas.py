"""A server and its replica, with GTIDs, for either kind of server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from floodmark.setup.services.databases import DatabaseServer
from tests.support.held_sync import until

_MYSQL = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--log-bin=bin", "--log-replica-updates=ON")
_MARIADB = ("--log-bin=bin", "--log-slave-updates=ON", "--binlog-format=ROW", "--sync-binlog=1")


@dataclass
class Pair:
    """The primary and its replica."""

    primary: DatabaseServer
    replica: DatabaseServer

    def follow(self) -> None:
        """Make the replica follow the primary from the first change on."""
        self.primary.create_user("repl", "repl-pw", "REPLICATION SLAVE ON *.*")
        self.replica.execute(
            _change(self.replica, "127.0.0.1", self.primary.port), self.word("START REPLICA")
        )

    def word(self, statement: str) -> str:
        """A replication statement in the server's dialect."""
        return statement if self.replica.name == "mysql" else statement.replace("REPLICA", "SLAVE")

    def caught_up(self, ask: str) -> None:
        """Wait until a query has the same result on both."""
        wanted = self.primary.execute(ask)

        def same() -> bool:
            try:
                return self.replica.execute(ask) == wanted
            except Exception:  # no such table yet
                return False

        until(same, 60, pause=0.1)


def _change(server: DatabaseServer, host: str, port: int) -> str:
    if server.name == "mysql":
        return (
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{host}', SOURCE_PORT={port}, SOURCE_USER='repl',"
            " SOURCE_PASSWORD='repl-pw', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1"
        )
    return (
        f"CHANGE MASTER TO MASTER_HOST='{host}', MASTER_PORT={port}, MASTER_USER='repl', MASTER_PASSWORD='repl-pw',"
        " MASTER_USE_GTID=slave_pos"
    )


@contextmanager
def replicated(kind: type[DatabaseServer], *args: str) -> Iterator[Pair]:
    """Both servers, with the replica following; `args` are options for the replica."""
    options = _MYSQL if kind.name == "mysql" else _MARIADB
    with (
        kind(args=["--server-id=1", *options], buffer_pool="64M") as primary,
        kind(args=["--server-id=2", *options, *args], buffer_pool="64M") as replica,
    ):
        if kind.name == "mysql":  # both servers ran the same setup, which must not be replicated
            primary.execute("RESET BINARY LOGS AND GTIDS")
            replica.execute("RESET BINARY LOGS AND GTIDS")
        else:
            primary.execute("RESET MASTER")
            replica.execute("RESET MASTER")
        pair = Pair(primary, replica)
        pair.follow()
        yield pair
