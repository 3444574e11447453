"""What a table costs the source when nothing has happened to it, and that no answer about it is kept from before."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from floodmark.config.load import TableOptions
from floodmark.model.statements import STATEMENTS
from floodmark.source.describe import discover
from floodmark.source.session import Session
from tests.conftest import Workspace
from tests.support.open_transactions import ORDERS, old_rows

pytestmark = pytest.mark.both_servers

TABLES = 12
# Statements about one table.
MOST = 13
# Statements that a run asks once: about the server, its zone, the tables' names.
ONCE = 40


class Heard(logging.Handler):
    """The statements to MySQL."""

    def __init__(self) -> None:
        super().__init__()
        self.statements: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "fields", {})
        if fields.get("service") == "mysql":
            self.statements.append(fields["sql"])


@contextmanager
def heard() -> Iterator[Heard]:
    listener, level = Heard(), STATEMENTS.level
    STATEMENTS.addHandler(listener)
    STATEMENTS.setLevel(logging.DEBUG)
    try:
        yield listener
    finally:
        STATEMENTS.removeHandler(listener)
        STATEMENTS.setLevel(level)


def connections(workspace: Workspace) -> int:
    [(_, count)] = workspace.execute("SHOW GLOBAL STATUS LIKE 'Connections'")
    return int(count)


def test_an_idle_table_costs_few_statements_and_no_log_in(workspace: Workspace) -> None:
    for n in range(TABLES):
        workspace.execute(ORDERS.replace("orders", f"t{n}"), old_rows(3).replace("orders", f"t{n}"))
    assert workspace.sync().ok
    before = connections(workspace)
    with heard() as listener:
        report = workspace.sync(max_workers=1)
    logged_in = connections(workspace) - before
    assert report.ok and all(table.idle for table in report.tables) and len(report.tables) == TABLES
    said = listener.statements
    assert len(said) <= TABLES * MOST + ONCE, said
    # InnoDB renews its list of transactions ten times a second at most: idle tables must not queue for it.
    assert not [statement for statement in said if "innodb_trx" in statement]
    about = [sum(f"`t{n}`" in statement for statement in said) for n in range(TABLES)]
    assert max(about) <= 6, "statements that name the table itself"
    # The execution of these very queries connects, too.
    assert logged_in <= 4


def test_a_session_that_goes_on_to_another_table_sees_it_as_it_is(workspace: Workspace) -> None:
    workspace.execute(ORDERS)
    source = workspace.settings.source
    with closing(Session(source)) as session:
        before = discover(session, "orders", TableOptions(), source.database)
        workspace.execute("ALTER TABLE orders ADD COLUMN later INT, ADD UNIQUE KEY by_both (update_at, id)")
        after = discover(session, "orders", TableOptions(), source.database)
    assert [c.name for c in after.columns] == [*(c.name for c in before.columns), "later"]
    assert before.source.cursor_index != after.source.cursor_index == "by_both"
