"""Along which index a table is read, what the server estimates of it, and that nothing is sorted that an index has in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from floodmark.config.load import TableOptions
from floodmark.model.position import Position
from floodmark.model.run import SyncOptions
from floodmark.model.table import Table
from floodmark.source import ranges as edges
from floodmark.source import sql
from floodmark.source.describe import discover, discover_with_notes
from floodmark.source.session import Session, version
from floodmark.sync.preview import plan
from tests.conftest import Database, Workspace
from tests.support import every_key as keys

ROWS = 30_000
# The first half of the rows is in a tenth of the ids; five rows at a time share a cursor.
FILL = (
    f"INSERT INTO t (id, kind, update_at) SELECT IF(seq <= {ROWS // 2}, seq, (seq - {ROWS // 2}) * 9 + {ROWS // 2}),"
    f" 1 + seq % 3, '2025-01-01' + INTERVAL (seq - 1) DIV 5 SECOND FROM seq_1_to_{ROWS}"
)
COLUMNS = "id INT NOT NULL, kind ENUM('x','y','z') NOT NULL, update_at DATETIME(3) NOT NULL"


@pytest.fixture
def session(database: Any) -> Iterator[Session]:
    with keys.session(database) as found:
        yield found


def made(database: Any, session: Session, indexes: str, **options: Any) -> Table:
    database.execute(f"CREATE TABLE t ({COLUMNS}, {indexes})", FILL, "ANALYZE TABLE t")
    return discover(session, "t", TableOptions(cursor="update_at", mode="upsert", **options), database.name)


def ordered(session: Session, table: Table, by: tuple[str, ...]) -> list[Position]:
    """All positions, sorted by the server without any index."""
    return [
        sql.position_of(table, by, row)
        for row in session.rows(
            f"SELECT {sql.position_columns(table, by)} FROM {sql.source(table)} IGNORE INDEX FOR ORDER BY (PRIMARY)"
            f" ORDER BY {sql.ordering(table, by)}"
        )
    ]


def handled(session: Session) -> int:
    """The rows that the session has looked at, in tables and in what it has sorted."""
    found = session.rows(
        "SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler_read%' OR Variable_name = 'Sort_rows'"
    )
    return sum(int(value or 0) for _, value in found)


# ---------------------------------------------------------------- estimates


@pytest.mark.both_servers
def test_a_table_is_cut_into_about_equal_slices(database: Any, session: Session) -> None:
    table = made(database, session, "PRIMARY KEY (id), KEY (update_at)")
    assert ROWS / 2 < edges.table_rows(session, table) < ROWS * 2
    cuts = edges.split_key(session, table, 10, ROWS // 10)
    parts = [
        edges.count(session, table, sql.between(table, table.key, low, high))
        for low, high in zip((None, *cuts), (*cuts, None), strict=True)
    ]
    assert len(parts) == 10 and sum(parts) == ROWS
    assert max(parts) < 2.5 * ROWS / 10, parts


@pytest.mark.both_servers
def test_a_range_of_the_cursor_is_estimated_by_its_size(database: Any, session: Session) -> None:
    table = made(database, session, "PRIMARY KEY (id), KEY (update_at)")
    everything = ordered(session, table, table.order)
    for share in (0.02, 0.1, 0.3):
        low, high = everything[ROWS // 5], everything[int(ROWS * (0.2 + share))]
        found = edges.estimate(
            session, table, table.source.cursor_index, sql.between(table, table.order, low, high)
        )
        assert share * ROWS / 2 < found < share * ROWS * 2.2, share


@pytest.mark.both_servers
def test_a_plan_knows_what_share_of_the_table_is_new(workspace: Workspace) -> None:
    columns = COLUMNS.removesuffix(" NOT NULL")  # else that it is not NULL is no range
    workspace.execute(
        f"CREATE TABLE t ({columns}, PRIMARY KEY (id), KEY (update_at))", FILL, "ANALYZE TABLE t"
    )

    def planned(start: str | None) -> tuple[int, str, int]:
        workspace.write(defaults={"slice_rows": 1000}, tables={"t": {"cursor": "update_at", "start": start}})
        found = plan(workspace.settings, "t", SyncOptions()).result
        return found["rows"], found["window"]["by"], found["window"]["slices"]

    rows, by, slices = planned(None)
    assert by == "key" and ROWS / 2 < rows < ROWS * 2 and 15 <= slices <= 60
    # 299 seconds of the table's 6,000: 1,495 rows, shared out evenly.
    assert planned("2025-01-01 01:35:00") == (1494, "cursor", 2)


@pytest.mark.mysql_only
def test_an_optimizer_that_cannot_print_its_plans_is_switched_off(new_server: Any) -> None:
    with new_server() as server:
        if server.execute("SELECT @@optimizer_switch LIKE '%hypergraph%', VERSION() >= '9.7'") != [(1, 1)]:
            pytest.skip("the server has one optimizer")
        server.execute(
            "SET GLOBAL optimizer_switch = 'hypergraph_optimizer=on'",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY)",
            "INSERT INTO shop.t SELECT seq FROM seq_1_to_1000",
            "ANALYZE TABLE shop.t",
        )
        with keys.session(Database(server, "shop")) as session:
            assert edges.table_rows(session, discover(session, "t", TableOptions(), "shop")) == 1000


@pytest.mark.mysql_only
def test_statistics_are_current(database: Any, session: Session) -> None:
    size = f"SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{database.name}'"
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", size)
    database.execute("INSERT INTO t SELECT seq FROM seq_1_to_1000", "ANALYZE TABLE t")
    assert session.rows("SELECT @@information_schema_stats_expiry") == [(b"0",)]


# ---------------------------------------------------------------- the order of an index

INDEXES = {
    "ascending": ("PRIMARY KEY (id), KEY k (update_at)", ()),
    "descending with the key": ("PRIMARY KEY (id), KEY k (update_at DESC, id DESC)", ()),
    "descending like the key": ("PRIMARY KEY (id DESC), KEY k (update_at DESC)", ()),
    "descending, the key ascending": ("PRIMARY KEY (id), KEY k (update_at DESC)", ("k",)),
    "mixed": ("PRIMARY KEY (id), KEY k (update_at, id DESC)", ("k",)),
    "another's key": ("PRIMARY KEY (update_at, id), UNIQUE KEY u (id), KEY k (update_at, kind)", ()),
    "by an enum": ("PRIMARY KEY (kind, id), KEY k (update_at)", ("PRIMARY", "k")),
    "mixed key": ("PRIMARY KEY (kind, id DESC), KEY k (update_at)", ("PRIMARY", "k")),
}


@pytest.mark.both_servers
@pytest.mark.parametrize("name", INDEXES)
def test_positions_and_slice_edges_are_the_same_with_any_index_and_need_no_sort(
    database: Any, session: Session, name: str
) -> None:
    indexes, crooked = INDEXES[name]
    key = ("id",) if "UNIQUE" in indexes else None
    table = made(database, session, indexes, key=key)
    assert (table.source.cursor_index, table.source.needs_sort) == ("PRIMARY" if key else "k", crooked)
    everything = ordered(session, table, table.order)
    seen = handled(session)
    assert edges.last(session, table, None) == everything[-1]
    assert edges.last(session, table, everything[12_345][0]) == everything[12_344]
    low, high = everything[1111], everything[-2]
    assert edges.nth(session, table, table.order, low, high, 1) == everything[1112]
    assert edges.nth(session, table, table.order, None, None, 503) == everything[502]
    assert edges.nth(session, table, table.order, everything[-3], high, 2) is None
    assert handled(session) - seen < 3000
    for by in (table.order, table.key):
        everything = everything if by == table.order else ordered(session, table, by)
        assert edges.walk(session, table, by, None, None, 7000) == tuple(everything[6999::7000])
        cut = edges.walk(session, table, by, everything[99], everything[2099], 500)
        assert cut == tuple(everything[599:2099:500])
        assert edges.walk(session, table, by, everything[99], everything[1099], 500) == (everything[599],)


def test_edges_are_found_without_window_functions(database: Any, session: Session) -> None:
    table = made(database, session, "PRIMARY KEY (id)")
    assert version(session).windows
    query = f"SELECT id FROM {sql.source(table)} ORDER BY id"
    ids = [row[0] for row in session.rows(query)]
    for step in (1, 7, 7000, ROWS, ROWS + 1):
        assert [row[0] for row in edges._every(session, query, 1, step)] == ids[step - 1 :: step]


# ---------------------------------------------------------------- indexes that can't be used


@pytest.mark.mysql_only
def test_invisible_and_functional_indexes_are_left_alone(database: Any, session: Session) -> None:
    table = made(
        database, session,
        "KEY hidden (update_at, id) INVISIBLE, KEY later ((update_at + INTERVAL 1 DAY), id), UNIQUE KEY odd ((id + 1)),"
        " UNIQUE KEY u (id), KEY k (update_at, kind)",
        key=("id",),
    )  # fmt: skip
    assert (table.source.key_index, table.source.cursor_index) == ("u", "k")
    database.execute("ALTER TABLE t ALTER INDEX k INVISIBLE")
    found = discover(session, "t", TableOptions(key=("id",), cursor="update_at"), database.name)
    assert found.source.cursor_index is None
    assert edges.last(session, found, None) == ("2025-01-01 01:39:59.000000", ROWS // 2 * 10)


@pytest.mark.mariadb_only
def test_an_ignored_index_is_left_alone(database: Any, session: Session) -> None:
    table = made(database, session, "PRIMARY KEY (id), KEY k (update_at DESC) IGNORED")
    assert table.source.cursor_index is None and edges.last(session, table, None) is not None


@pytest.mark.both_servers
def test_a_prefix_index_is_not_a_key(database: Any, session: Session) -> None:
    database.execute(
        f"CREATE TABLE t ({COLUMNS}, c VARCHAR(20) NOT NULL, UNIQUE KEY (c(3)), KEY (update_at))"
    )
    found = discover_with_notes(session, "t", TableOptions(), database.name)
    assert found.table.key == () and "in_part" in {note.unfit for note in found.notes}
