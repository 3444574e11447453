"""Global settings that a server's administrator may have made: they neither lose a row nor end a sync."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from floodmark.setup.services.databases import DatabaseServer, MySQL
from tests.conftest import Database, Workspace, fresh_database
from tests.support.orders import create_orders, fill_orders

pytestmark = pytest.mark.source


@pytest.fixture(scope="module")
def odd() -> Iterator[Callable[[type[DatabaseServer]], DatabaseServer]]:
    """A server of either kind whose settings may be changed."""
    running: dict[type[DatabaseServer], DatabaseServer] = {}

    def get(kind: type[DatabaseServer]) -> DatabaseServer:
        if kind not in running:
            running[kind] = kind(buffer_pool="32M").__enter__()
        return running[kind]

    yield get
    for server in running.values():
        server.__exit__(None, None, None)


@pytest.fixture
def orders(
    odd: Callable[[type[DatabaseServer]], DatabaseServer],
    new_server: type[DatabaseServer],
    make_workspace: Callable[..., Workspace],
) -> Iterator[Workspace]:
    """A workspace whose user is not an administrator: `init_connect` does not apply to those."""
    with fresh_database(odd(new_server)) as database:
        database.execute(create_orders(), fill_orders(900))
        database.server.create_user("plain", "plain-pw", "SELECT ON *.*", "PROCESS ON *.*")
        workspace = make_workspace(database, store={"url": "./lake"}, defaults={"slice_rows": 200})
        workspace.write(source={"url": database.server.url(database.name, "plain", "plain-pw")})
        yield workspace


@contextmanager
def for_everybody(database: Database, **settings: str) -> Iterator[None]:
    """Global settings, for connections that begin from now on."""
    server = database.server
    before = {name: server.execute(f"SELECT @@GLOBAL.{name}")[0][0] for name in settings}
    server.execute(*(f"SET GLOBAL {name} = {value}" for name, value in settings.items()))
    try:
        yield
    finally:
        link = server.connect()
        for name, value in before.items():
            link.cursor().execute(f"SET GLOBAL {name} = %s", (value,))
        link.close()


MODES = "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,PAD_CHAR_TO_FULL_LENGTH,HIGH_NOT_PRECEDENCE'"
SETTINGS = [
    {"sql_mode": MODES},
    {"init_connect": "'SET autocommit = 0, sql_select_limit = 3'"},
]
MORE = [
    {"sql_select_limit": "7"},
    {"sql_big_selects": "0", "max_join_size": "5"},
    {"autocommit": "0"},
    {"completion_type": "'CHAIN'"},
    {"completion_type": "'RELEASE'"},
    {"tx_read_only": "1", "transaction_isolation": "'READ-UNCOMMITTED'"},
    {
        "character_set_client": "latin1",
        "character_set_results": "latin1",
        "collation_connection": "latin1_bin",
    },
]


@pytest.mark.parametrize(
    "settings",
    [*SETTINGS, *(pytest.param(s, marks=pytest.mark.long) for s in MORE)],
    ids=lambda s: " ".join(s),
)
def test_global_server_settings_lose_no_row(orders: Workspace, kind: str, settings: dict[str, str]) -> None:
    if kind == "mysql":
        settings = {n.replace("tx_read_only", "transaction_read_only"): v for n, v in settings.items()}
    elif "transaction_isolation" in settings:
        settings = {"tx_read_only": "1", "tx_isolation": settings["transaction_isolation"]}
    with for_everybody(orders.database, **settings):
        assert orders.synced("orders")["rows_loaded"] == 900
    orders.execute("UPDATE orders SET note = '\\\\ \"it''s\" ä' WHERE id % 3 = 0")
    with for_everybody(orders.database, **settings):
        assert orders.synced("orders")["rows_extracted"] == 300
        assert orders.verified("orders")["ok"]
    assert orders.compare("orders").equal


def test_a_statement_time_limit_does_not_end_our_statements(orders: Workspace, kind: str) -> None:
    limit = {"max_execution_time": "1000"} if kind == "mysql" else {"max_statement_time": "1"}
    orders.write(tables={orders.full_name("orders"): {"where": "id > 7 * 450 OR SLEEP(0.01) = 0"}})
    with for_everybody(orders.database, **limit):
        assert orders.synced("orders")["rows_loaded"] == 900
        checks = orders.run("doctor", "--json").json["checks"]
    (timeouts,) = [c for c in checks if c["name"] == "timeouts"]
    assert timeouts["status"] == "ok" and "1.0 s" in timeouts["detail"]


STRICT = "'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO'"


def test_dates_that_strict_modes_forbid_are_still_read(orders: Workspace) -> None:
    orders.execute(
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "CREATE TABLE t (id INT PRIMARY KEY, d DATE, update_at DATETIME NOT NULL)",
        "INSERT INTO t VALUES (1, '0000-00-00', '2025-03-01'), (2, '2025-02-30', '2025-03-02'), (3, '2025-01-01', 0)",
    )
    orders.write(tables={orders.full_name("t"): {"zero_dates": "keep", "start": None}})
    with for_everybody(orders.database, sql_mode=STRICT):
        assert orders.synced("t")["ok"]
        assert orders.verified("t")["ok"]
    assert orders.query("SELECT id, d__raw FROM t ORDER BY id") == [
        (1, "0000-00-00"), (2, "2025-02-30"), (3, None),
    ]  # fmt: skip


@pytest.mark.mysql_only
def test_a_generated_invisible_primary_key_is_the_key(orders: Workspace) -> None:
    orders.execute(
        "SET sql_generate_invisible_primary_key = ON",
        "CREATE TABLE t (n INT, update_at DATETIME NOT NULL DEFAULT '2025-03-01')",
        "INSERT INTO t (n) VALUES (1), (1), (2)",
    )
    with for_everybody(orders.database, show_gipk_in_create_table_and_information_schema="OFF"):
        assert orders.synced("t")["rows_loaded"] == 3
        orders.execute("UPDATE t SET n = 9, update_at = '2025-03-02' WHERE my_row_id = 2")
        assert orders.synced("t")["rows_extracted"] == 1
    assert orders.query("SELECT my_row_id, n FROM t ORDER BY 1") == [(1, 1), (2, 9), (3, 2)]


@pytest.mark.mysql_only
def test_a_server_that_folds_names_and_requires_primary_keys_is_read_under_any_spelling(
    make_workspace: Callable[..., Workspace], kind: str
) -> None:
    with MySQL(
        initialized=["--lower-case-table-names=1"], args=["--sql-require-primary-key=ON"], buffer_pool="32M"
    ) as server:
        server.execute("CREATE DATABASE Shop")
        server.execute(create_orders(name="Orders"), fill_orders(50), database="Shop")
        workspace = make_workspace(Database(server, "shop"), store={"url": "./lake"})
        assert workspace.synced("shop.orders")["rows_loaded"] == 50
        server.execute("UPDATE Orders SET note = 'changed' WHERE id = 7", database="SHOP")
        assert workspace.synced("orders")["rows_loaded"] == 1
        assert workspace.compare("orders").equal
