"""Every result carries the server and the table that its session has read; nothing else is committed or decided by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from floodmark.api import SyncFailed
from floodmark.model.run import SyncOptions, new_run
from floodmark.setup.services.databases import DatabaseServer
from floodmark.sync.run import sync
from tests.conftest import SERVERS, USUAL, Silent, Workspace
from tests.support.balancer import Balancer
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


@pytest.fixture
def balanced(workspace: Workspace, behind: DatabaseServer) -> Iterator[Balancer]:
    """One address; the first server has 60 rows, the second the first 44 of them."""
    name = workspace.database.name
    behind.execute(f"CREATE DATABASE {name}")
    for server, last in ((workspace.database.server, 60), (behind, 44)):
        server.execute(ORDERS, rows(1, last), database=name)
    with Balancer([workspace.database.server, behind], FIRST) as balancer:
        url = workspace.database.url
        workspace.write(
            source={"url": url.replace(f":{workspace.database.server.port}/", f":{balancer.port}/")},
            defaults={"settle_seconds": 0},
        )
        yield balancer
    behind.execute(f"DROP DATABASE {name}")


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


class Meanwhile(Silent):
    """Does something at the source after the claim, and perhaps something else when the first slice was read."""

    def __init__(self, workspace: Workspace, *then: str) -> None:
        self.workspace, self.then, self.begun = workspace, then, 0

    def begin(self, table: str, stage: str, rows: int | None) -> None:
        if stage == "extract":
            self.begun += 1
            if self.begun <= len(self.then):
                self.workspace.execute(self.then[self.begun - 1])


SWAP = "RENAME TABLE orders TO gone_, other TO orders, gone_ TO other"


def held(workspace: Workspace, *then: str, **options: object) -> tuple[int, int]:
    """How a sync ends while this happens to the table, and how often it was planned."""
    watch, name = Meanwhile(workspace, *then), workspace.full_name("orders")
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
