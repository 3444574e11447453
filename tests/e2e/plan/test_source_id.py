"""Every result carries the server and the table that its session has read; nothing else is committed or decided by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import duckdb
import pytest

from floodmark.api import SyncFailed
from floodmark.model.events import Event, StageBegan
from floodmark.model.run import SyncOptions, new_run
from floodmark.setup.services.databases import DatabaseServer
from floodmark.sync.run import sync
from tests.conftest import SERVERS, USUAL, Silent, Workspace
from tests.support.balancer import Balancer, Splitter
from tests.support.orders import NOTE, create_orders, fill_orders

ORDERS = create_orders(NOTE, "DATETIME(6)")
FIRST, SECOND = (lambda n: 0), (lambda n: 1)


@pytest.fixture(scope="module")
def behind() -> Iterator[DatabaseServer]:
    """Another server, which lacks the newest rows."""
    with SERVERS[USUAL](args=["--server-id=77"], buffer_pool="64M") as server:
        yield server


def rows(first: int, last: int) -> str:
    return (
        f"INSERT INTO orders (id, note, update_at) SELECT seq, CONCAT('n', seq),"
        f" '2025-03-01' + INTERVAL seq MINUTE FROM seq_{first}_to_{last}"
    )


def both(workspace: Workspace, behind: DatabaseServer, *statements: str) -> None:
    """Runs statements on both servers."""
    for server in (workspace.database.server, behind):
        server.execute(*statements, database=workspace.database.name)


@contextmanager
def led_by(
    workspace: Workspace, behind: DatabaseServer, rows_behind: int, leader: Balancer
) -> Iterator[None]:
    """One address; the first server has 60 rows, the second the first few of them."""
    name, port = workspace.database.name, workspace.database.server.port
    behind.execute(f"CREATE DATABASE {name}")
    both(workspace, behind, ORDERS, rows(1, rows_behind))
    if rows_behind < 60:
        workspace.execute(rows(rows_behind + 1, 60))
    url = workspace.database.url.replace(f":{port}/", f":{leader.port}/")
    workspace.write(source={"url": url, "tls": {"mode": "disabled"}}, defaults={"settle_seconds": 0})
    with leader:
        yield
    behind.execute(f"DROP DATABASE {name}")


@pytest.fixture
def balanced(workspace: Workspace, behind: DatabaseServer) -> Iterator[Balancer]:
    """One address; the second server lacks the newest 16 rows."""
    balancer = Balancer([workspace.database.server, behind], FIRST)
    with led_by(workspace, behind, 44, balancer):
        yield balancer


@pytest.fixture
def equal(workspace: Workspace, behind: DatabaseServer) -> Iterator[Balancer]:
    """One address; both servers have the same rows."""
    balancer = Balancer([workspace.database.server, behind], FIRST)
    with led_by(workspace, behind, 60, balancer):
        yield balancer


def code(workspace: Workspace, **options: object) -> int:
    return workspace.sync("orders", **options).exit_code


@pytest.mark.parametrize(
    ("choose", "slice_rows"),
    [(lambda n: int(n > 0), 250_000), (lambda n: n % 2, 10), (lambda n: n // 2 % 2, 10)],
    ids=["all but the first", "every other", "every other two"],
)
def test_no_row_is_skipped_if_an_address_leads_to_a_server_that_is_behind(
    workspace: Workspace, balanced: Balancer, choose: Callable[[int], int], slice_rows: int
) -> None:
    workspace.write(defaults={"slice_rows": slice_rows})
    ends = []
    for n in range(4):
        balanced.lead(choose)
        ends.append(code(workspace, verify_data=n == 3))
        workspace.execute(rows(61 + 5 * n, 65 + 5 * n))
    assert set(ends) <= {0, 4}
    balanced.lead(FIRST)
    assert code(workspace) == 0
    assert workspace.compare("orders").equal


def test_a_server_that_is_behind_is_no_reason_to_refuse_while_the_address_leads_to_others(
    workspace: Workspace, balanced: Balancer
) -> None:
    assert code(workspace) == 0
    balanced.lead(lambda n: int(n == 0 or n % 2))
    report = workspace.sync("orders")
    error = report.tables[0].error
    assert report.exit_code == 4 and error is not None and "several servers" in error.message
    assert "server_id 77" in error.message
    balanced.lead(FIRST)
    assert code(workspace) == 0 and workspace.compare("orders").equal


def test_deletes_and_repairs_are_never_decided_by_a_server_that_is_behind(
    workspace: Workspace, balanced: Balancer
) -> None:
    """Rows that it does not have yet would be deleted, and its older versions would replace newer ones."""
    workspace.write(defaults={"deletes": "hard", "deletes_every": "1s"})
    assert code(workspace) == 0
    workspace.execute("UPDATE orders SET note = 'newer', update_at = '2025-03-02' WHERE id = 7")
    assert code(workspace) == 0
    for choose in (lambda n: int(n > 0), SECOND, lambda n: 1 - n % 2):
        time.sleep(1)
        balanced.lead(choose)
        code(workspace)
        balanced.lead(choose)
        with pytest.raises(SyncFailed) as failed:
            workspace.verified("orders", repair=True)
        assert failed.value.code == (6 if choose is SECOND else 4)  # it leads to no other server
        assert workspace.query("SELECT count(*), count(*) FILTER (note = 'newer') FROM orders") == [(60, 1)]
    balanced.lead(FIRST)
    assert code(workspace) == 0 and workspace.compare("orders").equal


def test_verify_of_two_servers_ends_with_4(workspace: Workspace, balanced: Balancer) -> None:
    assert code(workspace) == 0
    for choose in (lambda n: int(n > 0), lambda n: 1 - n % 2):
        balanced.lead(choose)
        with pytest.raises(SyncFailed) as failed:
            workspace.verified("orders")
        assert failed.value.code == 4
    balanced.lead(FIRST)
    assert workspace.verified("orders")["ok"]


# The plan on the second server, and then either.
SWITCHED = lambda n: 1 if n == 0 else n % 2  # noqa: E731


@pytest.mark.parametrize(
    "change",
    [
        ["UPDATE orders SET note = 'hot', update_at = '2025-03-02' WHERE id = 60"],
        ["DELETE FROM orders WHERE id = 60", rows(61, 70)],
        ["DELETE FROM orders WHERE id = 60"],
    ],
    ids=["updated", "deleted, and newer ones", "deleted"],
)
def test_a_server_that_has_the_same_rows_as_another_one_may_take_its_place(
    workspace: Workspace, behind: DatabaseServer, equal: Balancer, change: list[str]
) -> None:
    assert code(workspace) == 0
    both(workspace, behind, *change)
    equal.lead(SWITCHED)
    assert code(workspace) == 0


def test_rows_in_the_future_do_not_hide_that_a_server_is_behind(
    workspace: Workspace, behind: DatabaseServer, balanced: Balancer
) -> None:
    both(workspace, behind, "INSERT INTO orders VALUES (1000, 'far', '2200-01-01')")
    assert code(workspace) == 0
    balanced.lead(SWITCHED)
    assert code(workspace) == 4


def test_verify_reports_what_differs_whichever_of_two_equal_servers_it_reads(
    workspace: Workspace, equal: Balancer
) -> None:
    assert code(workspace) == 0
    with duckdb.connect(str(workspace.warehouse)) as connection:
        connection.execute("DELETE FROM orders WHERE id = 7")
    equal.lead(SWITCHED)
    assert workspace.verified("orders")["missing"] == 1


def test_a_proxy_that_splits_reads_and_writes_is_named(workspace: Workspace, behind: DatabaseServer) -> None:
    splitter = Splitter([workspace.database.server, behind], workspace.database.name)
    with led_by(workspace, behind, 60, splitter):
        report = workspace.sync("orders")
        error = report.tables[0].error
        assert report.exit_code == 2 and error is not None and "splits reads and writes" in error.message
        assert "server_id 77" in error.message


def test_a_slice_costs_few_questions(workspace: Workspace) -> None:
    """Through a tunnel each takes as long as the way there and back."""
    workspace.write(defaults={"settle_seconds": 0})
    workspace.execute(ORDERS, rows(1, 60))
    server = workspace.database.server
    server.execute("SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = 1")
    try:
        workspace.synced("orders")
    finally:
        server.execute("SET GLOBAL general_log = 0")
    label = f"/* floodmark: extract {workspace.full_name('orders')} */ "
    found = server.execute(
        "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log ORDER BY event_time"
    )
    asked = [said.removeprefix(label).split()[0] for (said,) in found if said.startswith(label)]
    # Settings, which server, the rows (prepared and executed), which server and table.
    assert asked == ["SET", "SET", "SELECT", "START", *["SELECT"] * 3, "COMMIT"]


class Meanwhile(Silent):
    """Does something at the source after the claim, and perhaps something else when the first slice was read."""

    def __init__(self, workspace: Workspace, *then: str, stage: str = "extract") -> None:
        self.workspace, self.then, self.stage, self.begun = workspace, then, stage, 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageBegan) and event.stage == self.stage:
            self.begun += 1
            if self.begun <= len(self.then):
                self.workspace.execute(self.then[self.begun - 1])


SWAP = "RENAME TABLE orders TO gone_, other TO orders, gone_ TO other"


def held(workspace: Workspace, *then: str, stage: str = "extract", **options: object) -> tuple[int, int]:
    """How a sync ends while this happens to the table, and how often the stage was begun."""
    watch, name = Meanwhile(workspace, *then, stage=stage), workspace.full_name("orders")
    how = SyncOptions(**options)  # type: ignore[arg-type]
    report = sync(workspace.settings, [name], False, how, watch, new_run(), spark=workspace.spark())
    return report.exit_code, watch.begun


@pytest.mark.parametrize("slice_rows", [7, 250_000])
@pytest.mark.parametrize("synced", [0, 20])
def test_a_table_that_is_exchanged_after_the_claim_loses_no_row(
    workspace: Workspace, slice_rows: int, synced: int
) -> None:
    """Both were created in the same second: only their ids differ."""
    workspace.write(defaults={"slice_rows": slice_rows, "settle_seconds": 0})
    workspace.execute(
        ORDERS, "CREATE TABLE other LIKE orders", "INSERT INTO other VALUES (1, 'x', '2025-03-01')"
    )
    if synced:
        workspace.execute(rows(1, synced))
        workspace.synced("orders")
    workspace.execute(rows(synced + 1, 41))
    assert held(workspace, SWAP) == (4, 1)
    workspace.execute(SWAP)
    workspace.synced("orders")
    assert workspace.compare("orders").equal


def test_a_table_that_is_altered_while_it_is_read_is_planned_again_and_goes_on(workspace: Workspace) -> None:
    workspace.write(defaults={"slice_rows": 7, "settle_seconds": 0})
    workspace.execute(ORDERS, rows(1, 41))
    assert held(workspace, "ALTER TABLE orders ENGINE = InnoDB") == (0, 2)
    assert workspace.compare("orders").equal
    workspace.execute(rows(42, 61))
    assert held(workspace, "OPTIMIZE TABLE orders", "ALTER TABLE orders ENGINE = InnoDB") == (4, 2)
    workspace.synced("orders")
    assert workspace.compare("orders").equal


def test_a_table_that_is_altered_before_its_loaded_rows_are_compared_is_compared_as_it_is_now(
    workspace: Workspace,
) -> None:
    workspace.write(defaults={"settle_seconds": 0})
    workspace.execute(ORDERS, rows(1, 41))
    ended, begun = held(workspace, "ALTER TABLE orders ENGINE = InnoDB", stage="load", verify_data=True)
    assert ended == 0 and begun


def test_a_server_that_never_tells_a_tables_id_costs_seconds(workspace: Workspace) -> None:
    workspace.execute(create_orders(), fill_orders(3000))
    server = workspace.database.server
    with Balancer([server], FIRST) as balancer:
        balancer.silent = b"information_schema.INNODB_TABLE"
        url = workspace.database.url.replace(f":{server.port}/", f":{balancer.port}/")
        workspace.write(source={"url": url, "tls": {"mode": "disabled"}}, defaults={"slice_rows": 500})
        began = time.monotonic()
        workspace.synced("orders")
        assert workspace.verified("orders")["ok"]
        assert time.monotonic() - began < 30
    assert workspace.compare("orders").equal
