"""Whether a server can show all open work: decided from its variables and the table's engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from floodmark.model.open_work import ClusterKind, Sight, Trust, can_write, membership
from floodmark.source.identity import applying
from floodmark.source.server import _direct
from floodmark.source.session import Session

WRITER = {"version": "8.0.36", "read_only": "OFF", "super_read_only": "OFF", "innodb_read_only": "OFF"}


def test_a_server_that_accepts_writes_and_stands_alone_is_a_primary() -> None:
    assert can_write(WRITER) and can_write({}) and can_write({**WRITER, "transaction_read_only": "0"})
    alone = {**WRITER, "wsrep_on": "OFF", "wsrep_provider": "NONE", "group_replication_group_name": ""}
    assert membership(alone, direct=True) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("read_only", "ON"),
        ("read_only", "NO_LOCK"),
        ("read_only", "NO_LOCK_NO_ADMIN"),
        ("super_read_only", "ON"),
        ("innodb_read_only", "ON"),
        ("innodb_read_only", "1"),
        ("transaction_read_only", "ON"),
        ("tx_read_only", "ON"),
    ],
)
def test_a_server_that_is_read_only_in_any_way_gets_its_rows_from_elsewhere(name: str, value: str) -> None:
    assert not can_write({**WRITER, name: value})


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"aurora_version": "3.05.2"}, "aurora"),
        ({"aurora_server_id": "READER-1"}, "aurora"),
        ({"wsrep_on": "ON"}, "galera"),
        ({"wsrep_on": "OFF", "wsrep_provider": "/USR/LIB/LIBGALERA_SMM.SO"}, "galera"),
        ({"group_replication_group_name": "8A69"}, "group_replication"),
        ({"version": "8.0.11-TIDB-V7.5.0"}, "distributed"),
        ({"version": "8.0.30-VITESS"}, "distributed"),
    ],
)
def test_a_server_that_is_part_of_something_else_is_recognised(
    variables: dict[str, str], found: ClusterKind
) -> None:
    assert membership({**WRITER, **variables}, direct=True) == found
    assert not Trust(Sight(True), member_of=found).complete


def test_an_aurora_reader_follows_its_writer_although_it_has_no_channel() -> None:
    nobody = cast(Session, None)
    assert applying(nobody, Trust(Sight(True), replica=True, member_of="aurora"))


@dataclass
class Connection:
    """A connection with the number that was sent at the log-in, and the one that its server knows."""

    connection_id: int
    known: int

    def rows(self, _: str) -> list[tuple[bytes]]:
        return [(str(self.known).encode(),)]


def test_a_connection_that_was_accepted_by_someone_else_leads_through_a_proxy() -> None:
    assert membership(WRITER, direct=False) == "proxy"
    assert not _direct(cast(Session, Connection(7, 4711)))
    assert _direct(cast(Session, Connection(7, 7)))
    assert _direct(cast(Session, Connection(7, 2**32 + 7))), "only 32 bits of it are sent at the log-in"


@pytest.mark.parametrize("engine", ["InnoDB", "MyISAM", "Aria", "MEMORY", "CSV", "ARCHIVE", "MRG_MyISAM"])
def test_all_work_of_innodb_and_of_engines_without_transactions_is_seen(engine: str) -> None:
    assert Trust(Sight(True), engine=engine).complete


@pytest.mark.parametrize(
    "engine", ["FEDERATED", "ROCKSDB", "ndbcluster", "SPIDER", "Columnstore", "CONNECT", ""]
)
def test_work_of_other_engines_is_not_seen(engine: str) -> None:
    assert not Trust(Sight(True), engine=engine).complete
