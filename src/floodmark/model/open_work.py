"""Who may still commit a row, and whether the source shows all of them: what its answers mean. Pure.

A row's cursor is the moment at which its statement began. So any row that appears later with an old cursor
belongs to a statement that is running now, or was written by a transaction that is open now. The rule:

- A running statement holds every table back, unless it is proven unable to write.
- A transaction that has written rows holds back the tables it may have written to: those it has locked if the
  server shows that, else all.

docs/decisions/0010-who-may-still-write.md has the proofs, and says why no other sign will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Literal

# trx_started has whole seconds and is set a moment after the statement's NOW().
TRX_SLACK = 1.0
# Isolation levels that a transaction which loads a table's definition never has.
_OWN_SNAPSHOT = ("REPEATABLE READ", "SERIALIZABLE")

Name = tuple[str, str]  # schema and table, in lower case


@dataclass(frozen=True)
class Sight:
    """What the server lets us see of other connections' work."""

    process: bool  # their statements and transactions
    mariadb: bool = False
    locks: bool = False  # everything that their transactions have locked


@dataclass(frozen=True)
class OpenWork:
    """A transaction or statement that may still commit rows with an earlier cursor."""

    start: float
    thread: int  # 0: a transaction without a connection
    trx: str  # its id, or "" for a statement
    who: str
    modified: bool = False  # it has written rows
    tables: frozenset[Name] | None = None  # those it may have written to; None: any
    perhaps_reads: bool = False  # as far as we know, it may only be reading

    def may_write(self, schema: str, table: str) -> bool:
        return self.tables is None or (schema.lower(), table.lower()) in self.tables

    def describe(self, now: float) -> str:
        age = f"open for {max(0, int(now - self.start))} s"
        if not self.thread:
            return f"prepared (XA) transaction without a connection, {age}"
        what = "transaction" if self.trx else "statement"
        reads = ", perhaps only reading" if self.perhaps_reads else ""
        return f"{what} of connection {self.thread} ({self.who}), {age}{reads}"


@dataclass(frozen=True)
class Transaction:
    """A transaction as InnoDB lists it."""

    start: float
    thread: int
    trx: str
    who: str
    modified: bool
    read_only: bool
    isolation: str


def may_still_commit(
    running: Iterable[OpenWork],
    executing: Set[int],
    transactions: Iterable[Transaction],
    locks: Mapping[int, frozenset[Name]] | None,
    mariadb: bool,
) -> list[OpenWork]:
    """The part of all this work that may still commit a row, oldest first.

    `executing`: connections whose statement holds all its locks and may only be reading. `locks`: the tables
    that each connection may write to; None if the server doesn't tell.
    """
    readers, doubtful = set(), set()
    found: list[OpenWork] = []
    # A prepared transaction's locks are shown as its connection's while that lives, else as nobody's.
    anybodys = frozenset[Name]().union(*(locks or {}).values()) or None
    for one in transactions:
        if one.modified:
            tables = (locks or {}).get(one.thread) if one.thread else anybodys
            found.append(OpenWork(one.start - TRX_SLACK, one.thread, one.trx, one.who, True, tables))
        elif one.read_only and (mariadb or one.isolation in _OWN_SNAPSHOT):
            readers.add(one.thread)
        elif one.read_only:
            doubtful.add(one.thread)
    if locks is not None:
        readers |= {thread for thread in executing if thread not in locks}
    for statement in running:
        if statement.thread not in readers:
            found.append(replace(statement, perhaps_reads=statement.thread in doubtful))
    return sorted(found, key=lambda h: h.start)


# ---------------------------------------------------------------- whether all of it is seen

# What a server may be part of, with members that it shows nothing of.
ClusterKind = Literal["aurora", "galera", "group_replication", "distributed", "proxy"]
MEMBERSHIPS: dict[ClusterKind, str] = {
    "aurora": "part of an Aurora cluster",
    "galera": "a node of a Galera cluster",
    "group_replication": "a member of a replication group",
    "distributed": "part of a distributed database",
    "proxy": "reached through a proxy",
}

# Engines all of whose work can be seen: InnoDB lists its transactions, and the others have none, so that their rows
# are there as soon as their statement ends. Others may have transactions, or keep their rows on another server.
_SEEN = ("innodb", "myisam", "aria", "memory", "csv", "archive", "mrg_myisam", "blackhole")
# MariaDB 12 knows several ways to be read-only.
READ_ONLY = ("read_only", "super_read_only", "innodb_read_only", "transaction_read_only", "tx_read_only")
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
    return all(variables.get(name, "OFF") in _OFF for name in READ_ONLY)


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
