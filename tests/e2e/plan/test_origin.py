"""A source other than the one that was read is refused; the same source is accepted, whatever was done to it."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from floodmark.model.events import Event, SliceRead
from floodmark.model.results import Watermark
from floodmark.model.run import SyncOptions, new_run
from floodmark.setup.services.databases import DatabaseServer
from floodmark.sync.run import sync
from floodmark.watermark.set_reset import watermark_accept
from tests.conftest import SERVERS, USUAL, Database, Silent, Workspace
from tests.support.orders import NOTE, create_orders
from tests.support.transfers import LOGGED

ORDERS = create_orders(f"{NOTE}, created_at DATETIME NOT NULL", "DATETIME(6)", name="{name}")
EVENTS = "CREATE TABLE {name} (id BIGINT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(40), created_at DATETIME NOT NULL)"
OLD = (
    "INSERT INTO {name} (note, created_at, update_at) SELECT CONCAT('{note} ', seq), "
    "'2025-05-01' + INTERVAL seq MINUTE, '2025-06-01' + INTERVAL seq SECOND FROM seq_1_to_{n}"
)
NEW = "INSERT INTO {name} (note, created_at) SELECT CONCAT('{note} ', seq), NOW() + INTERVAL seq SECOND FROM seq_1_to_{n}"


def codes(workspace: Workspace, *tables: str) -> dict[str, int]:
    """How a sync of these tables ends, each."""
    report = workspace.sync(*tables)
    return {t.table.partition(".")[2]: t.error.code if t.error else 0 for t in report.tables}


def accepted(workspace: Workspace, table: str) -> Watermark:
    config = workspace.settings
    return watermark_accept(config, workspace.full_name(table), new_run())


def repaired(workspace: Workspace, *tables: str) -> None:
    """Rows that only the former source had go with a repair; then all is equal."""
    names = [workspace.full_name(table) for table in tables]
    workspace.pipeline.verify(*names, repair=True, spark=workspace.spark())
    assert all(workspace.compare(table).equal for table in tables)


def test_syncs_continue_through_alters_a_swap_a_purge_and_updates(workspace: Workspace) -> None:
    """Tables change their id and time of creation, witnesses go and change: rows that are in place decide."""
    workspace.execute(
        ORDERS.format(name="orders"), OLD.format(name="orders", note="old", n=60),
        EVENTS.format(name="events"), NEW.format(name="events", note="old", n=60),
    )  # fmt: skip
    assert codes(workspace, "orders", "events") == {"orders": 0, "events": 0}
    for n, what in enumerate(
        (
            "ALTER TABLE {t} ADD COLUMN a INT, ALGORITHM=INSTANT",
            "ALTER TABLE {t} ADD INDEX (note), ALGORITHM=INPLACE",
            "ALTER TABLE {t} MODIFY note VARCHAR(50), ALGORITHM=COPY",
            "OPTIMIZE TABLE {t}",
            "CREATE TABLE {t}_ghost LIKE {t}; INSERT INTO {t}_ghost SELECT * FROM {t};"
            "RENAME TABLE {t} TO {t}_gone, {t}_ghost TO {t}",
            "DELETE FROM {t} WHERE id < 50; OPTIMIZE TABLE {t}",
            "UPDATE {t} SET note = CONCAT('since ', id) WHERE id > 20; ALTER TABLE {t} ENGINE = InnoDB, ALGORITHM=COPY",
        )
    ):
        for table in ("orders", "events"):
            workspace.execute(*what.format(t=table).split(";"), NEW.format(name=table, note=f"new {n}", n=3))
        assert codes(workspace, "orders", "events") == {"orders": 0, "events": 0}, what
    target = dict(workspace.query("SELECT id, note FROM orders"))
    assert all(target[key] == note for key, note in workspace.execute("SELECT id, note FROM orders"))
    # In mode append, changes of old rows are not seen.
    target = dict(workspace.query("SELECT id, note FROM events"))
    assert all(key in target for (key,) in workspace.execute("SELECT id FROM events"))


def test_a_sync_continues_after_its_newest_row_is_deleted_if_gtids_show_that_nothing_was_set_back(
    workspace: Workspace,
) -> None:
    rows = (
        "CREATE TABLE t (id INT PRIMARY KEY, update_at DATETIME(6) NOT NULL)",
        "INSERT INTO t SELECT seq, '2025-06-01' + INTERVAL seq SECOND FROM seq_1_to_50",
    )
    with SERVERS[USUAL](args=LOGGED[USUAL]) as server:
        name = workspace.database.name
        server.execute(f"CREATE DATABASE {name}")
        server.execute(*rows, database=name)
        workspace.write(source={"url": server.url(name)})
        workspace.database = Database(server, name)
        assert codes(workspace, "t") == {"t": 0}
        workspace.execute("DELETE FROM t WHERE id = 50")
        assert codes(workspace, "t") == {"t": 0}
        # An older version of the newest row is no deletion.
        workspace.execute("INSERT INTO t VALUES (60, '2025-06-02')")
        assert workspace.synced("t")["rows_extracted"] == 1
        workspace.execute("UPDATE t SET update_at = '2025-05-01' WHERE id = 60")
        assert codes(workspace, "t") == {"t": 6}


def test_syncs_continue_after_the_cursor_loses_digits(workspace: Workspace) -> None:
    """Of the newest rows one is rounded down, below the watermark that was read with more digits."""
    workspace.execute(
        "CREATE TABLE bare (id BIGINT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(40), "
        "at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (at))",
        "INSERT INTO bare (note, at) SELECT seq, '2025-06-01' + INTERVAL 700000 * seq MICROSECOND FROM seq_1_to_62",
    )
    workspace.synced("bare")
    workspace.execute(
        "ALTER TABLE bare MODIFY at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP",
        "DELETE FROM bare WHERE id = 60",
    )
    for _ in range(3):
        assert codes(workspace, "bare") == {"bare": 0}
    workspace.execute("INSERT INTO bare (note) VALUES ('new')", "UPDATE bare SET note = 'since' WHERE id < 9")
    assert codes(workspace, "bare") == {"bare": 0}
    at = "SELECT id, note, at FROM bare WHERE id <> 60 ORDER BY id"
    assert workspace.query(at.replace(" at ", ' "at" ')) == list(workspace.execute(at))


def refill(workspace: Workspace) -> None:
    """Truncated and filled again past the watermark, an hour later: rows of the same second would be the same."""
    later = NEW.format(name="refilled", note="another", n=90).replace("NOW()", "NOW() + INTERVAL 1 HOUR")
    workspace.execute("TRUNCATE refilled", later)


def remake(workspace: Workspace) -> None:
    """Dropped and created again, with other rows."""
    workspace.execute("DROP TABLE remade", ORDERS.format(name="remade"))
    workspace.execute(
        OLD.format(name="remade", note="another", n=20), NEW.format(name="remade", note="new", n=5)
    )


def restore(workspace: Workspace) -> None:
    """A dump was restored, then writing continued: ids are assigned for the second time."""
    workspace.execute("CREATE TABLE dump AS SELECT * FROM restored WHERE id <= 50")
    workspace.execute(
        "DROP TABLE restored", EVENTS.format(name="restored"), "INSERT INTO restored SELECT * FROM dump"
    )
    workspace.execute(NEW.format(name="restored", note="after", n=40))


def fail_over(workspace: Workspace) -> None:
    """To a replica that lacked the last changes; the row at the watermark was changed again there."""
    workspace.execute("UPDATE behind SET note = 'lost' WHERE id > 40")
    workspace.synced("behind")
    workspace.execute("TRUNCATE behind", "INSERT INTO behind SELECT * FROM behind_backup")
    workspace.execute("UPDATE behind SET note = 'after' WHERE id IN (1, 60)")


@pytest.mark.source
def test_a_source_that_was_replaced_is_refused_until_it_is_accepted(workspace: Workspace) -> None:
    tables = ("refilled", "remade", "restored", "behind")
    for table, made in zip(tables, (EVENTS, ORDERS, EVENTS, ORDERS), strict=True):
        fill = OLD if made is ORDERS else NEW
        workspace.execute(made.format(name=table), fill.format(name=table, note="old", n=60))
    workspace.execute("CREATE TABLE behind_backup AS SELECT * FROM behind")
    assert set(codes(workspace, *tables).values()) == {0}
    for change in (refill, remake, restore, fail_over):
        change(workspace)
    before = {table: workspace.query(f"SELECT * FROM {table} ORDER BY id") for table in tables}
    for _ in range(2):
        report = workspace.sync(*tables)
        assert [t.error and t.error.code for t in report.tables] == [6] * 4
        assert all("watermark accept -t" in (t.error.hint or "") for t in report.tables if t.error)
    assert before == {table: workspace.query(f"SELECT * FROM {table} ORDER BY id") for table in tables}
    for table in tables:
        said = accepted(workspace, table)
        assert "--repair" in str(said["notes"]) and said["mysql_status"] == "pending"
    assert set(codes(workspace, *tables).values()) == {0}
    repaired(workspace, *tables)


JOURNAL = "CREATE TABLE {name} (note VARCHAR(40), created_at DATETIME NOT NULL{key})"


@pytest.mark.parametrize("key", [", KEY (created_at)", ""], ids=["an index", "no index"])
def test_without_a_key_a_source_that_was_replaced_is_refused_too(workspace: Workspace, key: str) -> None:
    """Old rows would stay beside the new ones."""
    name = workspace.full_name("journal")
    workspace.write(tables={name: {"mode": "append", "cursor": "created_at", "overlap_seconds": 0}})
    fill = "INSERT INTO journal SELECT CONCAT('{note} ', seq), '2025-05-01' + INTERVAL {days} DAY + INTERVAL seq MINUTE FROM seq_1_to_{n}"
    workspace.execute(JOURNAL.format(name="journal", key=key), fill.format(note="old", days=0, n=60))
    assert codes(workspace, "journal") == {"journal": 0}
    for n, what in enumerate(
        ("OPTIMIZE TABLE journal", "ALTER TABLE journal ENGINE = InnoDB, ALGORITHM=COPY")
    ):
        workspace.execute(what, fill.format(note=f"new {n}", days=n + 1, n=5))
        assert codes(workspace, "journal") == {"journal": 0}, what
    assert workspace.query("SELECT count(*) FROM journal") == [(70,)]
    workspace.execute("TRUNCATE journal", fill.format(note="another", days=9, n=90))
    assert codes(workspace, "journal") == {"journal": 6}
    refused = workspace.run("watermark", "accept", "-t", "journal")
    assert refused.code == 2 and "empty journal first, then repeat the command with --force" in refused.stderr
    with duckdb.connect(workspace.warehouse) as link:
        link.execute("DELETE FROM journal")
    workspace.run("watermark", "accept", "-t", "journal", "--force").ok()
    assert codes(workspace, "journal") == {"journal": 0}
    there = "SELECT note, created_at FROM journal ORDER BY created_at"
    assert workspace.query(there) == list(workspace.execute(there))


class After(Silent):
    """Does something at the source when the first slice has been read."""

    def __init__(self, workspace: Workspace, *statements: str) -> None:
        self.workspace, self.statements = workspace, statements

    def __call__(self, event: Event) -> None:
        if isinstance(event, SliceRead) and self.statements:
            self.workspace.execute(*self.statements)
            self.statements = ()


@pytest.mark.parametrize("note", ["old", "another"])
def test_a_table_that_is_emptied_and_filled_again_while_it_is_read_is_refused(
    workspace: Workspace, note: str
) -> None:
    """Rows that it no longer has were read before, and would silently stay in the target."""
    workspace.write(defaults={"slice_rows": 50})
    workspace.execute(ORDERS.format(name="orders"), OLD.format(name="orders", note="old", n=300))
    between = After(workspace, "TRUNCATE orders", NEW.format(name="orders", note=note, n=30))
    config, name = workspace.settings, workspace.full_name("orders")
    options = SyncOptions(strategy="sequential")
    report = sync(config, [name], False, options, between, new_run(), spark=workspace.spark())
    assert not between.statements and report.exit_code == 6
    assert codes(workspace, "orders") == {"orders": 6}
    accepted(workspace, "orders")
    assert codes(workspace, "orders") == {"orders": 0}
    repaired(workspace, "orders")


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[DatabaseServer]:
    """Another server."""
    with SERVERS[USUAL](args=["--server-id=77"], buffer_pool="64M") as server:
        yield server


def copied(workspace: Workspace, server: DatabaseServer, table: str, made: str) -> None:
    """The table with its rows, as a dump carries it over."""
    name = workspace.database.name
    columns = "id, note, created_at" + (", update_at" if made is ORDERS else "")
    rows = workspace.execute(f"SELECT {columns} FROM {table}")
    server.execute(f"CREATE DATABASE IF NOT EXISTS {name}")
    server.execute(made.format(name=table), database=name)
    marks = ", ".join(["%s"] * len(rows[0]))
    with server.connect(name) as link:
        link.cursor().executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)
        link.commit()


def test_another_server_is_accepted_with_the_same_rows_and_refused_with_others(
    workspace: Workspace, elsewhere: DatabaseServer
) -> None:
    """A planned migration; and a URL that leads to another server, on which tables of that name hold other rows."""
    for table, made, fill in (("orders", ORDERS, OLD), ("events", EVENTS, NEW), ("foreign_", ORDERS, OLD)):
        workspace.execute(made.format(name=table), fill.format(name=table, note="old", n=60))
    tables = ("orders", "events", "foreign_")
    assert set(codes(workspace, *tables).values()) == {0}
    copied(workspace, elsewhere, "orders", ORDERS)
    copied(workspace, elsewhere, "events", EVENTS)
    name = workspace.database.name
    elsewhere.execute(
        ORDERS.format(name="foreign_"), OLD.format(name="foreign_", note="theirs", n=40).replace("-01'", "-02'"),
        NEW.format(name="orders", note="after", n=5), NEW.format(name="events", note="after", n=5), database=name,
    )  # fmt: skip
    workspace.write(source={"url": elsewhere.url(name)})
    workspace.database = Database(elsewhere, name)
    assert codes(workspace, *tables) == {"orders": 0, "events": 0, "foreign_": 6}
    assert workspace.compare("orders").equal and workspace.compare("events").equal
