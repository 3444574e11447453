"""Who may still commit a row, decided from what servers really showed (MySQL 9.7.4 and MariaDB 10.11)."""

from __future__ import annotations

import pytest

from floodmark.model.open_work import Name, OpenWork, Transaction, may_still_commit

INSERT = OpenWork(100.0, 7, "", "app@here")
NONE: frozenset[int] = frozenset()
LOG = frozenset({("shop", "lg")})


def shown(
    *, thread: int = 7, modified: bool = False, read_only: bool = True, isolation: str = "READ COMMITTED"
) -> Transaction:
    return Transaction(120.0, thread, "421", "app@here", modified, read_only, isolation)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "READ UNCOMMITTED"])
def test_a_statement_that_loads_a_cold_definition_still_holds_back_on_mysql(isolation: str) -> None:
    """Its thread shows the read-only transaction that reads the dictionary, whatever it is going to write."""
    none: dict[int, frozenset[Name]] = {}
    for locks in (None, none):
        (held,) = may_still_commit([INSERT], NONE, [shown(isolation=isolation)], locks, mariadb=False)
        assert (held.thread, held.start, held.perhaps_reads) == (7, 100.0, True)
        assert held.may_write("shop", "orders")
        assert "perhaps only reading" in held.describe(130)


def test_a_reader_with_a_snapshot_of_its_own_holds_nothing_back() -> None:
    assert may_still_commit([INSERT], NONE, [shown(isolation="REPEATABLE READ")], None, mariadb=False) == []
    assert may_still_commit([INSERT], NONE, [shown(isolation="READ COMMITTED")], None, mariadb=True) == []


def test_a_statement_that_has_all_its_locks_and_none_to_write_with_holds_nothing_back() -> None:
    assert may_still_commit([INSERT], {7}, [shown()], {}, mariadb=False) == []
    assert may_still_commit([INSERT], {7}, [], {}, mariadb=False) == []


def test_a_running_statement_holds_every_table_back_whatever_it_has_locked_so_far() -> None:
    for executing in (NONE, {7}):
        (held,) = may_still_commit([INSERT], executing, [], {7: LOG}, mariadb=False)
        assert held.may_write("shop", "lg") and held.may_write("shop", "orders")


def test_an_idle_transaction_holds_back_the_tables_that_it_has_locked() -> None:
    idle = shown(modified=True, read_only=False, isolation="REPEATABLE READ")
    (held,) = may_still_commit([], NONE, [idle], {7: LOG, 8: frozenset({("shop", "orders")})}, mariadb=False)
    assert held.start == 119.0
    assert held.may_write("Shop", "LG") and not held.may_write("shop", "orders")


@pytest.mark.parametrize("locks", [None, {}, {8: LOG}])
def test_a_transaction_without_known_locks_holds_every_table_back(
    locks: dict[int, frozenset[tuple[str, str]]] | None,
) -> None:
    (held,) = may_still_commit([], NONE, [shown(modified=True, read_only=False)], locks, mariadb=False)
    assert held.may_write("shop", "orders")


def test_a_transaction_that_has_written_counts_also_while_its_connection_reads() -> None:
    writer = shown(modified=True, read_only=False, isolation="REPEATABLE READ")
    loads = shown(isolation="READ COMMITTED")
    found = may_still_commit([INSERT], NONE, [writer, loads], None, mariadb=False)
    assert [(h.start, h.modified) for h in found] == [(100.0, False), (119.0, True)]


def test_a_prepared_transaction_without_a_connection_counts_only_when_it_has_written() -> None:
    idle = shown(thread=0, read_only=False, isolation="REPEATABLE READ")
    assert may_still_commit([], NONE, [idle], None, mariadb=False) == []
    (held,) = may_still_commit(
        [], NONE, [shown(thread=0, modified=True, read_only=False)], {0: LOG}, mariadb=False
    )
    assert held.may_write("shop", "lg") and not held.may_write("shop", "orders")
    # Of two, one may have its locks shown as its connection's, which lives on.
    both = {0: LOG, 7: frozenset({("shop", "orders")})}
    (held,) = may_still_commit(
        [], NONE, [shown(thread=0, modified=True, read_only=False)], both, mariadb=False
    )
    assert held.may_write("shop", "lg") and held.may_write("shop", "orders")
    assert "prepared (XA) transaction" in held.describe(130) and "connection 0" not in held.describe(130)
